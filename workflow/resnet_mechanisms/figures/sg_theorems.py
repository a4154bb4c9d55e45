"""Correlation and variance of gradients at initialisation against depth: measured, the paper's
formulas and mean field.

Balduzzi et al. 2017, theorems 1 to 3 and corollary 1. Input: the table gradient_covariance.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from .common import read_rows
from .kinds import NORMALISATION, PAPER_LINE
from .style import COLOURS, PALETTE, TEXT

COLUMNS = (
    "network", "normalisation", "gates", "beta", "depth", "quantity", "measured", "standard_error",
    "paper", "mean_field", "status",
)  # fmt: skip
BETA_COLOURS = (PALETTE[0], PALETTE[2], PALETTE[1], PALETTE[4], PALETTE[9])
MARKERS = "os^Dv"
ERRORS = 2  # standard errors on each side


def draw(inputs):
    """`inputs`: one gradient_covariance.csv."""
    rows = read_rows(inputs, COLUMNS)
    rows = rows[rows["status"] != "diverged"]
    betas = sorted(rows["beta"].dropna().unique(), reverse=True)
    fig, axes = plt.subplots(3, 3, figsize=(TEXT, 6.3), sharex=True)
    correlation = rows[rows["quantity"] == "correlation"]
    variance = rows[rows["quantity"] == "variance"]
    relu = correlation[correlation["gates"] == "relu"]

    for axis, normalisation in zip(axes[0], NORMALISATION, strict=True):
        _one(axis, relu, "plain", normalisation, None, COLOURS["plain"], "o")
        axis.set_title(f"plain, {NORMALISATION[normalisation]}")
    for axis, normalisation in zip(axes[1], ("none", "batch"), strict=False):
        _betas(axis, relu, normalisation, betas)
        axis.set_title(f"ResNet, {NORMALISATION[normalisation]}")
    _coins(axes[1, 2], correlation[correlation["gates"] == "bernoulli"], betas)

    relu = variance[variance["gates"] == "relu"]
    for k, normalisation in enumerate(NORMALISATION):
        label = NORMALISATION[normalisation]
        colour = (PALETTE[7], PALETTE[5], COLOURS["plain"])[k]
        size = (6.5, 4, 3)[k]  # nested, since two of them coincide
        _one(axes[2, 0], relu, "plain", normalisation, None, colour, MARKERS[k], label, size)
    axes[2, 0].set_title("plain")
    axes[2, 0].legend(loc="upper left")
    for axis, normalisation in zip(axes[2, 1:], ("none", "batch"), strict=True):
        _betas(axis, relu, normalisation, betas)
        axis.set_title(f"ResNet, {NORMALISATION[normalisation]}")

    _scales(axes, correlation)
    for letter, axis in zip("abcdefghi", axes.flat, strict=True):
        axis.set_title(f"$\\bf{{{letter}}}$  {axis.get_title(loc='left')}")
    fig.legend(handles=_handles(), loc="outside lower center", ncols=4)
    return fig


def _one(axis, rows, network, normalisation, beta, colour, marker, label=None, size=3.0):
    rows = rows[(rows["network"] == network) & (rows["normalisation"] == normalisation)]
    if beta is not None:
        rows = rows[rows["beta"] == beta]
    rows = rows.sort_values("depth")
    axis.plot(rows["depth"], rows["paper"], color=colour, linewidth=0.9, linestyle=PAPER_LINE)
    axis.plot(rows["depth"], rows["mean_field"], color=colour, linewidth=0.9)
    seen, limit = rows[rows["status"] == "ok"], rows[rows["status"] == "not_resolved"]
    errors = ERRORS * seen["standard_error"].to_numpy()
    # On a logarithmic axis an interval must end above zero.
    lower = np.minimum(errors, 0.9 * seen["measured"].to_numpy())
    axis.errorbar(
        seen["depth"], seen["measured"], [lower, errors], fmt=marker, color=colour, markersize=size,
        elinewidth=0.7, label=label,
    )  # fmt: skip
    top = np.maximum(limit["measured"], 0) + 3 * limit["standard_error"]
    axis.errorbar(
        limit["depth"], top, 0.45 * top, uplims=True, fmt="o", color=colour, markersize=3.2,
        markerfacecolor="white", elinewidth=0.7, capsize=1.6,
    )  # fmt: skip


def _betas(axis, rows, normalisation, betas):
    for k, beta in enumerate(betas):
        colour, marker = BETA_COLOURS[k % len(BETA_COLOURS)], MARKERS[k % len(MARKERS)]
        _one(axis, rows, "resnet", normalisation, beta, colour, marker, rf"$\beta$ = {beta:g}")
    if betas:
        axis.legend(loc="best")


def _coins(axis, rows, betas):
    """Gates that are independent coin flips: what the theorems assume."""
    _one(axis, rows, "plain", "none", None, COLOURS["plain"], "o", "plain, Thm 1")
    if betas:
        _one(axis, rows, "resnet", "none", betas[0], PALETTE[9], "s", "ResNet, Thm 2")
        _one(axis, rows, "resnet", "batch", betas[0], PALETTE[0], "^", "with BN, Thm 3")
    _one(axis, rows, "highway", "none", None, COLOURS["highway"], "D", "highway, Cor. 1")
    axis.set_title(rf"coin-flip gates, $\beta$ = {betas[0]:g}" if betas else "coin-flip gates")
    axis.legend(loc="lower left", handlelength=1, handletextpad=0.4)


def _scales(axes, correlation):
    depths = np.unique(correlation["depth"])
    shown = [d for d in (1, 2, 4, 8, 16, 32, 64, 128, 256) if depths.min() <= d <= depths.max()]
    floor = 3 * correlation.loc[correlation["status"] == "not_resolved", "standard_error"]
    seen = correlation.loc[correlation["status"] == "ok", "measured"]
    lowest = min([*floor, *seen, 0.1])
    for axis in axes[:2].flat:
        axis.set(yscale="log", ylim=(lowest / 4, 1.6))
    for axis in axes[2]:
        axis.set(yscale="log")
        axis.yaxis.set_major_locator(LogLocator(numticks=7))
    for axis in axes.flat:
        axis.set_xscale("log")
        axis.set_xticks(shown)
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.minorticks_off()
    for axis in axes[:2, 1:].flat:
        axis.tick_params(labelleft=False)
    for axis in axes[:2, 0]:
        axis.set_ylabel("gradient correlation R")
    axes[2, 0].set_ylabel("gradient variance C")
    axes[2, 0].set_xlabel("depth L (gates crossed)")
    for axis in axes[2, 1:]:
        axis.set_xlabel("depth L (modules crossed)")


def _handles():
    line = {"color": "0.25", "linewidth": 0.9}
    dot = line | {"linestyle": "none", "marker": "o", "markersize": 3.2}
    dots = f"measured, \N{PLUS-MINUS SIGN}{ERRORS} standard errors"
    return [
        Line2D([], [], **dot, label=dots),
        Line2D([], [], **dot, markerfacecolor="white", label="not resolved: upper limit"),
        Line2D([], [], **line, linestyle=PAPER_LINE, label="the paper's formula"),
        Line2D([], [], **line, label="mean field"),
    ]
