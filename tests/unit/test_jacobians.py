"""Residual Jacobians against automatic differentiation: dense in float64, and by torch.func."""

import pytest
import torch
from torch import nn

from resnet_mechanisms.jacobians import (
    ConvolutionalJacobian,
    FullyConnectedJacobian,
    MatrixJacobian,
    ModuleJacobian,
    linearise,
    linearise_block,
)
from resnet_mechanisms.networks import Block, Network

# Rounding of float64 through some hundred products of numbers of order one: far below 1e-10.
EXACT = dict(rtol=0, atol=1e-10)


def disturb(module, seed):
    """Batch-norm statistics and scales as after training, so that folding them in is really
    tested."""
    generator = torch.Generator().manual_seed(seed)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            n = layer.num_features
            layer.running_mean.copy_(0.3 * torch.randn(n, generator=generator))
            layer.running_var.copy_(torch.rand(n, generator=generator) + 0.5)
            layer.weight.data.copy_(torch.randn(n, generator=generator))
            layer.bias.data.copy_(0.3 * torch.randn(n, generator=generator))
    return module.double().eval()


def order(jacobian, shape):
    """Positions that bring a flattened state of this shape into the operator's order."""
    positions = torch.arange(torch.Size(shape).numel(), dtype=torch.double).view(1, *shape)
    return jacobian.vectors(positions)[0].long()


def reference(block, h, jacobian):
    """dense float64 Jacobians D_l dF_l/dh by automatic differentiation, N x n_out x n_in, in the
    operator's order."""

    def flat_branch(state):
        return block.branch(state.view(1, *h.shape[1:])).flatten()

    output = block(h)
    gates = mask(block, h).flatten(1)
    jacobians = torch.stack(
        [torch.autograd.functional.jacobian(flat_branch, x.flatten()) for x in h]
    )
    dense = gates[:, :, None] * jacobians
    return dense[:, order(jacobian, output.shape[1:])][:, :, order(jacobian, h.shape[1:])]


def mask(block, h):
    """D_l: what relu lets through after the addition; all of it where nothing follows."""
    output = block(h)
    return torch.ones_like(output) if block.pre else (output > 0).to(h.dtype)


def generic(block, h):
    """The same by ModuleJacobian: branch and mask of the block as it stands."""
    return ModuleJacobian(block.branch, h, mask(block, h))


@pytest.mark.parametrize("skip", ["resnet", "plain"])
@pytest.mark.parametrize("kind, depth, width", [
    ("fc", 3, 12), ("conv", 2, 3), ("conv_down", 4, 4), ("cifar", 6, 4),
    ("fc_pre", 3, 12), ("conv_pre", 2, 5), ("conv_down_pre", 4, 4),
])  # fmt: skip
def test_every_network_type_against_autograd(kind, depth, width, skip):
    torch.manual_seed(0)
    config = dict(type=kind, skip=skip, depth=depth, width=width)
    network = disturb(Network(config, (1, 8, 8), 10, stochastic_depth=0.3 * (skip == "resnet")), 1)
    x = torch.rand(3, 1, 8, 8, dtype=torch.double)
    states, jacobians, branches = linearise(network, x)
    expected_states = network.states(x)
    for index, block in enumerate(network.blocks):
        torch.testing.assert_close(states[index + 1], expected_states[index + 1], **EXACT)
        jacobian = jacobians[index]
        dense = reference(block, states[index], jacobian)
        assert dense.abs().max() > 0.01, "a zero Jacobian would test nothing"
        torch.testing.assert_close(jacobian.dense, dense, **EXACT)
        gates = mask(block, states[index])
        torch.testing.assert_close(branches[index], gates * block.branch(states[index]), **EXACT)


def check_products(jacobian, dense, numbers=(1, 4, 70)):
    """J V, J^T U and the adjoint identity; 70 vectors take the way of many."""
    generator = torch.Generator().manual_seed(5)
    for number in numbers:
        v = torch.randn(len(dense), number, dense.shape[2], generator=generator, dtype=torch.double)
        u = torch.randn(len(dense), number, dense.shape[1], generator=generator, dtype=torch.double)
        torch.testing.assert_close(jacobian.matvec(v), v @ dense.mT, **EXACT)
        torch.testing.assert_close(jacobian.rmatvec(u), u @ dense, **EXACT)
        # <J v, u> = <v, J^T u>, without the reference.
        left = (jacobian.matvec(v) * u).sum()
        torch.testing.assert_close(left, (v * jacobian.rmatvec(u)).sum(), **EXACT)


SHAPES = [
    (1, 1, 1, 1, (4, 4)), (2, 3, 3, 1, (5, 7)), (2, 2, 4, 2, (6, 6)), (2, 2, 4, 2, (5, 7)),
    (1, 2, 4, 2, (1, 1)), (40, 2, 2, 1, (3, 3)),
]  # fmt: skip


@pytest.mark.parametrize("convolutional", [False, True])
@pytest.mark.parametrize("skip, pre", [("resnet", False), ("plain", False), ("resnet", True)])
@pytest.mark.parametrize("count, n_in, n_out, stride, side", SHAPES)
def test_operators_on_odd_shapes_strides_width_one_and_one_input(
    convolutional, skip, pre, count, n_in, n_out, stride, side
):
    torch.manual_seed(0)
    if not convolutional:
        n_out, stride = n_in, 1
    kind = ("conv" if convolutional else "fc") + ("_pre" if pre else "")
    block = disturb(Block(kind, n_in, n_out, stride, skip), 2)
    h = torch.rand(count, n_in, *(side if convolutional else ()), dtype=torch.double)
    jacobian, _, _ = linearise_block(block, h)
    dense = reference(block, h, jacobian)
    assert jacobian.shape == dense.shape
    torch.testing.assert_close(jacobian.dense, dense, **EXACT)
    check_products(jacobian, dense)
    few = jacobian.inputs([0])
    assert few.shape == (1, *dense.shape[1:])
    check_products(few, dense[:1], (2,))

    # The generic operator, states flattened as torch does.
    other = generic(block, h)
    back = [order(jacobian, shape) for shape in (block(h).shape[1:], h.shape[1:])]
    torch.testing.assert_close(other.dense[:, back[0]][:, :, back[1]], dense, **EXACT)
    check_products(other, other.dense, (1, 4))


def test_generic_operator_on_a_module_of_other_kinds():
    """Attention, layer norm and smooth activations, without gates: what the fast operators do not
    know."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
    layer = layer.double().eval()
    h = torch.randn(2, 3, 8, dtype=torch.double)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        jacobian = ModuleJacobian(layer, h)
        dense = torch.stack(
            [
                torch.autograd.functional.jacobian(lambda x: layer(x[None])[0], x).view(24, 24)
                for x in h
            ]
        )
        torch.testing.assert_close(jacobian.dense, dense, **EXACT)
        check_products(jacobian, dense, (3,))


def test_generic_operator_refuses_what_mixes_inputs():
    norm = nn.BatchNorm1d(4)
    with pytest.raises(ValueError, match=r"eval\(\)"):
        ModuleJacobian(norm, torch.randn(5, 4))
    with pytest.raises(ValueError, match="5 states into 1 outputs"):
        ModuleJacobian(lambda h: h.sum(0, keepdim=True), torch.randn(5, 4))


def test_fast_and_generic_operators_on_a_trained_network(trained_digits):
    """Float32, as in use; weights and gates that training has shaped."""
    for network, x in trained_digits:
        states, jacobians, _ = linearise(network, x)
        for block, h, jacobian in zip(network.blocks, states[:-1], jacobians, strict=True):
            other = generic(block, h)
            v = torch.randn(len(x), 3, *h.shape[1:], generator=torch.Generator().manual_seed(0))
            ours = jacobian.matvec(torch.stack([jacobian.vectors(s) for s in v.unbind(1)], 1))
            theirs = other.matvec(v.flatten(2)).view(len(x), 3, *block(h).shape[1:])
            theirs = torch.stack([jacobian.vectors(s) for s in theirs.unbind(1)], 1)
            # Some hundred float32 terms each, rounded at 6e-8 of their size.
            assert (ours - theirs).norm() <= 2e-6 * theirs.norm() + 1e-12
            u = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
            left = (ours.double() * u).sum()
            right = (
                torch.stack([jacobian.vectors(s) for s in v.unbind(1)], 1).double()
                * jacobian.rmatvec(u)
            ).sum()
            assert abs(left - right) <= 1e-5 * ours.norm() * u.norm()


@pytest.fixture(scope="module")
def trained_digits():
    """A fully connected and a down-sampling network after 30 steps on the digits."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.tensor(digits.images[:300], dtype=torch.float32)[:, None] / 16
    y = torch.tensor(digits.target[:300])
    out = []
    for config in (
        dict(type="fc", skip="resnet", depth=3, width=24),
        dict(type="conv_down", skip="resnet", depth=4, width=4),
    ):
        torch.manual_seed(0)
        network = Network(config, (1, 8, 8), 10)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        for _ in range(30):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
        out.append((network.eval().requires_grad_(False), x[:5]))
    return out


def test_float32_is_as_good_as_float32_can_be():
    torch.manual_seed(0)
    network = disturb(Network(dict(type="conv", skip="resnet", depth=2, width=4), (1, 8, 8), 10), 3)
    x = torch.rand(2, 1, 8, 8, dtype=torch.double)
    _, exact, _ = linearise(network, x)
    _, single, _ = linearise(network.float(), x.float())
    for a, b in zip(exact, single, strict=True):
        # 36 products of relative error 6e-8 each.
        assert (a.dense - b.dense).norm() <= 36 * 6e-8 * a.dense.norm()


def test_products_count_their_operations():
    """2 operations for every weight and position, as counted by hand."""
    fc = FullyConnectedJacobian(
        torch.ones(5, 3), torch.ones(4, 5), torch.ones(1, 5), torch.ones(1, 4)
    )
    assert fc.flops == 2 * (5 * 3 + 4 * 5) and fc.shape == (1, 4, 3)
    gates = torch.ones(1, 6, 4, 4)
    conv = ConvolutionalJacobian(
        torch.ones(6, 2, 3, 3), torch.ones(6, 6, 3, 3), gates, gates, (2, 8, 8), 2
    )
    assert conv.flops == 2 * 16 * 9 * (2 * 6 + 6 * 6) and conv.shape == (1, 96, 128)
    assert MatrixJacobian(torch.ones(2, 4, 3)).flops == 24


def test_training_mode_is_refused():
    network = Network(dict(type="fc", skip="resnet", depth=1, width=4), (1, 8, 8), 10)
    with pytest.raises(ValueError, match="evaluation mode"):
        linearise(network, torch.rand(2, 1, 8, 8))
