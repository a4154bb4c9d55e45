"""What the benchmark of the singular triplets compares computes the same thing."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from resnet_mechanisms import svd, tables
from resnet_mechanisms.benchmarks import jacobian_svd
from resnet_mechanisms.figures import style
from resnet_mechanisms.figures.jacobian_svd import draw
from resnet_mechanisms.networks import Block

COUNT = 3
METHODS = {"ours": jacobian_svd.ours} | jacobian_svd.WITH_MATRIX | jacobian_svd.SVDS
# Of a singular value, in units of s_1. Squared values lose half the digits.
ACCURACY = {"authors' way": 1e-3, "jacrev + svd_lowrank": 1e-1}
# Not paired, or not converged: their residual may be anything.
UNPAIRED = ("authors' way", "jacrev + svd_lowrank")


def block_and_states(kind):
    """A block with batch-norm statistics of its own, and states of four inputs."""
    torch.manual_seed(1)
    n = 24 if kind == "fc" else 3
    block = Block(kind, n, n, 1, "resnet").eval().requires_grad_(False)
    for norm in (block.norm1, block.norm2):
        norm.running_mean.normal_(0, 0.1)
        norm.running_var.uniform_(0.5, 2)
        norm.weight.uniform_(0.5, 2)
        norm.bias.normal_(0, 0.1)
    return block, torch.rand(4, n) if kind == "fc" else torch.rand(4, n, 4, 4)


def values_in_float64(block, states):
    """Singular values at the first state, from the Jacobian of the masked branch by columns."""
    block, state = block.double(), states[:1].double()
    gates = (block(state) > 0).double()
    j = torch.autograd.functional.jacobian(lambda h: gates * block.branch(h), state)
    block.float()
    return torch.linalg.svdvals(j.reshape(state.numel(), state.numel()))


@pytest.mark.parametrize("kind", ["fc", "conv"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_finds_the_same_triplets(kind, name):
    block, states = block_and_states(kind)
    expected = values_in_float64(block, states)[:COUNT]
    outcome = METHODS[name](jacobian_svd.problem_of(block, states), COUNT)
    left, values, right = outcome.triplets
    inputs = 4 if name == "ours" else 1
    assert left.shape == right.shape == (inputs, COUNT, states[0].numel())
    error = (values[0].double() - expected).abs().max() / expected[0]
    assert error <= ACCURACY.get(name, 1e-5)
    if name not in UNPAIRED:
        assert jacobian_svd.largest_residual(outcome) <= svd.TOLERANCE
    if name in jacobian_svd.SVDS:
        assert outcome.products >= 2 * COUNT


def test_products_of_ours_are_counted():
    block, _ = block_and_states("conv")
    large = jacobian_svd.problem_of(block, torch.rand(2, 3, 20, 20))  # goes by products alone
    assert 4 * COUNT < jacobian_svd.products_of_ours(large, COUNT) < 1000
    dense = jacobian_svd.problem_of(*block_and_states("fc"))
    assert math.isnan(jacobian_svd.products_of_ours(dense, COUNT))


def test_table_and_figure(tmp_path, monkeypatch):
    small = {"depth": 2, "steps": 0, "alignment_inputs": 1}
    cases = [
        dataclasses.replace(jacobian_svd.CASES[0], name="fc24 init", width=24, **small),
        dataclasses.replace(jacobian_svd.CASES[-1], name="conv3 init", width=3, **small),
    ]
    monkeypatch.setattr(jacobian_svd, "CASES", cases)
    monkeypatch.setattr(jacobian_svd, "COUNT", COUNT)
    monkeypatch.setattr(jacobian_svd, "REPETITIONS", 1)
    monkeypatch.setattr(jacobian_svd, "ceiling", lambda type: (0.1, 1e11))
    path = tmp_path / "jacobian_svd.csv"
    tables.write(jacobian_svd.run(tmp_path), path)
    table = tables.read([path])
    assert list(table.columns) == [
        "case", "method", "seconds_per_block_input", "ratio_to_ours", "max_residual",
        "applications", "fraction_of_ceiling",
    ]  # fmt: skip
    assert (table["seconds_per_block_input"] > 0).all()
    by_method = table[table["case"] == "conv3 init"].set_index("method")
    assert "jacrev, J alone (extrapolated from 64 of 768 rows)" in by_method.index
    assert by_method.loc["ours", "ratio_to_ours"] == 1
    assert by_method.loc["alignment", "applications"] == 2 * 2 * COUNT
    machine = table.loc[table["case"] == "machine", "method"]
    assert list(machine) == ["sgemm ceiling", "conv ceiling"]
    assert jacobian_svd.summary(table).splitlines()[1].startswith("fc24 init")
    style.use_style()
    titles = [axis.get_title(loc="left") for axis in draw([path]).axes]
    names = [title.split("  ")[1] for title in titles]
    assert names == ["FC, width 24, untrained", "conv, 3 channels, untrained"]


def test_gradient_benchmark_compares_the_same_moments():
    """The loop and ours draw other networks, so they agree within their errors: five of those of
    ours, and as many of the loop's, which are as large."""
    from resnet_mechanisms import gradients
    from resnet_mechanisms.benchmarks import gradients as benchmark

    settings = dict(width=64, batch=16, input_dimension=32, networks=32, seed=0)
    variants = benchmark.kinds((1, 3))
    looped = benchmark.loop(variants, settings)
    ours = gradients.hidden_moments(variants, settings)
    for key, moments in ours.items():
        for value, parts in zip(looped[key], (moments.variance, moments.covariance), strict=True):
            mean, error = gradients.ratio_of_means(parts, np.ones_like(parts))
            assert abs(value - mean) < 10 * error, key


def test_gradient_benchmark_has_every_case():
    from resnet_mechanisms.benchmarks import gradients as benchmark

    settings = dict(width=16, batch=4, input_dimension=4, networks=2, seed=0)
    sweeps = {"depth": (1, 2, 4), "networks": (1, 2)}
    table = benchmark.run(1, settings, (1, 2), sweeps)
    assert table["case"].value_counts().to_dict() == {
        "depth": 3, "networks": 2, benchmark.OURS: 1, benchmark.LOOP: 1,
    }  # fmt: skip
    assert (table["seconds"] > 0).all()
    table["seconds"] = np.where(table["case"] == "depth", table["depth"] * 0.5, 1.0)
    np.testing.assert_allclose(benchmark.exponent(table, "depth"), 1)
    assert "networks^0.00" in benchmark.summary(table).replace("-0.00", "0.00")
