"""Residual Alignment with and without the skip connections: RA1 to RA4, one row a network."""

import matplotlib.pyplot as plt

from .common import accuracy_text, describe, heading, interval, read_network, score, seeds_text
from .panels import (
    alignment,
    alignment_grid,
    inverse_singular_values,
    magnitude_scale,
    singular_values,
    trajectories,
)
from .style import TEXT

COLUMNS = (
    ("RA1 (colour: class)", "line_shape_score", "LSS"),
    (r"RA2: $|U_j^\top J_i V_j|$", "alignment", "alignment"),
    ("RA3: singular values", None, ""),
    ("RA4: $1/s_1$", "line_slope", "slope"),
)


def draw(inputs):
    """`inputs`: spectra.nc files, one a network (row)."""
    networks = [read_network(path) for path in inputs]
    grids = [alignment_grid(network) for network in networks]
    scale = magnitude_scale(grids)
    fig = plt.figure(figsize=(TEXT, 0.3 + 2.25 * len(networks)))
    rows = fig.subfigures(len(networks), 1, squeeze=False)[:, 0]
    for k, (row, network, grid) in enumerate(zip(rows, networks, grids, strict=True)):
        axes = row.subplots(1, 4, width_ratios=[1, 1.12, 1, 1])
        trajectories(axes[0], network)
        image = alignment(axes[1], network, grid, scale)
        if image is not None:
            row.colorbar(image, ax=axes[1], aspect=22, pad=0.02, fraction=0.08, extend="min")
        singular_values(axes[2], network)
        inverse_singular_values(axes[3], network)
        for letter, axis, (title, name, short) in zip("abcd", axes, COLUMNS, strict=True):
            value = (
                f"\n{short} {interval(*score(network, name))}"
                if name
                else "\ncoloured: k \N{LESS-THAN OR EQUAL TO} C"
            )
            axis.set_title(f"{letter}{k + 1}  {title}{value}", fontsize=6.5)
            axis.tick_params(labelsize=6.5)
        heading(
            row,
            f"{describe(network)}; {accuracy_text(network)}",
            f"scores: mean over training images [range over seeds], {seeds_text(network)}",
        )
    handles, labels = rows[0].axes[3].get_legend_handles_labels()
    if handles:
        fig.legend(handles, labels, loc="outside lower center", ncols=3)
    return fig
