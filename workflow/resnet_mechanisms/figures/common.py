"""Reading what figures show, and saying in one line what cannot be read; names, intervals and marks
they share.
"""

import textwrap
from pathlib import Path

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from .. import tables
from ..errors import UserError
from .style import SKIP_NAMES

CONFIGURATION = tables.KEYS
DEFINED = ("ok", "too_few_points")  # statuses of networks whose scores exist
OUTCOMES = ("train_accuracy", "test_accuracy")  # of the training itself: others have them as well
TYPE_NAMES = {
    "fc": "fully connected",
    "conv": "convolutional",
    "conv_down": "convolutional, down-sampling",
    "fc_pre": "fully connected, pre-activation",
    "conv_pre": "convolutional, pre-activation",
    "conv_down_pre": "convolutional, down-sampling, pre-activation",
    "cifar": "three stages of convolutions",
    "cifar_no_norm": "three stages of convolutions, no batch norm",
    "fc_no_norm": "fully connected, no batch norm",
    "fc_crelu": "fully connected, CReLU, no batch norm",
    "external": "own network",
}
FITTED = 0.99  # training accuracy from which a network counts as fitted (filled marker)


def read_rows(paths, columns=()):
    """Rows of CSV files as one data frame.

    Raises:
        UserError: a file is missing, unreadable, lacks one of `columns`, or there are no rows at
        all.
    """
    rows = tables.read(paths)
    missing = [name for name in columns if name not in rows.columns]
    if missing:
        raise UserError(
            f"{paths[0]} has no column {missing[0]} (columns: {', '.join(map(str, rows.columns))})"
        )
    if not len(rows):
        raise UserError(f"no rows in {', '.join(map(str, paths))}")
    return rows


def last_epoch(rows):
    """The rows of each network's last epoch (a network: configuration and seed)."""
    newest = rows.groupby([*CONFIGURATION, "seed"])["epoch"].transform("max")
    return rows[rows["epoch"] == newest]


def read_scores(paths, columns=(), x=None):
    """Training-split rows of residual_alignment.csv files at each network's last epoch, once per
    network, with the columns of name_series.
    """
    rows = read_rows(paths, [*CONFIGURATION, "seed", "epoch", "split", "status", *columns])
    rows = last_epoch(rows[rows["split"] == "train"])
    rows = rows.drop_duplicates([*CONFIGURATION, "seed"])  # a network named by two grids
    return name_series(rows, x)


def name_series(rows, x=None):
    """`rows` with `variant` (recipe, and what else distinguishes networks but skip and the column
    `x`) and `series` (skip and variant), both texts.
    """
    others = [c for c in CONFIGURATION if c not in (x, "skip", "recipe")]
    columns = ["recipe", *(c for c in others if rows[c].nunique() > 1)]
    variant = [
        ", ".join(reading(c, value) for c, value in zip(columns, row, strict=True))
        for row in rows[columns].itertuples(index=False, name=None)
    ]
    series = [f"{reading('skip', s)}, {v}" for s, v in zip(rows["skip"], variant, strict=True)]
    return rows.assign(variant=variant, series=series)


def read_network(path):
    """One network's spectra.nc at its last epoch; errors as
    `tables.read_spectra`."""
    return tables.read_spectra(path).isel(epoch=-1)


def statuses(network):
    """Status of each seed, an array of str."""
    return np.asarray(network["status"].values).astype(str)


def defined(network):
    """The seeds of `network` whose scores exist."""
    return network.isel(seed=np.flatnonzero(np.isin(statuses(network), DEFINED)))


def undefined_text(network):
    """For example `undefined: dead, 2 of 3 seeds`, or an empty text if every seed is defined."""
    bad = [status for status in statuses(network) if status not in DEFINED]
    reasons = ", ".join(sorted(set(bad))).replace("_", " ")
    return f"undefined: {reasons}, {len(bad)} of {network.sizes['seed']} seeds" if bad else ""


def recipe_name(recipe):
    """A recipe as text: its name with spaces."""
    return str(recipe).replace("_", " ")


def reading(column, value):
    """How the value of a configuration's column reads in a title or legend."""
    names = {"type": TYPE_NAMES, "skip": SKIP_NAMES}.get(column, {})
    forms = {"classes": "{} classes", "depth": "L = {}", "width": "width {}"}
    return forms.get(column, "{}").format(names.get(value, recipe_name(value)))


def describe(network):
    """What a network is, for a title: skip, type, depth, width, data, recipe."""
    a = network.attrs
    if a["type"] == "external":
        return (
            f"{a['recipe']}: {a['model']}, weights {Path(a['weights']).name}, L = {a['depth']}, "
            f"{a['dataset']} ({a['classes']} classes)"
        )
    width = "width" if a["type"].startswith("fc") else "channels"
    skip = "ResNet" if a["skip"] == "resnet" else "Plain network"
    return (
        f"{skip}, {TYPE_NAMES.get(a['type'], a['type'])}, L = {a['depth']}, {width} {a['width']}, "
        f"{a['dataset']} ({a['classes']} classes), {recipe_name(a['recipe'])}"
    )


def accuracy_text(network):
    train, test = (float(network[f"{split}_accuracy"].mean()) for split in ("train", "test"))
    if not np.isfinite(train + test):
        return "accuracy undefined"
    return f"accuracy {train:.3f} (training), {test:.3f} (test)"


def seeds_text(network):
    """For example `3 seeds`, or what of them is undefined too."""
    count, bad = network.sizes["seed"], undefined_text(network)
    return f"{count} seed{'s' if count != 1 else ''}" + (f" ({bad})" if bad else "")


def score(network, name, split="train"):
    """(mean, lowest, highest) over defined seeds of a score, its mean over inputs if it has them;
    nan if none is defined.
    """
    values = defined(network)[name].sel(split=split)
    values = (values.mean("input") if "input" in values.dims else values).values
    values = values[np.isfinite(values)]
    if not len(values):
        return (np.nan,) * 3
    return float(values.mean()), float(values.min()), float(values.max())


def interval(mean, low, high, digits=2):
    """`0.93 [0.92, 0.95]`; `undefined` for nan."""
    if not np.isfinite(mean):
        return "undefined"
    mean, low, high = (f"{value:z.{digits}f}" for value in (mean, low, high))  # z: no -0.00
    return f"{mean} [{low}, {high}]"


def wrapped(text, letters):
    """Lines of so many letters; `L = 8` and `pre-activation` stay together."""
    text = text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    return textwrap.wrap(text, letters, break_on_hyphens=False)


def heading(fig, *paragraphs):
    """The title of a figure or subfigure, at the left, each paragraph wrapped to the figure's
    width.
    """
    letters = int(17.5 * fig.bbox.width / fig.dpi)  # of 7.5 pt DejaVu Sans
    lines = [line for text in paragraphs for line in wrapped(text, letters)]
    fig.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=7.5)


def title(axis, letter, text=""):
    """A panel's title: a bold letter and what the panel is."""
    axis.set_title(rf"$\bf{{{letter}}}$  {text}")


def mark_undefined(axis, place, colour, mark="x", along="x"):
    """A cross (or another mark) at the axis `along`, at `place` on it: there is no number here."""
    point = (place, 0.025) if along == "x" else (0.025, place)
    over = axis.get_xaxis_transform() if along == "x" else axis.get_yaxis_transform()
    axis.plot(*point, mark, color=colour, markersize=4, transform=over, clip_on=False)


def round_axis(axis, which="y"):
    """A logarithmic axis for values from 1 on, printed as plain numbers; linear where they span
    less than a factor 2.
    """
    low, high = getattr(axis, f"get_{which}lim")()
    if high < 2:
        getattr(axis, f"set_{which}lim")(min(low, 0.99), max(high, 1.15))
        return
    getattr(axis, f"set_{which}scale")("log")
    getattr(axis, f"set_{which}lim")(0.9, high * 1.1)
    lines = getattr(axis, f"{which}axis")
    lines.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 4 else (1, 1.5, 2, 3)))
    lines.set_major_formatter(lambda value, _: f"{value:g}")
    lines.set_minor_locator(NullLocator())


def log_axis(axis, which="y"):
    """A logarithmic axis that always shows two or more labelled powers of ten and no labels between
    them.
    """
    if not np.isfinite(getattr(axis.dataLim, f"minpos{which}")):
        return  # nothing positive to show
    getattr(axis, f"set_{which}scale")("log")
    low, high = getattr(axis, f"get_{which}lim")()
    if np.ceil(np.log10(low)) + 1 > np.floor(np.log10(high)):
        low, high = 10.0 ** np.floor(np.log10(low)), 10.0 ** np.ceil(np.log10(high))
        getattr(axis, f"set_{which}lim")(low, high)
    getattr(axis, f"{which}axis").set_minor_formatter(NullFormatter())
