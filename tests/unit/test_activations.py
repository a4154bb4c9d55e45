"""Shares of active units, patterns and runs against closed forms and one-by-one counts."""

import itertools

import numpy as np
import pytest
import torch

from resnet_mechanisms import activations, gradients, mean_field
from resnet_mechanisms.errors import UserError

SETTINGS = dict(
    width=256, batch=32, input_dimension=128, networks=10, depth=[1, 2, 4, 8], beta=[1.0],
    points=64, raster_depth=[2, 8], seed=0,
)  # fmt: skip


@pytest.fixture(scope="module")
def table():
    return activations.coactivation_table(SETTINGS)


def test_a_quarter_with_batch_norm_and_centring(table):
    """Acceptance: .250 +- .005 in every layer, on average over pairs of a batch, which lie
    1/(M - 1) below it as their pre-activations are uncorrelated with themselves removed."""
    rows = table[(table.quantity == "coactive") & (table.normalisation != "none")]
    assert len(rows) == 12
    expected = 0.25 + np.arcsin(-1 / (SETTINGS["batch"] - 1)) / (2 * np.pi)
    assert (rows.measured - expected).abs().max() < 0.005
    assert (rows.mean_field - expected).abs().max() < 0.002


def test_co_activation_rises_without_normalisation(table):
    """Acceptance: kappa0(c_l)/2 within .02 at width 256, ten networks; the first layers exactly."""
    rows = table[(table.quantity == "coactive") & (table.normalisation == "none")]
    c, expected = 0.0, []
    for _ in range(8):
        expected.append(mean_field.kappa0(c) / 2)
        c = mean_field.kappa1(c)
    for row in rows.itertuples():
        assert abs(row.measured - expected[row.depth - 1]) < 0.02
        assert abs(row.measured - row.mean_field) < 4 * row.standard_error + 0.01


def test_half_of_the_inputs_and_saturated_units(table):
    active = table[table.quantity == "active"]
    assert ((active.measured - 0.5).abs() < 4 * active.standard_error + 1e-3).all()
    saturated = table[table.quantity.isin(["always_on", "always_off"])]
    deep = saturated[(saturated.normalisation == "none") & (saturated.depth == 8)]
    assert (deep.measured > 0.1).all()
    assert ((deep.measured - deep.mean_field).abs() < 4 * deep.standard_error + 0.03).all()
    assert (saturated[saturated.normalisation == "batch"].measured < 1e-3).all()


def test_counts_and_runs_one_by_one():
    generator = torch.Generator().manual_seed(0)
    gates = torch.rand(3, 9, 5, generator=generator) < 0.5
    counts, runs = activations.active_counts(gates), activations.run_lengths(gates)
    assert counts.shape == runs.shape == (3, 10)
    for k in range(3):
        expected, lengths = np.zeros(10, int), np.zeros(10, int)
        for unit in gates[k].T.tolist():
            expected[sum(unit)] += 1
            for _, run in itertools.groupby(unit):
                lengths[len(list(run))] += 1
        np.testing.assert_array_equal(counts[k], expected)
        np.testing.assert_array_equal(runs[k], lengths)


def test_law_of_exchangeable_inputs():
    """Uniform where the common part has correlation 1/2, as Phi(u) is then uniform; and against
    drawing."""
    inputs = 7
    half = np.full((inputs, inputs), 0.5) + 0.5 * np.eye(inputs)
    np.testing.assert_allclose(activations.active_law(half, "none"), 1 / (inputs + 1), rtol=1e-4)
    c = 0.8
    matrix = np.full((inputs, inputs), c) + (1 - c) * np.eye(inputs)
    rng = np.random.default_rng(0)
    drawn = rng.multivariate_normal(np.zeros(inputs), matrix, 200_000) > 0
    frequency = np.bincount(drawn.sum(1), minlength=inputs + 1) / len(drawn)
    # Five binomial standard errors.
    law = activations.active_law(matrix, "none")
    assert (np.abs(frequency - law) < 5 * np.sqrt(law / len(drawn))).all()
    independent = activations.active_law(np.eye(40), "batch")
    np.testing.assert_allclose(independent.sum(), 1)
    np.testing.assert_allclose((independent * np.arange(41)).sum(), 20)


def test_patterns():
    table, arrays = activations.patterns(SETTINGS | {"networks": 4})
    assert arrays["rasters"].shape == (3, 2, 256, 64)
    shares = table[table.quantity != "flip"].groupby(
        ["network", "normalisation", "inputs", "depth", "quantity"]
    )["measured"]
    np.testing.assert_allclose(shares.sum(), 1)
    # How often neighbours differ is arccos(c)/pi; along a line few neurons cross in a network.
    flips = table[table.quantity == "flip"]
    assert ((flips.measured - flips.mean_field).abs() < 0.1 * flips.mean_field + 0.01).all()
    # Rasters are the gates of the first network, whichever others are taken with it.
    variant = gradients.plain("batch", [2, 8])
    found = activations.gates_by_step([variant], SETTINGS, "grid", range(1))
    for raster, (_, _, gates) in zip(arrays["rasters"][1], found, strict=True):
        assert (raster == gates[0].T.numpy()).mean() > 0.999  # rounding may differ at a kink
    # Gates open at no or all inputs have bins of their own; others are symmetric about one half.
    for inputs, count in (("gaussian", 32), ("grid", 64)):
        bins = table[(table.quantity == "activation") & (table.inputs == inputs)]
        ends = set(zip(bins.low, bins.high, strict=True))
        assert {(0, 0), (count, count)} <= ends
        assert ends == {(count - high, count - low) for low, high in ends}


def test_settings_out_of_range():
    with pytest.raises(UserError, match="batch is 1"):
        activations.coactivation_table(SETTINGS | {"batch": 1})
