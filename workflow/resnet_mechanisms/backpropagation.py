"""The loss of a fully connected network and its gradient, written out.

The same operations in the same order as `Network.forward` and autograd, so the same numbers. On
small networks the own bookkeeping of modules and autograd takes as long as the arithmetic: without
it a step takes 70 % of the time at width 64, 80 % at width 128.
"""

import torch
import torch.nn.functional as F


def possible(network, recipe, device):
    """Whether a training step can be taken this way: Type 1 on a CPU, with no more in the step than
    the forward pass in float32 and the cross-entropy."""
    more = ("stochastic_depth", "path_energy", "step_alignment", "mixed_precision", "compile")
    type_1 = network.batch_norm and not (network.convolutional or network.pre)
    return type_1 and device.type == "cpu" and not any(recipe[key] for key in more)


class Layer:
    """relu(BN(W h) + skip) in training mode. Gradients are written where the parameters have
    theirs."""

    def __init__(self, linear, norm):
        self.weight, self.weight_gradient = linear.weight.detach(), linear.weight.grad
        self.scale, self.shift = norm.weight.detach(), norm.bias.detach()
        self.scale_gradient, self.shift_gradient = norm.weight.grad, norm.bias.grad
        self.running, self.batches = (norm.running_mean, norm.running_var), norm.num_batches_tracked
        self.momentum, self.eps = norm.momentum, norm.eps

    def forward(self, h, skip=None):
        z = h @ self.weight.t()
        out, mean, inverse_std = torch.native_batch_norm(
            z, self.scale, self.shift, *self.running, True, self.momentum, self.eps
        )
        self.batches.add_(1)
        if skip is not None:
            out.add_(skip)
        out.relu_()
        self.kept = h, z, mean, inverse_std, out
        return out

    def backward(self, gradient):
        """The gradients with respect to W h and to the skip, from the one with respect to the
        output."""
        h, z, mean, inverse_std, out = self.kept
        at_sum = torch.ops.aten.threshold_backward(gradient, out, 0)
        at_z, scale, shift = torch.ops.aten.native_batch_norm_backward(
            at_sum, z, self.scale, *self.running, mean, inverse_std, True, self.eps, [True] * 3
        )
        torch.mm(at_z.t(), h, out=self.weight_gradient)
        self.scale_gradient.copy_(scale)
        self.shift_gradient.copy_(shift)
        return at_z, at_sum


class Backpropagation:
    """A function of a batch and its labels that returns the mean cross-entropy in training mode and
    sets the gradients of the network's parameters, which must have some already
    (`training.flattened` gives them)."""

    def __init__(self, network):
        self.stem, self.classifier = Layer(network.stem, network.norm), network.classifier
        self.blocks = [
            (Layer(b.linear1, b.norm1), Layer(b.linear2, b.norm2)) for b in network.blocks
        ]
        self.residual = network.blocks[0].residual

    @torch.no_grad()
    def __call__(self, x, labels):
        h = self.stem.forward(x.flatten(1))
        for first, second in self.blocks:
            h = second.forward(first.forward(h), h if self.residual else None)
        with torch.enable_grad():
            self.classifier.zero_grad(set_to_none=False)
            loss = F.cross_entropy(self.classifier(h.requires_grad_()), labels)
            loss.backward()
        gradient = h.grad
        for first, second in reversed(self.blocks):
            at_z, at_sum = second.backward(gradient)
            at_z, _ = first.backward(at_z @ second.weight)
            gradient = at_z @ first.weight
            if self.residual:
                gradient.add_(at_sum)
        self.stem.backward(gradient)
        return loss.detach()
