"""RA2: alignment of the Residual Jacobians' top singular vectors across depth (Li & Papyan 2023,
figure of RA2).
"""

import matplotlib.pyplot as plt
import numpy as np

from .common import (
    accuracy_text,
    defined,
    describe,
    heading,
    interval,
    read_network,
    score,
    seeds_text,
    title,
)
from .panels import alignment, alignment_grid, magnitude_scale
from .style import TEXT, THRESHOLD


def draw(inputs):
    """`inputs`: one spectra.nc. Grid of |U_j^T J_i V_j| over all blocks i (rows), j (columns); one
    cell enlarged.
    """
    return draw_grid(inputs[0], "alignment_matrix", r"$|U_j^\top J_i V_j|$", "alignment")


def draw_grid(path, variable, formula, name):
    """The grid `variable` of a spectra.nc, `formula` naming its cells and `name` the score that
    sums it up.
    """
    network = read_network(path)
    depth = int(network.attrs["depth"])
    grid = alignment_grid(network, variable)
    scale = magnitude_scale([grid])
    fig, (axis, side) = plt.subplots(1, 2, figsize=(TEXT, 4.7), width_ratios=[3.3, 1])
    image = alignment(axis, network, grid, scale)
    title(axis, "a", f"{formula}, all pairs of blocks")
    axis.set_anchor("NW")
    shown = ""
    if image is None:
        side.set_axis_off()
    else:
        size = grid.shape[0] // depth
        fig.colorbar(image, ax=axis, aspect=35, pad=0.02, extend="min", label=formula)
        enlarged_cell(side, image, grid, size, network)
        seed = int(defined(network)["seed"][0])
        shown = f"shown: seed {seed}, first training image, {size} singular vectors a block; "
    value = interval(*score(network, name))
    heading(
        fig,
        f"{describe(network)}; {accuracy_text(network)}",
        f"{shown}{name.replace('_', ', ')} (i \N{NOT EQUAL TO} j, first C - 1 vectors; "
        f"1: perfect, 0: chance) {value}, "
        f"mean over training images [range over seeds], {seeds_text(network)}",
    )
    return fig


def enlarged_cell(axis, image, grid, size, network):
    """The cell of the first quarter's and the last quarter's block: far apart, so alignment there
    is across depth.
    """
    depth, inside = int(network.attrs["depth"]), int(network.attrs["classes"]) - 1
    wanted = np.array([max(1, round(depth / 4)), max(1, round(3 * depth / 4))])
    # Where the state's shape changes in between, the nearest pair that there is.
    pairs = np.argwhere(np.isfinite(grid[::size, ::size])) + 1
    others = pairs[pairs[:, 0] != pairs[:, 1]]
    pairs = others if len(others) else pairs
    row, column = pairs[np.abs(pairs - wanted).sum(1).argmin()] if len(pairs) else wanted
    cell = grid[(row - 1) * size : row * size, (column - 1) * size : column * size]
    axis.imshow(cell, norm=image.norm, cmap=image.cmap, extent=(0.5, size + 0.5, size + 0.5, 0.5))
    for line in (axis.axhline, axis.axvline):
        line(inside + 0.5, **THRESHOLD | {"color": "white"})
    title(axis, "b", f"cell i = {row}, j = {column}\n     dotted: C - 1 = {inside}")
    ticks = np.unique([1, inside, size])
    axis.set(
        xticks=ticks,
        yticks=ticks,
        xlabel="singular vector (column)",
        ylabel="singular vector (row)",
    )
    axis.tick_params(length=0)
    axis.spines[["top", "right"]].set_visible(True)
    axis.set_anchor("N")
