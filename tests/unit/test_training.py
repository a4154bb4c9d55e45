"""Training against a plain PyTorch loop, restarts, divergence, labels and batch-norm statistics."""

import copy
import importlib
import inspect
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers import ROOT
from resnet_mechanisms.alignment import trajectory_scores
from resnet_mechanisms.datasets import Images, balanced_subset, training_labels
from resnet_mechanisms.errors import UserError
from resnet_mechanisms.networks import Network, reestimate_batch_norm
from resnet_mechanisms.stems import stem_of
from resnet_mechanisms.training import (
    augmented,
    dropped_blocks,
    epochs_of,
    flattened,
    learning_rate,
    optimizer_of,
    parameter_groups,
    penalised,
    train,
)

CONFIG = dict(type="fc", skip="resnet", depth=3, width=8)
RECIPE = dict(
    learning_rate=0.1, momentum=0.9, weight_decay=0.01, weight_decay_batch_norm=0.01,
    schedule="cosine", milestones=[], warm_up=0.0, initialisation="kaiming",
    batch_size=20, steps=None, epochs=4, evaluate_every=2,
    labels="true", label_noise=0.0,
    stochastic_depth=0.0, stochastic_depth_per="batch", checkpoints=[], augment="none",
    path_energy=0.0, step_alignment=0.0, mixed_precision=False, compile=False,
)  # fmt: skip


@pytest.fixture
def images():
    """Three classes of 8x8 images: noise around a random pattern each."""
    g = torch.Generator().manual_seed(0)
    patterns = torch.rand(3, 1, 8, 8, generator=g)

    def split(n):
        y = torch.arange(n) % 3
        return patterns[y] + 0.3 * torch.rand(n, 1, 8, 8, generator=g), y

    return Images(*split(90), *split(30), ["a", "b", "c"])


class PlainMLP(nn.Module):
    """The network of CONFIG as anybody would write it."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Linear(64, 8, bias=False), nn.BatchNorm1d(8)
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(),
                nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8),
            )
            for _ in range(3)
        )  # fmt: skip
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = torch.relu(self.norm(self.stem(x.flatten(1))))
        for branch in self.branches:
            h = torch.relu(h + branch(h))
        return self.head(h)


def test_same_losses_as_a_plain_loop(images, tmp_path):
    recipe = RECIPE | dict(epochs=12, evaluate_every=1)
    ours = train(CONFIG, recipe, images, 5, tmp_path)

    torch.manual_seed(5)
    start = Network(CONFIG, (1, 8, 8), 3)
    plain = PlainMLP()
    places = {"linear1": 0, "norm1": 1, "linear2": 3, "norm2": 4}
    renamed = {}
    for name, value in start.state_dict().items():
        name = name.replace("classifier", "head")
        if name.startswith("blocks"):
            _, block, layer, rest = name.split(".")
            name = f"branches.{block}.{places[layer]}.{rest}"
        renamed[name] = value
    plain.load_state_dict(renamed)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    steps = 12 * 4
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for epoch in range(1, 13):
        order = torch.randperm(90, generator=torch.Generator().manual_seed(1_000_003 * 5 + epoch))
        total = 0.0
        for batch in order[:80].split(20):
            loss = nn.functional.cross_entropy(plain(images.x_train[batch]), images.y_train[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        losses.append(total / 4)
    # 48 steps: rounding differs in the last bits only (the optimiser is fused here).
    measured = [row["running_train_loss"] for row in ours["history"]]
    assert measured == pytest.approx(losses, rel=1e-3)
    assert measured[:4] == pytest.approx(losses[:4], rel=1e-5)
    assert losses[-1] < losses[0] / 2


def equal(a, b):
    return a["history"] == b["history"] and all(
        torch.equal(a["checkpoints"][e][k], b["checkpoints"][e][k])
        for e in a["checkpoints"]
        for k in a["checkpoints"][e]
    )


@pytest.mark.parametrize(
    "recipe", [{}, dict(stochastic_depth=0.5), dict(labels="random", checkpoints=[0, 1])]
)
def test_a_restart_gives_the_same_bits(images, tmp_path, recipe):
    recipe = RECIPE | recipe
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole = train(CONFIG, recipe, images, 1, tmp_path / "whole")
    for stop in (1, 3):
        assert (
            train(CONFIG, recipe, images, 1, tmp_path / "parts", save_seconds=0, stop_after=stop)
            is None
        )
    parts = train(CONFIG, recipe, images, 1, tmp_path / "parts", save_seconds=0)
    assert equal(whole, parts)
    assert sorted(whole["checkpoints"]) == sorted({4, *recipe["checkpoints"]})
    # A finished seed is read, not trained again, and its epoch state is gone.
    assert [p.name for p in (tmp_path / "parts").iterdir()] == ["seed1.pt"]
    before = (tmp_path / "parts" / "seed1.pt").stat().st_mtime_ns
    assert equal(whole, train(CONFIG, recipe, images, 1, tmp_path / "parts"))
    assert (tmp_path / "parts" / "seed1.pt").stat().st_mtime_ns == before


def test_a_damaged_state_is_made_anew(images, tmp_path, capsys):
    whole = train(CONFIG, RECIPE, images, 1, tmp_path)
    file = tmp_path / "seed1.pt"
    file.write_bytes(file.read_bytes()[:100])
    assert equal(whole, train(CONFIG, RECIPE, images, 1, tmp_path))
    assert "damaged" in capsys.readouterr().err


def test_seeds_differ_and_evaluation_does_not_change_training(images, tmp_path):
    results = [train(CONFIG, RECIPE, images, seed, tmp_path) for seed in (1, 2)]
    assert not equal(*results)
    (tmp_path / "often").mkdir()
    often = train(CONFIG, RECIPE | dict(evaluate_every=1), images, 1, tmp_path / "often")
    weights = [r["checkpoints"][4]["classifier.weight"] for r in (results[0], often)]
    assert torch.equal(*weights)


def test_divergence_is_recorded(images, tmp_path):
    result = train(CONFIG, RECIPE | dict(learning_rate=1e30, epochs=20), images, 1, tmp_path)
    assert result["status"] == "diverged" and result["history"][-1]["status"] == "diverged"
    assert not result["checkpoints"]
    numbers = [v for row in result["history"] for v in row.values() if isinstance(v, float)]
    assert all(map(math.isfinite, numbers))


def test_untrained_network_has_measured_statistics(images, tmp_path):
    result = train(CONFIG, RECIPE | dict(epochs=0), images, 1, tmp_path)
    weights = result["checkpoints"][0]
    torch.manual_seed(1)
    stem = Network(CONFIG, (1, 8, 8), 3).stem.weight
    assert torch.equal(weights["stem.weight"], stem)
    z = images.x_train.flatten(1) @ stem.T
    torch.testing.assert_close(weights["norm.running_mean"], z.mean(0))
    torch.testing.assert_close(weights["norm.running_var"], z.var(0))
    assert [row["epoch"] for row in result["history"]] == [0]


def test_decay_is_split_between_weights_and_batch_norm(images):
    network = Network(CONFIG, (1, 8, 8), 3)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    groups = parameter_groups(network, RECIPE | dict(weight_decay_batch_norm=0.0))
    rest, norm = map(flattened, groups)
    assert norm["weight_decay"] == 0 and rest["weight_decay"] == 0.01
    assert norm["params"][0].numel() == 2 * 8 * 7
    assert rest["params"][0].numel() == 64 * 8 + 6 * 64 + 8 * 3 + 3
    # Flattening changes no value, and a step on the flat vectors is a step of the network.
    assert all(torch.equal(p, before[name]) for name, p in network.named_parameters())
    network(images.x_train).sum().backward()
    gradients = {name: p.grad.clone() for name, p in network.named_parameters()}
    torch.optim.SGD([rest, norm], lr=0.5).step()
    for name, p in network.named_parameters():
        decay = 0 if "norm" in name else 0.01
        expected = before[name] - 0.5 * (gradients[name] + decay * before[name])
        torch.testing.assert_close(p.detach(), expected)


def test_steps_and_schedule():
    x = torch.zeros(1500, 1)
    assert epochs_of(dict(steps=1200, batch_size=125), x) == (100, 12)
    assert epochs_of(dict(steps=1200, batch_size=125), x[:450]) == (400, 3)
    assert epochs_of(dict(steps=None, epochs=7, batch_size=125), x[:50]) == (7, 1)
    assert [learning_rate(RECIPE, p) for p in (0, 0.5, 1)] == pytest.approx([0.1, 0.05, 0])
    assert learning_rate(RECIPE | dict(schedule="constant"), 0.9) == 0.1
    # He et al. 2016: divided by 10 after 32k and 48k of 64k steps; 110 layers start with .01.
    step = RECIPE | dict(schedule="step", milestones=[0.5, 0.75], warm_up=400 / 64_000)
    steps = (0, 399, 400, 31_999, 32_000, 47_999, 48_000, 63_999)
    rates = [learning_rate(step, number / 64_000) for number in steps]
    assert rates == pytest.approx([0.01, 0.01, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_labels(images):
    random = training_labels(images, RECIPE | dict(labels="random"), 3)
    assert torch.equal(random.sort()[0], images.y_train.sort()[0])
    assert 0.2 < (random == images.y_train).float().mean() < 0.5  # a third by chance
    noisy = training_labels(images, RECIPE | dict(labels="noisy", label_noise=0.2), 3)
    assert (noisy != images.y_train).sum() == 18
    assert torch.equal(training_labels(images, RECIPE, 3), images.y_train)
    assert not torch.equal(random, training_labels(images, RECIPE | dict(labels="random"), 4))


def test_balanced_subset():
    labels = torch.tensor([0] * 50 + [1] * 3 + [2] * 20)
    chosen = balanced_subset(labels, 8, 0)
    counts = torch.bincount(labels[chosen], minlength=3).tolist()
    assert sorted(counts) == [2, 3, 3] and len(set(chosen.tolist())) == 8
    assert torch.equal(chosen, balanced_subset(labels, 8, 0))
    # A class that runs out is made up for by the others.
    assert torch.bincount(labels[balanced_subset(labels, 20, 0)])[1] == 3


def test_stochastic_depth():
    network = Network(CONFIG, (1, 8, 8), 3, stochastic_depth=0.6)
    assert [b.survival for b in network.blocks] == pytest.approx([0.8, 0.6, 0.4])
    block = network.blocks[1]
    h = torch.rand(5, 8)
    block.train()
    assert torch.equal(block(h, False), torch.relu(h))
    kept = block(h, torch.tensor([1.0, 0, 1, 0, 0]))
    assert torch.equal(kept[[1, 3, 4]], h[[1, 3, 4]]) and not torch.equal(kept[0], h[0])
    block.eval()
    full = copy.deepcopy(block)
    full.survival = 1.0
    torch.testing.assert_close(block.branch(h), 0.6 * full.branch(h))
    recipe = RECIPE | dict(stochastic_depth=0.6)
    draws = [
        dropped_blocks(recipe, network, 5, torch.Generator().manual_seed(s)) for s in range(2000)
    ]
    shares = torch.tensor(draws).double().mean(0)  # Binomial standard error sqrt(.25/2000) = .011.
    assert shares.tolist() == pytest.approx([0.8, 0.6, 0.4], abs=0.04)
    with pytest.raises(UserError, match="stochastic_depth"):
        Network(CONFIG | dict(skip="plain"), (1, 8, 8), 3, stochastic_depth=0.5)


def test_a_dropped_branch_rests(images):
    """No gradient, no decay and no momentum in a step that drops it; the others go on."""
    recipe = RECIPE | dict(stochastic_depth=0.5)
    network = Network(CONFIG, (1, 8, 8), 3, stochastic_depth=0.5)
    optimizer = optimizer_of(network, recipe)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    for keep in ([True] * 3, [True, False, True]):
        before = [block.linear1.weight.detach().clone() for block in network.blocks]
        optimizer.zero_grad()
        network(images.x_train, keep).sum().backward()
        optimizer.step()
        changed = [
            not torch.equal(b.linear1.weight, w)
            for b, w in zip(network.blocks, before, strict=True)
        ]
        assert changed == keep


def test_reestimated_statistics_do_not_depend_on_the_momentum(images):
    network = Network(CONFIG, (1, 8, 8), 3)
    reestimate_batch_norm(network, images.x_train)
    z = network.stem(images.x_train.flatten(1))
    torch.testing.assert_close(network.norm.running_mean, z.mean(0))
    assert network.norm.momentum == 0.1 and not network.training


@pytest.mark.parametrize("size, kind, state, features", [
    (8, "conv", 4, 16), (28, "conv", 16, 16), (32, "conv", 16, 16),
    (8, "conv_down", 2, 8), (28, "conv_down", 8, 32), (32, "conv_down", 8, 32),
])  # fmt: skip
def test_convolutional_shapes(size, kind, state, features):
    """States 16x16 (4x4 for digits), halved by Type 3; heads as the authors' (average pooling 4 and
    2)."""
    network = Network(dict(type=kind, skip="resnet", depth=4, width=2), (3, size, size), 5).eval()
    states = network.states(torch.rand(1, 3, size, size))
    assert states[-1].shape[2:] == (state, state) and len(states) == 5
    channels = 4 if kind == "conv_down" else 2
    pooled = {8: state, 28: 4, 32: 4}[size]
    assert network.classifier.in_features == channels * pooled**2


@pytest.mark.parametrize(
    "side, state", [(12, 6), (16, 8), (17, 16), (48, 16), (64, 16), (100, 16), (224, 16)]
)
def test_stems_of_other_sizes(side, state):
    """Larger images are strided down to 16 x 16, no further than they must be."""
    stem = stem_of(side)
    network = Network(dict(type="conv", skip="resnet", depth=1, width=2), (1, side, side), 5)
    image = torch.zeros(1, 1, side, side, requires_grad=True)
    out = network.stem(image)
    assert out.shape[2:] == (state, state) == (stem.state,) * 2
    torch.nn.init.ones_(network.stem.weight)
    network.stem(image).sum().backward()
    if (
        stem.stride <= 5
    ):  # no gaps between windows; up to a stride may be left over at the far edges
        inner = image.grad[..., : side - stem.stride + 1, : side - stem.stride + 1]
        assert (inner > 0).all()


def test_images_that_are_no_squares():
    with pytest.raises(UserError, match="40x32 pixels; expected squares"):
        Network(dict(type="conv", skip="resnet", depth=2, width=2), (3, 40, 32), 5)


@pytest.mark.parametrize("skip", ["resnet", "plain"])
def test_pre_activation_as_written_out(skip):
    """He et al. 2016b, equation 1 with relu and batch norm before the weights, step by step."""
    torch.manual_seed(0)
    network = Network(dict(type="fc_pre", skip=skip, depth=3, width=6), (1, 8, 8), 4).double()
    x = torch.rand(10, 1, 8, 8, dtype=torch.double)

    def norm(z):  # at initialisation: scale 1, shift 0, the batch's own statistics
        return (z - z.mean(0)) / torch.sqrt(z.var(0, correction=0) + 1e-5)

    h = norm(x.flatten(1) @ network.stem.weight.T).relu()
    for block in network.blocks:
        a = norm(h).relu() @ block.linear1.weight.T
        f = norm(a).relu() @ block.linear2.weight.T
        h = f + h if skip == "resnet" else f
    logits = norm(h).relu() @ network.classifier.weight.T + network.classifier.bias
    torch.testing.assert_close(network.train()(x), logits, rtol=0, atol=1e-12)
    assert [s.shape for s in network.states(x)] == [(10, 6)] * 4


def test_augmentation_moves_and_mirrors_whole_images():
    """Every image of the batch is one of its own shifts or mirror images, and all of them occur."""
    generator = torch.Generator().manual_seed(0)
    image = torch.arange(1.0, 129.0).view(1, 2, 8, 8)
    x = image.repeat(300, 1, 1, 1)
    assert torch.equal(augmented(x, "none", generator), x)
    padded = F.pad(image, [1] * 4)
    shifts = [padded[0, :, i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
    mirrored = [s.flip(2) for s in shifts]
    for kind, allowed in (("flip", [image[0], image[0].flip(2)]), ("crop", shifts),
                          ("crop_flip", shifts + mirrored)):  # fmt: skip
        out = augmented(x, kind, generator)
        found = [next(i for i, a in enumerate(allowed) if torch.equal(a, o)) for o in out]
        counts = np.bincount(found, minlength=len(allowed))
        # Each of m outcomes has probability 1/m: 300/m within five binomial standard errors.
        m = len(allowed)
        assert (abs(counts - 300 / m) <= 5 * (300 * (1 / m) * (1 - 1 / m)) ** 0.5).all()


def test_penalties_by_hand(images):
    torch.manual_seed(0)
    network = Network(dict(type="fc", skip="resnet", depth=4, width=6), (1, 8, 8), 3).train()
    recipe = RECIPE | dict(path_energy=0.3, step_alignment=0.7)
    x = images.x_train
    logits, penalty = penalised(network, x, recipe)
    with torch.no_grad():
        torch.testing.assert_close(logits, network(x))
        states = network.states(x)
        energy = sum(
            b.branch(h).square().sum(1).mean() for b, h in zip(network.blocks, states, strict=False)
        )
        steps = [b - a for a, b in zip(states, states[1:], strict=False)]
        cosines = [
            (a * b).sum(1) / a.norm(dim=1) / b.norm(dim=1)
            for a, b in zip(steps, steps[1:], strict=False)
        ]
        expected = 0.15 * energy + 0.7 * (1 - torch.stack(cosines).mean())
    torch.testing.assert_close(penalty, expected)
    # In training mode batch norm makes the energy of a branch its scale and shift, squared.
    affine = sum(
        b.norm2.weight.square().sum() + b.norm2.bias.square().sum() for b in network.blocks
    )
    assert energy.item() == pytest.approx(affine.item(), rel=1e-3)


def test_penalties_act_on_what_they_name(images, tmp_path):
    """Straighter paths with a positive step alignment, bent ones with a negative, shorter branches
    with path energy."""
    found = {}
    for name, change in {
        "none": {}, "straight": dict(step_alignment=1.0), "bent": dict(step_alignment=-1.0),
        "short": dict(path_energy=0.1),
    }.items():  # fmt: skip
        folder = tmp_path / name
        folder.mkdir()
        result = train(CONFIG | dict(depth=4), RECIPE | dict(epochs=12) | change, images, 3, folder)
        network = Network(CONFIG | dict(depth=4), (1, 8, 8), 3)
        network.load_state_dict(result["checkpoints"][12])
        with torch.no_grad():
            states = network.eval().states(images.x_train)
            scores, _ = trajectory_scores(states)
            energy = sum(
                b.branch(h).square().sum(1).mean()
                for b, h in zip(network.blocks, states, strict=False)
            )
        found[name] = scores["step_cosine"].mean().item(), energy.item()
    assert found["straight"][0] > found["none"][0] + 0.1
    assert found["bent"][0] < found["none"][0] - 0.1
    assert found["short"][1] < 0.7 * found["none"][1]


def test_mixed_precision_follows_full_precision(images, tmp_path):
    """bfloat16 rounds to 8 bits, 0.4 %: some per cent in the mean loss of the first epoch; later
    two paths of small networks part."""
    losses = []
    for mixed in (False, True):
        folder = tmp_path / str(mixed)
        folder.mkdir()
        recipe = RECIPE | dict(epochs=1, mixed_precision=mixed)
        row = train(CONFIG, recipe, images, 3, folder)["history"][-1]
        losses.append(row["running_train_loss"])
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_convolutions_are_laid_out_with_channels_last(images, tmp_path):
    network = Network(dict(type="conv", skip="resnet", depth=2, width=4), (1, 8, 8), 3)
    network.to(memory_format=torch.channels_last)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    optimizer = optimizer_of(network, RECIPE)
    assert network.blocks[0].linear1.weight.is_contiguous(memory_format=torch.channels_last)
    for name, p in network.named_parameters():
        assert torch.equal(p, before[name]), name
    network.train()
    F.cross_entropy(network(images.x_train), images.y_train).backward()
    flat = optimizer.param_groups[0]["params"][0]
    total = sum(p.grad.square().sum() for n, p in network.named_parameters() if "norm" not in n)
    assert flat.grad.square().sum().item() == pytest.approx(total.item(), rel=1e-5)


def test_state_is_named_after_all_code_that_the_weights_depend_on(monkeypatch):
    """Every library module that training and the networks take something from, but what only
    carries errors."""
    monkeypatch.syspath_prepend(ROOT / "workflow" / "scripts")
    command = importlib.import_module("train")

    named = {module.__name__ for module in command.CODE_OF_WEIGHTS}
    used = set()
    for module in command.CODE_OF_WEIGHTS[-1], command.networks:
        for value in vars(module).values():
            used.add(
                value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", "")
            )
    used = {name for name in used if str(name).startswith("resnet_mechanisms.")}
    assert len(used) >= 5
    # What keeps files whole does not change what is in them.
    assert used - {"resnet_mechanisms.errors", "resnet_mechanisms.files"} <= named
