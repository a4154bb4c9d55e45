"""Residual Alignment scores against the number of blocks L, ResNet and plain, by recipe; mean s_1
with its exponent in L.
"""

import matplotlib.pyplot as plt
import numpy as np

from .common import DEFINED, heading, read_scores, title
from .style import PALETTE, REFERENCE, TEXT
from .sweeps import (
    SCORES,
    Score,
    about,
    draw_series,
    finish,
    keys,
    number_axis,
    panels,
    series_of,
    shifts,
)

OVERLAPS = {  # of the subspaces of the first C - 1 singular vectors of different blocks
    "overlap_uu": ("U with U", "o", "-"),
    "overlap_vv": ("V with V", "s", "--"),
    "overlap_uv": ("U with V", "^", ":"),
}


def draw(inputs):
    """`inputs`: residual_alignment.csv files of every configuration of the depth grids."""
    needed = ["train_accuracy", "inputs", *SCORES, *OVERLAPS, "overlap_chance"]
    rows = read_scores(inputs, needed, "depth")
    fig, axes = plt.subplots(2, 3, figsize=(TEXT, 4.5))
    axes = axes.ravel()
    panels(axes, rows, "depth", "depth L (blocks)")
    _exponent(axes[4], rows)
    _overlaps(axes[5], rows)
    nets = _first_resnets(rows)
    chosen = f". Fit of e, and f: {nets['series'].iloc[0]}" if len(nets) else ""
    text = about(rows, ("depth", "skip", "recipe"))
    heading(fig, f"Residual Alignment against depth: {text}{chosen}")
    fig.legend(handles=keys(rows), loc="outside lower center", ncols=4)
    return fig


def power_law(depth, values):
    """Least squares of log values on log depth: exponent, factor, R2; None for fewer than three
    depths.
    """
    depth, values = np.asarray(depth, float), np.asarray(values, float)
    if len(np.unique(depth)) < 3:
        return None
    x, y = np.log(depth), np.log(values)
    exponent, constant = np.polyfit(x, y, 1)
    residual = y - exponent * x - constant
    return exponent, np.exp(constant), 1 - residual.var() / y.var()


def _exponent(axis, rows):
    """The power law of the first ResNets beside exponent -1, the paper's reading."""
    nets = _first_resnets(rows)
    nets = nets[nets["status"].isin(DEFINED) & (nets["sigma_1"] > 0)]
    fit = power_law(nets["depth"], nets["sigma_1"])
    if fit is None:
        return
    exponent, factor, r2 = fit
    ends = np.array([nets["depth"].min(), nets["depth"].max()], float)
    middle = np.sqrt(ends.prod())
    place = ends * shifts(series_of(rows))[nets["series"].iloc[0]]
    axis.plot(place, factor * ends**exponent, color="0.1", linewidth=0.7)
    axis.plot(place, factor * middle**exponent * (middle / ends), **REFERENCE)
    number = f"{exponent:.2f}".replace("-", "\N{MINUS SIGN}")
    text = f"solid: exponent {number}\n(R\N{SUPERSCRIPT TWO} {r2:.3f}); dashed: \N{MINUS SIGN}1"
    axis.text(0.03, 0.07, text, transform=axis.transAxes, fontsize=6.5)


def _first_resnets(rows):
    resnets = rows[rows["skip"] == "resnet"]
    return resnets[resnets["series"] == resnets["series"].iloc[0]] if len(resnets) else resnets


def _overlaps(axis, rows):
    """Overlaps of the first ResNets, with what random subspaces would give."""
    nets = _first_resnets(rows)
    for colour, (column, (name, marker, line)) in zip(
        PALETTE[1:5:2] + PALETTE[4:5], OVERLAPS.items(), strict=True
    ):
        look = {"color": colour, "marker": marker, "linestyle": line}
        if len(nets):
            draw_series(axis, nets, "depth", column, look)
        axis.plot([], [], label=name, **look)
    chance = nets["overlap_chance"].mean()
    if np.isfinite(chance):
        axis.axhline(chance, label="chance", **REFERENCE)
    finish(axis, Score("", "subspace overlap (i \N{NOT EQUAL TO} j)"))
    axis.set_ylim(0, 1.45)  # room for the legend
    axis.set_yticks(np.linspace(0, 1, 6))
    number_axis(axis, rows["depth"], "depth L (blocks)")
    title(axis, "f", "RA2: overlaps")
    axis.legend(loc="upper center", ncols=2)
