"""Training throughput: ours (`training.train_epoch`) beside the loop one would write.

The plain loop is a network written module by module, a DataLoader, SGD(foreach=True), a scheduler
and `.item()` each step. What makes the difference is added to it one change after another, so that
each row holds the changes of the rows above. All methods start from the same weights and train on,
with the schedule of the whole run. Clock: CPU time of this process, on one thread. Each repetition
runs some epochs of every method of a case, so that slow minutes of the machine hit all alike;
ratios are taken inside a repetition.
"""

import sys
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

from .. import training
from ..backpropagation import Backpropagation
from ..networks import Network
from .jacobian_svd import RECIPE, clocked, images_of

COLUMNS = ("case", "method", "images_per_second", "ratio_to_plain_loop", "note")
REPETITIONS = 15
WHAT = "Training throughput, times that of the plain loop"


@dataclass(frozen=True)
class Case:
    """A network, its images (a type of `images_of`) and the epochs of a repetition."""

    name: str
    type: str
    depth: int
    width: int
    images: str
    epochs: int


CASES = (
    Case("fc64, digits 8x8", "fc", 8, 64, "fc", 5),
    Case("fc128, digits 8x8", "fc", 8, 128, "fc", 3),
    Case("conv16, digits 8x8", "conv", 6, 16, "fc", 2),
    Case("conv16, digits 32x32", "conv", 6, 16, "conv", 1),
)

OURS, PLAIN = "ours", "plain loop"
TENSORS = "+ tensors instead of DataLoader"
NO_ITEM = "+ no .item() each step"
CHANNELS_LAST = "+ channels last"
FLAT = "+ flat fused SGD"
IN_PLACE = "+ in-place ReLU and addition"
WRITTEN_OUT = "+ gradient written out"
# In the order they are added. The flat parameters of convolutions lie with their channels last,
# which makes the states lie so too: that change comes first.
NOTES = {
    TENSORS: "a batch is one index into the images",
    NO_ITEM: "the losses are summed as tensors",
    CHANNELS_LAST: "weights and images",
    FLAT: "all weights are one vector, all of batch norm another",
    IN_PLACE: "the sum overwrites the branch, relu its input",
    WRITTEN_OUT: "no modules and no autograd before the classifier",
}
ONLY_FOR = {CHANNELS_LAST: "conv", WRITTEN_OUT: "fc"}


class PlainBlock(nn.Module):
    """A residual block as one writes it; its layers are named as those of networks.Block."""

    residual = True

    def __init__(self, convolutional, width, in_place):
        super().__init__()
        norm = nn.BatchNorm2d if convolutional else nn.BatchNorm1d

        def linear():
            if convolutional:
                return nn.Conv2d(width, width, 3, padding=1, bias=False)
            return nn.Linear(width, width, bias=False)

        self.linear1, self.norm1 = linear(), norm(width)
        self.linear2, self.norm2 = linear(), norm(width)
        self.relu, self.in_place = nn.ReLU(in_place), in_place

    def branch(self, x):
        return self.norm2(self.linear2(self.relu(self.norm1(self.linear1(x)))))

    def forward(self, x):
        if self.in_place:
            return self.relu(self.branch(x).add_(x))
        return self.relu(x + self.branch(x))


class PlainNetwork(nn.Module):
    """A network of type fc or conv as one writes it, with the weights of `network`."""

    def __init__(self, network, in_place=False):
        super().__init__()
        convolutional, stem = network.convolutional, network.stem
        width, classes = len(stem.weight), network.classifier.out_features
        if convolutional:
            self.flatten = nn.Identity()
            self.stem = nn.Conv2d(stem.in_channels, width, 5, stem.stride, stem.padding, bias=False)
            self.norm = nn.BatchNorm2d(width)
        else:
            self.flatten = nn.Flatten()
            self.stem = nn.Linear(stem.in_features, width, bias=False)
            self.norm = nn.BatchNorm1d(width)
        self.relu = nn.ReLU(in_place)
        blocks = (PlainBlock(convolutional, width, in_place) for _ in network.blocks)
        self.blocks = nn.Sequential(*blocks)
        self.pool = network.pool
        self.classifier = nn.Linear(network.classifier.in_features, classes)
        self.to(stem.weight.dtype).load_state_dict(network.state_dict())

    def forward(self, x):
        h = self.relu(self.norm(self.stem(self.flatten(x))))
        return self.classifier(self.pool(self.blocks(h)).flatten(1))


def ours(network, x, y, steps):
    """A function that trains for the epoch of a number (from 1) and returns its mean loss. steps:
    of the whole schedule."""
    if network.convolutional:
        network.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    optimizer = training.optimizer_of(network, RECIPE)
    _, steps_per_epoch = training.epochs_of(RECIPE, x)

    def epoch(number):
        loss, _ = training.train_epoch(
            network, optimizer, RECIPE, x, y, 0, number, steps, steps_per_epoch
        )
        return loss

    return epoch


def shuffled(x, y, number):
    """The batches of an epoch, the same as of ours."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(number))
    size = RECIPE["batch_size"]
    for first in range(0, len(x) - size + 1, size):
        batch = order[first : first + size]
        yield x[batch], y[batch]


def plain_loop(network, x, y, steps, changes=()):
    """As `ours`, for the plain loop with `changes`, some of NOTES."""
    network = PlainNetwork(network, IN_PLACE in changes).train()
    if CHANNELS_LAST in changes:
        network.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    else:
        # Images of one channel may have the strides of either order, and decide that of the states.
        x = x.clone(memory_format=torch.contiguous_format)
    rate, momentum, decay = (RECIPE[k] for k in ("learning_rate", "momentum", "weight_decay"))
    if FLAT in changes:
        optimizer = training.optimizer_of(network, RECIPE)
        for group in optimizer.param_groups:
            group["lr"] = rate
    else:
        optimizer = torch.optim.SGD(
            network.parameters(), rate, momentum, weight_decay=decay, foreach=True
        )
    schedule = CosineAnnealingLR(optimizer, steps)
    written_out = Backpropagation(network) if WRITTEN_OUT in changes else None
    loader = DataLoader(
        TensorDataset(x, y), RECIPE["batch_size"], shuffle=True, drop_last=True, num_workers=0
    )

    def epoch(number):
        total = 0.0
        for images, labels in shuffled(x, y, number) if TENSORS in changes else loader:
            if written_out:
                loss = written_out(images, labels)
            else:
                optimizer.zero_grad(set_to_none=FLAT not in changes)
                loss = F.cross_entropy(network(images), labels)
                loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach() if NO_ITEM in changes else loss.item()
        return float(total) / len(loader)

    return epoch


def methods_of(case, images):
    """The case's methods by name, functions of an epoch's number that train for it."""
    x, y = images.x_train, images.y_train
    steps = (1 + REPETITIONS) * case.epochs * (len(x) // RECIPE["batch_size"])

    def method(way, *changes):
        torch.manual_seed(0)
        network = {"type": case.type, "skip": "resnet", "depth": case.depth, "width": case.width}
        return way(Network(network, x.shape[1:], len(images.classes)), x, y, steps, *changes)

    methods = {OURS: method(ours), PLAIN: method(plain_loop)}
    changes = []
    for change in NOTES:
        if ONLY_FOR.get(change, case.type) == case.type:
            changes.append(change)
            methods[change] = method(plain_loop, tuple(changes))
    return methods


def measure(case, images):
    """The rows of a case."""
    methods = methods_of(case, images)
    seconds = {name: [] for name in methods}
    for repetition in range(1 + REPETITIONS):  # the first one warms up
        epochs = range(1 + repetition * case.epochs, 1 + (repetition + 1) * case.epochs)
        for name, epoch in methods.items():
            seconds[name].append(clocked(lambda run=epoch, of=epochs: [run(n) for n in of])[0])
    seconds = {name: np.array(values[1:]) for name, values in seconds.items()}
    size = RECIPE["batch_size"]
    trained = case.epochs * (len(images.x_train) // size) * size
    rows = []
    for name, taken in seconds.items():
        row = {
            "case": case.name,
            "method": name,
            "images_per_second": np.median(trained / taken),
            "ratio_to_plain_loop": np.median(seconds[PLAIN] / taken),
            "note": NOTES.get(name, ""),
        }
        rows.append(row)
        rate = row["images_per_second"]
        print(f"{case.name}, {name}: {rate:.0f} images/s", file=sys.stderr)
    return rows


def run():
    """The table of all cases as a DataFrame."""
    images = {type: images_of(type) for type in ("fc", "conv")}
    rows = [row for case in CASES for row in measure(case, images[case.images])]
    return pd.DataFrame(rows, columns=COLUMNS)


def summary(table):
    """A line for each method: its images per CPU second over the plain loop's, for each case."""
    ratios = table.pivot(index="method", columns="case", values="ratio_to_plain_loop")
    ratios = ratios.reindex(index=table["method"].unique(), columns=table["case"].unique())
    ratios = ratios.loc[[PLAIN, *(name for name in NOTES if name in ratios.index), OURS]]
    return ratios.rename_axis(index=None, columns=None).to_string(
        float_format="{:.2f}".format, na_rep="-"
    )
