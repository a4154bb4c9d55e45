"""Gradients of networks of a scalar input, and their covariance between inputs (Balduzzi et al.
2017, figure 1).

Input: toy_gradients.npz.
"""

import matplotlib.pyplot as plt
import numpy as np

from ..errors import UserError
from .style import COLOURS, SEQUENTIAL, TEXT

DETAILS = {
    "plain, 1 layer": "",
    "plain, 24 layers": "mean-centred",
    "ResNet, 50 modules": r"batch norm, $\beta$ = 0.1",
    "brown noise": "",
    "white noise": "",
}


def draw(inputs):
    """`inputs`: one toy_gradients.npz."""
    try:
        with np.load(inputs[0]) as data:
            x, names, curves, pictures = (
                data[k] for k in ("x", "names", "gradients", "covariances")
            )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"cannot read {inputs[0]} as gradients of the toy networks: {error}"
        ) from error
    fig, axes = plt.subplots(
        2, len(names), figsize=(TEXT, 2.9), height_ratios=[1, 1.35], squeeze=False
    )
    top = np.percentile(
        pictures, 99
    )  # one scale for all, so that a single extreme pair does not darken the rest
    image = None
    for k, (name, curve, picture) in enumerate(zip(names, curves, pictures, strict=True)):
        upper, lower = axes[:, k]
        upper.plot(x, curve, color=_colour(name), linewidth=0.6)
        upper.set(xlim=(x[0], x[-1]), xticks=[-2, 0, 2])
        upper.set_title(
            f"$\\bf{{{'abcdefgh'[k]}}}$  {name}\n{DETAILS.get(str(name), '')}", fontsize=7
        )
        upper.locator_params(axis="y", nbins=4)
        upper.tick_params(axis="y", pad=1, labelsize=6.5)
        extent = (x[0], x[-1], x[-1], x[0])
        image = lower.imshow(
            picture, vmin=0, vmax=top, cmap=SEQUENTIAL, extent=extent, rasterized=True
        )
        lower.set(xlabel="input x", xticks=[-2, 0, 2], yticks=[-2, 0, 2])
        lower.spines[["top", "right"]].set_visible(True)
        if k:
            lower.tick_params(labelleft=False)
    axes[0, 0].set_ylabel("gradient df/dx")
    axes[1, 0].set_ylabel("input x'")
    bar = fig.colorbar(image, ax=axes[1], aspect=14, pad=0.01, fraction=0.03, extend="max")
    bar.set_label("|covariance| / variance")
    return fig


def _colour(name):
    key = str(name).split()[0].strip(",").lower()
    return COLOURS.get(key, "0.2")
