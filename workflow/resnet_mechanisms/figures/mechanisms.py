"""Three papers on the same networks, against depth: straight and aligned paths (Li & Papyan 2023),
gradients that stay alike (Balduzzi et al. 2017), training error (He et al. 2016).
"""

from dataclasses import replace

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

from .common import CONFIGURATION, heading, last_epoch, name_series, read_rows, read_scores, title
from .style import REFERENCE, TEXT
from .sweeps import (
    SCORES,
    Score,
    about,
    draw_series,
    finish,
    keys,
    mark_keys,
    number_axis,
    series_of,
    shifts,
)

NETWORK = [*CONFIGURATION, "seed"]
PANELS = {
    "line_shape_score": replace(SCORES["line_shape_score"], title="straight paths"),
    "alignment": replace(SCORES["alignment"], title="aligned blocks"),
    "similar": Score("gradients alike", "gradient correlation", references=(0, 1)),
    "train_error": Score("degradation", "training error (%)"),
}


def draw(inputs):
    """`inputs`: of every configuration residual_alignment.csv, then history.csv, then
    gradients/covariance.csv.

    Line shape, alignment and training error at the last epoch. Gradients: the correlation of the
    logits' gradients by the first hidden pre-activation at an image and at its noisy copy, before
    training; grey, mean field for plain networks.
    """
    third = len(inputs) // 3
    rows = read_scores(inputs[:third], ["train_accuracy", "inputs", "line_shape_score"], "depth")
    errors = last_epoch(read_rows(inputs[third : 2 * third], [*NETWORK, "epoch", "train_accuracy"]))
    errors = errors.assign(train_error=100 * (1 - errors["train_accuracy"]))
    gradients = read_rows(inputs[2 * third :], [*NETWORK, "epoch", "pairs", "correlation"])
    gradients = before_training(gradients)
    for found in (errors[[*NETWORK, "train_error"]], gradients):
        rows = rows.merge(found.drop_duplicates(NETWORK), how="left", on=NETWORK)
    rows = name_series(rows, "depth")

    fig, axes = plt.subplots(1, 4, figsize=(TEXT, 2.6))
    series = series_of(rows)
    for letter, axis, (column, score) in zip("abcd", axes, PANELS.items(), strict=True):
        for (name, look), shift in zip(series.items(), shifts(series).values(), strict=True):
            # Errors and gradients exist where scores do not.
            mine = rows[rows["series"] == name]
            if column in ("similar", "train_error"):
                mine = mine.assign(status="ok")
            draw_series(axis, mine, "depth", column, look, shift, score.limits)
        finish(axis, score)
        title(axis, letter, score.title)
        number_axis(axis, rows["depth"], "depth L (blocks)")
    theory = rows.dropna(subset=["mean_field"]).groupby("depth")["mean_field"].mean()
    axes[2].plot(theory.index, theory, color=REFERENCE["color"], linewidth=0.8, zorder=3)
    axes[2].set_ylim(-0.08, 1.05)
    axes[3].set_ylim(-3, 100)
    handles = keys(rows, marks=False) + [
        Line2D([], [], color=REFERENCE["color"], linewidth=0.8, label="plain, mean field (c)"),
        *mark_keys(rows.replace({"status": {"too_few_points": "ok"}})),  # no line is fitted here
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=4)
    heading(
        fig,
        f"The same networks in three papers: {about(rows, ('skip', 'depth'))}. a, b: after "
        "training (Li & Papyan 2023). c: gradients at an image and a copy with 1 % noise, before "
        "training (Balduzzi et al. 2017). d: after training (He et al. 2016)",
    )
    return fig


def before_training(rows):
    """The rows at epoch 0 of the logits' gradients at an image and its noisy copy."""
    rows = rows[
        (rows["epoch"] == 0) & (rows["gradient"] == "logits") & (rows["pairs"] == "noisy copy")
    ]
    return rows.rename(columns={"correlation": "similar"})[[*NETWORK, "similar", "mean_field"]]
