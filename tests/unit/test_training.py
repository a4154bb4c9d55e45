"""Training against a plain PyTorch loop, restarts, divergence, labels and batch-norm statistics."""

import copy
import math

import pytest
import torch
from torch import nn

from resnet_mechanisms.datasets import Images, balanced_subset, training_labels
from resnet_mechanisms.errors import UserError
from resnet_mechanisms.networks import Network, reestimate_batch_norm
from resnet_mechanisms.training import (
    dropped_blocks,
    epochs_of,
    flattened,
    learning_rate,
    optimizer_of,
    parameter_groups,
    train,
)

CONFIG = dict(type="fc", skip="resnet", depth=3, width=8)
RECIPE = dict(
    learning_rate=0.1, momentum=0.9, weight_decay=0.01, weight_decay_batch_norm=0.01,
    schedule="cosine", batch_size=20, steps=None, epochs=4, evaluate_every=2,
    labels="true", label_noise=0.0,
    stochastic_depth=0.0, stochastic_depth_per="batch", checkpoints=[],
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


def test_image_size_without_a_stem():
    with pytest.raises(UserError, match="40x40 pixels; expected squares of 8, 28, 32"):
        Network(dict(type="conv", skip="resnet", depth=2, width=2), (3, 40, 40), 5)
