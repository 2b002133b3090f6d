"""A module as a list of layers whose forward and backward passes are written out, read off it by torch.fx.

`network_trace` gives a `Network`, or a sentence that says which part of the module it does not know.  Activations are
channels-last and their channels padded, so that a device reads them in whole pieces; a network's parameters are one
padded row.  What is padded is zero and stays zero.
"""

from __future__ import annotations

from math import prod

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

Places = NDArray[np.int64]
Pair = tuple[int, int]

PIECE = 8
"""Channels are padded to a multiple of this: 16 bytes in bf16, the largest piece that a thread reads at once."""
ROW = 64
"""Parameters of a layer begin at a multiple of this in their row."""


@frozen
class Bend:
    """An activation, by the name that kernels know it by, and its constant."""

    kind: str
    alpha: float = 0.0

    @property
    def by_output(self) -> bool:
        """Whether its slope can be told from what came out, so that what went in need not be kept."""
        return self.kind not in ("silu", "gelu", "gelu_tanh")


LINE = Bend("line")


@define(eq=False)
class Value:
    """What a layer gives for one sample: (height, width, channels) with padded channels."""

    height: int
    width: int
    channels: int
    where: Places
    """The place of each channel of an image, or of each feature where `flat`, among the padded ones."""
    real: int
    """Channels from here on are padding; joined values have padding in between and none from here on."""
    flat: bool = False
    bend: Bend = LINE
    """The activation that its maker ended with: its gradient is kept as that of what went into the activation."""
    trained: bool = False
    """Whether parameters have had a part in it, so that it has a gradient."""

    @property
    def size(self) -> int:
        return self.height * self.width * self.channels

    @property
    def joined(self) -> bool:
        """Whether padding may lie between its channels."""
        used = len(self.where) // (self.height * self.width if self.flat else 1)
        return self.real != used

    @property
    def tidy(self) -> bool:
        """Whether the channels lie in their own order."""
        return bool((self.where == np.arange(len(self.where))).all())


@frozen
class Window:
    """How a convolution or pooling moves over an image."""

    kernel: Pair
    stride: Pair
    padding: Pair

    def out(self, height: int, width: int) -> Pair:
        sides = zip((height, width), self.kernel, self.stride, self.padding, strict=True)
        high, wide = ((side + 2 * pad - size) // step + 1 for side, size, step, pad in sides)
        return high, wide


@define(eq=False)
class Product:
    """A convolution, or a dense layer as one of a single pixel: (taps x channels, filters) weights and a bias."""

    x: int
    y: int
    shape: tuple[int, int, int]
    """Of its input as it reads it: height, width, channels."""
    window: Window
    filters: int
    """Without padding."""
    weight: int
    bias: int | None
    """Where these begin in the row of parameters."""

    @property
    def rows(self) -> int:
        """Of the weights."""
        return prod(self.window.kernel) * self.shape[2]


@define(eq=False)
class Pooling:
    """The largest or the mean value of a window."""

    x: int
    y: int
    window: Window
    largest: bool
    counted: bool
    """Whether a mean counts the zeros of the padding."""


@define(eq=False)
class Norm:
    """Groups of channels, each brought to mean 0 and variance 1 within a sample."""

    x: int
    y: int
    groups: int
    each: int
    """Channels in a group."""
    eps: float
    weight: int | None
    """Where the factors begin; the shifts follow them, padded alike."""


@define(eq=False)
class Join:
    """Values added up, or laid side by side; one alone goes through an activation."""

    xs: tuple[int, ...]
    y: int
    offsets: tuple[int, ...]
    """The channel at which each begins in the result."""
    own: Bend = LINE
    """An activation that needs what went in."""


Layer = Product | Pooling | Norm | Join


@define(eq=False)
class Network:
    """Layers in an order in which they can be computed; value 0 is the input and `output` the logits."""

    values: list[Value] = field(factory=list)
    layers: list[Layer] = field(factory=list)
    output: int = 0
    row: int = 0
    """Parameters of a network, padded."""
    place: Places = field(factory=lambda: np.empty(0, np.int64))
    """Where each parameter of the module goes."""

    def sums_as(self, y: int) -> int:
        """A smaller value whose gradients have the same sum by channel as those of `y`: the one that max-pooling makes
        of it, if nothing else reads it."""
        readers = [layer for layer in self.layers if y in inputs(layer)]
        if len(readers) == 1 and isinstance(readers[0], Pooling) and readers[0].largest and self.values[y].bend == LINE:
            return readers[0].y
        return y

    def writers(self) -> dict[tuple[int, int], tuple[bool, bool]]:
        """For each (layer, input with a gradient) whether it is not the first and whether it is the last to add to
        that gradient, in the order of the backward pass."""
        order = [
            (index, x)
            for index in reversed(range(len(self.layers)))
            for x in inputs(self.layers[index])
            if self.values[x].trained
        ]
        seen: dict[int, list[tuple[int, int]]] = {}
        for index, x in order:
            seen.setdefault(x, []).append((index, x))
        return {key: (at > 0, at == len(keys) - 1) for keys in seen.values() for at, key in enumerate(keys)}


def inputs(layer: Layer) -> tuple[int, ...]:
    """The values that a layer reads."""
    return layer.xs if isinstance(layer, Join) else (layer.x,)


def padded(count: int, piece: int = PIECE) -> int:
    return -(-count // piece) * piece
