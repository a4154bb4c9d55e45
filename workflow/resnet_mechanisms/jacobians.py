"""Residual Jacobians of trained blocks as linear operators.

For h_l = relu(skip + F_l(h_{l-1})) at a given input, D_l = diag(1[skip + F_l > 0]) is held constant
and

    J_l = D_l dF_l/dh   at the network's own h_{l-1}(x), in evaluation mode

(Li & Papyan 2023, as in the authors' measurement code; neither dh_l/dh_{l-1} - I nor the Jacobian
of the unmasked branch). In a plain net h_l = relu(F_l), so J_l is the Jacobian of the whole block.
With batch norm folded into the weights, F_l is W2 relu(W1 h + b1) + b2, hence J_l = D_l W2 D1 W1
with the gates D1 of the hidden layer: two matrix products or convolutions and two masks, without
automatic differentiation (FullyConnectedJacobian, ConvolutionalJacobian). With pre-activation
nothing follows the addition: J_l = dF_l/dh = W2 D1 W1 D0, with the gates D0 of the block's input.
ModuleJacobian is the same operator of any torch module, by forward and reverse mode.
"""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

# Vectors go through a block in parts of this many, so that what lies between its layers stays in a
# processor's cache.
CONVOLVED_TOGETHER = 32
MULTIPLIED_TOGETHER = 1024
# So many vectors of one input are worth matrices of its own, without its closed gates.
WORTH_FACTORS = 64
NOT_FINITE = "the Residual Jacobian is not finite: weights or batch-norm statistics are not"


def scale_and_shift(norm):
    """Batch norm in evaluation mode as z -> scale z + shift, per channel."""
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    return scale.detach(), (norm.bias - norm.running_mean * scale).detach()


def folded(layer, norm, factor=1.0):
    """(weight, bias) of a linear or convolutional layer followed by its batch norm in evaluation
    mode."""
    scale, shift = scale_and_shift(norm)
    weight = layer.weight.detach() * scale.view(-1, *[1] * (layer.weight.dim() - 1))
    return weight * factor, shift * factor


class Jacobian:
    """J at N inputs as a linear operator, without the matrix. Vectors are rows: J V for V of shape
    N x b x n_in is N x b x n_out.

    A subclass has `shape` (N, n_out, n_in), `dtype`, `device`, `flops` (of one product J v or
    J^T u), `matvec`, `rmatvec`, and lists in `per_input` its tensors that start with N.
    """

    per_input = ()

    def inputs(self, index):
        """The operator at some of the inputs; `index` is a slice or a list of positions."""
        part = copy.copy(self)
        for name in self.per_input:
            value = getattr(self, name)
            setattr(part, name, None if value is None else value[index])
        return part

    def vectors(self, states):
        """States at this block, N x state's shape, as vectors N x n in the operator's order."""
        return states.flatten(1)

    @property
    def dense(self):
        """J as a matrix for every input, N x n_out x n_in; formed anew each time."""
        count, _, n = self.shape
        basis = torch.eye(n, dtype=self.dtype, device=self.device)
        columns = [self.matvec(part.expand(count, -1, -1)) for part in basis.split(128)]
        return torch.cat(columns, 1).mT.contiguous()


class MatrixJacobian(Jacobian):
    """A matrix of every input, N x n_out x n_in."""

    per_input = ("matrix",)

    def __init__(self, matrix):
        self.matrix, self.dtype, self.device = matrix, matrix.dtype, matrix.device

    @property
    def shape(self):
        return tuple(self.matrix.shape)

    @property
    def flops(self):
        return 2 * self.matrix[0].numel()

    @property
    def dense(self):
        return self.matrix

    def matvec(self, vectors):
        return vectors @ self.matrix.mT

    def rmatvec(self, vectors):
        return vectors @ self.matrix


class FullyConnectedJacobian(Jacobian):
    """J = D2 W2 D1 W1 D0 of a fully connected block.

    weight1: hidden x n_in, weight2: n_out x hidden, batch norm folded in. gates1: N x hidden,
    gates2: N x n_out and gates0: N x n_in, 0/1 masks, D0 = 1 where it is left out.
    """

    per_input = ("gates0", "gates1", "gates2")

    def __init__(self, weight1, weight2, gates1, gates2, gates0=None):
        self.weight1, self.weight2 = weight1, weight2
        self.transposed2 = weight2.T.contiguous()
        self.gates0, self.gates1, self.gates2 = gates0, gates1, gates2
        self.dtype, self.device = weight1.dtype, weight1.device

    @property
    def shape(self):
        return len(self.gates2), self.weight2.shape[0], self.weight1.shape[1]

    @property
    def flops(self):
        return 2 * (self.weight1.numel() + self.weight2.numel())

    def matvec(self, vectors):
        """J v for every input and vector: N x b x n_in -> N x b x n_out."""
        if vectors.shape[1] >= WORTH_FACTORS:
            factors = map(self.factors, range(len(vectors)))
            return torch.stack([v @ b.T @ a for v, (a, b) in zip(vectors, factors, strict=True)])
        steps = (self.weight1.T, self.gates1), (self.weight2.T, self.gates2)
        if self.gates0 is not None:
            vectors = vectors * self.gates0[:, None]
        return self._chain(vectors, steps)

    def rmatvec(self, vectors):
        """J^T u for every input and vector: N x b x n_out -> N x b x n_in."""
        if vectors.shape[1] >= WORTH_FACTORS:
            factors = map(self.factors, range(len(vectors)))
            return torch.stack([u @ a.T @ b for u, (a, b) in zip(vectors, factors, strict=True)])
        steps = (self.weight2, self.gates1), (self.weight1, self.gates0)
        return self._chain(vectors * self.gates2[:, None], steps)

    def _chain(self, vectors, steps):
        """Products with the matrices that all inputs share, each followed by the inputs' masks."""
        count, number = vectors.shape[:2]
        together = max(1, MULTIPLIED_TOGETHER // number)
        parts = []
        for first in range(0, count, together):
            part = slice(first, first + together)
            h = vectors[part].reshape(-1, vectors.shape[2])
            for matrix, mask in steps:
                h = h @ matrix
                if mask is not None:
                    h.view(-1, number, h.shape[1]).mul_(mask[part, None])
            parts.append(h)
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out.view(count, number, -1)

    def factors(self, index):
        """J = A^T B at one input through its open hidden units alone: A is D2 W2's part of shape
        open x n_out, B that of W1 D0, open x n_in."""
        open_units = self.gates1[index].nonzero()[:, 0]
        a, b = self.transposed2[open_units] * self.gates2[index], self.weight1[open_units]
        return a, b if self.gates0 is None else b * self.gates0[index]

    @property
    def dense(self):
        return torch.stack([a.T @ b for a, b in map(self.factors, range(len(self.gates2)))])


class ConvolutionalJacobian(Jacobian):
    """J = D2 W2 D1 W1 D0 of a block of two 3x3 convolutions with padding 1.

    Vectors are states flattened row by row, channels last (H x W x channels): `vectors` brings
    states N x channels x H x W into this order. weight1, weight2: out x in x 3 x 3, batch norm
    folded in. gates0 (1 where it is left out), gates1, gates2: 0/1 masks N x channels x H x W.
    input_shape: (channels, H, W). stride: of the first convolution.
    """

    per_input = ("gates0", "gates1", "gates2")

    def __init__(self, weight1, weight2, gates1, gates2, input_shape, stride=1, gates0=None):
        self.weight1 = weight1.contiguous(memory_format=torch.channels_last)
        self.weight2 = weight2.contiguous(memory_format=torch.channels_last)
        # The adjoint of a convolution with stride 1 is one with the kernel turned round.
        self.adjoint1, self.adjoint2 = (
            w.flip(2, 3).transpose(0, 1).contiguous(memory_format=torch.channels_last)
            for w in (weight1, weight2)
        )
        self.gates0, self.gates1, self.gates2 = (
            None if gates is None else gates.permute(0, 2, 3, 1).contiguous().flatten(1)
            for gates in (gates0, gates1, gates2)
        )
        self.input_shape, self.stride = tuple(input_shape), stride
        self.hidden_shape, self.output_shape = gates1.shape[1:], gates2.shape[1:]
        self.dtype, self.device = weight1.dtype, weight1.device

    @property
    def shape(self):
        return len(self.gates2), self.output_shape.numel(), math.prod(self.input_shape)

    @property
    def flops(self):
        pixels = self.hidden_shape[1] * self.hidden_shape[2]
        return 2 * pixels * (self.weight1.numel() + self.weight2.numel())

    def vectors(self, states):
        return states.permute(0, 2, 3, 1).flatten(1)

    def matvec(self, vectors):
        """J v for every input and vector: N x b x n_in -> N x b x n_out."""
        return self._in_parts(self._forward, vectors, self.shape[1])

    def rmatvec(self, vectors):
        """J^T u for every input and vector: N x b x n_out -> N x b x n_in."""
        return self._in_parts(self._adjoint, vectors, self.shape[2])

    def _in_parts(self, product, vectors, n):
        count, number = vectors.shape[:2]
        inputs = max(1, CONVOLVED_TOGETHER // number)
        if number <= CONVOLVED_TOGETHER and count <= inputs:
            return product(vectors, slice(None))
        out = vectors.new_empty(count, number, n)
        for first in range(0, count, inputs):
            part = slice(first, first + inputs)
            for start in range(0, number, CONVOLVED_TOGETHER):
                some = slice(start, start + CONVOLVED_TOGETHER)
                out[part, some] = product(vectors[part, some], part)
        return out

    def _forward(self, vectors, part):
        if self.gates0 is not None:
            vectors = vectors * self.gates0[part, None]
        h = self._images(vectors, self.input_shape)
        h = F.conv2d(h, self.weight1, None, self.stride, 1)
        h = self._masked(h, vectors, self.gates1[part])
        h = F.conv2d(self._images(h, self.hidden_shape), self.weight2, None, 1, 1)
        return self._masked(h, vectors, self.gates2[part])

    def _adjoint(self, vectors, part):
        h = self._images(vectors * self.gates2[part, None], self.output_shape)
        h = self._masked(F.conv2d(h, self.adjoint2, None, 1, 1), vectors, self.gates1[part])
        h = self._images(h, self.hidden_shape)
        if self.stride == 1:
            h = F.conv2d(h, self.adjoint1, None, 1, 1)
        else:
            # A strided convolution drops the last rows of an even-sided state; the adjoint must
            # give them back.
            missing = [
                side - ((out - 1) * self.stride + 1)
                for side, out in zip(self.input_shape[1:], self.hidden_shape[1:], strict=True)
            ]
            h = F.conv_transpose2d(h, self.weight1, None, self.stride, 1, output_padding=missing)
        if self.gates0 is not None:
            return self._masked(h, vectors, self.gates0[part])
        return h.permute(0, 2, 3, 1).reshape(*vectors.shape[:2], -1)

    @staticmethod
    def _images(vectors, shape):
        """Vectors as a batch of images whose memory keeps its order."""
        channels, height, width = shape
        return vectors.reshape(-1, height, width, channels).permute(0, 3, 1, 2)

    @staticmethod
    def _masked(images, vectors, gates):
        flat = images.permute(0, 2, 3, 1).reshape(*vectors.shape[:2], -1)
        return flat.mul_(gates[:, None])

    def probes(self):
        """Sets of unit vectors whose images under J^T do not overlap, summed: yields
        number x n_out.

        An output pixel depends on the input pixels of a square of 3 + 2 stride; output pixels that
        lie that far apart may be probed together. So sum ||J^T p||^2 over the
        ceil((3 + 2 stride) / stride)^2 x channels probes p is ||J||_F^2 exactly.
        """
        channels, height, width = self.output_shape
        apart = self._apart()
        for row in range(min(apart, height)):
            for column in range(min(apart, width)):
                grid = torch.zeros(height, width, dtype=self.dtype, device=self.device)
                grid[row::apart, column::apart] = 1
                unit = torch.eye(channels, dtype=self.dtype, device=self.device)
                yield (grid[None, :, :, None] * unit[:, None, None, :]).flatten(1)

    def _apart(self):
        return -(-(3 + 2 * self.stride) // self.stride)

    @property
    def number_of_probes(self):
        channels, height, width = self.output_shape
        return channels * min(self._apart(), height) * min(self._apart(), width)


class ModuleJacobian(Jacobian):
    """J of any torch callable, by forward mode (J v) and reverse mode (J^T u).

    branch: takes states N x any shape and returns outputs N x any shape, each row from its own row
    alone (evaluation mode). states: where it is linearised. gates: optional mask of the outputs'
    shape, N first, that multiplies J from the left (D_l of a Residual Jacobian). flops: of one
    product, where known, for the choice of the cheaper solver; a hundred times n by default.
    Raises ValueError where the branch mixes rows or is not finite at the states.
    """

    per_input = ("at", "gates")

    def __init__(self, branch, states, gates=None, flops=None):
        self.branch, self.at, self.gates = branch, states.detach(), gates
        self.dtype, self.device = states.dtype, states.device
        with torch.no_grad():
            output = branch(self.at)
            if len(output) != len(states):
                raise ValueError(
                    f"the branch turns {len(states)} states into {len(output)} outputs; "
                    "expected one output for each state"
                )
            alone = branch(self.at[:1].expand(2, *self.at.shape[1:]))  # batch norm needs two
        scale = max(1, float(output.abs().max()))
        if not torch.allclose(alone[0], output[0], rtol=1e-3, atol=1e-3 * scale):
            raise ValueError(
                "the branch's output at one state changes with the other states of the batch; "
                "call eval() on the module first"
            )
        self.output_shape = output.shape[1:]
        self._flops = flops

    @property
    def shape(self):
        return len(self.at), self.output_shape.numel(), self.at[0].numel()

    @property
    def flops(self):
        return self._flops or 100 * max(self.shape[1:])

    def matvec(self, vectors):
        """J v for every input and vector: N x b x n_in -> N x b x n_out."""

        def product(tangent):
            return torch.func.jvp(self.branch, (self.at,), (tangent.view_as(self.at),))[1]

        out = torch.func.vmap(product, in_dims=1, chunk_size=self._together())(vectors)
        if self.gates is not None:
            out = out * self.gates
        return out.flatten(2).transpose(0, 1).contiguous()

    def rmatvec(self, vectors):
        """J^T u for every input and vector: N x b x n_out -> N x b x n_in."""
        out = vectors.transpose(0, 1).reshape(-1, len(self.at), *self.output_shape)
        if self.gates is not None:
            out = out * self.gates
        _, pull = torch.func.vjp(self.branch, self.at)
        out = torch.func.vmap(lambda u: pull(u)[0], chunk_size=self._together())(out)
        return out.flatten(2).transpose(0, 1).contiguous()

    def _together(self):
        return max(1, CONVOLVED_TOGETHER // len(self.at))


@torch.no_grad()
def linearise_block(block, h):
    """One block at N states h, in evaluation mode: (Jacobian, masked branch f_l = D_l F_l, next
    state h_l)."""
    convolutional = isinstance(block.linear1, nn.Conv2d)
    stride = block.linear1.stride[0] if convolutional else 1

    def first(h, weight, bias):
        if convolutional:
            return F.conv2d(h, weight, bias, stride, 1)
        return F.linear(h, weight, bias)

    def second(a, weight, bias):
        return F.conv2d(a, weight, bias, 1, 1) if convolutional else F.linear(a, weight, bias)

    if block.pre:
        scale, shift = scale_and_shift(block.norm1)
        column = [1, -1] + [1] * (h.dim() - 2)
        z = scale.view(column) * h + shift.view(column)
        weight1, bias1 = folded(block.linear1, block.norm2)
        weight2 = block.linear2.weight.detach() * block.survival
        a = first(F.relu(z), weight1, bias1)
        f = second(F.relu(a), weight2, None)
        state = block.skip(h) + f
        weight1 = weight1 * scale.view([1, -1] + [1] * (weight1.dim() - 2))
        gates0, gates1, gates2 = (z > 0).to(h.dtype), (a > 0).to(h.dtype), torch.ones_like(f)
        branch = f
    else:
        weight1, bias1 = folded(block.linear1, block.norm1)
        weight2, bias2 = folded(block.linear2, block.norm2, block.survival)
        a = first(h, weight1, bias1)
        f = second(F.relu(a), weight2, bias2)
        total = block.skip(h) + f
        gates0, gates1, gates2 = None, (a > 0).to(h.dtype), (total > 0).to(h.dtype)
        branch, state = gates2 * f, F.relu(total)
    if convolutional:
        shape = h.shape[1:]
        jacobian = ConvolutionalJacobian(weight1, weight2, gates1, gates2, shape, stride, gates0)
    else:
        jacobian = FullyConnectedJacobian(weight1, weight2, gates1, gates2, gates0)
    return jacobian, branch, state


@torch.no_grad()
def linearise(network, x):
    """The states h_0..h_L of images `x` and the Residual Jacobian of every block there.

    Returns (states, jacobians, branches): L + 1 states, L Jacobians, and L masked branch outputs
    f_l = D_l F_l. Raises ValueError when the network is in training mode (its batch norm would mix
    the images).
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
