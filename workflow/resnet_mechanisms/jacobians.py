"""Residual Jacobians of trained blocks as linear operators, without automatic differentiation.

For h_l = relu(skip + F_l(h_{l-1})) at a given input, D_l = diag(1[skip + F_l > 0]) is held constant
and

    J_l = D_l dF_l/dh   at the network's own h_{l-1}(x), in evaluation mode

(Li & Papyan 2023, as in the authors' measurement code; neither dh_l/dh_{l-1} - I nor the Jacobian
of the unmasked branch). In a plain net h_l = relu(F_l), so J_l is the Jacobian of the whole block.
With batch norm folded into the weights, F_l is W2 relu(W1 h + b1) + b2, hence J_l = D_l W2 D1 W1
with the gates D1 of the hidden layer. States of convolutional nets are flattened channel by
channel, row by row (C x H x W, as Tensor.flatten does).
"""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import nn


def folded(layer, norm, factor=1.0):
    """(weight, bias) of a linear or convolutional layer followed by its batch norm in evaluation
    mode."""
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    weight = layer.weight * scale.view(-1, *[1] * (layer.weight.dim() - 1))
    return weight.detach() * factor, (norm.bias - norm.running_mean * scale).detach() * factor


@dataclass
class BlockJacobian:
    """J_l of one block at N states. Vectors are rows: J V for V of shape N x b x n_in is N x b x
    n_out.

    weight1, weight2: folded weights, out x in (fully connected) or out x in x 3 x 3.
    gates1, gates2: 0/1 masks D1 and D_l, N x hidden shape and N x output shape.
    input_shape: a state's shape without the batch, (n,) or (channels, H, W). stride: of the first
    convolution.
    """

    weight1: torch.Tensor
    weight2: torch.Tensor
    gates1: torch.Tensor
    gates2: torch.Tensor
    input_shape: tuple
    stride: int = 1

    @property
    def convolutional(self):
        return self.weight1.dim() == 4

    @property
    def shape(self):
        """(N, n_out, n_in)."""
        return len(self.gates2), self.gates2[0].numel(), torch.Size(self.input_shape).numel()

    def matvec(self, vectors):
        """J v for every input and vector: N x b x n_in -> N x b x n_out."""
        return self._chain(
            vectors, self.input_shape, (self._first, self.gates1), (self._second, self.gates2)
        )

    def rmatvec(self, vectors):
        """J^T u for every input and vector: N x b x n_out -> N x b x n_in."""
        masked = vectors * self.gates2.flatten(1)[:, None]
        shape = self.gates2.shape[1:]
        return self._chain(
            masked, shape, (self._second_adjoint, self.gates1), (self._first_adjoint, None)
        )

    def _chain(self, vectors, shape, *steps):
        """Apply linear maps in turn, each followed by its mask, to N x b vectors seen as a batch of
        states."""
        count, number = vectors.shape[:2]
        h = vectors.reshape(count * number, *shape)
        for linear, mask in steps:
            h = linear(h)
            if mask is not None:
                h = (h.view(count, number, *mask.shape[1:]) * mask[:, None]).flatten(0, 1)
        return h.reshape(count, number, -1)

    def _first(self, h):
        return (
            F.conv2d(h, self.weight1, None, self.stride, 1)
            if self.convolutional
            else h @ self.weight1.T
        )

    def _second(self, h):
        return F.conv2d(h, self.weight2, None, 1, 1) if self.convolutional else h @ self.weight2.T

    def _second_adjoint(self, u):
        return (
            F.conv_transpose2d(u, self.weight2, None, 1, 1)
            if self.convolutional
            else u @ self.weight2
        )

    def _first_adjoint(self, u):
        if not self.convolutional:
            return u @ self.weight1
        # A strided convolution drops the last rows of an even-sided state; the adjoint must give
        # them back.
        height, width = self.input_shape[1:]
        missing = [
            side - ((out - 1) * self.stride + 1)
            for side, out in zip((height, width), u.shape[2:], strict=True)
        ]
        return F.conv_transpose2d(u, self.weight1, None, self.stride, 1, output_padding=missing)

    @cached_property
    def dense(self):
        """J as a matrix for every input: N x n_out x n_in."""
        count, _, n = self.shape
        if not self.convolutional:
            hidden = self.gates1[:, :, None] * self.weight1
            return self.gates2[:, :, None] * (self.weight2 @ hidden)
        basis = torch.eye(n, dtype=self.weight1.dtype, device=self.weight1.device)
        columns = [self.matvec(part.expand(count, -1, -1)) for part in basis.split(128)]
        return torch.cat(columns, 1).mT.contiguous()


@torch.no_grad()
def linearise_block(block, h):
    """One block at N states h, in evaluation mode: (BlockJacobian, masked branch f_l = D_l F_l,
    next state h_l)."""
    weight1, bias1 = folded(block.linear1, block.norm1)
    weight2, bias2 = folded(block.linear2, block.norm2, block.survival)
    if isinstance(block.linear1, nn.Conv2d):
        stride = block.linear1.stride[0]
        a = F.conv2d(h, weight1, bias1, stride, 1)
        f = F.conv2d(F.relu(a), weight2, bias2, 1, 1)
    else:
        stride = 1
        a = F.linear(h, weight1, bias1)
        f = F.linear(F.relu(a), weight2, bias2)
    total = block.skip(h) + f
    gates1, gates2 = ((z > 0).to(h.dtype) for z in (a, total))
    jacobian = BlockJacobian(weight1, weight2, gates1, gates2, tuple(h.shape[1:]), stride)
    return jacobian, gates2 * f, F.relu(total)


@torch.no_grad()
def linearise(network, x):
    """The states h_0..h_L of images `x` and the Residual Jacobian of every block there.

    Returns (states, jacobians, branches): L + 1 states, L BlockJacobian, and L masked branch
    outputs f_l = D_l F_l. Raises ValueError when the network is in training mode (its batch norm
    would mix the images).
    """
    if network.training:
        raise ValueError(
            "Residual Jacobians are taken in evaluation mode; call network.eval() first"
        )
    states, jacobians, branches = [network.first_state(x)], [], []
    for block in network.blocks:
        jacobian, branch, state = linearise_block(block, states[-1])
        jacobians.append(jacobian)
        branches.append(branch)
        states.append(state)
    return states, jacobians, branches
