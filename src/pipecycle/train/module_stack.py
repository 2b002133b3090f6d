"""Many sessions of any module at once, by torch.func.

Work is done in chunks of a constant size: a session's bits then do not depend on what is beside it.  On a GPU a step of
a chunk is captured as a CUDA graph, since launching its many small operations would take longer than computing them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipecycle.train.models import split
from pipecycle.train.sessions import Executor, Trained, Work

LARGE = 64 << 30
"""Bytes of memory from which a GPU takes chunks four times as large."""


class ModuleStack:
    """The sessions of an executor's module; in bf16, products are rounded as by torch.autocast."""

    def __init__(self, owner: Executor, module: nn.Module, chunk: int | None = None) -> None:
        self.owner, self.module, self.device = owner, module, owner.images.device
        self.chunk = chunk or _chunk(self.device)
        self.names = [name for name, _ in module.named_parameters()]
        self.constants = dict(module.named_buffers())
        self.narrow = self.device.type == "cuda" and owner.precision == "bf16"
        self.graphs: dict[tuple[object, ...], torch.cuda.CUDAGraph | None] = {}
        self.room = (0, 0)
        self.held: dict[str, Tensor] = {}
        self.weights: list[Tensor] = []
        self.start: list[Tensor] = []
        self.velocity: list[Tensor] = []

    def run(self, work: Work, lr: Tensor, out: Trained) -> None:
        """Train all sessions into `out`.

        cuDNN puts several sessions into one product with zeros between them, and zero times infinity is no number: a
        session that overflows can spoil those beside it.  So those that begin without finite weights are kept apart,
        and those that end without them are trained again, each alone."""
        if not work.batches.shape[1]:
            out.parameters.copy_(work.reference)
            return
        sound = work.reference.isfinite().all(1)
        for rows in (sound.nonzero()[:, 0], (~sound).nonzero()[:, 0]):
            for first in range(0, len(rows), self.chunk):
                self._train(work, lr, rows[first : first + self.chunk], out)
        for lost in (out.parameters, out.sums):
            if lost is not None:
                lost[~sound] = torch.nan
        if self.chunk > 1:
            for row in (sound & ~out.parameters.isfinite().all(1)).nonzero():
                self._train(work, lr, row, out)

    def _train(self, work: Work, lr: Tensor, rows: Tensor, out: Trained) -> None:
        """Train one chunk, filled up with copies of its last session."""
        _, steps, batch = work.batches.shape
        kind = (work.table is not None, out.sums is not None, work.views is not None)
        self._reserve(steps, batch)
        graph = self._graph(kind)
        count = len(rows)
        self._load(work, lr, torch.cat([rows, rows[-1:].expand(self.chunk - count)]))
        for _ in range(steps):
            if graph is None:
                self._step(*kind)
            else:
                graph.replay()
        final = torch.empty_like(out.parameters[:count])
        for whole, part in zip(split(self.module, final), self.weights, strict=True):
            whole.copy_(part[:count])
        out.parameters[rows] = final
        if out.sums is not None and out.counts is not None:
            out.sums[rows] = self.held["sums"][:count]
            out.counts[rows] = self.held["counts"][:count]

    def _reserve(self, steps: int, batch: int) -> None:
        if self.room[0] >= steps and self.room[1] == batch:
            return
        self.graphs.clear()
        owner, chunk, classes = self.owner, self.chunk, self.owner.classes
        new = owner.images.new_zeros
        row = new(chunk, owner.size)
        self.weights = [part.clone() for part in split(self.module, row)]
        self.start = [part.clone() for part in self.weights] if owner.sgd.proximal else []
        self.velocity = [part.clone() for part in self.weights] if owner.sgd.momentum else []
        whole = torch.zeros(steps, chunk, batch, dtype=torch.int64, device=self.device)
        self.held = {
            "picks": whole,
            "views": whole.clone(),
            "scale": new(steps, chunk, batch),
            "table": new(chunk, classes, classes),
            "rate": new(chunk),
            "sums": new(chunk, classes, classes),
            "counts": new(chunk, classes),
            "step": torch.zeros(1, dtype=torch.int64, device=self.device),
        }
        self.room = (steps, batch)

    def _load(self, work: Work, lr: Tensor, rows: Tensor) -> None:
        held, (_, steps, batch) = self.held, work.batches.shape
        for weight, part in zip(self.weights, split(self.module, work.reference[rows]), strict=True):
            weight.copy_(part)
        for begin, weight in zip(self.start, self.weights, strict=False):
            begin.copy_(weight)
        for speed in self.velocity:
            speed.zero_()
        held["picks"][:steps] = work.batches[rows].transpose(0, 1).clamp(min=0)
        if work.views is not None:
            held["views"][:steps] = work.views[rows].transpose(0, 1)
        held["scale"][:steps] = 1.0 / batch if work.scale is None else work.scale[rows].transpose(0, 1)
        if work.table is not None:
            held["table"].copy_(work.table[rows])
        held["rate"].copy_(lr[rows])
        for name in ("sums", "counts", "step"):
            held[name].zero_()

    def _graph(self, kind: tuple[bool, bool, bool]) -> torch.cuda.CUDAGraph | None:
        """A step as a graph, or None on a CPU and for a module that cannot be captured."""
        if self.device.type != "cuda":
            return None
        if kind not in self.graphs:
            usual, aside = torch.cuda.current_stream(), torch.cuda.Stream()
            aside.wait_stream(usual)
            with torch.cuda.stream(aside):  # libraries prepare themselves in the first steps
                for _ in range(2):
                    self.held["step"].zero_()
                    self._step(*kind)
            usual.wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            self.graphs[kind] = graph
            try:
                with torch.cuda.graph(graph, stream=aside):
                    self._step(*kind)
            except RuntimeError:  # it waits for the device somewhere
                torch.cuda.set_stream(usual)  # a capture that fails leaves its own
                torch.cuda.synchronize()
                self.graphs[kind] = None
        return self.graphs[kind]

    def _loss(self, weights: list[Tensor], x: Tensor, target: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        state = dict(zip(self.names, weights, strict=True)) | self.constants
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.narrow, cache_enabled=False):
            z: Tensor = torch.func.functional_call(self.module, state, (x,))
        z = z.to(target.dtype)
        return -((target * z.log_softmax(1)).sum(1) * scale).sum(), z

    def _step(self, teach: bool, collect: bool, views: bool) -> None:
        """The next step of a chunk."""
        held, owner = self.held, self.owner

        def present(name: str) -> Tensor:
            return held[name].index_select(0, held["step"])[0]

        index, scale = present("picks"), present("scale")
        y = owner.labels[index]
        table = held["table"] if teach else owner.eye.expand(self.chunk, -1, -1)
        target = table.gather(1, y[..., None].expand(-1, -1, owner.classes))
        x = owner.samples(index, present("views") if views else None)
        grads, z = torch.func.vmap(torch.func.grad(self._loss, has_aux=True))(self.weights, x, target, scale)
        owner._update(self.weights, list(grads), self.start, self.velocity, held["rate"])
        if collect:
            seen = owner.eye[y] * (scale[..., None] > 0)
            held["sums"].baddbmm_(seen.mT, z)
            held["counts"] += seen.sum(1)
        held["step"] += 1


def _chunk(device: torch.device) -> int:
    if device.type != "cuda":  # whose vector instructions end in a remainder that may be rounded otherwise
        return 1
    return 256 if torch.cuda.get_device_properties(device).total_memory >= LARGE else 64
