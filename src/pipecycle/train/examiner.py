"""Models on the test samples."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pipecycle.models import split
from pipecycle.train.history import Score
from pipecycle.train.sessions import Precision, steady


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
    if not finite:  # a model that is no model predicts class 0
        correct = [totals[0]] + [0.0] * (len(totals) - 1)
        loss = float("nan")
    by_class = tuple(
        100.0 * right / total if total else float("nan") for right, total in zip(correct, totals, strict=True)
    )
    return Score(100.0 * sum(correct) / sum(totals), loss, by_class, finite)


class Examiner:
    """Evaluates flat parameter vectors of one model on one set of test samples.

    On a GPU, runs that train with less than fp32 products are looked at with tf32 products."""

    def __init__(
        self, module: nn.Module, images: Tensor, labels: Tensor, classes: int, precision: Precision = "fp32"
    ) -> None:
        self.module = module
        self.precision = precision
        self.names = [name for name, _ in module.named_parameters()]
        self.images, self.labels, self.classes = images, labels, classes
        if images.ndim == 4 and images.device.type == "cpu":
            self.images = images.contiguous(memory_format=torch.channels_last)
        self.blank = torch.zeros(classes, dtype=torch.float64, device=images.device)
        self.totals: list[float] = torch.bincount(labels, minlength=classes).to(torch.float64).tolist()

    def examine(self, rows: Tensor) -> Pending:
        """Scores of (models, P) vectors, one after the other; nothing waits for the device here."""
        with torch.no_grad(), steady(self.precision):
            return Pending(torch.stack([self._one(row) for row in rows]), self.totals)

    def _one(self, row: Tensor) -> Tensor:
        weights = dict(zip(self.names, split(self.module, row), strict=True))
        logits = functional_call(self.module, weights, (self.images,))
        right = (logits.argmax(1) == self.labels).to(torch.float64)
        correct = self.blank.index_add(0, self.labels, right)
        loss = torch.nn.functional.cross_entropy(logits.to(torch.float64), self.labels)
        finite = torch.isfinite(row).all() & torch.isfinite(loss)
        return torch.cat([correct, loss[None], finite[None]])
