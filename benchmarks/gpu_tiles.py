"""Microseconds of every kernel of a step of a network, and of its products in other tiles, on one GPU.

    python benchmarks/gpu_tiles.py [--only "NAME;NAME"] [--sessions 512] [--precision bf16] [--tune] [--out FILE]

Networks are those of gpu_models.py.  Without --tune: each kernel of a step by itself, with its share and, for products,
its TFLOP/s.  With it: the three products of each layer in a set of tiles, the best first, so that the rule in
`kernels_network.tile` can be set by what was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from gpu_models import FRAME, networks
from gpu_sessions import BATCH, CLASSES, SHAPE, kernel_seconds
from pipecycle.train import kernels_network
from pipecycle.train.kernels_network import KernelLayers, Tile
from pipecycle.train.network import Network, Product
from pipecycle.train.network_stack import NetworkStack
from pipecycle.train.sessions import Precision
from pipecycle.train.stacked import Stacked

DEVICE = "cuda"
PRODUCTS = ("product", "product_inputs", "product_weights")
lines: list[dict[str, Any]] = []


def say(**facts: Any) -> None:
    lines.append(facts)
    print(json.dumps(facts), flush=True)


def stack_of(module: nn.Module, sessions: int, precision: Precision) -> NetworkStack:
    """Sessions with random activations, and a learning rate of 0."""
    images = torch.randn(2000, *SHAPE, device=DEVICE)
    labels = torch.randint(CLASSES, (2000,), device=DEVICE)
    stack = Stacked(module, images, labels, CLASSES, precision=precision, frame=FRAME, path="layers").layers
    stack.reserve(sessions, 1, BATCH)
    stack.load(0.05 * torch.randn(sessions, len(stack.place), device=DEVICE))
    stack.buffers["picks"].random_(0, 2000)
    with stack.layers.compile():
        stack.step(0, False, False, True)
    stack.buffers["step"].zero_()
    stack.step(0, False, False, True)
    stack.buffers["step"].zero_()
    return stack


def flop(kernel: str, net: Network, layer: Product) -> float:
    y = net.values[layer.y]
    return 2.0 * BATCH * y.height * y.width * layer.rows * layer.filters


class Only:
    """Lets only one kernel of a layer through."""

    def __init__(self, layers: KernelLayers) -> None:
        self.layers, self.plain, self.seen = layers, layers._launch, list[str]()
        self.wanted: str | None = None
        layers._launch = self  # type: ignore[method-assign]

    def __call__(self, kernel: Any, *args: Any, **rest: Any) -> None:
        name = kernel.fn.__name__
        self.seen.append(name)
        if self.wanted in (None, name):
            self.plain(kernel, *args, **rest)


def candidates(rows: int, inner: int, columns: int) -> list[Tile]:
    fit = kernels_network.fit
    tiles = []
    for tall, deep, wide, warps, stages in [
        (128, 64, 128, 4, 3), (128, 64, 128, 8, 3), (128, 32, 128, 4, 4), (64, 64, 128, 4, 3), (64, 128, 128, 4, 2),
        (128, 128, 64, 4, 2), (256, 64, 64, 8, 3), (64, 64, 64, 4, 4), (64, 32, 64, 4, 4), (128, 64, 64, 4, 2),
        (16, 128, 64, 4, 3), (16, 64, 128, 4, 4), (16, 128, 32, 2, 4),
    ]:  # fmt: skip
        if tall > 16 or rows <= 16:
            tiles.append(Tile(fit(rows, tall), fit(inner, deep), fit(columns, wide), warps, stages))
    return list(dict.fromkeys(tiles))


def times(name: str, stack: NetworkStack, tune: bool) -> None:
    net, layers = stack.net, stack.layers
    assert isinstance(layers, KernelLayers)
    only, found = Only(layers), []
    rule = kernels_network.tile
    for part in ("forward", "backward"):
        for index, layer in enumerate(net.layers):
            work = getattr(layers, part)
            only.wanted, only.seen = None, []
            work(index, layer)
            for kernel in dict.fromkeys(only.seen):
                only.wanted = kernel
                spent = kernel_seconds(lambda work=work, index=index, layer=layer: work(index, layer))
                facts: dict[str, Any] = {"kernel": kernel, "layer": index, "us": round(1e6 * spent, 1)}
                if kernel in PRODUCTS and isinstance(layer, Product):
                    facts["tflop_per_s"] = round(stack.sessions * flop(kernel, net, layer) / spent / 1e12, 1)
                    facts["shape"] = [*layer.shape, *layer.window.kernel, layer.filters]
                    if tune:
                        facts["tiles"] = tuned(layers, only, work, index, layer, rule)
                found.append(facts)
    total = sum(facts["us"] for facts in found)
    for facts in sorted(found, key=lambda facts: -facts["us"]):
        say(network=name, share=round(facts["us"] / total, 3), **facts)
    say(network=name, sessions=stack.sessions, step_us=round(total), at_most_per_s=round(1e6 * stack.sessions / total))


def tuned(layers: KernelLayers, only: Only, work: Any, index: int, layer: Product, rule: Any) -> list[Any]:
    """The quickest tiles of one product, each with its microseconds."""
    sizes: list[tuple[int, ...]] = []

    def note(rows: int, inner: int, columns: int, narrow: bool) -> Tile:
        sizes.append((rows, inner, columns))
        return rule(rows, inner, columns, narrow)  # type: ignore[no-any-return]

    kernels_network.tile = note
    work(index, layer)
    # Of a backward pass the first product is that of the inputs, if there is one, and the last that of the weights.
    rows, inner, columns = sizes[-1 if only.wanted == "product_weights" else 0]
    out: list[Any] = []
    tiles = candidates(rows, inner, columns)
    with layers.compile():
        for tile in tiles:
            kernels_network.tile = lambda *_, tile=tile: tile
            work(index, layer)
    for tile in tiles:
        kernels_network.tile = lambda *_, tile=tile: tile
        try:
            spent = kernel_seconds(lambda: work(index, layer), 5)
        except Exception as problem:
            out.append((float("inf"), f"{tile}: {str(problem)[:80]}"))
            continue
        out.append((round(1e6 * spent, 1), [tile.rows, tile.inner, tile.columns, tile.warps, tile.stages]))
    kernels_network.tile = rule
    return [entry for entry in sorted(out, key=lambda entry: entry[0]) if entry[0] < float("inf")][:4]


def copying() -> float:
    """Bytes read and written a second by a large copy."""
    source = torch.empty(3 << 28, dtype=torch.bfloat16, device=DEVICE)
    to = torch.empty_like(source)
    return 2 * 2 * source.numel() / kernel_seconds(lambda: to.copy_(source))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="cnn64, dense 384/192;3x3 (32, 64);3x3 (16, 32);resnet8-gn")
    parser.add_argument("--sessions", type=int, default=512)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    say(copy_tb_per_s=round(copying() / 1e12, 2))
    for name, module in networks().items():
        if name in options.only.split(";"):
            with torch.no_grad():
                times(name, stack_of(module, options.sessions, options.precision), options.tune)
            torch.cuda.empty_cache()
            if options.out is not None:
                options.out.write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
