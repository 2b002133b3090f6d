"""Networks of two 5x5 convolutions with pooling and three dense layers, many at once, by our own kernels.

The parameters are kept in an order of their own (channels last, sizes padded to powers of two), a session's steps are
captured once as a CUDA graph, and any number of sessions up to the graph's size replays it.  The first convolution
reads images that were unfolded once and for all, or views of images that are unfolded as they are cut, step by step.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn

from pipecycle.train.kernels_plan import Tiles, default_tiles, plan, power, unfolded
from pipecycle.train.sessions import LocalSGD, Trained, Work
from pipecycle.train.views import Frame

GRAPHS = 16
MEMORY = 12 << 30
"""Bytes that the buffers of one stack may take."""
MOST = 4096
"""Sessions in one stack."""
LARGEST_BATCH = 64
"""Samples that one program of the dense layers holds."""


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


class ConvStack:
    """Sessions of such a network on images that stay on the device."""

    def __init__(
        self,
        chain: list[nn.Module],
        images: Tensor,
        labels: Tensor,
        classes: int,
        sgd: LocalSGD,
        precision: str,
        tiles: Tiles | None = None,
        frame: Frame | None = None,
    ) -> None:
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.products = {"bf16": "tf32", "tf32": "tf32", "fp32": "tf32x3"}[precision]
        self.tiles = tiles or default_tiles(chain, precision)
        self.plan = plan(chain, tuple(images.shape[1:]), self.tiles)
        self.images, self.frame = images, frame or Frame()
        self.labels = labels.to(torch.int32)
        self.classes, self.sgd = classes, sgd
        self.place = self.plan.place.to(images.device)
        self.buffers: dict[str, Tensor] = {}
        self.graphs: dict[tuple[object, ...], torch.cuda.CUDAGraph] = {}
        self.room = (0, 0, 0, False)
        self.sessions = 0

    @cached_property
    def unfolded(self) -> Tensor:
        """All images, for sessions that see them as they are."""
        return unfolded(self.images, self.plan.taps, self.dtype)

    @cached_property
    def compact(self) -> Tensor:
        """All images, (n, height, width, channels), to cut views from."""
        return self.images.permute(0, 2, 3, 1).to(self.dtype).contiguous()

    @cached_property
    def black(self) -> Tensor:
        """The frame's value of each channel."""
        black = torch.tensor(self.frame.black, dtype=self.dtype, device=self.images.device)
        return black.expand(self.images.shape[1]).contiguous()

    def run(self, work: Work, lr: Tensor, out: Trained) -> None:
        """Train all sessions into `out`."""
        reference, table, views, sums, counts = work.reference, work.table, work.views, out.sums, out.counts
        _, steps, batch = work.batches.shape
        most = self.most(batch, views is not None)
        for first in range(0, len(reference), most):
            some = slice(first, min(first + most, len(reference)))
            count = some.stop - some.start
            self.reserve(power(count), steps, batch, views is not None)
            held = self.buffers
            self.load(reference[some])
            if self.sgd.proximal:
                held["start"][:count].copy_(held["w"][:count])
            if self.sgd.momentum:
                held["velocity"][:count].zero_()
            held["picks"][:steps, :count, :batch].copy_(work.batches[some].transpose(0, 1))
            if views is not None:
                held["views"][:steps, :count, :batch].copy_(views[some].transpose(0, 1))
            held["rate"][:count].copy_(lr[some])
            if table is not None:
                held["table"][:count].copy_(table[some])
            if sums is not None:
                held["sums"].zero_()
                held["counts"].zero_()
            self._steps(power(count), steps, table is not None, sums is not None, views is not None)
            torch.index_select(held["w"][:count], 1, self.place, out=out.parameters[some])
            if sums is not None and counts is not None:
                sums[some] = held["sums"][:count]
                counts[some] = held["counts"][:count]

    def load(self, rows: Tensor) -> None:
        """Parameters of the first sessions, which from now on are all that live."""
        held, count = self.buffers, len(rows)
        held["w"][:count].zero_()
        held["w"][:count].index_copy_(1, self.place, rows)
        if self.dtype != torch.float32:
            held["s"][:count].copy_(held["w"][:count])
        held["live"].fill_(count)
        self.sessions = power(count)

    def look(self) -> None:
        """Compute the logits of the samples that are picked."""
        for launch in self.launches(False, False, look=True):
            self.launch(launch, self.sessions)

    @property
    def logits(self) -> Tensor:
        """(sessions, batch, classes)."""
        return self.buffers["z"]

    def most(self, batch: int, views: bool = False) -> int:
        """Sessions that fit into the memory set aside."""
        p = self.plan
        item = 2 if self.dtype == torch.bfloat16 else 4
        values = 2 * p.c1 * p.p1[0] * p.p1[1] + 6 * p.c2 * p.p2[0] * p.p2[1]
        each = p.row * 10 + batch * values * (item + 1) + views * batch * p.height * p.width * p.taps * item
        return int(min(MOST, max(16, 1 << (MEMORY // each).bit_length() - 1)))

    def reserve(self, sessions: int, steps: int, batch: int, views: bool = False) -> None:
        old = self.room
        if batch == old[2] and sessions <= old[0] and steps <= old[1] and views <= old[3]:
            return
        if batch == old[2]:
            sessions, steps, views = max(sessions, old[0]), max(steps, old[1]), views or old[3]
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
        if views:
            self.buffers["views"] = make(torch.int32, steps, sessions, batch)
            self.buffers["seen"] = make(self.dtype, sessions, batch, p.height * p.width * p.taps)
        self.room = (sessions, steps, batch, views)

    def _steps(self, sessions: int, steps: int, *kind: bool) -> None:
        """All steps of a session: as a graph where there is one, else captured after a step that changes nothing."""
        if not self.images.is_cuda:
            for step in range(steps):
                self.step(sessions, step, *kind)
            return
        key = (sessions, steps, self.room[2], *kind)
        with torch.cuda.device(self.images.device):
            if key not in self.graphs:
                live = self.buffers["live"].clone()
                self.buffers["live"].zero_()
                self.step(sessions, 0, *kind)
                torch.cuda.synchronize()
                self.buffers["live"].copy_(live)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for step in range(steps):
                        self.step(sessions, step, *kind)
                while len(self.graphs) >= GRAPHS:
                    del self.graphs[next(iter(self.graphs))]
                self.graphs[key] = graph
            self.graphs[key].replay()

    def step(
        self, sessions: int, step: int, teach: bool, collect: bool, views: bool = False, *, only: str = ""
    ) -> None:
        """Launch the kernels of one step, or those called `only`."""
        for launch in self.launches(teach, collect, views):
            if not only or only == launch.name:
                self.launch(launch, sessions, step)

    def launch(self, launch: Launch, sessions: int, step: int = 0) -> None:
        grid = (launch.across, sessions) if launch.across else (sessions,)
        _, warps, stages = launch.tile
        tensors = [self._tensor(name, step) for name in launch.tensors.split()]
        launch.kernel[grid](*tensors, **launch.constants, num_warps=warps, num_stages=stages)

    def _tensor(self, name: str, step: int) -> Tensor:
        if name in self.buffers:
            return self.buffers[name][step] if name in ("picks", "views") else self.buffers[name]
        found: Tensor = getattr(self, name)
        return found

    # fmt: off
    def launches(self, teach: bool, collect: bool, views: bool = False, *, look: bool = False) -> list[Launch]:
        """The kernels of a step in order, with the names of their tensors and their constants; with `look`, those of
        the logits alone."""
        from pipecycle.train import kernels
        from pipecycle.train.kernels_view import cut

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
        pixels, images = batch * p.height * p.width, "seen" if views else "unfolded"
        forward = [Launch("cut", cut, -(-pixels // t.cut[0]), t.cut, "compact picks views black seen live",
                          {"B": batch, "H": p.height, "W": p.width + 4, "C": self.images.shape[1], "TAPS": p.taps,
                           "FRAME": self.frame.width, "ROWS": t.cut[0]})] if views else []
        forward += [
            Launch("conv1", kernels.conv_forward, -(-pixels1 // t.conv1[0]), t.conv1,
                   f"{images} picks w s y1 corner1 live",
                   one | row | {"WEIGHT": w1, "BIAS": b1, "KH": 5, "KW": 1, "PH": p.p1[0], "PW": p.p1[1],
                                "GATHER": not views, "ROWS": t.conv1[0]}),
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
                   f"{images} picks dy1 corner1 {state}",
                   one | update | {"WEIGHT": w1, "OH": p.p1[0], "OW": p.p1[1], "OUTER": 0,
                                   "INNER": p.width * p.taps, "GATHER": not views, "POOLED": True,
                                   "ROWS": t.weights1[0]}),
            Launch("biases", kernels.biases, 0, small, f"dy2 {state}",
                   update | {"BIAS": b2, "R": 4 * pixels2, "N": p.c2, "ROWS": 128}),
            Launch("biases", kernels.biases, 0, small, f"dy1 {state}",
                   update | {"BIAS": b1, "R": pixels1, "N": p.c1, "ROWS": 128}),
        ]
    # fmt: on
