"""Gradients and responses of the networks of a study, at initialisation and at every checkpoint.

Three questions on the network's own images. How alike are the gradients at two of them (Balduzzi et
al. 2017, definition 1, and the effective rank of section 3)? How large are the responses of its
layers, and the gradients that reach them (He et al. 2016, figure 7 and section 4.1)? And how far
does a gradient remain valid, when weights or inputs move a little?

The first is asked in evaluation mode, so that every image has a gradient of its own; the others in
training mode on one fixed batch, as a step of training would see them.
"""

import copy

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn

from . import mean_field
from .datasets import balanced_subset, training_labels
from .effective_rank import whiteness
from .errors import UserError
from .gradients import COLLAPSED, ratio_of_means
from .network_types import batch_norm
from .networks import batch_norm_layers, crelu, reestimate_batch_norm
from .spectra import load_network
from .training import initialised

OUTPUTS = 20  # outputs followed one by one; of more, so many random directions
STEPS = (0.001, 0.003, 0.01, 0.03, 0.1)  # relative sizes of a step from weights or inputs
PAIRS = ("all", "same class", "different classes")
NOISE = 0.01  # of the noisy copy that each image is also paired with, relative to the pixels

COVARIANCE = [
    "seed", "epoch", "gradient", "pairs", "inputs", "variance", "covariance", "correlation",
    "correlation_error", "paper", "mean_field", "effective_rank", "effective_rank_centred",
    "mean_gradient", "status",
]  # fmt: skip
LAYERS = [
    "seed", "epoch", "layer", "kind", "block", "response_std", "forward_variance",
    "weight_gradient", "weight_norm", "response_gradient", "saturated", "status",
]  # fmt: skip
SIMILARITY = [
    "seed", "epoch", "loss", "gradient_norm", "direction", "relative_step", "cosine", "status",
]  # fmt: skip


def stages_of(config, recipe, images, checkpoints, seed):
    """(epoch, network in evaluation mode) of one seed: before training, then at its checkpoints;
    (epoch, None) where training diverged before it had one."""
    network = initialised(config, recipe, images, seed)
    if batch_norm_layers(network):
        reestimate_batch_norm(network, images.x_train)
    yield 0, network.eval()
    kept = checkpoints[seed]
    epochs = [epoch for epoch in kept["checkpoints"] if epoch > 0]
    for epoch in epochs:
        network = load_network(config, recipe, images, kept["checkpoints"][epoch])
        if epoch < epochs[-1]:  # as for spectra: running averages lag while weights move fast
            reestimate_batch_norm(network, images.x_train)
        yield epoch, network
    if kept["status"] == "diverged":
        yield max(epochs, default=0) + 1, None


def measure(config, recipe, images, checkpoints, settings):
    """(covariance, layers, similarity), the frames of one network configuration.

    Args:
        config: with its seeds. recipe: resolved. images: datasets.Images.
        checkpoints: {seed: {"status": ..., "checkpoints": {epoch: state_dict}}}.
        settings: the config's `gradients: networks`: inputs (for pairs), batch (in training mode),
        seed.

    Columns as in docs/file-formats.md. Raises UserError where the data have fewer than two images.
    """
    if len(images.x_train) < 2:
        raise UserError("gradients of pairs: the data have 1 training image; expected at least 2")
    draw = settings["seed"]
    chosen = balanced_subset(images.y_train, settings["inputs"], draw)
    batch = balanced_subset(images.y_train, settings["batch"], draw)
    x = images.x_train[chosen]
    copies = noisy(x, NOISE, draw)
    theory = expected(config, x, copies)
    covariance, layers, similarity = [], [], []
    for seed in config["seeds"]:
        labels = training_labels(images, recipe, seed)
        for epoch, network in stages_of(config, recipe, images, checkpoints, seed):
            keys = {"seed": seed, "epoch": epoch}
            if network is None:
                for rows in (covariance, layers, similarity):
                    rows.append(keys | {"status": "diverged"})
                continue
            found = covariance_rows(network, x, copies, labels[chosen], {} if epoch else theory)
            covariance += [keys | row for row in found]
            taken = images.x_train[batch], labels[batch]
            layers += [keys | row for row in layer_rows(network, *taken)]
            similarity += [keys | row for row in similarity_rows(network, *taken, draw)]
    return tuple(pd.DataFrame(rows) for rows in (covariance, layers, similarity))


# --- Gradients at pairs of inputs.


def noisy(x, size, seed):
    """Images with Gaussian noise of `size` times the root mean square of all their pixels."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(x.shape, generator=generator).to(x)
    return x + size * float(x.square().mean().sqrt()) * noise


def expected(config, x, copies):
    """{pairs: {"paper": correlation, "mean_field": correlation}} at initialisation of a plain Type
    1 network, for all pairs of the images `x` and for pairs with their noisy copies; nothing for
    other networks.

    Its L blocks and stem are 2 L + 1 gates behind batch norm. Theorem 1 is 2^-(2 L + 1); mean field
    starts from the images' own covariance. Neither covers Li & Papyan's residual blocks, whose
    activation follows the addition.
    """
    if config["type"] not in ("fc", "fc_no_norm") or config["skip"] != "plain":
        return {}
    gates = 2 * config["depth"] + 1
    flat = torch.cat([x, copies]).flatten(1).double().cpu().numpy()
    norm = "batch" if batch_norm(config["type"]) else "none"
    *_, kernel = mean_field.hidden_covariance(flat @ flat.T, gates, norm)
    count = len(x)
    own, apart = np.diagonal(kernel).mean(), ~np.eye(count, dtype=bool)
    found = {
        "all": kernel[:count, :count][apart],
        "noisy copy": kernel[range(count), range(count, 2 * count)],
    }
    return {
        "all": {"paper": 0.5**gates, "mean_field": float(found["all"].mean() / own)},
        "noisy copy": {"mean_field": float(found["noisy copy"].mean() / own)},
    }


def rest_of(network, z):
    """Logits from the stem's normalised output `z`, before the first activation."""
    h = crelu(z) if network.crelu else F.relu(z)
    for block in network.blocks:
        h = block(h)
    return network.classifier(network.features(h))


def outputs_of(network, logits, kind, labels):
    """What is differentiated: N x P logits, or their losses N x 1."""
    if kind == "loss":
        return F.cross_entropy(logits, labels, reduction="none")[:, None]
    if logits.shape[1] <= OUTPUTS:
        return logits
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(logits.shape[1], OUTPUTS, generator=generator)
    return logits @ torch.linalg.qr(directions)[0].to(logits)


def per_input_gradients(network, x, labels, kind):
    """Gradients of each output at each image: with respect to the first hidden pre-activation, P x
    N x neurons, and to the image, P x N x pixels.

    In evaluation mode an output of one image depends on that image alone, so that the derivative of
    the sum over images holds the derivative at each.
    """
    x = x.detach().requires_grad_()
    z = network.norm(network.stem(x if network.convolutional else x.flatten(1)))
    outputs = outputs_of(network, rest_of(network, z), kind, labels)
    hidden, pixels = [], []
    for column in outputs.unbind(1):
        of_z, of_x = torch.autograd.grad(column.sum(), (z, x), retain_graph=True)
        hidden.append(of_z.flatten(1))
        pixels.append(of_x.flatten(1))
    return torch.stack(hidden).double(), torch.stack(pixels).double()


def covariance_rows(network, x, copies, labels, theory):
    """Rows of covariance.csv for one network: by what is differentiated, logits or loss, and by
    which pairs of images are averaged; at last each image with its noisy copy.

    Variance and covariance are sums over the outputs, means over neurons, and over images or pairs
    (definition 1 of Balduzzi et al. sums the outputs before; after training the logits of
    cross-entropy add up to almost a constant, so their sum's gradient would be that of what
    training leaves alone). The standard error of the correlation is the jackknife's over images.
    """
    same = labels[:, None] == labels[None, :]
    apart = ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    masks = dict(zip(PAIRS, (apart, apart & same, ~same), strict=True))
    for kind in ("logits", "loss"):
        hidden, pixels = per_input_gradients(network, x, labels, kind)
        others, _ = per_input_gradients(network, copies, labels, kind)
        gram = torch.einsum("pin,pjn->ij", hidden, hidden) / hidden.shape[2]
        finite = bool(gram.isfinite().all())
        collapsed = not finite or float(gram.diagonal().mean()) ** 0.5 < COLLAPSED
        for pairs, mask in masks.items():
            row = {"gradient": kind, "pairs": pairs, "inputs": len(x)}
            if not bool(mask.any()):
                continue
            if collapsed:
                yield row | {"status": "collapsed" if finite else "diverged"}
                continue
            correlation, error = pooled(gram.cpu().numpy(), mask.cpu().numpy())
            variance = float(gram.diagonal().mean())
            resolved = abs(correlation) >= 3 * error
            row |= {
                "variance": variance, "covariance": correlation * variance,
                "correlation": correlation, "correlation_error": error,
            }  # fmt: skip
            if kind == "logits":
                row |= theory.get(pairs, {})
            if pairs == "all":
                row |= whiteness(pixels)
            yield row | {"status": "ok" if resolved else "not_resolved"}
        row = {"gradient": kind, "pairs": "noisy copy", "inputs": len(x)}
        if collapsed:
            yield row | {"status": "collapsed" if finite else "diverged"}
            continue
        yield (
            row
            | with_copies(hidden, others)
            | (theory if kind == "logits" else {}).get("noisy copy", {})
        )


def with_copies(gradients, others):
    """variance, covariance, correlation and its error over images, of gradients P x N x neurons at
    images and at their copies."""
    neurons = gradients.shape[2]
    products = (gradients * others).sum((0, 2)) / neurons
    own = (gradients.square().sum((0, 2)) + others.square().sum((0, 2))) / (2 * neurons)
    correlation, error = (float(v) for v in ratio_of_means(products.cpu(), own.cpu()))
    return {
        "variance": float(own.mean()), "covariance": float(products.mean()),
        "correlation": correlation, "correlation_error": error,
        "status": "ok" if abs(correlation) >= 3 * error else "not_resolved",
    }  # fmt: skip


def pooled(gram, mask):
    """(correlation, its jackknife standard error over inputs) from products of gradients (M, M):
    the mean over the pairs of `mask` over the mean of the diagonal."""
    count = mask.sum(1)
    own, pairs = np.diagonal(gram), np.where(mask, gram, 0).sum(1)
    total, number = pairs.sum(), count.sum()
    value = total / number / own.mean()
    left = number - 2 * count
    known = left > 0
    without = (total - 2 * pairs[known]) / left[known]
    without /= (own.sum() - own[known]) / (len(own) - 1)
    spread = ((without - without.mean()) ** 2).sum() * (known.sum() - 1) / max(known.sum(), 1)
    return float(value), float(spread**0.5)


# --- Layers.


def in_training(network):
    """A copy in training mode whose running statistics are left as they are."""
    network = copy.deepcopy(network).train()
    for layer in batch_norm_layers(network):
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = None
    return network


def layers_of(network):
    """(kind, block, linear map, module whose output is the layer's response) of every layer with
    weights, from the image to the logits."""
    yield "stem", 0, network.stem, network.norm
    for number, block in enumerate(network.blocks, 1):
        norms = (block.linear1, block.linear2) if block.pre else (block.norm1, block.norm2)
        yield "first", number, block.linear1, norms[0]
        yield "second", number, block.linear2, norms[1]
    yield "classifier", len(network.blocks) + 1, network.classifier, network.classifier


def layer_rows(network, x, labels):
    """Rows of layers.csv for one network: what a training step on the batch `x` sees in each layer.

    response: after batch norm, before the activation or the addition. response_std is over images,
    positions and channels; He et al.'s figure 7 (their images and mode are not known). Batch norm
    gives every channel its own scale g and shift b, so that response_std^2 = mean g^2 + var b.
    forward_variance is that of the linear map's output over images and positions, mean over
    channels. weight_gradient is the norm of the loss's gradient by the weights, response_gradient
    the root mean square over images of the norm of its gradient by the response of that image, in
    units of a single image's loss. saturated: channels' (neurons') share whose response has one
    sign at all images and positions.
    """
    network = in_training(network)
    outputs, responses = {}, {}

    def keep(store, name):
        def hook(module, inputs, output):
            store[name] = output
            output.retain_grad()
            # What follows may work in place; this leaves the kept one as it is.
            return output.clone()

        return hook

    layers = list(layers_of(network))
    for name, (_, _, linear, module) in enumerate(layers):
        linear.register_forward_hook(keep(outputs, name))
        module.register_forward_hook(keep(responses, name))
    loss = F.cross_entropy(network(x), labels)
    loss.backward()
    for name, (kind, block, linear, _) in enumerate(layers):
        response, output = responses[name].detach(), outputs[name].detach()
        channels = response.transpose(0, 1).flatten(1)
        gradient = responses[name].grad.flatten(1).double() * len(x)
        values = {
            "response_std": float(response.double().std(unbiased=False)),
            "forward_variance": float(
                output.transpose(0, 1).flatten(1).double().var(1, unbiased=False).mean()
            ),
            "weight_gradient": float(linear.weight.grad.double().norm()),
            "weight_norm": float(linear.weight.detach().double().norm()),
            "response_gradient": float(gradient.square().sum(1).mean().sqrt()),
            "saturated": float(((channels > 0).all(1) | (channels <= 0).all(1)).double().mean()),
        }
        finite = all(np.isfinite(value) for value in values.values())
        status = "ok" if finite else "diverged"
        if finite and values["response_gradient"] < COLLAPSED:
            status = "collapsed"
        yield {"layer": name + 1, "kind": kind, "block": block} | (
            values | {"status": status} if finite else {"status": status}
        )


# --- Nearby points.


def loss_gradient(network, x, labels):
    """(loss, its gradient by all parameters as one vector) in training mode."""
    loss = F.cross_entropy(network(x), labels)
    parts = torch.autograd.grad(loss, list(network.parameters()))
    return float(loss.detach()), torch.cat([part.flatten() for part in parts]).double()


def similarity_rows(network, x, labels, seed):
    """Rows of similarity.csv for one network: cosine of the training gradient of the batch here and
    at a step away, by direction and relative size of the step.

    Directions: against the gradient and at random, both in the space of weights, with |step| =
    relative_step |weights|; and of the inputs, each image with Gaussian noise of relative_step
    times the root mean square of all pixels.
    """
    network = in_training(network)
    parameters = list(network.parameters())
    here = torch.cat([p.detach().flatten() for p in parameters])
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(here.shape, generator=generator).to(here)
    loss, gradient = loss_gradient(network, x, labels)
    row = {"loss": loss, "gradient_norm": float(gradient.norm())}
    if not np.isfinite(row["gradient_norm"]) or row["gradient_norm"] < COLLAPSED:
        finite = np.isfinite(row["gradient_norm"]) and np.isfinite(loss)
        yield (row if finite else {}) | {"status": "collapsed" if finite else "diverged"}
        return
    directions = {"gradient": -gradient.to(here), "random": noise}
    for name, direction in directions.items():
        for size in STEPS:
            moved = here + size * here.norm() / direction.norm() * direction
            nn.utils.vector_to_parameters(moved, parameters)
            _, there = loss_gradient(network, x, labels)
            yield row | compared(gradient, there, name, size)
    nn.utils.vector_to_parameters(here, parameters)
    for size in STEPS:
        _, there = loss_gradient(network, noisy(x, size, seed), labels)
        yield row | compared(gradient, there, "inputs", size)


def compared(gradient, there, direction, size):
    cosine = float(F.cosine_similarity(gradient, there, dim=0))
    row = {"direction": direction, "relative_step": size}
    if not np.isfinite(cosine):
        return row | {"status": "diverged"}
    return row | {"cosine": cosine, "status": "ok"}
