"""Gradients and responses of networks against loops over images in float64, closed forms and mean
field."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from resnet_mechanisms import config, datasets, effective_rank, mean_field, network_gradients
from resnet_mechanisms.errors import UserError
from resnet_mechanisms.network_gradients import (
    covariance_rows,
    expected,
    layer_rows,
    measure,
    noisy,
    per_input_gradients,
    pooled,
    similarity_rows,
)
from resnet_mechanisms.network_types import TYPES
from resnet_mechanisms.networks import Network, reestimate_batch_norm

RECIPE = {key: default for key, (_, default) in config.RECIPE.items()} | {"learning_rate": 0.1}
TWINS = [
    (kind, skip)
    for kind in TYPES
    for skip in ("resnet", "plain")
    if (kind, skip) != ("fc_crelu", "resnet")
]


def network_of(kind, skip, depth, width, seed=0, data=None, **more):
    """A random network in evaluation mode; batch norm has random scales, shifts and statistics."""
    torch.manual_seed(seed)
    described = dict(type=kind, skip=skip, depth=depth, width=width)
    network = Network(described, (1, 8, 8), 4, **more)
    for name, parameter in network.named_parameters():
        if "norm" in name:
            parameter.data += 0.3 * torch.randn(parameter.shape)
    reestimate_batch_norm(network, images(40, seed=1)[0])
    return network.eval()


def images(count, seed=0, side=8):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 1, side, side, generator=generator)
    return x, torch.arange(count) % 4


def cosine(a, b):
    return float(F.cosine_similarity(a.flatten(), b.flatten(), dim=0))


@pytest.mark.parametrize(("kind", "skip"), TWINS)
def test_gradients_of_images_are_those_of_one_at_a_time(kind, skip):
    """In float64, one image, one output at a time, the first pre-activation found by a hook."""
    network = network_of(kind, skip, 6, 3).double()
    x, labels = images(3)
    x = x.double()
    seen = {}
    network.norm.register_forward_hook(lambda module, _, output: seen.update(z=output.clone()))

    def hook(module, inputs, output):
        # A leaf in place of the output: what is differentiated by.
        seen["z"] = output.detach().clone().requires_grad_()
        return seen["z"].clone()

    exact = copy.deepcopy(network)
    exact.norm.register_forward_hook(hook)
    for kind_of, outputs in (("logits", 4), ("loss", 1)):
        hidden, pixels = per_input_gradients(network, x, labels, kind_of)
        assert hidden.shape[:2] == pixels.shape[:2] == (outputs, 3)
        for image in range(3):
            for output in range(outputs):

                def value(logits, image=image, output=output, kind_of=kind_of):
                    if kind_of == "loss":
                        return -F.log_softmax(logits, 1)[0, labels[image]]
                    return logits[0, output]

                value(exact(x[image : image + 1])).backward()
                torch.testing.assert_close(
                    hidden[output, image], seen["z"].grad.flatten(), rtol=1e-9, atol=1e-12
                )
                one = x[image : image + 1].clone().requires_grad_()
                value(network(one)).backward()
                torch.testing.assert_close(
                    pixels[output, image], one.grad.flatten(), rtol=1e-9, atol=1e-12
                )


def test_many_outputs_are_followed_along_orthonormal_directions():
    """The mean square over random orthonormal directions is that over outputs, on average."""
    torch.manual_seed(0)
    network = Network(dict(type="fc", skip="plain", depth=1, width=8), (1, 8, 8), 60)
    logits = torch.randn(5, 60, dtype=torch.double)
    outputs = network_gradients.outputs_of(network, logits, "logits", None)
    assert outputs.shape == (5, network_gradients.OUTPUTS)
    directions = torch.linalg.lstsq(logits.T @ logits + torch.eye(60), logits.T @ outputs)[0]
    assert directions.shape == (60, 20)
    identity = network_gradients.outputs_of(network, torch.eye(60).double(), "logits", None)
    torch.testing.assert_close(identity.T @ identity, torch.eye(20).double(), atol=1e-6, rtol=0)


def rows_of(network, count=12, theory=None):
    x, labels = images(count)
    found = covariance_rows(network, x, noisy(x, 0.01, 0), labels, theory or {})
    return {(row["gradient"], row["pairs"]): row for row in found}


def test_covariances_are_means_over_pairs():
    network = network_of("conv", "resnet", 2, 3)
    rows = rows_of(network)
    x, labels = images(12)
    for kind in ("logits", "loss"):
        hidden, _ = per_input_gradients(network, x, labels, kind)
        gram = (hidden[:, :, None] * hidden[:, None]).mean(3).sum(0)
        variance = np.mean([gram[i, i] for i in range(12)])
        pairs = [(i, j) for i in range(12) for j in range(12) if i != j]
        groups = {
            "all": pairs,
            "same class": [(i, j) for i, j in pairs if labels[i] == labels[j]],
            "different classes": [(i, j) for i, j in pairs if labels[i] != labels[j]],
        }
        for name, chosen in groups.items():
            row = rows[kind, name]
            covariance = np.mean([gram[pair] for pair in chosen])
            np.testing.assert_allclose(row["variance"], variance, rtol=1e-6)
            np.testing.assert_allclose(row["covariance"], covariance, rtol=1e-5)
            np.testing.assert_allclose(row["correlation"], covariance / variance, rtol=1e-5)
        others, _ = per_input_gradients(network, noisy(x, 0.01, 0), labels, kind)
        both = (hidden * others).sum() / (hidden.square().sum() + others.square().sum()) * 2
        np.testing.assert_allclose(rows[kind, "noisy copy"]["correlation"], both, rtol=1e-6)


def test_jackknife_leaves_out_one_image_after_another():
    generator = np.random.default_rng(0)
    gradients = generator.standard_normal((9, 5)) + 0.5
    labels = np.arange(9) % 3
    gram, mask = gradients @ gradients.T, labels[:, None] == labels
    np.fill_diagonal(mask, False)

    def correlation(kept):
        part = gram[np.ix_(kept, kept)]
        return part[mask[np.ix_(kept, kept)]].mean() / np.diagonal(part).mean()

    value, error = pooled(gram, mask)
    left = np.array([correlation(np.delete(np.arange(9), i)) for i in range(9)])
    np.testing.assert_allclose(value, correlation(np.arange(9)))
    np.testing.assert_allclose(error, np.sqrt(8 / 9 * ((left - left.mean()) ** 2).sum()))


def test_linear_network_has_equal_gradients():
    """Looks-linear: the network is linear, so its gradient is the same at every image (R = 1)."""
    network = network_of("fc_crelu", "plain", 6, 16, initialisation="looks_linear")
    x, labels = images(12)
    pixels = per_input_gradients(network, x, labels, "logits")[1]
    torch.testing.assert_close(pixels[:, 1:], pixels[:, :-1], rtol=1e-3, atol=1e-6)
    row = rows_of(network)["logits", "all"]
    np.testing.assert_allclose(row["correlation"], 1, rtol=1e-4)
    white = effective_rank.white_rank(12, 64)
    np.testing.assert_allclose(row["effective_rank"], 1 / white, rtol=1e-4)
    np.testing.assert_allclose(row["mean_gradient"], 1, rtol=1e-4)
    assert "effective_rank_centred" not in row  # nothing is left


@pytest.mark.parametrize(("depth", "kind"), [(1, "fc"), (3, "fc"), (2, "fc_no_norm")])
def test_wide_plain_networks_match_mean_field(depth, kind):
    """All pairs of 48 images, with their own batch statistics, over 8 networks of width 512.

    Beyond three standard errors over networks, a finite width shifts correlations by O(gates/width)
    (gradient norms fluctuate by as much); images and statistics are the same in both.
    """
    x, labels = images(48)
    x += 0.8 * torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(3))  # correlated
    copies = noisy(x, 0.01, 0)
    described = dict(type=kind, skip="plain", depth=depth, width=512)
    theory = expected(described, x, copies)
    assert theory["all"]["paper"] == 0.5 ** (2 * depth + 1)
    found = {"all": [], "noisy copy": []}
    for seed in range(8):
        torch.manual_seed(seed)
        network = Network(described, (1, 8, 8), 4)
        reestimate_batch_norm(network, torch.cat([x, copies]))
        for row in covariance_rows(network, x, copies, labels, {}):
            if row["gradient"] == "logits" and row["pairs"] in found:
                found[row["pairs"]].append(row["correlation"])
    for pairs, values in found.items():
        error = np.std(values, ddof=1) / np.sqrt(len(values))
        gap = abs(np.mean(values) - theory[pairs]["mean_field"])
        assert gap < 3 * error + 4 * (2 * depth + 1) / 512, (pairs, gap, error)


def test_mean_field_is_of_plain_fully_connected_networks():
    x, _ = images(6)
    for kind, skip in (("fc", "resnet"), ("conv", "plain"), ("fc_crelu", "plain")):
        assert expected(dict(type=kind, skip=skip, depth=2, width=4), x, noisy(x, 0.01, 0)) == {}
    flat = torch.cat([x, noisy(x, 0.01, 0)]).flatten(1).double().numpy()
    described = dict(type="fc", skip="plain", depth=2, width=4)
    found = expected(described, x, noisy(x, 0.01, 0))
    *_, kernel = mean_field.hidden_covariance(flat @ flat.T, 5, "batch")
    assert len(kernel) == 12 and 0 < found["all"]["mean_field"] < found["noisy copy"]["mean_field"]


def test_known_effective_ranks():
    one = torch.outer(torch.arange(1.0, 6), torch.arange(1.0, 9)).double()
    np.testing.assert_allclose(float(effective_rank.effective_rank(one)), 1)
    orthogonal = torch.linalg.qr(torch.randn(9, 9, dtype=torch.double))[0][:5]
    np.testing.assert_allclose(float(effective_rank.effective_rank(orthogonal)), 5)
    generator = torch.Generator().manual_seed(5)
    white = torch.randn(1, 64, 144, generator=generator)
    found = effective_rank.whiteness(white)
    # The largest singular value of 16 and one such matrices varies by about 2 %.
    np.testing.assert_allclose(found["effective_rank"], 1, atol=0.1)
    np.testing.assert_allclose(found["mean_gradient"], 1 / 8, atol=0.02)
    # Largest singular value sqrt(64) + sqrt(144) for large matrices.
    np.testing.assert_allclose(effective_rank.white_rank(64, 144), 64 * 144 / 20**2, rtol=0.1)


def test_a_shared_direction_lowers_the_rank_until_it_is_subtracted():
    generator = torch.Generator().manual_seed(5)
    shifted = torch.randn(1, 64, 144, generator=generator) + 3
    found = effective_rank.whiteness(shifted)
    # ||D||_F^2 = M n (1 + 9), ||D||_2^2 = M n 9 plus about n + M of the noise along the mean.
    expected_rank = 10 / (9 + (64 + 144) / (64 * 144))
    measured = found["effective_rank"] * effective_rank.white_rank(64, 144)
    np.testing.assert_allclose(measured, expected_rank, rtol=0.02)
    np.testing.assert_allclose(found["effective_rank_centred"], 1, atol=0.1)
    np.testing.assert_allclose(found["mean_gradient"], (9 / 10) ** 0.5, rtol=0.02)


@pytest.mark.parametrize(("kind", "skip"), TWINS)
def test_layers_are_those_of_a_loop_in_float64(kind, skip):
    network = network_of(kind, skip, 6, 12 if kind.startswith("fc") else 3)
    x, labels = images(16)
    before = copy.deepcopy(network.state_dict())
    rows = list(layer_rows(network, x, labels))
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    assert not network.training
    assert [row["layer"] for row in rows] == list(range(1, 15))
    assert [row["kind"] for row in rows] == ["stem", *["first", "second"] * 6, "classifier"]

    exact = copy.deepcopy(network).double().train()
    loss = F.cross_entropy(exact(x.double()), labels)
    weights = [
        m.weight
        for name, m in exact.named_modules()
        if isinstance(m, torch.nn.Linear | torch.nn.Conv2d) and "shortcut" not in name
    ]
    # Modules are made in the order stem, blocks, classifier.
    gradients = torch.autograd.grad(loss, weights)
    for row, gradient in zip(rows, gradients, strict=True):
        np.testing.assert_allclose(row["weight_gradient"], float(gradient.norm()), rtol=1e-3)
        assert 0 <= row["saturated"] <= 1 and row["status"] == "ok"


def test_response_gradients_by_finite_differences():
    """Of one block's second response: move one image's response, look at the loss."""
    network = network_of("fc", "resnet", 2, 4)
    x, labels = images(6)
    rows = {(r["block"], r["kind"]): r for r in layer_rows(network, x, labels)}
    exact = copy.deepcopy(network).double().train()
    gradient = torch.zeros(6, 4, dtype=torch.double)
    for image in range(6):
        for neuron in range(4):
            losses = []
            for step in (1e-5, -1e-5):

                def moved(module, inputs, output, step=step, image=image, neuron=neuron):
                    output = output.clone()
                    output[image, neuron] += step
                    return output

                hook = exact.blocks[0].norm2.register_forward_hook(moved)
                losses.append(float(F.cross_entropy(exact(x.double()), labels).detach()))
                hook.remove()
            gradient[image, neuron] = (losses[0] - losses[1]) / 2e-5
    size = float((6 * gradient).square().sum(1).mean().sqrt())
    np.testing.assert_allclose(rows[1, "second"]["response_gradient"], size, rtol=1e-4)


@pytest.mark.parametrize("kind", ["fc", "conv", "conv_down", "cifar"])
def test_response_deviation_is_that_of_scales_and_shifts(kind):
    """With the batch's own statistics: std^2 = mean g^2 + var b, up to batch norm's epsilon."""
    network = network_of(kind, "resnet", 6, 8)
    x, labels = images(64)
    rows = {(r["block"], r["kind"]): r for r in layer_rows(network, x, labels)}
    for number, block in enumerate(network.blocks, 1):
        for name, norm in (("first", block.norm1), ("second", block.norm2)):
            scale, shift = norm.weight.detach(), norm.bias.detach()
            value = float(scale.square().mean() + shift.var(correction=0)) ** 0.5
            np.testing.assert_allclose(rows[number, name]["response_std"], value, rtol=2e-3)


def test_saturated_gates_are_counted():
    network = network_of("fc", "plain", 1, 6)
    norm = network.blocks[0].norm1
    norm.bias.data[:] = torch.tensor([1e3, 1e3, -1e3, 0, 0, 0])
    x, labels = images(32)
    row = [r for r in layer_rows(network, x, labels) if r["kind"] == "first"][0]
    assert row["saturated"] == 0.5


def test_similarity_of_gradients_by_hand():
    network = network_of("fc", "resnet", 2, 4)
    x, labels = images(12)
    rows = {
        (row["direction"], row["relative_step"]): row
        for row in similarity_rows(network, x, labels, 0)
    }
    assert {name for name, _ in rows} == {"gradient", "random", "inputs"}

    def gradient(network, x):
        network = copy.deepcopy(network).double().train()
        loss = F.cross_entropy(network(x.double()), labels)
        return float(loss.detach()), torch.autograd.grad(loss, list(network.parameters()))

    loss, here = gradient(network, x)
    size = sum(p.detach().double().square().sum() for p in network.parameters()) ** 0.5
    norm = sum(g.square().sum() for g in here) ** 0.5
    moved = copy.deepcopy(network).double()
    for parameter, part in zip(moved.parameters(), here, strict=True):
        parameter.data -= 0.03 * size / norm * part
    flat = torch.cat([g.flatten() for g in here])
    there = torch.cat([g.flatten() for g in gradient(moved, x)[1]])
    row = rows["gradient", 0.03]
    np.testing.assert_allclose(row["loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(row["gradient_norm"], float(norm), rtol=1e-4)
    np.testing.assert_allclose(row["cosine"], cosine(flat, there), atol=1e-4)
    there = torch.cat([g.flatten() for g in gradient(network, noisy(x, 0.1, 0))[1]])
    np.testing.assert_allclose(rows["inputs", 0.1]["cosine"], cosine(flat, there), atol=1e-4)


def test_noise_has_the_size_it_is_said_to_have():
    x, _ = images(200)
    noise = noisy(x, 0.01, 0) - x
    expected_size = 0.01 * float(x.square().mean().sqrt())
    # 12800 numbers: the standard deviation is known to 1/sqrt(2 * 12800) = .6 %.
    np.testing.assert_allclose(float(noise.std()), expected_size, rtol=0.02)


def study(statuses=("done", "done"), settings=None, **config_of):
    """`measure` of a tiny untrained network with two seeds and a checkpoint each."""
    described = dict(type="fc", skip="plain", depth=2, width=6, seeds=[1, 2]) | config_of
    x, y = images(24)
    data = datasets.Images(x, y, x[:4], y[:4], list("abcd"))
    kept = {}
    for seed, status in zip(described["seeds"], statuses, strict=True):
        torch.manual_seed(seed)
        network = Network(described, (1, 8, 8), 4)
        epochs = {3: network.state_dict()} if status == "done" else {}
        kept[seed] = {"status": status, "checkpoints": epochs}
    settings = settings or dict(inputs=8, batch=16, seed=0)
    return measure(described, RECIPE, data, kept, settings)


def test_tables_have_a_row_an_observation():
    covariance, layers, similarity = study(("done", "diverged"))
    assert set(covariance.columns) == set(network_gradients.COVARIANCE)
    assert set(layers.columns) == set(network_gradients.LAYERS)
    assert set(similarity.columns) == set(network_gradients.SIMILARITY)
    for frame in (covariance, layers, similarity):
        ends = frame.groupby("seed")["epoch"].unique().map(list).to_dict()
        assert ends == {1: [0, 3], 2: [0, 1]}
        assert list(frame.loc[(frame.seed == 2) & (frame.epoch == 1), "status"]) == ["diverged"]
        assert set(frame.loc[frame.status != "diverged", "status"]) <= {"ok", "not_resolved"}
    keys = ["seed", "epoch", "gradient", "pairs"]
    assert not covariance.duplicated(keys).any()
    first = covariance[(covariance.seed == 1) & (covariance.epoch == 0)]
    assert len(first) == 2 * 4  # logits and loss; all, same, different classes, noisy copy
    assert first["paper"].notna().sum() == 1 and first["mean_field"].notna().sum() == 2
    assert covariance.loc[covariance.epoch == 3, "mean_field"].isna().all()


def test_collapsed_gradients_are_labelled():
    """A classifier of zeros passes nothing back; its own weights still have a gradient."""
    network = network_of("fc_no_norm", "plain", 2, 6)
    network.classifier.weight.data.zero_()
    rows = rows_of(network)
    assert {row["status"] for row in rows.values()} == {"collapsed"}
    assert all("correlation" not in row for row in rows.values())
    x, labels = images(12)
    statuses = [row["status"] for row in layer_rows(network, x, labels)]
    assert statuses == ["collapsed"] * 5 + ["ok"]


def test_gradients_that_overflow_are_labelled():
    network = network_of("fc_no_norm", "plain", 2, 6)
    network.blocks[0].linear1.weight.data.fill_(float("inf"))
    assert {row["status"] for row in rows_of(network).values()} == {"diverged"}
    x, labels = images(12)
    assert {row["status"] for row in layer_rows(network, x, labels)} == {"diverged"}
    assert [row["status"] for row in similarity_rows(network, x, labels, 0)] == ["diverged"]


def test_too_few_images():
    x, y = images(1)
    data = datasets.Images(x, y, x, y, list("abcd"))
    with pytest.raises(UserError, match="1 training image; expected at least 2"):
        measure({"seeds": []}, RECIPE, data, {}, dict(inputs=8, batch=16, seed=0))


# --- Random convolutional networks.

RANK = dict(
    dataset="digits",
    classes=4,
    width=4,
    batch=12,
    networks=2,
    depth=[2, 6],
    beta=[1.0, 0.1],
    seed=0,
)


def data_of(count=30):
    x, y = images(count)
    return datasets.Images(x, y, x, y, list("abcd"))


def test_random_networks_are_the_function_written_out():
    """Value and gradient of the smaller network, image by image in float64, its weights drawn again
    in the order of the layers."""
    x, labels = images(5)
    found = {
        (depth, kind): g
        for depth, kind, g in effective_rank.gradients_by_depth(
            x.double(), labels, 4, 1.0, 0.3, RANK, 0
        )
    }
    generator = effective_rank._generator(0, 1, 0)
    readout = torch.randn(4, 4, generator=generator).double() / 2
    shapes = [(4, 1, 5, 5), (4, 4, 3, 3), (4, 4, 3, 3)]
    weights = [torch.randn(*shape, generator=generator).double() for shape in shapes]
    weights = [w * (2 / w[0].numel()) ** 0.5 for w in weights]
    statistics = []

    def norm(h):
        """With the statistics of the first pass, over all images."""
        if len(h) == 5:
            statistics.append((h.mean((0, 2, 3)), h.var((0, 2, 3), correction=0)))
        mean, variance = statistics[norm.count]
        norm.count += 1
        return (h - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()

    def outputs(x):
        norm.count = 0
        h = norm(F.conv2d(x, weights[0], stride=2, padding=2))
        f = F.conv2d(F.relu(norm(h)), weights[1], padding=1)
        f = F.conv2d(F.relu(norm(f)), weights[2], padding=1)
        return F.relu(norm(h + 0.3 * f)).mean((2, 3)) @ readout.T

    with torch.no_grad():
        outputs(x.double())
    for image in range(5):
        one = x[image : image + 1].double().requires_grad_()
        (by_outputs,) = torch.autograd.grad(outputs(one).sum(), one)
        torch.testing.assert_close(found[2, "outputs"][image], by_outputs.flatten())
        (by_loss,) = torch.autograd.grad(-F.log_softmax(outputs(one), 1)[0, labels[image]], one)
        torch.testing.assert_close(found[2, "loss"][image], by_loss.flatten())


def test_rank_table_and_pictures():
    table = effective_rank.table(RANK, data_of())
    keys = ["network", "beta", "depth", "seed", "gradient"]
    assert len(table) == 3 * 2 * 2 * 2 and not table.duplicated(keys).any()
    assert set(table["status"]) == {"ok"}
    assert table["mean_gradient"].between(0, 1).all()
    # 12 and 64 columns: no matrix has a rank above 12.
    assert (table["effective_rank"] * effective_rank.white_rank(12, 64)).between(1, 12).all()
    again = effective_rank.table(RANK | {"depth": [6], "networks": 1}, data_of())
    same = table[(table.depth == 6) & (table.seed == 0)]
    np.testing.assert_allclose(again["effective_rank"], same["effective_rank"], rtol=1e-5)
    with np.errstate(all="raise"):
        found = effective_rank.pictures(RANK | {"beta": [0.1]}, data_of())
    pictures = found["pictures"]
    assert pictures.shape == (2, 2, 12, 12) and list(found["names"]) == ["plain", "resnet 0.1"]
    np.testing.assert_allclose(np.diagonal(pictures, axis1=2, axis2=3), 1, atol=1e-5)
    np.testing.assert_array_equal(pictures, pictures.swapaxes(2, 3))


def test_more_images_than_there_are():
    with pytest.raises(UserError, match="at most the 8 training images of digits, found 12"):
        effective_rank.table(RANK, data_of(8))
