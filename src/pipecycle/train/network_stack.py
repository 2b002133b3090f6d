"""Many networks at once, layer by layer: the buffers of a stack of sessions, and its steps.

A step is the same for every session of a stack, so that it is captured once as a CUDA graph and replayed for each;
which samples it takes is read from a counter on the device.  The layers are our own kernels, whose every program works
for one session.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pipecycle.train.network import Network, Norm, Pool
from pipecycle.train.sessions import LocalSGD, Trained, Work
from pipecycle.train.views import Frame

if TYPE_CHECKING:
    from pipecycle.train.kernels_network import KernelLayers

GRAPHS = 16
MEMORY = 6
"""The buffers of one stack may take this part of a GPU's memory."""
MOST = 4096
"""Sessions in one stack."""
LARGEST_BATCH = 128
"""Samples whose logits one program holds."""


class NetworkStack:
    """Sessions of a network on images that stay on the device."""

    def __init__(
        self,
        net: Network,
        images: Tensor,
        labels: Tensor,
        classes: int,
        sgd: LocalSGD,
        precision: str,
        frame: Frame | None = None,
        trains: bool = True,
    ) -> None:
        """A stack that does not train has no gradients."""
        self.net, self.images, self.classes, self.sgd = net, images, classes, sgd
        self.precision, self.trains = precision, trains
        self.dtype = torch.bfloat16 if precision == "bf16" else images.dtype
        self.labels = labels.to(torch.int32)
        self.frame = frame or Frame()
        self.writers = net.writers()
        self.place = torch.from_numpy(net.place).to(images.device)
        self.buffers: dict[str, Tensor] = {}
        self.values: list[Tensor] = []
        self.slopes: list[Tensor | None] = []
        """A gradient for each value that has one."""
        self.extra: dict[int, Tensor] = {}
        """By layer: which value was the largest, or means and deviations."""
        self.graphs: dict[tuple[object, ...], torch.cuda.CUDAGraph] = {}
        self.room = (0, 0, 0)
        self.sessions = 0

    @cached_property
    def layers(self) -> KernelLayers:
        """What computes them; imported when it is used, since it needs Triton."""
        from pipecycle.train.kernels_network import KernelLayers

        return KernelLayers(self)

    @cached_property
    def compact(self) -> Tensor:
        """All samples as value 0 lays them out, (n, height, width, channels)."""
        value = self.net.values[0]
        images = self.images.flatten(1)[..., None, None] if self.images.ndim == 2 else self.images
        if images.shape[1] == value.channels:
            return images.permute(0, 2, 3, 1).to(self.dtype).contiguous()
        out = torch.zeros(
            len(images), value.height, value.width, value.channels, dtype=self.dtype, device=images.device
        )
        out[..., : images.shape[1]] = images.permute(0, 2, 3, 1)
        return out

    @cached_property
    def black(self) -> Tensor:
        """The frame's value of each channel."""
        out = torch.zeros(self.net.values[0].channels, dtype=self.dtype, device=self.images.device)
        out[: self.net.values[0].real] = torch.tensor(self.frame.black, dtype=self.dtype)
        return out

    def run(self, work: Work, lr: Tensor, out: Trained) -> None:
        """Train all sessions into `out`."""
        count, steps, batch = work.batches.shape
        most = self.most(batch)
        for first in range(0, count, most):
            some = slice(first, min(first + most, count))
            live = some.stop - some.start
            self.reserve(_power(live), steps, batch)
            self.load(work.reference[some])
            held = self.buffers
            if self.sgd.proximal:
                held["start"][:live].copy_(held["w"][:live])
            if self.sgd.momentum:
                held["velocity"][:live].zero_()
            held["picks"][:steps, :live].copy_(work.batches[some].transpose(0, 1))
            if work.views is not None:
                held["views"][:steps, :live].copy_(work.views[some].transpose(0, 1))
            held["rate"][:live].copy_(lr[some])
            if work.table is not None:
                held["table"][:live].copy_(work.table[some])
            held["sums"].zero_()
            held["counts"].zero_()
            held["step"].zero_()
            kind = (work.table is not None, out.sums is not None, work.views is not None)
            self._steps(_power(live), steps, kind)
            torch.index_select(held["w"][:live], 1, self.place, out=out.parameters[some])
            if out.sums is not None and out.counts is not None:
                out.sums[some] = held["sums"][:live]
                out.counts[some] = held["counts"][:live]

    def load(self, rows: Tensor) -> None:
        """Parameters of the first sessions, which from now on are all that live."""
        held, live = self.buffers, len(rows)
        self.sessions = _power(live)
        held["w"][:live].zero_()
        held["w"][:live].index_copy_(1, self.place, rows)
        if held["s"] is not held["w"]:
            held["s"][:live].copy_(held["w"][:live])
        held["live"].fill_(live)

    def most(self, batch: int) -> int:
        """Sessions that fit into the memory set aside."""
        memory = torch.cuda.get_device_properties(self.images.device).total_memory if self.images.is_cuda else 16 << 30
        item = torch.empty(0, dtype=self.dtype).element_size()
        values = sum(value.size * (1 + (value.trained and self.trains)) for value in self.net.values)
        each = self.net.row * 14 + batch * values * item
        return int(min(MOST, max(16, 1 << (memory // MEMORY // each).bit_length() - 1)))

    def reserve(self, sessions: int, steps: int, batch: int) -> None:
        old = self.room
        if batch == old[2] and sessions <= old[0] and steps <= old[1]:
            return
        if batch == old[2]:
            sessions, steps = max(sessions, old[0]), max(steps, old[1])
        self.graphs.clear()
        self.buffers.clear()
        self.values, self.slopes, self.extra = [], [], {}
        full = self.images.dtype

        def make(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=self.images.device)

        w = make(full, sessions, self.net.row)
        self.buffers = {
            "w": w,
            "s": w if self.dtype == full else make(self.dtype, sessions, self.net.row),
            "start": make(full, sessions, self.net.row) if self.sgd.proximal else w,
            "velocity": make(full, sessions, self.net.row) if self.sgd.momentum else w,
            "picks": make(torch.int32, steps, sessions, batch),
            "views": make(torch.int32, steps, sessions, batch),
            "step": make(torch.int32, 1),
            "live": make(torch.int32, 1),
            "rate": make(full, sessions),
            "table": make(full, sessions, self.classes, self.classes),
            "sums": make(full, sessions, self.classes, self.classes),
            "counts": make(full, sessions, self.classes),
        }
        for value in self.net.values:
            self.values.append(make(self.dtype, sessions, batch, value.size))
            self.slopes.append(make(self.dtype, sessions, batch, value.size) if value.trained and self.trains else None)
        for index, layer in enumerate(self.net.layers):
            value = self.net.values[layer.y]
            if isinstance(layer, Pool) and layer.largest:
                self.extra[index] = make(torch.int8, sessions, batch, value.size)
            elif isinstance(layer, Norm):  # of each sample: means, deviations, and its part in two gradients
                self.extra[index] = make(full, sessions, 4, batch, value.channels)
        self.room = (sessions, steps, batch)

    def step(self, teach: bool, collect: bool, views: bool) -> None:
        """One step of all sessions."""
        self.look(views)
        self.layers.loss(teach, collect)
        for index in reversed(range(len(self.net.layers))):
            self.layers.backward(index, self.net.layers[index])
        self.buffers["step"].add_(1)

    def look(self, views: bool = False) -> None:
        """Compute the logits of the samples that are picked."""
        self.layers.cut(views)
        for index, layer in enumerate(self.net.layers):
            self.layers.forward(index, layer)

    @property
    def logits(self) -> Tensor:
        """(sessions, batch, classes)."""
        return self.values[self.net.output][..., : self.classes]

    def _steps(self, sessions: int, steps: int, kind: tuple[bool, bool, bool]) -> None:
        """All steps of a session, by a graph of one of them that is captured after a step that changes nothing."""
        if not self.images.is_cuda:
            for _ in range(steps):
                self.step(*kind)
            return
        key = (sessions, self.room[2], *kind)
        with torch.cuda.device(self.images.device):
            if key not in self.graphs:
                held = self.buffers
                live = held["live"].clone()
                held["live"].zero_()
                with self.layers.compile():
                    self.step(*kind)
                self.step(*kind)
                held["step"].zero_()
                torch.cuda.synchronize()
                held["live"].copy_(live)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    self.step(*kind)
                while len(self.graphs) >= GRAPHS:
                    del self.graphs[next(iter(self.graphs))]
                self.graphs[key] = graph
            for _ in range(steps):
                self.graphs[key].replay()


def _power(value: int) -> int:
    return max(16, 1 << (value - 1).bit_length())
