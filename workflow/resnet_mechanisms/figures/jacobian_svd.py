"""Seconds that the top singular triplets of a Residual Jacobian take, ours and the usual ways, a
panel a network.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from .common import heading, read_rows, title
from .style import PALETTE, TEXT

COLUMNS = ("case", "method", "seconds_per_block_input", "ratio_to_ours", "max_residual")
TOLERANCE = 1e-4  # of ours, that the others are held to
METHODS = {  # how a method's name begins: label, colour, marker
    "ours": ("ours", PALETTE[3], "o"),
    "svds arpack, our operator": ("ARPACK, our J", PALETTE[0], "s"),
    "svds propack, our operator": ("PROPACK, our J", PALETTE[0], "D"),
    "svds propack, our operator, certified": ("PROPACK, our J, certified", PALETTE[0], "p"),
    "svds arpack, double backward": ("ARPACK, double backward", PALETTE[5], "s"),
    "svds propack, double backward": ("PROPACK, double backward", PALETTE[5], "D"),
    "svds arpack, jvp/vjp": ("ARPACK, jvp/vjp", PALETTE[2], "s"),
    "svds propack, jvp/vjp": ("PROPACK, jvp/vjp", PALETTE[2], "D"),
    "jacrev + svd_lowrank": ("jacrev + svd_lowrank", PALETTE[1], "v"),
    "jacrev": ("jacrev + SVD", PALETTE[1], "^"),
    "authors' way": ("J by rows, 2 eigen-solves", PALETTE[4], "P"),
}
CROSS = {
    "linestyle": "none", "marker": "x", "color": "black", "markersize": 8, "markeredgewidth": 0.9,
}  # fmt: skip
TYPES = {"fc": "FC, width {}", "conv": "conv, {} channels"}
STATES = {"init": "untrained"}
TIMES = "\N{MULTIPLICATION SIGN}"


def draw(inputs):
    """`inputs`: jacobian_svd.csv. Beside each mark: how many times the seconds of ours."""
    rows = read_rows(inputs[:1], COLUMNS)
    rows = rows.assign(kind=[_kind(method) for method in rows["method"]]).dropna(subset="kind")
    cases = list(rows["case"].unique())
    lines = -(-len(cases) // 3)
    fig, axes = plt.subplots(
        lines, 3, figsize=(TEXT, 2.2 * lines + 0.55), sharey=True, squeeze=False
    )
    for axis, name, letter in zip(axes.flat, cases, "abcdefghi", strict=False):
        _case(axis, rows[rows["case"] == name])
        title(axis, letter, _reading(name))
    for axis in axes.flat[len(cases) :]:
        axis.remove()
    axes[0, 0].set_yticks(range(len(METHODS)), [label for label, _, _ in METHODS.values()])
    axes[0, 0].set_ylim(len(METHODS) - 0.4, -0.6)
    for axis in axes.flat[max(0, len(cases) - 3) : len(cases)]:
        axis.set_xlabel("CPU seconds a block and input")
    heading(
        fig,
        "The 30 largest singular triplets of the middle block's Residual Jacobian, float32, one "
        "thread; at each mark how many times the seconds of ours",
    )
    fig.legend(handles=_handles(), loc="outside lower center", ncols=2)
    return fig


def _kind(method):
    """The key of METHODS that a method belongs to, the longest that fits; None for other rows."""
    fits = [key for key in METHODS if method.startswith(key)]
    return max(fits, key=len, default=None)


def _reading(case):
    """`fc512 init` as `FC, width 512, untrained`."""
    network, state = case.split()
    kind = network.rstrip("0123456789")
    size = network[len(kind) :]
    return f"{TYPES.get(kind, kind + ' {}').format(size)}, {STATES.get(state, state)}"


def _case(axis, rows):
    for _, row in rows.iterrows():
        place = list(METHODS).index(row["kind"])
        _, colour, marker = METHODS[row["kind"]]
        seconds, mine = row["seconds_per_block_input"], row["kind"] == "ours"
        hollow = "extrapolated" in row["method"]
        axis.plot(
            seconds, place, marker, color=colour, markersize=6 if mine else 4.5,
            markerfacecolor="white" if hollow else colour, zorder=3,
        )  # fmt: skip
        if row["max_residual"] > TOLERANCE:
            axis.plot(seconds, place, **CROSS, zorder=4)
        if mine:
            axis.axvline(seconds, color=colour, linewidth=0.6, zorder=1)
        axis.annotate(
            f"{_number(1000 * seconds)} ms" if mine else _number(row["ratio_to_ours"]) + TIMES,
            (seconds, place), (7, 0), textcoords="offset points", va="center", fontsize=6.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5}, zorder=2,
        )  # fmt: skip
    axis.set_xscale("log")
    low, high = rows["seconds_per_block_input"].min(), rows["seconds_per_block_input"].max()
    span = np.log10(high / low)
    # Room for the numbers on the right.
    axis.set_xlim(low / 10 ** (0.06 * span), high * 10 ** (0.27 * span))
    axis.xaxis.set_major_locator(LogLocator(numticks=9))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.grid(axis="y", color="0.92", linewidth=0.5)
    axis.tick_params(axis="y", length=0)


def _number(value):
    """As text, with two digits or more."""
    return f"{value:.{0 if value >= 9.95 else 1 if value >= 0.95 else 2}f}"


def _handles():
    mark = {"linestyle": "none", "marker": "o", "color": "0.35", "markersize": 4.5}
    hollow = "extrapolated from 64 of 16384 rows (jacrev: J without its SVD)"
    return [
        Line2D([], [], **mark | {"markerfacecolor": "white"}, label=hollow),
        Line2D([], [], **CROSS, label="residual above $10^{-4} s_1$: not what was asked"),
    ]
