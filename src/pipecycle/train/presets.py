"""The models that come with pipecycle, as layers in numbers: their size is known without torch, and `models` builds the
modules from the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from attrs import frozen

from pipecycle.errors import InputError

PRESETS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "mlp": ((), (64,)),
    "lenet": ((6, 16), (120, 84)),
    "cnn64": ((64, 64), (120, 64)),
    "wide": ((32, 64), (512, 128)),
}
"""Channels of the convolutions and widths of the hidden dense layers."""
SMALL = 16
"""Images below this many pixels a side keep their size in convolutions, or nothing would be left of them."""
KERNEL = 5


@frozen
class Layer:
    """A dense layer, or with a padding a convolution that is followed by a 2x2 pooling; all have a bias."""

    inputs: int
    outputs: int
    padding: int | None = None

    @property
    def size(self) -> int:
        """Parameters."""
        taps = 1 if self.padding is None else KERNEL**2
        return (self.inputs * taps + 1) * self.outputs


def layers(name: str, shape: Sequence[int], classes: int) -> list[Layer]:
    """The layers of a preset for inputs of `shape`, (features,) or (channels, height, width)."""
    channels, hidden = PRESETS[name]
    if channels and (len(shape) != 3 or min(shape[1:]) < 4):
        raise InputError(f"{name} on inputs of shape {tuple(shape)}: needs (channels, height, width) of at least 4 x 4")
    made: list[Layer] = []
    previous, sides = shape[0], list(shape[1:])
    padding = 2 if sides and min(sides) < SMALL else 0
    for width in channels:
        made.append(Layer(previous, width, padding))
        previous, sides = width, [(side + 2 * padding - KERNEL + 1) // 2 for side in sides]
    inputs = previous * prod(sides)
    for width in (*hidden, classes):
        made.append(Layer(inputs, width))
        inputs = width
    return made


def size(name: str, shape: Sequence[int], classes: int) -> int:
    """Parameters of a preset: lenet has 62,006 on CIFAR-10, cnn64 307,842 and wide 940,362."""
    return sum(layer.size for layer in layers(name, shape, classes))
