"""The layers of a stack by our own kernels: which kernel, over how many programs, in which tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
from attrs import frozen
from torch import Tensor

from pipecycle.train import kernels_layers, kernels_product
from pipecycle.train.network import LINE, ROW, Bend, Join, Layer, Norm, Pooling, Product, Window, padded
from pipecycle.train.stack import power

if TYPE_CHECKING:
    from pipecycle.train.network_stack import NetworkStack

KINDS = ("line", "relu", "leaky", "tanh", "sigmoid", "elu", "silu", "gelu", "gelu_tanh")
"""The numbers that kernels know activations by."""
BLOCK = 1024
"""Numbers that a program of the simple kernels takes."""


@frozen
class Tile:
    """Rows, inner and columns of a product that one program takes at a time, its warps and its pipeline's stages.

    Fixed for a shape: choosing them by timing would let bits vary from run to run."""

    rows: int
    inner: int
    columns: int
    warps: int
    stages: int


def fit(size: int, most: int) -> int:
    """The power of two that holds `size`, between 16, the least that tensor cores take, and `most`."""
    return min(most, power(size))


def tile(rows: int, inner: int, columns: int, narrow: bool) -> Tile:
    """For a product of these sizes, `narrow` where its numbers are bf16."""
    tall = fit(rows, 128 if narrow else 64)
    wide = fit(columns, 128 if tall > 16 else 64)
    deep = fit(inner, 64 if narrow else 32)
    return Tile(tall, deep, wide, 8 if tall * wide > 8192 else 4, 3)


class KernelLayers:
    """What a device does with the buffers of a stack."""

    def __init__(self, stack: NetworkStack) -> None:
        self.stack, self.net = stack, stack.net
        self.narrow = stack.dtype != stack.images.dtype
        self.compiling = False
        self.products = {"IP": "tf32x3" if stack.precision == "fp32" else "tf32"}
        self.passes: dict[type[Layer], tuple[Callable[..., None], Callable[..., None]]] = {
            Product: (self._product, self._product_back),
            Pooling: (self._pool, self._pool_back),
            Norm: (self._norm, self._norm_back),
            Join: (self._join, self._join_back),
        }
        sgd = stack.sgd
        self.update: dict[str, Any] = {
            "MOMENTUM": sgd.momentum,
            "DECAY": sgd.weight_decay,
            "PULL": sgd.proximal,
            "COPY": self.narrow,
        }

    @contextmanager
    def compile(self) -> Iterator[None]:
        """What is launched inside is only compiled, many kernels at a time."""
        if not hasattr(triton, "AsyncCompileMode"):
            yield
            return
        self.compiling = True
        try:
            with ThreadPoolExecutor() as threads, triton.AsyncCompileMode(threads):
                yield
        finally:
            self.compiling = False

    @property
    def batch(self) -> int:
        return self.stack.room[2]

    def _launch(self, kernel: Any, across: int, *args: Any, tile: Tile | None = None, **constants: Any) -> None:
        options = {} if tile is None else {"num_warps": tile.warps, "num_stages": tile.stages}
        grid = (across, self.stack.sessions)
        if self.compiling:
            kernel.warmup(*args, grid=grid, **constants, **options)
        else:
            kernel[grid](*args, **constants, **options)

    def _held(self, names: str) -> list[Tensor]:
        return [self.stack.buffers[name] for name in names.split()]

    def _bend(self, index: int) -> dict[str, Any]:
        return _numbered(self.net.values[index].bend)

    def _gift(self, index: int, x: int) -> dict[str, Any]:
        """How a layer adds to the gradient of its input."""
        more, last = self.stack.writers[index, x]
        return {"MORE": more} | (self._bend(x) if last else _numbered(LINE))

    def cut(self, views: bool) -> None:
        value, stack = self.net.values[0], self.stack
        self._launch(
            kernels_layers.cut, -(-self.batch * value.size // BLOCK),
            stack.compact, *self._held("picks views"), stack.black, stack.values[0], *self._held("step live"),
            stack.room[0], B=self.batch, H=value.height, W=value.width, C=value.channels, FRAME=stack.frame.width,
            VIEWS=views, BLOCK=BLOCK,
        )  # fmt: skip

    def forward(self, index: int, layer: Layer) -> None:
        self.passes[type(layer)][0](index, layer)

    def backward(self, index: int, layer: Layer) -> None:
        if self.net.values[layer.y].trained:
            self.passes[type(layer)][1](index, layer)

    def loss(self, teach: bool, collect: bool) -> None:
        stack, output = self.stack, self.net.output
        high, wide = fit(self.batch, 1 << 20), fit(self.net.values[output].channels, 1 << 20)
        self._launch(
            kernels_layers.loss, 1,
            stack.values[output], stack.slopes[output], *self._held("picks"), stack.labels,
            *self._held("table sums counts step live"), stack.room[0],
            B=self.batch, WIDTH=self.net.values[output].channels, CLASSES=stack.classes, TEACH=teach, COLLECT=collect,
            BP=high, CP=wide, num_warps=max(4, high * wide // 2048), **self._bend(output),
        )  # fmt: skip

    def _sizes(self, layer: Product) -> dict[str, Any]:
        height, width, channels = layer.shape
        value = self.net.values[layer.y]
        return {"P": self.net.row, "B": self.batch, "H": height, "W": width, "C": channels, "WIDTH": value.channels,
                "KW": layer.window.kernel[1]} | _moves(layer.window, value.height, value.width)  # fmt: skip

    def _product(self, index: int, layer: Product) -> None:
        sizes, value = self._sizes(layer), self.net.values[layer.y]
        rows = self.batch * value.height * value.width
        shape = tile(rows, layer.rows, value.channels, self.narrow)
        self._launch(
            kernels_product.product, -(-rows // shape.rows) * -(-value.channels // shape.columns),
            self.stack.values[layer.x], *self._held("w s"), self.stack.values[layer.y], *self._held("live"),
            layer.weight, layer.bias or 0, N=layer.filters, K=layer.rows, BIAS=layer.bias is not None,
            ROWS=shape.rows, BK=shape.inner, BN=shape.columns, tile=shape, **sizes, **self._bend(layer.y),
            **self.products,
        )  # fmt: skip

    def _product_back(self, index: int, layer: Product) -> None:
        sizes, stack, value = self._sizes(layer), self.stack, self.net.values[layer.y]
        height, width, channels = layer.shape
        state = self._held("w s velocity start rate live")
        if self.net.values[layer.x].trained:
            rows, taps = self.batch * height * width, layer.rows // channels
            shape = tile(rows, taps * value.channels, channels, self.narrow)
            self._launch(
                kernels_product.product_inputs, -(-rows // shape.rows) * -(-channels // shape.columns),
                stack.slopes[layer.y], *self._held("s"), stack.values[layer.x], stack.slopes[layer.x],
                *self._held("live"), layer.weight, KH=layer.window.kernel[0], ROWS=shape.rows, BK=shape.inner,
                BC=shape.columns, tile=shape, **sizes, **self._gift(index, layer.x), **self.products,
            )  # fmt: skip
        rows = self.batch * value.height * value.width
        shape = tile(layer.rows, rows, value.channels, self.narrow)
        if rows <= 64:  # all there is to do is to read and write the weights: many small programs
            shape = Tile(fit(layer.rows, 64), shape.inner, fit(value.channels, 64), 4, 1)
        self._launch(
            kernels_product.product_weights, -(-layer.rows // shape.rows) * -(-value.channels // shape.columns),
            stack.values[layer.x], stack.slopes[layer.y], *state, layer.weight, K=layer.rows, BK=shape.rows,
            ROWS=shape.inner, BN=shape.columns, tile=shape, **sizes, **self.update, **self.products,
        )  # fmt: skip
        if layer.bias is not None:
            same = self.net.sums_as(layer.y)
            rows = self.batch * self.net.values[same].height * self.net.values[same].width
            self._sums(stack.slopes[same], rows * value.channels, 0, layer.bias, rows, value.channels)

    def _sums(self, rows: Tensor | None, each: int, begin: int, place: int, count: int, channels: int) -> None:
        wide, state = fit(channels, 128), self._held("w s velocity start rate live")
        self._launch(
            kernels_product.sums, -(-channels // wide), rows, *state, each, begin, place, P=self.net.row, R=count,
            N=channels, BN=wide, ROWS=fit(count, 8192 // wide), **self.update,
        )  # fmt: skip

    def _pooled(self, layer: Pooling) -> dict[str, Any]:
        x, y = self.net.values[layer.x], self.net.values[layer.y]
        return {"B": self.batch, "H": x.height, "W": x.width, "C": x.channels, "KH": layer.window.kernel[0],
                "KW": layer.window.kernel[1], "LARGEST": layer.largest, "COUNTED": layer.counted,
                "BLOCK": BLOCK} | _moves(layer.window, y.height, y.width)  # fmt: skip

    def _pool(self, index: int, layer: Pooling) -> None:
        stack, value = self.stack, self.net.values[layer.y]
        which = stack.extra.get(index, stack.values[layer.y])
        self._launch(
            kernels_layers.pool, -(-self.batch * value.size // BLOCK), stack.values[layer.x], stack.values[layer.y],
            which, *self._held("live"), REAL=value.real, **self._pooled(layer), **self._bend(layer.y),
        )  # fmt: skip

    def _pool_back(self, index: int, layer: Pooling) -> None:
        stack, value = self.stack, self.net.values[layer.x]
        which = stack.extra.get(index, stack.values[layer.y])
        self._launch(
            kernels_layers.pool_inputs, -(-self.batch * value.size // BLOCK), stack.slopes[layer.y], which,
            stack.values[layer.x], stack.slopes[layer.x], *self._held("live"), **self._pooled(layer),
            **self._gift(index, layer.x),
        )  # fmt: skip

    def _normed(self, layer: Norm) -> dict[str, Any]:
        value = self.net.values[layer.x]
        wide, pixels = fit(value.channels, 1 << 20), value.height * value.width
        rows = max(1, min(1 << (pixels - 1).bit_length(), 4096 // wide))
        return {"P": self.net.row, "B": self.batch, "PIXELS": pixels, "C": value.channels, "GROUPS": layer.groups,
                "EACH": layer.each, "AFFINE": layer.weight is not None, "CP": wide, "ROWS": rows}  # fmt: skip

    def _norm(self, index: int, layer: Norm) -> None:
        stack, weight = self.stack, layer.weight or 0
        shift = weight + padded(self.net.values[layer.x].channels, ROW)
        self._launch(
            kernels_layers.norm, self.batch, stack.values[layer.x], stack.values[layer.y], stack.extra[index],
            *self._held("w live"), weight, shift, EPS=layer.eps, **self._normed(layer), **self._bend(layer.y),
        )  # fmt: skip

    def _norm_back(self, index: int, layer: Norm) -> None:
        stack, kept, value = self.stack, self.stack.extra[index], self.net.values[layer.x]
        gift = self._gift(index, layer.x) if value.trained else {"MORE": False} | _numbered(LINE)
        into = stack.slopes[layer.x] if value.trained else stack.values[layer.x]
        self._launch(
            kernels_layers.norm_inputs, self.batch, stack.slopes[layer.y], stack.values[layer.x], into, kept,
            *self._held("w live"), layer.weight or 0, GIVES=value.trained, **self._normed(layer), **gift,
        )  # fmt: skip
        if layer.weight is not None:
            part = self.batch * value.channels
            for begin, place in ((2 * part, layer.weight), (3 * part, layer.weight + padded(value.channels, ROW))):
                self._sums(kept, 4 * part, begin, place, self.batch, value.channels)

    def _joined(self, layer: Join, x: int) -> dict[str, Any]:
        value, whole = self.net.values[x], self.net.values[layer.y]
        pixels, own = whole.height * whole.width, _numbered(layer.own)
        return {"COUNT": self.batch * pixels, "WIDTH": value.size // pixels, "CHANNELS": whole.channels,
                "OWN": own["KIND"], "OWN_ALPHA": own["ALPHA"], "BLOCK": BLOCK}  # fmt: skip

    def _join(self, index: int, layer: Join) -> None:
        stack, y = self.stack, self.net.values[layer.y]
        added = len(layer.xs) > 1 and not any(layer.offsets)
        pairs = list(zip(layer.xs, layer.offsets, strict=True))
        two = stack.values[layer.xs[1] if added else layer.y]
        for at, (x, offset) in enumerate(pairs[:1] + pairs[2:] if added else pairs):
            last = not added or at == len(pairs) - 2
            self._launch(
                kernels_layers.join, -(-self.batch * self.net.values[x].size // BLOCK), stack.values[x], two,
                stack.values[layer.y], *self._held("live"), REAL=y.real, OFFSET=offset, TWO=added and at == 0,
                MORE=at > 0 and added, **self._joined(layer, x), **(self._bend(layer.y) if last else _numbered(LINE)),
            )  # fmt: skip

    def _join_back(self, index: int, layer: Join) -> None:
        stack = self.stack
        for x, offset in zip(layer.xs, layer.offsets, strict=True):
            if self.net.values[x].trained:
                self._launch(
                    kernels_layers.join_inputs, -(-self.batch * self.net.values[x].size // BLOCK),
                    stack.slopes[layer.y], stack.values[x], stack.slopes[x], *self._held("live"), OFFSET=offset,
                    **self._joined(layer, x), **self._gift(index, x),
                )  # fmt: skip


def _numbered(bend: Bend) -> dict[str, Any]:
    return {"KIND": KINDS.index(bend.kind), "ALPHA": bend.alpha}


def _moves(window: Window, high: int, wide: int) -> dict[str, Any]:
    return {"OH": high, "OW": wide, "SY": window.stride[0], "SX": window.stride[1], "PY": window.padding[0],
            "PX": window.padding[1]}  # fmt: skip
