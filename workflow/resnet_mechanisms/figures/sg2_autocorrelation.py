"""Autocorrelation of gradients of networks of a scalar input against the lag (Balduzzi et al. 2017,
figure 2).

Input: autocorrelation.csv. Drawn is the ratio of means over runs, which is what mean field
predicts.
"""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D

from .common import read_rows
from .style import COLOURS, TEXT

COLUMNS = (
    "network", "normalisation", "beta", "depth", "lag", "ratio_of_means", "ratio_of_means_error",
    "mean_field", "status",
)  # fmt: skip
MARKERS = "os^Dv"
ERRORS = 2  # standard errors on each side


def draw(inputs):
    """`inputs`: one autocorrelation.csv."""
    rows = read_rows(inputs, COLUMNS)
    betas = sorted(rows["beta"].dropna().unique(), reverse=True)
    depths = sorted(rows["depth"].dropna().unique())
    colours = [mpl.colormaps["viridis"](v) for v in np.linspace(0.0, 0.85, len(depths))]

    plain = rows[(rows["network"] == "plain") & (rows["normalisation"] == "centred")]
    panels = [("plain, mean-centred", plain)]
    for beta in betas:
        shown = rows[
            (rows["network"] == "resnet")
            & (rows["normalisation"] == "batch")
            & (rows["beta"] == beta)
        ]
        panels.append((rf"ResNet with BN, $\beta$ = {beta:g}", shown))
    lines = -(-(len(panels) + 1) // 4)
    fig, axes = plt.subplots(
        lines, 4, figsize=(TEXT, 2.25 * lines + 0.2), sharex=True, sharey=True, squeeze=False
    )
    for axis, (title, shown) in zip(axes.flat, panels, strict=False):
        for k, depth in enumerate(depths):
            _curve(axis, shown[shown["depth"] == depth], colours[k], MARKERS[k % len(MARKERS)])
        axis.set_title(title)
    noise = axes.flat[len(panels)]
    for kind, marker in (("brown", "s"), ("white", "o")):
        _curve(noise, rows[rows["network"] == kind], COLOURS[kind], marker)
    noise.text(15, 0.86, "brown", color=COLOURS["brown"], ha="right")
    noise.text(15, 0.07, "white", color="0.35", ha="right")
    noise.set_title("noise")
    for axis in axes.flat[len(panels) + 1 :]:
        axis.remove()

    for k, axis in enumerate(axes.flat[: len(panels) + 1]):
        axis.axhline(0, color="0.7", linewidth=0.5, zorder=0)
        axis.set(xlim=(-0.5, 15.5), xticks=[0, 5, 10, 15], xlabel="lag (grid steps)")
        axis.set_title(f"$\\bf{{{'abcdefgh'[k % 8]}}}$  {axis.get_title(loc='left')}")
    for axis in axes[:, 0]:
        axis.set_ylabel("autocorrelation of df/dx")
    fig.legend(handles=_handles(depths, colours), loc="outside lower center", ncols=len(depths) + 2)
    return fig


def _curve(axis, rows, colour, marker):
    rows = rows.sort_values("lag")
    axis.plot(rows["lag"], rows["mean_field"], color=colour, linewidth=0.9)
    rows = rows[rows["status"] == "ok"]
    errors = ERRORS * rows["ratio_of_means_error"]
    axis.errorbar(
        rows["lag"],
        rows["ratio_of_means"],
        errors,
        fmt=marker,
        color=colour,
        markersize=2.4,
        elinewidth=0.6,
    )


def _handles(depths, colours):
    handles = [
        Line2D(
            [],
            [],
            color=c,
            marker=MARKERS[k % len(MARKERS)],
            markersize=3,
            linewidth=0.9,
            label=f"L = {depth:g}",
        )
        for k, (depth, c) in enumerate(zip(depths, colours, strict=True))
    ]
    dots = f"measured, \N{PLUS-MINUS SIGN}{ERRORS} standard errors"
    handles.append(
        Line2D([], [], color="0.25", marker="o", linestyle="none", markersize=2.4, label=dots)
    )
    handles.append(Line2D([], [], color="0.25", linewidth=0.9, label="mean field"))
    return handles
