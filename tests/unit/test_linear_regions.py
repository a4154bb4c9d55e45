"""Linear pieces against a fine grid, the function itself, and expectations of the science."""

import numpy as np
import pytest
import torch

from resnet_mechanisms import linear_regions, mean_field
from resnet_mechanisms.errors import UserError
from resnet_mechanisms.gradients import plain, resnet

SETTINGS = dict(
    width=16, points=64, networks=4, depth=[1, 2, 4], beta=[1.0], line="grid",
    input_dimension=8, pieces=5000, seed=0,
)  # fmt: skip
VARIANTS = [
    plain("none", [3]),
    plain("centred", [3]),
    plain("batch", [3]),
    resnet("batch", [3], 0.7),
]


def drawn(width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    slope, bias = torch.randn(2, width, generator=generator, dtype=torch.double)
    weights = [
        torch.randn(width, width, generator=generator, dtype=torch.double) * (2 / width) ** 0.5
        for _ in range(3)
    ]
    return slope, bias, weights


def gates_of(variant, slope, bias, weights, t, grid):
    """Gates of every step at t, batch statistics over `grid`: the network as it is written."""
    x, on_grid = t[:, None] * slope + bias, grid[:, None] * slope + bias
    found = []
    for weight in weights:
        z, zg = x, on_grid
        if variant.normalisation != "none":
            mean = zg.mean(0)
            z, zg = z - mean, zg - mean
        if variant.normalisation == "batch":
            deviation = zg.square().mean(0).sqrt()
            z, zg = z / deviation, zg / deviation
        found.append(z > 0)
        x = variant.branch * torch.relu(z) @ weight + variant.skip * x
        on_grid = variant.branch * torch.relu(zg) @ weight + variant.skip * on_grid
    return found


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: f"{v.network}-{v.normalisation}")
def test_kinks_against_a_fine_grid(variant):
    slope, bias, weights = drawn(8)
    ends, points = (-2.0, 2.0), 33
    found = list(
        linear_regions.network_kinks(variant, slope, bias, ends, points, iter(weights), 10_000)
    )
    grid = torch.linspace(*ends, points, dtype=torch.double)
    fine = torch.linspace(*ends, 400_000, dtype=torch.double)  # no point at 0, where many turn
    steps = gates_of(variant, slope, bias, weights, fine, grid)
    changed = torch.zeros(len(fine) - 1, dtype=torch.bool)
    for (changes, places), gates in zip(found, steps, strict=True):
        flips = gates[1:] != gates[:-1]
        # All neurons of the first layer less its mean turn at one point, which lies on the grid.
        assert changes == int(flips.sum())
        changed |= flips.any(1)
        assert len(places) == int(changed.sum())
        cells = changed.nonzero()[:, 0]
        step = float(fine[1] - fine[0])
        assert (places >= fine[cells] - step).all() and (places <= fine[cells + 1] + step).all()


def test_too_many_pieces_have_no_number():
    table = linear_regions.linear_regions_table(SETTINGS | {"pieces": 20})
    deep = table[(table.normalisation == "batch") & (table.network == "plain") & (table.depth == 4)]
    assert set(deep.status) == {"too_many"}
    assert deep.measured.isna().all() and deep.mean_field.notna().all()
    assert set(table.loc[table.depth == 1, "status"]) == {"ok"}


@pytest.mark.parametrize("line", ["grid", "inputs"])
def test_pieces_agree_with_mean_field(line):
    """Five standard errors over networks, and a tenth for width 64."""
    settings = SETTINGS | dict(width=64, points=256, networks=8, line=line, input_dimension=64)
    table = linear_regions.linear_regions_table(settings)
    rows = table[table.quantity == "pieces"]
    deviation = (rows.measured - rows.mean_field).abs()
    assert (deviation < 5 * rows.standard_error + 0.1 * rows.mean_field).all()
    assert (rows.log10_montufar >= np.log10(rows.measured - 1e-9)).all()


def test_expected_sign_changes():
    """Along [-2, 2] a neuron without normalisation changes sign .7 times in every layer ((2/pi)
    arctan 2 in the first); centred and batch-normalised networks multiply by sqrt(pi/(pi - 1)) and
    more."""
    x = np.linspace(-2, 2, 256)
    none = list(mean_field.sign_changes(x, 6))
    np.testing.assert_allclose(none, 2 / np.pi * np.arctan(2), rtol=1e-3)
    centred = list(mean_field.sign_changes(x, 20, "centred"))
    assert centred[0] == pytest.approx(1, rel=0.02)
    growth = (centred[19] / centred[9]) ** 0.1
    assert growth == pytest.approx((np.pi / (np.pi - 1)) ** 0.5, rel=0.05)
    batch = list(mean_field.sign_changes(x, 12, "batch"))
    residual = list(mean_field.sign_changes(x, 12, "batch", 1.0, 1.0))
    assert batch[11] > 2 * centred[11] > 4 * residual[11]


def test_settings_out_of_range():
    with pytest.raises(UserError, match="pieces is 0"):
        linear_regions.linear_regions_table(SETTINGS | {"pieces": 0})
