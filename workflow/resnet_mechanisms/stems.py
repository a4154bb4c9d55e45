"""The convolutional stem: from images of any size to the state that the blocks work on.

Plain arithmetic, so that costs can be planned without building a network.
"""

from dataclasses import dataclass

STATE = 16  # side of the state wherever images are larger


@dataclass(frozen=True)
class Stem:
    """A 5x5 convolution of this stride and padding on square images, the side of the state it
    gives, and the sides of the average pooling before the classifier (Type 2, Type 3)."""

    stride: int
    padding: int
    state: int
    pools: tuple


def stem_of(side):
    """The Stem for images of side x side pixels.

    28 and 32 pixels as in the authors' code (Li & Papyan 2023): stride 2, a state of 16 x 16,
    pooling 4 and 2. Larger images, our choice: the stride that leads to 16 x 16. Up to 16 pixels,
    our choice: stride 2 and no pooling (8x8 digits: 4 x 4).
    """
    if side <= STATE:
        return Stem(2, 2, (side + 1) // 2, (1, 1))
    stride = -(-side // STATE)
    # The smallest padding, at least 2, at which the last window ends in the image's last stride.
    padding = max(2, -(-(stride * (STATE - 1) + 5 - side) // 2))
    return Stem(stride, padding, (side + 2 * padding - 5) // stride + 1, (4, 2))
