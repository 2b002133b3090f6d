"""Recipes on tensors: the one way in which weights are added up and logits tabulated, in training and live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from pipecycle.train.teachers import LogitTable


class Rows(Protocol):
    """Vectors of one size by key."""

    def __getitem__(self, key: int) -> Tensor: ...

    def gather(self, keys: Sequence[int]) -> Tensor:
        """A copy of some of them as a matrix, in order."""


def evaluate(
    versions: Rows,
    bases: Sequence[int],
    coefficients: Tensor,
    updates: Rows,
    sessions: Sequence[int],
    weights: Tensor,
    *,
    plain: bool,
) -> Tensor:
    """sum of coefficients times versions plus sum of weights times updates, each in the order of the recipe.

    `plain` says that there is one base and that its coefficient is 1: it is taken whole.  As few operations as can be:
    a GPU holds about a thousand that wait, then the host waits too."""
    total = versions[bases[0]] if plain else None
    if bases and total is None:
        total = _weighted(versions.gather(bases), coefficients)
    if sessions:
        part = _weighted(updates.gather(sessions), weights)
        total = part if total is None else total + part
    assert total is not None
    return total


def _weighted(rows: Tensor, factors: Tensor) -> Tensor:
    """sum of factors[k] * rows[k]; the rows are used up."""
    return rows.mul_(factors[:, None]).sum(0)


def tabulate(
    before: LogitTable | None, members: int, clients: Tensor, logits: Sequence[tuple[Tensor, Tensor]]
) -> LogitTable:
    """The next of FLDA's tables from the logit sums and counts of some of all `members`, in a fixed order."""
    sums, counts = (torch.stack(parts) for parts in zip(*logits, strict=True))
    before = before or LogitTable.empty(members, sums.shape[1], sums)
    return before.renewed(clients.to(sums.device), sums, counts)
