"""Scores of many networks against a property they share: one line a series, seeds as intervals,
nothing dropped.
"""

from dataclasses import dataclass

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from .common import (
    CONFIGURATION,
    DEFINED,
    FITTED,
    OUTCOMES,
    log_axis,
    mark_undefined,
    reading,
    round_axis,
    title,
)
from .style import COLOURS, GREY, PALETTE, REFERENCE, THRESHOLD


@dataclass(frozen=True)
class Score:
    """How a score's panel looks: title, label, scale, thresholds of a claim, chance or theory
    lines, and what the axis never goes beyond.

    scale: "linear", "log", or "round" (logarithmic with plain numbers, for values from 1 on).
    """

    title: str
    label: str
    scale: str = "linear"
    thresholds: tuple = ()
    references: tuple = ()
    limits: tuple = (-np.inf, np.inf)


# Thresholds as in workflow/claims.yaml: the Residual Alignment verdict takes the line-shape score,
# alignment, slope and R2 together; step CV has that of the spacing claim.
SCORES = {
    "line_shape_score": Score("RA1: straight", "line-shape score", "round", (1.10,), (1,)),
    "step_cv": Score("RA1: equispaced", "CV of step lengths", "linear", (0.25,), (0,)),
    "alignment": Score("RA2: aligned", "alignment (i \N{NOT EQUAL TO} j)", "linear", (0.5,), (0,)),
    # A block with almost no open gate has 1/s_1 in the thousands, and would hide all others.
    "inverse_slope": Score(
        "RA4: $1/s_1$ in $l$", "slope of $1/s_1$ in $l$", "linear", (0.75, 1.25), (1,), (-1, 4)
    ),
    "sigma_1": Score("RA4: top singular value", "$s_1$, mean over blocks", "log"),
}
FURTHER = {
    "sigma_c_ratio": Score("RA3: rank C", "$s_C / s_1$", "log"),
    "sigma_c1_ratio": Score("RA3: rank C + 1", "$s_{C+1} / s_1$", "log", (0.03,)),
    "train_accuracy": Score("training accuracy", "training accuracy"),
    "test_accuracy": Score("test accuracy", "test accuracy"),
}
MARKERS = "osD^vPX*"
OTHERS = PALETTE[1:3] + PALETTE[4:7]  # of variants beyond the first: not those of ResNet and plain
LINES = ("-", "--", ":", "-.")


def series_of(rows):
    """The series of `rows` (common.name_series) in order of appearance: {name: look}, coloured by
    skip (if all have the same, by variant), with a line style and marker for each variant.
    """
    variants = list(dict.fromkeys(rows["variant"]))
    alone = rows["skip"].nunique() == 1
    looks = {}
    for name, group in rows.groupby("series", sort=False):
        k = variants.index(group["variant"].iloc[0])
        colour = COLOURS.get(group["skip"].iloc[0], GREY)
        if alone and k:
            colour = OTHERS[(k - 1) % len(OTHERS)]
        looks[name] = {
            "color": colour,
            "linestyle": LINES[k % len(LINES)],
            "marker": MARKERS[k % len(MARKERS)],
        }
    return looks


def shifts(series):
    """{name: factor of x}: series at the same x stand side by side, not hidden by each other."""
    count = len(series)
    factors = 1.05 ** np.linspace(-1, 1, count) if count > 1 else np.ones(count)
    return dict(zip(series, factors, strict=True))


def summarise(rows, x, column):
    """Mean and range over seeds of `column` at each `x`.

    Returns:
        list of (x, mean, low, high, fitted, bad): fitted is whether the mean training accuracy
        reaches FITTED; bad are the statuses of seeds without a value. The mean is NaN where no seed
        has one.
    """
    points = []
    for value, group in rows.groupby(x):
        cells = group[column]
        if column not in OUTCOMES:
            cells = cells.where(group["status"].isin(DEFINED))
        known = cells[np.isfinite(cells)]
        bad = list(group.loc[cells.isna(), "status"])
        mean, low, high = (known.mean(), known.min(), known.max()) if len(known) else (np.nan,) * 3
        points.append((value, mean, low, high, bool(group["train_accuracy"].mean() >= FITTED), bad))
    return points


def draw_series(axis, rows, x, column, look, shift=1.0, limits=(-np.inf, np.inf)):
    """One series: mean over seeds, bars the range; open marker: training accuracy below FITTED;
    cross at the axis: undefined.

    `shift` multiplies x (series side by side). A network of too few blocks for a line is a plus at
    the axis, a mean beyond `limits` a triangle at its end.
    """
    points = summarise(rows, x, column)
    where = np.array([p[0] for p in points]) * shift
    mean, low, high = (np.array([p[k] for p in points]) for k in (1, 2, 3))
    known = np.isfinite(mean)
    plain = {k: v for k, v in look.items() if k != "marker"}
    axis.plot(where[known], mean[known], linewidth=0.9, **plain)
    axis.vlines(where[known], low[known], high[known], color=look["color"], linewidth=1.1)
    for place, value, point in zip(where, mean, points, strict=True):
        if beyond(value, limits):
            mark_beyond(axis, place, value > limits[1], look["color"])
        elif np.isfinite(value):
            face = look["color"] if point[4] else "white"
            axis.plot(place, value, markerfacecolor=face, markersize=3.5, **look)
        for status in sorted(set(point[5])):
            mark_undefined(axis, place, look["color"], "+" if status in DEFINED else "x")


def beyond(value, limits):
    return np.isfinite(value) and not limits[0] <= value <= limits[1]


def mark_beyond(axis, place, above, colour, along="x"):
    """A triangle at the end of the axis, at `place` along the other: the number lies beyond."""
    end = 0.98 if above else 0.02
    point, marks = ((place, end), "v^") if along == "x" else ((end, place), "<>")
    over = axis.get_xaxis_transform() if along == "x" else axis.get_yaxis_transform()
    mark = marks[int(above)]
    axis.plot(*point, mark, color=colour, markerfacecolor="white", transform=over, clip_on=False)


def finish(axis, score, which="y"):
    """A score's scale, label, thresholds (dotted) and references (dashed) along axis `which`."""
    line = axis.axhline if which == "y" else axis.axvline
    for value in score.thresholds:
        line(value, zorder=0.5, **THRESHOLD)
    for value in score.references:
        line(value, zorder=0.5, **REFERENCE)
    {"linear": lambda *_: None, "log": log_axis, "round": round_axis}[score.scale](axis, which)
    low, high = getattr(axis, f"get_{which}lim")()
    getattr(axis, f"set_{which}lim")(max(low, score.limits[0]), min(high, score.limits[1]))
    getattr(axis, f"set_{which}label")(score.label)


def number_axis(axis, values, label, apart=1.4):
    """A base-2 logarithmic x axis with a tick at each of `values`, printed as it is, but for those
    whose successor is nearer than a factor `apart`, as the numbers would touch.
    """
    values = sorted(set(values))
    crowded = {a for a, b in zip(values, values[1:], strict=False) if b < apart * a}
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(values))
    axis.xaxis.set_major_formatter(lambda value, _: "" if value in crowded else f"{value:g}")
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_formatter(NullFormatter())
    margin = 1.25
    axis.set_xlim(values[0] / margin, values[-1] * margin)
    axis.set_xlabel(label)


def panels(axes, rows, x, label, scores=SCORES, place=number_axis):
    """One panel a score of all series of `rows` against `x`; `place` sets the axis of x."""
    series = series_of(rows)
    shift = shifts(series)
    for letter, axis, (column, score) in zip("abcdefgh", axes, scores.items(), strict=False):
        for name, look in series.items():
            mine = rows[rows["series"] == name]
            draw_series(axis, mine, x, column, look, shift[name], score.limits)
        finish(axis, score)
        title(axis, letter, score.title)
        place(axis, rows[x], label)


def keys(rows, marks=True):
    """Legend handles of the series of `rows` and of the marks that draw_series uses."""
    handles = [Line2D([], [], **look, label=name) for name, look in series_of(rows).items()]
    return handles + (mark_keys(rows) if marks else [])


def mark_keys(rows):
    """Legend handles of what is not a series: unfitted, undefined and too few points only if `rows`
    has them.
    """
    marks = {}
    if (rows["train_accuracy"] < FITTED).any():
        marks[f"open: training accuracy < {FITTED:g}"] = {"marker": "o", "markerfacecolor": "white"}
    if not rows["status"].isin(DEFINED).all():
        reasons = ", ".join(sorted(set(rows["status"]) - set(DEFINED))).replace("_", " ")
        marks[f"undefined ({reasons})"] = {"marker": "x"}
    if (rows["status"] == "too_few_points").any():
        marks["too few blocks for a line"] = {"marker": "+"}
    far = [beyond(v, SCORES[c].limits) for c in SCORES if c in rows for v in rows[c]]
    if any(far):
        marks["beyond the axis"] = {"marker": ">", "markerfacecolor": "white"}
    bare = {"linestyle": "none", "color": "0.3"}
    return [
        *(Line2D([], [], label=text, **bare, **mark) for text, mark in marks.items()),
        Line2D([], [], label="threshold of the claim", **THRESHOLD),
        Line2D([], [], label="exact RA or chance", **REFERENCE),
    ]


def about(rows, vary=(), images=True, bars="bars"):
    """What all networks of `rows` share, for a title, and what the points and bars are.

    `vary`: columns not to name although they may have one value; `images`: scores are means over
    Jacobian inputs; `bars`: what shows the range.
    """
    over = f"{count_range(rows['inputs'].dropna())} training images and " if images else ""
    seeds = seeds_range(rows)
    return f"{shared(rows, vary)}. Mean over {over}{seeds} a network; {bars}: range over seeds"


def shared(rows, vary=()):
    """What all networks of `rows` share, but for the columns `vary`."""
    return ", ".join(
        reading(column, rows[column].iloc[0])
        for column in CONFIGURATION
        if column not in vary and rows[column].nunique() == 1
    )


def seeds_range(rows):
    """For example `2 to 3 seeds`: of each network."""
    counts = rows.groupby(CONFIGURATION)["seed"].nunique()
    return f"{count_range(counts)} seed{'s' if counts.max() != 1 else ''}"


def count_range(counts):
    """`3`, or `2 to 3`."""
    low, high = int(counts.min()), int(counts.max())
    return f"{low}" if low == high else f"{low} to {high}"
