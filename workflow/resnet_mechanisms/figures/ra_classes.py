"""Residual Alignment scores against the number of classes C; the spectrum breaks after C - 1
singular values.
"""

from .ra_width import draw_sweep
from .sweeps import SCORES, Score

SHOWN = {name: score for name, score in SCORES.items() if name != "sigma_1"} | {
    "sigma_c_ratio": Score("RA3: rank C", "$s_C / s_1$", "log"),
    "sigma_c1_ratio": Score("RA3: rank C + 1", "$s_{C+1} / s_1$", "log", (0.03,)),
}


def draw(inputs):
    """`inputs`: residual_alignment.csv files of every configuration of the class-count grids."""
    return draw_sweep(inputs, "classes", "classes C", SHOWN, "the number of classes")
