"""Residual Alignment by architecture: the paper's Types 1 to 3, and with pre-activation, ResNets
beside plain networks.
"""

import matplotlib.pyplot as plt

from . import dots
from .common import heading, read_scores
from .style import TEXT
from .sweeps import FURTHER, SCORES, mark_keys

SHOWN = {name: SCORES[name] for name in ("line_shape_score", "alignment", "inverse_slope")}
SHOWN |= {"sigma_c1_ratio": FURTHER["sigma_c1_ratio"]}


def draw(inputs):
    """`inputs`: residual_alignment.csv files of every configuration of the architectures."""
    return draw_categories(inputs, ["type"], SHOWN, "architecture")


def draw_categories(inputs, columns, scores, name):
    """Panels of `scores` by the value of `columns`; a category's label also says what else tells
    its networks from others."""
    rows = read_scores(inputs, ["train_accuracy", "inputs", *scores])
    rows, labels = dots.name_categories(rows, columns)
    fig, axes = plt.subplots(1, len(scores), figsize=(TEXT, 1.15 + dots.height_of(labels)))
    dots.draw_panels(axes, rows, labels, scores)
    if "test_accuracy" in scores:
        axis = axes[list(scores).index("test_accuracy")]
        dots.mark_chance(axis, rows)
        axis.set_xlim(-0.04, 1.04)
    heading(fig, f"Residual Alignment by {name}: {dots.about(rows, columns)}")
    handles = [*dots.skip_keys(rows), *mark_keys(rows)]
    fig.legend(handles=handles, loc="outside lower center", ncols=4)
    return fig
