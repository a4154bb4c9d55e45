"""How many units are active at an input and at two, layer by layer (Balduzzi et al. 2017, figure
3).
"""

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

from .common import heading, read_rows, title
from .kinds import dots, kinds
from .style import REFERENCE, TEXT
from .sweeps import number_axis

NEEDED = (
    "network", "normalisation", "beta", "depth", "quantity", "measured", "standard_error",
    "mean_field", "width", "networks", "batch",
)  # fmt: skip
PANELS = {
    "active": ("active at an input", "share of units", (0.5,)),
    "coactive": ("active at both of two inputs", "share of units", (0.25, 0.5)),
    "always_on": ("saturated: active at every input", "share of units", ()),
}


def draw(inputs):
    """`inputs`: one coactivation.csv. Dashed: 1/2, and for two inputs 1/4, which the theorems
    assume, and 1/2, at which both see the same units."""
    rows = read_rows(inputs, NEEDED)
    fig, axes = plt.subplots(1, 3, figsize=(TEXT, 2.5))
    for letter, axis, (quantity, (text, label, lines)) in zip(
        "abc", axes, PANELS.items(), strict=True
    ):
        for line in lines:
            axis.axhline(line, zorder=0.5, **REFERENCE)
        for name, colour, marker, group in kinds(rows[rows["quantity"] == quantity]):
            group = group.sort_values("depth")
            axis.plot(group["depth"], group["mean_field"], color=colour, linewidth=0.9)
            dots(axis, group["depth"], group, colour, marker, name)
        number_axis(axis, rows["depth"], "layer")
        axis.set(ylabel=label, ylim=(-0.02, 0.62))
        title(axis, letter, text)
    handles, labels = axes[0].get_legend_handles_labels()
    handles.append(Line2D([], [], color="0.3", linewidth=0.9, label="mean field"))
    fig.legend(handles=handles, loc="outside lower center", ncols=3)
    first = rows.iloc[0]
    heading(
        fig,
        f"Random networks of width {first['width']}, {first['batch']} Gaussian inputs: means over "
        f"{first['networks']} networks; bars: two standard errors",
    )
    return fig
