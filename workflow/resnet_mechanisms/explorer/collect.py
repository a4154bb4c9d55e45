"""What the explorer shows, from spectra.nc files, tables and claims, as JSON with packed arrays.

Numbers are rounded: half precision relative to an array's largest magnitude (relative error 5e-4,
absolute 3e-8 of the largest), and entries of the alignment matrices to 1.8 %, over four powers of
ten below the largest. The exact ones stay in spectra.nc.
"""

import base64
import json
import zlib

import numpy as np
import pandas as pd

from .. import tables
from ..claims import DEFINED, _columns, evaluate, select

# Vectors a cell of the alignment grid shows at most.
SHOWN = 12
DECADES = 4
SPLITS = ["train", "test"]
EVIDENCE = 40  # rows of a table that a claim shows at most
PER_INPUT = [
    "line_shape_score", "step_cv", "step_cosine", "pc1_share", "alignment", "alignment_neighbours",
    "alignment_swapped", "alignment_inputs", "overlap_uu", "overlap_vv", "overlap_uv",
    "overlap_chance", "matrix_distance", "off_diagonal", "inverse_slope", "inverse_intercept",
    "inverse_r2",
]  # fmt: skip
NEURAL_COLLAPSE = ["nc1", "nc2_norm", "nc2_angle", "nc3", "nc4"]
OUTCOMES = ["train_accuracy", "test_accuracy", "train_loss"]
LINE = ["line_slope", "line_intercept", "line_r2"]
FIGURES_OF = {
    "residual_alignment": ["ra_depth", "ra_no_skip", "ra_generalization", "ra_width", "ra_classes"],
    "spectra_per_block": ["ra3_singular_values", "ra_stochastic_depth"],
    "degradation": ["he1_degradation"],
    "layer_responses": ["he7_layer_responses", "he_gradient_norms"],
    "gradient_covariance": ["sg_theorems"],
    "gradient_covariance_networks": ["mechanisms"],
    "gradient_similarity": ["sg_momentum"],
    "unconstrained_jacobians": ["unconstrained_jacobians"],
    "effective_rank": ["sg5_effective_rank"],
    "coactivation": ["sg3_coactivation"],
    "activation_patterns": ["sg4_activation_patterns"],
    "path_counts": ["sg_paths"],
    "path_lengths": ["sg_paths"],
    "linear_regions": ["sg_linear_regions"],
}


def packed(values):
    """An array as {"shape", "scale", "half"}: half-precision numbers times the scale, base64 of
    little-endian ones; NaN stays NaN."""
    values = np.asarray(values, np.float32)
    finite = np.abs(values[np.isfinite(values)])
    scale = float(finite.max()) if finite.size and finite.max() > 0 else 1.0
    half = (values / scale).astype("<f2")
    return {"shape": list(values.shape), "scale": scale, "half": _base64(half)}


def packed_magnitudes(values):
    """|values| as {"shape", "scale", "log"}: one byte each, 255 the largest, each step down a
    factor 10^(-4/253); 1: less than 10^-4 of the largest, 0: undefined."""
    values = np.abs(np.asarray(values, np.float64))
    finite = values[np.isfinite(values)]
    scale = float(finite.max()) if finite.size and finite.max() > 0 else 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        code = np.round(255 + 253 / DECADES * np.log10(values / scale))
    code = np.where(np.isnan(values), 0, np.clip(np.nan_to_num(code, neginf=1), 1, 255))
    return {"shape": list(values.shape), "scale": scale, "log": _base64(code.astype(np.uint8))}


def _base64(array):
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def pair_scores(data):
    """The alignment of every pair of blocks (i, j) at the first training input, seeds x epochs x L
    x L: sum of diag(U_j^T J_i V_j) over the sum of J_i's singular values, of the top C - 1."""
    number = min(int(data.attrs["classes"]) - 1, data.sizes["u"])
    matrices = data.alignment_matrix.transpose(
        "seed", "epoch", "row_block", "column_block", "u", "v"
    ).values[..., :number, :number]
    on = np.trace(matrices, axis1=-2, axis2=-1)
    s = data.singular_values.sel(split="train").isel(input=0, rank=slice(0, number))
    total = s.transpose("seed", "epoch", "block", "rank").values.sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return on / total[..., None]


def configuration(data):
    """(what the list of networks says of a spectra.nc, its data for the page)."""
    keys = {key: _plain(data.attrs[key]) for key in tables.KEYS}
    status = data.status.transpose("seed", "epoch").values.astype(str)
    entry = keys | {
        "seeds": [int(seed) for seed in data.seed.values],
        "epochs": [int(epoch) for epoch in data.epoch.values],
        "status": status.tolist(),
        "train_accuracy": _cell(float(data.train_accuracy.isel(epoch=-1).mean())),
    }
    order = "seed", "epoch", "split", "input"
    shown = min(data.sizes["u"], SHOWN)
    matrices = data.alignment_matrix.transpose(
        "seed", "epoch", "row_block", "column_block", "u", "v"
    )
    arrays = {
        "singular_values": packed(data.singular_values.transpose(*order, "block", "rank")),
        "step_length": packed(data.step_length.transpose(*order, "block")),
        "trajectory": packed(
            data.trajectory.transpose("seed", "epoch", "projection", "sample", "layer", "component")
        ),
        "variance_share": packed(data.trajectory_variance_share),
        "pairs": packed(pair_scores(data)),
        "alignment_matrix": packed_magnitudes(matrices.values[..., :shown, :shown]),
        **{name: packed(data[name].transpose(*order)) for name in PER_INPUT if name in data},
        **{name: packed(data[name].transpose("seed", "epoch", "split")) for name in LINE},
        **{name: packed(data[name]) for name in (*NEURAL_COLLAPSE, *OUTCOMES)},
    }
    labels = data.sample_label.transpose("seed", "sample").values.astype(int).tolist()
    content = {"arrays": arrays, "labels": labels}
    if "input_sample" in data:
        content["input_sample"] = data.input_sample.values.astype(int).tolist()
    if "block_name" in data.coords:
        content["block_names"] = [str(name) for name in data.block_name.values]
    return entry, content


def _plain(value):
    return value.item() if isinstance(value, np.generic) else value


def compressed(content):
    """A JSON value as text of base64 and deflate (zlib), as the page reads it."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def network_of(row):
    """The path of the network a row of a table is about, None where it is about none."""
    if row.get("type") == "external":
        return f"external/{row['recipe']}"
    if any(key not in row or pd.isna(row[key]) for key in tables.KEYS):
        return None
    return "{dataset}/c{classes}/{type}-{skip}/d{depth}-w{width}/{recipe}".format(**row)


def evidence(entry, table, known):
    """What a claim was judged on: the networks (paths among `known`), rows of its table, EVIDENCE
    at most, and how many there are."""
    rows = select(f"claim '{entry['claim']}'", table, entry["rows"])
    of = list(dict.fromkeys(network_of(row) for row in rows.to_dict("records")))
    conditions = [entry, *(entry.get("conditions") or [])]
    columns = list(dict.fromkeys(c for part in conditions for c in _columns(part["statistic"])))
    constant = [key for key in rows.columns if rows[key].nunique(dropna=False) <= 1]
    keys = ["seed", "epoch", "split", "network", "normalisation", "beta", "quantity", "layer"]
    keys = [key for key in [*tables.KEYS, *keys] if key in rows and key not in constant]
    if "measured" in columns and "standard_error" in rows:
        columns.append("standard_error")
    columns = [*dict.fromkeys([*keys, *columns, *(["status"] if "status" in rows else [])])]
    shown = rows[columns].head(EVIDENCE)
    cells = [[_cell(value) for value in row] for row in shown.itertuples(index=False, name=None)]
    return {
        "networks": [path for path in of if path in known],
        "columns": columns,
        "rows": cells,
        "count": len(rows),
    }


def _cell(value):
    value = _plain(value)
    if isinstance(value, float):
        return None if not np.isfinite(value) else float(f"{value:.4g}")
    return value


def claims_of(entries, frames, networks, figures):
    """The claims with verdicts, as claims.csv has them, and their evidence.

    Args: entries of claims.yaml. frames: {table: DataFrame}. networks: paths in the explorer.
    figures: names of the study's figures.
    """
    verdicts = evaluate(entries, frames)
    found = []
    for entry, row in zip(entries, verdicts.to_dict("records"), strict=True):
        claim = {key: _cell(value) for key, value in row.items()} | {"table": entry["table"]}
        claim["query"] = " ".join(str(entry["rows"]).split())
        claim["figures"] = [name for name in FIGURES_OF.get(entry["table"], []) if name in figures]
        frame = frames.get(entry["table"])
        claim["evidence"] = None if frame is None else evidence(entry, frame, networks)
        found.append(claim)
    return found


def read(path):
    """(path of the network, list entry, content) of a spectra.nc."""
    data = tables.read_spectra(path)
    entry, content = configuration(data)
    entry["path"] = network_of(entry)
    return entry, content


def default_pair(entries):
    """Indices of the two networks shown first: a ResNet and its plain twin that both have scores
    and fit their training images, with the most seeds, then of eight blocks or the nearest; else
    the first two."""
    best = None
    for a, one in enumerate(entries):
        for b, other in enumerate(entries):
            same = all(
                one[key] == other[key] for key in ("dataset", "classes", "type", "depth", "width")
            )
            if (one["skip"], other["skip"]) != ("resnet", "plain") or not same:
                continue
            defined = [any(s in DEFINED for row in e["status"] for s in row) for e in (one, other)]
            fitted = [(e["train_accuracy"] or 0) >= 0.99 for e in (one, other)]
            rank = (
                all(defined), all(fitted), one["recipe"] == other["recipe"],
                len(one["seeds"]) + len(other["seeds"]), -abs(one["depth"] - 8),
            )  # fmt: skip
            if best is None or rank > best[0]:
                best = rank, a, b
    return list(best[1:]) if best else [0, min(1, len(entries) - 1)]
