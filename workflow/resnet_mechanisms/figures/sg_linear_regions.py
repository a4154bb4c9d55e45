"""Linear pieces of random networks along a line, against depth (Montufar et al. 2014, Hanin &
Rolnick 2019), plain and residual.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D

from .common import heading, mark_undefined, read_rows, title
from .kinds import PAPER_LINE, dots, kinds
from .style import GREY, TEXT
from .sweeps import number_axis

NEEDED = (
    "network", "normalisation", "beta", "line", "depth", "width", "networks", "quantity",
    "measured", "standard_error", "mean_field", "neurons", "log10_montufar", "status",
)  # fmt: skip
LINES = {"grid": "[-2, 2]", "inputs": "between two Gaussian inputs"}


def draw(inputs):
    """`inputs`: one linear_regions.csv. a: pieces, beside the number of neurons and the largest
    number possible; b: sign changes of a neuron of the last layer."""
    rows = read_rows(inputs, NEEDED)
    fig, axes = plt.subplots(1, 2, figsize=(TEXT, 2.9))
    pieces = rows[rows["quantity"] == "pieces"]
    highest = 30 * np.nanmax(pieces[["measured", "mean_field"]].to_numpy())
    for letter, axis, (quantity, label) in zip(
        "ab", axes,
        {"pieces": "linear pieces", "sign_changes": "sign changes of a neuron"}.items(),
        strict=True,
    ):  # fmt: skip
        for name, colour, marker, group in kinds(rows[rows["quantity"] == quantity]):
            group = group.sort_values("depth")
            axis.plot(group["depth"], group["mean_field"], color=colour, linewidth=0.9)
            known = group[group["status"] == "ok"]
            dots(axis, known["depth"], known, colour, marker, name)
            if quantity == "pieces":
                for depth in group.loc[group["status"] != "ok", "depth"]:
                    mark_undefined(axis, depth, colour)
        axis.set(yscale="log", ylabel=label)
        number_axis(axis, rows["depth"], "depth L")
        title(axis, letter, label)
    depths = pieces.drop_duplicates("depth").sort_values("depth")
    axes[0].plot(depths["depth"], depths["neurons"], color=GREY, linewidth=1.2)
    most = depths["log10_montufar"].clip(upper=np.log10(highest) + 3)
    axes[0].plot(depths["depth"], 10**most, color="0.25", linewidth=0.9, linestyle=PAPER_LINE)
    axes[0].set_ylim(1, highest)
    handles = axes[0].get_legend_handles_labels()[0]
    handles += [
        Line2D([], [], color="0.3", linewidth=0.9, label="mean field"),
        Line2D([], [], color=GREY, linewidth=1.2, label="number of neurons"),
        Line2D([], [], color="0.25", linewidth=0.9, linestyle=PAPER_LINE, label="largest possible"),
    ]
    if (pieces["status"] != "ok").any():
        handles.append(
            Line2D([], [], marker="x", linestyle="none", color="0.3", label="too many to count")
        )
    fig.legend(handles=handles, loc="outside lower center", ncols=3)
    first = rows.iloc[0]
    heading(
        fig,
        f"Linear pieces along {LINES[first['line']]}, random networks of width {first['width']}, "
        f"exact: means over {first['networks']} networks; bars: two standard errors",
    )
    return fig
