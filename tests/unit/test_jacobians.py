"""Residual Jacobians against automatic differentiation in float64."""

import pytest
import torch
from torch import nn

from resnet_mechanisms.jacobians import linearise, linearise_block
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


def reference(block, h):
    """dense float64 Jacobians D_l dF_l/dh by automatic differentiation, N x n_out x n_in."""

    def flat_branch(state):
        return block.branch(state.view(1, *h.shape[1:])).flatten()

    gates = (block(h) > 0).flatten(1)
    jacobians = torch.stack(
        [torch.autograd.functional.jacobian(flat_branch, x.flatten()) for x in h]
    )
    return gates[:, :, None] * jacobians


@pytest.mark.parametrize("skip", ["resnet", "plain"])
@pytest.mark.parametrize("kind, depth, width", [("fc", 3, 12), ("conv", 2, 3), ("conv_down", 4, 4)])
def test_every_network_type_against_autograd(kind, depth, width, skip):
    torch.manual_seed(0)
    config = dict(type=kind, skip=skip, depth=depth, width=width)
    network = disturb(Network(config, (1, 8, 8), 10, stochastic_depth=0.3 * (skip == "resnet")), 1)
    x = torch.rand(3, 1, 8, 8, dtype=torch.double)
    states, jacobians, branches = linearise(network, x)
    expected_states = network.states(x)
    for index, block in enumerate(network.blocks):
        torch.testing.assert_close(states[index + 1], expected_states[index + 1], **EXACT)
        dense = reference(block, states[index])
        assert dense.abs().max() > 0.01, "a zero Jacobian would test nothing"
        torch.testing.assert_close(jacobians[index].dense, dense, **EXACT)
        gates = states[index + 1] > 0
        torch.testing.assert_close(branches[index], gates * block.branch(states[index]), **EXACT)


@pytest.mark.parametrize("convolutional", [False, True])
@pytest.mark.parametrize("count, n_in, n_out, stride, side", [
    (1, 1, 1, 1, (4, 4)), (2, 3, 3, 1, (5, 7)), (2, 2, 4, 2, (6, 6)), (2, 2, 4, 2, (5, 7)), (1, 2,
    4, 2, (1, 1)),
])  # fmt: skip
def test_odd_shapes_strides_width_one_and_one_input(
    convolutional, count, n_in, n_out, stride, side
):
    torch.manual_seed(0)
    if not convolutional:
        n_out, stride = n_in, 1
    block = disturb(Block(convolutional, n_in, n_out, stride, "resnet"), 2)
    h = torch.rand(count, n_in, *(side if convolutional else ()), dtype=torch.double)
    jacobian, _, _ = linearise_block(block, h)
    dense = reference(block, h)
    assert jacobian.shape == dense.shape
    torch.testing.assert_close(jacobian.dense, dense, **EXACT)
    v = torch.randn(count, 4, dense.shape[2], dtype=torch.double)
    u = torch.randn(count, 4, dense.shape[1], dtype=torch.double)
    torch.testing.assert_close(jacobian.matvec(v), v @ dense.mT, **EXACT)
    torch.testing.assert_close(jacobian.rmatvec(u), u @ dense, **EXACT)
    # The adjoint identity <J v, u> = <v, J^T u>, without the reference.
    left = (jacobian.matvec(v) * u).sum()
    torch.testing.assert_close(left, (v * jacobian.rmatvec(u)).sum(), **EXACT)


def test_float32_is_as_good_as_float32_can_be():
    torch.manual_seed(0)
    network = disturb(Network(dict(type="conv", skip="resnet", depth=2, width=4), (1, 8, 8), 10), 3)
    x = torch.rand(2, 1, 8, 8, dtype=torch.double)
    _, exact, _ = linearise(network, x)
    _, single, _ = linearise(network.float(), x.float())
    for a, b in zip(exact, single, strict=True):
        # 36 products of relative error 6e-8 each.
        assert (a.dense - b.dense).norm() <= 36 * 6e-8 * a.dense.norm()


def test_training_mode_is_refused():
    network = Network(dict(type="fc", skip="resnet", depth=1, width=4), (1, 8, 8), 10)
    with pytest.raises(ValueError, match="evaluation mode"):
        linearise(network, torch.rand(2, 1, 8, 8))
