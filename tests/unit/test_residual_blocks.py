"""Residual blocks of any module: found, and linearised as an independent formula has it."""

import pytest
import torch
import torch.nn.functional as F
import torchvision.models as tv
from torch import nn

from resnet_mechanisms.errors import UserError
from resnet_mechanisms.jacobians import linearise
from resnet_mechanisms.networks import Network
from resnet_mechanisms.residual_blocks import ResidualModel, find_blocks
from resnet_mechanisms.svd import top_triplets


def drawn(module, seed=0):
    """The module in float64 evaluation mode with batch norms that are not the identity."""
    torch.manual_seed(seed)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias)
    return module.double().eval()


def images(count=2, channels=3, side=32, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, channels, side, side, dtype=torch.double, generator=generator)


class PreActivation(nn.Module):
    """As He et al. 2016b, their projection behind the first activation."""

    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(n_in), nn.BatchNorm2d(n_out)
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        same = n_in == n_out and stride == 1
        self.shortcut = None if same else nn.Conv2d(n_in, n_out, 1, stride, bias=False)

    def forward(self, h):
        a = F.relu(self.norm1(h))
        skip = h if self.shortcut is None else self.shortcut(a)
        return self.conv2(F.relu(self.norm2(self.conv1(a)))) + skip


class Skip(nn.Module):
    def __init__(self, branch, activation=None, scale=1.0):
        super().__init__()
        self.branch, self.activation, self.scale = branch, activation, scale

    def forward(self, h):
        z = torch.add(h, self.branch(h), alpha=self.scale)
        return z if self.activation is None else self.activation(z)


def mlp(depth=3, width=12, **how):
    def branch():
        return nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 20), nn.Tanh(), nn.Linear(20, width)
        )

    return nn.Sequential(
        nn.Flatten(), nn.Linear(48, width), *(Skip(branch(), **how) for _ in range(depth)),
        nn.Linear(width, 5),
    )  # fmt: skip


def vit(layers=2):
    return tv.VisionTransformer(
        image_size=16, patch_size=8, num_layers=layers, num_heads=2, hidden_dim=8, mlp_dim=12,
        num_classes=5,
    )  # fmt: skip


def pre_activation():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1), PreActivation(4, 4, 1), PreActivation(4, 6, 2),
        PreActivation(6, 6, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5),
    )  # fmt: skip


# Each branch in plain words, independent of what runs when the block does.


def of_basic(block, h):
    a = F.relu(block.bn1(block.conv1(h)))
    return block.bn2(block.conv2(a))


def of_bottleneck(block, h):
    a = F.relu(block.bn1(block.conv1(h)))
    a = F.relu(block.bn2(block.conv2(a)))
    return block.bn3(block.conv3(a))


def of_pre_activation(block, h):
    return block.conv2(F.relu(block.norm2(block.conv1(F.relu(block.norm1(h))))))


def of_torchvision(block, h):
    f = of_bottleneck(block, h) if hasattr(block, "conv3") else of_basic(block, h)
    skip = h if block.downsample is None else block.downsample(h)
    gates = (f + skip > 0).to(h.dtype).detach()
    return gates * f


@pytest.mark.parametrize("build", [tv.resnet18, tv.resnet34, tv.resnet50, tv.wide_resnet50_2])
def test_torchvision_resnets(build):
    """All blocks are found; each J is that of D F, both written out by hand, in both modes."""
    model = drawn(build(num_classes=5))
    x = images()
    residual = ResidualModel(model, x)
    stages = (2, 2, 2, 2) if build is tv.resnet18 else (3, 4, 6, 3)
    expected = [f"layer{s + 1}.{b}" for s, count in enumerate(stages) for b in range(count)]
    assert [block.name for block in residual.blocks] == expected
    assert residual.classifier is model.fc
    states, jacobians, branches = residual.linearise(x)
    torch.testing.assert_close(states[-1], model.layer4(states[-1 - stages[-1]]))
    for block in (0, 1, stages[0]):  # with a projection or not, and where the resolution halves
        h, jacobian, module = states[block], jacobians[block], residual.blocks[block].module
        v = torch.randn_like(h)
        f, product = torch.func.jvp(lambda h, m=module: of_torchvision(m, h), (h,), (v,))
        torch.testing.assert_close(branches[block], f)
        torch.testing.assert_close(jacobian.matvec(v.flatten(1)[:, None])[:, 0], product.flatten(1))
        u = torch.randn_like(f)
        _, pull = torch.func.vjp(lambda h, m=module: of_torchvision(m, h), h)
        mine = jacobian.rmatvec(u.flatten(1)[:, None])[:, 0]
        torch.testing.assert_close(mine, pull(u)[0].flatten(1))


def dense(function, h):
    """The Jacobian at each of N states as a matrix, N x n_out x n_in, by reverse mode."""
    full = torch.func.vmap(torch.func.jacrev(lambda h: function(h[None])[0].flatten()))(h)
    return full.flatten(2)


def check_triplets(jacobian, matrix):
    """The solver's values and vectors on the operator, against LAPACK's on the dense matrix."""
    torch.testing.assert_close(jacobian.dense, matrix)
    s = torch.linalg.svdvals(matrix)
    found = top_triplets(jacobian, 4, 1e-8)
    assert found.residual.max() < 1e-8
    torch.testing.assert_close(found.values, s[:, :4], rtol=1e-7, atol=1e-7 * s.max().item())


def test_vision_transformer_is_the_block_minus_the_identity():
    model = drawn(vit())
    x = images(side=16)
    residual = ResidualModel(model, x)
    assert [block.name for block in residual.blocks] == [
        "encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_1",
    ]  # fmt: skip
    states, jacobians, branches = residual.linearise(x)
    for block, jacobian, h, f in zip(residual.blocks, jacobians, states, branches, strict=False):
        assert jacobian.gates is None
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            matrix = dense(block.module, h)
        identity = torch.eye(matrix.shape[1], dtype=matrix.dtype)
        torch.testing.assert_close(f, block.module(h) - h)
        check_triplets(jacobian, matrix - identity)


def test_layers_of_torch_itself():
    """nn.TransformerEncoderLayer with its norms first; with its norms last it is no block."""
    how = dict(nhead=2, dim_feedforward=12, batch_first=True)
    layers = [nn.TransformerEncoderLayer(8, norm_first=True, **how) for _ in range(2)]
    model, x = drawn(nn.Sequential(*layers)), torch.randn(2, 5, 8, dtype=torch.double)
    residual = ResidualModel(model, x)
    assert [block.name for block in residual.blocks] == ["0", "1"]
    states, jacobians, _ = residual.linearise(x)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        matrix = dense(model[1].train(False), states[1])
    check_triplets(jacobians[1], matrix - torch.eye(40, dtype=torch.double))
    last = drawn(nn.Sequential(nn.TransformerEncoderLayer(8, **how)))
    with pytest.raises(UserError, match="no module of Sequential adds its input"):
        find_blocks(last, x)


def test_pre_activation():
    model = drawn(pre_activation())
    x = images(side=8)
    residual = ResidualModel(model, x)
    assert [block.name for block in residual.blocks] == ["1", "2", "3"]
    assert [block.additions.identity for block in residual.blocks] == [True, False, True]
    states, jacobians, _ = residual.linearise(x)
    for block, jacobian, h in zip(residual.blocks, jacobians, states, strict=False):
        check_triplets(jacobian, dense(lambda h, m=block.module: of_pre_activation(m, h), h))


@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("activation", [None, F.gelu, nn.ReLU(inplace=True), nn.LeakyReLU(0.2)])
def test_mlp_with_any_activation_after_the_addition(activation, scale):
    """J = act'(z) dF/dh with act' by finite differences, and a scaled branch."""
    model = drawn(mlp(activation=activation, scale=scale))
    x = images(channels=3, side=4)
    residual = ResidualModel(model, x)
    assert [block.name for block in residual.blocks] == ["2", "3", "4"]
    states, jacobians, _ = residual.linearise(x)
    for block, jacobian, h in zip(residual.blocks, jacobians, states, strict=False):
        matrix = scale * dense(block.module.branch, h)
        if activation is not None:
            z, step = h + scale * block.module.branch(h), 1e-6
            slope = (activation(z + step) - activation(z - step)) / (2 * step)
            matrix = slope[:, :, None] * matrix
        torch.testing.assert_close(jacobian.dense, matrix, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", ["fc", "fc_pre", "conv_down", "conv_down_pre", "cifar"])
def test_our_own_networks_by_the_second_method(kind):
    """What is found by watching is what the closed forms have, blocks, states and products."""
    shape = (3, 32, 32) if kind == "cifar" else (1, 8, 8)
    config = dict(type=kind, skip="resnet", depth=6, width=4)
    network = drawn(Network(config, shape, 5))
    x = images(3, shape[0], shape[1])
    states, jacobians, branches = linearise(network, x)
    residual = ResidualModel(network, x)
    assert [block.name for block in residual.blocks] == [f"blocks.{i}" for i in range(6)]
    found = residual.linearise(x)
    torch.testing.assert_close(found[0], states)
    torch.testing.assert_close(found[2], branches)
    for ours, theirs, h, after in zip(found[1], jacobians, states, states[1:], strict=False):
        v, u = torch.randn_like(h), torch.randn_like(after)
        image = ours.matvec(v.flatten(1)[:, None])[:, 0].view_as(after)
        expected = theirs.matvec(theirs.vectors(v)[:, None])[:, 0]
        torch.testing.assert_close(theirs.vectors(image), expected)
        image = ours.rmatvec(u.flatten(1)[:, None])[:, 0].view_as(h)
        expected = theirs.rmatvec(theirs.vectors(u)[:, None])[:, 0]
        torch.testing.assert_close(theirs.vectors(image), expected)


def test_states_outputs_and_what_the_classifier_sees():
    model, x = drawn(mlp()), images(7, side=4)
    residual = ResidualModel(model, x[:2])
    expected = [model[:2](x)]
    for block in model[2:5]:
        expected.append(block(expected[-1]))
    torch.testing.assert_close(residual.states(x), expected)
    outputs, features = residual.outputs(x, memory=16 * 12 * 8 * 3)  # three at a time
    torch.testing.assert_close(outputs, model(x))
    torch.testing.assert_close(features, expected[-1])


class WorksOnItsInput(nn.Module):
    """Adds what has become of its input, which is no identity."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, h):
        return self.layer(F.relu(h, inplace=True)) + h


def test_a_block_that_changes_its_input_in_place():
    module, x = drawn(WorksOnItsInput()), torch.randn(3, 6, dtype=torch.double)
    kept = x.clone()
    (block,) = find_blocks(nn.Sequential(module), x)
    assert not block.additions.identity
    jacobian, f, state = block.linearise(kept)
    torch.testing.assert_close(f, module.layer(kept.relu()))
    torch.testing.assert_close(state, f + kept.relu())
    matrix = module.layer.weight * (kept > 0).double()[:, None]
    torch.testing.assert_close(jacobian.dense, matrix)


class Shift(nn.Module):
    def forward(self, h):
        return h + 1.0 + torch.ones(6, dtype=h.dtype)


def test_what_is_no_block():
    """A constant added, no addition, a stage of blocks: none is one."""
    x = torch.randn(2, 6, dtype=torch.double)
    for module in (Shift(), nn.ReLU()):
        with pytest.raises(UserError, match="no module of Sequential adds its input"):
            find_blocks(drawn(nn.Sequential(nn.Linear(6, 6), module, nn.Linear(6, 3))), x)
    model = drawn(tv.resnet18(num_classes=5))
    with pytest.raises(UserError) as raised:
        find_blocks(model, images(), "layer1")
    assert "layer1 (Sequential) does not add its input" in str(raised.value)
    assert "modules that add their input: layer1.0, layer1.1, layer2.0" in str(raised.value)


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        (
            "layer9.*",
            "no module is called layer9.*; modules that add their input: layer1.0, layer1.1, ",
        ),
        ("layer1.0.conv1", "layer1.0.conv1 (Conv2d) does not add its input to what it computes"),
        (["layer1.0", "layer2.0"], "layer2.0 does not begin at the state at which layer1.0 ends"),
    ],
)
def test_patterns_that_fit_nothing(patterns, said):
    with pytest.raises(UserError) as raised:
        find_blocks(drawn(tv.resnet18(num_classes=5)), images(), patterns)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_a_pattern_where_nothing_is_a_block():
    plain = drawn(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3)))
    with pytest.raises(UserError, match=r"no module is called b\*; modules of Sequential: 0, 1$"):
        find_blocks(plain, torch.zeros(2, 6, dtype=torch.double), "b*")


def test_patterns_choose_a_stage():
    model, x = drawn(tv.resnet18(num_classes=5)), images()
    assert [b.name for b in find_blocks(model, x, "layer2.*")] == ["layer2.0", "layer2.1"]
    assert len(find_blocks(model, x, ["layer1.*", "layer2.*"])) == 4
    assert len(find_blocks(model, x, "layer*.*")) == 8


def test_training_mode_is_refused_and_the_model_left_as_it_was():
    model = mlp().double()
    with pytest.raises(UserError, match="evaluation mode"):
        ResidualModel(model, images(side=4))
    model.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ResidualModel(model, images(side=4)).linearise(images(side=4))
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.backends.mha.get_fastpath_enabled()
