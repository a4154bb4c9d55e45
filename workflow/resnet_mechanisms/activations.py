"""Which rectifiers of random networks are active, at which inputs: co-activation and patterns.

Balduzzi et al. 2017, figures 3 and 4: the share of inputs at which a unit is active, and of pairs
of inputs at which it is active at both, against the layer; rasters of units by inputs, with the
distributions of the activation per unit and of the lengths of constant runs. Kinds of network and
conventions as in `gradients`; the layer is the step whose gates are looked at.

The paper does not say what its inputs are. Activations per unit are taken at Gaussian inputs, for
which theory is known, and on the grid [-2, 2] of the toy networks; runs along that grid, where
neighbours are alike, so that a run means something.
"""

import numpy as np
import pandas as pd
import torch
from scipy.special import gammaln, log_ndtr, ndtr

from . import mean_field
from .gradients import (
    Variant,
    _checked,
    _chunks,
    _first_layer,
    _generators,
    _input_covariance,
    _own_and_pairs,
    _relu_gate,
    grid,
    plain,
    propagate,
    ratio_of_means,
    resnet,
)  # fmt: skip

BINS = 21  # of how many inputs a unit is active at, other than none and all; odd
_MEAN_FIELD_BATCHES = 2  # co-activation varies by less than .002 between batches of 64


def gates_by_step(variants: list[Variant], settings: dict, inputs: str, networks, device="cpu"):
    """Yields (variant, step, gates (K, M, N) bool) of `networks`, a range, at the variants' depths.

    settings: width N, seed, and for inputs "gaussian" batch M and input_dimension, for "grid"
    points M.
    """
    generators = _generators(settings["seed"], {"gaussian": 6, "grid": 7}[inputs], networks)
    if inputs == "gaussian":
        first = [_first_layer(g, settings) for g in generators]
    else:
        x = grid(settings["points"])[:, None]
        draws = (torch.randn(2, settings["width"], generator=g) for g in generators)
        first = [x * slope + bias for slope, bias in draws]
    state = torch.stack(first)[:, None].to(device)
    for variant, step, _, gates in propagate(state, variants, _relu_gate, generators):
        yield variant, step, gates


def _variants(depths, betas):
    variants = [plain(norm, depths) for norm in mean_field.NORMALISATIONS]
    return variants + [resnet("batch", depths, beta) for beta in betas]


def _correlations(variant, covariance):
    """{depth: correlation of what the gates see (..., M, M)} at the variant's depths."""
    found = mean_field.gate_correlation(
        covariance, max(variant.depths), variant.normalisation, variant.skip, variant.branch
    )
    return {depth: c for depth, c in enumerate(found, 1) if depth in variant.depths}


def _pair_mean(matrix):
    """Mean over i != j of (..., M, M)."""
    inputs = matrix.shape[-1]
    trace = np.trace(matrix, axis1=-2, axis2=-1)
    return float((matrix.sum((-2, -1)) - trace).mean() / (inputs * (inputs - 1)))


def _grid_covariance(settings):
    x = grid(settings["points"]).double().numpy()
    return np.outer(x, x) + 1


def _keys(variant, depth, inputs, settings):
    return {
        "network": variant.network,
        "normalisation": variant.normalisation,
        "beta": np.nan if variant.beta is None else variant.beta,
        "inputs": inputs,
        "batch": settings["batch" if inputs == "gaussian" else "points"],
        "depth": depth,
        "width": settings["width"],
        "networks": settings["networks"],
    }


def coactivation_table(settings: dict, device="cpu") -> pd.DataFrame:
    """Rows of coactivation.csv, figure 3: shares of inputs, of pairs and of units, with standard
    errors over networks.

    settings: width N, batch M, input_dimension, networks K, lists depth and beta, seed. Raises
    UserError for settings out of range. quantity: active (share of inputs at which a unit is
    active), coactive (share of pairs of distinct inputs), always_on and always_off (share of units
    whose gate is saturated: open at all M inputs, or at none). mean_field is 1/2, the mean over
    pairs of kappa0(c)/2, and the ends of `active_law`; paper 1/2 and 1/4, what the theorems assume.
    """
    least = {"width": 1, "batch": 2, "input_dimension": 1, "networks": 2}
    variants = _variants(*_checked(settings, least))
    shares: dict = {(v, depth): [] for v in variants for depth in v.depths}
    for chunk in _chunks(settings["networks"]):
        for variant, depth, gates in gates_by_step(variants, settings, "gaussian", chunk, device):
            active, coactive = _own_and_pairs(gates)
            count = gates.sum(1)
            saturated = [(count == full).double().mean(1) for full in (gates.shape[1], 0)]
            shares[variant, depth].append(torch.stack([active, coactive, *saturated]).cpu())
    covariance = _input_covariance(settings, 6, _MEAN_FIELD_BATCHES)
    rows = []
    for variant in variants:
        correlations = _correlations(variant, covariance)
        for depth in variant.depths:
            both = _pair_mean(mean_field.kappa0(correlations[depth]) / 2)
            quantities = ("active", "coactive", "always_on", "always_off")
            law = active_law(correlations[depth], variant.normalisation)
            theory = (0.5, both, law[-1], law[0])
            paper = (0.5, 0.25, np.nan, np.nan)
            measured = torch.cat(shares[variant, depth], 1).numpy()
            for quantity, values, kernel, assumed in zip(
                quantities, measured, theory, paper, strict=True
            ):
                value, error = ratio_of_means(values, np.ones_like(values))
                rows.append(
                    _keys(variant, depth, "gaussian", settings)
                    | {"quantity": quantity, "measured": value, "standard_error": error}
                    | {"paper": assumed, "mean_field": kernel, "status": "ok"}
                )
    return pd.DataFrame(rows)


def patterns(settings: dict, device="cpu") -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """(Rows of activation_patterns.csv, arrays of activation_patterns.npz), figure 4.

    settings: those of `coactivation_table`, points of the grid, and raster_depth, a list in place
    of depth. Raises UserError for settings out of range. Rows of quantity activation hold the share
    of units active at low to high of the inputs, of quantity run the share of maximal constant runs
    along the grid with low to high points; saturated gates are the rows of no and of all inputs.
    flip, without low and high, is the share of neighbouring points of the grid whose gates differ.
    Arrays: names (V,), depths (D,), x (points,), rasters (V, D, N, points) bool, of the first
    network.
    """
    least = {"width": 1, "batch": 2, "input_dimension": 1, "networks": 2, "points": 2}
    depths, betas = _checked(settings | {"depth": settings["raster_depth"]}, least)
    variants = [v for v in _variants(depths, betas) if v.normalisation != "centred"]
    rows, rasters = [], {}
    for inputs in ("gaussian", "grid"):
        activity: dict = {(v, depth): [] for v in variants for depth in depths}
        lengths: dict = {(v, depth): [] for v in variants for depth in depths}
        for chunk in _chunks(settings["networks"]):
            for variant, depth, gates in gates_by_step(variants, settings, inputs, chunk, device):
                activity[variant, depth].append(active_counts(gates))
                if inputs == "grid":
                    lengths[variant, depth].append(run_lengths(gates))
                    if 0 in chunk:
                        rasters[variant, depth] = gates[0].T.cpu().numpy()
        gaussian = inputs == "gaussian"
        covariance = (
            _input_covariance(settings, 6, _MEAN_FIELD_BATCHES)
            if gaussian
            else _grid_covariance(settings)
        )
        for variant in variants:
            correlations = _correlations(variant, covariance)
            for depth in depths:
                keys, c = _keys(variant, depth, inputs, settings), correlations[depth]
                law = active_law(c, variant.normalisation) if gaussian else None
                found = _activation_rows(np.concatenate(activity[variant, depth]), law)
                if not gaussian:
                    found += _run_rows(np.concatenate(lengths[variant, depth]), c)
                rows += [keys | row for row in found]
    arrays = {
        "names": np.array([_name(v) for v in variants]),
        "depths": np.array(depths),
        "x": grid(settings["points"]).numpy(),
        "rasters": np.stack([[rasters[v, depth] for depth in depths] for v in variants]),
    }
    table = pd.DataFrame(rows).astype({"low": "Int64", "high": "Int64"})
    return table, arrays


def _name(variant):
    if variant.network == "resnet":
        return f"ResNet, batch norm, beta = {variant.beta:g}"
    return "plain, " + {"none": "not normalised", "batch": "batch norm"}[variant.normalisation]


def active_counts(gates) -> np.ndarray:
    """How many units are active at 0, 1, ..., M of the inputs, of gates (K, M, N): (K, M + 1)."""
    return _counts(gates.sum(1), gates.shape[1])


def run_lengths(gates) -> np.ndarray:
    """How many maximal constant runs of length 0, 1, ..., M lie along the inputs, of gates (K, M,
    N): (K, M + 1).
    """
    networks, inputs, _ = gates.shape
    rows = gates.transpose(1, 2)
    ends = torch.ones_like(rows)
    ends[..., :-1] = rows[..., 1:] != rows[..., :-1]
    network, _, place = ends.nonzero(as_tuple=True)  # in order, so a row ends with inputs - 1
    previous = torch.cat([place.new_full((1,), inputs - 1), place[:-1]])
    length = place - torch.where(previous == inputs - 1, -1, previous)
    return np.stack(
        [
            torch.bincount(length[network == k], minlength=inputs + 1).cpu().numpy()
            for k in range(networks)
        ]
    )


def _counts(numbers, most):
    """How often each of 0..most occurs in each row of `numbers` (K, ...)."""
    return np.stack([torch.bincount(row.flatten(), minlength=most + 1).cpu() for row in numbers])


def active_law(correlation, normalisation: str) -> np.ndarray:
    """Probability that a unit is active at 0, 1, ..., M inputs: (M + 1,), in mean field.

    correlation: (..., M, M) of the pre-activations. Without normalisation they are taken for
    exchangeable, with the mean correlation c: given the part that all inputs share, a standard
    normal u, each is active with probability Phi(u sqrt(c / (1 - c))), as in Vasicek's law of a
    loan portfolio, and the count is binomial. Less their batch mean they are not positively
    correlated; the count is then taken for normal, with its exact variance sum_ij (kappa0(c_ij)/2 -
    1/4).
    """
    inputs = correlation.shape[-1]
    k = np.arange(inputs + 1)
    if normalisation == "none":
        c = np.clip(_pair_mean(correlation), 0, 1 - 1e-12)
        u = np.linspace(-8, 8, 4001)
        argument = u * (c / (1 - c)) ** 0.5
        weight = np.exp(-(u**2) / 2) * (u[1] - u[0]) / (2 * np.pi) ** 0.5
        logs = k[:, None] * log_ndtr(argument) + (inputs - k)[:, None] * log_ndtr(-argument)
        choose = gammaln(inputs + 1) - gammaln(k + 1) - gammaln(inputs - k + 1)
        return np.exp(choose[:, None] + logs) @ weight
    both = (mean_field.kappa0(correlation) / 2 - 0.25).sum((-2, -1)).mean()
    edges = (np.arange(inputs + 2) - 0.5 - inputs / 2) / max(both, 1e-12) ** 0.5
    edges[[0, -1]] = -np.inf, np.inf
    return np.diff(ndtr(edges))


def _activation_rows(counts, law):
    """Rows of quantity activation; counts (K, M + 1), law (M + 1,) or None."""
    inputs = counts.shape[1] - 1
    # Half-way between counts at both ends; with an odd number of bins no edge is a count, so the
    # bins are symmetric.
    edges = np.linspace(0.5, inputs - 0.5, BINS + 1)
    inner = zip(np.ceil(edges[:-1]).astype(int), np.floor(edges[1:]).astype(int), strict=True)
    bins = [(0, 0), *((a, b) for a, b in inner if a <= b), (inputs, inputs)]
    return list(_histogram("activation", counts, bins, law))


def _run_rows(counts, correlation):
    """Rows of quantities run and flip; counts of runs (K, M + 1), correlation (M, M)."""
    inputs = counts.shape[1] - 1
    edges = [1, *(2**k for k in range(1, inputs.bit_length()) if 2**k < inputs), inputs]
    bins = [*zip(edges[:-1], [e - 1 for e in edges[1:]], strict=True), (inputs, inputs)]
    rows = _histogram("run", counts, bins, None)
    lengths = np.arange(inputs + 1)
    units = (counts * lengths).sum(1) / inputs
    flips = (counts.sum(1) - units) / (units * (inputs - 1))
    expected = np.arccos(np.clip(np.diagonal(correlation, 1), -1, 1)).mean() / np.pi
    value, error = ratio_of_means(flips, np.ones_like(flips))
    return [*rows, _row("flip", None, None, value, error, expected)]


def _histogram(quantity, counts, bins, law):
    for low, high in bins:
        inside = counts[:, low : high + 1].sum(1)
        value, error = ratio_of_means(inside, counts.sum(1))
        yield _row(
            quantity, low, high, value, error, np.nan if law is None else law[low : high + 1].sum()
        )


def _row(quantity, low, high, value, error, theory):
    return {
        "quantity": quantity, "low": low, "high": high, "measured": value,
        "standard_error": error, "mean_field": theory, "status": "ok",
    }  # fmt: skip
