"""Residual Alignment by data set, ResNets beside plain networks, with their test accuracy."""

from .ra_architectures import SHOWN, draw_categories
from .sweeps import FURTHER


def draw(inputs):
    """`inputs`: residual_alignment.csv files of every configuration of the data sets."""
    scores = SHOWN | {"test_accuracy": FURTHER["test_accuracy"]}
    return draw_categories(inputs, ["dataset", "classes"], scores, "data set")
