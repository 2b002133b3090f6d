"""Putting a network together, layer by layer: shapes, the places of parameters, and what can be done in one go."""

from __future__ import annotations

from math import prod

import numpy as np
from attrs import evolve
from torch import Tensor, nn

from pipecycle.train.network import (
    LINE,
    ROW,
    Bend,
    Join,
    Network,
    Norm,
    Pair,
    Places,
    Pooling,
    Product,
    Value,
    Window,
    padded,
)


class Builder:
    """Adds layers to a network; `Unknown` says what it has no layer for."""

    def __init__(self, shape: tuple[int, ...], parameters: list[nn.Parameter], flat: bool) -> None:
        """`flat` says that the first layer sees nothing but features: an image's channels are then not padded."""
        self.net = Network()
        self.at: dict[int, int] = {}
        """Where each parameter begins in the module's vector."""
        total = 0
        for parameter in parameters:
            self.at[id(parameter)] = total
            total += parameter.numel()
        self.net.place = np.full(total, -1, np.int64)
        if len(shape) == 1:
            self._add(Value(1, 1, padded(shape[0]), np.arange(shape[0]), shape[0], flat=True))
        elif len(shape) == 3:
            channels = shape[0] if flat else max(4, shape[0]) if shape[0] <= 4 else padded(shape[0])
            self._add(Value(shape[1], shape[2], channels, np.arange(shape[0]), shape[0]))
        else:
            raise Unknown(f"inputs of shape {shape}")

    def _add(self, value: Value) -> int:
        self.net.values.append(value)
        return len(self.net.values) - 1

    def _like(self, x: int, trained: bool) -> int:
        """A new value of the same layout."""
        return self._add(evolve(self.net.values[x], bend=LINE, trained=trained))

    def _parameter(self, parameter: Tensor, places: Places, count: int) -> int:
        """Takes `count` places of the row for a parameter; where its own numbers go among them."""
        begin, first = self.net.row, self.at[id(parameter)]
        if self.net.place[first] >= 0:
            raise Unknown("a layer that is used twice")
        self.net.place[first : first + parameter.numel()] = begin + places.reshape(-1)
        self.net.row += padded(count, ROW)
        return begin

    def product(self, x: int, layer: nn.Conv2d | nn.Linear) -> int:
        value = self.net.values[x]
        if isinstance(layer, nn.Linear):
            if not value.flat:
                raise Unknown("a dense layer on an image that is not flattened")
            window, shape, filters = Window((1, 1), (1, 1), (0, 0)), (1, 1, value.size), layer.out_features
            rows, high, wide = value.where, 1, 1
        else:
            if value.flat:
                raise Unknown("a convolution of what is no image")
            window, filters = _window(layer), layer.out_channels
            shape = value.height, value.width, value.channels
            taps = np.arange(prod(window.kernel)).reshape(window.kernel)
            rows = taps[None] * value.channels + value.where[:, None, None]
            high, wide = window.out(*shape[:2])
            if min(high, wide) < 1:
                raise Unknown("a convolution that leaves nothing")
        width = padded(filters)
        numbers = np.arange(filters)
        places = rows[None] * width + numbers.reshape(-1, *[1] * rows.ndim)
        weight = self._parameter(layer.weight, places, prod(window.kernel) * shape[2] * width)
        bias = None if layer.bias is None else self._parameter(layer.bias, numbers, width)
        y = self._add(Value(high, wide, width, numbers, filters, flat=value.flat, trained=True))
        self.net.layers.append(Product(x, y, shape, window, filters, weight, bias))
        return y

    def pool(self, x: int, window: Window, largest: bool, counted: bool = True) -> int:
        value = self.net.values[x]
        if value.flat:
            raise Unknown("pooling of what is no image")
        if prod(window.kernel) > 127 and largest:
            raise Unknown("max-pooling over more than 127 values")
        high, wide = window.out(value.height, value.width)
        if min(high, wide) < 1:
            raise Unknown("pooling that leaves nothing")
        y = self._add(evolve(value, height=high, width=wide, bend=LINE))
        self.net.layers.append(Pooling(x, y, window, largest, counted))
        return y

    def pool_largest(self, x: int, window: Window, alone: bool) -> int:
        """An activation that only this pooling reads is moved behind it: the same function and gradient on fewer
        values."""
        value, y = self.net.values[x], self.pool(x, window, True)
        if alone and value.bend.kind in ("relu", "leaky"):
            self.net.values[y].bend, value.bend = value.bend, LINE
        return y

    def pool_all(self, x: int) -> int:
        value = self.net.values[x]
        return self.pool(x, Window((value.height, value.width), (1, 1), (0, 0)), False)

    def norm(self, x: int, layer: nn.GroupNorm | nn.LayerNorm) -> int:
        value = self.net.values[x]
        count = len(value.where)
        groups = layer.num_groups if isinstance(layer, nn.GroupNorm) else 1
        if not value.tidy or (value.flat and value.height * value.width > 1):
            raise Unknown("a norm of features that were an image or were joined")
        if isinstance(layer, nn.LayerNorm) and (not value.flat or tuple(layer.normalized_shape) != (count,)):
            raise Unknown("LayerNorm of anything but all features")
        if value.channels > (256 if groups > 1 else 4096):  # one program holds them all
            raise Unknown("a norm of more than 256 channels in groups, or of more than 4,096")
        weight = None
        if layer.weight is not None:
            if layer.bias is None:
                raise Unknown("a norm with factors and no shifts")
            weight = self._parameter(layer.weight, np.arange(count), padded(value.channels, ROW))
            self._parameter(layer.bias, np.arange(count), padded(value.channels, ROW))
        y = self._like(x, value.trained or weight is not None)
        self.net.layers.append(Norm(x, y, groups, count // groups, layer.eps, weight))
        return y

    def bend(self, x: int, bend: Bend, alone: bool) -> int:
        """An activation: part of what made the value where that is possible and nobody else (`alone`) reads it."""
        value = self.net.values[x]
        if bend.kind == "sigmoid" and value.joined:  # it makes 0.5 of padding
            raise Unknown("Sigmoid of joined values")
        if alone and bend.by_output and value.bend == LINE and x:
            value.bend = bend
            return x
        y = self._like(x, value.trained)
        layer = Join((x,), y, (0,))
        if bend.by_output:
            self.net.values[y].bend = bend
        else:
            layer.own = bend
        self.net.layers.append(layer)
        return y

    def add(self, xs: tuple[int, ...]) -> int:
        first, *others = (self.net.values[x] for x in xs)
        shape = first.height, first.width, first.channels, first.flat
        for other in others:
            if (other.height, other.width, other.channels, other.flat) != shape or len(xs) != len(set(xs)):
                raise Unknown("a sum of values of different shapes, or of one with itself")
            if len(other.where) != len(first.where) or (other.where != first.where).any():
                raise Unknown("a sum of values that are laid out differently")
        trained = any(self.net.values[x].trained for x in xs)
        y = self._like(xs[0], trained)
        self.net.layers.append(Join(xs, y, (0,) * len(xs)))
        return y

    def join(self, xs: tuple[int, ...]) -> int:
        values = [self.net.values[x] for x in xs]
        flat, first = values[0].flat, values[0]
        if any(value.flat != flat for value in values) or len(xs) != len(set(xs)):
            raise Unknown("joining an image and features, or a value with itself")
        if not flat and any((value.height, value.width) != (first.height, first.width) for value in values):
            raise Unknown("joining images of different sizes")
        widths = [value.size if flat else value.channels for value in values]
        offsets = [sum(widths[:i]) for i in range(len(widths))]
        where = np.concatenate([value.where + offset for value, offset in zip(values, offsets, strict=True)])
        size = (1, 1) if flat else (first.height, first.width)
        trained = any(value.trained for value in values)
        width = padded(sum(widths))
        y = self._add(Value(*size, width, where, width, flat=flat, trained=trained))
        self.net.layers.append(Join(xs, y, tuple(offsets)))
        return y

    def flatten(self, x: int) -> int:
        """The same numbers under another name; nothing is computed."""
        value = self.net.values[x]
        if value.flat:
            return x
        pixels = np.arange(value.height * value.width) * value.channels
        value.where, value.flat = (value.where[:, None] + pixels[None]).reshape(-1), True
        return x


class Unknown(Exception):
    """A part of a module that there is no layer for."""


def _pair(value: object) -> Pair:
    if isinstance(value, int):
        return value, value
    if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(part, int) for part in value):
        return value[0], value[1]
    raise Unknown(f"a window of {value}")


def window(kernel: object, stride: object = None, padding: object = 0) -> Window:
    return Window(_pair(kernel), _pair(kernel if stride is None else stride), _pair(padding))


def _window(layer: nn.Conv2d) -> Window:
    if layer.groups != 1 or layer.dilation != (1, 1) or layer.padding_mode != "zeros":
        raise Unknown("a convolution with groups, dilation or other padding than zeros")
    padding: object = layer.padding
    if padding == "valid":
        padding = 0
    elif padding == "same":
        if any(side % 2 == 0 for side in layer.kernel_size):
            raise Unknown("a convolution with one-sided padding")
        padding = tuple(side // 2 for side in layer.kernel_size)
    return window(layer.kernel_size, layer.stride, padding)
