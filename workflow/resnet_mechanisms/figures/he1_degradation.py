"""The degradation problem (He et al. 2016, figures 1 and 6): deeper plain networks train worse,
ResNets do not.
"""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D

from ..network_types import weighted_layers
from .common import (
    CONFIGURATION,
    heading,
    last_epoch,
    log_axis,
    mark_undefined,
    name_series,
    read_rows,
    title,
)
from .style import TEXT
from .sweeps import about, keys, number_axis, series_of, shifts

NEEDED = [
    *CONFIGURATION,
    "seed",
    "epoch",
    "train_loss",
    "train_accuracy",
    "test_accuracy",
    "parameters",
    "multiplications",
    "status",
]
MEASURES = {
    "train_error": "training error (%)",
    "test_error": "test error (%)",
    "train_loss": "training loss",
}


def draw(inputs):
    """`inputs`: history.csv files of every configuration of the depth grids.

    Top: errors against the epoch, a column each kind of network and recipe, coloured by depth;
    middle: training loss; bottom: errors and loss at the last epoch against depth.
    """
    rows = read_rows(inputs, NEEDED)
    rows = name_series(rows.drop_duplicates([*CONFIGURATION, "seed", "epoch"]), "depth")
    rows["train_error"] = 100 * (1 - rows["train_accuracy"])
    rows["test_error"] = 100 * (1 - rows["test_accuracy"])
    series = list(series_of(rows))
    depths = sorted(rows["depth"].unique())
    shades = dict(
        zip(depths, mpl.colormaps["viridis"](np.linspace(0, 0.9, len(depths))), strict=True)
    )

    fig = plt.figure(figsize=(TEXT, 6.4))
    top, bottom = fig.subfigures(2, 1, height_ratios=[2.1, 1.15])
    curves = top.subplots(2, len(series), squeeze=False, sharex=True, sharey="row")
    for k, name in enumerate(series):
        for depth, group in rows[rows["series"] == name].groupby("depth"):
            _curve(curves[0, k], group, "test_error", shades[depth], "-")
            _curve(curves[0, k], group, "train_error", shades[depth], "--")
            _curve(curves[1, k], group, "train_loss", shades[depth], "--")
            _ends(curves[:, k], group, shades[depth])
        title(curves[0, k], "abcdefgh"[k], name)
        curves[1, k].set_xlabel("epoch")
    curves[0, 0].set(ylabel="error (%)", ylim=(-2, 100))
    curves[0, 0].set_xlim(left=0)
    curves[1, 0].set_ylabel(MEASURES["train_loss"])
    log_axis(curves[1, 0])
    handles = [Line2D([], [], color=shade, label=f"L = {depth}") for depth, shade in shades.items()]
    handles += [
        Line2D([], [], color="0.3", label="test"),
        Line2D([], [], color="0.3", linestyle="--", label="training"),
    ]
    top.legend(handles=handles, loc="outside lower center", ncols=len(handles))

    ends = last_epoch(rows)
    for letter, axis, (column, label) in zip(
        "abcdefgh"[len(series) :], bottom.subplots(1, 3), MEASURES.items(), strict=False
    ):
        _against_depth(axis, ends, column)
        if column == "train_loss":
            log_axis(axis)
        axis.set_ylabel(label)
        title(axis, letter, "last epoch")
    marks = []
    if (ends["status"] == "diverged").any():
        marks.append(
            Line2D([], [], marker="x", linestyle="none", color="0.3", label="undefined (diverged)")
        )
    bottom.legend(handles=keys(ends, marks=False) + marks, loc="outside lower center", ncols=5)
    heading(
        top,
        "Degradation: " + about(rows, ("skip", "depth", "recipe"), False, bars="bars, bands"),
        sizes(rows),
    )
    return fig


def sizes(rows):
    """How large the networks are, and whether those of one depth are equal with and without
    skips."""
    low, high = rows["parameters"].min(), rows["parameters"].max()
    text = f"Parameters: {low:,.0f} to {high:,.0f}"
    twins = rows.groupby([c for c in CONFIGURATION if c not in ("skip", "recipe")])
    if rows["skip"].nunique() > 1:
        equal = (twins[["parameters", "multiplications"]].nunique() == 1).all().all()
        text += (
            ", as many, and as many multiplications, with skips as without"
            if equal
            else ("; some differ with skips from those without")
        )
    layers = {
        weighted_layers(kind, depth)
        for kind, depth in zip(rows["type"], rows["depth"], strict=True)
    }
    formula = "2 L + 2:".replace(" ", "\N{NO-BREAK SPACE}")
    return f"{text}. Layers with weights, {formula} {', '.join(map(str, sorted(layers)))}"


def _curve(axis, group, column, colour, line):
    """Mean over seeds against the epoch; where a seed has no number (diverged) the rest goes on."""
    by_epoch = group.groupby("epoch")[column]
    low, mean, high = by_epoch.min(), by_epoch.mean(), by_epoch.max()
    axis.plot(mean.index, mean.values, line, color=colour, linewidth=0.9)
    axis.fill_between(mean.index, low, high, color=colour, alpha=0.12, linewidth=0)


def _ends(axes, group, colour):
    """A cross at the axis where a seed's training diverged."""
    for epoch in group.loc[group["status"] == "diverged", "epoch"].unique():
        for axis in axes:
            mark_undefined(axis, epoch, colour)


def _against_depth(axis, ends, column):
    series = series_of(ends)
    for name, shift in shifts(series).items():
        look = series[name]
        mine = ends[ends["series"] == name]
        values = mine.groupby("depth")[column]
        place = np.array(list(values.groups), float) * shift
        axis.plot(place, values.mean(), **look)
        axis.vlines(place, values.min(), values.max(), color=look["color"], linewidth=1.1)
        for depth in mine.loc[mine[column].isna(), "depth"].unique():
            mark_undefined(axis, depth * shift, look["color"])
    number_axis(axis, ends["depth"], "depth L (blocks)")
