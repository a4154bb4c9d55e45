"""Scores by category, for example by architecture or by intervention: a line of the panel each, in
the order of the config, a mark a seed, and a bar over the range of seeds.
"""

import numpy as np
from matplotlib.lines import Line2D

from .common import CONFIGURATION, DEFINED, FITTED, mark_undefined, reading, title, wrapped
from .style import COLOURS, PALETTE, REFERENCE, SKIP_NAMES
from .sweeps import MARKERS, beyond, count_range, finish, mark_beyond, seeds_range, shared

SKIPS = {
    "resnet": {"color": COLOURS["resnet"], "marker": "o"},
    "plain": {"color": COLOURS["plain"], "marker": "s"},
}
LINE = 0.125  # inches a line of a category's label
LETTERS = 25  # a line of it


def name_categories(rows, columns):
    """`rows` with `category`: a number for each value of `columns` and of what else tells networks
    apart, but skip, in order of appearance. Returns (rows, the label of each number)."""
    further = [c for c in CONFIGURATION if c not in ("skip", *columns) and rows[c].nunique() > 1]
    found = {}
    numbers = [
        found.setdefault(row, len(found))
        for row in rows[[*columns, *further]].itertuples(index=False, name=None)
    ]
    labels = []
    for row in found:
        texts = [reading(c, value) for c, value in zip([*columns, *further], row, strict=True)]
        parts = ", ".join(texts[: len(columns)]), ", ".join(texts[len(columns) :])
        labels.append([line for part in parts for line in wrapped(part, LETTERS)])
    return rows.assign(category=numbers), labels


def name_recipes(rows):
    """`name_categories` by recipe, and skip where `rows` have both; returns the columns too."""
    columns = ["recipe"] if rows["skip"].nunique() == 1 else ["recipe", "skip"]
    return columns, *name_categories(rows, columns)


def looks_of(count):
    """A colour and a mark for each of `count` categories."""
    return {
        k: {"color": PALETTE[k % len(PALETTE)], "marker": MARKERS[k % len(MARKERS)]}
        for k in range(count)
    }


def height_of(labels):
    """Inches that panels need for lines with these labels."""
    return sum(height_of_line(label) for label in labels)


def height_of_line(label):
    return LINE * (max(2, len(label)) + 0.5)


def draw_panels(axes, rows, labels, scores, by="skip", looks=SKIPS):
    """One panel a score of `rows` (name_categories), categories from the top; `by` and `looks`: the
    column that colours and marks stand for, and {its value: look}."""
    for letter, axis, (column, score) in zip("abcdefgh", axes, scores.items(), strict=False):
        for number in range(len(labels)):
            mine = rows[rows["category"] == number]
            present = [value for value in looks if (mine[by] == value).any()]
            step = 0.8 / max(len(present), 1)
            for k, value in enumerate(present):
                place = number + step * (k - (len(present) - 1) / 2)
                seeds = mine[mine[by] == value]
                cells = seeds[column].clip(*score.limits).dropna()
                if len(cells):
                    ends = cells.min(), cells.max()
                    axis.plot(ends, [place] * 2, color=looks[value]["color"], linewidth=0.9)
                places = place + min(step / 4, 0.12) * np.linspace(-1, 1, len(seeds))
                look, limits = looks[value], score.limits
                mark_seeds(axis, seeds, seeds[column], places, look, "y", limits)
        finish(axis, score, "x")
        axis.set_ylim(len(labels) - 0.5, -0.5)
        texts = ["\n".join(label) if axis is axes[0] else "" for label in labels]
        axis.set_yticks(range(len(labels)), texts)
        axis.tick_params(axis="y", length=0)
        for edge in np.arange(0.5, len(labels) - 1):
            axis.axhline(edge, color="0.9", linewidth=0.5, zorder=0.1)
        title(axis, letter, score.title)


def mark_seeds(axis, rows, x, y, look, along, limits):
    """A mark for each of `rows` at `x` and `y` (sequences), open where its training accuracy is
    below FITTED; at the axis `along`, where its score is undefined, a cross, or a plus where there
    are too few blocks for it; a triangle where it lies beyond `limits`.
    """
    for (_, row), here, there in zip(rows.iterrows(), x, y, strict=True):
        place, value = (here, there) if along == "x" else (there, here)
        if beyond(value, limits):
            mark_beyond(axis, place, value > limits[1], look["color"], along)
        elif np.isfinite(value):
            face = look["color"] if row["train_accuracy"] >= FITTED else "white"
            axis.plot(here, there, markerfacecolor=face, markersize=4, **look)
        elif np.isfinite(place):
            mark = "+" if row["status"] in DEFINED else "x"
            mark_undefined(axis, place, look["color"], mark, along)


def scatter(axis, rows, looks, x, y, along, limits):
    """mark_seeds of every category of `rows`, in its look, at columns x and y."""
    for number, look in looks.items():
        mine = rows[rows["category"] == number]
        mark_seeds(axis, mine, mine[x], mine[y], look, along, limits)


def mark_chance(axis, rows):
    """In a panel of an accuracy: the chance level 1/C of each category of `rows`."""
    for number, classes in rows.groupby("category")["classes"].first().items():
        axis.plot([1 / classes] * 2, [number - 0.4, number + 0.4], **REFERENCE)


def about(rows, vary):
    """What the networks share, for a title, and what marks and bars are."""
    images = count_range(rows["inputs"].dropna())
    networks = shared(rows, ("skip", *vary))
    return (
        f"{networks + '. ' if networks else ''}One mark a seed ({seeds_range(rows)} a network), "
        f"mean over {images} training images; bars: range over seeds"
    )


def skip_keys(rows):
    """Legend handles of the skips that `rows` have."""
    bare = {"linestyle": "none", "markersize": 4}
    return [
        Line2D([], [], label=SKIP_NAMES[skip], **bare, **look)
        for skip, look in SKIPS.items()
        if (rows["skip"] == skip).any()
    ]
