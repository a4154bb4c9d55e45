"""The unconstrained Jacobians model, with path energy (top) and with the Frobenius norm (bottom):
1/s_1, step lengths and alignment, block by block, beside what theory says of free ends.

Path energy: 1/s_1 = l, equal steps. Frobenius norm: s is the same in all blocks (its mean is drawn,
theory leaves it to the rank), so steps grow by 1 + s each. Alignment is 1 with both.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from .common import DEFINED, heading, read_rows, title
from .style import GREY, PALETTE, REFERENCE, TEXT

KEYS = ["classes", "blocks", "penalty", "ends", "reading", "start", "status"]
SCORES = ["inverse_slope", "line_shape_score", "step_cv", "alignment", "alignment_swapped"]
PER_BLOCK = ["block", "sigma_1", "step_length", "alignment", "alignment_swapped"]
# Sizes are nested, since some coincide.
FREE = {"color": PALETTE[0], "marker": "o", "linestyle": "none", "markersize": 2.6}
FIXED = {"color": PALETTE[1], "marker": "s", "markerfacecolor": "white", "markersize": 4.6}
TERM = FREE | {"color": PALETTE[2], "marker": "^", "markerfacecolor": "none", "markersize": 4.6}
FOUND = {"color": GREY, "marker": "x", "linewidth": 0.7, "markersize": 3.2}
SERIES = {  # of a penalty, in the order drawn: (ends, reading) to what it is and its look
    "path": {
        ("free", "as_found"): ("free ends, J as found (not unique)", FOUND),
        ("fixed", "minimal_norm"): ("fixed ends (path energy: minimal-norm J)", FIXED),
        ("free", "frobenius_term"): ("free ends, with 1 % Frobenius norm", TERM),
        ("free", "minimal_norm"): ("free ends (path energy: minimal-norm J)", FREE),
    },
    "frobenius": {
        ("fixed", "as_found"): ("", FIXED),
        ("free", "as_found"): ("", FREE),
    },
}
NAMES = {"path": "path energy", "frobenius": "Frobenius norm"}
DOTS = {"linestyle": (0, (1, 1.2)), "linewidth": 0.8}
MAIN = {"path": "minimal_norm", "frobenius": "as_found"}  # the readings that titles give numbers of


def draw(inputs):
    """`inputs`: unconstrained_jacobians.csv and unconstrained_jacobians_per_block.csv; the largest
    number of classes is shown."""
    rows = read_rows(inputs[:1], [*KEYS, *SCORES])
    blocks = read_rows(inputs[1:], [*KEYS, *PER_BLOCK])
    classes = rows["classes"].max()
    rows, blocks = (table[table["classes"] == classes] for table in (rows, blocks))
    undefined = rows[~rows["status"].isin(DEFINED)]
    panels = {"$1/s_1$": _inverse, "step length / mean": _steps, "alignment": _alignment}
    fig, axes = plt.subplots(2, 3, figsize=(TEXT, 4.6), sharex=True, sharey="col")
    for letters, row, penalty in zip(("abc", "def"), axes, NAMES, strict=True):
        shown = blocks[(blocks["penalty"] == penalty) & blocks["status"].isin(DEFINED)]
        scores = rows[(rows["penalty"] == penalty) & (rows["reading"] == MAIN[penalty])]
        for axis, (label, panel) in zip(row, panels.items(), strict=True):
            axis.set_ylabel(label)
            for (ends, reading), (_, look) in SERIES[penalty].items():
                chosen = shown[(shown["ends"] == ends) & (shown["reading"] == reading)]
                if len(chosen):
                    panel(axis, chosen, look)
        for letter, axis, text in zip(letters, row, _titles(penalty, scores), strict=True):
            title(axis, letter, text)
    for axis in axes[1]:
        axis.set_xlabel("block $l$")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    for axis in axes[0]:
        axis.tick_params(labelbottom=False)
    axes[0, 0].set_ylim(bottom=0)
    axes[0, 1].set_ylim(bottom=0)
    axes[0, 2].set_ylim(-0.06, 1.08)
    starts = rows["start"].nunique()
    text = f"Unconstrained Jacobians, {classes} classes, L = {rows['blocks'].max()}"
    text += f", {starts} start{'s' if starts != 1 else ''}: mean and range (bars)"
    if len(undefined):
        reasons = ", ".join(sorted(undefined["status"].unique())).replace("_", " ")
        text += f"; undefined: {len(undefined)} of {len(rows)} ({reasons})"
    heading(fig, text)
    fig.legend(handles=_keys(), loc="outside lower center", ncols=2)
    return fig


def _curve(axis, rows, column, look):
    """Mean over starts, and their range, of a column of `rows` against the block."""
    groups = rows.groupby("block")[column]
    middle = groups.mean().clip(groups.min(), groups.max())  # not beyond them by rounding
    errors = [middle - groups.min(), groups.max() - middle]
    axis.errorbar(middle.index, middle, errors, elinewidth=0.7, markeredgewidth=0.8, **look)


def _theory(axis, rows, values):
    """A line over the blocks of `rows`; `values`: of the block, an array."""
    block = np.sort(rows["block"].unique())
    axis.plot(block, values(block.astype(float)), **REFERENCE)


def _inverse(axis, rows, look):
    inverse = 1 / rows["sigma_1"]
    _curve(axis, rows.assign(inverse=inverse), "inverse", look)
    if look is FREE:
        path = rows["penalty"].iloc[0] == "path"
        _theory(axis, rows, lambda block: block if path else 0 * block + inverse.mean())


def _steps(axis, rows, look):
    mean = rows.groupby("start")["step_length"].transform("mean")
    _curve(axis, rows.assign(share=rows["step_length"] / mean), "share", look)
    if look is FREE:
        growth = 1 if rows["penalty"].iloc[0] == "path" else 1 + rows["sigma_1"].mean()
        _theory(axis, rows, lambda block: growth**block / (growth**block).mean())


def _alignment(axis, rows, look):
    _curve(axis, rows, "alignment", look)
    if look is FREE:  # of free ends, swapped or not is the same
        _theory(axis, rows, np.ones_like)
    elif look is not TERM:
        _curve(axis, rows, "alignment_swapped", look | DOTS)


def _titles(penalty, scores):
    """What the panels of a penalty are, and their scores with free and fixed ends."""
    found = {}
    for name in SCORES:
        parts = []
        for ends in ("free", "fixed"):
            values = scores.loc[scores["ends"] == ends, name].dropna()
            text = "undefined" if not len(values) else f"{values.mean():z.2f}"
            parts.append(f"{text} {ends}")
        found[name] = ", ".join(parts)
    return (
        f"RA4, penalty: {NAMES[penalty]}\nslope {found['inverse_slope']}",
        f"RA1: LSS {found['line_shape_score']}\nstep CV {found['step_cv']}",
        f"RA2: mean {found['alignment']}\nswapped {found['alignment_swapped']}",
    )


def _keys():
    handles = [
        Line2D([], [], label=label, markeredgewidth=0.8, **look)
        for label, look in SERIES["path"].values()
    ]
    handles.append(Line2D([], [], color="0.25", label="swapped: left with right vectors", **DOTS))
    handles.append(Line2D([], [], label="theory for free ends", **REFERENCE))
    return handles
