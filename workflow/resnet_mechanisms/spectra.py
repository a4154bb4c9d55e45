"""All that is measured on one network: spectra of its Residual Jacobians, alignment, trajectories,
Neural Collapse.

`measure` returns an xarray Dataset over seeds and checkpoints; `rows` and `per_block` turn it into
rows of the tables `residual_alignment.csv` and `spectra_per_block.csv`.
"""

import itertools
import math
import sys
import time

import numpy as np
import pandas as pd
import torch
import xarray as xr

from .alignment import alignment_matrices, alignment_scores, line_fit, trajectory_scores
from .datasets import balanced_subset, training_labels
from .errors import UserError
from .jacobians import linearise
from .networks import Network
from .neural_collapse import neural_collapse
from .svd import top_triplets
from .tables import KEYS

PER_INPUT = [
    "line_shape_score", "step_cv", "step_cosine", "pc1_share", "alignment", "alignment_neighbours",
    "alignment_swapped", "overlap_uu", "overlap_vv", "overlap_uv", "jh_over_f", "inverse_slope",
    "inverse_intercept", "inverse_r2",
]  # fmt: skip
# RA4 of a network: the line through 1/s_1 where s_1 is the mean over inputs, so that an input with
# almost no open gate at some block, where 1/s_1 is huge, does not decide.
PER_SPLIT = ["line_slope", "line_intercept", "line_r2"]
OUTCOMES = ["train_accuracy", "test_accuracy", "train_loss"]
PER_NETWORK = ["nc1", "nc2_norm", "nc2_angle", "nc3", "nc4", *OUTCOMES]
PAIRS = ["alignment_matrix", "alignment_matrix_swapped"]
SPLITS = ["train", "test"]
SAMPLES_PER_CLASS = 10
STATUS_WITH_VALUES = ("ok", "too_few_points")


def vectors_kept(classes):
    """Triplets computed and stored: C + 5, at most 30."""
    return min(classes + 5, 30)


@torch.no_grad()
def measure_inputs(network, x, classes):
    """Everything about the blocks at N images `x`, as a dict of arrays that start with N.

    singular_values, residual (N x L x K), frobenius, step_length (N x L), the scores PER_INPUT (N),
    and the alignment matrices (N x L x L x K x K). K may be smaller than C + 5 where a state is:
    the rest is NaN.
    """
    states, jacobians, branches = linearise(network, x)
    number = vectors_kept(classes)
    triplets = [top_triplets(jacobian, number) for jacobian in jacobians]
    straight, swapped = alignment_matrices(jacobians, triplets)
    scores, step_length = trajectory_scores(states)
    scores |= alignment_scores(straight, swapped, triplets, classes - 1)
    values = torch.stack([t.values for t in triplets], 1)
    scores |= line_fit(1 / values[:, :, 0].double())
    products = [
        j.matvec(h.flatten(1)[:, None])[:, 0] for j, h in zip(jacobians, states[:-1], strict=True)
    ]
    ratios = [
        a.norm(dim=1) / f.flatten(1).norm(dim=1) for a, f in zip(products, branches, strict=True)
    ]
    scores["jh_over_f"] = torch.stack(ratios, 1).mean(1)
    result = {
        "singular_values": values,
        "residual": torch.stack([t.residual for t in triplets], 1),
        "frobenius": torch.stack([t.frobenius for t in triplets], 1),
        "step_length": step_length,
        "alignment_matrix": straight,
        "alignment_matrix_swapped": swapped,
        **scores,
    }
    arrays = {name: value.cpu().numpy().astype(np.float32) for name, value in result.items()}
    missing = number - values.shape[2]
    for name, axes in (("singular_values", 1), ("residual", 1), (PAIRS[0], 2), (PAIRS[1], 2)):
        padding = [(0, 0)] * (arrays[name].ndim - axes) + [(0, missing)] * axes
        arrays[name] = np.pad(arrays[name], padding, constant_values=np.nan)
    return arrays


def blank_dead_inputs(result):
    """Blank (NaN) the inputs of `measure_inputs` at which some block has J = 0, where neither
    alignment nor 1/s_1 is defined. Returns which they are (N)."""
    dead = (result["singular_values"][:, :, 0] == 0).any(1)
    for value in result.values():
        value[dead] = np.nan
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
    centred = points - points.mean(0)
    _, s, directions = torch.linalg.svd(centred, full_matrices=False)
    # The sign of a principal component is free: make its largest entry positive.
    directions = (
        directions[:2]
        * directions[:2].gather(1, directions[:2].abs().argmax(1, keepdim=True)).sign()
    )
    random = torch.randn(
        2, n, generator=torch.Generator().manual_seed(seed), dtype=torch.double
    ) / math.sqrt(n)
    out = np.full((2, len(x), len(states), 2), np.nan, dtype=np.float32)
    first = same.index(True)
    out[0, :, first:] = ((path - points.mean(0)) @ directions.T).numpy()
    out[1, :, first:] = (path @ random.T).numpy()
    return out, (s[:2].square() / s.square().sum()).numpy().astype(np.float32)


def at_chance(accuracy, labels, classes):
    """Whether a training accuracy is within three binomial standard errors of always naming the
    commonest class."""
    share = float(torch.bincount(labels, minlength=classes).max()) / len(labels)
    return accuracy <= share + 3 * math.sqrt(share * (1 - share) / len(labels))


@torch.no_grad()
def measure_network(network, images, labels, chosen, sample):
    """All that is measured on one network, as arrays without the dimensions seed and epoch, the
    splits stacked; None for a dead network, with a block that has J = 0 at every input of a split.

    labels: the training labels it saw. chosen: {split: indices of the inputs}. sample: indices of
    the images whose paths are kept.
    """
    classes = len(images.classes)
    device = images.x_train.device
    inputs = max(len(index) for index in chosen.values())
    splits = {}
    for split, x in zip(SPLITS, (images.x_train, images.x_test), strict=True):
        part = measure_inputs(network, x[chosen[split].to(device)], classes)
        if blank_dead_inputs(part).all():
            return None
        top = torch.from_numpy(part["singular_values"][..., 0]).double().nanmean(0)
        splits[split] = part, line_fit(1 / top[None])
    train, _ = splits["train"]
    result = {name: train.pop(name)[0] for name in PAIRS}
    for name in train:
        parts = [part[name] for part, _ in splits.values()]
        # A test set with fewer images than inputs asked for leaves blanks.
        missing = [[(0, inputs - len(a))] + [(0, 0)] * (a.ndim - 1) for a in parts]
        padded = [np.pad(a, m, constant_values=np.nan) for a, m in zip(parts, missing, strict=True)]
        result[name] = np.stack(padded)
    for name in PER_SPLIT:
        result[name] = [fit[name.replace("line", "inverse")].item() for _, fit in splits.values()]
    features = [network.features(network.states(x)[-1]) for x in images.x_train.split(2000)]
    head = network.classifier
    result |= neural_collapse(
        torch.cat(features).double(), labels, head.weight.double(), head.bias.double()
    )
    paths, shares = project_trajectories(network, images.x_train[sample.to(device)])
    return result | {"trajectory": paths, "trajectory_variance_share": shares}


def load_network(config, recipe, images, weights):
    """The network of a checkpoint in evaluation mode; raises UserError, naming the parameter, where
    the checkpoint holds numbers that are not finite."""
    for name, value in weights.items():
        if not value.isfinite().all():
            raise UserError(f"{name} holds numbers that are not finite")
    shape, classes = images.x_train.shape[1:], len(images.classes)
    network = Network(config, shape, classes, recipe["stochastic_depth"])
    network.load_state_dict(weights)
    return network.to(images.x_train.device).eval()


def measure(config, recipe, images, checkpoints, history, settings):
    """Measure every seed and checkpoint of a configuration.

    Args:
        config: network configuration with its keys and seeds. recipe: the resolved recipe.
        images: datasets.Images on the device to measure on.
        checkpoints: {seed: {"status": ..., "checkpoints": {epoch: state_dict}}}.
        history: DataFrame of history.csv.
        settings: the config's `measure`: inputs (per type), inputs_seed.

    Returns: Dataset as documented in docs/file-formats.md. A diverged or dead network, or one that
    is at chance on its training images though it was trained, is there with its status and blanks.
    """
    depth, classes, seeds = config["depth"], config["classes"], config["seeds"]
    epochs = sorted({epoch for seed in seeds for epoch in checkpoints[seed]["checkpoints"]}) or [0]
    number = vectors_kept(classes)
    count, draw = settings["inputs"][config["type"]], settings["inputs_seed"]
    chosen = {
        "train": balanced_subset(images.y_train, count, draw),
        "test": balanced_subset(images.y_test, count, draw),
    }
    sample = balanced_subset(images.y_train, SAMPLES_PER_CLASS * classes, draw)
    sample = sample[torch.argsort(images.y_train.cpu()[sample], stable=True)]

    inputs = {"split": 2, "input": max(len(index) for index in chosen.values())}
    pair = {"row_block": depth, "column_block": depth, "u": number, "v": number}
    paths = {"projection": 2, "sample": len(sample), "layer": depth + 1, "component": 2}
    shapes = {
        "singular_values": inputs | {"block": depth, "rank": number},
        "residual": inputs | {"block": depth, "rank": number},
        "frobenius": inputs | {"block": depth},
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
    chance = np.nan  # of the overlap of random subspaces; unknown where no network was trained
    began, done = time.monotonic(), 0
    for (s, seed), (e, epoch) in itertools.product(enumerate(seeds), enumerate(epochs)):
        weights = checkpoints[seed]["checkpoints"].get(epoch)
        if weights is None:
            status[s, e] = checkpoints[seed]["status"]
            continue
        labels = training_labels(images, recipe, seed)
        row = history[(history.seed == seed) & (history.epoch == epoch)].iloc[0]
        for name in OUTCOMES:
            data[name][s, e] = row[name]
        if epoch > 0 and at_chance(row.train_accuracy, labels, classes):
            status[s, e] = "chance_accuracy"
            continue
        try:
            network = load_network(config, recipe, images, weights)
        except UserError as error:
            where = f"{config['type']}-{config['skip']}, depth {depth}, seed {seed}, epoch {epoch}"
            raise UserError(f"{where}: {error}") from None
        chance = (classes - 1) / network.first_state(images.x_train[:1]).numel()
        result = measure_network(network, images, labels, chosen, sample)
        if result is None:
            status[s, e] = "dead"
            continue
        status[s, e] = "ok" if depth >= 3 else "too_few_points"
        for name, value in result.items():
            data[name][s, e] = value
        done += 1
        left = (time.monotonic() - began) / done * (len(seeds) * len(epochs) - done)
        print(
            f"seed {seed}, epoch {epoch}: {depth} blocks, {inputs['input']} inputs of each split, "
            f"worst residual {np.nanmax(result['residual']):.1e}, {left:.0f} s left",
            file=sys.stderr,
            flush=True,
        )
    labels = [training_labels(images, recipe, seed).cpu()[sample].numpy() for seed in seeds]
    variables = {name: (list(shapes[name]), value) for name, value in data.items()}
    return xr.Dataset(
        variables
        | {
            "status": (["seed", "epoch"], status.astype(str)),
            "sample_label": (["seed", "sample"], np.stack(labels)),
        },
        coords={
            "seed": list(seeds), "epoch": epochs, "split": SPLITS, "block": range(1, depth + 1),
            "rank": range(1, number + 1), "layer": range(depth + 1),
            "projection": ["pca", "random"],
        },
        attrs={name: config[name] for name in KEYS} | {"overlap_chance": chance},
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
                        "overlap_chance": data.attrs["overlap_chance"],
                        "sigma_1": nanmean(top),
                        "sigma_c_ratio": nanmean(s[..., classes - 1] / top)
                        if classes <= s.shape[-1]
                        else np.nan,
                        "sigma_c1_ratio": nanmean(s[..., classes] / top)
                        if classes < s.shape[-1]
                        else np.nan,
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
