"""RA1: the representations h_0..h_L of ten training images a class, in the plane (Li & Papyan 2023,
figure of RA1).
"""

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

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
from .panels import class_colours, trajectories
from .style import TEXT


def draw(inputs):
    """`inputs`: one spectra.nc. Left: first two principal components; right: two fixed random
    directions.
    """
    network = read_network(inputs[0])
    fig, axes = plt.subplots(1, 2, figsize=(TEXT, 3.3))
    for axis, projection in zip(axes, ("pca", "random"), strict=True):
        trajectories(axis, network, projection)
    title(axes[0], "a", "principal components")
    title(axes[1], "b", "random projection")
    straight = interval(*score(network, "line_shape_score"), digits=3)
    spacing = interval(*score(network, "step_cv"))
    heading(
        fig,
        f"{describe(network)}; {accuracy_text(network)}",
        f"line-shape score {straight} (1: straight), step length CV {spacing} (0: equispaced); "
        f"mean over training images [range over seeds], {seeds_text(network)}",
    )
    shown = defined(network)
    if shown.sizes["seed"]:
        classes = int(network.attrs["classes"])
        handles = [
            Line2D([], [], color=colour, marker="o", markersize=3)
            for colour in class_colours(classes)
        ]
        # States of another shape than the last have no place in its plane.
        drawn = shown["trajectory"].isel(seed=0).dropna("layer", how="all")
        first = int(drawn["layer"][0])
        key = f"class (seed {int(shown['seed'][0])}; one dot a layer, $h_{{{first}}}$ to $h_L$)"
        fig.legend(
            handles, range(classes), loc="outside lower center", ncols=min(classes, 10), title=key
        )
    return fig
