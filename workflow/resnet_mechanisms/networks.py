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

`fc_pre`, `conv_pre`, `conv_down_pre` are the same with pre-activation (He et al. 2016b): nothing
follows the addition, and the classifier sees relu(BN(h_L)).

    F_l(h) = W2 relu(BN2(W1 relu(BN1(h))))
    h_l = skip_l(h_{l-1}) + F_l(h_{l-1})            resnet; plain: F_l(h_{l-1})
"""

import torch
import torch.nn.functional as F
from torch import nn

from .errors import UserError
from .stems import stem_of


class Block(nn.Module):
    """One residual block, or its plain twin.

    `survival` is 1 - p_l under stochastic depth (Huang et al. 2016): at evaluation the branch is
    scaled by it.
    """

    def __init__(self, convolutional, n_in, n_out, stride, skip, survival=1.0, pre=False):
        super().__init__()
        if convolutional:
            self.linear1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
            self.linear2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
            norm = nn.BatchNorm2d
        else:
            self.linear1 = nn.Linear(n_in, n_out, bias=False)
            self.linear2 = nn.Linear(n_out, n_out, bias=False)
            norm = nn.BatchNorm1d
        self.norm1, self.norm2 = norm(n_in if pre else n_out), norm(n_out)
        self.pre = pre
        self.residual = skip == "resnet"
        self.survival = survival
        self.shortcut = nn.Identity()
        if self.residual and (stride != 1 or n_in != n_out):
            self.shortcut = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), norm(n_out)
            )

    def branch(self, h):
        """F_l(h), scaled by the survival probability at evaluation."""
        if self.pre:
            a = self.linear1(F.relu(self.norm1(h), inplace=True))
            f = self.linear2(F.relu(self.norm2(a), inplace=True))
        else:
            f = self.norm2(self.linear2(F.relu(self.norm1(self.linear1(h)), inplace=True)))
        return f if self.training or self.survival == 1 else self.survival * f

    def skip(self, h):
        """What is added to the branch: skip_l(h), or zero in a plain net."""
        return self.shortcut(h) if self.residual else 0

    def activation(self, z):
        """What follows the addition, in place: relu, or nothing with pre-activation."""
        # In place where nothing else needs the value: training is bound by memory, not arithmetic.
        return z if self.pre else F.relu(z, inplace=True)

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

    Initialised Kaiming-normal, fan-out (He et al. 2015), from torch's global generator; batch norm
    at 1 and 0.
    """

    def __init__(self, network, shape, classes, stochastic_depth=0.0):
        super().__init__()
        depth, width = network["depth"], network["width"]
        kind = network["type"].removesuffix("_pre")
        self.pre, self.convolutional = network["type"].endswith("_pre"), kind != "fc"
        convolutional = self.convolutional
        if stochastic_depth and network["skip"] == "plain":
            raise UserError(
                "stochastic_depth: a plain net has no skip to fall back on; expected 0 there"
            )
        pool, features = 1, width
        if convolutional:
            if shape[1] != shape[2]:
                raise UserError(
                    f"type {network['type']}: images of {shape[1]}x{shape[2]} pixels; "
                    "expected squares"
                )
            stem = stem_of(shape[1])
            self.stem = nn.Conv2d(shape[0], width, 5, stem.stride, stem.padding, bias=False)
            side, pool = stem.state, stem.pools[kind == "conv_down"]
        else:
            self.stem = nn.Linear(shape[0] * shape[1] * shape[2], width, bias=False)
        self.norm = nn.BatchNorm2d(width) if convolutional else nn.BatchNorm1d(width)
        self.blocks = nn.ModuleList()
        n = width
        for block in range(1, depth + 1):
            down = kind == "conv_down" and block == depth // 2 + 1
            survival = 1 - stochastic_depth * block / depth
            out = 2 * n if down else n
            self.blocks.append(
                Block(convolutional, n, out, 2 if down else 1, network["skip"], survival, self.pre)
            )
            n = out
            if down:
                side = (side + 1) // 2
        if convolutional:
            features = n * (side // pool) ** 2
        if self.pre:
            self.last_norm = nn.BatchNorm2d(n) if convolutional else nn.BatchNorm1d(n)
        self.pool = nn.AvgPool2d(pool) if pool > 1 else nn.Identity()
        self.classifier = nn.Linear(features, classes)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.classifier.bias)

    def first_state(self, x):
        """h_0 of images N x channels x H x W."""
        z = self.norm(self.stem(x if self.convolutional else x.flatten(1)))
        return F.relu(z, inplace=True)

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
