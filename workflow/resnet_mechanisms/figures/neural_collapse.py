"""Neural Collapse at the last layer, NC1 to NC4 (Papyan, Han & Donoho 2020), against depth, ResNet
and plain.
"""

import matplotlib.pyplot as plt

from .common import heading, read_scores
from .style import TEXT
from .sweeps import Score, about, keys, panels

# Thresholds as in workflow/claims.yaml.
MEASURES = {
    "nc1": Score("NC1: variability", r"$\mathrm{tr}(S_w S_b^{+})$", "log", (0.1,)),
    "nc2_norm": Score("NC2: equal norms", "CV of class-mean norms", "log"),
    "nc2_angle": Score("NC2: equal angles", r"mean $|\cos + 1/(C-1)|$", "log", (0.06,)),
    "nc3": Score("NC3: self-duality", r"$\|\,W^\top/\|W\| - M/\|M\|\,\|^2$", "log", (0.05,)),
    "nc4": Score("NC4: nearest class mean", "share of disagreements", "linear", (0,)),
}


OF_LINES = ("exact RA or chance", "too few blocks for a line")  # marks that do not occur here


def draw(inputs):
    """`inputs`: residual_alignment.csv files of every configuration of the depth grids."""
    rows = read_scores(inputs, ["train_accuracy", "inputs", *MEASURES], "depth")
    fig, axes = plt.subplots(2, 3, figsize=(TEXT, 4.0))
    axes = axes.ravel()
    panels(axes, rows, "depth", "depth L (blocks)", MEASURES)
    axes[4].set_ylim(-0.005, max(0.1, axes[4].get_ylim()[1]))
    axes[5].set_axis_off()
    handles = [key for key in keys(rows) if key.get_label() not in OF_LINES]
    axes[5].legend(handles=handles, loc="center left", title="0 everywhere: full collapse")
    heading(
        fig,
        "Neural Collapse (training set) against depth: "
        + about(rows, ("depth", "skip", "recipe"), images=False),
    )
    return fig
