"""Averages that a server could serve (ours; the paper serves whichever model came in last): the mean of all live
chains, or of the last few models that were published.  Neither costs energy, nor is anything trained from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from pipecycle.errors import InputError
from pipecycle.schedule.schedule import Schedule
from pipecycle.world.lineage import Kind
from pipecycle.world.streams import Ints


def served(instance: object, attribute: Any, value: Any) -> None:
    """Validates a way of serving: none, chains or mean:K."""
    if value is not None and value != "chains" and not _last(value):
        needs = "needs chains, or mean:K with K the models to average, such as mean:5"
        raise InputError(f"{attribute.name} = {value}: {needs}")


def _last(way: Any) -> int:
    """K of `mean:K`, 0 for anything else."""
    word, _, count = str(way).partition(":")
    return int(count) if word == "mean" and count.isascii() and count.isdigit() else 0


def serve(schedule: Schedule, way: str, slots: Sequence[int]) -> tuple[Schedule, list[int]]:
    """The schedule with the versions that are served that way once each of `slots` slots has elapsed, and their
    numbers."""
    count = _last(way)
    bases = [last_published(schedule, slot, count) if count else schedule.ancestry.live(slot) for slot in slots]
    return means(schedule, slots, bases)


def last_published(schedule: Schedule, slot: int, count: int) -> list[int]:
    """The last `count` versions published once `slot` slots have elapsed, oldest first; fewer if there were fewer, and
    the initial model only if there was none."""
    out = schedule.publications.by(slot)
    return schedule.publications.version[max(0, out - count) : out].tolist() or [0]


def means(schedule: Schedule, slots: Sequence[int], groups: Sequence[list[int]]) -> tuple[Schedule, list[int]]:
    """The schedule with one more version for each of `slots`, the mean of a group of versions, and their numbers.

    Nothing is trained from them and nothing is transmitted for them: the server holds these models anyway, except
    those still with a hub, which it would have to wait for."""
    versions = schedule.versions
    made = [(slot, group) for slot, group in zip(slots, groups, strict=True) if len(group) > 1]
    new = iter(range(len(versions), len(versions) + len(made)))
    ids = [next(new) if len(group) > 1 else group[0] for group in groups]
    if not made:
        return schedule, ids
    sizes = np.array([len(group) for _, group in made])

    def longer(column: Ints, more: Sequence[float] | Ints) -> Ints:
        return np.concatenate([column, np.asarray(more).astype(column.dtype)])

    none = np.zeros(len(made), np.int64)
    extended = attrs.evolve(
        versions,
        kind=longer(versions.kind, none + int(Kind.MIXTURE)),
        made=longer(versions.made, [slot - 1 for slot, _ in made]),
        seen=longer(versions.seen, [schedule.publications.by(slot) for slot, _ in made]),
        discarded=longer(versions.discarded, none),
        base_at=longer(versions.base_at, versions.base_at[-1] + np.cumsum(sizes)),
        base=longer(versions.base, np.concatenate([group for _, group in made])),
        coefficient=longer(versions.coefficient, np.repeat(1.0 / sizes, sizes)),
        update_at=longer(versions.update_at, none + int(versions.update_at[-1])),
    )
    return attrs.evolve(schedule, versions=extended), ids
