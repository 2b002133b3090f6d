"""The stacked executor: all sessions side by side."""

from __future__ import annotations

from copy import deepcopy
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor, nn

from pipecycle.errors import InputError
from pipecycle.train.kernels_chain import DenseStack, dense, layers
from pipecycle.train.kernels_conv import LARGEST_BATCH, ConvStack
from pipecycle.train.kernels_plan import fits
from pipecycle.train.loop import Loop
from pipecycle.train.models import split
from pipecycle.train.sessions import PRECISIONS, Executor, LocalSGD, Precision, Trained, Work
from pipecycle.train.views import Frame

Trainer = Literal["auto", "loop", "stacked"]
Path = Literal["dense", "conv", "reference"]
DENSE_CHUNK = {"cpu": 32, "cuda": 256}
REFERENCE_CHUNK = {"cpu": 8, "cuda": 64}
"""Sessions computed together.  Multiples of 32 where sums are laid out across sessions, so that vector instructions
never end in a scalar remainder, whose rounding may differ."""


class Stacked(Executor):
    """All sessions side by side, by one of three paths:

    `dense`      chains of Linear, ReLU and Tanh, by batched products written out, on any device;
    `conv`       chains like lenet, cnn64 and wide, by our own kernels, on CUDA;
    `reference`  any module by torch.func, on any device.

    Weights are always kept in the images' type; `precision` is that of the products on CUDA.  Only `conv` goes as low
    as bf16, the others take tf32 instead; fp32 by `conv` is three tf32 products."""

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
        chain = layers(module)
        quickest = stacked_path(module, images)
        if path not in ("auto", "reference", quickest):
            raise InputError(f"path = {path}: this module on {images.device.type} takes {quickest} or reference")
        self.path = quickest if path == "auto" else path
        kind = images.device.type
        self.chunk = chunk or (DENSE_CHUNK if self.path == "dense" else REFERENCE_CHUNK).get(kind, 64)
        if self.path == "dense":
            assert chain is not None
            self.dense = DenseStack(chain)
            self.images = images.flatten(1)
        elif self.path == "conv":
            assert chain is not None
            self.conv = ConvStack(chain, images, self.labels, classes, self.sgd, precision, frame=self.frame)
        self.module = deepcopy(module).to(device=images.device, dtype=images.dtype)

    def _train(self, work: Work, out: Trained) -> None:
        reference = work.reference
        with torch.no_grad():
            if self.path == "conv" and work.batches.shape[2] <= LARGEST_BATCH:
                rates = torch.full_like(reference[:, 0], self.sgd.lr) if work.lr is None else work.lr
                self.conv.run(work, rates, out)
                return
            train = self._dense if self.path == "dense" else self._reference
            for first in range(0, len(reference), self.chunk):
                rows = torch.arange(first, first + self.chunk, device=self.images.device)
                rows = rows.clamp_(max=len(reference) - 1)
                real = slice(first, min(first + self.chunk, len(reference)))
                parts, sums, counts = train(_take(work, rows), out.sums is not None)
                for final, part in zip(split(self.module, out.parameters[real]), parts, strict=True):
                    final.copy_(part[: len(final)].view_as(final))
                for whole, some in ((out.sums, sums), (out.counts, counts)):
                    if whole is not None and some is not None:
                        whole[real] = some[: real.stop - real.start]

    def _dense(self, work: Work, collect: bool) -> tuple[list[Tensor], Tensor | None, Tensor | None]:
        sgd, net = self.sgd, self.dense
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
            z = net.forward(self._inputs(index[:, step], work, step).view(sessions, batch, -1))
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

    def _reference(self, work: Work, collect: bool) -> tuple[list[Tensor], Tensor | None, Tensor | None]:
        names = [name for name, _ in self.module.named_parameters()]
        constants = dict(self.module.named_buffers())
        sessions, steps, batch = work.batches.shape

        def loss(weights: list[Tensor], x: Tensor, target: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
            state = dict(zip(names, weights, strict=True)) | constants
            z: Tensor = torch.func.functional_call(self.module, state, (x,))
            return -((target * z.log_softmax(1)).sum(1) * scale).sum(), z

        gradients = torch.func.vmap(torch.func.grad(loss, has_aux=True))
        weights = [part.clone() for part in split(self.module, work.reference)]
        start = [weight.clone() for weight in weights] if self.sgd.proximal else []
        velocity = [torch.zeros_like(weight) for weight in weights] if self.sgd.momentum else []
        table = self.eye.expand(sessions, -1, -1) if work.table is None else work.table
        row = torch.arange(sessions, device=table.device)[:, None]
        even = work.reference.new_full((sessions, batch), 1.0 / batch)
        sums, counts = self._blank(sessions, collect)
        for step in range(steps):
            index = work.batches[:, step].clamp(min=0)
            y = self.labels[index]
            scale = even if work.scale is None else work.scale[:, step]
            grads, z = gradients(weights, self._inputs(index, work, step), table[row, y], scale)
            rate: Tensor | float = self.sgd.lr if work.lr is None else work.lr
            self._update(weights, list(grads), start, velocity, rate)
            if sums is not None and counts is not None:
                seen = self.eye[y] * (scale[..., None] > 0)
                sums.baddbmm_(seen.mT, z)
                counts += seen.sum(1)
        return weights, sums, counts

    def _inputs(self, index: Tensor, work: Work, step: int) -> Tensor:
        """(sessions, batch, *sample) as kept, for the indices of a step."""
        if work.views is None:
            return self.images.index_select(0, index.reshape(-1)).view(*index.shape, *self.images.shape[1:])
        images = self.images.view(-1, *self.shape).permute(0, 2, 3, 1)
        seen = self.frame.cut(images, index.reshape(-1), work.views[:, step].reshape(-1), self.black)
        return seen.permute(0, 3, 1, 2).reshape(*index.shape, *self.images.shape[1:])


def stacked_path(module: nn.Module, images: Tensor) -> Path:
    """The quickest of `Stacked`'s paths for this module on the images' device."""
    chain = layers(module)
    if chain is None:
        return "reference"
    if dense(chain) and (images.ndim == 2 or isinstance(chain[0], nn.Flatten)):
        return "dense"
    if images.is_cuda and images.dtype == torch.float32 and find_spec("triton"):
        return "conv" if fits(chain, images) else "reference"
    return "reference"


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
    the module is dense."""
    if kind == "auto":
        kind = "stacked" if images.is_cuda or stacked_path(module, images) == "dense" else "loop"
    if kind == "stacked":
        return Stacked(module, images, labels, classes, sgd, precision=precision, frame=frame)
    return Loop(module, images, labels, classes, sgd, frame=frame)


def _take(work: Work, rows: Tensor) -> Work:
    def pick(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[rows]

    rest = (pick(values) for values in (work.scale, work.lr, work.table, work.views))
    return Work(work.reference[rows], work.batches[rows], *rest)
