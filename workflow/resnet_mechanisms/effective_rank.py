"""Gradients of random convolutional networks at real images: how white they are, against depth.

Balduzzi et al. 2017, section 3 (figure 5). Over images the correlation of gradients cannot be
estimated pair by pair, so the paper asks how close a minibatch of gradients is to white noise: by
the effective rank of the matrix that holds them, and by how much shorter their mean is than they
are.

A module is x <- skip x + branch F(x), F(x) = W2 relu(BN(W1 relu(BN(x)))), of two 3x3 convolutions
(plain: skip 0, branch 1; residual: 1, beta), W ~ N(0, 2/fan-in). It starts from BN(stem(x)), of
unit variance, so that beta is relative to it, and ends with relu(BN(x)), the mean over positions
and a linear map. Depth counts the convolutions in modules. Batch statistics are those of the
minibatch and frozen when differentiating. The paper does not say which gradients it takes, nor
whether it centres them: here of the loss and of the sum of the outputs, both by the image, each
centred and not.
"""

import functools

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from .errors import UserError
from .gradients import COLLAPSED
from .stems import stem_of

GAUSSIANS = 16  # matrices whose effective rank is that of white gradients
CLUSTERS = 10  # by which images are ordered in the pictures
KINDS = ("outputs", "loss")


def effective_rank(matrices):
    """||D||_F^2 / ||D||_2^2 of (..., M, n): the stable rank, 1 for a single direction."""
    values = torch.linalg.svdvals(matrices)
    return values.square().sum(-1) / values[..., 0].square()


@functools.cache
def white_rank(count, pixels):
    """Mean effective rank of Gaussian matrices count x pixels."""
    generator = torch.Generator().manual_seed(0)
    white = torch.randn(GAUSSIANS, count, pixels, generator=generator, dtype=torch.double)
    return float(effective_rank(white).mean())


def whiteness(gradients):
    """{"effective_rank", "effective_rank_centred", "mean_gradient"} of P x M x n gradients, means
    over P; a rank that is undefined is left out.

    The rank is relative to that of a Gaussian matrix of the same shape, so white gradients have 1;
    centred, after the mean gradient has been subtracted. mean_gradient is the norm of the mean over
    the root mean square of the norms: 1/sqrt(M) for white gradients.
    """
    gradients = gradients.double()
    mean = gradients.mean(1, keepdim=True)
    alive = gradients.square().sum((1, 2)) > 0
    gradients, mean = gradients[alive], mean[alive]
    if not len(gradients):
        return {}
    size = gradients.square().sum(2).mean(1).sqrt()
    ranks = {"effective_rank": gradients, "effective_rank_centred": gradients - mean}
    found = {
        name: float(effective_rank(value.cpu()).mean()) / white_rank(*gradients.shape[1:])
        for name, value in ranks.items()
        # What is left of equal gradients after centring is rounding.
        if float(value.square().sum()) > 1e-12 * float(gradients.square().sum())
    }
    return found | {"mean_gradient": float((mean.flatten(1).norm(dim=1) / size).mean())}


def variants_of(betas):
    """(network, beta, skip, branch): plain, then residual with the largest beta first."""
    yield "plain", None, 0.0, 1.0
    for beta in sorted(betas, reverse=True):
        yield "resnet", beta, 1.0, beta


def normalised(x):
    """Batch norm of N x channels x H x W with the batch's statistics, frozen."""
    still = x.detach()
    mean, variance = still.mean((0, 2, 3)), still.var((0, 2, 3), correction=0)
    return F.batch_norm(x, mean, variance)


def outputs_by_depth(x, classes, skip, branch, depths, width, generator):
    """(depth, outputs N x classes) of one random network cut at each of `depths`, a readout each;
    x: N x channels x H x W. The first weights are the same whatever follows them."""

    def convolution(n_out, n_in, size):
        weight = torch.randn(n_out, n_in, size, size, generator=generator)
        return (weight * (2 / (n_in * size * size)) ** 0.5).to(x)

    readout = torch.randn(classes, width, generator=generator).to(x) / width**0.5
    stem = stem_of(x.shape[2])
    weight = convolution(width, x.shape[1], 5)
    h = normalised(F.conv2d(x, weight, stride=stem.stride, padding=stem.padding))
    for depth in range(2, max(depths) + 1, 2):
        f = h
        for _ in range(2):
            f = F.conv2d(F.relu(normalised(f)), convolution(width, width, 3), padding=1)
        h = skip * h + branch * f if skip else f
        if depth in depths:
            yield depth, F.relu(normalised(h)).mean((2, 3)) @ readout.T


def gradients_by_depth(x, labels, classes, skip, branch, settings, run):
    """(depth, kind, gradients N x pixels) of network `run`; kind: outputs (their sum), loss."""
    generator = _generator(settings["seed"], 1, run)
    x = x.detach().requires_grad_()
    arguments = settings["depth"], settings["width"], generator
    for depth, outputs in outputs_by_depth(x, classes, skip, branch, *arguments):
        values = outputs.sum(), F.cross_entropy(outputs, labels, reduction="sum")
        for kind, value in zip(KINDS, values, strict=True):
            (gradient,) = torch.autograd.grad(value, x, retain_graph=True)
            yield depth, kind, gradient.flatten(1)


def minibatch(images, settings, run):
    """(x, labels) of `batch` training images drawn for `run`."""
    order = torch.randperm(len(images.x_train), generator=_generator(settings["seed"], 0, run))
    chosen = order[: settings["batch"]].to(images.x_train.device)
    return images.x_train[chosen], images.y_train[chosen]


def _generator(seed, stream, run):
    state = np.random.SeedSequence((seed, stream, run)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))


def table(settings, images):
    """Rows of effective_rank.csv.

    settings: the config's `gradients: effective_rank`. images: datasets.Images. Column `seed`
    counts the networks from 0; each has weights and a minibatch of its own, which all kinds share.
    Raises UserError where there are fewer training images than a minibatch takes.
    """
    if settings["batch"] > len(images.x_train):
        raise UserError(
            f"config: gradients.effective_rank.batch: expected at most the "
            f"{len(images.x_train)} training images of {settings['dataset']}, "
            f"found {settings['batch']}"
        )
    rows = []
    same = {key: settings[key] for key in ("dataset", "classes", "width", "batch")}
    for run in range(settings["networks"]):
        x, labels = minibatch(images, settings, run)
        for network, beta, skip, branch in variants_of(settings["beta"]):
            keys = same | {
                "network": network,
                "beta": np.nan if beta is None else beta,
                "seed": run,
            }
            found = gradients_by_depth(x, labels, len(images.classes), skip, branch, settings, run)
            for depth, kind, gradients in found:
                rows.append(keys | {"depth": depth, "gradient": kind} | _measured(gradients))
    return pd.DataFrame(rows)


def _measured(gradients):
    size = float(gradients.double().square().sum(1).mean().sqrt())
    if not np.isfinite(size):
        return {"gradient_norm": np.nan, "status": "diverged"}
    if size < COLLAPSED:
        return {"gradient_norm": size, "status": "collapsed"}
    return {"gradient_norm": size} | whiteness(gradients[None]) | {"status": "ok"}


def pictures(settings, images):
    """Arrays of effective_rank.npz: |correlation| of the loss's gradients at the images of a
    minibatch, (networks, 2 depths, batch, batch), with the networks' names and the depths.

    Plain and with the smallest beta, at the smallest and the largest depth; gradients are centred
    over the minibatch. Images are ordered by k-means on each network's gradients at the smallest
    depth, and in the same order at the largest.
    """
    from sklearn.cluster import KMeans

    x, labels = minibatch(images, settings, 0)
    plain, *residual = variants_of(settings["beta"])
    depths = min(settings["depth"]), max(settings["depth"])
    names, found = [], []
    for network, beta, skip, branch in (plain, residual[-1]):
        arguments = len(images.classes), skip, branch, settings | {"depth": depths}, 0
        units = {}
        for depth, kind, gradients in gradients_by_depth(x, labels, *arguments):
            if kind == "loss":
                centred = gradients.double() - gradients.double().mean(0)
                units[depth] = F.normalize(centred, dim=1, eps=COLLAPSED).cpu()
        means = KMeans(CLUSTERS, n_init=4, random_state=settings["seed"]).fit(units[depths[0]])
        order = np.argsort(means.labels_, kind="stable")
        shown = [units[depth][order] for depth in depths]
        found.append(np.stack([(u @ u.T).abs().numpy() for u in shown]))
        names.append(network if beta is None else f"{network} {beta:g}")
    return {
        "pictures": np.stack(found).astype(np.float32),
        "names": np.array(names),
        "depths": np.array(depths),
    }
