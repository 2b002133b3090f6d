"""Recipes on real weights: z_tau, e_tau, a chain's model, or any affine combination of versions and updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipecycle.schedule.schedule import Schedule
from pipecycle.train.engine import train_many
from pipecycle.train.job import Job, Watch
from pipecycle.train.problems import Problem
from pipecycle.world.lineage import Recipe
from pipecycle.world.streams import Ints

Terms = dict[int, list[tuple[int, float]]]


def evaluate(schedule: Schedule, problem: Problem, recipes: Sequence[Recipe], **options: Any) -> Tensor:
    """The value of every recipe, (recipes, parameters), after training what they need; options as for `train_many`.

    Each term is added as soon as it exists: memory grows with the number of recipes, not with their length."""
    sums = Sums(recipes)
    watch = Watch(every=schedule.slots)
    train_many([Job(schedule, problem, watch, probe=sums)], **options)
    return sums.values()


def version_recipe(version: int) -> Recipe:
    """The version itself, such as a chain's tip."""
    return Recipe(np.array([version]), np.ones(1), np.empty(0, np.int64), np.empty(0))


class Sums:
    """Running sums of recipes; a probe for a job."""

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        self._of_version = _terms((recipe.versions, recipe.coefficients) for recipe in recipes)
        self._of_session = _terms((recipe.sessions, recipe.weights) for recipe in recipes)
        self.versions = np.array(sorted(self._of_version), np.int64)
        self.sessions = np.array(sorted(self._of_session), np.int64)
        self._sums: list[Tensor | None] = [None] * len(recipes)

    def session(self, session: int, update: Tensor) -> None:
        self._add(self._of_session.get(session, []), update)

    def version(self, version: int, row: Tensor) -> None:
        self._add(self._of_version.get(version, []), row)

    def _add(self, terms: list[tuple[int, float]], row: Tensor) -> None:
        for index, factor in terms:
            total = self._sums[index]
            if total is None:
                total = self._sums[index] = torch.zeros_like(row)
            total.add_(row, alpha=factor)

    def values(self) -> Tensor:
        (some, *_) = (total for total in self._sums if total is not None)
        return torch.stack([torch.zeros_like(some) if total is None else total for total in self._sums])


def _terms(parts: Any) -> Terms:
    terms: Terms = {}
    keys: Ints
    for index, (keys, factors) in enumerate(parts):
        for key, factor in zip(keys.tolist(), factors.tolist(), strict=True):
            terms.setdefault(key, []).append((index, factor))
    return terms
