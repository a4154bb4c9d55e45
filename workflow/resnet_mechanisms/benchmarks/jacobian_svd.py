"""The K largest singular triplets of a Residual Jacobian: ours beside the usual ways.

Asked of every method is the same: K paired triplets of the middle block's J at an input, in
float32 on one thread of a CPU. `ours` takes several inputs in lock step, as the measurements do;
the others go input by input and are timed on the first one. Clock: CPU time of this process. Each
repetition runs every method of a case once and measures the machine's ceiling beside them, so that
slow minutes of the machine hit all alike; ratios and fractions are taken inside a repetition.
"""

import copy
import math
import sys
import time
import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from scipy.sparse.linalg import ArpackError, LinearOperator, svds

from .. import alignment, config, datasets, jacobians, svd, training
from ..networks import Network, reestimate_batch_norm

COLUMNS = (
    "case", "method", "seconds_per_block_input", "ratio_to_ours", "max_residual", "applications",
    "fraction_of_ceiling",
)  # fmt: skip
COUNT = 30
REPETITIONS = 7

# The way of Li & Papyan's (2023) measurement code: two randomised eigen-solves.
ROUNDS, EXTRA_VECTORS = 20, 25
# Where a full J is too large, so many of its rows are timed, and products of so many.
MEASURED_ROWS, SLAB = 64, 1024


@dataclass(frozen=True)
class Case:
    """A network whose middle block is measured: `steps` of training (0: initialisation, batch norm
    at the statistics of the training images), and how many `inputs` ours takes together."""

    name: str
    type: str
    depth: int
    width: int
    steps: int
    batch_size: int
    inputs: int
    alignment_inputs: int = 0  # the alignment grids of so many inputs are timed too


CASES = (
    Case("fc128 trained", "fc", 16, 128, 1200, 125, 32),
    Case("fc512 trained", "fc", 16, 512, 600, 125, 32, 16),
    Case("fc512 init", "fc", 16, 512, 0, 125, 32, 16),
    Case("fc1024 init", "fc", 16, 1024, 0, 125, 32),
    Case("conv64 trained", "conv", 8, 64, 60, 100, 2, 1),
    Case("conv64 init", "conv", 8, 64, 0, 100, 2, 1),
)
# `strong_decay` of config.yaml, but for the number of steps.
RECIPE = {key: default for key, (_, default) in config.RECIPE.items()} | {
    "learning_rate": 0.1, "weight_decay": 0.01, "weight_decay_batch_norm": 0.01,
    "evaluate_every": 1000,
}  # fmt: skip


def images_of(type):
    """The digits: all ten classes at 8x8 for fully connected nets; 600 of the first five, enlarged
    to 32x32 by repeating pixels, for convolutional ones (whose states are 16x16 then)."""
    convolutional = type == "conv"
    entry = {"source": "digits", "train": None if convolutional else 1500, "test": None}
    arrays = datasets.prepare(entry, 5 if convolutional else 10)
    if convolutional:
        for name in ("x_train", "x_test"):
            arrays[name] = arrays[name].repeat(4, axis=1).repeat(4, axis=2)
        for name in ("x_train", "y_train"):
            arrays[name] = arrays[name][:600]
    return datasets.as_images(arrays)


def network_of(case, images, state):
    """The case's network in evaluation mode, trained with its finished seed kept in
    `state`/CASE (delete that folder after changing RECIPE or CASES)."""
    shape = {"type": case.type, "skip": "resnet", "depth": case.depth, "width": case.width}
    torch.manual_seed(0)
    network = Network(shape, images.x_train.shape[1:], len(images.classes))
    if case.steps:
        folder = state / case.name.replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        recipe = RECIPE | {"steps": case.steps, "batch_size": case.batch_size}
        with training.exclusive(folder):
            result = training.train(shape, recipe, images, 0, folder)
        network.load_state_dict(result["checkpoints"][max(result["checkpoints"])])
    else:
        reestimate_batch_norm(network, images.x_train)
    return network.eval().requires_grad_(False)


@dataclass
class Problem:
    """One block's J. `jacobian`: our operator at N states; `alone`: at the first of them. For the
    methods that know nothing of blocks: `branch`, a function of one state with the gates D_l held
    constant, and that `state`, 1 x ...; their vectors are states flattened as they lie."""

    jacobian: jacobians.Jacobian
    alone: jacobians.Jacobian
    branch: callable
    state: torch.Tensor

    def ours(self, left, values, right):
        """Triplets of such a method as (left, values, right) in our operator's order, 1 x K x n,
        1 x K and 1 x K x n, from rows of vectors (all states of a block have one shape here)."""
        left, right = (
            self.alone.vectors(torch.as_tensor(a).reshape(-1, *self.state.shape[1:]))[None]
            for a in (left, right)
        )
        return left, torch.as_tensor(values)[None], right


def problem_of(block, states):
    """The Problem of a block at N states."""
    jacobian, _, _ = jacobians.linearise_block(block, states)
    state = states[:1].clone()
    with torch.no_grad():
        gates = (block(state) > 0).to(state.dtype)
    return Problem(jacobian, jacobian.inputs(slice(0, 1)), lambda h: gates * block.branch(h), state)


@dataclass
class Outcome:
    """What a run of a method took: CPU seconds for one input (and block), the triplets it found as
    (left, values, right) with the operator they belong to, and how many products J v and J^T u it
    made for one input."""

    seconds: float
    triplets: tuple = None
    operator: jacobians.Jacobian = None
    products: float = math.nan


def clocked(function, *arguments):
    """(CPU seconds, result) of a call."""
    began = time.process_time()
    result = function(*arguments)
    return time.process_time() - began, result


def best(function, *arguments, calls=20):
    """The least CPU seconds of several calls."""
    return min(clocked(function, *arguments)[0] for _ in range(calls))


def ours(problem, count):
    """The library's, certificate and all; seconds are for one of its inputs."""
    inputs = problem.jacobian.shape[0]
    seconds, found = clocked(svd.top_triplets, problem.jacobian, count)
    triplets = found.left, found.values, found.right
    return Outcome(seconds / inputs, triplets, problem.jacobian)


class Counting:
    """Mixed into a Jacobian: `taken` lists the vectors of each product, over all inputs."""

    def matvec(self, vectors):
        self.taken.append(vectors.shape[0] * vectors.shape[1])
        return super().matvec(vectors)

    def rmatvec(self, vectors):
        self.taken.append(vectors.shape[0] * vectors.shape[1])
        return super().rmatvec(vectors)


def products_of_ours(problem, count):
    """Products that ours makes for one input, those of the certificate among them; NaN where it
    goes through the matrix and makes no others."""
    jacobian = copy.copy(problem.jacobian)
    jacobian.__class__ = type("Counted", (Counting, type(jacobian)), {})
    jacobian.taken = []
    svd.top_triplets(jacobian, count)
    products = sum(jacobian.taken) / jacobian.shape[0]
    return products if products > 2 * count else math.nan


def rows_by_autograd(output, state, rows):
    """Rows of J, each by a backward pass through the graph that leads from `state` to `output`."""
    output = output.flatten()
    gradients = [torch.autograd.grad(output[i], state, retain_graph=True)[0] for i in rows]
    return torch.stack(gradients).flatten(1)


def leading_eigenvectors(product, n, count, generator):
    """(vectors n x count, values) of a symmetric n x n matrix, by subspace iteration from random
    vectors; product: of the matrix with n x anything."""
    q = torch.randn(n, min(n, count + EXTRA_VECTORS), generator=generator)
    for _ in range(ROUNDS):
        q, _ = torch.linalg.qr(product(q))
    values, x = torch.linalg.eigh(q.T @ product(q))
    return (q @ x).flip(1)[:, :count], values.flip(0)[:count]


def authors_way(problem, count):
    """J row by row, then U from J J^T and V from J^T J. The two solves share no signs and no
    rotation inside near-equal values: the residual of their triplets, paired by order, may be 2."""

    def solve():
        state = problem.state.clone().requires_grad_()
        output = problem.branch(state)
        j = rows_by_autograd(output, state, range(output.numel()))
        random = torch.Generator().manual_seed(0)
        left, squares = leading_eigenvectors(lambda q: j @ (j.T @ q), len(j), count, random)
        right, _ = leading_eigenvectors(lambda q: j.T @ (j @ q), j.shape[1], count, random)
        return left.T, squares.clamp(min=0).sqrt(), right.T

    seconds, triplets = clocked(solve)
    return Outcome(seconds, problem.ours(*triplets), problem.alone)


def authors_way_extrapolated(problem, count):
    """Seconds of `authors_way` from some rows of J, and from its products with a slab of J's rows;
    QR of the vectors as it is."""
    state = problem.state.clone().requires_grad_()
    output = problem.branch(state)
    n = output.numel()
    rows, some = clocked(rows_by_autograd, output, state, range(0, n, n // MEASURED_ROWS))
    slab = some.repeat(SLAB // len(some), 1)
    q = torch.randn(n, count + EXTRA_VECTORS, generator=torch.Generator().manual_seed(0))
    products, _ = clocked(lambda: [slab.T @ (slab @ q) for _ in range(2)])
    factorisations, _ = clocked(lambda: [torch.linalg.qr(q) for _ in range(2)])
    one_round = products / 2 * n / len(slab) + factorisations / 2
    return Outcome(rows * n / len(some) + 2 * ROUNDS * one_round)


def matrix_of(problem):
    """J by vmapped reverse mode."""
    return torch.func.jacrev(problem.branch)(problem.state).reshape(problem.alone.shape[1:])


def jacrev_svd(problem, count):
    """J, then LAPACK's SVD."""

    def solve():
        u, s, vt = torch.linalg.svd(matrix_of(problem), full_matrices=False)
        return u.T[:count], s[:count], vt[:count]

    seconds, triplets = clocked(solve)
    return Outcome(seconds, problem.ours(*triplets), problem.alone)


def jacrev_svd_lowrank(problem, count):
    """J, then torch's randomised SVD with its own number of rounds, 2."""

    def solve():
        u, s, v = torch.svd_lowrank(matrix_of(problem), q=count + 10, niter=2)
        return u.T[:count], s[:count], v.T[:count]

    seconds, triplets = clocked(solve)
    return Outcome(seconds, problem.ours(*triplets), problem.alone)


def jacrev_extrapolated(problem, count):
    """Seconds of `matrix_of` from some rows of J, together."""
    output, pull = torch.func.vjp(problem.branch, problem.state)
    n = output.numel()
    units = torch.eye(n)[:: n // MEASURED_ROWS].reshape(-1, *output.shape)
    seconds, _ = clocked(torch.func.vmap(pull), units)
    return Outcome(seconds * n / len(units))


class Products(LinearOperator):
    """J for SciPy, from functions of one vector; counts their calls."""

    def __init__(self, forward, adjoint, shape):
        super().__init__(np.float32, shape)
        self.forward, self.adjoint, self.made = forward, adjoint, 0

    def _matvec(self, vector):
        self.made += 1
        return self.forward(torch.from_numpy(vector.reshape(-1))).numpy().reshape(-1)

    def _rmatvec(self, vector):
        self.made += 1
        return self.adjoint(torch.from_numpy(vector.reshape(-1))).numpy().reshape(-1)


def scipy_svds(operator, count, solver):
    """Triplets by SciPy, largest first, to the tolerance; None where it gives up."""
    start = np.random.default_rng(0).standard_normal(operator.shape[0]).astype(np.float32)
    try:
        u, s, vt = svds(operator, count, solver=solver, tol=svd.TOLERANCE, v0=start, rng=0)
    except (ArpackError, np.linalg.LinAlgError):
        return None
    order = np.argsort(-s)
    return u.T[order].copy(), s[order], vt[order].copy()


def svds_autodiff(solver):
    """SciPy's svds on products by forward mode, linearised once, and reverse mode. Tracing for
    `linearize` is some 0.13 s of it, most of the time on small blocks; `jvp` afresh for each
    product takes as long or longer in all."""

    def method(problem, count):
        def solve():
            state = problem.state
            with warnings.catch_warnings():  # of torch about its own tracing
                warnings.simplefilter("ignore")
                output, forward = torch.func.linearize(problem.branch, state)
            _, pull = torch.func.vjp(problem.branch, state)
            operator = Products(
                lambda v: forward(v.view_as(state)),
                lambda u: pull(u.view_as(output))[0],
                problem.alone.shape[1:],
            )
            return scipy_svds(operator, count, solver), operator.made

        seconds, (triplets, made) = clocked(solve)
        triplets = triplets and problem.ours(*triplets)
        return Outcome(seconds, triplets, problem.alone, made)

    return method


def svds_backward(solver):
    """SciPy's svds on products by reverse mode alone: J^T u by a backward pass, J v by a second
    one through it (J^T u is linear in u, and its gradient along v is J v). No tracing."""

    def method(problem, count):
        def solve():
            state = problem.state.clone().requires_grad_()
            output = problem.branch(state)
            dual = torch.zeros_like(output, requires_grad=True)
            (pulled,) = torch.autograd.grad(output, state, dual, create_graph=True)

            def forward(v):
                return torch.autograd.grad(pulled, dual, v.view_as(state), retain_graph=True)[0]

            def adjoint(u):
                return torch.autograd.grad(output, state, u.view_as(output), retain_graph=True)[0]

            operator = Products(forward, adjoint, problem.alone.shape[1:])
            return scipy_svds(operator, count, solver), operator.made

        seconds, (triplets, made) = clocked(solve)
        triplets = triplets and problem.ours(*triplets)
        return Outcome(seconds, triplets, problem.alone, made)

    return method


def svds_ours(solver, certified=False):
    """SciPy's svds on our operator, a vector at a time; `certified` adds the two-sided certificate
    that ours always computes."""

    def method(problem, count):
        jacobian = problem.alone

        def solve():
            operator = Products(
                lambda v: jacobian.matvec(v[None, None]),
                lambda u: jacobian.rmatvec(u[None, None]),
                jacobian.shape[1:],
            )
            found = scipy_svds(operator, count, solver)
            triplets = found and tuple(torch.from_numpy(a)[None] for a in found)
            if certified and found:
                svd.certificate(jacobian, *triplets)
            return triplets, operator.made + certified * 2 * count

        seconds, (triplets, made) = clocked(solve)
        return Outcome(seconds, triplets, jacobian, made)

    return method


SVDS = {
    "svds arpack, jvp/vjp": svds_autodiff("arpack"),
    "svds propack, jvp/vjp": svds_autodiff("propack"),
    "svds arpack, double backward": svds_backward("arpack"),
    "svds propack, double backward": svds_backward("propack"),
    "svds arpack, our operator": svds_ours("arpack"),
    "svds propack, our operator": svds_ours("propack"),
    "svds propack, our operator, certified": svds_ours("propack", certified=True),
}
WITH_MATRIX = {
    "authors' way": authors_way,
    "jacrev + svd": jacrev_svd,
    "jacrev + svd_lowrank": jacrev_svd_lowrank,
}


def methods_of(case, problem):
    """The case's methods by name, as functions of a Problem and K that return an Outcome."""
    if case.type == "fc":
        return {"ours": ours} | WITH_MATRIX | SVDS
    measured = f"extrapolated from {MEASURED_ROWS} of {problem.jacobian.shape[1]} rows"
    return {
        "ours": ours,
        f"authors' way ({measured})": authors_way_extrapolated,
        f"jacrev, J alone ({measured})": jacrev_extrapolated,
    } | SVDS


def operator_methods(case, problem):
    """The products alone: 10 vectors of every input, or 32 of one for convolutions. Here
    `seconds_per_block_input` is for one vector."""
    jacobian = problem.jacobian if case.type == "fc" else problem.alone
    number = 10 if case.type == "fc" else 32
    generator = torch.Generator().manual_seed(0)
    inputs, n_out, n_in = jacobian.shape

    def method(product, n):
        vectors = torch.randn(inputs, number, n, generator=generator)
        return lambda *_: Outcome(best(product, vectors) / (inputs * number), products=1)

    return {
        "operator J": method(jacobian.matvec, n_in),
        "operator J^T": method(jacobian.rmatvec, n_out),
    }


def alignment_method(network, x):
    """Both alignment grids of all blocks at the images, their triplets at hand. Closed gates are
    skipped in fully connected blocks, so that the share of the ceiling may exceed 1 there."""
    _, operators, _ = jacobians.linearise(network, x)
    triplets = [svd.top_triplets(jacobian, COUNT) for jacobian in operators]
    blocks = len(operators)

    def grids():
        for _ in alignment.alignment_cells(operators, triplets, COUNT):
            pass

    def method(*_):
        seconds, _ = clocked(grids)
        return Outcome(seconds / (blocks * len(x)), products=2 * blocks * COUNT)

    return method


def ceiling(type):
    """(seconds, flop/s) of this thread at its best: a product of two matrices 2048 x 2048 (or at
    the rate of 1024 x 1024 if that is higher), or a 3x3 convolution of 64 by 64 channels at 16x16,
    batch 32."""
    if type == "fc":
        matrices = [torch.randn(n, n) for n in (1024, 2048)]
        rate = max(2 * len(a) ** 3 / best(torch.mm, a, a, calls=5) for a in matrices)
        return 2 * 2048**3 / rate, rate
    images = torch.randn(32, 64, 16, 16).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(64, 64, 3, 3).contiguous(memory_format=torch.channels_last)
    seconds = best(F.conv2d, images, weight, None, 1, 1)
    return seconds, 2 * images.numel() * weight[0].numel() / seconds


CEILINGS = {"fc": "sgemm ceiling", "conv": "conv ceiling"}


@torch.no_grad()
def largest_residual(outcome):
    """The largest two-sided residual of the paired triplets, in units of s_1."""
    if outcome.triplets is None:
        return math.nan
    return svd.certificate(outcome.operator, *outcome.triplets).max().item()


def measure(case, network, images):
    """(rows of a case, the least seconds of its ceiling's product)."""
    x = images.x_train[: case.inputs]
    states, _, _ = jacobians.linearise(network, x)
    middle = case.depth // 2
    problem = problem_of(network.blocks[middle], states[middle])
    methods = methods_of(case, problem) | operator_methods(case, problem)
    if case.alignment_inputs:
        methods["alignment"] = alignment_method(network, x[: case.alignment_inputs])
    products = products_of_ours(problem, COUNT)

    seconds = {name: [] for name in methods}
    ceilings, outcomes = [], {}
    for _ in range(REPETITIONS):
        ceilings.append(ceiling(case.type))
        for name, method in methods.items():
            outcomes[name] = method(problem, COUNT)
            seconds[name].append(outcomes[name].seconds)
    outcomes["ours"].products = products

    seconds = {name: np.array(values) for name, values in seconds.items()}
    rates = np.array([rate for _, rate in ceilings])
    rows = []
    for name, outcome in outcomes.items():
        flops = outcome.products * problem.jacobian.flops
        row = {
            "case": case.name,
            "method": name,
            "seconds_per_block_input": np.median(seconds[name]),
            "ratio_to_ours": np.median(seconds[name] / seconds["ours"]),
            "max_residual": largest_residual(outcome),
            "applications": outcome.products,
            "fraction_of_ceiling": np.median(flops / seconds[name] / rates),
        }
        if name.startswith("operator"):
            row["ratio_to_ours"] = math.nan  # seconds of one vector: nothing to compare with
        rows.append(row)
        print(f"{case.name}, {name}: {row['seconds_per_block_input']:.3g} s", file=sys.stderr)
    return rows, min(seconds for seconds, _ in ceilings)


def run(state):
    """The table of all cases as a DataFrame. state: folder for trained networks."""
    rows, fastest = [], {}
    images = {type: images_of(type) for type in CEILINGS}
    for case in CASES:
        network = network_of(case, images[case.type], state)
        more, seconds = measure(case, network, images[case.type])
        rows += more
        fastest[case.type] = min(seconds, fastest.get(case.type, math.inf))
    for type, seconds in fastest.items():
        row = {"case": "machine", "method": CEILINGS[type], "fraction_of_ceiling": 1.0}
        rows.append(row | {"seconds_per_block_input": seconds})
    return pd.DataFrame(rows, columns=COLUMNS)


def summary(table):
    """A line for each case: how many times ours the other ways take (the faster of SciPy's two
    solvers), and the share of the ceiling that ours reaches."""
    columns = {
        "authors' way": ("authors' way",),
        "jacrev + svd": ("jacrev + svd", "jacrev, J alone"),
        "svds, jvp/vjp": ("svds arpack, jvp/vjp", "svds propack, jvp/vjp"),
        "double backward": ("svds arpack, double backward", "svds propack, double backward"),
        "arpack, our J": ("svds arpack, our operator",),
        "propack, our J": ("svds propack, our operator",),
        "and certified": ("svds propack, our operator, certified",),
    }
    method = table["method"].str.replace(r" \(.*", "", regex=True)
    lines = {}
    for name in table.loc[table["case"] != "machine", "case"].unique():
        case = table[table["case"] == name].set_index(method[table["case"] == name])
        ratios = case["ratio_to_ours"]
        lines[name] = {
            column: ratios[ratios.index.isin(names)].min() for column, names in columns.items()
        }
        lines[name]["share of ceiling"] = case.loc["ours", "fraction_of_ceiling"]
    return pd.DataFrame(lines).T.to_string(float_format="{:.3g}".format, na_rep="-")
