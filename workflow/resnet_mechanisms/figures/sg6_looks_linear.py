"""Looks-linear initialisation trains deep plain networks (Balduzzi et al. 2017, section 4, figure
6): accuracy against depth, beside networks that start otherwise, and residual ones.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D

from ..network_types import batch_norm, crelu, weighted_layers
from .common import CONFIGURATION, heading, last_epoch, mark_undefined, read_rows, title
from .style import COLOURS, PALETTE, REFERENCE, TEXT
from .sweeps import number_axis, seeds_range, shared

NEEDED = [
    *CONFIGURATION,
    "seed",
    "epoch",
    "train_loss",
    "train_accuracy",
    "test_accuracy",
    "status",
]
# Families in the order of the legend: what they are called, colour, marker.
LOOKS = {
    "CReLU, looks linear": (PALETTE[2], "o"),
    "CReLU, Kaiming": (PALETTE[1], "s"),
    "ReLU, Kaiming": (PALETTE[4], "D"),
    "ReLU, batch norm": (COLOURS["plain"], "^"),
    "ResNet, batch norm": (COLOURS["resnet"], "v"),
    "ResNet": (PALETTE[9], "P"),
}


def family(kind, skip, initialisation):
    """What a network is called, from its type, skip and the recipe's initialisation."""
    norm = ", batch norm" if batch_norm(kind) else ""
    if skip == "resnet":
        return f"ResNet{norm}"
    if crelu(kind):
        return f"CReLU, {'looks linear' if initialisation == 'looks_linear' else 'Kaiming'}"
    return f"ReLU{norm or ', Kaiming'}"


def draw(inputs, recipes):
    """`inputs`: history.csv files of configurations that differ in depth, kind and recipe.
    `recipes`: {name: {"initialisation": ..., "learning_rate": ...}}.

    Of recipes that differ in the learning rate the one with the lowest training loss, mean over
    seeds, is shown at each depth: a diverged seed counts as the worst. Bars: range over seeds.
    """
    rows = last_epoch(read_rows(inputs, NEEDED))
    rows = rows.drop_duplicates([*CONFIGURATION, "seed"])
    rows["family"] = [
        family(kind, skip, recipes[name]["initialisation"])
        for kind, skip, name in zip(rows["type"], rows["skip"], rows["recipe"], strict=True)
    ]
    rows["rate"] = rows["recipe"].map(lambda name: recipes[name]["learning_rate"])
    best = chosen(rows)
    chance = 1 / rows["classes"].iloc[0]
    fig, axes = plt.subplots(1, 3, figsize=(TEXT, 2.6))
    columns = {"train_accuracy": "training accuracy", "test_accuracy": "test accuracy"}
    families = [name for name in LOOKS if name in set(best["family"])]
    spread = dict(zip(families, 1.04 ** np.linspace(-1, 1, len(families)), strict=True))
    layers = {depth: weighted_layers("fc", depth) for depth in best["depth"]}
    for letter, axis, (column, label) in zip("ab", axes, columns.items(), strict=False):
        for name in families:
            colour, marker = LOOKS[name]
            mine = best[best["family"] == name]
            values = mine.groupby("depth")[column]
            place = np.array([layers[d] for d in values.groups]) * spread[name]
            axis.plot(place, values.mean(), color=colour, marker=marker, label=name)
            axis.vlines(place, values.min(), values.max(), color=colour, linewidth=1.1)
            for depth in mine.loc[mine[column].isna(), "depth"].unique():
                mark_undefined(axis, layers[depth] * spread[name], colour)
        axis.axhline(chance, zorder=0.5, **REFERENCE)
        axis.set(ylabel=label, ylim=(-0.03, 1.04))
        number_axis(axis, layers.values(), "layers (2 L + 2)")
        title(axis, letter)
    for name in families:
        colour, marker = LOOKS[name]
        trained = best[(best["family"] == name) & best["train_loss"].notna()]
        rates = trained.groupby("depth")["rate"].first()
        place = [layers[d] * spread[name] for d in rates.index]
        axes[2].plot(place, rates, color=colour, marker=marker, linewidth=0.7)
    axes[2].set(yscale="log", ylabel="learning rate chosen")
    number_axis(axes[2], layers.values(), "layers (2 L + 2)")
    title(axes[2], "c")
    handles, labels = axes[0].get_legend_handles_labels()
    handles += [
        Line2D([], [], label="chance", **REFERENCE),
        Line2D([], [], marker="x", linestyle="none", color="0.3", label="diverged at every rate"),
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=4)
    text = shared(rows, ("skip", "depth", "type", "recipe"))
    heading(
        fig,
        f"Depth without skips: {text}. Learning rate by training loss, at each depth; mean over "
        f"{seeds_range(best)}, bars: range",
    )
    return fig


def chosen(rows):
    """The rows of the recipe with the lowest mean training loss, of each family and depth."""
    loss = rows["train_loss"].fillna(np.inf)
    means = rows.assign(loss=loss).groupby(["family", "depth", "recipe"])["loss"].mean()
    winners = means.groupby(["family", "depth"]).idxmin()
    keys = list(zip(rows["family"], rows["depth"], rows["recipe"], strict=True))
    return rows[[key in set(winners) for key in keys]]
