"""Residual networks and their plain twins (Li & Papyan 2023, their Types 1 to 3).

    h_0 = relu(BN(W_in x))
    F_l(h) = BN2(W2 relu(BN1(W1 h)))
    h_l = relu(skip_l(h_{l-1}) + F_l(h_{l-1}))      resnet
    h_l = relu(F_l(h_{l-1}))                        plain, the same without the skip
    logits = W_clf pool(h_L) + b_clf

Type 1 (`fc`): fully connected, width -> width. Type 2 (`conv`): 3x3 convolutions at one resolution
behind a 5x5 stem (`stems.py`). Type 3 (`conv_down`): L/2 blocks, one that halves the resolution and
doubles the channels (its skip is a 1x1 convolution with batch norm), and the rest. No biases but
the classifier's.

`cifar` (He et al. 2016, section 4.2): a 3x3 stem, three stages of depth/3 blocks of two 3x3
convolutions with width, 2 width and 4 width channels, each further stage at half the resolution;
shortcuts without parameters (their option A), global average pooling. Their networks of 20, 32, 44,
56 and 110 weighted layers have depth 9, 15, 21, 27 and 54: 2 depth + 2 layers.

`fc_pre`, `conv_pre`, `conv_down_pre` are the same with pre-activation (He et al. 2016b): nothing
follows the addition, and the classifier sees relu(BN(h_L)).

    F_l(h) = W2 relu(BN2(W1 relu(BN1(h))))
    h_l = skip_l(h_{l-1}) + F_l(h_{l-1})            resnet; plain: F_l(h_{l-1})

`fc_no_norm`, `cifar_no_norm`: the same without batch norm. `fc_crelu`: without batch norm or skips,
and with crelu(x) = (relu(x); relu(-x)) for relu, so that states have twice the width (Balduzzi et
al. 2017, section 4).
"""

import torch
import torch.nn.functional as F
from torch import nn

from . import network_types
from .errors import UserError
from .stems import stem_of


def crelu(x):
    """(relu(x); relu(-x)) of N x features, N x 2 features (Shang et al. 2016)."""
    return torch.cat([F.relu(x), F.relu(-x)], 1)


class ZeroPadding(nn.Module):
    """Option A of He et al. 2016: every other pixel of N x channels x H x W, and zeros for the
    further channels."""

    def __init__(self, stride, n_in, n_out):
        super().__init__()
        self.stride, self.further = stride, n_out - n_in

    def forward(self, h):
        return F.pad(h[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.further))


class Block(nn.Module):
    """One residual block, or its plain twin.

    `survival` is 1 - p_l under stochastic depth (Huang et al. 2016): at evaluation the branch is
    scaled by it.
    """

    def __init__(self, kind, n_in, n_out, stride, skip, survival=1.0):
        super().__init__()
        if network_types.convolutional(kind):
            self.linear1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
            self.linear2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
            norm = nn.BatchNorm2d
        else:
            twice = 2 if network_types.crelu(kind) else 1
            self.linear1 = nn.Linear(twice * n_in, n_out, bias=False)
            self.linear2 = nn.Linear(twice * n_out, n_out, bias=False)
            norm = nn.BatchNorm1d
        if not network_types.batch_norm(kind):
            norm = nn.Identity
        self.pre = network_types.pre_activation(kind)
        self.crelu = network_types.crelu(kind)
        self.norm1, self.norm2 = norm(n_in if self.pre else n_out), norm(n_out)
        self.residual = skip == "resnet"
        self.survival = survival
        self.shortcut = nn.Identity()
        if self.residual and (stride != 1 or n_in != n_out):
            if network_types.base(kind) == "cifar":
                self.shortcut = ZeroPadding(stride, n_in, n_out)
            else:
                self.shortcut = nn.Sequential(
                    nn.Conv2d(n_in, n_out, 1, stride, bias=False), norm(n_out)
                )

    def branch(self, h):
        """F_l(h), scaled by the survival probability at evaluation."""
        if self.pre:
            a = self.linear1(F.relu(self.norm1(h), inplace=True))
            f = self.linear2(F.relu(self.norm2(a), inplace=True))
        else:
            f = self.norm2(self.linear2(self.activated(self.norm1(self.linear1(h)))))
        return f if self.training or self.survival == 1 else self.survival * f

    def skip(self, h):
        """What is added to the branch: skip_l(h), or zero in a plain net."""
        return self.shortcut(h) if self.residual else 0

    def activated(self, z):
        """relu, in place, or crelu."""
        # In place where nothing else needs the value: training is bound by memory, not arithmetic.
        return crelu(z) if self.crelu else F.relu(z, inplace=True)

    def activation(self, z):
        """What follows the addition: relu, in place, or crelu, or nothing with pre-activation."""
        return z if self.pre else self.activated(z)

    def forward(self, h, keep=None):
        """h_l from h_{l-1}. `keep` drops the branch in training: a bool for the batch, or a 0/1
        tensor per sample."""
        if keep is False:
            h = self.skip(h)
            return h if self.pre else F.relu(h)
        f = self.branch(h)
        if torch.is_tensor(keep):
            f = f * keep.view(-1, *[1] * (f.dim() - 1))
        return self.activation(f.add_(self.skip(h)))


class Network(nn.Module):
    """Stem, blocks and classifier. `network` is a configuration (type, skip, depth, width), `shape`
    an image's (channels, H, W), `stochastic_depth` the last block's drop probability p_L of the
    linear schedule p_l = p_L l/L.

    Initialised from torch's global generator: Kaiming-normal (He et al. 2015), by the fan-out, or
    for `cifar` and without batch norm by the fan-in; batch norm at 1 and 0. `initialisation`
    "looks_linear" is `look_linear`, for `fc_crelu`.
    """

    def __init__(self, network, shape, classes, stochastic_depth=0.0, initialisation="kaiming"):
        super().__init__()
        kind, depth, width = network["type"], network["depth"], network["width"]
        base = network_types.base(kind)
        self.pre, self.crelu = network_types.pre_activation(kind), network_types.crelu(kind)
        self.convolutional = network_types.convolutional(kind)
        self.batch_norm = network_types.batch_norm(kind)
        convolutional = self.convolutional
        if stochastic_depth and network["skip"] == "plain":
            raise UserError(
                "stochastic_depth: a plain net has no skip to fall back on; expected 0 there"
            )
        self.pool = nn.Identity()
        if convolutional and shape[1] != shape[2]:
            raise UserError(
                f"type {kind}: images of {shape[1]}x{shape[2]} pixels; expected squares"
            )
        if base == "cifar":
            self.stem = nn.Conv2d(shape[0], width, 3, padding=1, bias=False)
        elif convolutional:
            stem = stem_of(shape[1])
            self.stem = nn.Conv2d(shape[0], width, 5, stem.stride, stem.padding, bias=False)
        else:
            self.stem = nn.Linear(shape[0] * shape[1] * shape[2], width, bias=False)
        norm = nn.BatchNorm2d if convolutional else nn.BatchNorm1d
        self.norm = norm(width) if self.batch_norm else nn.Identity()
        self.blocks = nn.ModuleList()
        n = width
        for block in range(1, depth + 1):
            out = width * 2 ** network_types.stage(kind, depth, block)
            survival = 1 - stochastic_depth * block / depth
            self.blocks.append(Block(kind, n, out, 2 if out > n else 1, network["skip"], survival))
            n = out
        if self.pre:
            self.last_norm = norm(n)
        features = 2 * n if self.crelu else n
        if base == "cifar":
            self.pool = nn.AdaptiveAvgPool2d(1)
        elif convolutional:
            side, pool = stem.state, stem.pools[base == "conv_down"]
            if n > width:
                side = (side + 1) // 2
            features = n * (side // pool) ** 2
            if pool > 1:
                self.pool = nn.AvgPool2d(pool)
        self.classifier = nn.Linear(features, classes)
        # By the fan-in as He et al. have it, which without batch norm keeps the size of the states
        # where layers change theirs; by the fan-out as Li & Papyan have it.
        mode = "fan_out" if self.batch_norm and base != "cifar" else "fan_in"
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
        nn.init.zeros_(self.classifier.bias)
        if initialisation == "looks_linear":
            self.look_linear()

    @torch.no_grad()
    def look_linear(self):
        """Weights (W, -W) behind every crelu, W orthogonal, which make the network linear: W
        relu(x) - W relu(-x) = W x (Balduzzi et al. 2017, section 4)."""
        nn.init.orthogonal_(self.stem.weight)
        behind = [layer for block in self.blocks for layer in (block.linear1, block.linear2)]
        for layer in (*behind, self.classifier):
            half = torch.empty(layer.out_features, layer.in_features // 2)
            layer.weight.copy_(torch.cat([nn.init.orthogonal_(half), -half], 1))

    def first_state(self, x):
        """h_0 of images N x channels x H x W."""
        z = self.norm(self.stem(x if self.convolutional else x.flatten(1)))
        return crelu(z) if self.crelu else F.relu(z, inplace=True)

    def states(self, x):
        """[h_0, ..., h_L], each N x width or N x channels x H x W."""
        states = [self.first_state(x)]
        for block in self.blocks:
            states.append(block(states[-1]))
        return states

    def features(self, h):
        """What the classifier sees of the last state, N x features."""
        if self.pre:
            h = F.relu(self.last_norm(h), inplace=True)
        return self.pool(h).flatten(1)

    def forward(self, x, keep=None):
        """Logits N x C. `keep` holds one entry per block (see Block.forward) in training with
        stochastic depth."""
        h = self.first_state(x)
        for index, block in enumerate(self.blocks):
            h = block(h, None if keep is None else keep[index])
        return self.classifier(self.features(h))


@torch.no_grad()
def size_of(network, shape):
    """(trainable parameters, multiplications by weights for one image forward) of a Network for
    images of `shape` (channels, H, W), left in evaluation mode."""
    counted = []

    def count(module, inputs, output):
        counted.append(module.weight.numel() * output[0, 0].numel())

    layers = [m for m in network.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    network.eval()(torch.zeros(1, *shape, device=network.stem.weight.device))
    for hook in hooks:
        hook.remove()
    return sum(p.numel() for p in network.parameters()), sum(counted)


def batch_norm_layers(network):
    return [m for m in network.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]


@torch.no_grad()
def reestimate_batch_norm(network, x, batch_size=500):
    """Set the running statistics to the plain average over batches of `x`, at the present
    weights."""
    layers = batch_norm_layers(network)
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # torch: None means a cumulative average
    network.train()
    for batch in x.split(batch_size):
        network(batch)
    network.eval()
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
