"""Gradients of infinitely wide random ReLU networks, and what the shattered-gradients theorems say.

Balduzzi et al. 2017 ("The Shattered Gradients Problem", theorems 1-3 and corollary 1) count paths
under the assumption that two inputs share a gate with probability 1/4 in every layer; `theorem`
returns their formulas. Mean field keeps track of the true probability instead: from layer to layer
it follows the covariance of the pre-activations, with the arc-cosine kernels of Cho & Saul 2009,
and multiplies the gradient's covariance by what each gate lets through.

Conventions. One step is a plain layer or a module, `x <- skip x + branch W relu(N(x))`, with W ~
N(0, 2/width) and N nothing ("none"), subtraction of the batch mean ("centred") or batch
normalisation ("batch"). A plain layer is skip = 0, branch = 1; a residual module skip = 1, branch =
beta. Depth counts the gates crossed by the gradient; in theorem 3 the paper's L - 1 is the number
of modules crossed. Derivatives are taken with frozen batch statistics. Arrays are float64; A[...,
i, j] is a covariance between inputs i and j of one batch.
"""

from collections.abc import Iterator

import numpy as np

NORMALISATIONS = ("none", "centred", "batch")

# Nodes of the integral over 1/s^2 (see `_tilted`), evenly spaced in log t. The integrand is
# analytic in a strip of half-width pi/2 around the real axis, so the trapezoid rule errs by
# exp(-pi^2/0.75) = 2e-6; it falls off slowest, like t^-1/2, for inputs on a line, which is what the
# upper end is for.
_LOG_STEP = 0.75
_LOG_NODES = np.arange(-5.0, 17.0, _LOG_STEP)


def kappa0(c):
    """Twice the chance that two unit Gaussians of correlation c (any shape) are both positive."""
    return 1 - np.arccos(np.clip(c, -1, 1)) / np.pi


def kappa1(c):
    """2 E[relu(u) relu(v)], u and v as for kappa0, which is its derivative."""
    c = np.clip(c, -1, 1)
    return (np.sqrt(1 - c * c) + c * (np.pi - np.arccos(c))) / np.pi


def theorem(network: str, normalisation: str, depth: int, beta: float = 1.0):
    """The paper's (variance, covariance) of the gradient; covariance / variance is the correlation.

    plain: theorem 1. resnet without normalisation: theorem 2, for any beta. resnet with "batch":
    theorem 3, the exact product behind `beta sqrt(L)`. highway: corollary 1 with gamma_2^2 =
    1/depth. Raises ValueError for other networks.
    """
    _check(depth, normalisation)
    share = beta * beta
    if network == "plain":
        return 1.0, 0.5**depth
    if network == "highway":
        return 1.0, (1 - 0.5 / depth) ** depth
    if network == "resnet" and normalisation == "none":
        return (1 + share) ** depth, (1 + share / 2) ** depth
    if network == "resnet" and normalisation == "batch":
        # Module l's branch is divided by the variance of its input, v_l = 1 + beta^2 (l - 1).
        gain = share / (1 + share * np.arange(depth))
        return float(np.prod(1 + gain)), float(np.prod(1 + gain / 2))
    raise ValueError(f"no theorem for network {network!r} with normalisation {normalisation!r}")


def theorem_by_length(normalisation: str, depth: int, beta: float = 1.0):
    """`theorem` for a residual network by path length: (variance, covariance), each (depth + 1,).

    Without normalisation C(L, k) beta^2k and C(L, k) (beta^2/2)^k: of the C(L, k) choices of k
    branches each passes on beta^2k, and two inputs share the gates of k branches with probability
    2^-k. With "batch" a branch counts beta^2 / v_l. Raises ValueError as `theorem`.
    """
    _check(depth, normalisation)
    if normalisation == "centred":
        raise ValueError("no theorem for network 'resnet' with normalisation 'centred'")
    share = beta * beta
    gain = np.full(depth, share)
    if normalisation == "batch":
        gain = share / (1 + share * np.arange(depth))
    return elementary_symmetric(gain), elementary_symmetric(gain / 2)


def hidden_covariance(
    covariance, depth: int, normalisation="none", skip=0.0, branch=1.0, exact_batch_std=True
) -> Iterator[np.ndarray]:
    """Covariance between inputs of the gradient by a neuron, after 1, 2, ..., depth steps.

    covariance: (..., M, M), of the pre-activations before the first step, for one batch of M inputs
    (or several). Yields arrays of that shape, 1 where no gate was crossed. With "batch",
    `exact_batch_std` averages over the spread of the neurons' batch variances (relative size about
    2/M for spread-out inputs); otherwise they are all equal to their mean. Raises ValueError for an
    unknown normalisation or depth < 1.
    """
    steps = _steps(covariance, depth, normalisation, skip, branch, exact_batch_std)
    gradient = 1.0
    for _, backward in steps:
        gradient = gradient * (skip**2 + branch**2 * backward)
        yield gradient


def gate_correlation(
    covariance, depth: int, normalisation="none", skip=0.0, branch=1.0, exact_batch_std=True
) -> Iterator[np.ndarray]:
    """Correlation c between inputs of what the gates of step 1, 2, ..., depth see.

    Arguments and errors as of `hidden_covariance`. A gate is open at both of two inputs with
    probability kappa0(c)/2 and differs between them with probability arccos(c)/pi: a batch
    deviation, being positive, does not change signs.
    """
    for a, _ in _steps(covariance, depth, normalisation, skip, branch, exact_batch_std):
        a = a if normalisation == "none" else _centre(a)
        deviation = np.sqrt(_variances(a))
        yield a / (deviation[..., :, None] * deviation[..., None, :])


def path_length_covariance(
    covariance, depth: int, normalisation="none", branch=1.0, exact_batch_std=True
) -> np.ndarray:
    """`hidden_covariance` of a residual network (skip 1) by path length: (depth + 1, ..., M, M).

    Entry k is the covariance of what passes through exactly k of the `depth` branches; paths of
    different lengths are uncorrelated, so the entries add up to `hidden_covariance`. It is the
    coefficient of t^k in prod_l (1 + t branch^2 G_l), G_l what the gates of step l let through.
    """
    steps = _steps(covariance, depth, normalisation, 1.0, branch, exact_batch_std)
    return elementary_symmetric([branch**2 * backward for _, backward in steps])


def elementary_symmetric(factors) -> np.ndarray:
    """Coefficients of t^0, ..., t^L in prod_l (1 + t factor_l) for L numbers or arrays:
    (L + 1, *shape of a factor), float64."""
    factors = np.asarray(factors, dtype=np.float64)
    found = np.zeros((len(factors) + 1, *factors.shape[1:]))
    found[0] = 1
    for factor in factors:
        found[1:] += factor * found[:-1]
    return found


def derivative_kernel(
    points, depth: int, normalisation="none", skip=0.0, branch=1.0, bias_variance=1.0
) -> Iterator[np.ndarray]:
    """Covariance of df/dx between points of a line, after 1, 2, ..., depth steps.

    points: (M,). The first layer is z = v x + b, v ~ N(0, 1), b ~ N(0, bias_variance). Its weights
    are not independent of the gates, so the product of `hidden_covariance` does not apply; followed
    instead are A = E[z z'], B = E[dz/dx z'] and D = E[dz/dx dz'/dx]. Batch normalisation, with
    points on a line, is treated with each neuron's own batch variance. Yields (M, M). Raises
    ValueError for an unknown normalisation or depth < 1.
    """
    for _, stepped in _line_steps(points, depth, normalisation, skip, branch, bias_variance):
        yield stepped[2]


def sign_changes(
    points, depth: int, normalisation="none", skip=0.0, branch=1.0, bias_variance=1.0
) -> Iterator[float]:
    """Expected sign changes between points[0] and points[-1] of what a neuron's gate of step 1, 2,
    ..., depth sees: the kinks that one neuron adds to the function of a scalar input.

    Arguments and errors as of `derivative_kernel`; `points` are both the batch and the nodes of the
    integral, over x, of Rice's rate (1/pi) sqrt(D/A - (B/A)^2) with A = E[z^2], B = E[z dz/dx], D =
    E[(dz/dx)^2]. Batch deviations do not change signs. Between two points signs change at least as
    often as they differ, with probability arccos(c)/pi, which counts where the rate is a delta
    function: the first layer less its mean, v (x - mean), changes sign at the mean whatever v.
    """
    x = np.asarray(points, dtype=np.float64)
    for (a, b, d), _ in _line_steps(points, depth, normalisation, skip, branch, bias_variance):
        if normalisation != "none":
            a, b = _centre(a), _centre_columns(b)
        q = _variances(a)
        rate = np.sqrt(np.maximum(np.diagonal(d) / q - (np.diagonal(b) / q) ** 2, 0)) / np.pi
        neighbours = np.diagonal(a, 1) / np.sqrt(q[1:] * q[:-1])
        differ = np.arccos(np.clip(neighbours, -1, 1)) / np.pi
        yield float(np.maximum((rate[1:] + rate[:-1]) / 2 * np.diff(x), differ).sum())


def _line_steps(points, depth, normalisation, skip, branch, bias_variance):
    """((A, B, D) before, the same after) each step of the network of `derivative_kernel`."""
    _check(depth, normalisation)
    x = np.asarray(points, dtype=np.float64)
    a = np.outer(x, x) + bias_variance
    b = np.tile(x, (len(x), 1))
    d = np.ones_like(a)
    for _ in range(depth):
        if normalisation == "batch":
            stepped = _batch_norm_derivative_gate(_centre(a), _centre_columns(b), d)
        elif normalisation == "centred":
            stepped = _derivative_gate(_centre(a), _centre_columns(b), d)
        else:
            stepped = _derivative_gate(a, b, d)
        before = a, b, d
        a, b, d = (
            skip**2 * old + branch**2 * 2 * new for old, new in zip((a, b, d), stepped, strict=True)
        )
        yield before, (a, b, d)


def kernel_autocorrelation(kernel, lags: int) -> np.ndarray:
    """Autocorrelation at lags 0..lags of a Gaussian curve with covariance `kernel` (M, M), its mean
    over M removed.

    The ratio of expectations, trace_k(G K G) / trace(G K G) with G the centring matrix: what `ratio
    of means` estimates.
    """
    centred = _centre(np.asarray(kernel))
    return np.array([np.trace(centred, offset=k) for k in range(lags + 1)]) / np.trace(centred)


def _check(depth, normalisation):
    if depth < 1:
        raise ValueError(f"depth must be at least 1, not {depth}")
    if normalisation not in NORMALISATIONS:
        raise ValueError(f"normalisation {normalisation!r}: expected one of {NORMALISATIONS}")


def _steps(covariance, depth, normalisation, skip, branch, exact_batch_std):
    """(pre-activations' covariance before, 2 E[gate gate' / s^2] in) each step."""
    _check(depth, normalisation)
    a = np.asarray(covariance, dtype=np.float64)
    for _ in range(depth):
        forward, backward = _gate(a, normalisation, exact_batch_std)
        yield a, backward
        a = skip**2 * a + branch**2 * forward


def _centre(a):
    a = a - a.mean(-1, keepdims=True)
    return a - a.mean(-2, keepdims=True)


def _centre_columns(b):
    return b - b.mean(-1, keepdims=True)


def _variances(a):
    # The floor keeps a point exactly on a gate's edge (variance 0) from dividing by zero.
    return np.maximum(np.diagonal(a, axis1=-2, axis2=-1), 1e-30)


def _gate(a, normalisation, exact_batch_std):
    """(2 E[relu relu'], 2 E[gate gate' / s^2]) after normalisation; s is the neuron's batch
    deviation ("batch") or 1.
    """
    if normalisation == "none":
        return _relu_moments(a)
    a = _centre(a)
    if normalisation == "centred":
        return _relu_moments(a)
    if not exact_batch_std:
        forward, backward = _relu_moments(a)
        variance = _variances(a).mean(-1)[..., None, None]
        return forward / variance, backward / variance
    forward, backward = np.zeros_like(a), np.zeros_like(a)
    for weight, vectors, values, shrink, _ in _tilted(a):
        half = vectors * (values * shrink)[..., None, :]
        tilted = _relu_moments(half @ np.swapaxes(vectors, -1, -2))
        forward += weight[..., None, None] * tilted[0]
        backward += weight[..., None, None] * tilted[1]
    return forward, backward


def _relu_moments(a):
    deviation = np.sqrt(_variances(a))
    scale = deviation[..., :, None] * deviation[..., None, :]
    c = a / scale
    return scale * kappa1(c), kappa0(c)


def _tilted(a):
    """Nodes of E[f(z)/s^2] = int_0^inf E[f(z) exp(-t s^2)] dt, z ~ N(0, a) over the M inputs, s^2 =
    |z|^2/M.

    exp(-t s^2) turns N(0, a) into N(0, a T) times det(T)^(1/2), T = (I + 2 t a/M)^-1. Yields
    (weight (...), eigenvectors (..., M, r) of a and T, eigenvalues of a (..., r), eigenvalues of T
    (..., r), 2t/M (..., 1)), where the weight holds dt.
    """
    inputs = a.shape[-1]
    values, vectors = np.linalg.eigh(a)
    # Eigenvalues below 1e-9 of the largest carry no variance that matters, and inputs on a line
    # have few above it.
    kept = (values > 1e-9 * values[..., -1:]).any(axis=tuple(range(values.ndim - 1)))
    values, vectors = np.maximum(values[..., kept], 0), vectors[..., kept]
    unit = inputs / values.sum(-1)
    nodes = np.exp(_LOG_NODES) * unit[..., None]
    log_determinant = np.log1p(2 / inputs * nodes[..., None, :] * values[..., :, None]).sum(-2)
    weights = _LOG_STEP * nodes * np.exp(-log_determinant / 2)
    weights[..., 0] /= 1 - np.exp(
        -_LOG_STEP
    )  # all nodes below the first, where the weight is proportional to t
    for i in range(len(_LOG_NODES)):
        if (weights[..., i] < 1e-8 * weights.max(-1)).all():
            continue
        factor = 2 / inputs * nodes[..., i, None]
        shrink = 1 / (1 + factor * values)
        yield weights[..., i], vectors, values, shrink, factor


def _derivative_gate(a, b, d):
    """E of (relu relu', gate dz/dx relu', gate dz/dx gate' dz'/dx) from a = E[z z'], b = E[dz/dx
    z'], d = E[dz/dx dz'/dx].
    """
    q = _variances(a)
    own = np.diagonal(b)
    scale = np.sqrt(np.outer(q, q))
    c = np.clip(a / scale, -1, 1)
    both = kappa0(c) / 2
    sine = np.sqrt(1 - c * c)
    root = scale * sine
    product = b * b.T - np.outer(own / q, np.ones_like(q)) * a * b.T
    product -= np.outer(np.ones_like(q), own / q) * a * b
    product += np.outer(own, own)
    # At coinciding points (sine 0 up to rounding) the boundary term vanishes.
    boundary = np.divide(product, root, out=np.zeros_like(a), where=sine > 1e-6) / (2 * np.pi)
    return (
        scale * kappa1(c) / 2,
        root * (own / q)[:, None] / (2 * np.pi) + both * b,
        both * d + boundary,
    )


def _batch_norm_derivative_gate(a, b, d):
    total = [np.zeros_like(a) for _ in range(3)]
    for weight, vectors, values, shrink, factor in _tilted(a):
        rotated = b @ vectors
        shrunk = rotated * shrink
        tilted = _derivative_gate(
            (vectors * (values * shrink)) @ vectors.T,
            shrunk @ vectors.T,
            d - factor * (shrunk @ rotated.T),
        )
        for sum_, part in zip(total, tilted, strict=True):
            sum_ += weight * part
    return total
