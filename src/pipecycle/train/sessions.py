"""Sessions: local SGD of many clients, each from its own reference on its own batches.

One contract, two executors that agree to rounding.  `Loop` trains one session after another and is the quickest on a
CPU wherever arithmetic dominates; `Stacked` trains all of them side by side.  A session's bits depend on its own
inputs alone, never on what is stacked beside it or where: work is done in chunks of a constant size, or by kernels
whose every program belongs to one session.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from attrs import field, frozen
from torch import Tensor, nn

from pipecycle import checks
from pipecycle.checks import number
from pipecycle.errors import InputError
from pipecycle.train.models import size
from pipecycle.train.views import Frame

Precision = Literal["fp32", "tf32", "bf16"]
PRECISIONS = ("fp32", "tf32", "bf16")


@frozen
class LocalSGD:
    """What a client does in a step; the defaults are plain SGD.  Momentum starts from zero in every session."""

    lr: float = field(default=0.05, validator=checks.rate)
    momentum: float = field(default=0.0, validator=number(least=0, below=1))
    weight_decay: float = field(default=0.0, validator=checks.factor)
    proximal: float = field(default=0.0, validator=checks.factor)
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


@frozen(eq=False)
class Work:
    """The inputs of a run, on the device."""

    reference: Tensor
    batches: Tensor
    scale: Tensor | None
    """(M, steps, batch): a sample's share in its step's mean, or None where that is 1 / batch."""
    lr: Tensor | None
    table: Tensor | None
    views: Tensor | None


class Executor:
    """The contract of `Loop` and `Stacked`: `run` trains sessions on the images, by a module and its SGD."""

    precision: Precision = "fp32"
    how: str
    """How sessions are computed, in words."""

    def __init__(
        self,
        module: nn.Module,
        images: Tensor,
        labels: Tensor,
        classes: int,
        sgd: LocalSGD | None = None,
        *,
        frame: Frame | None = None,
    ) -> None:
        if images.dtype not in (torch.float32, torch.float64):
            raise InputError(f"images are {images.dtype}: need to be float32 or float64")
        self.module, self.classes, self.sgd = module, classes, sgd or LocalSGD()
        self.images, self.labels = images, labels.to(images.device)
        self.frame, self.shape = frame or Frame(), images.shape[1:]
        self.black = images.new_tensor(self.frame.black)
        self.size = size(module)
        self.eye = torch.eye(classes, dtype=images.dtype, device=images.device)
        self._prepare()

    def _prepare(self) -> None:
        """What an executor makes of the module and the images."""

    def run(
        self,
        reference: Tensor,
        batches: Tensor,
        *,
        lr: Tensor | None = None,
        teachers: Teachers | None = None,
        collect: bool = False,
        views: Tensor | None = None,
    ) -> Trained:
        """Train M sessions: `reference` is (M, P), `batches` (M, steps, batch) indices of samples.

        -1 stands for no sample: a step's loss is the mean over those that are there, at least one.  `lr` (M,)
        replaces the configured one; `collect` asks for the logits by label.  `views` (M, steps, batch) says how each
        image is seen in the frame that the executor was given; None is as it is."""
        with steady(self.precision, self.images):
            there, scale = batches >= 0, None
            if not bool(there.all()):
                scale = (there.to(self.images.dtype) / there.sum(2, keepdim=True)).to(self.images.device)
            work = Work(
                reference.to(self.images),
                self._upload(batches),
                scale,
                None if lr is None else lr.to(self.images),
                None if teachers is None else teachers.table(self.classes, self.images),
                None if views is None else self._upload(views),
            )
            out = Trained(torch.empty_like(work.reference), *self._blank(len(reference), collect))
            self._train(work, out)
            return out

    def _train(self, work: Work, out: Trained) -> None:
        """Train all sessions into `out`."""
        raise NotImplementedError

    def samples(self, index: Tensor, views: Tensor | None) -> Tensor:
        """(sessions, batch, *sample) of images that are kept as they came, for (sessions, batch) indices and views."""
        if views is None:
            return self.images.index_select(0, index.reshape(-1)).view(*index.shape, *self.shape)
        images = self.images.permute(0, 2, 3, 1)
        seen = self.frame.cut(images, index.reshape(-1), views.reshape(-1), self.black)
        return seen.permute(0, 3, 1, 2).contiguous().view(*index.shape, *self.shape)

    def _upload(self, values: Tensor) -> Tensor:
        """On the device without waiting for it: a copy out of ordinary memory would wait until the device has done
        everything that it was asked for before."""
        if self.images.is_cuda and not values.is_cuda:
            values = values.pin_memory()
        return values.to(self.images.device, non_blocking=True)

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
        """Sums and counts of the logits by label, if they are collected."""
        if not collect:
            return None, None
        new, classes = self.images.new_zeros, self.classes
        return new(sessions, classes, classes), new(sessions, classes)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread until it ends: convolution gradients differ in bits between one and two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def steady(precision: Precision, images: Tensor) -> Iterator[None]:
    """One thread, fixed algorithms and, if the images are on a GPU, that GPU as the current one, until it ends: kernels
    are launched and events recorded there."""
    products = torch.backends.cuda.matmul.allow_tf32
    reduced = precision != "fp32"
    torch.backends.cuda.matmul.allow_tf32 = reduced
    try:
        with (
            one_thread(),
            torch.cuda.device_of(images),
            torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=reduced),
        ):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = products
