"""Training one network from one seed, restartable at any epoch with the same result to the last
bit.

A seed's epochs draw their random numbers from a generator of their own (seed and epoch), so that
nothing but weights, batch-norm statistics and momentum has to be kept to continue. Finished seeds
and the last epoch of a running one lie in a state folder that the caller names after everything
that determines the weights.
"""

import contextlib
import copy
import fcntl
import io
import math
import pickle
import sys
import time

import torch
import torch.nn.functional as F

from . import backpropagation, files
from .datasets import training_labels
from .networks import Network, batch_norm_layers, reestimate_batch_norm


def save_state(content, path):
    """Write a state file: the whole new one or, whatever happens in between, the old one."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with files.atomically(path) as partial:
        partial.write_bytes(files.seal(buffer.getvalue()))


def load_state(path):
    """The content of a state file, or None where there is none or it is damaged (said on stderr; it
    is made anew)."""
    if not path.exists():
        return None
    try:
        return torch.load(io.BytesIO(files.unseal(path.read_bytes())), weights_only=True)
    except (ValueError, pickle.UnpicklingError) as error:
        print(f"{path}: damaged ({error}); made anew", file=sys.stderr)
        return None


def parameter_groups(network, recipe):
    """Groups for the optimiser: weights and classifier bias with `weight_decay`, batch-norm scales
    and shifts, where there are any, with `weight_decay_batch_norm`."""
    norm = [p for layer in batch_norm_layers(network) for p in layer.parameters()]
    ids = {id(p) for p in norm}
    rest = [p for p in network.parameters() if id(p) not in ids]
    groups = [
        {"params": rest, "weight_decay": recipe["weight_decay"]},
        {"params": norm, "weight_decay": recipe["weight_decay_batch_norm"]},
    ]
    return [group for group in groups if group["params"]]


def flattened(group):
    """The group with one flat vector as its parameter.

    The network's parameters and their gradients become views into it, so that a step of the
    optimiser is a few operations however deep the network is; on small networks that is a tenth of
    the time. Convolutions lie there with their channels last, the order they are fastest in.
    """

    def order(p):
        return (0, 2, 3, 1) if p.dim() == 4 else tuple(range(p.dim()))

    laid_out = [p.detach().permute(order(p)) for p in group["params"]]
    flat = torch.nn.Parameter(torch.cat([p.flatten() for p in laid_out]))
    flat.grad = torch.zeros_like(flat)
    sizes = [p.numel() for p in group["params"]]
    parts = zip(
        group["params"], laid_out, flat.detach().split(sizes), flat.grad.split(sizes), strict=True
    )
    for p, like, value, gradient in parts:
        back = (0, 3, 1, 2) if p.dim() == 4 else tuple(range(p.dim()))
        p.data, p.grad = (a.view(like.shape).permute(back) for a in (value, gradient))
    return group | {"params": [flat]}


def optimizer_of(network, recipe):
    """SGD on the network.

    Under stochastic depth a dropped branch has no gradient in a step and rests: no decay, no
    momentum. That needs separate parameters, and the fused step cannot do it.
    """
    groups = parameter_groups(network, recipe)
    rests = recipe["stochastic_depth"] > 0
    if not rests:
        groups = [flattened(group) for group in groups]
    return torch.optim.SGD(groups, lr=0.0, momentum=recipe["momentum"], fused=not rests)


def epochs_of(recipe, images):
    """(epochs, steps an epoch). `steps` of a recipe become the nearest whole number of epochs; a
    last, partial batch of an epoch is left out, because batch norm on a few images is noise."""
    count = len(images)
    steps_per_epoch = max(1, count // recipe["batch_size"])
    if recipe.get("steps") is not None:
        return round(recipe["steps"] / steps_per_epoch), steps_per_epoch
    return recipe["epochs"], steps_per_epoch


def learning_rate(recipe, progress):
    """The learning rate after a share `progress` in [0, 1] of all steps: a tenth of it during the
    warm-up, and by the schedule afterwards."""
    rate = recipe["learning_rate"]
    if progress < recipe["warm_up"]:
        return rate / 10
    if recipe["schedule"] == "cosine":
        return rate * 0.5 * (1 + math.cos(math.pi * progress))
    if recipe["schedule"] == "step":
        return rate / 10 ** sum(progress >= milestone for milestone in recipe["milestones"])
    return rate


def dropped_blocks(recipe, network, batch, generator):
    """Which branches a step keeps under stochastic depth: per block a bool, or 0/1 per sample; None
    without it."""
    if not recipe["stochastic_depth"]:
        return None
    survival = torch.tensor([block.survival for block in network.blocks])
    if recipe["stochastic_depth_per"] == "batch":
        return (torch.rand(len(survival), generator=generator) < survival).tolist()
    kept = torch.rand(len(survival), batch, generator=generator) < survival[:, None]
    return kept.float().to(next(network.parameters()).device)


def augmented(x, kind, generator):
    """A batch of images N x channels x H x W changed at random, on its device: `flip` mirrors half
    of them, `crop` shifts each by up to an eighth of its side (zeros move in), `crop_flip` does
    both, `none` neither."""
    if "crop" in kind:
        side = max(1, x.shape[3] // 8)
        padded = F.pad(x, [side] * 4)
        shifts = torch.randint(0, 2 * side + 1, (2, len(x), 1), generator=generator).to(x.device)
        rows, columns = (
            shift + torch.arange(size, device=x.device)
            for shift, size in zip(shifts, x.shape[2:], strict=True)
        )
        image = torch.arange(len(x), device=x.device)[:, None, None, None]
        channel = torch.arange(x.shape[1], device=x.device)[None, :, None, None]
        x = padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]
    if "flip" in kind:
        mirrored = (torch.rand(len(x), generator=generator) < 0.5).to(x.device)
        x = torch.where(mirrored[:, None, None, None], x.flip(3), x)
    return x


def penalised(network, x, recipe):
    """(logits, penalty) of a batch in training mode, for recipes that act on the path h_0..h_L.

    path_energy / 2 times the sum over blocks of the batch mean of ||F_l(h_{l-1})||^2, and
    step_alignment times 1 - the mean cosine of consecutive steps h_l - h_{l-1}, which straightens
    the path where it is positive and bends it where it is negative. The interventions of the
    Residual Alignment study, not of the paper.
    """
    h = network.first_state(x)
    energy, cosines, last = 0.0, [], None
    for block in network.blocks:
        f = block.branch(h)
        energy = energy + f.square().flatten(1).sum(1).mean()
        before, h = h, block.activation(f + block.skip(h))
        step = (h - before).flatten(1) if h.shape == before.shape else None
        if step is not None and last is not None and step.shape == last.shape:
            cosines.append(F.cosine_similarity(step, last).mean())
        last = step
    penalty = recipe["path_energy"] / 2 * energy
    if cosines:
        penalty = penalty + recipe["step_alignment"] * (1 - torch.stack(cosines).mean())
    return network.classifier(network.features(h)), penalty


@torch.no_grad()
def evaluate(network, x, y, batch_size=2000):
    """(mean cross-entropy, accuracy) in evaluation mode."""
    network.eval()
    loss = correct = 0.0
    for xb, yb in zip(x.split(batch_size), y.split(batch_size), strict=True):
        logits = network(xb)
        loss += F.cross_entropy(logits, yb, reduction="sum").item()
        correct += (logits.argmax(1) == yb).sum().item()
    return loss / len(y), correct / len(y)


def finite(value):
    """The value, or None (an empty cell) where it is not a finite number."""
    return value if value is not None and math.isfinite(value) else None


def initialised(config, recipe, images, seed):
    """The network that training starts from, on the device of the images (datasets.Images)."""
    torch.manual_seed(seed)
    shape, classes = images.x_train.shape[1:], len(images.classes)
    how = recipe["stochastic_depth"], recipe["initialisation"]
    return Network(config, shape, classes, *how).to(images.x_train.device)


def train(config, recipe, images, seed, state, save_seconds=1.0, stop_after=None):
    """Train one seed, or continue it, or read it from `state` where it is finished.

    Args:
        config: network configuration (type, skip, depth, width).
        recipe: resolved recipe.
        images: datasets.Images on the device to train on.
        seed: of initialisation, order of images, labels and stochastic depth.
        state: folder (exists) for this network's finished and running seeds.
        save_seconds: an epoch's state is written when so many seconds have passed since the last.
        stop_after: stop after this epoch as if killed (for tests); returns None then.

    Returns: {"status": "ok" or "diverged", "history": [row, ...],
    "checkpoints": {epoch: state_dict}}; a network whose loss or weights cease to be finite is
    recorded as diverged, with the rows and checkpoints up to then.
    """
    finished = state / f"seed{seed}.pt"
    running = state / f"seed{seed}.running.pt"
    result = load_state(finished)
    if result is not None:
        print(f"seed {seed}: finished before", file=sys.stderr)
        running.unlink(missing_ok=True)
        return result

    x, y = images.x_train, training_labels(images, recipe, seed)
    network = initialised(config, recipe, images, seed)
    if network.convolutional:
        network.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    optimizer = optimizer_of(network, recipe)
    epochs, steps_per_epoch = epochs_of(recipe, x)
    wanted = {epochs, *recipe["checkpoints"]}
    result = {"status": "ok", "history": [], "checkpoints": {}}
    first = 0
    if (kept := load_state(running)) is not None:
        network.load_state_dict(kept["network"])
        optimizer.load_state_dict(kept["optimizer"])
        result, first = kept["result"], kept["epoch"]
        print(f"seed {seed}: continued after epoch {first}", file=sys.stderr)
    elif epochs == 0 or 0 in wanted:
        record(result, network, images, y, seed, 0, recipe["learning_rate"], None, checkpoint=True)

    began = saved = time.monotonic()
    for epoch in range(first + 1, epochs + 1):
        running_loss, rate = train_epoch(
            network, optimizer, recipe, x, y, seed, epoch, epochs * steps_per_epoch, steps_per_epoch
        )
        if not (
            math.isfinite(running_loss) and all(p.isfinite().all() for p in network.parameters())
        ):
            result["status"] = "diverged"
            row = dict(seed=seed, epoch=epoch, learning_rate=rate, status="diverged")
            result["history"].append(row)
            print(f"seed {seed}: diverged in epoch {epoch}", file=sys.stderr)
            break
        if epoch in wanted or epoch % recipe["evaluate_every"] == 0:
            record(result, network, images, y, seed, epoch, rate, running_loss, epoch in wanted)
            left = (time.monotonic() - began) / (epoch - first) * (epochs - epoch)
            row = result["history"][-1]
            print(
                f"seed {seed}: epoch {epoch}/{epochs}, loss {row['train_loss']}, "
                f"training accuracy {row['train_accuracy']:.4f}, "
                f"test accuracy {row['test_accuracy']:.4f}, {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )
        if epoch < epochs and time.monotonic() - saved >= save_seconds:
            content = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
            save_state(content | {"result": result, "epoch": epoch}, running)
            saved = time.monotonic()
        if epoch == stop_after:
            return None
    save_state(result, finished)
    running.unlink(missing_ok=True)
    return result


def train_epoch(network, optimizer, recipe, x, y, seed, epoch, steps, steps_per_epoch):
    """One pass over the images in a fresh random order; returns (mean training-mode loss without
    penalties, last learning rate)."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + epoch)
    order = torch.randperm(len(x), generator=generator).to(x.device)
    size = min(recipe["batch_size"], len(x))
    total = torch.zeros((), device=x.device)
    network.train()
    acts_on_path = recipe["path_energy"] != 0 or recipe["step_alignment"] != 0
    forward = torch.compile(network) if recipe["compile"] else network
    precision = torch.autocast(x.device.type, torch.bfloat16, enabled=recipe["mixed_precision"])
    written_out = None
    if backpropagation.possible(network, recipe, x.device):
        written_out = backpropagation.Backpropagation(network)
    for step in range(steps_per_epoch):
        batch = order[step * size : (step + 1) * size]
        rate = learning_rate(recipe, ((epoch - 1) * steps_per_epoch + step) / steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        images = augmented(x[batch], recipe["augment"], generator)
        if written_out:
            loss = written_out(images, y[batch])
        else:
            with precision:
                if acts_on_path:
                    logits, penalty = penalised(network, images, recipe)
                else:
                    logits = forward(images, dropped_blocks(recipe, network, size, generator))
                    penalty = 0.0
                loss = F.cross_entropy(logits, y[batch])
            optimizer.zero_grad(set_to_none=recipe["stochastic_depth"] > 0)
            (loss + penalty).backward()
        optimizer.step()
        total += loss.detach()
    return total.item() / steps_per_epoch, rate


def record(result, network, images, y, seed, epoch, rate, running_loss, checkpoint):
    """Append a history row and, where asked for, a checkpoint with the loss at re-estimated
    batch-norm statistics.

    Before the first step the running statistics of batch norm hold nothing, so those of the
    training images are measured and kept; later ones are the running averages that training left.
    """
    reestimated = None
    if checkpoint:
        other = copy.deepcopy(network)
        reestimate_batch_norm(other, images.x_train)
        reestimated, _ = evaluate(other, images.x_train, y)
        kept = other if epoch == 0 else network
        result["checkpoints"][epoch] = {
            k: v.detach().clone().cpu() for k, v in kept.state_dict().items()
        }
        network = kept
    train_loss, train_accuracy = evaluate(network, images.x_train, y)
    test_loss, test_accuracy = evaluate(network, images.x_test, images.y_test)
    result["history"].append(
        dict(
            seed=seed, epoch=epoch, learning_rate=rate, running_train_loss=finite(running_loss),
            train_loss=finite(train_loss), train_accuracy=train_accuracy,
            test_loss=finite(test_loss), test_accuracy=test_accuracy,
            train_loss_bn_reestimated=finite(reestimated), status="ok",
        )
    )  # fmt: skip


@contextlib.contextmanager
def exclusive(folder):
    """Hold the folder's lock: a second process that would train the same network waits for the
    first, and then finds the finished seeds. The kernel releases the lock of a killed process."""
    with open(folder / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
