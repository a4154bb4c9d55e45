"""Do shattered gradients hurt? How far a gradient remains valid, and what momentum gains from it,
in plain and residual networks (a question that Balduzzi et al. 2017, section 1, raise).
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D

from .common import CONFIGURATION, heading, log_axis, read_rows, title
from .style import COLOURS, REFERENCE, SKIP_NAMES, TEXT
from .sweeps import LINES, MARKERS, seeds_range, shared

SHOWN_STEP = 0.01
NEEDED = [*CONFIGURATION, "seed", "epoch", "loss", "direction", "relative_step", "cosine", "status"]


def draw(inputs, recipes):
    """`inputs`: of every configuration history.csv, then gradients/similarity.csv.
    `recipes`: {name: {"learning_rate": ..., "momentum": ...}}.

    a: cosine of the training gradient here and a step against it away, before training. b: the same
    for inputs with noise of 1 %, along training from left to right, against the batch's loss. c, d:
    training loss, in training mode over an epoch, with and without momentum, at the same
    learning_rate / (1 - momentum).
    """
    half = len(inputs) // 2
    history = read_rows(inputs[:half], [*CONFIGURATION, "seed", "epoch", "running_train_loss"])
    history = history.drop_duplicates([*CONFIGURATION, "seed", "epoch"])
    rows = read_rows(inputs[half:], NEEDED)
    rows = rows[rows["status"] == "ok"].drop_duplicates(
        [*CONFIGURATION, "seed", "epoch", "direction", "relative_step"]
    )
    depths = sorted(history["depth"].unique())
    looks = {
        (skip, depth): {"color": COLOURS[skip], "linestyle": LINES[k], "marker": MARKERS[k]}
        for skip in SKIP_NAMES
        for k, depth in enumerate(depths)
    }
    fig, axes = plt.subplots(1, 4, figsize=(TEXT, 2.4))
    start = rows[(rows["epoch"] == 0) & (rows["direction"] == "gradient")]
    start = start.drop_duplicates(["skip", "depth", "seed", "relative_step"])
    for (skip, depth), group in start.groupby(["skip", "depth"]):
        _mean_and_range(axes[0], group, "relative_step", "cosine", looks[skip, depth])
    axes[0].set(xscale="log", xlabel="step / weights", ylabel="cosine of gradients")
    title(axes[0], "a", "before training")

    later = rows[(rows["direction"] == "inputs") & np.isclose(rows["relative_step"], SHOWN_STEP)]
    for (skip, depth), group in later.groupby(["skip", "depth"]):
        means = group.assign(loss=np.log(group["loss"])).groupby("epoch")[["loss", "cosine"]].mean()
        axes[1].plot(np.exp(means["loss"]), means["cosine"], markersize=3, **looks[skip, depth])
    axes[1].set(xscale="log", xlabel="training loss", ylabel="cosine of gradients")
    axes[1].invert_xaxis()
    title(axes[1], "b", "at 1 % noise")
    for axis in axes[:2]:
        axis.set_ylim(-0.12, 1.05)
        axis.axhline(0, zorder=0.5, **REFERENCE)

    for axis, letter, skip in zip(axes[2:], "cd", ("plain", "resnet"), strict=True):
        for (depth, recipe), group in history[history["skip"] == skip].groupby(["depth", "recipe"]):
            look = looks[skip, depth] | {"marker": None}
            momentum = recipes[recipe]["momentum"]
            look |= {} if momentum else {"color": "0.45"}
            group = group[group["epoch"] > 0]
            _mean_and_range(axis, group, "epoch", "running_train_loss", look)
        axis.set(xlabel="epoch", ylabel="training loss")
        log_axis(axis)
        title(axis, letter, SKIP_NAMES[skip])
    low = min(axis.get_ylim()[0] for axis in axes[2:])
    high = max(axis.get_ylim()[1] for axis in axes[2:])
    for axis in axes[2:]:
        axis.set_ylim(low, high)
    handles = [
        Line2D([], [], **look, label=f"{SKIP_NAMES[skip]}, L = {depth}")
        for (skip, depth), look in sorted(looks.items(), key=lambda item: item[0][1])
    ]
    if not all(recipes[name]["momentum"] for name in history["recipe"].unique()):
        handles.append(Line2D([], [], color="0.45", label="without momentum (c, d)"))
    fig.legend(handles=handles, loc="outside lower center", ncols=4)
    used = {name: recipes[name] for name in dict.fromkeys(history["recipe"])}
    rates = "; ".join(
        f"momentum {r['momentum']:g} at learning rate {r['learning_rate']:g}" for r in used.values()
    )
    heading(
        fig,
        f"How far a gradient is valid, and what momentum gains: {shared(history, ('recipe',))}; "
        f"{rates}. Lines: mean over {seeds_range(history)}, bands and bars: range",
    )
    return fig


def _mean_and_range(axis, group, x, y, look):
    by = group.groupby(x)[y]
    axis.plot(by.mean().index, by.mean(), linewidth=1, markersize=3, **{"linestyle": "-"} | look)
    axis.fill_between(
        by.mean().index, by.min(), by.max(), color=look["color"], alpha=0.15, linewidth=0
    )
