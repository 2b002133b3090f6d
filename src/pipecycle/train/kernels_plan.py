"""Sizes, parameters and tiles of the networks that our kernels train: two 5x5 convolutions with pooling and three dense
layers."""

from __future__ import annotations

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor, nn

from pipecycle.errors import InputError
from pipecycle.train.stack import power

UNFOLDED = 32 << 30
"""Bytes that the images may take once unfolded."""
SHARED = 227 << 10
"""Bytes of shared memory that a program may take on an H200."""
LARGEST_BATCH = 64
"""Samples that one program of the dense layers holds."""


@frozen
class Tiles:
    """Tile, warps and pipeline stages of each kernel.  Fixed for a shape: choosing them by timing would let bits vary
    from run to run."""

    cut: tuple[int, int, int] = (128, 4, 1)
    conv1: tuple[int, int, int] = (64, 4, 2)
    conv2: tuple[int, int, int] = (64, 4, 2)
    inputs2: tuple[int, int, int] = (128, 4, 3)
    weights2: tuple[int, int, int] = (64, 4, 3)
    weights1: tuple[int, int, int] = (64, 4, 2)
    dense: tuple[int, int, int] = (64, 4, 3)
    """Inputs of the first dense layer taken at a time, as in the next one."""
    back: tuple[int, int, int] = (32, 4, 1)
    head: tuple[int, int, int] = (64, 4, 1)


@frozen
class Plan:
    """Sizes, and where each parameter lies in a padded row."""

    taps: int
    """Values in a row of conv1's window, padded: its five columns are laid side by side."""
    height: int
    width: int
    c1: int
    c2: int
    p1: tuple[int, int]
    p2: tuple[int, int]
    d1: int
    d2: int
    d3: int
    inputs: int
    offsets: tuple[int, ...]
    """Of conv1, conv2, fc1, fc2, fc3: weight and bias each."""
    row: int
    place: Tensor
    """(P,): where each parameter of the module goes."""


def _sizes(chain: list[nn.Module]) -> tuple[list[nn.Conv2d], list[nn.Linear]] | None:
    kinds = [nn.Conv2d, nn.MaxPool2d, nn.ReLU] * 2 + [nn.Flatten] + [nn.Linear, nn.ReLU] * 2 + [nn.Linear]
    if len(chain) != len(kinds) or any(type(layer) is not kind for layer, kind in zip(chain, kinds, strict=True)):
        return None
    convs = [layer for layer in chain if isinstance(layer, nn.Conv2d)]
    linears = [layer for layer in chain if isinstance(layer, nn.Linear)]
    for conv in convs:
        if conv.kernel_size != (5, 5) or conv.stride != (1, 1) or conv.padding != (0, 0) or conv.dilation != (1, 1):
            return None
    pools = [layer for layer in chain if isinstance(layer, nn.MaxPool2d)]
    if any((pool.kernel_size, pool.stride, pool.padding, pool.dilation) != (2, 2, 0, 1) for pool in pools):
        return None
    if any(layer.bias is None for layer in [*convs, *linears]):
        return None
    return convs, linears


def fits(chain: list[nn.Module], images: Tensor) -> bool:
    """Whether these kernels can train the chain on such images."""
    sizes = _sizes(chain)
    if sizes is None or images.ndim != 4:
        return False
    convs, linears = sizes
    narrow = convs[0].in_channels <= 6 and max(conv.out_channels for conv in convs) <= 64
    first, second, last = (power(linear.out_features) for linear in linears)
    # One program holds what goes into the last layer and that layer's weights: in fp32 as two numbers each.
    narrow &= first <= 1024 and second <= 256 and last <= 512 and second * last <= 128 * 128
    narrow &= 8 * second * (LARGEST_BATCH + last) <= SHARED
    n, c, h, w = images.shape
    return narrow and n * h * w * power(5 * c) * 4 <= UNFOLDED


def plan(chain: list[nn.Module], shape: tuple[int, ...], tiles: Tiles) -> Plan:
    """Lay out the parameters for inputs of (channels, height, width)."""
    known = _sizes(chain)
    if known is None:
        raise InputError("the conv path needs two 5x5 convolutions with 2x2 pooling and three dense layers")
    convs, linears = known
    channels, height, width = shape
    p1 = (height - 4) // 2, (width - 4) // 2
    p2 = (p1[0] - 4) // 2, (p1[1] - 4) // 2
    taps = power(5 * channels)
    o1, o2 = (conv.out_channels for conv in convs)
    c1, c2 = power(o1), power(o2)
    d1, d2, d3 = (power(linear.out_features) for linear in linears)
    inputs = p2[0] * p2[1] * c2
    rows = -(-inputs // tiles.dense[0]) * tiles.dense[0]
    rows = max(rows, -(-inputs // tiles.back[0]) * tiles.back[0])
    counts = [5 * taps * c1, c1, 25 * c1 * c2, c2, rows * d1, d1, d1 * d2, d2, d2 * d3, d3]
    offsets = [0]
    for count in counts:
        offsets.append(offsets[-1] + -(-count // 64) * 64)

    ky, kx = np.ogrid[:5, :5]
    rows_of = (  # by input: channel, then what is within it
        ky * taps + kx * channels + np.arange(channels)[:, None, None],
        (ky * 5 + kx) * c1 + np.arange(o1)[:, None, None],
        np.arange(p2[0] * p2[1]) * c2 + np.arange(o2)[:, None],
        np.arange(linears[1].in_features),
        np.arange(linears[2].in_features),
    )
    widths = (o1, c1), (o2, c2), *((linear.out_features, power(linear.out_features)) for linear in linears)
    place = []
    for i, (inside, (real, wide)) in enumerate(zip(rows_of, widths, strict=True)):
        n = np.arange(real)
        weight = inside.reshape(-1) * wide + n[:, None]
        place += [offsets[2 * i] + weight.reshape(-1), offsets[2 * i + 1] + n]
    sizes = (taps, height, width - 4, c1, c2, p1, p2, d1, d2, d3, inputs)
    return Plan(*sizes, offsets=tuple(offsets[:-1]), row=offsets[-1], place=torch.from_numpy(np.concatenate(place)))


def unfolded(images: Tensor, taps: int, dtype: torch.dtype) -> Tensor:
    """(n, height, width - 4, taps): at each pixel the five columns from it on, side by side, so that a tap of the
    first convolution reads one aligned piece of memory."""
    n, c, h, w = images.shape
    out = torch.zeros(n, h, w - 4, taps, dtype=dtype, device=images.device)
    view = out[..., : 5 * c].unflatten(-1, (5, c))
    for kx in range(5):
        view[..., kx, :] = images[..., kx : kx + w - 4].permute(0, 2, 3, 1)
    return out


def default_tiles(chain: list[nn.Module], precision: str) -> Tiles:
    """Tiles by what was measured on an H200, with lenet and cnn64."""
    known = _sizes(chain)
    assert known is not None
    convs, linears = known
    tiles = TILES[precision][max(power(conv.out_channels) for conv in convs) > 16]
    if power(linears[1].out_features) > 128:
        return evolve(tiles, head=(32, 8, 1))
    return evolve(tiles, head=(32, 4, 1)) if power(linears[0].out_features) > 128 else tiles


# fmt: off
TILES = {
    "bf16": (
        Tiles(),
        Tiles(conv1=(64, 4, 4), conv2=(32, 4, 3), inputs2=(128, 8, 3), weights2=(32, 4, 3), weights1=(32, 4, 2)),
    ),
    "tf32": (
        Tiles(conv1=(64, 8, 2), conv2=(64, 8, 2), inputs2=(64, 4, 2), weights2=(64, 4, 2), weights1=(32, 4, 3),
              dense=(32, 4, 3)),
        Tiles(conv1=(32, 4, 3), conv2=(32, 4, 2), inputs2=(64, 4, 3), weights2=(32, 4, 2), weights1=(16, 4, 2),
              dense=(32, 4, 3)),
    ),
    "fp32": (
        Tiles(conv1=(64, 4, 2), conv2=(64, 4, 3), inputs2=(64, 4, 2), weights2=(32, 4, 3), weights1=(16, 4, 3),
              dense=(32, 4, 3)),
        Tiles(conv1=(32, 4, 3), conv2=(64, 4, 2), inputs2=(64, 4, 3), weights2=(32, 4, 2), weights1=(32, 4, 2),
              dense=(32, 4, 3), head=(32, 4, 1)),
    ),
}
"""For at most 16 filters a layer, and for more."""
# fmt: on
