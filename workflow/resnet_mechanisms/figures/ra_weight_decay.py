"""Residual Alignment against weight decay: on everything, kept off batch norm, only on batch norm.

Decay on the last batch norm of a branch is a penalty on path energy (docs/methods.md).
"""

import matplotlib.pyplot as plt
import numpy as np

from .common import heading, log_axis, name_series, read_scores
from .style import TEXT
from .sweeps import FURTHER, SCORES, about, keys, panels

SHOWN = {name: score for name, score in SCORES.items() if name != "sigma_1"}
SHOWN |= {name: FURTHER[name] for name in ("sigma_c1_ratio", "test_accuracy")}


def draw(inputs, recipes):
    """`inputs`: residual_alignment.csv files of configurations that differ in weight decay.
    `recipes`: {name: {"weight_decay": ..., "weight_decay_batch_norm": ...}}.
    """
    rows = read_scores(inputs, ["train_accuracy", "inputs", *SHOWN])
    decay = rows["recipe"].map(lambda name: recipes[name]["weight_decay"])
    norm = rows["recipe"].map(lambda name: recipes[name]["weight_decay_batch_norm"])
    rows = rows.assign(decay=np.where(decay > 0, decay, norm))
    # What decays takes the place of the recipe, whose name no longer matters.
    rows["recipe"] = [where_it_acts(*pair) for pair in zip(decay, norm, strict=True)]
    rows = name_series(rows)
    fig, axes = plt.subplots(2, 3, figsize=(TEXT, 4.1))
    panels(axes.ravel(), rows, "decay", "weight decay", SHOWN, decay_axis)
    heading(fig, f"Residual Alignment against weight decay: {about(rows, ('recipe',))}")
    fig.legend(handles=keys(rows), loc="outside lower center", ncols=3)
    return fig


def where_it_acts(decay, norm):
    """What a recipe's weight decay acts on."""
    if decay == norm:
        return "decay on everything"
    if not norm:
        return "decay off batch norm"
    if not decay:
        return "decay only on batch norm"
    return f"{norm:g} on batch norm"


def decay_axis(axis, values, label):
    """Logarithmic; no decay at all stands at 0."""
    positive = values[values > 0]
    if len(positive) < len(values) and len(positive):
        axis.set_xscale("symlog", linthresh=positive.min(), linscale=0.5)
        axis.set_xlim(-0.3 * positive.min(), 1.5 * positive.max())
    elif len(positive):
        axis.set_xlim(positive.min() / 1.5, positive.max() * 1.5)
        log_axis(axis, "x")
    axis.set_xlabel(label)
