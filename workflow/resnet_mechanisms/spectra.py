"""All that is measured on one network: spectra of its Residual Jacobians, alignment, trajectories,
Neural Collapse.

`measure` returns an xarray Dataset over seeds and checkpoints; `rows` and `per_block` turn it into
rows of the tables `residual_alignment.csv` and `spectra_per_block.csv`.
"""

import itertools
import math
import re
import sys
import tempfile
import time
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
import xarray as xr

from .alignment import (
    TripletStore,
    alignment_matrices,
    alignment_scores,
    alignment_with_inputs,
    line_fit,
    trajectory_scores,
)
from .costs import numbers_held, paths_kept, vectors_shown, vectors_taken
from .datasets import balanced_subset, training_labels
from .errors import UserError
from .jacobians import MatrixJacobian, linearise
from .network_types import base
from .networks import Network, reestimate_batch_norm
from .neural_collapse import neural_collapse
from .residual_blocks import ResidualModel
from .svd import NotConverged, frobenius, top_triplets
from .tables import KEYS
from .training import evaluate

PER_INPUT = [
    "line_shape_score", "step_cv", "step_cosine", "pc1_share", "alignment", "alignment_neighbours",
    "alignment_swapped", "alignment_inputs", "matrix_distance", "off_diagonal", "overlap_uu",
    "overlap_vv", "overlap_uv", "overlap_chance", "jh_over_f", "step_difference", "inverse_slope",
    "inverse_intercept", "inverse_r2",
]  # fmt: skip
PER_BLOCK = [
    "singular_values", "residual", "frobenius", "frobenius_error", "jh_over_f", "step_difference",
    "alignment_inputs",
]  # fmt: skip
AVERAGED = PER_BLOCK[4:]  # over blocks
REFERENCES = 2  # inputs whose vectors all others are compared with
# RA4 of a network: the line through 1/s_1 where s_1 is the mean over inputs, so that an input with
# almost no open gate at some block, where 1/s_1 is huge, does not decide.
PER_SPLIT = ["line_slope", "line_intercept", "line_r2"]
OUTCOMES = ["train_accuracy", "test_accuracy", "train_loss"]
PER_NETWORK = ["nc1", "nc2_norm", "nc2_angle", "nc3", "nc4", *OUTCOMES]
PAIRS = ["alignment_matrix", "alignment_matrix_swapped"]
SPLITS = ["train", "test"]
STATUS_WITH_VALUES = ("ok", "too_few_points")


@dataclass
class Report:
    """Lines on how far the measurement of one network is: at most one a second."""

    where: str
    began: float  # time.monotonic() at the first network
    before: int  # networks finished
    networks: int
    last: float = 0.0

    def __call__(self, share, text):
        """`share` of this network is done, 0 to 1."""
        now = time.monotonic()
        if share < 1 and now - self.last < 1:
            return
        self.last = now
        done = (self.before + share) / self.networks
        left = (now - self.began) * (1 - done) / done
        print(f"{self.where}: {text}, {left:.0f} s left", file=sys.stderr, flush=True)


def bytes_per_input(jacobians, number):
    """What the measurement of one input holds until all blocks are aligned."""
    sizes = [jacobian.shape[1:] for jacobian in jacobians]
    return numbers_held(sizes, number) * jacobians[0].dtype.itemsize


@torch.no_grad()
def measure_inputs(network, x, classes, settings, report=lambda share, text: None):
    """Everything about the blocks at N images `x`, as a dict of arrays that start with N.

    singular_values, residual (N x L x K), frobenius, frobenius_error, step_length (N x L), the
    scores PER_INPUT (N), with K = C + 5; blank (NaN) where a state is smaller. The alignment
    matrices (L x L x K' x K', K' at most 30) are those of the first image alone.

    As many images together as `settings["memory_mb"]` holds; where not even the vectors of one fit,
    they wait in temporary files. Raises UserError, naming the block, where a Jacobian is not finite
    or a triplet misses `settings["tolerance"]`.
    """
    number = vectors_taken(classes)
    budget = settings["memory_mb"] * 1e6 / 2
    _, jacobians, _ = checked_linearise(network, x[:REFERENCES])
    each = bytes_per_input(jacobians, number)
    together = max(1, int(budget // each))
    references = [
        triplets_of(block, jacobian, classes - 1, settings)
        for block, jacobian in enumerate(jacobians, start=1)
    ]
    parts = []
    for first in range(0, len(x), together):
        images = x[first : first + together]

        def progress(share, text, first=first, images=images):
            report(
                (first + share * len(images)) / len(x),
                f"inputs {first + 1} to {first + len(images)} of {len(x)}, {text}",
            )

        with tempfile.TemporaryDirectory() as folder:
            store = TripletStore(folder if each > budget else None)
            own = torch.arange(first, first + len(images), device=x.device)
            own[own >= REFERENCES] = -1
            arguments = images, classes, settings, store, references, own
            parts.append(_measure_together(network, *arguments, progress, pictures=not parts))
    pictures = {name: parts[0].pop(name) for name in PAIRS}
    return pictures | {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def triplets_of(block, jacobian, number, settings):
    """`top_triplets`, whose errors name the block."""
    try:
        return top_triplets(jacobian, number, settings["tolerance"])
    except (FloatingPointError, NotConverged) as error:
        raise UserError(f"block {block}: {error}") from None


def checked_linearise(network, x):
    """`linearise`, with an error that names the first block whose output is not finite."""
    if isinstance(network, ResidualModel):
        states, jacobians, branches = network.linearise(x)
    else:
        states, jacobians, branches = linearise(network, x)
    for block, state in enumerate(states[1:], start=1):
        # Where squares overflow, so would all that follows.
        if not state.flatten(1).norm(dim=1).isfinite().all():
            raise UserError(f"block {block}: its output is not finite, or its square")
    return states, jacobians, branches


def _measure_together(network, x, classes, settings, store, references, own, progress, pictures):
    states, jacobians, branches = checked_linearise(network, x)
    depth, number = len(jacobians), vectors_taken(classes)
    per_block = {name: [] for name in PER_BLOCK}
    worst = 0.0
    for block, (jacobian, h, f) in enumerate(zip(jacobians, states, branches, strict=False), 1):
        triplets = triplets_of(block, jacobian, number, settings)
        norm = frobenius(jacobian, triplets)
        missing = (0, number - triplets.values.shape[1])
        product = jacobian.matvec(jacobian.vectors(h)[:, None])[:, 0]
        size = f.flatten(1).norm(dim=1)
        difference = torch.full_like(size, torch.nan)
        if h.shape == f.shape:
            step = states[block] - h
            difference = (step - f).flatten(1).norm(dim=1) / step.flatten(1).norm(dim=1)
        few = triplets.values[:, : classes - 1]
        found = {
            "singular_values": F.pad(triplets.values, missing, value=torch.nan),
            "residual": F.pad(triplets.residual, missing, value=torch.nan),
            "frobenius": norm.value,
            "frobenius_error": norm.error,
            "jh_over_f": product.norm(dim=1) / size,
            "step_difference": difference,
            "alignment_inputs": alignment_with_inputs(jacobian, few, references[block - 1], own),
        }
        for name, value in found.items():
            per_block[name].append(value)
        store.append(triplets)
        worst = max(worst, triplets.residual.max().item())
        progress(block / depth / 2, f"block {block} of {depth}, worst residual {worst:.1e}")
    result = {name: torch.stack(value, 1) for name, value in per_block.items()}
    result |= {name: result[name].nanmean(1) for name in AVERAGED}
    scores, result["step_length"] = trajectory_scores(states)
    workspace = settings["memory_mb"] * 1e6 / 8
    result |= scores | alignment_scores(jacobians, store, classes - 1, workspace)
    result |= line_fit(1 / result["singular_values"][:, :, 0].double())
    if pictures:
        one = [jacobian.inputs(slice(0, 1)) for jacobian in jacobians]
        theirs = store if len(x) == 1 else [triplets.inputs(slice(0, 1)) for triplets in store]
        shown = vectors_shown(classes)
        for name, matrices in zip(PAIRS, alignment_matrices(one, theirs, shown), strict=True):
            result[name] = matrices[0]
    progress(1.0, f"{depth} blocks, worst residual {worst:.1e}")
    return {name: value.cpu().numpy().astype(np.float32) for name, value in result.items()}


def blank_dead_inputs(result):
    """Blank (NaN) the inputs of `measure_inputs` at which some block has J = 0, where neither
    alignment nor 1/s_1 is defined. Returns which they are (N)."""
    dead = (result["singular_values"][:, :, 0] == 0).any(1)
    for name, value in result.items():
        if name not in PAIRS:
            value[dead] = np.nan
        elif dead[0]:
            value[:] = np.nan
    return dead


@torch.no_grad()
def project_trajectories(network, x, seed=0):
    """Paths h_0..h_L of `x` in the plane: on their first two principal components (of all points
    together, centred), and on two fixed random directions (Gaussian, 1/sqrt(n), as in the authors'
    pictures).

    Returns (2 x samples x (L+1) x 2, variance shares of the two components). With several
    resolutions the states are those of the last one, the earlier ones NaN.
    """
    states = [h.flatten(1) for h in network.states(x)]
    same = [h.shape == states[-1].shape for h in states]
    path = torch.stack([h for h, fits in zip(states, same, strict=True) if fits], 1).cpu().double()
    n = path.shape[2]
    points = path.flatten(0, 1)
    centre = points.mean(0)
    path -= centre  # of all points: `points` is the same memory
    top = top_triplets(MatrixJacobian(points[None]), 2, 1e-8)
    directions = top.right[0]
    # The sign of a principal component is free: make its largest entry positive.
    directions = directions * directions.gather(1, directions.abs().argmax(1, keepdim=True)).sign()
    random = torch.randn(
        2, n, generator=torch.Generator().manual_seed(seed), dtype=torch.double
    ) / math.sqrt(n)
    out = np.full((2, len(x), len(states), 2), np.nan, dtype=np.float32)
    first = same.index(True)
    out[0, :, first:] = (path @ directions.T).numpy()
    out[1, :, first:] = (path @ random.T + centre @ random.T).numpy()
    share = top.values[0].square() / points.square().sum()
    return out, share.numpy().astype(np.float32)


def at_chance(accuracy, labels, classes):
    """Whether a training accuracy is within three binomial standard errors of always naming the
    commonest class."""
    share = float(torch.bincount(labels, minlength=classes).max()) / len(labels)
    return accuracy <= share + 3 * math.sqrt(share * (1 - share) / len(labels))


@torch.no_grad()
def last_features(network, x, memory):
    """What the classifier sees of images `x`, in batches whose states fit in `memory` bytes; None
    where a ResidualModel has no linear classifier."""
    if isinstance(network, ResidualModel):
        return network.outputs(x, memory)[1]
    state = network.first_state(x[:1])
    # A block holds its input, its branch and its output, the second of two resolutions wider.
    batch = max(1, min(2000, int(memory // (6 * state.numel() * state.itemsize))))
    features = []
    for h in map(network.first_state, x.split(batch)):
        for block in network.blocks:
            h = block(h)
        features.append(network.features(h))
    return torch.cat(features)


@torch.no_grad()
def measure_network(network, images, labels, chosen, sample, settings, report):
    """All that is measured on one network, as arrays without the dimensions seed and epoch, the
    splits stacked; None for a dead network, with a block that has J = 0 at every input of a split.

    labels: the training labels it saw. chosen: {split: indices of the inputs}. sample: indices of
    the images whose paths are kept.
    """
    classes = len(images.classes)
    device = images.x_train.device
    x = torch.cat(
        [
            pool[chosen[split].to(device)]
            for split, pool in zip(SPLITS, (images.x_train, images.x_test), strict=True)
        ]
    )
    both = measure_inputs(network, x, classes, settings, report)
    dead = blank_dead_inputs(both)
    result = {name: both.pop(name) for name in PAIRS}
    inputs = max(len(index) for index in chosen.values())
    boundary = len(chosen["train"])
    if dead[:boundary].all() or dead[boundary:].all():
        return None
    for name, value in both.items():
        parts = value[:boundary], value[boundary:]
        # A test set with fewer images than inputs asked for leaves blanks.
        missing = [[(0, inputs - len(a))] + [(0, 0)] * (a.ndim - 1) for a in parts]
        padded = [np.pad(a, m, constant_values=np.nan) for a, m in zip(parts, missing, strict=True)]
        result[name] = np.stack(padded)
    top = torch.from_numpy(result["singular_values"][..., 0]).double().nanmean(1)
    fits = line_fit(1 / top)
    for name in PER_SPLIT:
        result[name] = fits[name.replace("line", "inverse")].numpy()
    features = last_features(network, images.x_train, settings["memory_mb"] * 1e6 / 8)
    head = network.classifier
    if features is not None and len(head.weight) == classes:
        bias = torch.zeros(classes, device=device) if head.bias is None else head.bias
        weight = head.weight.double()
        result |= neural_collapse(features.double(), labels, weight, bias.double())
    paths, shares = project_trajectories(network, images.x_train[sample.to(device)])
    return result | {"trajectory": paths, "trajectory_variance_share": shares}


def readable(name):
    """A parameter's name with its block counted from 1: `block 2: linear1.weight`."""
    return re.sub(r"^blocks\.(\d+)\.", lambda match: f"block {int(match[1]) + 1}: ", name)


def load_network(config, recipe, images, weights):
    """The network of a checkpoint in evaluation mode; raises UserError, naming the parameter, where
    the checkpoint holds numbers that are not finite."""
    for name, value in weights.items():
        if not value.isfinite().all():
            raise UserError(f"{readable(name)} holds numbers that are not finite")
    shape, classes = images.x_train.shape[1:], len(images.classes)
    network = Network(config, shape, classes, recipe["stochastic_depth"])
    network.load_state_dict(weights)
    return network.to(images.x_train.device).eval()


def settle(network, images, labels):
    """Re-estimate the batch-norm statistics of a checkpoint on the way, and return its outcomes.

    While the learning rate is high the running averages that training keeps lag behind the weights,
    so that a network that fits its batches may seem to be at chance; at the end they agree.
    """
    reestimate_batch_norm(network, images.x_train)
    train_loss, train_accuracy = evaluate(network, images.x_train, labels)
    _, test_accuracy = evaluate(network, images.x_test, images.y_test)
    return dict(train_accuracy=train_accuracy, test_accuracy=test_accuracy, train_loss=train_loss)


@dataclass
class Cell:
    """One checkpoint of one seed: its network in evaluation mode, None where there is nothing to
    measure and `status` says why; its outcomes, those of OUTCOMES that are known."""

    network: object
    outcomes: dict
    status: str = ""


def measure(config, recipe, images, checkpoints, history, settings):
    """Measure every seed and checkpoint of a configuration.

    Args:
        config: network configuration with its keys and seeds. recipe: the resolved recipe.
        images: datasets.Images on the device to measure on.
        checkpoints: {seed: {"status": ..., "checkpoints": {epoch: state_dict}}}.
        history: DataFrame of history.csv.
        settings: the config's `measure`: inputs (per type), inputs_seed, tolerance, memory_mb.

    Checkpoints before the last epoch are measured with batch-norm statistics re-estimated.

    Returns: Dataset as documented in docs/file-formats.md. A diverged or dead network, or one that
    is at chance on its training images though it was trained, is there with its status and blanks.
    """
    seeds, classes = config["seeds"], config["classes"]
    epochs = sorted({epoch for seed in seeds for epoch in checkpoints[seed]["checkpoints"]}) or [0]

    def labels_of(seed):
        return training_labels(images, recipe, seed)

    def cell(seed, epoch):
        weights = checkpoints[seed]["checkpoints"].get(epoch)
        if weights is None:
            return Cell(None, {}, checkpoints[seed]["status"])
        labels = labels_of(seed)
        outcomes = history[(history.seed == seed) & (history.epoch == epoch)].iloc[0][OUTCOMES]
        network = load_network(config, recipe, images, weights)
        if epoch < epochs[-1]:
            outcomes = settle(network, images, labels)
        if epoch > 0 and at_chance(outcomes["train_accuracy"], labels, classes):
            return Cell(None, outcomes, "chance_accuracy")
        return Cell(network, outcomes)

    return fill(config, epochs, images, labels_of, settings, cell)


def fill(config, epochs, images, labels_of, settings, cell):
    """The Dataset of `measure`: what `cell(seed, epoch)` gives, measured. labels_of(seed): the
    labels of the training images that the network saw."""
    depth, classes, seeds = config["depth"], config["classes"], config["seeds"]
    number, shown = vectors_taken(classes), vectors_shown(classes)
    count, draw = settings["inputs"][base(config["type"])], settings["inputs_seed"]
    chosen = {
        "train": balanced_subset(images.y_train, count, draw),
        "test": balanced_subset(images.y_test, count, draw),
    }
    sample = balanced_subset(images.y_train, paths_kept(classes), draw)
    sample = sample[torch.argsort(images.y_train.cpu()[sample], stable=True)]
    kept = {image: position for position, image in enumerate(sample.tolist())}
    among = [kept.get(image, -1) for image in chosen["train"].tolist()]

    inputs = {"split": 2, "input": max(len(index) for index in chosen.values())}
    pair = {"row_block": depth, "column_block": depth, "u": shown, "v": shown}
    paths = {"projection": 2, "sample": len(sample), "layer": depth + 1, "component": 2}
    shapes = {
        "singular_values": inputs | {"block": depth, "rank": number},
        "residual": inputs | {"block": depth, "rank": number},
        "frobenius": inputs | {"block": depth},
        "frobenius_error": inputs | {"block": depth},
        "step_length": inputs | {"block": depth},
        **dict.fromkeys(PER_INPUT, inputs),
        **dict.fromkeys(PER_SPLIT, {"split": 2}),
        **dict.fromkeys(PER_NETWORK, {}),
        **dict.fromkeys(PAIRS, pair),
        "trajectory": paths,
        "trajectory_variance_share": {"component": 2},
    }
    shapes = {name: {"seed": len(seeds), "epoch": len(epochs)} | s for name, s in shapes.items()}
    data = {name: np.full(list(s.values()), np.nan, np.float32) for name, s in shapes.items()}
    status = np.full((len(seeds), len(epochs)), "", dtype=object)
    began, done = time.monotonic(), 0
    for (s, seed), (e, epoch) in itertools.product(enumerate(seeds), enumerate(epochs)):
        where = f"seed {seed}, epoch {epoch}"
        try:
            found = cell(seed, epoch)
            for name, value in found.outcomes.items():
                data[name][s, e] = value
            status[s, e] = found.status
            if found.network is None:
                continue
            report = Report(where, began, done, len(seeds) * len(epochs))
            done += 1
            labels = labels_of(seed)
            arguments = found.network, images, labels, chosen, sample, settings, report
            result = measure_network(*arguments)
        except UserError as error:
            name = f"{config['type']}-{config['skip']}, depth {depth}"
            raise UserError(f"{name}, {where}: {error}") from None
        if result is None:
            status[s, e] = "dead"
            continue
        status[s, e] = "ok" if depth >= 3 else "too_few_points"
        for name, value in result.items():
            data[name][s, e] = value
    labels = [labels_of(seed).cpu()[sample].numpy() for seed in seeds]
    variables = {name: (list(shapes[name]), value) for name, value in data.items()}
    return xr.Dataset(
        variables
        | {
            "status": (["seed", "epoch"], status.astype(str)),
            "sample_label": (["seed", "sample"], np.stack(labels)),
            "input_sample": ("input", among + [-1] * (inputs["input"] - len(among))),
        },
        coords={
            "seed": list(seeds), "epoch": epochs, "split": SPLITS, "block": range(1, depth + 1),
            "rank": range(1, number + 1), "layer": range(depth + 1),
            "projection": ["pca", "random"],
        },
        attrs={name: config[name] for name in KEYS} | {"tolerance": settings["tolerance"]},
    )  # fmt: skip


def rows(data):
    """Rows of residual_alignment.csv: one per seed, epoch and split, means over inputs (and
    blocks)."""
    out = []
    classes = data.attrs["classes"]
    for seed in data.seed.values:
        for epoch in data.epoch.values:
            for split in SPLITS:
                net = data.sel(seed=seed, epoch=epoch)
                d = net.sel(split=split)
                status = str(net.status.values)
                row = {key: data.attrs[key] for key in KEYS}
                row |= {"seed": seed, "epoch": epoch, "split": split, "inputs": data.sizes["input"]}
                row |= {"status": status}
                row |= {name: float(net[name]) for name in OUTCOMES}
                s = d.singular_values.values.astype(float)
                frobenius = d.frobenius.values.astype(float) ** 2
                row["inputs"] = int(np.isfinite(s[:, 0, 0]).sum()) or row["inputs"]
                measured = {name: nanmean(d[name].values) for name in PER_INPUT}
                measured |= {name.replace("line", "inverse"): float(d[name]) for name in PER_SPLIT}
                top = s[..., 0]
                with np.errstate(invalid="ignore", divide="ignore"):
                    measured |= {
                        "sigma_1": nanmean(top),
                        "sigma_c_ratio": nanmean(s[..., classes - 1] / top)
                        if classes <= s.shape[-1]
                        else np.nan,
                        "sigma_c1_ratio": nanmean(s[..., classes] / top)
                        if classes < s.shape[-1]
                        else np.nan,
                        "values_above_5_percent": nanmean((s > 0.05 * top[..., None]).sum(-1)),
                        "energy_top_c": nanmean((s[..., :classes] ** 2).sum(-1) / frobenius),
                        "stable_rank": nanmean(frobenius / top**2),
                        "max_residual": np.nanmax(d.residual.values, initial=np.nan)
                        if np.isfinite(top).any()
                        else np.nan,
                    }
                measured |= {
                    name: float(net[name]) for name in PER_NETWORK if name.startswith("nc")
                }
                if status not in STATUS_WITH_VALUES:
                    measured = dict.fromkeys(measured, np.nan)
                out.append(row | measured)
    return pd.DataFrame(out)


def nanmean(values):
    """Mean over the numbers among `values`; NaN, without a warning, where there is none."""
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    return float(values.mean()) if values.size else np.nan


def per_block(data):
    """Rows of spectra_per_block.csv: one per seed, epoch, split, input and block, the top 15
    singular values."""
    frame = data[["step_length"]].to_dataframe().reset_index()
    ranks = data.singular_values.isel(rank=slice(0, 15))
    for rank in range(1, 16):
        present = rank <= ranks.sizes["rank"]
        frame[f"sigma_{rank}"] = (
            ranks.isel(rank=rank - 1).to_dataframe("v")["v"].values if present else np.nan
        )
    frame["residual"] = data.residual.max("rank").to_dataframe("v")["v"].values
    frame = frame[np.isfinite(frame.sigma_1)]
    for position, key in enumerate(KEYS):
        frame.insert(position, key, data.attrs[key])
    order = [*KEYS, "seed", "epoch", "split", "input", "block", "step_length"]
    return frame[[*order, *(f"sigma_{rank}" for rank in range(1, 16)), "residual"]]
