"""Gradients of random networks at initialisation: how alike they are at two inputs, against depth.

Balduzzi et al. 2017, "The Shattered Gradients Problem": the covariance and correlation of section
2.1 (definition 1, theorems 1-3, corollary 1), and the toy networks of a scalar input of figures 1
and 2. Conventions as in `mean_field`: one step is `x <- skip x + branch W relu(N(x))`, W ~ N(0,
2/width), and depth counts steps (gates crossed).

Derivatives are carried forward, together with the activations, along a random direction of the
first layer's neurons. Over independent weights neurons are exchangeable and uncorrelated, so this
has the covariance of the derivative of an output with respect to one neuron, and a single pass
serves every depth. Batch statistics are frozen: a batch normalisation divides the derivative by its
deviation s and does not subtract the batch mean of the derivative, as for a network in evaluation
mode, or df_i/dx_i up to 1/batch. All kinds of network share their weights and inputs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from . import mean_field
from .errors import UserError

LAGS = 15
NOISE_RUNS = 2000  # brown and white noise are cheap, so their error is made negligible
# A gradient whose root mean square, or deviation, is below this has no shape; nor has one that
# varies by no more than float32 rounding.
COLLAPSED = 1e-8
_MEAN_FIELD_BATCHES = 8  # the average over pairs varies by less than 1 % between batches of 64
_CHUNK = 4  # networks at a time: what keeps one step in the cache


@dataclass(frozen=True)
class Variant:
    """A kind of network, `x <- skip x + branch W relu(N(x))`, and the depths of interest."""

    network: str
    normalisation: str
    depths: tuple[int, ...]
    skip: float = 0.0
    branch: float = 1.0
    beta: float | None = None


def plain(normalisation: str, depths) -> Variant:
    """A network without skips; the paper's theorem 1."""
    return Variant("plain", normalisation, tuple(depths))


def resnet(normalisation: str, depths, beta: float) -> Variant:
    """Modules `x + beta W relu(N(x))`; theorem 2 ("none") and theorem 3 ("batch")."""
    return Variant("resnet", normalisation, tuple(depths), 1.0, beta, beta)


def highway(depth: int) -> Variant:
    """Corollary 1's network: gamma_1^2 = 1 - 1/depth, gamma_2^2 = 1/depth."""
    return Variant("highway", "none", (depth,), (1 - 1 / depth) ** 0.5, depth**-0.5)


@dataclass
class Moments:
    """Per network (K,): the gradient's mean square, its mean product over pairs of inputs i != j,
    and the share of neurons active at both inputs of such a pair."""

    variance: np.ndarray
    covariance: np.ndarray
    coactivation: np.ndarray


def _relu_gate(variant: Variant, step: int, state):
    """Normalise (x, derivatives) of shape (K, S, M, N) over the M inputs; the gates x > 0."""
    if variant.normalisation != "none":
        x = state[:, 0] - state[:, 0].mean(1, keepdim=True)
        state = torch.cat([x[:, None], state[:, 1:]], 1)
    if variant.normalisation == "batch":
        deviation = x.square().mean(1, keepdim=True).sqrt().clamp_min(1e-20)
        state = state / deviation[:, None]
    return state, state[:, 0] > 0


def _coin_gate(generators: list[torch.Generator]) -> Callable:
    """Fair coins for gates, so two inputs share one with chance 1/4: what the theorems assume."""
    drawn = {}

    def gate(variant: Variant, step: int, state):
        if step not in drawn:  # all variants share a step's coins
            drawn.clear()
            shape = state.shape[2:]
            drawn[step] = torch.stack([torch.rand(shape, generator=g) < 0.5 for g in generators])
        if variant.normalisation == "batch":
            state = state / (1 + variant.branch**2 * (step - 1)) ** 0.5
        return state, drawn[step].to(state.device)

    return gate


def propagate(
    state, variants: list[Variant], gate: Callable, generators, read=-1
) -> Iterator[tuple]:
    """Carry `state` (K networks, S, M inputs, N neurons) through every variant, weights shared.

    S is (activation, derivatives), or derivatives alone. After each step in a variant's depths,
    yields (variant, step, state[:, read] as read by a last layer, by default the last derivative
    (K, M, N), gates (K, M, N)). The weights of network k come from generators[k].
    """
    width = state.shape[-1]
    states = dict.fromkeys(variants, state)
    for step in range(1, max(max(v.depths) for v in variants) + 1):
        active = [v for v in variants if max(v.depths) >= step]
        gated = state.new_empty(len(state), len(active), *state.shape[1:])
        gates = {}
        for i, variant in enumerate(active):
            normalised, gates[variant] = gate(variant, step, states[variant])
            torch.mul(normalised, gates[variant][:, None], out=gated[:, i])
        weights = torch.stack([torch.randn(width, width, generator=g) for g in generators])
        weights = weights.to(state.device) * (2 / width) ** 0.5
        stepped = torch.bmm(gated.flatten(1, 3), weights).view_as(gated)
        for i, variant in enumerate(active):
            new = variant.branch * stepped[:, i]
            states[variant] = new.add_(states[variant], alpha=variant.skip) if variant.skip else new
            if step in variant.depths:
                # A plain network ends with its gates: the last matrix is averaged over, which gives
                # the factor 2.
                out = new[:, read] if variant.skip else 2**0.5 * gated[:, i, read]
                yield variant, step, out, gates[variant]


def _generators(seed: int, stream: int, networks) -> list[torch.Generator]:
    """One generator a network, so that no result depends on how networks are grouped."""
    seeds = [
        np.random.SeedSequence((seed, stream, k)).generate_state(1, np.uint64) for k in networks
    ]
    return [torch.Generator().manual_seed(int(s[0] >> np.uint64(1))) for s in seeds]


def _chunks(count: int):
    return [range(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK)]


def hidden_moments(
    variants: list[Variant], settings: dict, device="cpu", gates="relu"
) -> dict[tuple[Variant, int], Moments]:
    """Moments of the derivative with respect to a first-layer neuron, for each variant and depth.

    settings: width N, batch M, input_dimension, networks K, seed. With gates "relu", the inputs are
    M Gaussian vectors, drawn anew for each network, and the first layer has weights N(0,
    1/input_dimension); with "bernoulli" gates are coins and batch normalisation divides by its
    infinite-width deviation.
    """
    batch, width = settings["batch"], settings["width"]
    parts: dict = {(v, depth): [] for v in variants for depth in v.depths}
    for chunk in _chunks(settings["networks"]):
        if gates == "relu":
            generators = _generators(settings["seed"], 0, chunk)
            values = [_first_layer(g, settings) for g in generators]
            gate = _relu_gate
        else:
            generators = _generators(settings["seed"], 1, chunk)
            values, gate = None, _coin_gate(generators)
        direction = torch.stack([torch.randn(width, generator=g) for g in generators])
        direction *= (width / direction.square().sum(1, keepdim=True)).sqrt()
        state = direction[:, None, None].expand(-1, 1, batch, -1)
        if values is not None:
            state = torch.cat([torch.stack(values)[:, None], state], 1)
        for variant, depth, read, gate_open in propagate(
            state.to(device), variants, gate, generators
        ):
            own, pairs = _own_and_pairs(read)
            _, both = _own_and_pairs(gate_open)
            parts[variant, depth].append(torch.stack([own, pairs, both]))
    joined = {key: torch.cat(moments, 1).cpu().numpy() for key, moments in parts.items()}
    return {key: Moments(*moments) for key, moments in joined.items()}


def _first_layer(generator, settings):
    inputs = _inputs(generator, settings)
    weights = torch.randn(settings["input_dimension"], settings["width"], generator=generator)
    return inputs @ weights / settings["input_dimension"] ** 0.5


def _inputs(generator, settings):
    return torch.randn(settings["batch"], settings["input_dimension"], generator=generator)


def _input_covariance(settings, stream, batches):
    """Covariance of the first pre-activations at the inputs of the first networks: (at most
    `batches`, M, M) float64."""
    used = range(min(settings["networks"], batches))
    inputs = [_inputs(g, settings).double() for g in _generators(settings["seed"], stream, used)]
    return np.stack([(x @ x.T / settings["input_dimension"]).numpy() for x in inputs])


def _own_and_pairs(values):
    """(mean square, mean product over pairs i != j) of (K, M, N), both (K,), without forming the
    pairs.
    """
    values = values.double()
    inputs, width = values.shape[1:]
    square = values.square().sum((1, 2))
    pairs = values.sum(1).square().sum(1) - square
    return square / (inputs * width), pairs / (inputs * (inputs - 1) * width)


def ratio_of_means(numerator, denominator):
    """(sum of numerators / sum of denominators, its jackknife standard error) over networks, the
    first axis.
    """
    numerator, denominator = np.asarray(numerator), np.asarray(denominator)
    count = len(numerator)
    top, bottom = numerator.sum(0), denominator.sum(0)
    without = (top - numerator) / (bottom - denominator)
    spread = ((without - without.mean(0)) ** 2).sum(0)
    return top / bottom, np.sqrt((count - 1) / count * spread)


def theorem_table(settings: dict, device="cpu") -> pd.DataFrame:
    """Rows of gradient_covariance.csv: measured, the paper's formula and mean field.

    settings: those of `hidden_moments` and the lists depth and beta. Raises UserError for settings
    out of range. status is not_resolved where a covariance or correlation is below three of its
    standard errors, diverged where it is beyond floating point, collapsed where the gradient's root
    mean square is below COLLAPSED: then only the variance has a number. Mean field is evaluated on
    the inputs of the first networks; it is the limit of infinite width, which deep networks
    approach slowly: at width 256 and depth 24, correlations without normalisation lie well above
    it.
    """
    least = {"width": 1, "batch": 2, "input_dimension": 1, "networks": 2}
    depths, betas = _checked(settings, least)
    resnets = [resnet(norm, depths, beta) for norm in ("none", "batch") for beta in betas]
    highways = [highway(depth) for depth in depths]
    relu = [plain(norm, depths) for norm in mean_field.NORMALISATIONS] + resnets + highways
    coins = [plain("none", depths)] + resnets + highways

    covariance = _input_covariance(settings, 0, _MEAN_FIELD_BATCHES)

    rows = []
    with np.errstate(over="ignore", invalid="ignore"):
        for gates, variants in (("relu", relu), ("bernoulli", coins)):
            moments = hidden_moments(variants, settings, device, gates)
            for variant in variants:
                theory = _mean_field(variant, covariance) if gates == "relu" else {}
                for depth in variant.depths:
                    rows += _rows(variant, gates, depth, moments[variant, depth], theory, settings)
    return pd.DataFrame(rows)


def _mean_field(variant, covariance):
    """{depth: (variance, covariance)}, averaged over inputs, pairs i != j and batches like the
    measurement.
    """
    inputs, found = covariance.shape[-1], {}
    kernels = mean_field.hidden_covariance(
        covariance, max(variant.depths), variant.normalisation, variant.skip, variant.branch
    )
    for depth, kernel in enumerate(kernels, 1):
        if depth in variant.depths:
            trace = np.trace(kernel, axis1=-2, axis2=-1)
            pairs = (kernel.sum((-2, -1)) - trace) / (inputs * (inputs - 1))
            found[depth] = (trace.mean() / inputs, pairs.mean())
    return found


def _rows(variant, gates, depth, moments, theory, settings):
    paper = mean_field.theorem(variant.network, variant.normalisation, depth, variant.beta or 1.0)
    expected = theory.get(depth, (np.nan, np.nan))
    ones = np.ones_like(moments.variance)
    with np.errstate(divide="ignore", invalid="ignore"):  # a gradient of zero has no correlation
        correlation = ratio_of_means(moments.covariance, moments.variance)
    measured = {
        "variance": (*ratio_of_means(moments.variance, ones), paper[0], expected[0]),
        "covariance": (*ratio_of_means(moments.covariance, ones), paper[1], expected[1]),
        "correlation": (
            *correlation,
            paper[1] / paper[0],
            expected[1] / expected[0],
        ),
    }
    collapsed = np.sqrt(moments.variance.mean()) < COLLAPSED
    for quantity, numbers in measured.items():
        value, error, formula, kernel = (x if np.isfinite(x) else np.nan for x in numbers)
        status = "ok"
        if collapsed:
            status = "collapsed"
            if quantity != "variance":
                value, error = np.nan, np.nan
        elif np.isnan(value) or np.isnan(error):
            value, error, status = np.nan, np.nan, "diverged"
        elif quantity != "variance" and value < 3 * error:
            status = "not_resolved"
        yield {
            "network": variant.network,
            "normalisation": variant.normalisation,
            "gates": gates,
            "inputs": "gaussian" if gates == "relu" else None,
            "input_correlation": 0.0 if gates == "relu" else np.nan,
            "batch": settings["batch"],
            "beta": np.nan if variant.beta is None else variant.beta,
            "depth": depth,
            "width": settings["width"],
            "networks": settings["networks"],
            "quantity": quantity,
            "measured": value,
            "standard_error": error,
            "paper": formula,
            "mean_field": kernel,
            "status": status,
        }


def _checked(settings, least):
    """(depths, betas), each once and in order; UserError where a size is below its `least`."""
    for name, smallest in least.items():
        if settings[name] < smallest:
            raise UserError(f"gradients: {name} is {settings[name]}; expected at least {smallest}")
    depths, betas = settings["depth"], settings["beta"]
    if not depths or min(depths) < 1:
        raise UserError(f"gradients: depth is {depths}; expected one or more numbers from 1")
    if not all(0 < beta < np.inf for beta in betas):
        raise UserError(f"gradients: beta is {betas}; expected positive numbers")
    return sorted(set(depths)), sorted(set(betas), reverse=True)


def grid(points: int) -> torch.Tensor:
    """The toy networks' inputs: `points` numbers evenly spaced on [-2, 2]."""
    return torch.linspace(-2, 2, points)


def toy_gradients(variants: list[Variant], settings: dict, device="cpu") -> dict:
    """df/dx on the grid for networks of a scalar input: {(variant, depth): (runs, points)},
    float32.

    settings: width N, points, runs, seed. First layer v x + b, v, b ~ N(0, 1); last layer N(0,
    1/N). The paper gives neither scale: for a plain network it only multiplies the gradient; in a
    residual one v, b ~ N(0, 1/N) would make the first batch-normalised branches sqrt(N) times
    larger against the skip, so beta would not be what it says.
    """
    x = grid(settings["points"])
    found: dict = {(v, depth): [] for v in variants for depth in v.depths}
    for chunk in _chunks(settings["runs"]):
        generators = _generators(settings["seed"], 2, chunk)
        slope, bias, last = (
            torch.stack([torch.randn(settings["width"], generator=g) for g in generators])[:, None]
            for _ in range(3)
        )
        derivative = slope.expand(-1, len(x), -1)
        state = torch.stack([x[:, None] * slope + bias, derivative], 1)
        last = last.to(device) / settings["width"] ** 0.5
        for variant, depth, read, _ in propagate(
            state.to(device), variants, _relu_gate, generators
        ):
            found[variant, depth].append((read * last).sum(-1).cpu())
    return {key: torch.cat(parts).numpy() for key, parts in found.items()}


def one_layer_gradient(settings: dict) -> np.ndarray:
    """df/dx, (points,), of sum_n w_n relu(x - b_n), w ~ N(0, 1/N): a random walk in x.

    The paper's b ~ N(0, 1/N) would put every kink within |x| < 0.2; b uniform on [-2, 2] spreads
    them as its figure 1a does.
    """
    (generator,) = _generators(settings["seed"], 3, [0])
    weights = torch.randn(settings["width"], generator=generator) / settings["width"] ** 0.5
    biases = 4 * torch.rand(settings["width"], generator=generator) - 2
    return ((grid(settings["points"])[:, None] > biases) * weights).sum(1).numpy()


def noise(kind: str, runs: int, settings: dict) -> np.ndarray:
    """Reference curves (runs, points): "white", independent N(0, 1); "brown", cumulative sums of
    N(0, 1/points).
    """
    points = settings["points"]
    rng = np.random.default_rng((settings["seed"], 4))
    white = rng.standard_normal((runs, points))
    return white if kind == "white" else white.cumsum(1) / points**0.5


def covariance_picture(curve: np.ndarray) -> np.ndarray:
    """|(g - mean)(g - mean)^T| / variance, (points, points): figure 1's lower row. Zero for a
    constant curve.
    """
    centred = curve - curve.mean()
    variance = centred.var()
    picture = np.abs(np.outer(centred, centred))
    return picture / variance if variance > 0 else np.zeros_like(picture)


def figure_curves(settings: dict, device="cpu") -> dict[str, np.ndarray]:
    """Arrays of toy_gradients.npz: x (points,), names (5,), gradients (5, points), covariances (5,
    points, points).
    """
    deep, residual = plain("centred", [24]), resnet("batch", [50], 0.1)
    toy = toy_gradients([deep, residual], settings | {"runs": 1}, device)
    curves = {
        "plain, 1 layer": one_layer_gradient(settings),
        "plain, 24 layers": toy[deep, 24][0],
        "ResNet, 50 modules": toy[residual, 50][0],
        "brown noise": noise("brown", 1, settings)[0],
        "white noise": noise("white", 1, settings)[0],
    }
    return {
        "x": grid(settings["points"]).numpy(),
        "names": np.array(list(curves)),
        "gradients": np.stack(list(curves.values())).astype(np.float32),
        "covariances": np.stack([covariance_picture(g) for g in curves.values()]).astype(
            np.float32
        ),
    }


def autocorrelation_table(settings: dict, device="cpu") -> pd.DataFrame:
    """Rows of autocorrelation.csv: ACF(k) = sum_i z_i z_{i+k} / sum_i z_i^2 of df/dx, z = g -
    mean(g), lags 0 to 15.

    settings: those of `toy_gradients` and the lists depth and beta. Raises UserError for settings
    out of range. mean_of_ratios averages the runs' autocorrelations; ratio_of_means averages
    numerator and denominator first, and is what mean field predicts. Runs without shape (see
    COLLAPSED) are left out: `runs` counts the others, and status is collapsed (no gradient) or
    constant (no variation) where fewer than two remain.
    """
    depths, betas = _checked(settings, {"width": 1, "runs": 2, "points": LAGS + 1})
    variants = [plain(norm, depths) for norm in mean_field.NORMALISATIONS]
    variants += [resnet("batch", depths, beta) for beta in betas]
    toy = toy_gradients(variants, settings, device)
    points = grid(settings["points"]).double().numpy()
    rows = []
    for variant in variants:
        kernels = mean_field.derivative_kernel(
            points, max(depths), variant.normalisation, variant.skip, variant.branch
        )
        theory = {
            depth: mean_field.kernel_autocorrelation(kernel, LAGS)
            for depth, kernel in enumerate(kernels, 1)
            if depth in depths
        }
        for depth in depths:
            keys = {
                "network": variant.network,
                "normalisation": variant.normalisation,
                "beta": np.nan if variant.beta is None else variant.beta,
                "depth": depth,
                "width": settings["width"],
            }
            rows += _autocorrelation_rows(keys, toy[variant, depth], theory[depth])
    references = {
        "brown": np.minimum.outer(points, points) - points[0],
        "white": np.eye(len(points)),
    }
    for kind, kernel in references.items():
        keys = {
            "network": kind,
            "normalisation": None,
            "beta": np.nan,
            "depth": None,
            "width": None,
        }
        theory = mean_field.kernel_autocorrelation(kernel, LAGS)
        rows += _autocorrelation_rows(keys, noise(kind, NOISE_RUNS, settings), theory)
    table = pd.DataFrame(rows)
    return table.astype({"depth": "Int64", "width": "Int64"})


def autocorrelation(curves: np.ndarray, lags: int = LAGS) -> tuple[np.ndarray, np.ndarray, str]:
    """(numerators (runs, lags + 1), denominators (runs, 1), status) of the runs of `curves` (runs,
    points) with shape.

    status: ok, or collapsed or constant if fewer than two runs are left.
    """
    curves = np.asarray(curves, dtype=np.float64)
    size = np.sqrt((curves**2).mean(1))
    centred = curves - curves.mean(1, keepdims=True)
    deviation = centred.std(1)
    alive = size >= COLLAPSED
    varied = alive & (deviation >= np.maximum(COLLAPSED, 4 * np.finfo(np.float32).eps * size))
    status = "ok" if varied.sum() >= 2 else "constant" if alive.sum() >= 2 else "collapsed"
    z = centred[varied]
    points = z.shape[1]
    numerators = [(z[:, : points - k] * z[:, k:]).sum(1) for k in range(lags + 1)]
    numerators = np.stack(numerators, 1)
    return numerators, numerators[:, :1], status


def _autocorrelation_rows(keys, curves, theory):
    numerators, denominators, status = autocorrelation(curves)
    runs = len(numerators)
    blank = np.full(LAGS + 1, np.nan)
    mean = mean_error = pooled = pooled_error = blank
    if status == "ok":
        ratios = numerators / denominators
        mean, mean_error = ratios.mean(0), ratios.std(0, ddof=1) / runs**0.5
        pooled, pooled_error = ratio_of_means(numerators, denominators)
    for lag in range(LAGS + 1):
        yield keys | {
            "points": curves.shape[1],
            "runs": runs,
            "lag": lag,
            "mean_of_ratios": mean[lag],
            "mean_of_ratios_error": mean_error[lag],
            "ratio_of_means": pooled[lag],
            "ratio_of_means_error": pooled_error[lag],
            "mean_field": theory[lag],
            "status": status,
        }
