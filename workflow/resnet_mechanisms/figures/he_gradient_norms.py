"""Are gradients healthy? Forward variances and gradients of every layer, before and after training
(He et al. 2016, section 4.1: with batch norm neither signals vanish).
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from .common import CONFIGURATION, heading, name_series, read_rows, title
from .he7_layer_responses import by_seed, column_title, shades_of
from .style import REFERENCE, TEXT
from .sweeps import seeds_range, shared

QUANTITIES = {
    "forward_variance": "variance of the linear map",
    "response_gradient": "gradient by the response",
}
NEEDED = [*CONFIGURATION, "seed", "epoch", "layer", "kind", *QUANTITIES, "status"]
COLLAPSED = 1e-8  # as in gradients.py, without importing torch
TIMES = {"before training": "-", "after training": (0, (2.5, 1.2))}


def draw(inputs):
    """`inputs`: layers.csv files of configurations of several depths.

    A column each kind of network and recipe, coloured by depth, layers of blocks from the image, 0,
    to the logits, 1. Lines are geometric means over seeds, bands their range. Top: variance of what
    the linear map gives; bottom: root mean square over images of the norm of the gradient of an
    image's loss by the layer's response, in numbers first over last layer before training.
    """
    rows = name_series(read_rows(inputs, NEEDED), "depth")
    rows = rows.drop_duplicates([*CONFIGURATION, "seed", "epoch", "layer"])
    newest = rows.groupby([*CONFIGURATION, "seed"])["epoch"].transform("max")
    names = list(dict.fromkeys(rows["series"]))
    shades = shades_of(rows["depth"])
    fig, axes = plt.subplots(
        2, len(names), figsize=(TEXT, 4.4), sharex=True, sharey="row", squeeze=False
    )
    for k, name in enumerate(names):
        mine = rows["series"] == name
        for when, style in TIMES.items():
            at = (rows["epoch"] == 0) if when == "before training" else (rows["epoch"] == newest)
            if when == "after training":
                at &= rows["epoch"] > 0
            layers = rows[mine & at & rows["kind"].isin(["first", "second"])]
            for depth, group in layers.groupby("depth"):
                for axis, column in zip(axes[:, k], QUANTITIES, strict=True):
                    _line(axis, by_seed(group, column), shades[depth], style)
        _ratios(axes[1, k], rows[mine & (rows["epoch"] == 0)], shades)
        _lost(axes[1, k], rows[mine & (rows["epoch"] == newest)], shades)
        title(axes[0, k], "abcdefgh"[k], column_title(name, len(names)))
        axes[1, k].set_xlabel("layer / number of layers")
    for axis, label in zip(axes[:, 0], QUANTITIES.values(), strict=True):
        axis.set_yscale("log")
        axis.set_ylabel(label)
        axis.yaxis.set_major_locator(LogLocator(numticks=7))
        axis.yaxis.set_minor_formatter(NullFormatter())
    low = axes[1, 0].get_ylim()[0]
    for axis in axes[1] if low < 100 * COLLAPSED else ():
        axis.axhline(COLLAPSED, zorder=0.5, **REFERENCE)
    handles = [Line2D([], [], color=shade, label=f"L = {depth}") for depth, shade in shades.items()]
    handles += [
        Line2D([], [], color="0.3", linestyle=style, label=when) for when, style in TIMES.items()
    ]
    if low < 100 * COLLAPSED:
        handles.append(Line2D([], [], label="counts as collapsed", **REFERENCE))
    fig.legend(handles=handles, loc="outside lower center", ncols=7)
    heading(
        fig,
        f"Signals and gradients of the layers in blocks: {shared(rows, ('skip', 'depth'))}. Mean "
        f"over {seeds_range(rows)}; bands: range over seeds; numbers: gradient at the first over "
        "that at the last layer, before training",
    )
    return fig


def _line(axis, values, colour, style):
    values = values[(values > 0).all(1)] if len(values) else values
    if not len(values):
        return
    place = (np.arange(values.shape[1]) + 0.5) / values.shape[1]
    axis.plot(place, np.exp(np.log(values).mean(0)), color=colour, linestyle=style, linewidth=1)
    axis.fill_between(place, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)


def _lost(axis, rows, shades):
    """Depths at which networks have no gradient after training, with the reason."""
    rows = rows[~rows["status"].isin(["ok"])].drop_duplicates([*CONFIGURATION, "seed"])
    texts = {
        depth: f"L = {depth}: {' and '.join(sorted(set(group['status'])))} after training"
        for depth, group in rows.groupby("depth")
    }
    for number, (depth, text) in enumerate(texts.items()):
        axis.text(
            0.02, 0.03 + 0.085 * number, text, color=shades[depth], transform=axis.transAxes,
            fontsize=6.5,
        )  # fmt: skip


def _ratios(axis, rows, shades):
    """How many times larger the gradient is at the first layer than at the last, by depth."""
    rows = rows[rows["kind"].isin(["first", "second"])]
    texts = []
    for depth, group in rows.groupby("depth"):
        values = by_seed(group, "response_gradient")
        values = values[(values > 0).all(1)] if len(values) else values
        if len(values):
            ratio = np.exp(np.log(values[:, 0] / values[:, -1]).mean())
            texts.append((f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}", shades[depth]))
    for number, (text, colour) in enumerate(texts):
        axis.text(
            0.98, 0.97 - 0.085 * number, text, color=colour, transform=axis.transAxes,
            ha="right", va="top", fontsize=6.5,
        )  # fmt: skip
