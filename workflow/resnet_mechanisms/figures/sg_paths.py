"""Paths through random networks: co-active ones grow more slowly than all, so gradients whiten
(Balduzzi et al. 2017, section 2); which lengths carry the gradient (Veit et al. 2016).
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D

from .common import heading, read_rows, title
from .kinds import PAPER_LINE, dots, kinds
from .style import GREY, TEXT
from .sweeps import number_axis

COUNTS = (
    "network", "normalisation", "beta", "depth", "quantity", "measured", "standard_error",
    "all_paths", "paper", "mean_field", "width", "networks", "batch",
)  # fmt: skip
LENGTHS = (
    "network", "normalisation", "beta", "gates", "depth", "length", "quantity", "share",
    "share_error", "paper", "mean_field", "status",
)  # fmt: skip


def draw(inputs):
    """`inputs`: path_counts.csv, then path_lengths.csv.

    a: numbers of paths, all, open at an input (filled) and at two (open marks). b: the share of
    open paths that a second input has open too. c, d: share of the variance, filled, and of the
    covariance, open, that each length carries in a ResNet, ReLU gates, without and with batch norm.
    """
    counts, lengths = read_rows(inputs[:1], COUNTS), read_rows(inputs[1:], LENGTHS)
    fig, axes = plt.subplots(1, 4, figsize=(TEXT, 2.7))
    for name, colour, marker, group in kinds(counts):
        group = group.sort_values("depth")
        of = {quantity: part for quantity, part in group.groupby("quantity")}
        if name.startswith("plain"):
            axes[0].plot(
                of["active"]["depth"], of["active"]["all_paths"], color=GREY, linewidth=1.4
            )
            for quantity, filled in (("active", True), ("coactive", False)):
                part = of[quantity]
                axes[0].plot(part["depth"], part["mean_field"], color=colour, linewidth=0.8)
                dots(axes[0], part["depth"], part, colour, marker, filled=filled)
        part = of["coactive_share"]
        axes[1].plot(part["depth"], part["mean_field"], color=colour, linewidth=0.9)
        dots(axes[1], part["depth"], part, colour, marker, name)
    depths = np.array(sorted(counts["depth"].unique()))
    axes[1].plot(depths, -depths * np.log10(2), color="0.25", linewidth=0.9, linestyle=PAPER_LINE)
    for axis, label in zip(axes, ("log10 of paths", "log10 of share"), strict=False):
        axis.set_ylabel(label)
        number_axis(axis, depths, "depth L", apart=1.6)
    title(axes[0], "a", "paths (plain)")
    title(axes[1], "b", "also open at another")

    relu = lengths[(lengths["gates"] == "relu") & (lengths["beta"] == lengths["beta"].max())]
    for axis, letter, norm in zip(axes[2:], "cd", ("none", "batch"), strict=True):
        for quantity, filled in (("variance", True), ("covariance", False)):
            part = relu[(relu["normalisation"] == norm) & (relu["quantity"] == quantity)]
            _shares(axis, part, filled)
        axis.set(xlabel="branches on the path", ylabel="share of the gradient's")
        title(axis, letter, {"none": "ResNet, no norm", "batch": "ResNet, batch norm"}[norm])
    handles, labels = axes[1].get_legend_handles_labels()
    grey = {"color": "0.3", "linestyle": "none", "marker": "o", "markersize": 3.2}
    handles += [
        Line2D([], [], **grey, label="at one input (a); variance (c, d)"),
        Line2D([], [], **grey, markerfacecolor="white", label="at two (a); covariance (c, d)"),
        Line2D([], [], color=GREY, linewidth=1.4, label="all paths"),
        Line2D([], [], color="0.3", linewidth=0.9, label="mean field"),
        Line2D([], [], color="0.25", linewidth=0.9, linestyle=PAPER_LINE, label="$2^{-L}$"),
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=3)
    first = counts.iloc[0]
    heading(
        fig,
        f"Paths through random networks of width {first['width']}, exact counts: means over pairs "
        f"of {first['batch']} Gaussian inputs and {first['networks']} networks; bars: two standard "
        f"errors. Lengths: {lengths['depth'].iloc[0]} modules",
    )
    return fig


def _shares(axis, rows, filled):
    rows = rows.sort_values("length")
    colour = "#0173B2" if filled else "#D55E00"
    axis.plot(
        rows["length"], rows["mean_field"] / rows["mean_field"].sum(), color=colour, linewidth=0.9
    )
    axis.errorbar(
        rows["length"], rows["share"], 2 * rows["share_error"], fmt="o", color=colour,
        markersize=2.6, markerfacecolor=colour if filled else "white", elinewidth=0.6,
    )  # fmt: skip
