"""Does Residual Alignment cause anything? Training with a penalty that straightens or bends the
path, or on path energy: scores, and test accuracy against them.
"""

import matplotlib.pyplot as plt

from . import dots
from .common import heading, read_scores, title
from .style import TEXT
from .sweeps import FURTHER, SCORES, finish, mark_keys

SCORES_OF_RA = {name: SCORES[name] for name in ("line_shape_score", "alignment", "inverse_slope")}
SHOWN = SCORES_OF_RA | {"test_accuracy": FURTHER["test_accuracy"]}


def draw(inputs):
    """`inputs`: residual_alignment.csv files of every intervention (recipe). One mark a seed.

    Top: scores and test accuracy by intervention; bottom: test accuracy against each score.
    """
    rows = read_scores(inputs, ["train_accuracy", "inputs", *SHOWN])
    columns, rows, labels = dots.name_recipes(rows)
    looks = dots.looks_of(len(labels))
    top = dots.height_of(labels)
    fig, axes = plt.subplots(2, len(SHOWN), figsize=(TEXT, 3.0 + top), height_ratios=[top, 1.5])
    dots.draw_panels(axes[0], rows, labels, SHOWN, "category", looks)
    for letter, axis, (column, score) in zip("efg", axes[1], SCORES_OF_RA.items(), strict=False):
        dots.scatter(axis, rows, looks, column, "test_accuracy", "y", score.limits)
        finish(axis, score, "x")
        if axis is axes[1, 0]:
            axis.set_ylabel("test accuracy")
        else:
            axis.sharey(axes[1, 0])
            axis.tick_params(labelleft=False)
        title(axis, letter, f"test accuracy by {score.title.split(':')[0]}")
    axes[1, -1].set_axis_off()
    axes[1, -1].legend(handles=mark_keys(rows), loc="center left")
    text = dots.about(rows, columns)
    heading(
        fig,
        f"Interventions on Residual Alignment: {text}. Colours and marks of e to g as in a to d",
    )
    return fig
