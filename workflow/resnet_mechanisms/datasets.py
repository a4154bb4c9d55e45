"""Images as arrays and tensors: a data set of the config, cut to its first classes.

Everything downstream reads one layout, the `.npz` that `prepare` returns the content of:
x_train, x_test (uint8, N x H x W x channels), y_train, y_test (int64, 0..C-1), classes (C names),
scale (the pixel value that becomes 1).
"""

import zipfile
import zlib
from dataclasses import dataclass

import numpy as np

from . import files
from .data_readers import ARRAYS, read
from .data_sources import class_order
from .errors import UserError


@dataclass
class Images:
    """Images and labels as tensors on a device: x float32 N x channels x H x W in units of `scale`,
    y int64 N."""

    x_train: "torch.Tensor"  # noqa: F821  (torch is imported only where it is used)
    y_train: "torch.Tensor"  # noqa: F821
    x_test: "torch.Tensor"  # noqa: F821
    y_test: "torch.Tensor"  # noqa: F821
    classes: list


def prepare(entry, classes, data_root="."):
    """The arrays of a config `datasets` entry, cut to its first `classes` classes and to its subset
    sizes.

    The first classes are those of its `class_list`, if it has one, else of the data. A subset
    (`train`, `test` of the entry) is the first so many images after the class cut, in a fixed
    random order (seed 0), so a smaller subset is part of a larger one. Pixels are those of the data
    whatever the classes.
    """
    arrays = read(entry, data_root)
    names = arrays["classes"].tolist()
    order = class_order(entry, names)
    if classes > len(order):
        held = "class_list names" if entry.get("class_list") else "the data have"
        raise UserError(f"{classes} classes asked for, but {held} {len(order)}")
    label = np.full(len(names), classes)  # of classes that are left out, too large
    label[order[:classes]] = np.arange(classes)
    arrays["classes"] = arrays["classes"][order[:classes]]
    for split in ("train", "test"):
        x, y = arrays[f"x_{split}"], label[arrays[f"y_{split}"]]
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
    return {name: arrays[name] for name in (*ARRAYS, "classes", "scale")}


def load(path, device="cpu"):
    """`Images` of a prepared `.npz`; UserError where it is damaged."""
    try:
        with np.load(files.check(path), allow_pickle=False) as file:
            arrays = dict(file)
    except (EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        files.put_aside(path, error)
    return as_images(arrays, device)


def as_images(arrays, device="cpu"):
    """`Images` of the arrays that `prepare` returns, pixels divided by their scale (no other
    normalisation)."""
    import torch

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
