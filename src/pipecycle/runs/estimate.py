"""How many steps a sweep has and how long it will take, before anything is trained."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from pipecycle.runs.planning import plan_of
from pipecycle.runs.run import RunFolder, job_of
from pipecycle.runs.workers import share

if TYPE_CHECKING:
    from pipecycle.train.engine import Engine
    from pipecycle.train.job import Job

SAMPLE = 32
"""Runs of a shard that are trained to measure the speed; the other plans are not kept, because plans are large."""


@frozen
class Estimate:
    """What a sweep will take."""

    runs: int
    finished: int
    steps: int
    steps_per_second: float | None
    """None, as the next, where the data to measure it with are missing."""
    seconds: float | None


class _Enough(Exception):
    pass


def estimate(
    folders: Sequence[RunFolder],
    *,
    device: str = "auto",
    workers: int | None = None,
    measure: bool = True,
    tell: Callable[[int, int], None] | None = None,
) -> Estimate:
    """Plan every unfinished run to count its steps, and train some of a shard for two seconds to see how fast they go.
    Without `measure` no data are needed, and sessions that no evaluated model needs are counted too.  `tell` is given
    how many are planned, of how many."""
    shards = share(folders, device, workers)
    if not shards:
        return Estimate(len(folders), len(folders), 0, 0.0, 0.0)
    configs = {str(folder.path): folder.config for folder in folders}
    paths = [path for _, shard in shards for path, _ in shard]
    place, first = shards[0]
    picked = {path for path, _ in first[:: -(-len(first) // SAMPLE)]}
    sample: list[Job] = []
    steps: dict[str, int] = {}
    for path in paths:
        if measure:
            job = job_of(configs[path])
            steps[path] = job.steps_total
            sample += [job] if path in picked else []
        else:
            schedule = plan_of(configs[path])
            lengths = np.broadcast_to(schedule.length, (schedule.clients,))
            steps[path] = int(lengths[schedule.sessions.client].sum())
        if tell is not None:
            tell(len(steps), len(paths))
    if not measure:
        return Estimate(len(folders), len(folders) - len(paths), sum(steps.values()), None, None)
    rate = _speed(sample, place)
    longest = max(sum(steps[path] for path, _ in shard) for _, shard in shards)
    seconds = longest / rate if rate else 0.0
    return Estimate(len(folders), len(folders) - len(paths), sum(steps.values()), rate * len(shards), seconds)


def _speed(jobs: Sequence[Job], device: str) -> float:
    """Steps per second; 0 if there is nothing to train."""
    from pipecycle.train.engine import train_many

    marks: list[tuple[float, int]] = []

    def enough(engine: Engine) -> None:
        """The first stack warms up; two seconds after it there is enough to go by."""
        marks.append((time.monotonic(), engine.steps_done))
        if marks[-1][0] - marks[0][0] > 2.0:
            raise _Enough

    started = time.monotonic()
    with suppress(_Enough):
        train_many(jobs, device=device, tick=enough)
    if not marks:
        return 0.0
    (begun, before), (ended, after) = marks[0], marks[-1]
    if after == before:
        begun, before = started, 0
    return (after - before) / max(ended - begun, 1e-9)
