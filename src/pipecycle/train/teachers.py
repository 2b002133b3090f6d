"""FLDA's teachers: mean logits per label, each client's own share taken out."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor


@frozen(eq=False)
class LogitTable:
    """Label l's row is the mean of `count[l]` clients' mean logits; what each of them gave is kept beside it."""

    rows: Tensor
    """(classes, classes)."""
    count: Tensor
    """(classes,): contributors, 0 where nobody has sent the label yet."""
    own: Tensor
    """(clients, classes, classes): a client's part in the present rows."""
    gave: Tensor
    """(clients, classes), bool."""

    @staticmethod
    def empty(clients: int, classes: int, like: Tensor) -> LogitTable:
        return LogitTable(
            like.new_zeros(classes, classes),
            like.new_zeros(classes),
            like.new_zeros(clients, classes, classes),
            torch.zeros(clients, classes, dtype=torch.bool, device=like.device),
        )

    def renewed(self, clients: Tensor, sums: Tensor, counts: Tensor) -> LogitTable:
        """The next table from the logit sums and counts of some clients, one entry each, in a fixed order; labels
        that nobody sent keep their row."""
        there = counts > 0
        averages = sums / counts.clamp(min=1)[..., None]
        count = there.sum(0).to(self.count)
        new = count > 0
        rows = (averages * there[..., None]).sum(0) / count.clamp(min=1)[:, None]
        own = torch.where(new[None, :, None], torch.zeros_like(self.own), self.own)
        gave = self.gave & ~new
        own[clients] = torch.where((there & new)[..., None], averages, own[clients])
        gave[clients] |= there
        return LogitTable(torch.where(new[:, None], rows, self.rows), torch.where(new, count, self.count), own, gave)

    def without(self, clients: Tensor) -> tuple[Tensor, Tensor]:
        """What each of the clients learns from: the rows without its own share, and which rows there are."""
        gave, count = self.gave[clients], self.count
        others = (count[None, :, None] * self.rows - self.own[clients]) / (count - 1).clamp(min=1)[None, :, None]
        logits = torch.where(gave[..., None], others, self.rows)
        return logits, (count - gave.to(count)) > 0
