"""RA4: 1/s_1 against the block index, ALL blocks (Li & Papyan 2023, figure of RA4); exact RA
predicts slope 1.
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
)
from .panels import inverse_singular_values
from .style import COLUMN


def draw(inputs):
    """`inputs`: one spectra.nc."""
    network = read_network(inputs[0])
    fig, axis = plt.subplots(figsize=(COLUMN, 3.3))
    inverse_singular_values(axis, network)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(loc="best")
    slope, intercept, fit = (f"line_{name}" for name in ("slope", "intercept", "r2"))
    heading(
        fig,
        describe(network),
        accuracy_text(network),
        f"slope {interval(*score(network, slope))}{central(network, 'inverse_slope')}",
        f"intercept {interval(*score(network, intercept))}, "
        f"R\N{SUPERSCRIPT TWO} {interval(*score(network, fit), digits=3)}",
        f"line through 1 over the mean of $s_1$ [range over seeds]; {seeds_text(network)}; "
        "grey: each training image",
    )
    return fig


def central(network, name):
    """The central 95 % of a score over all training inputs of all defined seeds, as text."""
    values = defined(network)[name].sel(split="train").values
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return ""
    low, high = np.quantile(values, [0.025, 0.975])
    return f"; 95 % of images {low:.2f} to {high:.2f}"
