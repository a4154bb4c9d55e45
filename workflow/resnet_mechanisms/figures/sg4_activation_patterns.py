"""Which units are active at which inputs, and how long they keep still along a line (Balduzzi et
al. 2017, figure 4).
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D

from ..errors import UserError
from .common import heading, read_rows, wrapped
from .kinds import kinds
from .style import TEXT

NEEDED = (
    "network", "normalisation", "beta", "inputs", "depth", "quantity", "low", "high", "measured",
    "mean_field", "width", "networks", "batch",
)  # fmt: skip
SHOWN = 40  # units of a raster


def draw(inputs):
    """`inputs`: activation_patterns.csv, then activation_patterns.npz.

    A row each kind of network, two columns each depth: the raster of units of one network along
    [-2, 2], dark where active; beside it the distribution of how many of the inputs a unit is
    active at (bars: grid; dots: Gaussian inputs; line: theory for these), and below the last
    raster of a row none. The bottom row: lengths of constant runs along the grid.
    """
    rows = read_rows(inputs[:1], NEEDED)
    try:
        with np.load(inputs[1]) as data:
            names, depths, x, rasters = (data[k] for k in ("names", "depths", "x", "rasters"))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"cannot read {inputs[1]} as activation patterns: {error}") from error
    looks = kinds(rows)
    fig = plt.figure(figsize=(TEXT, 1.35 * len(looks) + 2.2))
    top, bottom = fig.subfigures(2, 1, height_ratios=[1.35 * len(looks) + 0.5, 1.7])
    axes = top.subplots(
        len(looks), 2 * len(depths), width_ratios=[1, 0.62] * len(depths), squeeze=False
    )
    for k, (_, colour, _, group) in enumerate(looks):
        for d, depth in enumerate(depths):
            raster, histogram = axes[k, 2 * d], axes[k, 2 * d + 1]
            raster.imshow(
                rasters[k, d][:SHOWN], cmap="Greys", vmin=0, vmax=1.15, aspect="auto",
                extent=(x[0], x[-1], min(SHOWN, len(rasters[k, d])), 0), rasterized=True,
            )  # fmt: skip
            raster.set(xticks=[-2, 0, 2], yticks=[])
            _activation(histogram, group[group["depth"] == depth], colour)
            if k == 0:
                raster.set_title(f"L = {depth}")
                histogram.set_title("units by share")
            if k < len(looks) - 1:
                raster.tick_params(labelbottom=False)
                histogram.tick_params(labelbottom=False)
            else:
                raster.set_xlabel("input x")
                histogram.set_xlabel("active at")
        axes[k, 0].set_ylabel("\n".join(wrapped(str(names[k]), 18)), fontsize=7)
    runs = bottom.subplots(1, len(depths), sharey=True)
    for axis, depth in zip(np.atleast_1d(runs), depths, strict=True):
        for name, colour, marker, group in looks:
            mine = group[(group["depth"] == depth) & (group["quantity"] == "run")]
            axis.plot(
                mine["low"], mine["measured"], color=colour, marker=marker, label=name, markersize=3
            )
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set(xlabel="points a unit keeps still (from)", title=f"L = {depth}")
    np.atleast_1d(runs)[0].set_ylabel("share of runs")
    handles = np.atleast_1d(runs)[0].get_legend_handles_labels()[0]
    handles += [
        Line2D(
            [], [], color="0.3", marker="o", linestyle="none", markersize=3, label="Gaussian inputs"
        ),
        Line2D([], [], color="0.3", linewidth=0.9, label="their theory"),
    ]
    bottom.legend(handles=handles, loc="outside lower center", ncols=3)
    first = rows.iloc[0]
    heading(
        top,
        f"Activation of {min(SHOWN, rasters.shape[2])} units of one network along [-2, 2], dark "
        f"where active; distributions over {first['networks']} networks of width {first['width']}",
    )
    return fig


def _activation(axis, rows, colour):
    """Distribution of the share of inputs at which a unit is active: ends are none and all, other
    bins as wide as each other.
    """
    rows = rows[rows["quantity"] == "activation"]
    for inputs, group in rows.groupby("inputs"):
        middle = (group["low"] + group["high"]) / 2 / group["batch"]
        if inputs == "grid":
            axis.bar(middle, group["measured"], 0.045, color=colour, alpha=0.45, linewidth=0)
        else:
            axis.plot(middle, group["measured"], "o", color=colour, markersize=2)
            axis.plot(middle, group["mean_field"], color=colour, linewidth=0.9)
    axis.set(xlim=(-0.08, 1.08), xticks=[0, 0.5, 1], yticks=[])
    axis.set_xticklabels(["0", ".5", "1"])
