"""Mean field and the theorems' formulas against closed forms and an independent kernel."""

import numpy as np
import pytest
from scipy.special import gammaln

from resnet_mechanisms.mean_field import (
    derivative_kernel,
    hidden_covariance,
    kappa0,
    kappa1,
    kernel_autocorrelation,
    theorem,
)

GRID = np.linspace(-2, 2, 256)


def correlations(kernels, depths):
    """Correlation of the first two inputs at `depths`."""
    found = [kernel[0, 1] / kernel[0, 0] for kernel in kernels]
    return [found[depth - 1] for depth in depths]


def pooled(kernel):
    """(mean variance, mean covariance over pairs / mean variance) of kernels (batches, M, M)."""
    inputs = kernel.shape[-1]
    variance = np.trace(kernel, axis1=-2, axis2=-1).mean() / inputs
    pairs = kernel.sum((-2, -1)).mean() - inputs * variance
    return variance, pairs / (inputs * (inputs - 1) * variance)


@pytest.fixture(scope="module")
def batches():
    """Covariances of 8 batches of 64 Gaussian inputs in 128 dimensions."""
    inputs = np.random.default_rng(0).standard_normal((8, 64, 128))
    return inputs @ inputs.swapaxes(1, 2) / 128


def test_kappas_are_the_orthant_probability_and_its_integral():
    c = np.linspace(-0.99, 0.99, 41)
    assert kappa0(c) / 2 == pytest.approx(0.25 + np.arcsin(c) / (2 * np.pi))
    step = 1e-5
    slope = (kappa1(c + step) - kappa1(c - step)) / (2 * step)
    assert slope == pytest.approx(kappa0(c), abs=1e-8)
    assert (kappa0(1.0), kappa1(1.0), kappa0(-1.0), kappa1(-1.0)) == pytest.approx((1, 1, 0, 0))


# Values of the recursions computed once by independent code, printed to three figures or more.
@pytest.mark.parametrize(
    "network, expected",
    [
        ({}, {1: 0.5, 2: 0.3016, 4: 0.1416, 8: 0.0500, 16: 0.0133, 32: 0.00278, 100: 1.4e-4}),
        ({"skip": 1}, {8: 0.187, 10: 0.140, 24: 0.0328, 50: 0.0068, 100: 0.0012}),
        ({"skip": 1, "branch": 0.3}, {10: 0.676, 24: 0.424, 50: 0.212, 100: 0.079}),
        ({"skip": 1, "branch": 0.1}, {10: 0.952, 24: 0.890, 50: 0.789, 100: 0.635}),
    ],
)
def test_without_normalisation_orthogonal_inputs(network, expected):
    kernels = list(hidden_covariance(np.eye(2), 100, **network))
    assert correlations(kernels, expected) == pytest.approx(list(expected.values()), abs=6e-4)
    growth = network.get("skip", 0) + network.get("branch", 1) ** 2
    assert kernels[49][0, 0] == pytest.approx(growth**50)


def test_plain_correlation_falls_as_the_cube_of_depth():
    """Not as 2^-L: the asymptotic law L^3 R -> about 195."""
    kernels = list(hidden_covariance(np.eye(2), 3000))
    assert 3000**3 * correlations(kernels, [3000])[0] == pytest.approx(193.6, rel=0.005)


@pytest.mark.parametrize(
    "normalisation, network, variance, correlation",
    [
        ("none", {}, {8: 1}, {1: 0.500, 2: 0.302, 4: 0.142, 8: 0.050}),
        ("centred", {}, {8: 1}, {1: 0.495, 2: 0.246, 4: 0.0605, 8: 0.0037}),
        ("batch", {}, {2: 1.51, 4: 3.3, 8: 15, 16: 334}, {1: 0.495, 4: 0.0605, 8: 0.0037}),
        ("batch", {"skip": 1}, {32: 85}, {1: 0.745, 4: 0.448, 8: 0.307, 16: 0.199, 32: 0.124}),
        ("batch", {"skip": 1, "branch": 0.1}, {}, {8: 0.9608, 32: 0.862}),
    ],
)
def test_random_batches_with_equal_batch_deviations(
    batches, normalisation, network, variance, correlation
):
    """Independent code on another draw of the inputs: the mean over pairs varies by 0.001 or so
    between draws.
    """
    kernels = list(hidden_covariance(batches, 32, normalisation, exact_batch_std=False, **network))
    for depth, expected in variance.items():
        assert pooled(kernels[depth - 1])[0] == pytest.approx(expected, rel=0.02)
    for depth, expected in correlation.items():
        assert pooled(kernels[depth - 1])[1] == pytest.approx(expected, abs=0.002)


def test_exact_batch_deviation_of_white_inputs():
    """White inputs: M s^2 is chi-squared, M - 1 degrees of freedom, so E[1/s^2] = M/(M - 3)."""
    inputs = 12
    (kernel,) = hidden_covariance(np.eye(inputs), 1, "batch")
    mean_inverse = inputs / (inputs - 3)
    # The quadrature's error: see _LOG_NODES.
    assert np.diag(kernel) == pytest.approx(mean_inverse, rel=2e-4)
    expected = kappa0(-1 / (inputs - 1)) * mean_inverse
    assert kernel[0, 1] == pytest.approx(expected, rel=2e-4)


def test_exact_batch_deviation_tends_to_the_mean_one(batches):
    """The batch variance spreads by about 2/M; correlations feel it only in second order."""
    exact = list(hidden_covariance(batches, 4, "batch"))
    mean = list(hidden_covariance(batches, 4, "batch", exact_batch_std=False))
    assert pooled(exact[0])[0] == pytest.approx(pooled(mean[0])[0] * (1 + 3 / 64), rel=0.02)
    assert pooled(exact[3])[1] == pytest.approx(pooled(mean[3])[1], rel=0.01)


@pytest.mark.parametrize(
    "normalisation, network, expected, tolerance",
    [
        ("none", {}, {2: (0.983, 0.916, 0.757), 10: (0.956, 0.806, 0.554)}, 0.001),
        ("none", {}, {24: (0.911, 0.670, 0.424)}, 0.001),
        ("centred", {}, {2: (0.981, 0.905, 0.717), 4: (0.955, 0.789, 0.460)}, 0.001),
        ("centred", {}, {10: (0.759, 0.235, -0.028), 24: (-0.034, 0.003, -0.001)}, 0.001),
        ("batch", {}, {10: (0.486, -0.074, -0.035)}, 0.001),
        ("batch", {"skip": 1}, {10: (0.895, 0.574, 0.177), 24: (0.807, 0.337, 0.004)}, 0.002),
        # The other code's integral ended too early for the heavy tail of 1/s^2 that a small branch
        # feels most; ours has converged (the next test).
        ("batch", {"skip": 1, "branch": 0.1}, {10: (0.970, 0.865, 0.663)}, 0.005),
    ],
)
def test_autocorrelation_on_a_line(normalisation, network, expected, tolerance):
    """Lags 1, 5 and 15, by independent code of the same recursion."""
    kernels = list(derivative_kernel(GRID, max(expected), normalisation, **network))
    for depth, values in expected.items():
        found = kernel_autocorrelation(kernels[depth - 1], 15)[[1, 5, 15]]
        assert found == pytest.approx(values, abs=tolerance)


def test_integral_over_the_batch_deviation_has_converged(monkeypatch):
    from resnet_mechanisms import mean_field

    points = np.linspace(-2, 2, 64)
    network = {"normalisation": "batch", "skip": 1, "branch": 0.1}
    *_, usual = derivative_kernel(points, 6, **network)
    monkeypatch.setattr(mean_field, "_LOG_STEP", 0.3)
    monkeypatch.setattr(mean_field, "_LOG_NODES", np.arange(-12, 30, 0.3))
    *_, fine = derivative_kernel(points, 6, **network)
    difference = kernel_autocorrelation(usual, 10) - kernel_autocorrelation(fine, 10)
    assert np.abs(difference).max() < 3e-4


def test_derivative_kernel_is_the_kernel_differentiated_twice():
    """d^2 K(x, x')/dx dx' of the kernel of the function itself, by central differences."""

    def function_kernel(x, y, depth):
        own_x, own_y, cross = x * x + 1, y * y + 1, x * y + 1
        for _ in range(depth):  # diagonals are preserved without normalisation
            cross = np.sqrt(own_x * own_y) * kappa1(cross / np.sqrt(own_x * own_y))
        return cross

    x, y = np.meshgrid([-1.5, -0.4, 0.3, 1.1], [-1.0, 0.1, 0.7, 1.8], indexing="ij")
    h = 1e-3
    numeric = sum(
        sign_x * sign_y * function_kernel(x + sign_x * h, y + sign_y * h, 3)
        for sign_x in (1, -1)
        for sign_y in (1, -1)
    ) / (4 * h * h)
    points = np.concatenate([x[:, 0], y[0]])
    *_, kernel = derivative_kernel(points, 3)
    assert kernel[:4, 4:] == pytest.approx(numeric, abs=1e-4)


def test_brown_and_white_noise():
    brown = kernel_autocorrelation(np.minimum.outer(np.arange(256), np.arange(256)), 15)
    assert brown[[1, 5, 15]] == pytest.approx([0.981, 0.905, 0.727], abs=0.001)
    white = kernel_autocorrelation(np.eye(256), 15)
    assert white[1:] == pytest.approx(-(256 - np.arange(1, 16)) / (256 * 255))


@pytest.mark.parametrize("beta", [1.0, 0.3, 0.1])
@pytest.mark.parametrize("modules", [1, 3, 9, 49])
def test_theorem_3_telescopes_and_has_a_closed_form(beta, modules):
    variance, covariance = theorem("resnet", "batch", modules, beta)
    assert variance == pytest.approx(1 + beta**2 * modules)
    depth, b = modules + 1, beta**-2
    closed = gammaln(depth - 0.5 + b) + gammaln(b) - gammaln(depth - 1 + b) - gammaln(0.5 + b)
    assert covariance == pytest.approx(np.exp(closed))
    # (1 + beta^2 modules)^(-1/2) is low by less than 13 %.
    assert 1 <= covariance / variance * np.sqrt(1 + beta**2 * modules) < 1.13


def test_theorems_1_and_2_and_the_highway_limit():
    assert theorem("plain", "batch", 5) == (1, 2**-5)
    assert theorem("resnet", "none", 5) == pytest.approx((2**5, 1.5**5))
    assert theorem("resnet", "none", 2, 0.5) == pytest.approx((1.25**2, 1.125**2))
    assert [theorem("highway", "none", d)[1] for d in (2, 10, 50)] == pytest.approx(
        [0.5625, 0.5987, 0.6050], abs=1e-4
    )
    assert theorem("highway", "none", 10**6)[1] == pytest.approx(np.exp(-0.5), rel=1e-5)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="normalisation 'layer'"):
        next(hidden_covariance(np.eye(2), 1, "layer"))
    with pytest.raises(ValueError, match="depth must be at least 1, not 0"):
        next(derivative_kernel(GRID, 0))
    with pytest.raises(ValueError, match="no theorem"):
        theorem("resnet", "centred", 3)
