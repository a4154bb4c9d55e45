"""Size of the responses of layers after training (He et al. 2016, figure 7): residual functions are
small, the more so the deeper the network.
"""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D

from .common import (
    CONFIGURATION,
    heading,
    last_epoch,
    log_axis,
    name_series,
    read_rows,
    title,
    wrapped,
)
from .style import REFERENCE, TEXT
from .sweeps import seeds_range, shared

NEEDED = [*CONFIGURATION, "seed", "epoch", "layer", "kind", "response_std", "status"]


def draw(inputs):
    """`inputs`: layers.csv files of configurations of several depths.

    A column each kind of network and recipe, coloured by depth. Top: in the order of the layers,
    from 0, the image, to 1, the logits; bottom: sorted. The layers of blocks only; lines are means
    over seeds, bands their range.
    """
    rows = name_series(read_rows(inputs, NEEDED), "depth")
    rows = last_epoch(rows[rows["kind"].isin(["first", "second"]) | (rows["status"] != "ok")])
    rows = rows.drop_duplicates([*CONFIGURATION, "seed", "layer"])
    names = list(dict.fromkeys(rows["series"]))
    shades = shades_of(rows["depth"])
    fig, axes = plt.subplots(
        2, len(names), figsize=(TEXT, 4.2), sharex=True, sharey=True, squeeze=False
    )
    for k, name in enumerate(names):
        for depth, group in rows[rows["series"] == name].groupby("depth"):
            values = by_seed(group)
            if not len(values):
                continue
            place = (np.arange(values.shape[1]) + 0.5) / values.shape[1]
            for axis, lines in ((axes[0, k], values), (axes[1, k], -np.sort(-values, 1))):
                axis.plot(place, lines.mean(0), color=shades[depth], linewidth=1)
                axis.fill_between(
                    place, lines.min(0), lines.max(0), color=shades[depth], alpha=0.18, linewidth=0
                )
        for axis in axes[:, k]:
            axis.axhline(1, zorder=0.5, **REFERENCE)
        title(axes[0, k], "abcdefgh"[k], column_title(name, len(names)))
        axes[1, k].set_xlabel("layer / number of layers")
    log_axis(axes[0, 0])
    axes[0, 0].set_ylabel("std of responses, in order")
    axes[1, 0].set_ylabel("std of responses, sorted")
    handles = [Line2D([], [], color=shade, label=f"L = {depth}") for depth, shade in shades.items()]
    handles.append(Line2D([], [], label="before training", **REFERENCE))
    fig.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    heading(
        fig,
        "Responses of the layers in blocks after batch norm, before the activation or the "
        f"addition: {shared(rows, ('skip', 'depth'))}. Mean over {seeds_range(rows)}; bands: range "
        "over seeds",
    )
    return fig


def column_title(name, columns):
    """`name` in lines that fit into one of so many columns of the text width."""
    return "\n".join(wrapped(name, int(100 / columns)))


def shades_of(depths):
    """{depth: colour}, from shallow, dark, to deep, light."""
    depths = sorted(set(depths))
    colours = mpl.colormaps["viridis"](np.linspace(0, 0.9, len(depths)))
    return dict(zip(depths, colours, strict=True))


def by_seed(group, column="response_std"):
    """Values of one network, seeds x layers, of the seeds whose layers all have one."""
    values = group.pivot(index="seed", columns="layer", values=column).to_numpy()
    return values[np.isfinite(values).all(1)] if len(values) else values
