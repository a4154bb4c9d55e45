"""Made-up results in exactly the layout of the real ones, with scores known in closed form.

`aligned` is a perfect Residual Alignment network: h_l = h_0 + l step on a line, J_i = U diag(s_i)
U^T with one shared basis and 1/s_{k,l} = l + c + k - 1, so the line-shape score and alignment are
1, the slope of 1/s_1 is 1, its intercept c and its R2 1, and the rank is C - 1. `plain` is a
network without any of it: unrelated steps and vectors, constant s.
"""

import numpy as np
import pandas as pd
import xarray as xr

KEYS = ["dataset", "classes", "type", "skip", "depth", "width", "recipe", "seed", "epoch"]
SCORES = [
    "line_shape_score",
    "step_cv",
    "step_cosine",
    "pc1_share",
    "alignment",
    "alignment_neighbours",
    "alignment_swapped",
    "overlap_uu",
    "overlap_vv",
    "overlap_uv",
    "jh_over_f",
    "inverse_slope",
    "inverse_intercept",
    "inverse_r2",
]
MEASURED = [
    *SCORES[:10],
    "overlap_chance",
    "sigma_1",
    "sigma_c_ratio",
    "sigma_c1_ratio",
    "energy_top_c",
    "stable_rank",
    *SCORES[10:],
    "max_residual",
    "nc1",
    "nc2_norm",
    "nc2_angle",
    "nc3",
    "nc4",
]
ALIGNED = {
    "line_shape_score": 1.0,
    "step_cv": 0.0,
    "step_cosine": 1.0,
    "pc1_share": 1.0,
    "alignment": 1.0,
    "alignment_neighbours": 1.0,
    "alignment_swapped": 1.0,
    "overlap_uu": 1.0,
    "overlap_vv": 1.0,
    "overlap_uv": 1.0,
    "overlap_chance": 0.07,
    "sigma_c_ratio": 0.0,
    "sigma_c1_ratio": 0.0,
    "energy_top_c": 1.0,
    "stable_rank": 3.0,
    "jh_over_f": 1.0,
    "inverse_slope": 1.0,
    "inverse_intercept": 1.0,
    "inverse_r2": 1.0,
    "max_residual": 1e-6,
    "nc1": 0.05,
    "nc2_norm": 0.02,
    "nc2_angle": 0.03,
    "nc3": 0.02,
    "nc4": 0.0,
}
PLAIN = ALIGNED | {
    "line_shape_score": 5.0,
    "step_cv": 0.8,
    "step_cosine": 0.0,
    "alignment": 0.0,
    "alignment_neighbours": 0.0,
    "alignment_swapped": 0.0,
    "overlap_uu": 0.07,
    "overlap_vv": 0.07,
    "overlap_uv": 0.07,
    "inverse_slope": -0.06,
    "inverse_intercept": 0.5,
    "inverse_r2": 0.3,
}


def score_rows(
    scores=None,
    statuses=("ok",) * 3,
    first_seed=10,
    train_accuracy=1.0,
    test_accuracy=0.98,
    **network,
):
    """residual_alignment.csv rows, both splits, one seed a status; a score may be a function of the
    seed's number.
    """
    keys = {
        "dataset": "digits",
        "classes": 10,
        "type": "fc",
        "skip": "resnet",
        "depth": 8,
        "width": 128,
    }
    keys |= {"recipe": "strong_decay", "epoch": 100} | network
    scores = dict(ALIGNED if scores is None else scores)
    scores.setdefault("sigma_1", np.mean(1 / (np.arange(1, keys["depth"] + 1) + 1)))
    rows = []
    for k, status in enumerate(statuses):
        for split in ("train", "test"):
            row = keys | {"seed": first_seed + k, "split": split, "inputs": 4, "status": status}
            row |= {
                "train_accuracy": train_accuracy,
                "test_accuracy": test_accuracy,
                "train_loss": 0.01,
            }
            row |= {name: value(k) if callable(value) else value for name, value in scores.items()}
            if status not in ("ok", "too_few_points"):
                row |= dict.fromkeys(MEASURED, np.nan)
            if status == "too_few_points":
                row |= dict.fromkeys(("inverse_slope", "inverse_intercept", "inverse_r2"), np.nan)
            rows.append(row)
    columns = [
        *KEYS,
        "split",
        "inputs",
        "status",
        "train_accuracy",
        "test_accuracy",
        "train_loss",
        *MEASURED,
    ]
    return pd.DataFrame(rows)[columns]


def block_rows(drop=0.0, seeds=3, inputs=4, **network):
    """spectra_per_block.csv rows of the networks of `score_rows`, training images: equal steps and
    1/s_1 = l + 1, both scaled by the survival probability 1 - drop l/L.
    """
    keys = dict(zip(KEYS[:7], ("digits", 10, "fc", "resnet", 8, 128, "strong_decay"), strict=True))
    keys |= {"epoch": 100} | network
    rows = []
    for seed in range(10, 10 + seeds):
        for image in range(inputs):
            for block in range(1, keys["depth"] + 1):
                survival = 1 - drop * block / keys["depth"]
                row = keys | {"seed": seed, "split": "train", "input": image, "block": block}
                row |= {"step_length": survival, "sigma_1": survival / (block + 1)}
                rows.append(row)
    return pd.DataFrame(rows)


def history_rows(error, epochs=(1, 50, 100), statuses=("ok",) * 2, **network):
    """history.csv rows: training error `error` at the last epoch, reached in a straight line from
    0.9.
    """
    keys = {
        "dataset": "digits",
        "classes": 10,
        "type": "fc",
        "skip": "plain",
        "depth": 8,
        "width": 128,
    }
    keys |= {"recipe": "strong_decay"} | network
    rows = []
    for k, status in enumerate(statuses):
        for epoch in epochs:
            now = 0.9 + (error - 0.9) * (epoch - epochs[0]) / (epochs[-1] - epochs[0])
            row = keys | {
                "seed": 10 + k,
                "epoch": epoch,
                "learning_rate": 0.1,
                "running_train_loss": now + 0.01,
            }
            row |= {
                "train_loss": now + 0.01,
                "train_accuracy": 1 - now,
                "test_loss": now + 0.1,
                "test_accuracy": 0.98 - now,
            }
            row |= {
                "train_loss_bn_reestimated": now + 0.01 if epoch == epochs[-1] else np.nan,
                "parameters": 1000 * keys["depth"],
                "multiplications": 900 * keys["depth"],
                "status": status,
            }
            if status == "diverged":
                row |= dict.fromkeys(
                    (
                        "running_train_loss",
                        "train_loss",
                        "train_accuracy",
                        "test_loss",
                        "test_accuracy",
                    ),
                    np.nan,
                )
            rows.append(row)
    return pd.DataFrame(rows)


def network_of(**network):
    """The keys of a configuration, and the epoch."""
    keys = {"dataset": "digits", "classes": 10, "type": "fc", "skip": "resnet", "depth": 8}
    return keys | {"width": 128, "recipe": "strong_decay", "epoch": 100} | network


def covariance_rows(correlation, statuses=("ok",) * 2, mean_field=np.nan, **network):
    """Rows of gradients/covariance.csv: the logits' gradients at images and their noisy copies."""
    keys = network_of(epoch=0, **network)
    rows = [
        keys | {"seed": 10 + k, "gradient": "logits", "pairs": pairs, "status": status}
        for k, status in enumerate(statuses)
        for pairs in ("all", "noisy copy")
    ]
    known = {"correlation": correlation, "correlation_error": 0.01, "mean_field": mean_field}
    return pd.DataFrame(
        row | (known if row["status"] in ("ok", "not_resolved") else dict.fromkeys(known, np.nan))
        for row in rows
    )


def layer_rows(response, growth=1.2, gradient=2.0, statuses=("ok",) * 2, **network):
    """Rows of gradients/layers.csv: responses of one size, gradients that grow by `growth` a layer
    towards the image."""
    keys = network_of(**network)
    count = 2 * keys["depth"] + 2
    rows = []
    for k, status in enumerate(statuses):
        for layer in range(1, count + 1):
            kind = {1: "stem", count: "classifier"}.get(layer, ("second", "first")[1 - layer % 2])
            row = keys | {"seed": 10 + k, "layer": layer, "kind": kind, "block": layer // 2}
            row |= {"response_std": response, "forward_variance": response**2, "status": status}
            row |= {"response_gradient": gradient * growth ** (count - layer)}
            rows.append(row)
    return pd.DataFrame(rows)


def similarity_rows(cosines, losses, statuses=("ok",) * 2, **network):
    """Rows of gradients/similarity.csv: `cosines` by relative step, along training."""
    keys = network_of(**network)
    rows = []
    for k, status in enumerate(statuses):
        for epoch, loss in losses.items():
            for direction in ("gradient", "random", "inputs"):
                for step, cosine in cosines.items():
                    row = keys | {"seed": 10 + k, "epoch": epoch, "loss": loss}
                    row |= {"direction": direction, "relative_step": step, "cosine": cosine}
                    rows.append(row | {"status": status})
    return pd.DataFrame(rows)


def degradation_rows(*args, **network):
    """degradation.csv rows of the same networks."""
    rows = history_rows(*args, **network)
    rows["train_error"], rows["test_error"] = (
        1 - rows.pop("train_accuracy"),
        1 - rows.pop("test_accuracy"),
    )
    return rows.drop(columns=["learning_rate", "test_loss"])


def spectra(
    skip="resnet",
    depth=8,
    classes=10,
    statuses=("ok",) * 3,
    inputs=4,
    c=1.0,
    recipe="strong_decay",
    **attrs,
):
    """spectra.nc as an xarray Dataset; undefined seeds are blank."""
    rng = np.random.default_rng(depth)
    seeds, k_kept, n_epoch, samples = len(statuses), min(classes + 5, 30), 2, 10 * classes
    aligned = skip == "resnet"
    blocks, ranks = np.arange(1, depth + 1), np.arange(1, k_kept + 1)
    sigma = np.where(ranks < classes, 1 / (blocks[:, None] + c + ranks - 1.0), 0.0)
    if not aligned:
        sigma = np.tile(np.where(ranks < classes, 2.5 / ranks, 0.02 / ranks), (depth, 1))
    lead = (seeds, n_epoch, 2, inputs)
    jitter = 1 + (0 if aligned else 0.05) * rng.standard_normal((*lead, depth, 1))

    pair = np.zeros((depth, depth, k_kept, k_kept))
    for i in range(depth):
        for j in range(depth):
            same = aligned or i == j
            pair[i, j] = (
                np.diag(sigma[i])
                if same
                else 0.05 * sigma[i].max() * rng.standard_normal((k_kept, k_kept))
            )
    steps = np.arange(depth + 1.0)
    direction = rng.standard_normal((samples, 2)) / 10 + np.repeat(
        rng.standard_normal((classes, 2)), 10, axis=0
    )
    path = (
        steps[:, None] * direction[:, None, :]
        if aligned
        else rng.standard_normal((samples, depth + 1, 2)).cumsum(1)
    )

    scores = ALIGNED if aligned else PLAIN
    values = {name: np.full(lead, float(scores[name])) for name in SCORES}
    if aligned:
        values["inverse_intercept"][:] = c
    five, four = ("seed", "epoch", "split", "input", "block"), ("seed", "epoch", "split", "input")
    blocked = ("seed", "epoch", "row_block", "column_block", "u", "v")
    ones = np.ones((seeds, n_epoch))
    data = {
        "singular_values": ((*five, "rank"), jitter * sigma),
        "residual": ((*five, "rank"), np.full((*lead, depth, k_kept), 1e-6)),
        "frobenius": (five, np.ones((*lead, depth))),
        "step_length": (five, np.ones((*lead, depth))),
        **{name: (four, array) for name, array in values.items()},
        "alignment_matrix": (blocked, np.tile(pair, (seeds, n_epoch, 1, 1, 1, 1))),
        "alignment_matrix_swapped": (blocked, np.tile(pair, (seeds, n_epoch, 1, 1, 1, 1))),
        "trajectory": (
            ("seed", "epoch", "projection", "sample", "layer", "component"),
            np.tile(path, (seeds, n_epoch, 2, 1, 1, 1)),
        ),
        "trajectory_variance_share": (
            ("seed", "epoch", "component"),
            np.tile([0.6, 0.3], (seeds, n_epoch, 1)),
        ),
    }
    for name in ("slope", "intercept", "r2"):
        data[f"line_{name}"] = (four[:3], values[f"inverse_{name}"][..., 0])
    data |= {
        name: (("seed", "epoch"), scores[name] * ones)
        for name in ("nc1", "nc2_norm", "nc2_angle", "nc3", "nc4")
    }
    bad = [k for k, status in enumerate(statuses) if status not in ("ok", "too_few_points")]
    for _, array in data.values():
        array[bad] = np.nan
    for name, value in (("train_accuracy", 1.0), ("test_accuracy", 0.98), ("train_loss", 0.01)):
        data[name] = (("seed", "epoch"), value * ones)
    data["sample_label"] = (
        ("seed", "sample"),
        np.tile(np.repeat(np.arange(classes), 10), (seeds, 1)),
    )
    data["status"] = (
        ("seed", "epoch"),
        np.array([[status] * n_epoch for status in statuses], dtype=object),
    )
    coords = {
        "seed": 10 + np.arange(seeds),
        "epoch": [50, 100],
        "split": ["train", "test"],
        "input": np.arange(inputs),
    }
    coords |= {
        "block": blocks,
        "rank": ranks,
        "layer": np.arange(depth + 1),
        "projection": ["pca", "random"],
    }
    coords |= {
        "row_block": blocks,
        "column_block": blocks,
        "u": ranks,
        "v": ranks,
        "component": [0, 1],
    }
    data = {
        name: (dims, array.astype("float32") if array.dtype == float else array)
        for name, (dims, array) in data.items()
    }
    about = {
        "dataset": "digits",
        "classes": classes,
        "type": "fc",
        "skip": skip,
        "depth": depth,
        "width": 128,
    }
    return xr.Dataset(data, coords, about | {"recipe": recipe} | attrs)


def write_spectra(path, **what):
    spectra(**what).to_netcdf(path, engine="h5netcdf")
    return path


def write_rows(path, *tables):
    pd.concat(tables).to_csv(path, index=False, float_format="%.6g")
    return path


def unconstrained_rows(statuses=("ok",) * 3):
    """unconstrained_jacobians.csv rows of four classes: path energy and Frobenius norm with free
    ends, as theory has them."""
    path = {"penalty": "path", "reading": "minimal_norm", "objective_minimum": 0.0339}
    path |= {"inverse_slope": 1.0, "inverse_r2": 1.0, "step_cv": 0.0, "step_ratio_last": 1.0}
    norm = {"penalty": "frobenius", "reading": "as_found", "objective_minimum": np.nan}
    norm |= {"inverse_slope": 0.0, "inverse_r2": np.nan, "step_cv": 0.66, "step_ratio_last": 1.27}
    both = {"alignment": 1.0, "line_shape_score": 1.0, "rank_bound": 3, "rank_first": 3}
    both |= {"classes": 4, "blocks": 10, "ends": "free", "objective": 0.0339, "rank_last": 3}
    rows = [
        kind | both | {"seed": seed, "status": status}
        for kind in (path, norm)
        for seed, status in enumerate(statuses)
    ]
    return pd.DataFrame(rows)


def gradient_rows(correlation, error=0.001, paper=None, mean_field=None, **cell):
    """gradient_covariance.csv rows: measured `correlation` (a dict depth -> value) of one kind of
    network.
    """
    keys = {
        "network": "plain",
        "normalisation": "batch",
        "gates": "relu",
        "inputs": "gaussian",
        "input_correlation": np.nan,
    }
    keys |= {
        "batch": 64,
        "beta": np.nan,
        "width": 256,
        "networks": 24,
        "quantity": "correlation",
    } | cell
    rows = []
    for depth, value in correlation.items():
        row = keys | {
            "depth": depth,
            "measured": value,
            "standard_error": error * value,
            "status": "ok",
        }
        rows.append(
            row
            | {
                "paper": (paper or correlation)[depth],
                "mean_field": (mean_field or correlation)[depth],
            }
        )
    return pd.DataFrame(rows)
