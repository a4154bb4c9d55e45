"""Residual Alignment against stochastic depth (Huang et al. 2016): block l survives a step of
training with probability 1 - p_L l/L, by which its branch, and so its step and its Jacobian, is
scaled at evaluation.

Step lengths and s_1 are shown as they are, and divided by the survival probability: those of the
branch itself.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from .common import CONFIGURATION, heading, name_series, read_rows, read_scores, title
from .style import TEXT
from .sweeps import SCORES, about, draw_series, finish, keys, mark_keys, series_of

SHOWN = {
    name: SCORES[name] for name in ("line_shape_score", "step_cv", "alignment", "inverse_slope")
}
OF_BRANCHES = {"step_cv": "branch_cv", "inverse_slope": "branch_slope"}
NETWORK = [*CONFIGURATION, "seed"]
THEORY = {"color": "0.25", "linewidth": 0.7}


def draw(inputs, recipes):
    """`inputs`: residual_alignment.csv files of configurations that differ in stochastic depth,
    then the spectra_per_block.csv files of the same.
    `recipes`: {name: {"stochastic_depth": p_L, "stochastic_depth_per": "batch" or "sample"}}.
    """
    half = len(inputs) // 2
    rows = read_scores(inputs[:half], ["train_accuracy", "inputs", *SHOWN])
    rows = rows.merge(of_branches(inputs[half:], recipes), how="left", on=[*NETWORK, "epoch"])
    rows["p"] = rows["recipe"].map(lambda name: recipes[name]["stochastic_depth"])
    # How blocks are drawn takes the place of the recipe, whose name no longer matters.
    rows["recipe"] = "a draw per " + rows["recipe"].map(
        lambda name: recipes[name]["stochastic_depth_per"]
    )
    rows = name_series(shared_start(rows))
    fig, axes = plt.subplots(1, 4, figsize=(TEXT, 2.5))
    for letter, axis, (column, score) in zip("abcd", axes, SHOWN.items(), strict=True):
        for name, look in series_of(rows).items():
            mine = rows[rows["series"] == name]
            if column in OF_BRANCHES:
                by_p = mine.groupby("p")[OF_BRANCHES[column]]
                axis.plot(by_p.mean(), ":", color=look["color"], linewidth=1.4)
            draw_series(axis, mine, "p", column, look, limits=score.limits)
        finish(axis, score)
        top = max(rows["p"].max(), 0.1)
        axis.set(xlabel="$p_L$", xlim=(-0.07 * top, 1.07 * top))
        title(axis, letter, score.title)
    p = np.linspace(0, rows["p"].max(), 50)
    for depth in rows["depth"].unique():
        axes[1].plot(p, [spread(survival(np.arange(1, depth + 1), depth, q)) for q in p], **THEORY)
    text = about(rows, ("recipe",))
    heading(
        fig,
        f"Residual Alignment against stochastic depth, block l dropped with $p_L\\,l/L$: {text}",
    )
    branches = Line2D([], [], color="0.3", linestyle=":", linewidth=1.4)
    branches.set_label("divided by survival (mean)")
    theory = Line2D([], [], label="equal steps times survival", **THEORY)
    handles = [*keys(rows, marks=False), branches, theory, *mark_keys(rows)]
    fig.legend(handles=handles, loc="outside lower center", ncols=4)
    return fig


def survival(block, depth, p):
    return 1 - p * block / depth


def spread(values):
    """Coefficient of variation."""
    return np.std(values) / np.mean(values)


def of_branches(paths, recipes):
    """Of each network: `branch_cv` and `branch_slope`, the scores of its branches before they are
    scaled by their survival probability; training images, defined as in residual_alignment.csv.
    """
    rows = read_rows(paths, [*NETWORK, "epoch", "split", "input", "block", "step_length"])
    p = rows["recipe"].map(lambda name: recipes[name]["stochastic_depth"])
    rows = rows.assign(survival=survival(rows["block"], rows["depth"], p))
    rows = rows[rows["split"] == "train"]
    found = []
    for network, group in rows.groupby([*NETWORK, "epoch"]):
        steps = group.assign(step=group["step_length"] / group["survival"])
        top = group.groupby("block")["sigma_1"].mean() / group.groupby("block")["survival"].first()
        slope = np.polyfit(top.index, 1 / top, 1)[0] if len(top) > 2 else np.nan
        found.append((*network, steps.groupby("input")["step"].agg(spread).mean(), slope))
    return pd.DataFrame(found, columns=[*NETWORK, "epoch", "branch_cv", "branch_slope"])


def shared_start(rows):
    """Networks without stochastic depth are the start of every series."""
    dropped = rows[rows["p"] > 0]
    starts = [rows[rows["p"] == 0].assign(recipe=kind) for kind in dropped["recipe"].unique()]
    return pd.concat([dropped, *starts], ignore_index=True) if starts else rows
