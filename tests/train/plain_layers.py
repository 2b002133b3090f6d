"""The layers of a stack as plain operations of torch: what our kernels are to compute, on any machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pipecycle.train.network import LINE, Bend, Join, Layer, Norm, Pooling, Product, Window, padded
from pipecycle.train.network_stack import NetworkStack

aten = torch.ops.aten


class PlainStack(NetworkStack):
    """A stack whose layers are plain operations, whose bits depend on the number of sessions: a constant."""

    @cached_property
    def layers(self) -> Any:
        return PlainLayers(self)

    def most(self, batch: int, views: bool = False) -> int:
        return 16


class PlainLayers:
    """As `KernelLayers`; all places of a stack are computed, used or not, so that sizes are always the same."""

    def __init__(self, stack: NetworkStack) -> None:
        self.stack = stack

    @property
    def live(self) -> int:
        return self.stack.room[0]

    def value(self, index: int) -> Tensor:
        return self.stack.values[index][: self.live]

    def slope(self, index: int) -> Tensor:
        slope = self.stack.slopes[index]
        assert slope is not None
        return slope[: self.live]

    def keep(self, index: int, y: Tensor) -> None:
        """Bend a value and store it, its padding as zeros."""
        value = self.stack.net.values[index]
        y = bent(y.reshape(*y.shape[:2], -1, value.channels), value.bend)
        y[..., value.real :] = 0
        self.value(index).copy_(y.flatten(2))

    def give(self, index: int, x: int, part: Tensor) -> None:
        """Add to the gradient of a layer's input; the last one to do so takes it through the activation."""
        if not self.stack.net.values[x].trained:
            return
        more, last = self.stack.writers[index, x]
        slope = self.slope(x)
        slope.copy_(slope + part if more else part)
        if last:
            slope.mul_(slope_of(self.value(x), self.stack.net.values[x].bend))

    def cut(self, views: bool) -> None:
        held, stack = self.stack.buffers, self.stack
        step, live = int(held["step"]), self.live
        picks = held["picks"][step, :live].long().clamp(min=0)
        if views:
            seen = stack.frame.cut(
                stack.compact, picks.reshape(-1), held["views"][step, :live].long().reshape(-1), stack.black
            )
        else:
            seen = stack.compact[picks.reshape(-1)]
        self.value(0).copy_(seen.reshape(*picks.shape, -1))

    def forward(self, index: int, layer: Layer) -> None:
        if isinstance(layer, Product):
            self.keep(layer.y, self._product(layer))
        elif isinstance(layer, Pooling):
            self.keep(layer.y, self._pool(index, layer))
        elif isinstance(layer, Norm):
            self.keep(layer.y, self._norm(index, layer))
        else:
            self._join(layer)

    def backward(self, index: int, layer: Layer) -> None:
        if not self.stack.net.values[layer.y].trained:
            return
        g = self.slope(layer.y)
        if isinstance(layer, Product):
            self._product_back(index, layer, g)
        elif isinstance(layer, Pooling):
            self._pool_back(index, layer, g)
        elif isinstance(layer, Norm):
            self._norm_back(index, layer, g)
        else:
            value = self.stack.net.values[layer.y]
            for x, offset in zip(layer.xs, layer.offsets, strict=True):
                part = g.unflatten(2, (-1, value.channels))[..., offset : offset + self._width(layer, x)]
                if layer.own != LINE:
                    part = part * slope_of(self.value(x).view_as(part), layer.own)
                self.give(index, x, part.flatten(2))

    def loss(self, teach: bool, collect: bool) -> None:
        held, stack, live = self.stack.buffers, self.stack, self.live
        classes, output = stack.classes, stack.net.output
        picks = held["picks"][int(held["step"]), :live].long()
        there = (picks >= 0).to(stack.images.dtype)[..., None]
        y = stack.labels[picks.clamp(min=0)].long()
        z = self.value(output)[..., :classes]
        own = functional.one_hot(y, classes).to(z)
        target = held["table"][:live].gather(1, y[..., None].expand(-1, -1, classes)) if teach else own
        g = z.softmax(2) * target.sum(2, keepdim=True) - target
        slope = self.slope(output)
        slope.zero_()
        slope[..., :classes] = torch.where(there > 0, g / there.sum(1, keepdim=True), 0.0)
        slope.mul_(slope_of(self.value(output), stack.net.values[output].bend))
        if collect:
            held["sums"][:live].baddbmm_((own * there).mT, z)
            held["counts"][:live] += (own * there).sum(1)

    def descend(self, begin: int, grad: Tensor) -> None:
        """A step of SGD for the parameters from `begin` on: (sessions, count)."""
        held, sgd, live = self.stack.buffers, self.stack.sgd, self.live
        part = slice(begin, begin + grad.shape[1])
        w = held["w"][:live, part]
        if sgd.weight_decay:
            grad = grad + sgd.weight_decay * w
        if sgd.proximal:
            grad = grad + sgd.proximal * (w - held["start"][:live, part])
        if sgd.momentum:
            grad = grad + sgd.momentum * held["velocity"][:live, part]
            held["velocity"][:live, part] = grad
        w.sub_(grad * held["rate"][:live, None])

    def parameters(self, begin: int, *shape: int) -> Tensor:
        part: Tensor = self.stack.buffers["w"][: self.live, begin : begin + prod(shape)].unflatten(1, shape)
        return part

    def _columns(self, x: Tensor, shape: tuple[int, int, int], window: Window) -> Tensor:
        """(sessions, samples, outputs, taps x channels): what each output of a window sees, zeros outside."""
        places = reach(shape, window)
        columns: Tensor = functional.pad(x, (0, 1))[..., places.reshape(-1)].unflatten(2, tuple(places.shape))
        return columns

    def _scatter(self, columns: Tensor, shape: tuple[int, int, int], window: Window) -> Tensor:
        """The same backwards: each input's sum over the outputs that saw it."""
        out = columns.new_zeros(*columns.shape[:2], prod(shape) + 1)
        out.index_add_(2, reach(shape, window).reshape(-1), columns.flatten(2))
        return out[..., :-1]

    def _product(self, layer: Product) -> Tensor:
        width = padded(layer.filters)
        columns = self._columns(self.value(layer.x), layer.shape, layer.window).flatten(1, 2)
        y = torch.bmm(columns, self.parameters(layer.weight, layer.rows, width))
        if layer.bias is not None:
            y = y + self.parameters(layer.bias, 1, width)
        return y.view(*self.value(layer.y).shape[:2], -1)

    def _product_back(self, index: int, layer: Product, g: Tensor) -> None:
        width = padded(layer.filters)
        rows = g.reshape(len(g), -1, width)
        if self.stack.net.values[layer.x].trained:
            columns = torch.bmm(rows, self.parameters(layer.weight, layer.rows, width).mT)
            columns = columns.view(*g.shape[:2], -1, layer.rows)
            self.give(index, layer.x, self._scatter(columns, layer.shape, layer.window))
        columns = self._columns(self.value(layer.x), layer.shape, layer.window).flatten(1, 2)
        self.descend(layer.weight, torch.bmm(columns.mT, rows).flatten(1))
        if layer.bias is not None:
            self.descend(layer.bias, rows.sum(1))

    def _pool(self, index: int, layer: Pooling) -> Tensor:
        value, taps = self.stack.net.values[layer.x], prod(layer.window.kernel)
        shape = value.height, value.width, value.channels
        columns = self._columns(self.value(layer.x), shape, layer.window).unflatten(3, (taps, -1))
        if not layer.largest:
            mean: Tensor = columns.sum(3) / self._seen(layer)[:, None]
            return mean
        inside = (reach(shape, layer.window) < prod(shape)).unflatten(1, (taps, -1))
        y: Tensor
        y, which = columns.masked_fill(~inside, -torch.inf).max(3)
        self.stack.extra[index][: self.live] = which.to(torch.int8).flatten(2)
        return y

    def _pool_back(self, index: int, layer: Pooling, g: Tensor) -> None:
        value, taps = self.stack.net.values[layer.x], prod(layer.window.kernel)
        shape = value.height, value.width, value.channels
        g = g.unflatten(2, (-1, 1, value.channels))
        if layer.largest:
            which = self.stack.extra[index][: self.live].view_as(g)
            columns = torch.where(which == torch.arange(taps)[:, None], g, 0.0)
        else:
            columns = (g / self._seen(layer)[:, None, None]).expand(-1, -1, -1, taps, -1)
        self.give(index, layer.x, self._scatter(columns.flatten(3), shape, layer.window))

    def _seen(self, layer: Pooling) -> Tensor:
        """How many values each mean is of."""
        value, taps = self.stack.net.values[layer.x], prod(layer.window.kernel)
        shape = value.height, value.width, 1
        inside = reach(shape, layer.window) < prod(shape)
        return torch.full((len(inside),), taps) if layer.counted else inside.sum(1)

    def _grouped(self, layer: Norm, x: Tensor) -> Tensor:
        """(sessions, samples, pixels, groups, channels) without padding."""
        channels = self.stack.net.values[layer.x].channels
        real: Tensor = x.unflatten(2, (-1, channels))[..., : layer.groups * layer.each]
        return real.reshape(*real.shape[:3], layer.groups, layer.each)

    def _ungrouped(self, layer: Norm, x: Tensor) -> Tensor:
        channels = self.stack.net.values[layer.x].channels
        return functional.pad(x.flatten(3), (0, channels - layer.groups * layer.each))

    def _factors(self, layer: Norm) -> tuple[Tensor | float, Tensor | float]:
        if layer.weight is None:
            return 1.0, 0.0
        count = layer.groups * layer.each
        begin = layer.weight
        shifts = begin + padded(padded(count), 64)
        shape = (1, 1, layer.groups, layer.each)
        return self.parameters(begin, *shape), self.parameters(shifts, *shape)

    def _norm(self, index: int, layer: Norm) -> Tensor:
        x = self._grouped(layer, self.value(layer.x))
        mean = x.mean((2, 4), keepdim=True)
        scale = ((x - mean).square().mean((2, 4), keepdim=True) + layer.eps).rsqrt()
        kept = self.stack.extra[index][: self.live]
        kept[:, 0] = self._ungrouped(layer, mean.expand(-1, -1, 1, -1, layer.each))[:, :, 0]
        kept[:, 1] = self._ungrouped(layer, scale.expand(-1, -1, 1, -1, layer.each))[:, :, 0]
        factor, shift = self._factors(layer)
        return self._ungrouped(layer, (x - mean) * scale * factor + shift)

    def _norm_back(self, index: int, layer: Norm, g: Tensor) -> None:
        kept = self.stack.extra[index][: self.live]
        mean, scale = (self._grouped(layer, kept[:, row]) for row in (0, 1))
        plain = (self._grouped(layer, self.value(layer.x)) - mean) * scale
        slope = self._grouped(layer, g)
        factor, _ = self._factors(layer)
        inner = slope * factor
        along = (inner * plain).mean((2, 4), keepdim=True)
        part = (inner - inner.mean((2, 4), keepdim=True) - plain * along) * scale
        if layer.weight is not None:
            shifts = layer.weight + padded(padded(layer.groups * layer.each), 64)
            self.descend(layer.weight, (slope * plain).sum((1, 2)).flatten(1))
            self.descend(shifts, slope.sum((1, 2)).flatten(1))
        self.give(index, layer.x, self._ungrouped(layer, part).flatten(2))

    def _width(self, layer: Join, x: int) -> int:
        """Channels that one of several values takes in the result."""
        value, whole = self.stack.net.values[x], self.stack.net.values[layer.y]
        return value.size // (whole.height * whole.width)

    def _join(self, layer: Join) -> None:
        whole = self.stack.net.values[layer.y]
        y = self.value(layer.y).new_zeros(*self.value(layer.y).shape[:2], whole.height * whole.width, whole.channels)
        for x, offset in zip(layer.xs, layer.offsets, strict=True):
            width = self._width(layer, x)
            y[..., offset : offset + width] += bent(self.value(x).unflatten(2, (-1, width)), layer.own)
        self.keep(layer.y, y.flatten(2))


@cache
def reach(shape: tuple[int, int, int], window: Window) -> Tensor:
    """(outputs, taps x channels): which of an image's numbers each output sees; one after the last is outside."""
    height, width, channels = shape
    high, wide = window.out(height, width)
    rows = torch.arange(high)[:, None] * window.stride[0] + torch.arange(window.kernel[0]) - window.padding[0]
    columns = torch.arange(wide)[:, None] * window.stride[1] + torch.arange(window.kernel[1]) - window.padding[1]
    row, column = rows[:, None, :, None], columns[None, :, None, :]
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    places = (row * width + column)[..., None] * channels + torch.arange(channels)
    return torch.where(inside[..., None], places, prod(shape)).reshape(high * wide, -1)


BENDS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "line": lambda x, alpha: x,
    "relu": lambda x, alpha: x.relu(),
    "leaky": functional.leaky_relu,
    "tanh": lambda x, alpha: x.tanh(),
    "sigmoid": lambda x, alpha: x.sigmoid(),
    "elu": functional.elu,
    "silu": lambda x, alpha: functional.silu(x),
    "gelu": lambda x, alpha: functional.gelu(x),
    "gelu_tanh": lambda x, alpha: functional.gelu(x, approximate="tanh"),
}
SLOPES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "line": lambda y, alpha: torch.ones_like(y),
    "relu": lambda y, alpha: (y > 0).to(y),
    "leaky": lambda y, alpha: torch.where(y > 0, torch.ones_like(y), alpha),
    "tanh": lambda y, alpha: 1 - y * y,
    "sigmoid": lambda y, alpha: y * (1 - y),
    "elu": lambda y, alpha: torch.where(y > 0, torch.ones_like(y), y + alpha),
    "silu": lambda x, alpha: aten.silu_backward(torch.ones_like(x), x),
    "gelu": lambda x, alpha: aten.gelu_backward(torch.ones_like(x), x),
    "gelu_tanh": lambda x, alpha: aten.gelu_backward(torch.ones_like(x), x, approximate="tanh"),
}
"""By what an activation gave, or by what it was given where `by_output` is false."""


def bent(x: Tensor, bend: Bend) -> Tensor:
    """An activation."""
    return BENDS[bend.kind](x, bend.alpha)


def slope_of(kept: Tensor, bend: Bend) -> Tensor:
    """Its slope."""
    return SLOPES[bend.kind](kept, bend.alpha)
