"""One look for all figures: sizes of a two-column paper, a colour-blind safe palette, byte-for-byte
repeatable files.
"""

from pathlib import Path

import matplotlib as mpl
import seaborn as sns

from .. import files

COLUMN = 3.25  # inches: one column
TEXT = 6.75  # inches: the whole text width

PALETTE = tuple(
    sns.color_palette("colorblind").as_hex()
)  # ten colours, safe for the common colour deficiencies
GREY = "0.55"  # what is not the subject: ranks beyond C, references
REFERENCE = {"color": "0.25", "linewidth": 0.7, "linestyle": (0, (4, 2))}  # theory and chance lines
THRESHOLD = {
    "color": "0.45",
    "linewidth": 0.6,
    "linestyle": (0, (1, 1.2)),
}  # thresholds of a verdict

COLOURS = {
    "resnet": PALETTE[0],
    "plain": PALETTE[3],
    "highway": PALETTE[2],
    "brown": PALETTE[5],
    "white": PALETTE[7],
    "reproduced": "#BFE3D6",  # verdicts: light tints that carry black text
    "not reproduced": "#F6C9B0",
    "inconclusive": "#E4E4E4",
}
SKIP_NAMES = {"resnet": "ResNet", "plain": "plain"}
SEQUENTIAL = "viridis"  # magnitudes
DIVERGING = "RdBu_r"  # signed quantities, centred on zero


def use_style():
    """Set Matplotlib's rcParams: 7 to 8 pt text, thin lines, open axes, embedded TrueType fonts, no
    window system.
    """
    mpl.use("Agg")
    mpl.rcdefaults()
    mpl.rcParams.update(
        {
            "font.family": "DejaVu Sans",  # ships with Matplotlib: the same everywhere
            "mathtext.fontset": "dejavusans",
            "font.size": 7.5,
            "axes.titlesize": 7.5,
            "axes.labelsize": 7.5,
            "xtick.labelsize": 7,
            "ytick.labelsize": 7,
            "legend.fontsize": 7,
            "figure.titlesize": 8,
            "axes.prop_cycle": mpl.cycler(color=PALETTE),
            "axes.linewidth": 0.6,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "axes.titlepad": 4,
            "axes.labelpad": 2,
            "xtick.major.width": 0.6,
            "ytick.major.width": 0.6,
            "xtick.minor.width": 0.4,
            "ytick.minor.width": 0.4,
            "xtick.major.size": 2.5,
            "ytick.major.size": 2.5,
            "xtick.minor.size": 1.5,
            "ytick.minor.size": 1.5,
            "xtick.major.pad": 2,
            "ytick.major.pad": 2,
            "lines.linewidth": 1.0,
            "lines.markersize": 3.5,
            "legend.frameon": False,
            "legend.handlelength": 1.8,
            "legend.columnspacing": 1.2,
            "legend.labelspacing": 0.3,
            "legend.borderaxespad": 0.2,
            "image.cmap": SEQUENTIAL,
            "image.interpolation": "nearest",
            "figure.figsize": (COLUMN, 2.4),
            "figure.dpi": 100,
            "figure.constrained_layout.use": True,
            "savefig.dpi": 200,
            "pdf.fonttype": 42,
            "pdf.compression": 9,
        }
    )


def save(fig, pdf, png):
    """Write the figure as PDF and PNG (200 dpi) without dates or versions, so the same inputs give
    the same bytes.

    Args:
        fig: Matplotlib figure. pdf, png: paths; missing folders are made.
    """
    for path in (Path(pdf), Path(png)):
        path.parent.mkdir(parents=True, exist_ok=True)
    undated = {"CreationDate": None, "Producer": None, "Creator": None}
    with files.atomically(pdf) as partial:
        fig.savefig(partial, format="pdf", metadata=undated)
    with files.atomically(png) as partial:
        fig.savefig(partial, format="png", dpi=200, metadata={"Software": None})
