"""The verdict on every claim: statement, value and range, threshold and its origin, reproduced or
not.
"""

import textwrap

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle

from .common import read_rows
from .style import COLOURS, TEXT

NEEDED = [
    "claim",
    "paper",
    "statement",
    "statistic",
    "value",
    "low",
    "high",
    "threshold",
    "origin",
    "verdict",
    "status",
]
# title, left edge in inches, letters a line
COLUMNS = (
    ("claim", 0.05, 17),
    ("statement", 1.02, 37),
    ("value [low, high]", 2.98, 25),
    ("passes if", 4.32, 28),
    ("verdict", 5.84, 17),
)
LINE = 0.112  # inches a line of 6.5 pt text
PAD = 0.06
TOP = 0.6


def draw(inputs):
    """`inputs`: claims.csv. low, high: range over seeds of the mean over inputs, or two standard
    errors for gradients. Claims of which the study has nothing to test are named at the end.
    """
    claims = read_rows(inputs[:1], NEEDED)
    counts, number = claims["verdict"].value_counts(), len(claims)
    untested = claims["value"].isna() & (claims["status"].str.match("no rows(:|$)"))
    absent, claims = claims[untested], claims[~untested]
    notes = []
    if len(absent):
        text = "Inconclusive, for want of such networks in this study: "
        notes = textwrap.wrap(text + "; ".join(absent["claim"]), 125)
    rows = [_cells(row) for _, row in claims.iterrows()]
    heights = [LINE * max(map(len, row)) + PAD for row in rows]
    papers = (
        claims["paper"] != claims["paper"].shift()
    )  # where the name of a paper heads its claims
    total = TOP + sum(heights) + (LINE + PAD) * papers.sum()
    total += LINE * len(notes) + PAD + 0.05
    fig = plt.figure(figsize=(TEXT, total))
    fig.set_layout_engine("none")
    axis = fig.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, TEXT), ylim=(total, 0))
    axis.set_axis_off()
    tally = ", ".join(
        f"{counts.get(v, 0)} {v}" for v in ("reproduced", "not reproduced", "inconclusive")
    )
    axis.text(0.05, 0.12, f"{number} claims: {tally}", fontsize=8, va="center")
    note = (
        "[low, high]: range over networks and seeds of the mean over inputs; "
        "gradients: \N{PLUS-MINUS SIGN} 2 standard errors"
    )
    axis.text(0.05, 0.28, note, fontsize=6.5, va="center")
    for title, left, _ in COLUMNS:
        axis.text(left, TOP - 0.09, title, fontweight="bold", fontsize=7, va="center")
    y = TOP
    for (_, claim), row, height, first in zip(
        claims.iterrows(), rows, heights, papers, strict=True
    ):
        axis.plot([0, TEXT], [y, y], color="0.4" if first else "0.8", linewidth=0.4)
        if first:
            axis.text(
                0.05,
                y + (LINE + PAD) / 2,
                claim["paper"],
                fontsize=6.5,
                fontstyle="italic",
                va="center",
            )
            y += LINE + PAD
        left = COLUMNS[-1][1] - 0.05
        tint = COLOURS.get(claim["verdict"], COLOURS["inconclusive"])
        axis.add_patch(Rectangle((left, y), TEXT - left, height, color=tint, linewidth=0))
        for (_, start, _), lines in zip(COLUMNS, row, strict=True):
            for k, line in enumerate(lines):
                axis.text(
                    start,
                    y + PAD / 2 + LINE * (k + 0.5),
                    line,
                    fontsize=6.5,
                    va="center",
                    parse_math=False,
                )
        y += height
    axis.plot([0, TEXT], [y, y], color="0.4", linewidth=0.4)
    for k, line in enumerate(notes):
        axis.text(0.05, y + PAD + LINE * (k + 0.5), line, fontsize=6.5, va="center")
    return fig


def _cells(claim):
    """The lines of each cell of a claim's row; a list in a cell begins a line with each of its
    parts.
    """
    value = "no value"
    if np.isfinite(claim["value"]):
        value = f"{claim['value']:.3g} [{claim['low']:.3g}, {claim['high']:.3g}]"
    status = [] if claim["status"] == "ok" else claim["status"].split("; ")
    cells = (
        [claim["claim"]],
        [claim["statement"]],
        [value, claim["statistic"]],
        [*claim["threshold"].split("; "), f"({claim['origin']})"],
        [claim["verdict"], *status],
    )
    return [
        [line for part in cell for line in textwrap.wrap(str(part), letters)]
        for cell, (_, _, letters) in zip(cells, COLUMNS, strict=True)
    ]
