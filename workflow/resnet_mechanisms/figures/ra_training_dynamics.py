"""Residual Alignment and Neural Collapse in the course of training, ResNet and plain: when does a
network fit, when do its last features collapse, when does it align?
"""

import matplotlib.pyplot as plt
from matplotlib.ticker import NullLocator

from .common import CONFIGURATION, heading, name_series, read_rows
from .neural_collapse import MEASURES
from .style import REFERENCE, TEXT
from .sweeps import FURTHER, SCORES, about, keys, panels

SHOWN = {
    "train_accuracy": FURTHER["train_accuracy"],
    "line_shape_score": SCORES["line_shape_score"],
    "alignment": SCORES["alignment"],
    "inverse_slope": SCORES["inverse_slope"],
    "sigma_c1_ratio": FURTHER["sigma_c1_ratio"],
    "nc1": MEASURES["nc1"],
}


def draw(inputs):
    """`inputs`: residual_alignment.csv files of configurations whose recipes keep checkpoints."""
    rows = read_rows(inputs, [*CONFIGURATION, "seed", "epoch", "split", "status", "inputs", *SHOWN])
    rows = rows[rows["split"] == "train"].drop_duplicates([*CONFIGURATION, "seed", "epoch"])
    rows = name_series(rows)
    fig, axes = plt.subplots(2, 3, figsize=(TEXT, 4.1))
    axes = axes.ravel()
    panels(axes, rows, "epoch", "epoch", SHOWN, epoch_axis)
    axes[0].axhline(1 / rows["classes"].max(), **REFERENCE)
    axes[0].set_ylim(-0.04, 1.04)
    text = about(rows, ("skip",))
    heading(fig, f"Residual Alignment in the course of training: {text}. Epoch 0: initialisation")
    fig.legend(handles=keys(rows), loc="outside lower center", ncols=4)
    return fig


def epoch_axis(axis, values, label):
    """Logarithmic from epoch 1 on, with room for epoch 0."""
    axis.set_xscale("symlog", linthresh=1, linscale=0.5)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlim(-0.3, 1.3 * max(values.max(), 1))
    axis.set_xlabel(label)
