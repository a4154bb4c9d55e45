"""RA3: top singular values of every Residual Jacobian (Li & Papyan 2023, figure of RA3): rank at
most C.
"""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from .common import (
    accuracy_text,
    defined,
    describe,
    heading,
    log_axis,
    read_network,
    seeds_text,
    title,
)
from .panels import block_ticks, positive, rank_colours, say_undefined, singular_values
from .style import GREY, TEXT, THRESHOLD


def draw(inputs):
    """`inputs`: one spectra.nc. Left: s_k against the block; right: s_k/s_1 against the rank, one
    line a block.
    """
    network = read_network(inputs[0])
    classes = int(network.attrs["classes"])
    fig, (axis, spectrum) = plt.subplots(1, 2, figsize=(TEXT, 2.9))
    singular_values(axis, network)
    title(axis, "a", f"coloured: the first C = {classes}; grey: the rest")
    if not defined(network).sizes["seed"]:
        say_undefined(spectrum, network)
    else:
        _rank_key(fig, axis, classes)
        _spectra(spectrum, fig, network, classes)
    title(spectrum, "b", f"spectrum of each block; dotted: C - 1 = {classes - 1} and C")
    heading(
        fig,
        f"{describe(network)}; {accuracy_text(network)}",
        "mean over training images and seeds; band of $s_1$: range over seeds; "
        + seeds_text(network),
    )
    return fig


def _rank_key(fig, axis, classes):
    colours = mpl.colors.ListedColormap([*rank_colours(classes), mpl.colors.to_rgba(GREY)])
    norm = mpl.colors.BoundaryNorm(np.arange(0.5, classes + 2), colours.N)
    bar = fig.colorbar(
        mpl.cm.ScalarMappable(norm, colours), ax=axis, aspect=30, pad=0.02, label="rank $k$"
    )
    bar.set_ticks(range(1, classes + 2), labels=[*map(str, range(1, classes + 1)), f">{classes}"])
    bar.ax.tick_params(length=0)


def _spectra(axis, fig, network, classes):
    values = (
        defined(network)["singular_values"]
        .sel(split="train")
        .transpose("seed", "input", "block", "rank")
        .values
    )
    shares = positive(values / values[..., :1]).reshape(-1, *values.shape[2:]).mean(0)
    depth, ranks = shares.shape
    norm = mpl.colors.Normalize(1, max(depth, 2))
    colours = mpl.colormaps["cividis"]
    for block, share in enumerate(shares, start=1):
        axis.plot(
            range(1, ranks + 1),
            share,
            "-o",
            color=colours(norm(block)),
            linewidth=0.7,
            markersize=1.8,
        )
    for k in (classes - 1, classes):
        axis.axvline(k, **THRESHOLD)
    axis.set(xlabel="rank $k$", ylabel="$s_k / s_1$")
    log_axis(axis)
    axis.set_ylim(top=1.5)
    axis.set_xticks(np.unique([1, *range(5, ranks + 1, 5)]))
    key = mpl.cm.ScalarMappable(norm, colours)
    fig.colorbar(key, ax=axis, aspect=30, pad=0.02, label="block $l$", ticks=block_ticks(depth))
