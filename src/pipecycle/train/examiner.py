"""Evaluation of models on the test samples."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pipecycle.train.history import Score
from pipecycle.train.models import split, takes_channels_last
from pipecycle.train.paths import choose
from pipecycle.train.sessions import Precision, steady
from pipecycle.train.stack import StackedLogits
from pipecycle.train.stacked import Stacked


class Pending:
    """Scores that the device may still be working on; reading them waits for these and for nothing after them."""

    def __init__(self, figures: Tensor, totals: list[float]) -> None:
        """`figures` is (models, classes + 2): right answers by class, mean loss, and whether all weights are finite."""
        self._totals = totals
        self._event: torch.cuda.Event | None = None
        self._figures = figures
        if figures.is_cuda:
            self._figures = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=True)
            self._figures.copy_(figures, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> list[Score]:
        if self._event is not None:
            self._event.synchronize()
        return [_score(row[:-2], row[-2], row[-1] > 0, self._totals) for row in self._figures.tolist()]


def _score(correct: list[float], loss: float, finite: bool, totals: list[float]) -> Score:
    if not finite:  # a model without finite numbers predicts class 0
        correct = [totals[0]] + [0.0] * (len(totals) - 1)
        loss = float("nan")
    by_class = tuple(
        100.0 * right / total if total else float("nan") for right, total in zip(correct, totals, strict=True)
    )
    return Score(100.0 * sum(correct) / sum(totals), loss, by_class, finite)


class Examiner:
    """Evaluates flat parameter vectors of one model on one set of test samples.

    On a GPU, runs that train with less than fp32 products are looked at with tf32 products; models that our own kernels
    can train are looked at by them, many at once."""

    def __init__(
        self, module: nn.Module, images: Tensor, labels: Tensor, classes: int, precision: Precision = "fp32"
    ) -> None:
        self.module = module
        self.precision: Precision = "fp32" if precision == "fp32" else "tf32"
        self.names = [name for name, _ in module.named_parameters()]
        self.images, self.labels, self.classes = images, labels, classes
        self.together = False
        if images.is_cuda:
            self.together = choose(module, images).path in ("conv", "layers")
            if self.together:
                trainer = Stacked(module, images, labels, classes, precision=self.precision)
                self.logits = StackedLogits(trainer.conv if trainer.path == "conv" else trainer.layers)
        elif takes_channels_last(module, images):
            self.images = images.contiguous(memory_format=torch.channels_last)
        self.blank = torch.zeros(classes, dtype=torch.float64, device=images.device)
        self.totals: list[float] = torch.bincount(labels, minlength=classes).to(torch.float64).tolist()

    def examine(self, rows: Tensor) -> Pending:
        """Scores of (models, P) vectors; nothing waits for the device here."""
        with torch.no_grad(), steady(self.precision, self.images):
            figures = self._many(rows) if self.together else torch.stack([self._one(row) for row in rows])
            return Pending(figures, self.totals)

    def _one(self, row: Tensor) -> Tensor:
        weights = dict(zip(self.names, split(self.module, row), strict=True))
        logits = functional_call(self.module, weights, (self.images,))
        right = (logits.argmax(1) == self.labels).to(torch.float64)
        correct = self.blank.index_add(0, self.labels, right)
        loss = torch.nn.functional.cross_entropy(logits.to(torch.float64), self.labels)
        finite = torch.isfinite(row).all() & torch.isfinite(loss)
        return torch.cat([correct, loss[None], finite[None]])

    def _many(self, rows: Tensor) -> Tensor:
        logits = self.logits(rows)
        right = (logits.argmax(2) == self.labels).to(torch.float64)
        correct = self.blank.repeat(len(rows), 1).index_add_(1, self.labels, right)
        losses = logits.to(torch.float64).log_softmax(2)
        losses = losses.gather(2, self.labels.expand(len(rows), -1)[..., None])[..., 0]
        loss = -halved(losses) / len(self.labels)
        finite = torch.isfinite(rows).all(1) & torch.isfinite(loss)
        return torch.cat([correct, loss[:, None], finite[:, None]], 1)


def halved(rows: Tensor) -> Tensor:
    """The sum of each row, added up in an order that does not depend on how many rows there are."""
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = torch.cat([rows[:, :half] + rows[:, half : 2 * half], rows[:, 2 * half :]], 1)
    return rows[:, 0]
