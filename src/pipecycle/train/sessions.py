"""Sessions: local SGD of many clients, each from its own reference on its own batches.

One contract, two executors that agree to rounding.  `Loop` trains one session after another and is the quickest on a
CPU wherever arithmetic dominates; `Stacked` trains all of them side by side.  A session's bits depend on its own
inputs alone, never on what is stacked beside it or where: work is done in chunks of a constant size, or by kernels
whose every program belongs to one session.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec
from typing import Any, Literal, Protocol

import torch
from attrs import field, frozen
from torch import Tensor, nn

from pipecycle.errors import InputError
from pipecycle.models import size, split
from pipecycle.train.kernels_chain import Chain, DenseStack, dense, layers

Precision = Literal["fp32", "tf32", "bf16"]
PRECISIONS = ("fp32", "tf32", "bf16")

DENSE_CHUNK = {"cpu": 32, "cuda": 256}
LARGEST_BATCH = 64
"""Above it the conv path leaves the work to the reference."""
REFERENCE_CHUNK = {"cpu": 8, "cuda": 64}
"""Sessions computed together.  Multiples of 32 where sums are laid out across sessions, so that vector instructions
never end in a scalar remainder, whose rounding may differ."""


def _number(instance: object, attribute: Any, value: Any) -> None:
    least = 0.0 if attribute.name != "lr" else 5e-324
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
        raise InputError(f"{attribute.name} = {value}: needs a number {'above 0' if least else 'of at least 0'}")


@frozen
class LocalSGD:
    """What a client does in a step; the defaults are plain SGD.  Momentum begins anew with every session."""

    lr: float = field(default=0.05, validator=_number)
    momentum: float = field(default=0.0, validator=_number)
    weight_decay: float = field(default=0.0, validator=_number)
    proximal: float = field(default=0.0, validator=_number)
    """Pull towards the reference (FedProx): adds proximal * (x - reference) to the gradient."""

    @property
    def plain(self) -> bool:
        """Whether a step is nothing but the gradient times the learning rate."""
        return not (self.momentum or self.weight_decay or self.proximal)


@frozen(eq=False)
class Teachers:
    """A distillation term: weight * CE(softmax(logits[y]), z) for samples of a label y whose row is valid."""

    logits: Tensor
    """(M, classes, classes): row y is the teacher's logits for label y."""
    valid: Tensor
    """(M, classes), bool."""
    weight: float

    def table(self, classes: int, like: Tensor) -> Tensor:
        """(M, classes, classes): row y is what -log softmax(z) is weighted with for a sample of label y."""
        valid = self.valid.to(like.device)[..., None]
        logits = self.logits.to(like).masked_fill(~valid, 0.0)
        eye = torch.eye(classes, dtype=like.dtype, device=like.device)
        return eye + (logits.softmax(2) * self.weight).masked_fill(~valid, 0.0)


@frozen(eq=False)
class Trained:
    """What sessions yield."""

    parameters: Tensor
    """(M, P)."""
    sums: Tensor | None = None
    """(M, classes, classes): row y is the sum of the logits that samples of label y met in training."""
    counts: Tensor | None = None
    """(M, classes): how many such samples there were."""


class Executor(Protocol):
    """The contract of `Loop` and `Stacked`."""

    def run(
        self,
        reference: Tensor,
        batches: Tensor,
        *,
        lr: Tensor | None = None,
        teachers: Teachers | None = None,
        collect: bool = False,
    ) -> Trained:
        """Train M sessions: `reference` is (M, P), `batches` (M, steps, batch) indices of samples.

        -1 stands for no sample: a step's loss is the mean over those that are there, at least one.  `lr` (M,)
        replaces the configured one; `collect` asks for the logits by label."""


@frozen(eq=False)
class _Work:
    """The inputs of a run, checked and on the device."""

    reference: Tensor
    batches: Tensor
    scale: Tensor | None
    """(M, steps, batch): a sample's share in its step's mean, or None where that is 1 / batch."""
    lr: Tensor | None
    table: Tensor | None


class Base:
    """The data and what both executors do with the inputs of a run."""

    def __init__(
        self, module: nn.Module, images: Tensor, labels: Tensor, classes: int, sgd: LocalSGD | None = None
    ) -> None:
        if images.dtype not in (torch.float32, torch.float64):
            raise InputError(f"images are {images.dtype}: need to be float32 or float64")
        if labels.shape != images.shape[:1]:
            raise InputError(f"labels have shape {tuple(labels.shape)} for {len(images)} images: need one each")
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise InputError(f"labels hold {int(labels.min())} to {int(labels.max())}: need to be 0 to {classes - 1}")
        self.module, self.classes, self.sgd = module, classes, sgd or LocalSGD()
        self.images, self.labels = images, labels.to(images.device)
        self.size = size(module)
        self.eye = torch.eye(classes, dtype=images.dtype, device=images.device)

    def _work(self, reference: Tensor, batches: Tensor, lr: Tensor | None, teachers: Teachers | None) -> _Work:
        if reference.ndim != 2 or reference.shape[1] != self.size:
            raise InputError(f"reference has shape {tuple(reference.shape)}: needs (sessions, {self.size})")
        if batches.ndim != 3 or len(batches) != len(reference) or batches.dtype != torch.int64:
            shape = tuple(batches.shape)
            raise InputError(f"batches are {batches.dtype} {shape}: need int64 ({len(reference)}, steps, batch)")
        if batches.numel() and not -1 <= int(batches.min()) <= int(batches.max()) < len(self.images):
            raise InputError(f"batches hold an index outside -1 to {len(self.images) - 1}")
        there = batches >= 0
        scale = None
        if not bool(there.all()):
            count = there.sum(2, keepdim=True)
            if bool((count == 0).any()):
                raise InputError("batches hold a step without any sample: needs at least 1")
            scale = (there.to(self.images.dtype) / count).to(self.images.device)
        if lr is not None and lr.shape != reference.shape[:1]:
            raise InputError(f"lr has shape {tuple(lr.shape)}: needs one for each of {len(reference)} sessions")
        square = (len(reference), self.classes, self.classes)
        if teachers is not None and (teachers.logits.shape != square or teachers.valid.shape != square[:2]):
            shapes = f"{tuple(teachers.logits.shape)} and {tuple(teachers.valid.shape)}"
            raise InputError(f"teachers have shapes {shapes}: need {square} and {square[:2]}")
        return _Work(
            reference.to(self.images),
            batches.to(self.images.device),
            scale,
            None if lr is None else lr.to(self.images),
            None if teachers is None else teachers.table(self.classes, self.images),
        )

    def _slope(self, z: Tensor, y: Tensor, scale: Tensor | float, table: Tensor | None) -> Tensor:
        """The gradient of the loss by the logits of one session's batch."""
        if table is None:
            return z.softmax(1).sub_(self.eye[y]).mul_(scale)
        target = table[y]
        return z.softmax(1).mul_(target.sum(1, keepdim=True)).sub_(target).mul_(scale)

    def _update(
        self,
        weights: list[Tensor],
        grads: list[Tensor],
        start: list[Tensor],
        velocity: list[Tensor],
        lr: Tensor | float,
    ) -> None:
        """One step in place; with `lr` (M,) the first dimension of the weights is sessions."""
        sgd = self.sgd
        if sgd.weight_decay or sgd.proximal:
            grads = list(torch._foreach_add(grads, weights, alpha=sgd.weight_decay + sgd.proximal))
        if sgd.proximal:
            torch._foreach_add_(grads, start, alpha=-sgd.proximal)
        if sgd.momentum:
            torch._foreach_mul_(velocity, sgd.momentum)
            torch._foreach_add_(velocity, grads)
            grads = velocity
        if isinstance(lr, Tensor):
            grads = [grad * lr.reshape(-1, *[1] * (grad.ndim - 1)) for grad in grads]
            lr = 1.0
        torch._foreach_add_(weights, grads, alpha=-lr)

    def _blank(self, sessions: int, collect: bool) -> tuple[Tensor | None, Tensor | None]:
        if not collect:
            return None, None
        return self.images.new_zeros(sessions, self.classes, self.classes), self.images.new_zeros(
            sessions, self.classes
        )


class Loop(Base):
    """One session after another: a single set of weights updated in place, with no optimiser object, convolutions in
    channels-last order, and for plain chains of common layers no autograd either.  Any module, float32 or float64."""

    def __init__(
        self, module: nn.Module, images: Tensor, labels: Tensor, classes: int, sgd: LocalSGD | None = None
    ) -> None:
        super().__init__(module, images, labels, classes, sgd)
        chain = layers(module)
        self.chain = None if chain is None else Chain(chain, images)
        if images.ndim == 4:
            self.images = images.permute(0, 2, 3, 1).contiguous()
        if self.chain is None:
            self.module = deepcopy(module).to(device=images.device, dtype=images.dtype)
            self.weights: list[Tensor] = list(self.module.parameters())
        else:
            self.weights = self.chain.parameters

    def run(
        self,
        reference: Tensor,
        batches: Tensor,
        *,
        lr: Tensor | None = None,
        teachers: Teachers | None = None,
        collect: bool = False,
    ) -> Trained:
        with steady("fp32"):
            work = self._work(reference, batches, lr, teachers)
            out = Trained(torch.empty_like(work.reference), *self._blank(len(reference), collect))
            for m in range(len(reference)):
                self._session(m, work, out)
            return out

    def _session(self, m: int, work: _Work, out: Trained) -> None:
        start = split(self.module, work.reference[m])
        with torch.no_grad():
            torch._foreach_copy_(self.weights, start)
        velocity = [torch.zeros_like(p) for p in start] if self.sgd.momentum else []
        lr = self.sgd.lr if work.lr is None else float(work.lr[m])
        table = None if work.table is None else work.table[m]
        for row in work.batches[m]:
            index = row if work.scale is None else row[row >= 0]
            y = self.labels[index]
            z, grads = self._gradients(self._inputs(index), y, table)
            with torch.no_grad():
                self._update(self.weights, grads, start, velocity, lr)
                if out.sums is not None and out.counts is not None:
                    out.sums[m].addmm_(self.eye[y].t(), z)
                    out.counts[m] += self.eye[y].sum(0)
        for final, weight in zip(split(self.module, out.parameters[m]), self.weights, strict=True):
            final.copy_(weight.detach())

    def _inputs(self, index: Tensor) -> Tensor:
        x = self.images.index_select(0, index)
        return x.permute(0, 3, 1, 2) if x.ndim == 4 else x

    def _gradients(self, x: Tensor, y: Tensor, table: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        if self.chain is not None:
            with torch.no_grad():
                z = self.chain.forward(x)
                return z, self.chain.gradients(self._slope(z, y, 1.0 / len(y), table))
        z = self.module(x)
        target = self.eye[y] if table is None else table[y]
        loss = -(target * z.log_softmax(1)).sum() / len(y)
        return z.detach(), list(torch.autograd.grad(loss, self.weights))


class Stacked(Base):
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
        path: Literal["auto", "dense", "conv", "reference"] = "auto",
        chunk: int | None = None,
    ) -> None:
        super().__init__(module, images, labels, classes, sgd)
        if precision not in PRECISIONS:
            raise InputError(f"precision = {precision}: needs one of {', '.join(PRECISIONS)}")
        self.precision = precision
        chain = layers(module)
        quickest = stacked_path(module, images, precision)
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
            from pipecycle.train.kernels_conv import ConvStack

            assert chain is not None
            self.conv = ConvStack(chain, images, self.labels, classes, self.sgd, precision)
        self.module = deepcopy(module).to(device=images.device, dtype=images.dtype)

    def run(
        self,
        reference: Tensor,
        batches: Tensor,
        *,
        lr: Tensor | None = None,
        teachers: Teachers | None = None,
        collect: bool = False,
    ) -> Trained:
        with torch.no_grad(), steady(self.precision):
            work = self._work(reference, batches, lr, teachers)
            out = Trained(torch.empty_like(work.reference), *self._blank(len(reference), collect))
            if self.path == "conv" and batches.shape[2] <= LARGEST_BATCH:
                rates = torch.full_like(work.reference[:, 0], self.sgd.lr) if work.lr is None else work.lr
                self.conv.run(work.reference, work.batches, rates, work.table, out.parameters, out.sums, out.counts)
                return out
            train = self._dense if self.path == "dense" else self._reference
            for first in range(0, len(reference), self.chunk):
                rows = torch.arange(first, first + self.chunk, device=self.images.device)
                rows = rows.clamp_(max=len(reference) - 1)
                real = slice(first, min(first + self.chunk, len(reference)))
                some = _take(work, rows)
                parts, sums, counts = train(some, collect)
                for final, part in zip(split(self.module, out.parameters[real]), parts, strict=True):
                    final.copy_(part[: len(final)].view_as(final))
                if out.sums is not None and out.counts is not None and sums is not None and counts is not None:
                    out.sums[real] = sums[: real.stop - real.start]
                    out.counts[real] = counts[: real.stop - real.start]
            return out

    def _dense(self, work: _Work, collect: bool) -> tuple[list[Tensor], Tensor | None, Tensor | None]:
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
            x = self.images.index_select(0, index[:, step].reshape(-1)).view(sessions, batch, -1)
            z = net.forward(x)
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

    def _reference(self, work: _Work, collect: bool) -> tuple[list[Tensor], Tensor | None, Tensor | None]:
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
            grads, z = gradients(weights, self.images[index], table[row, y], scale)
            rate: Tensor | float = self.sgd.lr if work.lr is None else work.lr
            self._update(weights, list(grads), start, velocity, rate)
            if sums is not None and counts is not None:
                seen = self.eye[y] * (scale[..., None] > 0)
                sums.baddbmm_(seen.mT, z)
                counts += seen.sum(1)
        return weights, sums, counts


def stacked_path(
    module: nn.Module, images: Tensor, precision: Precision = "fp32"
) -> Literal["dense", "conv", "reference"]:
    """The quickest of `Stacked`'s paths for this module on the images' device."""
    chain = layers(module)
    if chain is None:
        return "reference"
    if dense(chain) and (images.ndim == 2 or isinstance(chain[0], nn.Flatten)):
        return "dense"
    if images.is_cuda and images.dtype == torch.float32 and find_spec("triton"):
        from pipecycle.train.kernels_conv import fits

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
) -> Loop | Stacked:
    """The quicker executor for this module where the images are: `Loop` on a CPU unless the module is dense."""
    if images.is_cuda or stacked_path(module, images, precision) == "dense":
        return Stacked(module, images, labels, classes, sgd, precision=precision)
    return Loop(module, images, labels, classes, sgd)


def _take(work: _Work, rows: Tensor) -> _Work:
    def pick(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[rows]

    return _Work(work.reference[rows], work.batches[rows], pick(work.scale), pick(work.lr), pick(work.table))


@contextmanager
def steady(precision: Precision) -> Iterator[None]:
    """One thread (convolution gradients differ in bits between one and two) and fixed algorithms, until it ends."""
    threads = torch.get_num_threads()
    products = torch.backends.cuda.matmul.allow_tf32
    reduced = precision != "fp32"
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = reduced
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=reduced):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cuda.matmul.allow_tf32 = products
