"""Gradients of random convolutional networks at real images whiten with depth, less with skips
(Balduzzi et al. 2017, figure 5).
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from ..errors import UserError
from .common import heading, read_rows, reading, title
from .style import COLOURS, PALETTE, REFERENCE, SEQUENTIAL, TEXT
from .sweeps import number_axis

NEEDED = [
    "dataset", "classes", "network", "beta", "depth", "width", "batch", "seed", "gradient",
    "effective_rank", "effective_rank_centred", "mean_gradient", "status",
]  # fmt: skip
RESIDUAL = (COLOURS["resnet"], PALETTE[9], PALETTE[2], PALETTE[4])  # by beta, largest first
MARKS = "osD^"


def draw(inputs):
    """`inputs`: effective_rank.csv and effective_rank.npz.

    Top: |correlation| of the loss's gradients at the images of one minibatch, in an order by
    k-means at the smallest depth. Bottom, against depth: effective rank over that of a Gaussian
    matrix, of centred gradients (solid) and not (thin), and norm of the mean gradient over the root
    mean square of the norms; means over networks, bars two standard errors.
    """
    rows = read_rows([inputs[0]], NEEDED)
    rows = rows[rows["status"] == "ok"]
    try:
        with np.load(inputs[1]) as data:
            found, names, depths = (data[k] for k in ("pictures", "names", "depths"))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"cannot read {inputs[1]} as correlations of gradients: {error}") from error
    fig = plt.figure(figsize=(TEXT, 4.0))
    top, bottom = fig.subfigures(2, 1, height_ratios=[1.12, 1])
    _pictures(top, found, names, depths)

    axes = bottom.subplots(1, 4)
    looks = _looks(rows)
    panels = [
        (f"{quantity}, {what}", kind, column)
        for quantity, column in (("rank", "effective_rank_centred"), ("mean", "mean_gradient"))
        for what, kind in (("outputs", "outputs"), ("loss", "loss"))
    ]
    for axis, letter, (text, kind, column) in zip(axes, "efgh", panels, strict=True):
        mine = rows[rows["gradient"] == kind]
        for (network, beta), look in looks.items():
            same = mine["beta"].isna() if np.isnan(beta) else np.isclose(mine["beta"], beta)
            group = mine[(mine["network"] == network) & same]
            _line(axis, group, column, look)
            if column == "effective_rank_centred":
                thin = {"color": look["color"], "linewidth": 0.7, "linestyle": ":"}
                mean = group.groupby("depth")["effective_rank"].mean()
                axis.plot(mean.index, mean, **thin)
        number_axis(axis, rows["depth"], "depth (convolutions)")
        axis.set_ylim(0, None)
        title(axis, letter, text)
    batch = int(rows["batch"].iloc[0])
    for pair, white, label in (
        (axes[:2], 1, "effective rank / white"),
        (axes[2:], batch**-0.5, "|mean| / norm"),
    ):
        pair[0].set_ylabel(label)
        high = max(axis.get_ylim()[1] for axis in pair)
        for axis in pair:
            axis.axhline(white, zorder=0.5, **REFERENCE)
            axis.set_ylim(0, max(high, 1.08 * white))
    handles = [
        Line2D([], [], **look, label="plain" if np.isnan(beta) else rf"ResNet, $\beta$ = {beta:g}")
        for (_, beta), look in looks.items()
    ]
    handles += [
        Line2D([], [], color="0.3", linewidth=0.7, linestyle=":", label="not centred (e, f)"),
        Line2D([], [], label="white noise", **REFERENCE),
    ]
    bottom.legend(handles=handles, loc="outside lower center", ncols=6, handlelength=1.5)
    first = rows.iloc[0]
    about = ", ".join(reading(column, first[column]) for column in ("dataset", "classes"))
    heading(
        fig,
        f"Gradients by the image of random convolutional networks, {first['width']} channels, "
        f"batch norm: {about}, minibatches of {batch}. Means over {rows['seed'].nunique()} "
        "networks, bars two standard errors",
    )
    return fig


def _looks(rows):
    """{(network, beta): look}: plain, then residual, the largest beta first."""
    betas = sorted(rows["beta"].dropna().unique(), reverse=True)
    looks = {("plain", np.nan): {"color": COLOURS["plain"], "marker": "X"}}
    for k, beta in enumerate(betas):
        looks["resnet", beta] = {"color": RESIDUAL[k % 4], "marker": MARKS[k % 4]}
    return looks


def _line(axis, group, column, look):
    by = group.groupby("depth")[column]
    mean, error = by.mean(), by.std(ddof=1) / np.sqrt(by.count())
    axis.plot(mean.index, mean, linewidth=1, markersize=3, **look)
    axis.vlines(mean.index, mean - 2 * error, mean + 2 * error, color=look["color"], linewidth=1)


def _pictures(figure, found, names, depths):
    axes = figure.subplots(1, 4)
    high = np.percentile(found, 98)  # the diagonal, 1, would darken the rest
    for axis, letter, (k, d) in zip(
        axes, "abcd", [(k, d) for k in range(2) for d in range(2)], strict=True
    ):
        image = axis.imshow(found[k, d], vmin=0, vmax=high, cmap=SEQUENTIAL, rasterized=True)
        name, *beta = str(names[k]).split()
        text = "plain" if name == "plain" else rf"ResNet $\beta$ = {beta[0]}"
        title(axis, letter, f"{text}, L = {depths[d]}")
        axis.spines[["top", "right"]].set_visible(True)
        axis.xaxis.set_major_locator(NullLocator())
        axis.yaxis.set_major_locator(NullLocator())
        axis.set_xlabel("image")
    axes[0].set_ylabel("image")
    bar = figure.colorbar(image, ax=axes, aspect=16, pad=0.01, fraction=0.03, extend="max")
    bar.set_label("|correlation|")
