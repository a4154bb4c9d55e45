"""Linear pieces of random ReLU networks along a line of inputs, counted exactly, against depth.

Montufar et al. 2014 bound the number of pieces, exponential in depth; Hanin & Rolnick 2019 and
Kogan et al. 2025 find about as many as there are neurons in networks without normalisation. Counted
here are networks at initialisation, of the kinds and conventions of `gradients`, with batch
statistics taken over a grid of inputs on the line and then frozen: every layer is then piecewise
linear along the line. Breakpoints are carried from layer to layer: within a piece a pre-activation
is linear, so it crosses zero at most once, where its signs at the ends differ. No piece is missed,
however short, down to a distance of TOLERANCE.

A piece is where all gates keep still. Its neighbours have other gates; the function's slope changes
there unless all paths from the changed gate are closed, which takes a layer almost dead.
Every network has breakpoints of its own, so networks are taken one by one; all that is done for one
is done for all its pieces and neurons at once.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch

from . import mean_field
from .gradients import Variant, _checked, _generators, plain, ratio_of_means, resnet

LINES = ("grid", "inputs")
TOLERANCE = 1e-12  # of the line's length: kinks closer than this are one


def network_kinks(
    variant: Variant, slope, bias, ends, points: int, weights, most: int
) -> Iterator[tuple]:
    """(sign changes, breakpoints) of one network after each of `variant`'s steps.

    slope, bias: (N,) float64; the first pre-activation at t is slope t + bias. ends: (first, last)
    t. points: of the grid that batch statistics are taken over. weights: an iterable of (N, N)
    matrices. Yields how often the step's gates, all together, change between the ends, and the t of
    all breakpoints up to that step, in order; None once there are more than `most`, and then no
    further step.
    """
    t = torch.linspace(*ends, points, dtype=torch.float64, device=slope.device)
    on_grid, kink = torch.ones_like(t, dtype=torch.bool), torch.zeros_like(t, dtype=torch.bool)
    x = t[:, None] * slope + bias
    nearest = TOLERANCE * (ends[1] - ends[0])
    for step, weight in zip(range(max(variant.depths)), weights, strict=False):
        z = x
        if variant.normalisation != "none":
            z = z - z[on_grid].mean(0)
        if variant.normalisation == "batch":
            z = z / z[on_grid].square().mean(0).sqrt().clamp_min(1e-20)
        left, neuron = (gates := z > 0)[1:].ne(gates[:-1]).nonzero(as_tuple=True)
        before, after = z[left, neuron], z[left + 1, neuron]
        share = before / (before - after)
        place = torch.lerp(t[left], t[left + 1], share)
        changes, total = len(place), int(kink.sum()) + len(place)
        if total > 2 * most:  # even if half of them coincide
            yield changes, None
            return
        # The new nodes among the old ones; nodes that coincide become one.
        t, order = torch.cat([t, place]).sort(stable=True)
        group = torch.cat([t.new_zeros(1, dtype=torch.long), (t.diff() > nearest).cumsum(0)])
        first = torch.cat([group.new_ones(1), group.diff()]) > 0
        is_new = order >= len(x)
        kink = _any(torch.cat([kink, kink.new_ones(changes)])[order], group)
        on_grid = _any(torch.cat([on_grid, on_grid.new_zeros(changes)])[order], group)
        t, order, is_new = t[first], order[first], is_new[first]
        if int(kink.sum()) > most:
            yield changes, None
            return
        new = order[is_new] - len(x)
        x, z = (_inserted(values, order, is_new, left[new], share[new]) for values in (x, z))
        # Exactly zero, not up to rounding, where a gate opens.
        z[is_new.nonzero()[:, 0], neuron[new]] = 0
        yield changes, t[kink]
        if step + 1 < max(variant.depths):
            x = variant.branch * (z.clamp_min_(0) @ weight) + variant.skip * x


def _any(flags, group):
    """Whether any flag of a group is set; groups are numbered in order."""
    return (
        torch.zeros(int(group[-1]) + 1, device=flags.device).index_add_(0, group, flags.float()) > 0
    )


def _inserted(values, order, is_new, left, share):
    """Rows of `values` at old nodes, interpolated between neighbours `left`, `left + 1` at new."""
    found = values.new_empty(len(order), values.shape[1])
    found[~is_new] = values[order[~is_new]]
    found[is_new] = torch.lerp(values[left], values[left + 1], share[:, None])
    return found


def _network(seed, k, settings, device):
    """(slope, bias, ends, weights as a generator) of network k: all variants share them."""
    width = settings["width"]
    (generator,) = _generators(seed, 5, [k])
    draws = torch.randn(2, width, generator=generator).double()
    ends = (-2.0, 2.0)
    if settings["line"] == "inputs":
        size = settings["input_dimension"]
        inputs = torch.randn(2, size, generator=generator).double()
        matrix = torch.randn(size, width, generator=generator).double() / size**0.5
        start, stop = inputs @ matrix
        draws, ends = torch.stack([stop - start, start]), (0.0, 1.0)

    def weights():
        while True:
            drawn = torch.randn(width, width, generator=generator).double() * (2 / width) ** 0.5
            yield drawn.to(device)

    return *draws.to(device), ends, weights()


def linear_regions_table(settings: dict, device="cpu") -> pd.DataFrame:
    """Rows of linear_regions.csv: pieces of the whole network, and sign changes per neuron of the
    last layer, against depth.

    settings: width N, points of the grid, networks K, lists depth and beta, `line` ("grid": [-2, 2]
    with the first layer v x + b of the toy networks; "inputs": between two Gaussian inputs of
    input_dimension), pieces (a network with more has no number, and status is too_many), seed.
    Raises UserError for settings out of range. mean_field is the expectation at infinite width
    (`mean_field.sign_changes`). neurons is N L: Kogan et al. expect about as many pieces, plus one,
    on the infinite line without normalisation. log10_montufar is that of the largest number
    possible, N^(L - 1) (N + 1), of a network of one input (Montufar et al. 2014, theorem 4 with
    one-dimensional input).
    """
    least = {"width": 1, "points": 2, "networks": 2, "pieces": 1, "input_dimension": 1}
    depths, betas = _checked(settings, least)
    variants = [plain(norm, depths) for norm in mean_field.NORMALISATIONS]
    variants += [resnet("batch", depths, beta) for beta in betas]
    rows = []
    for variant in variants:
        counts = np.full((2, settings["networks"], max(depths)), np.nan)
        for k in range(settings["networks"]):
            slope, bias, ends, weights = _network(settings["seed"], k, settings, device)
            found = network_kinks(
                variant, slope, bias, ends, settings["points"], weights, settings["pieces"] - 1
            )
            for step, (changes, places) in enumerate(found):
                counts[0, k, step] = np.nan if places is None else len(places) + 1
                counts[1, k, step] = changes / settings["width"]
        theory = _theory(variant, settings)
        rows += _rows(variant, counts, theory, settings)
    return pd.DataFrame(rows)


def _theory(variant, settings):
    """Expected (pieces, sign changes per neuron) after each step: (2, depth)."""
    width, branch = settings["width"], variant.branch
    ends = (-2, 2)
    if settings["line"] == "inputs":
        # Orthogonal inputs of unit size: (z0 + z1)/2 + x (z1 - z0)/2 on [-1, 1] is the toy's first
        # layer over sqrt(2), which a residual branch is larger against.
        ends, branch = (-1, 1), branch * (2**0.5 if variant.skip else 1)
    points = np.linspace(*ends, settings["points"])
    changes = list(
        mean_field.sign_changes(
            points, max(variant.depths), variant.normalisation, variant.skip, branch
        )
    )
    kinks = width * np.array(changes)
    if variant.normalisation != "none":
        kinks[0] = changes[0]  # all neurons of v (x - mean) change sign at the same place
    return np.stack([1 + kinks.cumsum(), changes])


def _rows(variant, counts, theory, settings):
    for depth in variant.depths:
        for i, quantity in enumerate(("pieces", "sign_changes")):
            values = counts[i, :, depth - 1]
            known = np.isfinite(values).all()
            value, error = ratio_of_means(values, np.ones_like(values))
            yield {
                "network": variant.network,
                "normalisation": variant.normalisation,
                "beta": np.nan if variant.beta is None else variant.beta,
                "line": settings["line"],
                "points": settings["points"],
                "depth": depth,
                "width": settings["width"],
                "networks": settings["networks"],
                "quantity": quantity,
                "measured": value if known else np.nan,
                "standard_error": error if known else np.nan,
                "mean_field": theory[i, depth - 1],
                "neurons": depth * settings["width"],
                "log10_montufar": (depth - 1) * np.log10(settings["width"])
                + np.log10(settings["width"] + 1),
                "status": "ok" if known else "too_many",
            }
