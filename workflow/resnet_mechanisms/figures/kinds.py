"""How the kinds of random networks look in the figures of gradients at initialisation."""

from .style import COLOURS, PALETTE

NORMALISATION = {"none": "not normalised", "centred": "mean-centred", "batch": "batch norm"}
LOOKS = {  # of plain networks by normalisation: colour, marker
    "none": (PALETTE[7], "o"),
    "centred": (PALETTE[5], "s"),
    "batch": (COLOURS["plain"], "^"),
}
RESNETS = ((PALETTE[0], "v"), (PALETTE[2], "D"), (PALETTE[4], "P"), (PALETTE[9], "X"))
BARE = (PALETTE[1], "*")  # a ResNet that is not normalised
PAPER_LINE = (0, (3, 1.5))


def kinds(rows):
    """[(name, colour, marker, rows of it)] of every kind of network in `rows`, which have the
    columns network, normalisation and beta."""
    found, batch = [], 0
    for (network, norm, beta), group in rows.groupby(
        ["network", "normalisation", "beta"], dropna=False, sort=False
    ):
        if network == "plain":
            look = LOOKS[norm]
            name = f"plain, {NORMALISATION[norm]}"
        else:
            look = BARE if norm == "none" else RESNETS[batch % len(RESNETS)]
            batch += norm == "batch"
            name = rf"ResNet, {NORMALISATION[norm]}, $\beta$ = {beta:g}"
        found.append((name, *look, group))
    return found


def dots(axis, x, rows, colour, marker, label=None, filled=True):
    """Measured values with two standard errors to each side."""
    axis.errorbar(
        x, rows["measured"], 2 * rows["standard_error"], fmt=marker, color=colour, markersize=3.2,
        elinewidth=0.7, label=label, markerfacecolor=colour if filled else "white",
    )  # fmt: skip
