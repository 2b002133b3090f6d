"""Networks of two 5x5 convolutions with pooling and three dense layers, many at once, by our own kernels.

The parameters are kept in an order of their own (channels last, sizes padded to powers of two), a session's steps are
captured once as a CUDA graph, and any number of sessions up to the graph's size replays it.
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor, nn

from pipecycle.errors import InputError

GRAPHS = 16
MEMORY = 12 << 30
"""Bytes that the buffers of one stack may take."""
UNFOLDED = 32 << 30
"""Bytes that the images may take once unfolded."""
MOST = 4096
"""Sessions in one stack."""
LARGEST_BATCH = 64
"""Samples that one program of the dense layers holds."""


@frozen
class Tiles:
    """Tile, warps and pipeline stages of each kernel.  Fixed for a shape: choosing them by timing would let bits vary
    from run to run."""

    conv1: tuple[int, int, int] = (64, 4, 2)
    conv2: tuple[int, int, int] = (64, 4, 2)
    inputs2: tuple[int, int, int] = (128, 4, 3)
    weights2: tuple[int, int, int] = (64, 4, 3)
    weights1: tuple[int, int, int] = (64, 4, 2)
    dense: tuple[int, int, int] = (64, 4, 3)
    """Inputs of the first dense layer taken at a time, as in the next one."""
    back: tuple[int, int, int] = (32, 4, 1)
    head: tuple[int, int, int] = (64, 4, 1)


@frozen(eq=False)
class Launch:
    """One kernel of a step."""

    name: str
    kernel: Any
    across: int
    """Programs for each session; 0 for one that is not counted."""
    tile: tuple[int, int, int]
    tensors: str
    constants: dict[str, Any]


def power(value: int, least: int = 16) -> int:
    """The next power of two; tensor cores take no less than 16."""
    return max(least, 1 << (value - 1).bit_length())


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
    found = _sizes(chain)
    if found is None or images.ndim != 4:
        return False
    convs, linears = found
    narrow = convs[0].in_channels <= 12 and max(conv.out_channels for conv in convs) <= 64
    narrow &= linears[0].out_features <= 1024 and max(linear.out_features for linear in linears[1:]) <= 128
    n, c, h, w = images.shape
    return narrow and n * h * w * power(5 * c) * 4 <= UNFOLDED


def plan(chain: list[nn.Module], shape: tuple[int, ...], tiles: Tiles) -> Plan:
    """Lay out the parameters for inputs of (channels, height, width)."""
    found = _sizes(chain)
    if found is None:
        raise InputError("the conv path needs two 5x5 convolutions with 2x2 pooling and three dense layers")
    convs, linears = found
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

    def grid(*sizes: int) -> list[Tensor]:
        return list(torch.meshgrid(*[torch.arange(count) for count in sizes], indexing="ij"))

    n, c, ky, kx = grid(o1, channels, 5, 5)
    first = (ky * taps + kx * channels + c) * c1 + n
    n, c, ky, kx = grid(o2, o1, 5, 5)
    second = ((ky * 5 + kx) * c1 + c) * c2 + n
    n, c, pixel = grid(linears[0].out_features, o2, p2[0] * p2[1])
    third = (pixel * c2 + c) * d1 + n
    n, c = grid(linears[1].out_features, linears[1].in_features)
    fourth = c * d2 + n
    n, c = grid(linears[2].out_features, linears[2].in_features)
    fifth = c * d3 + n
    widths = o1, o2, *(linear.out_features for linear in linears)
    place = []
    for i, weight in enumerate((first, second, third, fourth, fifth)):
        place += [offsets[2 * i] + weight.reshape(-1), offsets[2 * i + 1] + torch.arange(widths[i])]
    sizes = (taps, height, width - 4, c1, c2, p1, p2, d1, d2, d3, inputs)
    return Plan(*sizes, offsets=tuple(offsets[:-1]), row=offsets[-1], place=torch.cat(place))


def unfolded(images: Tensor, taps: int, dtype: torch.dtype) -> Tensor:
    """(n, height, width - 4, taps): at each pixel the five columns from it on, side by side, so that a tap of the
    first convolution reads one aligned piece of memory."""
    n, c, h, w = images.shape
    out = torch.zeros(n, h, w - 4, taps, dtype=dtype, device=images.device)
    view = out[..., : 5 * c].unflatten(-1, (5, c))
    for kx in range(5):
        view[..., kx, :] = images[..., kx : kx + w - 4].permute(0, 2, 3, 1)
    return out


class ConvStack:
    """Sessions of such a network on images that stay on the device."""

    def __init__(
        self,
        chain: list[nn.Module],
        images: Tensor,
        labels: Tensor,
        classes: int,
        sgd: Any,
        precision: str,
        tiles: Tiles | None = None,
    ) -> None:
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.products = {"bf16": "tf32", "tf32": "tf32", "fp32": "tf32x3"}[precision]
        self.tiles = tiles or default_tiles(chain, precision)
        self.plan = plan(chain, tuple(images.shape[1:]), self.tiles)
        self.images = unfolded(images, self.plan.taps, self.dtype)
        self.labels = labels.to(torch.int32)
        self.classes, self.sgd = classes, sgd
        self.place = self.plan.place.to(images.device)
        self.buffers: dict[str, Tensor] = {}
        self.graphs: dict[tuple[int, int, int, bool, bool], torch.cuda.CUDAGraph] = {}
        self.room = (0, 0, 0)

    def run(
        self,
        reference: Tensor,
        batches: Tensor,
        lr: Tensor,
        table: Tensor | None,
        out: Tensor,
        sums: Tensor | None,
        counts: Tensor | None,
    ) -> None:
        """Train all sessions into `out`, `sums` and `counts`."""
        _, steps, batch = batches.shape
        most = self.most(batch)
        for first in range(0, len(reference), most):
            some = slice(first, min(first + most, len(reference)))
            count = some.stop - some.start
            self.reserve(power(count), steps, batch)
            held = self.buffers
            held["w"][:count].zero_()
            held["w"][:count].index_copy_(1, self.place, reference[some])
            if self.dtype != torch.float32:
                held["s"][:count].copy_(held["w"][:count])
            if self.sgd.proximal:
                held["start"][:count].copy_(held["w"][:count])
            if self.sgd.momentum:
                held["velocity"][:count].zero_()
            held["picks"][:steps, :count, :batch].copy_(batches[some].transpose(0, 1))
            held["rate"][:count].copy_(lr[some])
            held["live"].fill_(count)
            if table is not None:
                held["table"][:count].copy_(table[some])
            if sums is not None:
                held["sums"].zero_()
                held["counts"].zero_()
            self._steps(power(count), steps, table is not None, sums is not None)
            torch.index_select(held["w"][:count], 1, self.place, out=out[some])
            if sums is not None and counts is not None:
                sums[some] = held["sums"][:count]
                counts[some] = held["counts"][:count]

    def most(self, batch: int) -> int:
        """Sessions that fit into the memory set aside."""
        p = self.plan
        item = 2 if self.dtype == torch.bfloat16 else 4
        values = 2 * p.c1 * p.p1[0] * p.p1[1] + 6 * p.c2 * p.p2[0] * p.p2[1]
        each = p.row * 10 + batch * values * (item + 1)
        return int(min(MOST, max(16, 1 << (MEMORY // each).bit_length() - 1)))

    def reserve(self, sessions: int, steps: int, batch: int) -> None:
        old = self.room
        if batch == old[2] and sessions <= old[0] and steps <= old[1]:
            return
        if batch == old[2]:
            sessions, steps = max(sessions, old[0]), max(steps, old[1])
        self.graphs.clear()
        self.buffers.clear()
        p, device = self.plan, self.images.device

        def make(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        rows = power(batch)
        one, two = p.p1[0] * p.p1[1] * p.c1, p.p2[0] * p.p2[1] * p.c2
        w = make(torch.float32, sessions, p.row)
        self.buffers = {
            "w": w,
            "s": w if self.dtype == torch.float32 else make(self.dtype, sessions, p.row),
            "start": make(torch.float32, sessions, p.row) if self.sgd.proximal else w,
            "velocity": make(torch.float32, sessions, p.row) if self.sgd.momentum else w,
            "picks": make(torch.int32, steps, sessions, batch),
            "rate": make(torch.float32, sessions),
            "live": make(torch.int32, 1),
            "table": make(torch.float32, sessions, self.classes, self.classes),
            "sums": make(torch.float32, sessions, self.classes, self.classes),
            "counts": make(torch.float32, sessions, self.classes),
            "y1": make(self.dtype, sessions, batch, one),
            "corner1": make(torch.int8, sessions, batch, one),
            "dy1": make(self.dtype, sessions, batch, one),
            "y2": make(self.dtype, sessions, batch, two),
            "corner2": make(torch.int8, sessions, batch, two),
            "dy2": make(self.dtype, sessions, batch, 4 * two),
            "h": make(self.dtype, sessions, rows, p.d1),
            "z": make(torch.float32, sessions, batch, self.classes),
            "dh": make(self.dtype, sessions, rows, p.d1),
        }
        self.room = (sessions, steps, batch)

    def _steps(self, sessions: int, steps: int, teach: bool, collect: bool) -> None:
        """All steps of a session: as a graph where there is one, else captured after a step that changes nothing."""
        if not self.images.is_cuda:
            for step in range(steps):
                self.step(sessions, step, teach, collect)
            return
        key = (sessions, steps, self.room[2], teach, collect)
        with torch.cuda.device(self.images.device):
            if key not in self.graphs:
                live = self.buffers["live"].clone()
                self.buffers["live"].zero_()
                self.step(sessions, 0, teach, collect)
                torch.cuda.synchronize()
                self.buffers["live"].copy_(live)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for step in range(steps):
                        self.step(sessions, step, teach, collect)
                while len(self.graphs) >= GRAPHS:
                    del self.graphs[next(iter(self.graphs))]
                self.graphs[key] = graph
            self.graphs[key].replay()

    def step(self, sessions: int, step: int, teach: bool, collect: bool, only: str = "") -> None:
        """Launch the kernels of one step, or those called `only`."""
        for launch in self.launches(teach, collect):
            if not only or only == launch.name:
                self.launch(launch, sessions, step)

    def launch(self, launch: Launch, sessions: int, step: int = 0) -> None:
        held = self.buffers | {"images": self.images, "labels": self.labels, "picks": self.buffers["picks"][step]}
        grid = (launch.across, sessions) if launch.across else (sessions,)
        _, warps, stages = launch.tile
        tensors = [held[name] for name in launch.tensors.split()]
        launch.kernel[grid](*tensors, **launch.constants, num_warps=warps, num_stages=stages)

    # fmt: off
    def launches(self, teach: bool, collect: bool, *, look: bool = False) -> list[Launch]:
        """The kernels of a step in order, with the names of their tensors and their constants; with `look`, those of
        the logits alone."""
        from pipecycle.train import kernels

        p, t, sgd = self.plan, self.tiles, self.sgd
        batch, rows = self.room[2], power(self.room[2])
        w1, b1, w2, b2, f1, e1, f2, e2, f3, e3 = p.offsets
        pixels1, pixels2 = batch * p.p1[0] * p.p1[1], batch * p.p2[0] * p.p2[1]
        small, wide = (128, 4, 2), min(p.d1, 128)
        state = "w s velocity start rate live"
        row, ip = {"P": p.row}, {"IP": self.products}
        update = {"P": p.row, "COPY": self.dtype != torch.float32, "MOMENTUM": float(sgd.momentum),
                  "DECAY": float(sgd.weight_decay), "PULL": float(sgd.proximal)}
        one = {"B": batch, "H": p.height, "W": p.width, "C": p.taps, "N": p.c1} | ip
        two = {"B": batch, "H": p.p1[0], "W": p.p1[1], "C": p.c1, "N": p.c2} | ip
        out2 = {"OH": 2 * p.p2[0], "OW": 2 * p.p2[1]}
        last = {"WEIGHT2": f2, "BIAS2": e2, "WEIGHT3": f3, "BIAS3": e3, "B": batch, "BP": rows, "D1": p.d1, "D2": p.d2,
                "D3": p.d3, "CLASSES": self.classes, "BK": min(p.d1, t.head[0])} | ip
        fc1 = {"WEIGHT": f1, "BIAS": e1, "B": batch, "BP": rows, "K": p.inputs, "N": p.d1, "BN": wide} | ip
        forward = [
            Launch("conv1", kernels.conv_forward, -(-pixels1 // t.conv1[0]), t.conv1,
                   "images picks w s y1 corner1 live",
                   one | row | {"WEIGHT": w1, "BIAS": b1, "KH": 5, "KW": 1, "PH": p.p1[0], "PW": p.p1[1],
                                "GATHER": True, "ROWS": t.conv1[0]}),
            Launch("conv2", kernels.conv_forward, -(-pixels2 // t.conv2[0]), t.conv2,
                   "y1 picks w s y2 corner2 live",
                   two | row | {"WEIGHT": w2, "BIAS": b2, "KH": 5, "KW": 5, "PH": p.p2[0], "PW": p.p2[1],
                                "GATHER": False, "ROWS": t.conv2[0]}),
            Launch("dense", kernels.dense_forward, p.d1 // wide, t.dense,
                   "y2 w s h live",
                   fc1 | row | {"BK": t.dense[0]}),
        ]
        if look:
            return [*forward, Launch("logits", kernels.logits, 0, t.head, "h w s z live", last | row)]
        return [
            *forward,
            Launch("head", kernels.head, 0, t.head,
                   f"h dh picks labels table sums counts {state}",
                   update | last | {"TEACH": teach, "COLLECT": collect}),
            Launch("back", kernels.dense_backward, -(-p.inputs // t.back[0]), t.back,
                   f"y2 corner2 dh dy2 {state}",
                   fc1 | update | {"C": p.c2, "PH": p.p2[0], "PW": p.p2[1], "BK": t.back[0]}),
            Launch("inputs2", kernels.conv_inputs, -(-pixels1 // t.inputs2[0]), t.inputs2,
                   "dy2 y1 s dy1 live",
                   two | row | out2 | {"WEIGHT": w2, "KH": 5, "KW": 5, "ROWS": t.inputs2[0]}),
            Launch("weights2", kernels.conv_weights, 5, t.weights2,
                   f"y1 picks dy2 corner2 {state}",
                   two | update | out2 | {"WEIGHT": w2, "OUTER": p.p1[1] * p.c1, "INNER": p.c1, "GATHER": False,
                                          "POOLED": False, "ROWS": t.weights2[0]}),
            Launch("weights1", kernels.conv_weights, 1, t.weights1,
                   f"images picks dy1 corner1 {state}",
                   one | update | {"WEIGHT": w1, "OH": p.p1[0], "OW": p.p1[1], "OUTER": 0,
                                   "INNER": p.width * p.taps, "GATHER": True, "POOLED": True, "ROWS": t.weights1[0]}),
            Launch("biases", kernels.biases, 0, small, f"dy2 {state}",
                   update | {"BIAS": b2, "R": 4 * pixels2, "N": p.c2, "ROWS": 128}),
            Launch("biases", kernels.biases, 0, small, f"dy1 {state}",
                   update | {"BIAS": b1, "R": pixels1, "N": p.c1, "ROWS": 128}),
        ]
    # fmt: on


def default_tiles(chain: list[nn.Module], precision: str) -> Tiles:
    """Tiles by what was measured on an H200, with lenet and cnn64."""
    found = _sizes(chain)
    assert found is not None
    convs, linears = found
    tiles = TILES[precision][max(power(conv.out_channels) for conv in convs) > 16]
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
