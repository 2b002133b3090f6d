"""Networks of two 5x5 convolutions with pooling and three dense layers, many at once, by our own kernels.

Channels are last and sizes padded to powers of two; a graph holds all steps of a session.  The first convolution reads
images that were unfolded once and for all, or views of images that are unfolded as they are cut, step by step.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn

from pipecycle.train.kernels_plan import default_tiles, plan, unfolded
from pipecycle.train.sessions import Executor
from pipecycle.train.stack import Room, Stack, power

MEMORY = 12 << 30
"""Bytes that the buffers of one stack may take."""


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


class ConvStack(Stack):
    """Sessions of such a network."""

    def __init__(self, owner: Executor, chain: list[nn.Module]) -> None:
        self.tiles = default_tiles(chain, owner.precision)
        self.plan = plan(chain, tuple(owner.shape), self.tiles)
        super().__init__(owner, self.plan.row, self.plan.place, owner.shape[0])
        self.products = {"bf16": "tf32", "tf32": "tf32", "fp32": "tf32x3"}[owner.precision]

    @cached_property
    def unfolded(self) -> Tensor:
        """All images, for sessions that see them as they are."""
        return unfolded(self.images, self.plan.taps, self.dtype)

    def look(self) -> None:
        for launch in self.launches(False, False, look=True):
            self.launch(launch)

    @property
    def logits(self) -> Tensor:
        return self.buffers["z"]

    def memory(self, batch: int, views: bool) -> tuple[int, int]:
        p = self.plan
        item = 2 if self.dtype == torch.bfloat16 else 4
        values = 2 * p.c1 * p.p1[0] * p.p1[1] + 6 * p.c2 * p.p2[0] * p.p2[1]
        return MEMORY, p.row * 10 + batch * values * (item + 1) + views * batch * p.height * p.width * p.taps * item

    def make_room(self, room: Room) -> dict[str, Tensor]:
        (sessions, _, batch, views), p, make = room, self.plan, self.make
        one, two = p.p1[0] * p.p1[1] * p.c1, p.p2[0] * p.p2[1] * p.c2
        seen = {"seen": make(self.dtype, sessions, batch, p.height * p.width * p.taps)} if views else {}
        return seen | {
            "y1": make(self.dtype, sessions, batch, one),
            "corner1": make(torch.int8, sessions, batch, one),
            "dy1": make(self.dtype, sessions, batch, one),
            "y2": make(self.dtype, sessions, batch, two),
            "corner2": make(torch.int8, sessions, batch, two),
            "dy2": make(self.dtype, sessions, batch, 4 * two),
            "h": make(self.dtype, sessions, power(batch), p.d1),
            "z": make(torch.float32, sessions, batch, self.classes),
            "dh": make(self.dtype, sessions, power(batch), p.d1),
        }

    def captured(self, steps: int) -> int:
        return steps

    def step(self, step: int, teach: bool, collect: bool, views: bool = False, *, only: str = "") -> None:
        """Launch the kernels of one step, or those called `only`."""
        for launch in self.launches(teach, collect, views):
            if not only or only == launch.name:
                self.launch(launch, step)

    def launch(self, launch: Launch, step: int = 0) -> None:
        grid = (launch.across, self.sessions) if launch.across else (self.sessions,)
        _, warps, stages = launch.tile
        tensors = [self._tensor(name, step) for name in launch.tensors.split()]
        launch.kernel[grid](*tensors, **launch.constants, num_warps=warps, num_stages=stages)

    def _tensor(self, name: str, step: int) -> Tensor:
        if name in self.buffers:
            return self.buffers[name][step] if name in ("picks", "views") else self.buffers[name]
        images: Tensor = getattr(self, name)
        return images

    # fmt: off
    def launches(self, teach: bool, collect: bool, views: bool = False, *, look: bool = False) -> list[Launch]:
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
        pixels, images = batch * p.height * p.width, "seen" if views else "unfolded"
        forward = [Launch("cut", kernels.cut, -(-pixels // t.cut[0]), t.cut, "compact picks views black seen live",
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
