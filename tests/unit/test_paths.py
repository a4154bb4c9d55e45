"""Paths against enumeration, and the lengths that carry the gradient against closed forms."""

import itertools

import numpy as np
import pytest
import torch
from scipy.special import comb

from resnet_mechanisms import mean_field, paths
from resnet_mechanisms.errors import UserError
from resnet_mechanisms.gradients import _first_layer, _generators, resnet

SETTINGS = dict(
    width=32, batch=6, input_dimension=24, networks=12, depth=[1, 2, 4], beta=[1.0],
    length_depth=6, seed=0,
)  # fmt: skip


def enumerated(gates, residual):
    """Numbers of paths by branches crossed, of gates (L, N) at one input or (L, N) of two: from
    all N neurons to one, taking at each step the skip or one open neuron of the branch."""
    steps, width = gates.shape
    found = np.zeros(steps + 1, int)
    for choices in itertools.product(range(-residual, width), repeat=steps):  # -1: the skip
        if all(choice < 0 or gates[step, choice] for step, choice in enumerate(choices)):
            found[sum(choice >= 0 for choice in choices)] += 1
    return found


@pytest.mark.parametrize("residual", [False, True])
def test_counts_against_enumeration(residual):
    rng = np.random.default_rng(0)
    gates = rng.random((3, 2, 4)) < 0.6  # steps, inputs, neurons
    own, pairs = paths.log_open_gates(torch.tensor(gates).movedim(0, 0))
    # steps take the place of networks
    one, both = own[:, 0], pairs[:, 0, 1]
    for logs, open_gates in ((one, gates[:, 0]), (both, gates[:, 0] & gates[:, 1])):
        expected = enumerated(open_gates, residual)
        np.testing.assert_allclose(np.exp(paths.log_paths(logs, residual)[-1]), expected.sum())
        if residual:
            by_length = np.exp(paths.log_paths_by_length(logs))
            np.testing.assert_allclose(by_length, expected, atol=1e-9)


def test_a_closed_layer_leaves_no_path():
    logs = np.log([3.0, 2.0])
    with np.errstate(divide="ignore"):
        closed = np.array([np.log(3.0), np.log(0.0)])
    assert paths.log_paths(closed, residual=False)[-1] == -np.inf
    np.testing.assert_allclose(np.exp(paths.log_paths(closed, residual=True)[-1]), 4)
    np.testing.assert_allclose(np.exp(paths.log_paths(logs, residual=False)[-1]), 6)


def test_numbers_beyond_floating_point():
    logs = np.full(1000, np.log(500.0))
    np.testing.assert_allclose(paths.log_paths(logs, residual=False)[-1], 1000 * np.log(500.0))
    lengths = paths.log_paths_by_length(logs)
    np.testing.assert_allclose(lengths[1000], 1000 * np.log(500.0))
    np.testing.assert_allclose(lengths[1], np.log(1000 * 500.0))


def test_elementary_symmetric_and_the_theorems_by_length():
    factors = np.array([0.3, 2.0, 1.1, 0.7])
    expected = [
        sum(np.prod(chosen) for chosen in itertools.combinations(factors, k)) for k in range(5)
    ]
    np.testing.assert_allclose(mean_field.elementary_symmetric(factors), expected)
    variance, covariance = mean_field.theorem_by_length("none", 10, 1.0)
    k = np.arange(11)
    np.testing.assert_allclose(variance, comb(10, k))
    np.testing.assert_allclose(covariance, comb(10, k) / 2.0**k)
    for norm, beta in itertools.product(("none", "batch"), (1.0, 0.3)):
        parts = mean_field.theorem_by_length(norm, 7, beta)
        np.testing.assert_allclose(
            [part.sum() for part in parts], mean_field.theorem("resnet", norm, 7, beta)
        )
    with pytest.raises(ValueError):
        mean_field.theorem_by_length("centred", 7)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_lengths_of_mean_field_add_up(norm):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((8, 20))
    covariance = x @ x.T / 20
    parts = mean_field.path_length_covariance(covariance, 5, norm, 0.7)
    *_, whole = mean_field.hidden_covariance(covariance, 5, norm, 1.0, 0.7)
    np.testing.assert_allclose(parts.sum(0), whole, rtol=1e-10)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_parts_add_up_to_the_derivative(norm):
    """The gradient by length, summed, against automatic differentiation with frozen statistics."""
    variant = resnet(norm, [4], 0.8)
    settings = SETTINGS | {"networks": 2}
    ((_, parts),) = paths.length_parts([variant], settings, range(2))
    assert parts.shape[:2] == (2, 5)

    def forward(x, steps, weights, branch):
        for step in range(steps):
            z = x
            if norm == "batch":
                z = z - z.mean(0).detach()
                z = z / z.detach().square().mean(0).sqrt()
            x = x + branch * torch.relu(z) @ weights[step]
        return x

    generators = _generators(0, 8, range(2))
    first = [_first_layer(g, settings) for g in generators]
    directions = [torch.randn(32, generator=g) for g in generators]
    for k, generator in enumerate(generators):
        direction = directions[k] * (32 / directions[k].square().sum()) ** 0.5
        weights = [torch.randn(32, 32, generator=generator) * (2 / 32) ** 0.5 for _ in range(4)]
        with torch.enable_grad():
            _, tangent = torch.autograd.functional.jvp(
                lambda x, w=weights: forward(x, 4, w, 0.8), first[k], direction.expand(6, -1)
            )
        torch.testing.assert_close(parts[k].sum(0), tangent, rtol=1e-3, atol=1e-3)


def test_tables():
    counts = paths.path_counts_table(SETTINGS)
    assert set(counts["status"]) == {"ok"}
    # Fewer paths are open at two inputs than at one, and at one than there are.
    wide = counts.pivot_table(
        index=["network", "normalisation", "depth"], columns="quantity", values="measured"
    )
    assert (wide["coactive"] < wide["active"]).all()
    assert (counts[counts.quantity == "active"].measured < counts.all_paths.iloc[0] * 10).all()
    np.testing.assert_allclose(wide["coactive"] - wide["active"], wide["coactive_share"], atol=1e-9)

    lengths = paths.path_lengths_table(SETTINGS)
    coins = lengths[
        (lengths.gates == "bernoulli") & (lengths.quantity == "variance")
    ]  # exact in expectation; four jackknife standard errors
    deviation = (coins.measured - coins.paper).abs()
    assert (deviation <= 4 * coins.standard_error + 1e-6 * coins.paper).mean() > 0.85
    shares = lengths.dropna(subset=["share"]).groupby(["normalisation", "gates", "quantity"])
    np.testing.assert_allclose(shares["share"].sum(), 1, rtol=1e-6)


def test_settings_out_of_range():
    with pytest.raises(UserError, match="networks is 1"):
        paths.path_counts_table(SETTINGS | {"networks": 1})
