"""Residual Alignment and generalisation: scores by intervention, and against the test accuracy."""

import matplotlib.pyplot as plt
import numpy as np

from .common import DEFINED, FITTED, heading, mark_undefined, read_scores, title
from .style import PALETTE, TEXT
from .sweeps import MARKERS, SCORES, about, finish, mark_keys

SHOWN = {
    name: SCORES[name] for name in ("line_shape_score", "step_cv", "alignment", "inverse_slope")
}


def draw(inputs):
    """`inputs`: residual_alignment.csv files of every intervention (recipe). One mark a seed.

    Top: each score by intervention, the accuracies beside the names; bottom: against test accuracy.
    """
    rows = read_scores(inputs, ["train_accuracy", "test_accuracy", "inputs", *SHOWN])
    name = "variant" if rows["skip"].nunique() == 1 else "series"
    rows = rows.rename(columns={name: "intervention"})
    names = list(dict.fromkeys(rows["intervention"]))
    fig, axes = plt.subplots(2, len(SHOWN), figsize=(TEXT, 4.6), height_ratios=[1, 0.9])
    for k, (column, score) in enumerate(SHOWN.items()):
        for number, name in enumerate(names):
            mine = rows[rows["intervention"] == name]
            places = number + np.linspace(-0.12, 0.12, len(mine))
            _marks(axes[0, k], mine, mine[column], places, number, along="y")
            _marks(axes[1, k], mine, mine["test_accuracy"], mine[column], number, along="x")
        finish(axes[0, k], score, "x")
        finish(axes[1, k], score)
        axes[0, k].set_ylim(len(names) - 0.5, -0.5)
        axes[0, k].set_yticks(range(len(names)), [_label(rows, n) if k == 0 else "" for n in names])
        axes[0, k].tick_params(axis="y", length=0)
        axes[1, k].set(xlabel="test accuracy", xlim=(-0.04, 1.06))
        title(axes[0, k], "abcd"[k], score.title)
        title(axes[1, k], "efgh"[k], "by test accuracy")
    text = about(rows, ("recipe",)).split(". Mean")[0]
    heading(
        fig,
        f"Residual Alignment by intervention: {text}. Colours and marks as named in panel a; "
        f"one mark a seed, mean over {rows['inputs'].max():g} training images",
    )
    fig.legend(handles=mark_keys(rows), loc="outside lower center", ncols=4)
    return fig


def _label(rows, name):
    mine = rows[rows["intervention"] == name]
    train, test = mine["train_accuracy"].mean(), mine["test_accuracy"].mean()
    return f"{name}\ntraining {train:.2f}, test {test:.2f}"


def _marks(axis, rows, x, y, number, along):
    """A mark a seed in the colour of intervention `number`; a cross at the axis `along` if its
    score is undefined.
    """
    colour, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
    for (_, row), here, there in zip(rows.iterrows(), x, y, strict=True):
        place, value = (here, there) if along == "x" else (there, here)
        if row["status"] in DEFINED and np.isfinite(value):
            face = colour if row["train_accuracy"] >= FITTED else "white"
            axis.plot(here, there, marker=marker, color=colour, markerfacecolor=face, markersize=4)
        elif np.isfinite(place):
            mark_undefined(axis, place, colour, along=along)
