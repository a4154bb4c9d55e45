"""Images as arrays: the embedded digits or a user's own .npz, cut to the first classes.

Everything downstream reads one layout, the `.npz` that `prepare` returns the content of:
x_train, x_test (uint8, N x H x W x channels), y_train, y_test (int64, 0..C-1), classes (C names),
scale (the pixel value that becomes 1).
"""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import UserError

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass
class Images:
    """Images and labels as tensors on a device: x float32 N x channels x H x W in units of `scale`,
    y int64 N."""

    x_train: "torch.Tensor"  # noqa: F821  (torch is imported only where it is used)
    y_train: "torch.Tensor"  # noqa: F821
    x_test: "torch.Tensor"  # noqa: F821
    y_test: "torch.Tensor"  # noqa: F821
    classes: list


def digits():
    """The 1797 handwritten digits (8 x 8, values 0..16) that scikit-learn ships, split once and for
    all: 1500 / 297."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    x = data.images[order].astype(np.uint8)[..., None]
    y = data.target[order].astype(np.int64)
    return {
        "x_train": x[:1500], "y_train": y[:1500], "x_test": x[1500:], "y_test": y[1500:],
        "classes": np.array([str(name) for name in data.target_names]), "scale": 16.0,
    }  # fmt: skip


def own_file(path, scale):
    """The arrays of a user's `.npz`; raises UserError where one is missing or of another kind than
    documented."""
    path = Path(path)
    if not path.is_file():
        raise UserError(
            f"data file {path}: not found; expected an .npz with {', '.join(ARRAYS)} "
            "and optionally classes"
        )
    if not zipfile.is_zipfile(path):
        raise UserError(f"data file {path}: is no .npz (np.savez makes one)")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except Exception as error:
        raise UserError(
            f"data file {path}: cannot be read as .npz without pickles ({error})"
        ) from None
    missing = [name for name in ARRAYS if name not in arrays]
    if missing:
        raise UserError(
            f"data file {path}: lacks {', '.join(missing)}; "
            f"found {', '.join(sorted(arrays)) or 'nothing'}"
        )
    if "classes" not in arrays:
        arrays["classes"] = np.arange(arrays["y_train"].max(initial=0) + 1)
    if arrays["classes"].ndim != 1:
        raise UserError(
            f"data file {path}: classes has shape {arrays['classes'].shape}; "
            "expected one name a class"
        )
    for split in ("train", "test"):
        x, y = arrays[f"x_{split}"], arrays[f"y_{split}"]
        if x.ndim == 3:
            x = arrays[f"x_{split}"] = x[..., None]
        if x.ndim != 4 or x.dtype != np.uint8 or len(x) == 0:
            raise UserError(
                f"data file {path}: x_{split} is {x.dtype} of shape {x.shape}; "
                "expected uint8, N x H x W x channels"
            )
        if y.shape != (len(x),) or not np.issubdtype(y.dtype, np.integer):
            raise UserError(
                f"data file {path}: y_{split} is {y.dtype} of shape {y.shape}; "
                f"expected {len(x)} integers"
            )
        if y.min() < 0 or y.max() >= len(arrays["classes"]):
            raise UserError(
                f"data file {path}: y_{split} holds labels {y.min()} to {y.max()}; "
                f"expected 0 to {len(arrays['classes']) - 1}, one per entry of classes"
            )
        arrays[f"y_{split}"] = y.astype(np.int64)
    if arrays["x_train"].shape[1:] != arrays["x_test"].shape[1:]:
        raise UserError(
            f"data file {path}: training images are {arrays['x_train'].shape[1:]} but test images "
            f"{arrays['x_test'].shape[1:]}; expected one shape"
        )
    return arrays | {"classes": arrays["classes"].astype(str), "scale": float(scale)}


def prepare(entry, classes, data_root="."):
    """The arrays of a config `datasets` entry, cut to its first `classes` classes and to its subset
    sizes.

    A subset (`train`, `test` of the entry) is the first so many images after the class cut, in a
    fixed random order (seed 0), so a smaller subset is part of a larger one.
    """
    if entry["source"] == "digits":
        arrays = digits()
    else:
        arrays = own_file(Path(data_root) / entry["path"], entry.get("scale") or 255)
    if classes > len(arrays["classes"]):
        raise UserError(f"{classes} classes asked for, but the data have {len(arrays['classes'])}")
    for split in ("train", "test"):
        x, y = arrays[f"x_{split}"], arrays[f"y_{split}"]
        keep = np.flatnonzero(y < classes)
        size = entry.get(split)
        if size is not None:
            if size > len(keep):
                raise UserError(
                    f"{split}: {size} images asked for, but {classes} classes have {len(keep)}"
                )
            keep = np.random.default_rng(0).permutation(keep)[:size]
        arrays[f"x_{split}"], arrays[f"y_{split}"] = x[keep], y[keep]
        absent = sorted(set(range(classes)) - set(y[keep].tolist()))
        if absent:
            raise UserError(
                f"{split}: no image of class {arrays['classes'][absent[0]]} among {len(keep)}"
            )
    arrays["classes"] = arrays["classes"][:classes]
    return {name: arrays[name] for name in (*ARRAYS, "classes", "scale")}


def load(path, device="cpu"):
    """`Images` of a prepared `.npz`, pixels divided by its scale (no other normalisation)."""
    import torch

    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    scale = float(arrays["scale"])

    def pixels(x):
        return torch.tensor(x).permute(0, 3, 1, 2).contiguous().to(device, torch.float32) / scale

    return Images(
        pixels(arrays["x_train"]), torch.tensor(arrays["y_train"]).to(device),
        pixels(arrays["x_test"]), torch.tensor(arrays["y_test"]).to(device),
        [str(name) for name in arrays["classes"]],
    )  # fmt: skip


def training_labels(images, recipe, seed):
    """The labels a network is trained on, int64 N: the true ones, a random permutation of them, or
    noisy ones.

    `labels: noisy` gives a share `label_noise` of the images, drawn at random, another class drawn
    uniformly. Depends on the recipe and the seed only, so that the measurements see the labels that
    training saw.
    """
    import torch

    labels = images.y_train
    generator = torch.Generator().manual_seed(7919 * seed + 1)
    if recipe["labels"] == "random":
        return labels[torch.randperm(len(labels), generator=generator).to(labels.device)]
    if recipe["labels"] == "noisy":
        count = round(recipe["label_noise"] * len(labels))
        chosen = torch.randperm(len(labels), generator=generator)[:count].to(labels.device)
        shift = torch.randint(1, len(images.classes), (count,), generator=generator).to(
            labels.device
        )
        labels = labels.clone()
        labels[chosen] = (labels[chosen] + shift) % len(images.classes)
    return labels


def balanced_subset(labels, count, seed):
    """Indices (int64, count) of `count` images spread evenly over the classes, drawn at random but
    the same for every
    network: class after class in turn until the count is reached (fewer where the data hold
    fewer)."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    shuffled = labels.cpu()[order]
    # The rank of an image among those of its class: all first images of the classes come before all
    # second ones.
    rank = torch.zeros_like(shuffled)
    for label in shuffled.unique():
        members = shuffled == label
        rank[members] = torch.arange(int(members.sum()))
    turn = torch.argsort(rank * (int(shuffled.max()) + 1) + shuffled)
    return order[turn[:count]]
