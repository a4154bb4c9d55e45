"""Residual Alignment scores against the width of the network."""

import matplotlib.pyplot as plt

from .common import heading, read_scores
from .style import TEXT
from .sweeps import SCORES, about, keys, panels


def draw(inputs):
    """`inputs`: residual_alignment.csv files of every configuration of the width grids."""
    return draw_sweep(inputs, "width", "width", SCORES, "width")


def draw_sweep(inputs, x, label, scores, name):
    """Panels of `scores` (at most six) against the column `x`; a spare panel holds the legend."""
    rows = read_scores(inputs, ["train_accuracy", "inputs", *scores], x)
    fig, axes = plt.subplots(2, 3, figsize=(TEXT, 4.0))
    axes = axes.ravel()
    panels(axes, rows, x, label, scores)
    for axis in axes[len(scores) :]:
        axis.set_axis_off()
    heading(fig, f"Residual Alignment against {name}: {about(rows, (x,))}")
    handles = keys(rows)
    if len(scores) < len(axes):
        axes[-1].legend(handles=handles, loc="center left")
    else:
        fig.legend(handles=handles, loc="outside lower center", ncols=4)
    return fig
