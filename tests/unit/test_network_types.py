"""Types of networks that are not in Li & Papyan 2023: of He et al., without batch norm,
looks-linear."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from resnet_mechanisms import costs, network_types
from resnet_mechanisms.gradients import ratio_of_means
from resnet_mechanisms.networks import Network, ZeroPadding, reestimate_batch_norm, size_of


def network_of(kind, skip, depth, width, shape=(1, 8, 8), seed=0, **more):
    torch.manual_seed(seed)
    config = dict(type=kind, skip=skip, depth=depth, width=width)
    return Network(config, shape, 10, **more)


def test_names_of_types():
    bases = {"cifar_no_norm": "cifar", "conv_down_pre": "conv_down", "fc_crelu": "fc", "fc": "fc"}
    assert {kind: network_types.base(kind) for kind in bases} == bases
    assert [network_types.batch_norm(kind) for kind in ("fc", "cifar_no_norm", "fc_crelu")] == [
        True, False, False,
    ]  # fmt: skip
    assert [network_types.stage("cifar", 9, block) for block in range(1, 10)] == 3 * [0] + 3 * [
        1
    ] + 3 * [2]
    assert [network_types.stage("conv_down", 6, block) for block in (1, 3, 4, 6)] == [0, 0, 1, 1]


# He et al. 2016, table 6: 20, 32, 44, 56 and 110 layers, millions of parameters.
TABLE_6 = {9: 0.27, 15: 0.46, 21: 0.66, 27: 0.85, 54: 1.7}


@pytest.mark.parametrize("depth", TABLE_6)
def test_cifar_networks_have_the_papers_layers_and_parameters(depth):
    sizes = []
    for skip in ("resnet", "plain"):
        network = network_of("cifar", skip, depth, 16, (3, 32, 32))
        layers = [m for m in network.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
        assert len(layers) == network_types.weighted_layers("cifar", depth)
        sizes.append(size_of(network, (3, 32, 32)))
    assert sizes[0] == sizes[1]  # option A has no parameters and no multiplications
    assert round(sizes[0][0] / 1e6, 1 if depth == 54 else 2) == TABLE_6[depth]


def test_multiplications_by_hand():
    # Stem 3x3 on 8x8; two blocks a stage at 8x8, 4x4, 2x2, of which the first has half the inputs.
    network = network_of("cifar", "resnet", 6, 2)
    products = 9 * 2 * 64 + 64 * 9 * 4 * (2 * 2)
    products += 16 * 9 * (2 * 4 + 3 * 4 * 4) + 4 * 9 * (4 * 8 + 3 * 8 * 8) + 8 * 10
    assert size_of(network, (1, 8, 8))[1] == products
    network = network_of("fc", "plain", 3, 5)
    assert size_of(network, (1, 8, 8)) == (64 * 5 + 6 * 25 + 7 * 10 + 60, 64 * 5 + 6 * 25 + 50)


@pytest.mark.parametrize("kind", ["fc", "conv", "conv_down", "cifar", "fc_crelu"])
def test_planned_costs_count_the_same_blocks(kind):
    depth, width, shape = 6, 3, (1, 8, 8)
    network = network_of(kind, "plain", depth, width, shape)
    blocks = costs.blocks_of(dict(type=kind, depth=depth, width=width), (*shape, 100))
    state = network.eval().first_state(torch.zeros(1, *shape))
    for block, (n_out, n_in, flops, _) in zip(network.blocks, blocks, strict=True):
        assert state.numel() == n_in
        state = block(state)
        assert state.numel() == n_out
        if kind in ("fc", "conv"):
            weights = block.linear1.weight.numel() + block.linear2.weight.numel()
            assert flops == 2 * weights * (n_out // width)


def test_option_a_against_slices():
    h = torch.randn(2, 3, 5, 4)
    out = ZeroPadding(2, 3, 7)(h)
    assert out.shape == (2, 7, 3, 2)
    for i, j in np.ndindex(3, 2):
        assert torch.equal(out[:, :3, i, j], h[:, :, 2 * i, 2 * j])
    assert not out[:, 3:].any()


def test_a_cifar_resnet_adds_its_plain_branch_to_the_shortcut():
    resnet, plain = (network_of("cifar", skip, 6, 2).double() for skip in ("resnet", "plain"))
    plain.load_state_dict(resnet.state_dict())  # same parameters, same names
    x = torch.randn(4, 1, 8, 8, dtype=torch.double)
    h = resnet.train().first_state(x)
    for mine, twin in zip(resnet.blocks, plain.train().blocks, strict=True):
        f = twin.branch(h)
        skip = h if f.shape == h.shape else F.pad(h, (0, 0, 0, 0, 0, h.shape[1]))[..., ::2, ::2]
        expected = F.relu(f + skip)
        h = mine(h)
        torch.testing.assert_close(h, expected)
    pooled = resnet.features(h)
    torch.testing.assert_close(pooled, h.mean((2, 3)))


@pytest.mark.parametrize("kind, width", [("fc_no_norm", 64), ("cifar_no_norm", 16)])
def test_plain_networks_without_batch_norm_keep_the_size_of_states(kind, width):
    """With weights of variance 2/fan-in a pre-activation's mean square is the mean of those it
    sees, zeros beyond the border among them (He et al. 2015): exact on average over networks, here
    within four jackknife standard errors."""
    sums = []
    for seed in range(120):
        network = network_of(kind, "plain", 3, width, seed=seed).double()
        with torch.no_grad():
            states = network.states(torch.ones(1, 1, 8, 8, dtype=torch.double))
        sums.append([float(state.square().sum()) for state in (states[0], states[-1])])
    assert not list(network.buffers())  # no batch norm

    expected = 1.0
    if kind.startswith("cifar"):
        kernel = torch.ones(1, 1, 3, 3, dtype=torch.double) / 9
        first = F.conv2d(torch.ones(1, 1, 8, 8, dtype=torch.double), kernel, padding=1)
        last = first
        for stride in (1, 1, 2, 1, 2, 1):
            last = F.conv2d(last, kernel, stride=stride, padding=1)
        expected = float(4 * last.sum() / first.sum())  # four times the channels
    ratio, error = ratio_of_means(*np.array(sums).T[::-1])
    assert error < 0.2 * expected  # so that a factor of two would be seen
    assert abs(ratio - expected) < 4 * error


@pytest.mark.parametrize("depth", [1, 3, 50])
def test_looks_linear_is_linear_and_keeps_lengths(depth):
    network = network_of("fc_crelu", "plain", depth, 64, initialisation="looks_linear").double()
    for layer in network.modules():  # orthogonal to float64's rounding, not float32's
        if isinstance(layer, torch.nn.Linear) and layer is not network.stem:
            q, _ = torch.linalg.qr(layer.weight.data[:, : layer.in_features // 2].mT)
            layer.weight.data = torch.cat([q.mT, -q.mT], 1)
    x, y = torch.randn(2, 5, 1, 8, 8, dtype=torch.double)
    logits = network(2 * x - 3 * y)
    torch.testing.assert_close(logits, 2 * network(x) - 3 * network(y), rtol=1e-9, atol=1e-9)
    states = network.states(x)
    sizes = [state.square().sum(1) for state in states]  # crelu keeps the length, and so does W
    torch.testing.assert_close(sizes[-1], sizes[0], rtol=1e-9, atol=0)
    # Its gradient is the same at every input: a correlation of exactly one.
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(network(x).sum(), x)
    torch.testing.assert_close(gradient, gradient[:1].expand_as(gradient), rtol=1e-9, atol=1e-12)


def test_crelu_by_kaiming_is_not_linear():
    network = network_of("fc_crelu", "plain", 3, 64)
    x = torch.randn(5, 1, 8, 8)
    with torch.no_grad():
        assert (network(x) + network(-x)).abs().max() > 0.1
        first, *_, last = (float(state.square().sum()) for state in network.states(x))
    assert 0.3 < last / first < 3


def test_reestimating_leaves_a_network_without_batch_norm_alone():
    network = network_of("fc_no_norm", "plain", 2, 4)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    reestimate_batch_norm(network, torch.randn(7, 1, 8, 8))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
