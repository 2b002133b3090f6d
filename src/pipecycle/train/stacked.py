"""The stacked executor: all sessions side by side."""

from __future__ import annotations

from copy import deepcopy
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from pipecycle.errors import InputError
from pipecycle.train.kernels_chain import DenseStack
from pipecycle.train.kernels_conv import ConvStack
from pipecycle.train.kernels_plan import LARGEST_BATCH
from pipecycle.train.loop import Loop
from pipecycle.train.models import split
from pipecycle.train.module_stack import ModuleStack
from pipecycle.train.network_stack import LARGEST_BATCH as LARGEST_LAYERS
from pipecycle.train.network_stack import NetworkStack
from pipecycle.train.paths import WORDS, Path, all_dense, choose
from pipecycle.train.sessions import PRECISIONS, Executor, LocalSGD, Precision, Trained, Work
from pipecycle.train.views import Frame

Trainer = Literal["auto", "loop", "stacked"]
DENSE_CHUNK = {"cpu": 32, "cuda": 256}
"""Sessions computed together.  Multiples of 32 where sums are laid out across sessions, so that vector instructions
never end in a scalar remainder, whose rounding may differ."""


class Stacked(Executor):
    """All sessions side by side, by one of four paths:

    `conv`    chains like lenet, cnn64 and wide, by kernels made for them, on CUDA;
    `layers`  every module that `network` knows the layers of, by kernels for each layer, on CUDA;
    `dense`   chains of Linear, ReLU and Tanh, by batched products written out, on a CPU;
    `module`  any module by torch.func, on any device.

    Weights are always kept in the images' type; `precision` is that of the products on CUDA.  fp32 by our kernels is
    three tf32 products; bf16 by `module` is torch's own autocast, and `dense` takes tf32 instead."""

    def __init__(
        self,
        module: nn.Module,
        images: Tensor,
        labels: Tensor,
        classes: int,
        sgd: LocalSGD | None = None,
        *,
        precision: Precision = "fp32",
        frame: Frame | None = None,
        path: Path | Literal["auto"] = "auto",
        chunk: int | None = None,
    ) -> None:
        super().__init__(module, images, labels, classes, sgd, frame=frame)
        if precision not in PRECISIONS:
            raise InputError(f"precision = {precision}: needs one of {', '.join(PRECISIONS)}")
        self.precision = precision
        self.choice = choose(module, images)
        if self.choice.path is None:
            raise InputError(f"trainer = stacked: {self.choice.why}")
        if path not in ("auto", *self.choice.paths):
            able = " or ".join(self.choice.paths)
            raise InputError(f"path = {path}: this module on {images.device.type} takes {able}")
        self.path: Path = self.choice.path if path == "auto" else path
        self.how = str(self.choice) if path == "auto" else WORDS[self.path]
        self.chunk = chunk
        self.module = deepcopy(module).to(device=images.device, dtype=images.dtype)

    @cached_property
    def conv(self) -> ConvStack:
        assert self.choice.chain is not None
        return ConvStack(self, self.choice.chain)

    @cached_property
    def layers(self) -> NetworkStack:
        assert self.choice.network is not None
        return NetworkStack(self, self.choice.network)

    @cached_property
    def any(self) -> ModuleStack:
        return ModuleStack(self, self.module, self.chunk)

    def _train(self, work: Work, out: Trained) -> None:
        batch = work.batches.shape[2]
        rates = torch.full_like(work.reference[:, 0], self.sgd.lr) if work.lr is None else work.lr
        with torch.no_grad():
            if self.path == "conv" and batch <= LARGEST_BATCH:
                self.conv.run(work, rates, out)
            elif self.path in ("conv", "layers") and self.choice.network is not None and batch <= LARGEST_LAYERS:
                self.layers.run(work, rates, out)
            elif self.path == "dense":
                self._chunks(work, out)
            else:
                self.any.run(work, rates, out)

    def _chunks(self, work: Work, out: Trained) -> None:
        chunk = self.chunk or DENSE_CHUNK[self.images.device.type]
        for first in range(0, len(work.reference), chunk):
            rows = torch.arange(first, first + chunk, device=self.images.device).clamp_(max=len(work.reference) - 1)
            real = slice(first, min(first + chunk, len(work.reference)))
            parts, sums, counts = self._dense(_take(work, rows), out.sums is not None)
            for final, part in zip(split(self.module, out.parameters[real]), parts, strict=True):
                final.copy_(part[: len(final)].view_as(final))
            for whole, some in ((out.sums, sums), (out.counts, counts)):
                if whole is not None and some is not None:
                    whole[real] = some[: real.stop - real.start]

    def _dense(self, work: Work, collect: bool) -> tuple[list[Tensor], Tensor | None, Tensor | None]:
        assert self.choice.chain is not None
        sgd, net = self.sgd, DenseStack(self.choice.chain)
        net.load(split(self.module, work.reference))
        start = [weight.clone() for weight in net.weights] if sgd.proximal else []
        velocity = [torch.zeros_like(weight) for weight in net.weights] if sgd.momentum else []
        sessions, steps, batch = work.batches.shape
        index = work.batches.clamp(min=0)
        y = self.labels[index]
        offset = torch.arange(sessions, device=y.device)[:, None, None] * self.classes
        targets = self.eye if work.table is None else work.table.flatten(0, 1)
        which = y if work.table is None else y + offset
        lr: Tensor | float = sgd.lr if work.lr is None else work.lr[:, None, None]
        scale: Tensor | float = 1.0 / batch
        sums, counts = self._blank(sessions, collect)
        for step in range(steps):
            seen = self.samples(index[:, step], None if work.views is None else work.views[:, step])
            z = net.forward(seen.view(sessions, batch, -1))
            target = targets.index_select(0, which[:, step].reshape(-1)).view_as(z)
            # With classes outermost the sums run over whole vectors of samples instead of ten numbers at a time.
            g = z.permute(2, 0, 1).contiguous().softmax(0).permute(1, 2, 0).contiguous()
            if work.table is not None:
                g.mul_(target.sum(2, keepdim=True))
            g.sub_(target)
            if work.scale is not None:
                scale = work.scale[:, step, :, None]
            if sums is not None and counts is not None:
                seen = self.eye.index_select(0, y[:, step].reshape(-1)).view_as(z)
                if work.scale is not None:
                    seen.mul_(work.scale[:, step, :, None] > 0)
                sums.baddbmm_(seen.mT, z)
                counts += seen.sum(1)
            if sgd.plain:
                net.descend(g.mul_(scale * lr))
            else:
                self._update(net.weights, net.gradients(g.mul_(scale)), start, velocity, lr)
        return net.weights, sums, counts


def executor(
    module: nn.Module,
    images: Tensor,
    labels: Tensor,
    classes: int,
    sgd: LocalSGD | None = None,
    *,
    precision: Precision = "fp32",
    frame: Frame | None = None,
    kind: Trainer = "auto",
) -> Executor:
    """An executor of that kind; `auto` is the quicker one for this module where the images are: `Loop` on a CPU unless
    the module is dense, and where there is no other."""
    if kind == "auto":
        stacks = bool(choose(module, images).paths) if images.is_cuda else all_dense(module, images)
        kind = "stacked" if stacks else "loop"
    if kind == "stacked":
        return Stacked(module, images, labels, classes, sgd, precision=precision, frame=frame)
    return Loop(module, images, labels, classes, sgd, frame=frame)


def _take(work: Work, rows: Tensor) -> Work:
    def pick(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[rows]

    rest = (pick(values) for values in (work.scale, work.lr, work.table, work.views))
    return Work(work.reference[rows], work.batches[rows], *rest)
