"""Many sessions at once in the buffers of a device: what both families of our kernels share.

A stack has room for a power of two of sessions, of which the first ones live; every program of a kernel works for one
session and ends at once if it does not live.  So steps can be captured as a CUDA graph, once, and be replayed for any
number of sessions.  Parameters are kept in an order of their own, one padded row for each session.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from pipecycle.train.sessions import Executor, Trained, Work

GRAPHS = 16
MOST = 4096
"""Sessions in one stack."""
Room = tuple[int, int, int, bool]
"""Sessions, steps, samples of a batch, and whether they are views."""
Kind = tuple[bool, bool, bool]
"""Whether steps have teachers, collect logits, and see views."""


def power(value: int, least: int = 16) -> int:
    """The next power of two; tensor cores take no less than 16."""
    return max(least, 1 << (value - 1).bit_length())


class Stack:
    """Sessions on images that stay on the device; what they compute is up to those who build on this."""

    trains = True
    """Whether there is room for gradients."""

    def __init__(self, owner: Executor, row: int, place: Tensor, channels: int) -> None:
        """A row holds `row` parameters, and those of the module go to `place`; `channels` of an image are read."""
        self.images, self.classes, self.sgd = owner.images, owner.classes, owner.sgd
        self.precision, self.frame = owner.precision, owner.frame
        self.dtype = torch.bfloat16 if self.precision == "bf16" else self.images.dtype
        self.labels = owner.labels.to(torch.int32)
        self.row, self.place, self.channels = row, place.to(self.images.device), channels
        self.buffers: dict[str, Tensor] = {}
        self.graphs: dict[tuple[object, ...], torch.cuda.CUDAGraph] = {}
        self.room: Room = (0, 0, 0, False)
        self.sessions = 0

    # What differs.

    def memory(self, batch: int, views: bool) -> tuple[int, int]:
        """Bytes that may be taken, and bytes of one session."""
        raise NotImplementedError

    def make_room(self, room: Room) -> dict[str, Tensor]:
        """The buffers of its own, none of the older ones being kept."""
        raise NotImplementedError

    def step(self, step: int, teach: bool, collect: bool, views: bool = False) -> None:
        """One step of all sessions."""
        raise NotImplementedError

    def captured(self, steps: int) -> int:
        """How many of a session's steps one graph holds."""
        raise NotImplementedError

    def prepare(self, kind: Kind) -> None:
        """What has to be done once before a step is captured; no session lives."""
        self.step(0, *kind)

    def look(self) -> None:
        """Compute the logits of the samples that are picked."""
        raise NotImplementedError

    @property
    def logits(self) -> Tensor:
        """(sessions, batch, classes)."""
        raise NotImplementedError

    # What is the same.

    @cached_property
    def compact(self) -> Tensor:
        """All samples, (n, height, width, channels), the channels filled up with zeros."""
        images = self.images[..., None, None] if self.images.ndim == 2 else self.images
        count, given, *sides = images.shape
        out = torch.zeros(count, *sides, self.channels, dtype=self.dtype, device=images.device)
        out[..., :given] = images.permute(0, 2, 3, 1)
        return out

    @cached_property
    def black(self) -> Tensor:
        """The frame's value of each channel."""
        out = torch.zeros(self.channels, dtype=self.dtype, device=self.images.device)
        out[: self.images.shape[1]] = torch.tensor(self.frame.black, dtype=self.dtype)
        return out

    def most(self, batch: int, views: bool = False) -> int:
        """Sessions that fit into the memory set aside."""
        whole, each = self.memory(batch, views)
        return int(min(MOST, max(16, 1 << (whole // each).bit_length() - 1)))

    def make(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=dtype, device=self.images.device)

    def reserve(self, sessions: int, steps: int, batch: int, views: bool = False) -> None:
        old = self.room
        if batch == old[2] and sessions <= old[0] and steps <= old[1] and views <= old[3]:
            return
        if batch == old[2]:
            sessions, steps, views = max(sessions, old[0]), max(steps, old[1]), views or old[3]
        self.graphs.clear()
        self.buffers.clear()
        room, full, make, classes = (sessions, steps, batch, views), self.images.dtype, self.make, self.classes
        own, w = self.make_room(room), make(full, sessions, self.row)
        self.buffers = own | {
            "w": w,
            "s": w if self.dtype == full else make(self.dtype, sessions, self.row),
            "start": make(full, sessions, self.row) if self.sgd.proximal else w,
            "velocity": make(full, sessions, self.row) if self.sgd.momentum else w,
            "picks": make(torch.int32, steps, sessions, batch),
            "views": make(torch.int32, steps, sessions, batch),
            "live": make(torch.int32, 1),
            "rate": make(full, sessions),
            "table": make(full, sessions, classes, classes),
            "sums": make(full, sessions, classes, classes),
            "counts": make(full, sessions, classes),
        }
        self.room = room

    def load(self, rows: Tensor) -> None:
        """Parameters of the first sessions, which from now on are all that live."""
        held, count = self.buffers, len(rows)
        self.sessions = power(count)
        held["w"][:count].zero_()
        held["w"][:count].index_copy_(1, self.place, rows)
        if held["s"] is not held["w"]:
            held["s"][:count].copy_(held["w"][:count])
        held["live"].fill_(count)

    def run(self, work: Work, lr: Tensor, out: Trained) -> None:
        """Train all sessions into `out`."""
        sessions, steps, batch = work.batches.shape
        kind = (work.table is not None, out.sums is not None, work.views is not None)
        most = self.most(batch, kind[2])
        for first in range(0, sessions, most):
            some = slice(first, min(first + most, sessions))
            count = some.stop - some.start
            self.reserve(power(count), steps, batch, kind[2])
            self.load(work.reference[some])
            held = self.buffers
            if self.sgd.proximal:
                held["start"][:count].copy_(held["w"][:count])
            if self.sgd.momentum:
                held["velocity"][:count].zero_()
            held["picks"][:steps, :count].copy_(work.batches[some].transpose(0, 1))
            if work.views is not None:
                held["views"][:steps, :count].copy_(work.views[some].transpose(0, 1))
            held["rate"][:count].copy_(lr[some])
            if work.table is not None:
                held["table"][:count].copy_(work.table[some])
            if out.sums is not None:
                held["sums"].zero_()
                held["counts"].zero_()
            self._steps(steps, kind)
            torch.index_select(held["w"][:count], 1, self.place, out=out.parameters[some])
            if out.sums is not None and out.counts is not None:
                out.sums[some] = held["sums"][:count]
                out.counts[some] = held["counts"][:count]

    def _steps(self, steps: int, kind: Kind) -> None:
        """All steps of the sessions, on a GPU by graphs."""
        if not self.images.is_cuda:
            for step in range(steps):
                self.step(step, *kind)
        elif steps:
            length = self.captured(steps)
            key = (self.sessions, length, self.room[2], *kind)
            if key not in self.graphs:
                self._capture(length, kind, key)
            for _ in range(steps // length):
                self.graphs[key].replay()

    def _capture(self, length: int, kind: Kind, key: tuple[object, ...]) -> None:
        """A graph of steps, after what prepares them and changes nothing."""
        live = self.buffers["live"].clone()
        self.buffers["live"].zero_()
        self.prepare(kind)
        torch.cuda.synchronize()
        self.buffers["live"].copy_(live)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):  # its own belongs to the first GPU that had a graph
            for step in range(length):
                self.step(step, *kind)
        while len(self.graphs) >= GRAPHS:
            del self.graphs[next(iter(self.graphs))]
        self.graphs[key] = graph


class StackedLogits:
    """The logits of many networks on the same images.

    A network's images are taken in parts of one batch each, every part as if it were a network of its own."""

    LARGEST = 64
    """Images in a part."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.count = stack, len(stack.images)
        stack.trains = False
        self.batch = min(self.LARGEST, self.count)
        self.parts = -(-self.count // self.batch)
        which = torch.arange(self.parts * self.batch, dtype=torch.int32, device=stack.images.device)
        self.picks = which.clamp_(max=self.count - 1).view(self.parts, self.batch)

    def __call__(self, rows: Tensor) -> Tensor:
        """(networks, images, classes) of (networks, P) parameters."""
        at_once = max(1, self.stack.most(self.batch) // self.parts)
        return torch.cat([self._some(rows[first : first + at_once]) for first in range(0, len(rows), at_once)])

    def _some(self, rows: Tensor) -> Tensor:
        stack, places = self.stack, len(rows) * self.parts
        stack.reserve(power(places), 1, self.batch)
        stack.load(rows.repeat_interleave(self.parts, 0))
        stack.buffers["picks"][0, :places].unflatten(0, (len(rows), self.parts)).copy_(self.picks)
        stack.look()
        return stack.logits[:places].reshape(len(rows), self.parts * self.batch, -1)[:, : self.count].clone()
