"""Residual Alignment scores against the number of classes C; the spectrum breaks after C - 1
singular values.
"""

from .ra_width import draw_sweep
from .sweeps import FURTHER, SCORES

SHOWN = {name: score for name, score in SCORES.items() if name != "sigma_1"}
SHOWN |= {name: FURTHER[name] for name in ("sigma_c_ratio", "sigma_c1_ratio")}


def draw(inputs):
    """`inputs`: residual_alignment.csv files of every configuration of the class-count grids."""
    return draw_sweep(inputs, "classes", "classes C", SHOWN, "the number of classes")
