"""The four pictures of one network's Residual Jacobians (Li & Papyan 2023, RA1 to RA4), each drawn
into given axes.
"""

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.colors import LogNorm
from matplotlib.ticker import MaxNLocator

from .common import defined, log_axis, undefined_text
from .style import GREY, PALETTE, REFERENCE, SEQUENTIAL


def class_colours(count):
    """`count` colours: the colour-blind palette up to ten classes, evenly spaced hues beyond."""
    return PALETTE[:count] if count <= len(PALETTE) else sns.color_palette("husl", count).as_hex()


def say_undefined(axis, network):
    """Cross and reason in place of a picture that does not exist."""
    axis.plot(0.5, 0.58, "x", color="0.3", markersize=9, transform=axis.transAxes)
    text = undefined_text(network).replace(": ", ":\n").replace(", ", ",\n")
    axis.text(0.5, 0.48, text, transform=axis.transAxes, ha="center", va="top")
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)


def trajectories(axis, network, projection="pca"):
    """RA1: h_0..h_L of ten training images a class in the plane, one line each, a dot per layer,
    coloured by class.

    `network`: Dataset of common.read_network with trajectory (seed, projection, sample, layer,
    component); the first defined seed is shown. Images so far away that the others would shrink to
    a dot are counted instead of drawn.
    """
    shown = defined(network)
    if not shown.sizes["seed"]:
        return say_undefined(axis, network)
    paths = (
        shown["trajectory"]
        .isel(seed=0)
        .sel(projection=projection)
        .transpose("sample", "layer", "component")
        .values
    )
    labels = shown["sample_label"].isel(seed=0).values.astype(int)
    colours = class_colours(int(network.attrs["classes"]))
    remote = far_away(paths)
    for path, label in zip(paths[~remote], labels[~remote], strict=True):
        axis.plot(
            *path.T,
            "-o",
            color=colours[label],
            linewidth=0.4,
            markersize=1.3,
            markeredgewidth=0,
            alpha=0.8,
        )
    axis.set_aspect("equal", adjustable="datalim")
    if projection == "pca":
        share = 100 * shown["trajectory_variance_share"].isel(seed=0).values
        names = [f"PC {k} ({share[k - 1]:.0f} % of variance)" for k in (1, 2)]
    else:
        names = ["random direction 1", "random direction 2"]
    if remote.any():
        names[0] += f"\nfar outside, not drawn:\n{remote.sum()} of {len(paths)} images"
    axis.set(xlabel=names[0], ylabel=names[1])
    axis.locator_params(nbins=5)
    return None


def far_away(paths):
    """Which of `paths` (samples x layers x 2, NaN where undefined) go more than ten times as far
    from the median point as the median path goes; none, if that is more than one in twenty.

    Batch norm of a channel that is nearly dead gives a few images activations a hundred times the
    others'. Where many go far, that is what the picture has to show.
    """
    distance = np.linalg.norm(paths - np.nanmedian(paths, (0, 1)), axis=2)
    reach = np.nanmax(distance, 1)
    remote = reach > 10 * np.median(reach)
    return remote & (remote.mean() <= 0.05)


def alignment_grid(network, variable="alignment_matrix"):
    """RA2: the L x L grid of |U_j^T J_i V_j| (or its swapped twin) of the first defined seed's
    first training input.

    Returns:
        array (L * K', L * K'): block row i, block column j; NaN where undefined; None if no seed is
        defined.
    """
    shown = defined(network)
    if not shown.sizes["seed"]:
        return None
    grid = np.abs(
        shown[variable].isel(seed=0).transpose("row_block", "u", "column_block", "v").values
    )
    return grid.reshape(grid.shape[0] * grid.shape[1], -1)


def magnitude_scale(grids):
    """One colour scale for all `grids`: three powers of ten down from the largest entry, so that
    the last blocks, a hundred times smaller than the first, show too.
    """
    tops = [np.nanmax(grid) for grid in grids if grid is not None and np.isfinite(grid).any()]
    top = max(tops, default=1.0) or 1.0
    return LogNorm(top / 1000, top, clip=True)


def alignment(axis, network, grid, scale):
    """Draw alignment_grid's array as one image with lines between blocks; returns the image, or
    None if undefined.
    """
    if grid is None:
        say_undefined(axis, network)
        return None
    depth = int(network.attrs["depth"])
    colours = mpl.colormaps[SEQUENTIAL].with_extremes(bad="white")
    image = axis.imshow(grid, norm=scale, cmap=colours, extent=(0.5, depth + 0.5, depth + 0.5, 0.5))
    for edge in np.arange(1.5, depth):
        axis.axhline(edge, color="white", linewidth=0.35)
        axis.axvline(edge, color="white", linewidth=0.35)
    ticks = block_ticks(depth)
    axis.set(
        xticks=ticks,
        yticks=ticks,
        xlabel="block $j$ (singular vectors)",
        ylabel="block $i$ (Jacobian)",
    )
    axis.tick_params(length=0)
    axis.spines[["top", "right"]].set_visible(True)
    return image


def block_ticks(depth):
    """Block numbers to print: each up to eight blocks, then every second, fourth, ... and the
    first.
    """
    step = max(1, 2 ** int(np.ceil(np.log2(depth / 8))))
    return [1, *range(step, depth + 1, step)] if step > 1 else list(range(1, depth + 1))


def singular_values(axis, network):
    """RA3: the largest K' singular values s_k against the block, the first C coloured by rank, the
    others grey.

    Each line is the mean over training inputs and defined seeds; the band of s_1 is the range over
    seeds.
    """
    shown = defined(network)
    if not shown.sizes["seed"]:
        return say_undefined(axis, network)
    per_seed = (
        shown["singular_values"].sel(split="train").mean("input").transpose("seed", "block", "rank")
    )
    blocks, classes = per_seed["block"].values, int(network.attrs["classes"])
    values = positive(per_seed.values)
    colours = rank_colours(classes)
    for k in range(values.shape[2] - 1, -1, -1):
        inside = k < classes
        colour = colours[k] if inside else GREY
        axis.plot(
            blocks,
            values[:, :, k].mean(0),
            "-o",
            color=colour,
            linewidth=0.8 if inside else 0.5,
            markersize=1.8,
        )
    axis.fill_between(
        blocks,
        values[:, :, 0].min(0),
        values[:, :, 0].max(0),
        color=colours[0],
        alpha=0.25,
        linewidth=0,
    )
    axis.set(xlabel="block $l$", ylabel="singular value $s_k$")
    log_axis(axis)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    return None


def rank_colours(classes):
    """Colours of ranks 1..C, dark to light."""
    return [mpl.colormaps[SEQUENTIAL](x) for x in np.linspace(0, 0.9, classes)]


def positive(values):
    """`values` with everything a logarithmic axis cannot hold as NaN."""
    values = np.asarray(values, dtype=float)
    return np.where(values > 0, values, np.nan)


def inverse_values(network):
    """1/s_1 of defined seeds at training inputs, array (seed, input, block)."""
    top = (
        defined(network)["singular_values"]
        .sel(split="train")
        .isel(rank=0)
        .transpose("seed", "input", "block")
        .values
    )
    return 1 / positive(top)


def inverse_singular_values(axis, network):
    """RA4: 1/s_1 against ALL blocks (a dot an input and seed), the least-squares line and one of
    slope 1.

    A mark is 1 over the mean of s_1 over inputs; the line has the mean slope and intercept of the
    lines fitted to the marks of each seed; the reference of slope 1 crosses it at the middle block.
    """
    inverse = inverse_values(network)
    if not inverse.size:
        return say_undefined(axis, network)
    blocks = np.arange(1, inverse.shape[2] + 1)
    flat = inverse.reshape(-1, len(blocks))
    axis.plot(
        np.tile(blocks, len(flat)),
        flat.ravel(),
        ".",
        color=GREY,
        markersize=2,
        alpha=0.4,
        markeredgewidth=0,
    )
    for k, seed in enumerate(inverse):
        label = "mean over inputs, one mark a seed" if k == 0 else None
        axis.plot(
            blocks,
            1 / np.nanmean(1 / seed, 0),
            linestyle="none",
            marker="os^Dv"[k % 5],
            color=PALETTE[0],
            markersize=2.8,
            label=label,
        )
    slope, intercept = line_fit(network)
    if np.isfinite(slope):
        ends = blocks[[0, -1]]
        axis.plot(
            ends,
            intercept + slope * ends,
            color=PALETTE[3],
            linewidth=1.1,
            label="least squares, all blocks",
        )
        axis.set_ylim(
            min(0, axis.get_ylim()[0]), axis.get_ylim()[1]
        )  # the data's range, whatever the reference does
        middle = ends.mean()
        reference = intercept + slope * middle + (ends - middle)
        axis.plot(ends, reference, **REFERENCE, label="slope 1 (exact RA)", scaley=False)
    axis.set(xlabel="block $l$", ylabel="$1/s_1$")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    return None


def line_fit(network):
    """Mean over defined seeds of slope and intercept of the line through 1/s_1, training inputs."""
    shown = defined(network).sel(split="train")
    return float(shown["line_slope"].mean()), float(shown["line_intercept"].mean())
