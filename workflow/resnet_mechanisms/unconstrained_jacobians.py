"""The unconstrained Jacobians model (Li & Papyan 2023): the Jacobians themselves are trained.

    h_l = (I + J_l) h_{l-1}, l = 1..L;  logits W h_L;  J_l free matrices d x d, d = 2C

    objective = cross-entropy + lambda/2 penalty,   penalty = sum_l ||J_l||_F^2            frobenius
                                                           or sum_l mean ||J_l h_{l-1}||^2  path

Means are over one input h_0 a class. With `fixed` ends inputs and classifier W are orthonormal
vectors, all orthogonal to each other. With `free` ends they are trained too, and lambda/2 (mean
||h_0||^2 + ||W||_F^2) is added: an input costs what a step costs. Two classes are one input and one
logit, log(1 + exp(-w^T h_L)), which is softmax for the inputs h_0 and -h_0. Which objective the
paper's theorem is about is not known to us; both candidates are here.

Path energy with free ends is solved in closed form (docs/methods.md): every minimiser has h_l =
(l + 1) h_0, so the smallest J_l with J_l h_{l-1} = h_l - h_{l-1} is a projection of rank C - 1
divided by l, which is RA1 to RA4 to the letter. But path energy says nothing of J_l off the span
of its inputs, so its minimisers are not unique and a solver keeps there what it started with. Hence
three readings of a path solution: `as_found`; `minimal_norm`; `frobenius_term`, the minimiser with
a hundredth of the Frobenius penalty added.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
import torch
from scipy.optimize import minimize

from .alignment import alignment_matrices, alignment_scores, line_fit, trajectory_scores
from .errors import UserError
from .jacobians import MatrixJacobian
from .svd import top_triplets

PENALTIES = ("frobenius", "path")
ENDS = ("fixed", "free")
# Norm of the gradient in units of lambda, at which a minimisation ends. Where the Frobenius penalty
# is stationary lambda J is minus the gradient of the cross-entropy, so this is also how well J is
# known. Rounding would allow about a tenth of it.
TOLERANCE = 1e-6
EVALUATIONS = 20000  # of the objective, at most; a few hundred are usual
CORRECTIONS = 20  # pairs that L-BFGS remembers
START = 0.1  # J_l starts with entries N(0, START^2/d)
FREE_START = 2.0  # length of free ends; from 1, path energy more often ends above its minimum
FROBENIUS_TERM = 0.01  # share of lambda
# Singular values of H = (h_{l-1} of all inputs) below this share of the largest are not inverted.
# Free ends drive the mean over classes to zero, of which TOLERANCE leaves about 1e-6, while the
# other C - 1 values are equal: inverted, this rest would give J a C-th singular value near s_1.
CUT_OFF = 1e-4
# What counts for the rank, of s_1: a Frobenius term of FROBENIUS_TERM leaves TOLERANCE /
# FROBENIUS_TERM = 1e-4 of the start, a thousandth of the last s_1 of ten blocks.
RANK = 1e-2
STILL = 1e-4  # a hundred times TOLERANCE: no input moves, the minimum is J = 0
SCORES = (
    "line_shape_score", "step_cv", "step_ratio_first", "step_ratio_last", "alignment",
    "alignment_swapped", "overlap_uv", "inverse_slope", "inverse_intercept", "inverse_r2",
    "rank_bound", "rank_first", "rank_last", "sigma_1_first", "sigma_1_last", "identity_error",
)  # fmt: skip
PER_BLOCK = ("sigma_1", "rank", "step_length", "alignment", "alignment_swapped")
READING = ("reading", "start", "seed", "status")


@dataclass(frozen=True)
class Model:
    """An objective. penalty: frobenius or path; ends: fixed or free; penalty_strength: lambda > 0;
    frobenius_term: weight of a Frobenius penalty on top, in units of lambda."""

    classes: int
    blocks: int
    penalty: str
    ends: str
    penalty_strength: float
    frobenius_term: float = 0.0

    @property
    def width(self):
        return 2 * self.classes

    @property
    def inputs(self):
        return 1 if self.classes == 2 else self.classes

    def unpack(self, parameters):
        """Views of a vector of parameters: Jacobians L x d x d, inputs d x N, classifier N x d."""
        width, inputs = self.width, self.inputs
        jacobians, h, w = np.split(parameters, np.cumsum([self.blocks * width**2, width * inputs]))
        shape = self.blocks, width, width
        return jacobians.reshape(shape), h.reshape(width, inputs), w.reshape(inputs, width)


@dataclass
class Solution:
    """Where a minimisation ended: jacobians L x d x d, inputs d x N and classifier N x d (float64),
    the objective, the norm of its gradient, evaluations, and whether that norm is small enough."""

    jacobians: np.ndarray
    inputs: np.ndarray
    classifier: np.ndarray
    objective: float
    gradient_norm: float
    evaluations: int
    converged: bool


def cross_entropy(logits):
    """(mean cross-entropy, its gradient) of logits C x C, column i of an input of class i; 1 x 1:
    the logistic loss of an input of the positive class.

    Written in the log odds of the other classes: it keeps the relative precision of a small loss,
    without which the gradient could not be made as small as TOLERANCE.
    """
    if logits.shape == (1, 1):
        loss = np.logaddexp(0, -logits)
        return loss.item(), -np.exp(-logits - loss)
    classes = len(logits)
    odds = logits - np.diag(logits)
    np.fill_diagonal(odds, -np.inf)
    losses = np.logaddexp(0, np.logaddexp.reduce(odds, axis=0))
    gradient = np.exp(odds - losses)
    np.fill_diagonal(gradient, -gradient.sum(0))
    return losses.mean(), gradient / classes


def objective(model, parameters):
    """(value, gradient) of a model at a vector of parameters (see Model.unpack), by the chain rule
    backwards; fixed ends have gradient 0."""
    jacobians, inputs, classifier = model.unpack(parameters)
    strength = model.penalty_strength
    norm_weight = strength * (model.frobenius_term + (model.penalty == "frobenius"))
    path_weight = strength / model.inputs if model.penalty == "path" else 0.0
    states, steps = [inputs], []
    for jacobian in jacobians:
        steps.append(jacobian @ states[-1])
        states.append(states[-1] + steps[-1])
    value, by_logits = cross_entropy(classifier @ states[-1])
    gradient = np.zeros_like(parameters)
    by_jacobians, by_inputs, by_classifier = model.unpack(gradient)
    by_state = classifier.T @ by_logits
    for block in range(model.blocks - 1, -1, -1):
        by_step = by_state + path_weight * steps[block]
        np.matmul(by_step, states[block].T, out=by_jacobians[block])
        by_state = by_state + jacobians[block].T @ by_step
    by_jacobians += norm_weight * jacobians
    value += norm_weight / 2 * np.vdot(jacobians, jacobians)
    value += path_weight / 2 * sum(np.vdot(step, step) for step in steps)
    if model.ends == "free":
        value += strength / 2 * (np.vdot(inputs, inputs) / model.inputs)
        value += strength / 2 * np.vdot(classifier, classifier)
        by_inputs[:] = by_state + strength / model.inputs * inputs
        by_classifier[:] = by_logits @ states[-1].T + strength * classifier
    return value, gradient


def solve(model, seed=0, inputs=None, classifier=None, tolerance=TOLERANCE):
    """Minimise a model's objective by L-BFGS (SciPy) from one random start.

    inputs, d x N, and classifier, N x d: the fixed ends, or where free ones start; random by
    default. Ends once the gradient's Euclidean norm is `tolerance` times the penalty strength; what
    ends elsewhere says so in Solution.converged.
    """
    generator = np.random.default_rng(seed)
    width = model.width
    jacobians = generator.normal(0, START / width**0.5, (model.blocks, width, width))
    own_inputs, own_classifier = _ends(model, generator)
    inputs = own_inputs if inputs is None else inputs
    classifier = own_classifier if classifier is None else classifier
    start = np.concatenate([np.ravel(part) for part in (jacobians, inputs, classifier)])
    goal, last = tolerance * model.penalty_strength, {}

    def evaluate(parameters):
        value, gradient = objective(model, parameters)
        last["norm"] = np.linalg.norm(gradient)
        return value, gradient

    def enough(intermediate_result):
        if last["norm"] <= goal:
            raise StopIteration

    # Its own criteria, a largest entry of the gradient and a decrease, are off.
    options = {"ftol": 0, "gtol": 0, "maxcor": CORRECTIONS}
    options |= {"maxfun": EVALUATIONS, "maxiter": EVALUATIONS}
    end = minimize(evaluate, start, jac=True, method="L-BFGS-B", callback=enough, options=options)
    value, gradient = objective(model, end.x)
    norm = float(np.linalg.norm(gradient))
    return Solution(*model.unpack(end.x), float(value), norm, end.nfev, norm <= goal)


def _ends(model, generator):
    """Random inputs d x N and classifier N x d: 2N orthonormal vectors if they stay fixed, else two
    times N of length FREE_START."""
    width, count = model.width, model.inputs
    if model.ends == "fixed":
        frame, _ = np.linalg.qr(generator.normal(size=(width, 2 * count)))
        return frame[:, :count], frame[:, count:].T
    frames = [np.linalg.qr(generator.normal(size=(width, count)))[0] for _ in range(2)]
    return FREE_START * frames[0], FREE_START * frames[1].T


def states(jacobians, inputs):
    """h_0..h_L of inputs d x N: L + 1 arrays d x N."""
    found = [inputs]
    for jacobian in jacobians:
        found.append(found[-1] + jacobian @ found[-1])
    return found


def minimal_norm(jacobians, inputs):
    """The smallest Jacobians L x d x d that take the same steps: J_l = (J_l H) pinv(H), with the
    states H = h_{l-1} of all inputs and singular values below CUT_OFF of the largest left out."""
    pairs = zip(jacobians, states(jacobians, inputs)[:-1], strict=True)
    return np.stack([jacobian @ h @ np.linalg.pinv(h, rcond=CUT_OFF) for jacobian, h in pairs])


def lowest_path_energy(classes, blocks, penalty_strength):
    """The minimum of the objective with path energy and free ends, in closed form.

    L steps and h_0 that lead to h_L cost at least ||h_L||^2 / (L + 1), so the objective is at least
    that of h_L and W alone ("unconstrained features", Zhu et al. 2021): cross-entropy + lambda
    ||W H||_* / sqrt(N (L + 1)), convex in the logits and, by symmetry, least where all off-diagonal
    logits lie equally far, say g, below the diagonal ones: log(1 + (C - 1) e^-g) + cost g.
    """
    inputs = 1 if classes == 2 else classes
    cost = (classes - 1) * penalty_strength / np.sqrt(inputs * (blocks + 1))
    if cost >= (classes - 1) / classes:  # of no gain, however small g: J = 0
        return float(np.log(classes))
    return float(-np.log1p(-cost) + cost * np.log((classes - 1) * (1 - cost) / cost))


def identity_error(jacobians):
    """How far J_l + J_l J_l^T is from J_{l+1} + J_{l+1}^T J_{l+1}, which are equal where the
    objective with the Frobenius penalty is stationary: the largest norm of the difference over the
    largest ||J_l||_F."""
    adjoint = jacobians.swapaxes(1, 2)
    difference = (jacobians + jacobians @ adjoint)[:-1] - (jacobians + adjoint @ jacobians)[1:]
    norms = np.linalg.norm(difference, axis=(1, 2))
    return norms.max() / np.linalg.norm(jacobians, axis=(1, 2)).max()


def scores(jacobians, inputs):
    """RA1 to RA4 by the code that measures networks, in float64.

    jacobians: L x d x d, L >= 2, each with some s_1 > 0; inputs: d x N, each moved by each block.
    Returns a dict of SCORES, means over inputs, and one of PER_BLOCK with L values each. step_ratio
    is the growth from the first step to the second, and from the last but one to the last.
    Alignment and overlap are of the top C - 1 triplets, or fewer where the rank is lower.
    inverse_r2 is undefined where 1/s_1 does not vary.
    """
    path = [torch.from_numpy(h.T.copy()) for h in states(jacobians, inputs)]
    shape, lengths = trajectory_scores(path)
    ratios = (lengths[:, 1:] / lengths[:, :-1]).mean(0)
    operators = [MatrixJacobian(torch.from_numpy(jacobian)[None]) for jacobian in jacobians]
    width = jacobians.shape[1]
    triplets = [top_triplets(operator, width, tolerance=1e-10) for operator in operators]
    values = torch.cat([t.values for t in triplets])
    ranks = (values > RANK * values[:, :1]).sum(1)
    bound = width // 2 - 1
    number = min(bound, int(ranks.min()))
    pairs = alignment_scores(operators, triplets, number)
    line = line_fit(1 / values[None, :, 0])
    inverse = 1 / values[:, 0]
    if inverse.max() - inverse.min() <= STILL * inverse.mean():
        line["inverse_r2"] = torch.full_like(line["inverse_r2"], torch.nan)
    found = {name: shape[name] for name in ("line_shape_score", "step_cv")}
    found |= {"step_ratio_first": ratios[0], "step_ratio_last": ratios[-1]}
    found |= {name: pairs[name] for name in ("alignment", "alignment_swapped", "overlap_uv")}
    found |= line
    found = {name: float(value.mean()) for name, value in found.items()}
    found |= {"rank_bound": bound, "rank_first": int(ranks[0]), "rank_last": int(ranks[-1])}
    found |= {"sigma_1_first": float(values[0, 0]), "sigma_1_last": float(values[-1, 0])}
    found["identity_error"] = float(identity_error(jacobians))

    aligned = _alignment_by_block(operators, triplets, number)
    columns = values[:, 0], ranks, lengths.mean(0), *aligned
    per_block = {name: c.tolist() for name, c in zip(PER_BLOCK, columns, strict=True)}
    return {name: found[name] for name in SCORES}, per_block


def _alignment_by_block(operators, triplets, number):
    """alignment and alignment_swapped of the J of each block with the vectors of all others, L
    values each."""
    others = ~torch.eye(len(operators), dtype=torch.bool)
    total = torch.cat([t.values[:, :number].sum(1, keepdim=True) for t in triplets])
    for matrices in alignment_matrices(operators, triplets, number):
        pairs = matrices[0].diagonal(dim1=2, dim2=3).sum(2) / total
        yield pairs[others].view(len(operators), -1).mean(1)


def model_tables(settings):
    """(rows of unconstrained_jacobians.csv, rows of unconstrained_jacobians_per_block.csv).

    settings: classes (a list), blocks L, penalty_strength lambda, starts and seed; start k has seed
    `seed` + k. status: ok; too_few_points (fewer than three blocks: no line through 1/s_1);
    not_converged; dead (some block moves no input: lambda is too large). Scores of the last two are
    undefined. Raises UserError for settings out of range.
    """
    # The smallest number that is not flushed to zero (device.use).
    least = {"blocks": 2, "starts": 1, "penalty_strength": np.finfo(float).tiny}
    for name, smallest in least.items():
        if not smallest <= settings[name] < np.inf:
            wanted = "a number > 0" if name == "penalty_strength" else f"at least {smallest}"
            raise UserError(
                f"unconstrained_jacobians: {name} is {settings[name]}; expected {wanted}"
            )
    classes = settings["classes"]
    if not classes or min(classes) < 2:
        raise UserError(
            f"unconstrained_jacobians: classes is {classes}; expected one or more numbers from 2"
        )
    rows, blocks = [], []
    cells = product(classes, PENALTIES, ENDS, range(settings["starts"]))
    for count, penalty, ends, start in cells:
        keys = {"classes": count, "blocks": settings["blocks"], "penalty": penalty, "ends": ends}
        for row, per_block in _readings(keys, start, settings):
            rows.append(row)
            head = {name: row[name] for name in (*keys, *READING)}
            for block in range(settings["blocks"]):
                values = {name: per_block[name][block] for name in PER_BLOCK}
                blocks.append(head | {"block": block + 1} | values)
    integers = dict.fromkeys(("rank_bound", "rank_first", "rank_last"), "Int64")
    return pd.DataFrame(rows).astype(integers), pd.DataFrame(blocks).astype({"rank": "Int64"})


def _readings(keys, start, settings):
    """Yields (row, values per block) of every reading of one start."""
    strength, seed = settings["penalty_strength"], settings["seed"] + start
    model = Model(**keys, penalty_strength=strength)
    found = solve(model, seed)
    readings = [("as_found", found, found.jacobians)]
    if model.penalty == "path":
        smallest = minimal_norm(found.jacobians, found.inputs)
        readings.append(("minimal_norm", found, smallest))
        found = solve(Model(**keys, penalty_strength=strength, frobenius_term=FROBENIUS_TERM), seed)
        readings.append(("frobenius_term", found, found.jacobians))
    for reading, solution, jacobians in readings:
        status, values = _status(solution), dict.fromkeys(SCORES, np.nan)
        per_block = dict.fromkeys(PER_BLOCK, [np.nan] * model.blocks)
        if status == "ok":
            values, per_block = scores(jacobians, solution.inputs)
            status = "ok" if model.blocks > 2 else "too_few_points"
        lowest = np.nan
        if (model.penalty, model.ends) == ("path", "free") and reading != "frobenius_term":
            lowest = lowest_path_energy(model.classes, model.blocks, strength)
        row = keys | dict(zip(READING, (reading, start, seed, status), strict=True))
        row |= {"objective": solution.objective, "objective_minimum": lowest}
        row |= {"gradient_norm": solution.gradient_norm, "evaluations": solution.evaluations}
        yield row | values, per_block


def _status(solution):
    if not solution.converged:
        return "not_converged"
    steps = np.diff(states(solution.jacobians, solution.inputs), axis=0)
    moves = np.linalg.norm(steps, axis=1).max(1)  # of the input that moves most, by block
    return "ok" if moves.min() > STILL else "dead"
