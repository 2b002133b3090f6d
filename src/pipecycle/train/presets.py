"""The models that come with pipecycle, as layers in numbers: their size is known without torch, and `models` builds the
modules from the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from attrs import frozen

from pipecycle.errors import InputError


@frozen
class Preset:
    """Channels of the convolutions and widths of the hidden dense layers."""

    channels: tuple[int, ...]
    hidden: tuple[int, ...]
    groups: int = 0
    """Of a norm after each convolution; 0 for none."""
    residual: bool = False
    """A 3x3 convolution, then a block of two for each number of channels, and a mean over all pixels."""


PRESETS = {
    "mlp": Preset((), (64,)),
    "lenet": Preset((6, 16), (120, 84)),
    "cnn64": Preset((64, 64), (120, 64)),
    "wide": Preset((32, 64), (512, 128)),
    "cnn64-gn": Preset((64, 64), (120, 64), groups=8),
    "resnet8-gn": Preset((16, 32, 64), (), groups=8, residual=True),
}
SMALL = 16
"""Images below this many pixels a side keep their size in convolutions, or nothing would be left of them."""


@frozen
class Layer:
    """A convolution, or a dense layer where `kernel` is 0."""

    inputs: int
    outputs: int
    kernel: int = 0
    padding: int = 0
    stride: int = 1
    groups: int = 0
    """Of the norm that follows."""
    bias: bool = True

    @property
    def size(self) -> int:
        """Parameters, the norm's factors and shifts among them."""
        extra = self.bias + 2 * (self.groups > 0)
        return (self.inputs * max(1, self.kernel) ** 2 + extra) * self.outputs


def layers(name: str, shape: Sequence[int], classes: int) -> list[Layer]:
    """The layers of a preset for inputs of `shape`, (features,) or (channels, height, width), in the order in which its
    module holds them: of a block its two convolutions, then the one beside them if its shape changes."""
    preset = PRESETS[name]
    if preset.channels and (len(shape) != 3 or min(shape[1:]) < 4):
        raise InputError(f"{name} on inputs of shape {tuple(shape)}: needs (channels, height, width) of at least 4 x 4")
    if preset.residual:
        return _residual(preset, shape[0], classes)
    made: list[Layer] = []
    previous, sides = shape[0], list(shape[1:])
    padding = 2 if sides and min(sides) < SMALL else 0
    for width in preset.channels:
        made.append(Layer(previous, width, 5, padding, groups=preset.groups))
        previous, sides = width, [(side + 2 * padding - 4) // 2 for side in sides]
    inputs = previous * prod(sides)
    for width in (*preset.hidden, classes):
        made.append(Layer(inputs, width))
        inputs = width
    return made


def _residual(preset: Preset, channels: int, classes: int) -> list[Layer]:
    groups, previous = preset.groups, preset.channels[0]
    made = [Layer(channels, previous, 3, 1, groups=groups, bias=False)]
    for index, width in enumerate(preset.channels):
        stride = 2 if index else 1
        made += [
            Layer(previous, width, 3, 1, stride, groups, bias=False),
            Layer(width, width, 3, 1, groups=groups, bias=False),
        ]
        if stride > 1 or width != previous:
            made.append(Layer(previous, width, 1, 0, stride, groups, bias=False))
        previous = width
    return [*made, Layer(previous, classes)]


def size(name: str, shape: Sequence[int], classes: int) -> int:
    """Parameters of a preset: on CIFAR-10 lenet has 62,006, cnn64 307,842 and wide 940,362."""
    return sum(layer.size for layer in layers(name, shape, classes))
