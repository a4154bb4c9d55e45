"""Gradients of random networks against automatic differentiation, the theorems and mean field."""

import numpy as np
import pandas as pd
import pytest
import torch

from resnet_mechanisms import gradients, mean_field
from resnet_mechanisms.errors import UserError
from resnet_mechanisms.gradients import autocorrelation, hidden_moments, highway, plain, resnet

SETTINGS = {"width": 256, "batch": 64, "input_dimension": 128, "networks": 12, "seed": 0}
TOY = {"width": 200, "points": 256, "runs": 24, "seed": 0}


@pytest.fixture(scope="module")
def relu():
    """Moments of ReLU networks: {variant: {depth: Moments}}."""
    depths = [1, 2, 4, 8]
    variants = [plain(norm, depths) for norm in mean_field.NORMALISATIONS]
    variants += [resnet("none", [8], 1.0), resnet("batch", [4, 8, 32], 1.0)]
    variants += [resnet("batch", [8, 32], 0.1)]
    found = {}
    for (variant, depth), moments in hidden_moments(variants, SETTINGS).items():
        name = (variant.network, variant.normalisation, variant.beta)
        found.setdefault(name, {})[depth] = moments
    return found


def correlation(moments):
    return gradients.ratio_of_means(moments.covariance, moments.variance)


@pytest.mark.parametrize(
    "variant", [plain("none", [3]), plain("batch", [3]), resnet("batch", [3], 0.5), highway(3)]
)
def test_forward_derivative_is_that_of_autograd(variant):
    """The function written out, with batch statistics as constants, differentiated by torch in
    float64.
    """
    inputs, width = 5, 12
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1, inputs, width, generator=generator)
    direction = torch.randn(1, 1, width, generator=generator).expand(1, inputs, width)
    state = torch.stack([x, direction], 1)
    generators = [torch.Generator().manual_seed(2)]
    ((_, _, found, _),) = gradients.propagate(state, [variant], gradients._relu_gate, generators)

    generator = torch.Generator().manual_seed(2)
    weights = [
        (torch.randn(width, width, generator=generator) * (2 / width) ** 0.5).double()
        for _ in range(3)
    ]

    def function(x):
        for step, weight in enumerate(weights):
            z = x
            if variant.normalisation == "batch":
                still = z.detach()
                z = (z - still.mean(0)) / still.std(0, correction=0)
            active = z.relu()
            if not variant.skip and step == 2:
                return 2**0.5 * active
            x = variant.skip * x + variant.branch * active @ weight
        return x

    _, expected = torch.autograd.functional.jvp(function, x[0].double(), direction[0].double())
    torch.testing.assert_close(found[0].double(), expected, rtol=1e-4, atol=1e-5)


def test_pairs_are_summed_without_forming_them():
    values = torch.randn(3, 6, 10, generator=torch.Generator().manual_seed(0))
    own, pairs = gradients._own_and_pairs(values)
    products = torch.einsum("kin,kjn->kij", values.double(), values.double()) / 10
    diagonal = products.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(own, diagonal.mean(1))
    torch.testing.assert_close(pairs, (products.sum((1, 2)) - diagonal.sum(1)) / 30)


def test_jackknife_is_that_of_leaving_one_out():
    top, bottom = np.random.default_rng(0).uniform(1, 2, (2, 7))
    left_out = [np.delete(top, k).sum() / np.delete(bottom, k).sum() for k in range(7)]
    value, error = gradients.ratio_of_means(top, bottom)
    assert value == pytest.approx(top.sum() / bottom.sum())
    assert error == pytest.approx(np.sqrt(6) * np.std(left_out))
    # With equal denominators it is the standard error of the mean.
    assert gradients.ratio_of_means(top, np.ones(7))[1] == pytest.approx(top.std(ddof=1) / 7**0.5)


def test_a_network_does_not_depend_on_how_many_there_are():
    variant, small = plain("batch", [2]), SETTINGS | {"width": 16, "batch": 4}
    for gates in ("relu", "bernoulli"):
        few = hidden_moments([variant], small | {"networks": 3}, gates=gates)[variant, 2]
        many = hidden_moments([variant], small | {"networks": 6}, gates=gates)[variant, 2]
        # Rounding may differ with the size of the matrix product.
        assert many.variance[:3] == pytest.approx(few.variance, rel=1e-5)
        assert many.coactivation[:3] == pytest.approx(few.coactivation)


def test_coin_flip_gates_reproduce_the_theorems():
    """Within three standard errors, for each theorem, variance and correlation, at three depths."""
    depths = [1, 4, 8]
    variants = [plain("none", depths), resnet("none", depths, 1.0), resnet("none", depths, 0.3)]
    variants += [resnet("batch", depths, 1.0), resnet("batch", depths, 0.3), highway(4), highway(8)]
    settings = SETTINGS | {"networks": 32, "width": 128, "seed": 3}
    for (variant, depth), moments in hidden_moments(variants, settings, gates="bernoulli").items():
        variance, covariance = mean_field.theorem(
            variant.network, variant.normalisation, depth, variant.beta or 1.0
        )
        ones = np.ones_like(moments.variance)
        value, error = gradients.ratio_of_means(moments.variance, ones)
        assert abs(value - variance) < 3 * error, (variant, depth, value, error)
        value, error = correlation(moments)
        assert abs(value - covariance / variance) < 3 * error, (variant, depth, value, error)
        # About (share of open gates)^2, share 1/2 +- 1/16 for 64 coins: the standard error is 0.001
        # (32 x 128 neurons).
        assert moments.coactivation.mean() == pytest.approx(0.25, abs=0.004)


def test_coactivation_is_a_quarter_with_normalisation_and_rises_without(relu):
    # kappa0(c_l)/2 for c_1 = 0; tolerances as for 12 networks of width 256, whose c_l spreads by
    # 1/16 a pair.
    for depth, expected in {1: 0.25, 2: 0.302, 4: 0.353, 8: 0.400}.items():
        bare = relu["plain", "none", None][depth].coactivation.mean()
        assert bare == pytest.approx(expected, abs=0.02)
        for norm in ("centred", "batch"):
            value = relu["plain", norm, None][depth].coactivation.mean()
            assert value == pytest.approx(0.25, abs=0.005)


def test_plain_networks_shatter_as_mean_field_says(relu):
    """Noise: three standard errors; finite width and batch: 8 %."""
    expected = {
        "none": {1: 0.500, 2: 0.302, 4: 0.142, 8: 0.0505},
        "centred": {1: 0.495, 2: 0.246, 4: 0.0605, 8: 0.0037},
        "batch": {1: 0.495, 2: 0.246, 4: 0.0605, 8: 0.0037},
    }
    for norm, values in expected.items():
        for depth, value in values.items():
            found, error = correlation(relu["plain", norm, None][depth])
            assert abs(found - value) < 3 * error + 0.08 * value, (norm, depth)
    assert correlation(relu["plain", "none", None][8])[0] == pytest.approx(0.050, abs=0.01)
    for norm in ("centred", "batch"):
        assert correlation(relu["plain", norm, None][4])[0] == pytest.approx(0.0605, abs=0.006)


def test_residual_networks_follow_mean_field(relu):
    """The variance of 12 networks has a standard error of 3 to 4 %, the correlation of 1 to 4 %."""
    bare = relu["resnet", "none", 1.0][8]
    assert bare.variance.mean() == pytest.approx(256, rel=0.10)
    assert correlation(bare)[0] == pytest.approx(0.187, abs=0.02)
    # Simulated by independent code with 12 networks of the same size.
    for depth, value in {4: 0.430, 8: 0.293, 32: 0.112}.items():
        found = correlation(relu["resnet", "batch", 1.0][depth])[0]
        assert found == pytest.approx(value, rel=0.12)
    assert relu["resnet", "batch", 1.0][32].variance.mean() == pytest.approx(99.6, rel=0.12)
    for depth, value in {8: 0.9595, 32: 0.857}.items():
        assert correlation(relu["resnet", "batch", 0.1][depth])[0] == pytest.approx(value, abs=0.01)


def test_toy_networks_follow_the_derivative_kernel():
    """Ratio of means over 24 runs: three standard errors, and for the finite width 0.02 at lags 1
    and 5, 0.04 at lag 15.
    """
    variants = [plain("none", [2, 24]), plain("centred", [4, 10, 24]), plain("batch", [4])]
    variants += [resnet("batch", [10, 24], 1.0)]
    points = gradients.grid(256).double().numpy()
    for (variant, depth), curves in gradients.toy_gradients(variants, TOY).items():
        *_, kernel = mean_field.derivative_kernel(
            points, depth, variant.normalisation, variant.skip, variant.branch
        )
        expected = mean_field.kernel_autocorrelation(kernel, 15)
        tops, bottoms, status = autocorrelation(curves, 15)
        value, error = gradients.ratio_of_means(tops, bottoms)
        assert status == "ok"
        for lag, width in ((1, 0.02), (5, 0.02), (15, 0.04)):
            assert abs(value[lag] - expected[lag]) < 3 * error[lag] + width, (variant, depth, lag)


def test_autocorrelation_of_noise():
    """Mean of ratios and ratio of means of 2000 draws; independent code gave these, to the last
    digit shown.
    """
    tops, bottoms, _ = autocorrelation(gradients.noise("brown", 2000, TOY))
    assert (tops / bottoms).mean(0)[[1, 5, 15]] == pytest.approx([0.972, 0.864, 0.631], abs=0.015)
    pooled = tops.sum(0) / bottoms.sum(0)
    assert pooled[[1, 5, 15]] == pytest.approx([0.981, 0.905, 0.727], abs=0.015)
    tops, bottoms, _ = autocorrelation(gradients.noise("white", 2000, TOY))
    # -(256 - k)/(256 * 255); standard error 1/sqrt(2000 * 256) = 0.0014.
    assert (tops / bottoms).mean(0)[1:] == pytest.approx(-0.004, abs=0.006)


def test_curves_without_shape_have_a_status_and_no_value():
    rng = np.random.default_rng(0)
    good = rng.standard_normal((2, 32))
    assert autocorrelation(good, 3)[2] == "ok"
    for bad, status in ((np.full((2, 32), 0.7), "constant"), (1e-9 * good, "collapsed")):
        rows = list(gradients._autocorrelation_rows({}, bad, np.zeros(16)))
        assert {row["status"] for row in rows} == {status}
        assert np.isnan([row["ratio_of_means"] for row in rows]).all() and rows[0]["runs"] == 0
    mixed = np.concatenate([good, np.full((1, 32), 0.7)])
    tops, _, status = autocorrelation(mixed, 3)
    assert status == "ok" and len(tops) == 2


def test_a_linear_network_has_correlation_one_and_no_autocorrelation():
    """Gates that are always open, as those of a looks-linear network are in effect."""

    def always(variant, step, state):
        return state, torch.ones_like(state[:, 0], dtype=torch.bool)

    generators = [torch.Generator().manual_seed(k) for k in range(3)]
    state = torch.randn(3, 1, 1, 16, generator=generators[0]).expand(3, 1, 32, 16)
    ((_, _, derivative, _),) = gradients.propagate(state, [plain("none", [6])], always, generators)
    own, pairs = gradients._own_and_pairs(derivative)
    moments = gradients.Moments(own.numpy(), pairs.numpy(), np.ones(3))
    assert correlation(moments) == pytest.approx((1, 0), abs=1e-6)
    assert autocorrelation(derivative[..., 0].numpy())[2] == "constant"


def test_a_gradient_of_zero_has_a_variance_and_no_correlation():
    """Of 40 layers of one neuron one is sure to be closed at every input: 3 x 4 x 2^-40 is not."""
    settings = {"width": 1, "batch": 4, "input_dimension": 2, "networks": 3, "seed": 0}
    table = gradients.theorem_table(settings | {"depth": [1, 40], "beta": [1.0]})
    closed = table.query("network == 'plain' and depth == 40")
    assert set(closed["status"]) == {"collapsed"} and len(closed) == 12
    variance = closed["quantity"] == "variance"
    assert (closed.loc[variance, "measured"] == 0).all()
    assert closed.loc[~variance, ["measured", "standard_error"]].isna().all(axis=None)
    assert "collapsed" not in set(table.query("depth == 1")["status"])


def test_covariance_picture():
    curve = np.array([1.0, 2.0, 6.0])
    picture = gradients.covariance_picture(curve)
    assert np.trace(picture) / 3 == pytest.approx(1)  # the diagonal's mean is variance / variance
    assert picture[0, 2] == pytest.approx(2 * 3 / curve.var())
    assert not gradients.covariance_picture(np.ones(4)).any()


@pytest.fixture(scope="module")
def tables():
    settings = {"depth": [2, 24, 300], "beta": [1.0], "networks": 3, "width": 16, "batch": 6}
    covariance = gradients.theorem_table(SETTINGS | settings)
    toy = {"width": 16, "points": 32, "runs": 3, "seed": 0, "depth": [2, 4], "beta": [1.0, 0.1]}
    return covariance, gradients.autocorrelation_table(toy), gradients.figure_curves(toy)


def test_tables_hold_statuses_and_no_infinity(tables):
    covariance, curves, _ = tables
    assert list(covariance) == [
        "network", "normalisation", "gates", "inputs", "input_correlation", "batch", "beta",
        "depth", "width", "networks", "quantity", "measured", "standard_error", "paper",
        "mean_field", "status",
    ]  # fmt: skip
    numbers = covariance[["measured", "standard_error", "paper", "mean_field"]].to_numpy()
    assert not np.isinf(numbers).any() and not np.isinf(curves.select_dtypes("float")).any(
        axis=None
    )
    # 300 layers of 16 neurons lose the gradient of a plain network.
    assert set(covariance["status"]) == {"ok", "not_resolved", "diverged", "collapsed"}
    # 2^300 is beyond float32, where networks are run.
    over = covariance.query("network == 'resnet' and normalisation == 'none' and depth == 300")
    assert set(over["status"]) == {"diverged"} and over["measured"].isna().all()
    resolved = covariance[(covariance["status"] == "ok") & (covariance["quantity"] != "variance")]
    assert (resolved["measured"] >= 3 * resolved["standard_error"]).all()
    assert (
        set(curves["lag"]) == set(range(16))
        and (curves.loc[curves.lag == 0, "mean_field"] == 1).all()
    )


def test_figures_draw_from_the_tables(tables, tmp_path):
    from resnet_mechanisms.figures import sg1_gradients, sg2_autocorrelation, sg_theorems, style

    style.use_style()
    for module, table in ((sg_theorems, tables[0]), (sg2_autocorrelation, tables[1])):
        table.to_csv(tmp_path / "table.csv", index=False)
        style.save(module.draw([tmp_path / "table.csv"]), tmp_path / "a.pdf", tmp_path / "a.png")
    np.savez(tmp_path / "toy.npz", **tables[2])
    assert (
        len(sg1_gradients.draw([tmp_path / "toy.npz"]).axes) == 11
    )  # 2 x 5 panels and the colour bar
    pd.DataFrame({"network": ["plain"]}).to_csv(tmp_path / "bad.csv", index=False)
    with pytest.raises(UserError, match="no column"):
        sg_theorems.draw([tmp_path / "bad.csv"])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"depth": [0, 2]}, "depth is"),
        ({"depth": []}, "depth is"),
        ({"beta": [-1.0]}, "beta is"),
        ({"networks": 1}, "networks is 1; expected at least 2"),
    ],
)
def test_settings_out_of_range_are_named(change, message):
    settings = SETTINGS | {"depth": [2], "beta": [1.0]} | change
    with pytest.raises(UserError, match=message):
        gradients.theorem_table(settings)
