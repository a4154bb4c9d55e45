"""Residual Alignment and generalisation: scores by intervention, and against the test accuracy."""

import matplotlib.pyplot as plt

from . import dots
from .common import heading, read_scores, title
from .style import TEXT
from .sweeps import SCORES, finish, mark_keys

SHOWN = {
    name: SCORES[name] for name in ("line_shape_score", "step_cv", "alignment", "inverse_slope")
}


def draw(inputs):
    """`inputs`: residual_alignment.csv files of every intervention (recipe), such as labels that
    are random or partly wrong. One mark a seed.

    Top: each score by intervention, the accuracies beside the names; bottom: against test accuracy.
    """
    rows = read_scores(inputs, ["train_accuracy", "test_accuracy", "inputs", *SHOWN])
    columns, rows, labels = dots.name_recipes(rows)
    for number, label in enumerate(labels):
        means = rows[rows["category"] == number][["train_accuracy", "test_accuracy"]].mean()
        label.append("training {:.2f}, test {:.2f}".format(*means))
    looks = dots.looks_of(len(labels))
    top = dots.height_of(labels)
    fig, axes = plt.subplots(2, len(SHOWN), figsize=(TEXT, 2.9 + top), height_ratios=[top, 1.5])
    dots.draw_panels(axes[0], rows, labels, SHOWN, "category", looks)
    for letter, axis, (column, score) in zip("efgh", axes[1], SHOWN.items(), strict=True):
        dots.scatter(axis, rows, looks, "test_accuracy", column, "x", score.limits)
        finish(axis, score)
        axis.set(xlabel="test accuracy", xlim=(-0.04, 1.06))
        title(axis, letter, "by test accuracy")
    text = dots.about(rows, columns)
    heading(
        fig,
        f"Residual Alignment by intervention: {text}. Colours and marks of e to h as in a to d",
    )
    fig.legend(handles=mark_keys(rows), loc="outside lower center", ncols=4)
    return fig
