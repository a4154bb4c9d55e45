"""Paths through random networks: how many are active, and which lengths carry the gradient.

Balduzzi et al. 2017, proofs of theorems 1 to 3: the squared gradient is a sum over active paths,
the product of gradients at two inputs one over co-active paths; paths grow faster with depth than
co-active ones, so gradients whiten. Veit et al. 2016: a residual network is an ensemble of paths
of all lengths. Kinds of network and conventions as in `gradients`.

A path takes, at each step, the skip or one neuron of the branch, and is active at an input if all
gates that it crosses are open there. Counted are the paths from all N neurons before the first step
to one neuron after the last: the product of the steps' matrices with every weight replaced by one
and rows masked by the gates. Such a matrix has equal columns, so the product collapses: n_1 n_2 ...
n_L paths in a plain network with n_l open gates in step l, (1 + n_1) ... (1 + n_L) in a residual
one, of which the coefficient of t^k in prod_l (1 + t n_l) cross k branches. Sums and products are
taken in logarithms. The gradient is split by length exactly, not by sampling: each length is
carried forward beside the activations, and a branch moves every part on to the next length.
"""

import numpy as np
import pandas as pd
import torch
from scipy.special import gammaln, logsumexp

from . import mean_field
from .gradients import (
    COLLAPSED,
    Variant,
    _checked,
    _chunks,
    _coin_gate,
    _first_layer,
    _generators,
    _input_covariance,
    _own_and_pairs,
    _relu_gate,
    plain,
    propagate,
    ratio_of_means,
    resnet,
)  # fmt: skip

LEAST = {"width": 1, "batch": 2, "input_dimension": 1, "networks": 2, "length_depth": 1}
_MEAN_FIELD_BATCHES = 4


def log_open_gates(gates):
    """(log of how many gates are open at an input (K, M), at both of a pair (K, M, M)) of gates (K,
    M, N) bool; float64, -inf where none is.
    """
    gates = gates.float()  # exact for counts up to 2^24
    pairs = torch.bmm(gates, gates.transpose(1, 2)).double().cpu().numpy()
    with np.errstate(divide="ignore"):
        return np.log(np.diagonal(pairs, axis1=1, axis2=2)), np.log(pairs)


def log_paths(log_gates, residual: bool):
    """Log of the number of paths after 1, ..., L steps, from the logs of the numbers of open gates
    (L, ...): (L, ...).
    """
    steps = np.logaddexp(0, log_gates) if residual else np.asarray(log_gates)
    return steps.cumsum(0)


def log_paths_by_length(log_gates):
    """Log of the number of paths through L steps of a residual network that cross k = 0, ..., L
    branches, from the logs of the numbers of open gates (L, ...): (L + 1, ...).
    """
    found = np.full((len(log_gates) + 1, *np.shape(log_gates)[1:]), -np.inf)
    found[0] = 0
    for step in log_gates:
        found[1:] = np.logaddexp(found[1:], step + found[:-1])
    return found


def path_counts_table(settings: dict, device="cpu") -> pd.DataFrame:
    """Rows of path_counts.csv: base-10 logarithms of the number of paths that are open, against
    depth.

    settings: width N, batch M of Gaussian inputs of input_dimension, networks K, lists depth and
    beta, seed. Raises UserError for settings out of range. quantity: active (mean number of paths
    active at an input), coactive (at both of two distinct inputs), coactive_share (the second over
    the first, what theorems 1 and 2 call the correlation when every branch passes on as much as the
    skip loses). standard_error is that of the logarithm, over networks. all_paths counts open and
    closed ones. paper: with independent gates open half of the time; mean_field: with their true
    correlations. Where no path is open, status is no_path.
    """
    depths, betas = _checked(settings, {k: v for k, v in LEAST.items() if k != "length_depth"})
    variants = [plain(norm, depths) for norm in mean_field.NORMALISATIONS]
    variants += [resnet(norm, depths, beta) for norm in ("none", "batch") for beta in betas]
    steps = {v: range(1, max(depths) + 1) for v in variants}
    logs: dict = {(v, depth): [] for v in variants for depth in depths}
    for chunk in _chunks(settings["networks"]):
        for variant, (own, pairs) in _log_gates(variants, steps, settings, chunk, device).items():
            counts = [_log_mean(log_paths(x, variant.skip > 0)) for x in (own, pairs)]
            for depth in depths:
                logs[variant, depth].append([count[depth - 1] for count in counts])
    covariance = _input_covariance(settings, 8, _MEAN_FIELD_BATCHES)
    rows = []
    for variant in variants:
        theory = _log_theory(variant, settings, covariance)
        for depth in depths:
            own, pairs = np.concatenate(logs[variant, depth], 1)
            one = np.zeros_like(own)
            keys = _keys(variant, settings) | {"depth": depth}
            paths = np.log10(settings["width"] + (variant.skip > 0)) * depth
            quantities = {
                "active": (own, one, 0), "coactive": (pairs, one, 1),
                "coactive_share": (pairs, own, None),
            }  # fmt: skip
            for quantity, (top, bottom, which) in quantities.items():
                value, error = _log10_ratio(top, bottom)
                paper, kernel = (
                    (t[which] if which is not None else t[1] - t[0])[depth - 1] for t in theory
                )
                rows.append(
                    keys
                    | {"quantity": quantity, "measured": value, "standard_error": error}
                    | {"all_paths": paths, "paper": paper, "mean_field": kernel}
                    | {"status": "ok" if np.isfinite(value) else "no_path"}
                )
    return pd.DataFrame(rows)


def _log_gates(variants, steps, settings, networks, device="cpu"):
    """{variant: (at an input (L, K, M), at pairs i != j (L, K, M (M - 1)))} of `networks`: logs of
    the numbers of open gates in each step.
    """
    variants = {Variant(**vars(v) | {"depths": tuple(steps[v])}): v for v in variants}
    generators = _generators(settings["seed"], 8, networks)
    state = torch.stack([_first_layer(g, settings) for g in generators])[:, None].to(device)
    off = ~np.eye(settings["batch"], dtype=bool)
    found: dict = {v: ([], []) for v in variants.values()}
    for variant, _, _, gates in propagate(state, list(variants), _relu_gate, generators):
        own, pairs = log_open_gates(gates)
        found[variants[variant]][0].append(own)
        found[variants[variant]][1].append(pairs[:, off])
    return {v: (np.stack(own), np.stack(pairs)) for v, (own, pairs) in found.items()}


def _log_mean(logs):
    """Log of the mean of exp over the last axis."""
    with np.errstate(divide="ignore"):
        return logsumexp(logs, axis=-1) - np.log(logs.shape[-1])


def _log10_ratio(top, bottom):
    """(log10 of sum exp(top) / sum exp(bottom) over networks (K,), its standard error); nan where
    either sum is zero.
    """
    most = [x.max() for x in (top, bottom)]
    if not np.isfinite(most).all():
        return np.nan, np.nan
    ratio, error = ratio_of_means(np.exp(top - most[0]), np.exp(bottom - most[1]))
    return np.log10(ratio) + (most[0] - most[1]) / np.log(10), error / ratio / np.log(10)


def _log_theory(variant, settings, covariance):
    """((active, coactive) of the paper, the same of mean field), log10 (L,) for depths 1..L."""
    width, depth = settings["width"], max(variant.depths)
    skip = float(variant.skip > 0)
    depths = np.arange(1, depth + 1)
    active, coactive = (np.log10(skip + width * share) * depths for share in (1 / 2, 1 / 4))
    pairs, paths = [], 0.0
    for c in _correlation(variant, covariance, depth):
        with np.errstate(divide="ignore"):
            paths = paths + np.log(skip + width * _off(mean_field.kappa0(c) / 2))
        pairs.append(_log_mean(paths.ravel()) / np.log(10))
    return (active, coactive), (active, np.array(pairs))


def _correlation(variant, covariance, depth):
    return mean_field.gate_correlation(
        covariance, depth, variant.normalisation, variant.skip, variant.branch
    )


def _off(matrix):
    """Entries i != j of (..., M, M): (..., M (M - 1))."""
    return matrix[..., ~np.eye(matrix.shape[-1], dtype=bool)]


def _keys(variant, settings):
    return {
        "network": variant.network,
        "normalisation": variant.normalisation,
        "beta": np.nan if variant.beta is None else variant.beta,
        "batch": settings["batch"],
        "width": settings["width"],
        "networks": settings["networks"],
    }


def length_parts(variants, settings: dict, networks, device="cpu", gates="relu"):
    """Yields (variant, g): the derivative with respect to a first-layer neuron (as
    `gradients.hidden_moments`) after the variant's last step, split by path length: g (K, L + 1, M,
    N), k = 0, ..., L branches crossed.

    variants: residual, all of one depth L. With gates "relu" batch statistics are those of the
    batch, frozen; "bernoulli" gates are coins.
    """
    batch, width = settings["batch"], settings["width"]
    depth = max(variants[0].depths)
    relu = gates == "relu"
    generators = _generators(settings["seed"], 8 if relu else 9, networks)
    first = [_first_layer(g, settings) for g in generators] if relu else None
    direction = torch.stack([torch.randn(width, generator=g) for g in generators])
    direction *= (width / direction.square().sum(1, keepdim=True)).sqrt()
    state = torch.zeros(len(generators), depth + 1, batch, width)
    state[:, 0] = direction[:, None]
    if relu:
        state = torch.cat([torch.stack(first)[:, None], state], 1)
    gate = _relu_gate if relu else _coin_gate(generators)
    found = propagate(
        state.to(device), variants, _lengthened(gate, int(relu)), generators, slice(int(relu), None)
    )
    for variant, _, parts, _ in found:
        yield variant, parts


def _lengthened(gate, first):
    """`gate` for a state whose parts from `first` on are derivatives by path length: a branch moves
    each to the next."""

    def moved(variant, step, state):
        normalised, gates = gate(variant, step, state)
        longer = torch.zeros_like(normalised)
        longer[:, :first] = normalised[:, :first]
        longer[:, first + 1 :] = normalised[:, first:-1]
        return longer, gates

    return moved


def path_lengths_table(settings: dict, device="cpu") -> pd.DataFrame:
    """Rows of path_lengths.csv: a residual network's gradient and paths by the branches crossed.

    settings: those of `path_counts_table`, and length_depth, the number of modules L. Raises
    UserError for settings out of range. quantity: variance and covariance of the part of the
    gradient of each length, with its share of the sum over lengths; `whole` is that of the whole
    gradient, cross terms included, which vanish on average over weights. active and coactive:
    log10 of the share of the C(L, k) N^k paths of a length that are open at an input, or at both of
    two. Status as in gradient_covariance.csv, collapsed (root mean square of the gradient below
    COLLAPSED) or no_path.
    """
    _, betas = _checked(settings, LEAST)
    depth = settings["length_depth"]
    variants = [resnet(norm, [depth], beta) for norm in ("none", "batch") for beta in betas]
    covariance, rows = _input_covariance(settings, 8, _MEAN_FIELD_BATCHES), []
    for gates in ("relu", "bernoulli"):
        moments: dict = {v: [] for v in variants}
        for chunk in _chunks(settings["networks"]):
            for variant, parts in length_parts(variants, settings, chunk, device, gates):
                whole = parts.sum(1, keepdim=True)
                flat = torch.cat([parts, whole], 1)
                own = _own_and_pairs(flat.flatten(0, 1))
                moments[variant].append(torch.stack(own).view(2, len(parts), depth + 2).cpu())
        for variant in variants:
            measured = torch.cat(moments[variant], 1).numpy()
            rows += _length_rows(variant, gates, measured, depth, settings, covariance)
    steps = {v: range(1, depth + 1) for v in variants}
    logs: dict = {v: [] for v in variants}
    for chunk in _chunks(settings["networks"]):
        for variant, counts in _log_gates(variants, steps, settings, chunk, device).items():
            logs[variant].append([_log_mean(log_paths_by_length(x)) for x in counts])
    for variant in variants:
        rows += _open_rows(variant, np.concatenate(logs[variant], 2), depth, settings, covariance)
    return pd.DataFrame(rows)


def _length_rows(variant, gates, moments, depth, settings, covariance):
    """moments (2, K, depth + 2): variance and covariance of lengths 0..depth and of the whole."""
    paper = mean_field.theorem_by_length(variant.normalisation, depth, variant.beta)
    theory = np.full((2, depth + 1), np.nan)
    if gates == "relu":
        kernel = mean_field.path_length_covariance(
            covariance, depth, variant.normalisation, variant.branch
        )
        inputs = kernel.shape[-1]
        own = np.trace(kernel, axis1=-2, axis2=-1) / inputs
        theory = np.stack([own.mean(-1), _off(kernel).mean((-2, -1))])
    size = np.sqrt(moments[0, :, -1].mean())
    for i, quantity in enumerate(("variance", "covariance")):
        values, whole = moments[i, :, :-1], moments[i, :, -1]
        total = values.sum(1)
        for k in range(depth + 1):
            value, error = ratio_of_means(values[:, k], np.ones(len(values)))
            share, share_error = ratio_of_means(values[:, k], total)
            status = "ok"
            if not np.isfinite([value, error, whole.mean()]).all():
                status = "diverged"
            elif size < COLLAPSED:
                status = "collapsed"
            elif quantity == "covariance" and value < 3 * error:
                status = "not_resolved"
            known = status in ("ok", "not_resolved")
            yield _keys(variant, settings) | {
                "gates": gates,
                "depth": depth,
                "length": k,
                "quantity": quantity,
                "measured": value if known else np.nan,
                "standard_error": error if known else np.nan,
                "share": share if known else np.nan,
                "share_error": share_error if known else np.nan,
                "whole": whole.mean() if known else np.nan,
                "paper": paper[i][k],
                "mean_field": theory[i, k],
                "status": status,
            }


def _open_rows(variant, logs, depth, settings, covariance):
    """logs (2, depth + 1, K): of the number of paths of each length open at an input, at pairs."""
    k = np.arange(depth + 1)
    choose = gammaln(depth + 1) - gammaln(k + 1) - gammaln(depth - k + 1)
    every = (choose + k * np.log(settings["width"])) / np.log(10)
    both = [_off(mean_field.kappa0(c) / 2) for c in _correlation(variant, covariance, depth)]
    pairs = mean_field.elementary_symmetric(both).mean((-2, -1))
    half = -k * np.log10(2)
    paper = half, 2 * half
    theory = half, np.log10(pairs) - choose / np.log(10)
    for i, quantity in enumerate(("active", "coactive")):
        for length in k:
            value, error = _log10_ratio(logs[i, length], np.zeros(logs.shape[2]))
            yield _keys(variant, settings) | {
                "gates": "relu",
                "depth": depth,
                "length": length,
                "quantity": quantity,
                "measured": value - every[length],
                "standard_error": error,
                "share": np.nan,
                "share_error": np.nan,
                "whole": np.nan,
                "paper": paper[i][length],
                "mean_field": theory[i][length],
                "status": "ok" if np.isfinite(value) else "no_path",
            }
