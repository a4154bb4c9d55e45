"""What the name of a network's type says: a base and at most one suffix.

Plain Python, so that a configuration can be checked and planned without building a network. The
types themselves: `networks.py`.
"""

BASES = ("fc", "conv", "conv_down", "cifar")
SUFFIXES = ("_pre", "_no_norm", "_crelu")
TYPES = (
    *BASES,
    "fc_pre", "conv_pre", "conv_down_pre",
    "fc_no_norm", "cifar_no_norm", "fc_crelu",
)  # fmt: skip
PLAIN_ONLY = ("fc_crelu",)


def base(kind):
    """The type without its suffix: fc, conv, conv_down or cifar."""
    for suffix in SUFFIXES:
        kind = kind.removesuffix(suffix)
    return kind


def convolutional(kind):
    return base(kind) != "fc"


def pre_activation(kind):
    return kind.endswith("_pre")


def crelu(kind):
    """Whether the activation is x -> (relu(x); relu(-x)), of twice as many numbers."""
    return kind.endswith("_crelu")


def batch_norm(kind):
    """Whether batch norm follows each linear map; Residual Jacobians are measured where it does."""
    return not kind.endswith(("_no_norm", "_crelu"))


def stage(kind, depth, block):
    """The stage, from 0, of a block, from 1: each further one has twice the channels at half the
    resolution."""
    kind = base(kind)
    if kind == "conv_down":
        return int(block > depth // 2)
    return (block - 1) // (depth // 3) if kind == "cifar" else 0


def weighted_layers(kind, depth):
    """Linear maps from the image to the logits, as He et al. count them: stem, two a block,
    classifier."""
    return 2 * depth + 2
