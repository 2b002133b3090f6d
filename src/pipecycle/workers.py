"""Runs on whatever there is: one process per GPU or core, or the workers of a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty
from typing import Any

from attrs import asdict, define, field, frozen

from pipecycle.config import sections
from pipecycle.errors import InputError
from pipecycle.runs import Interrupted, Pace, RunFolder, train_folders

Shard = list[tuple[str, str]]
"""Folders and the text of their configurations: what a process needs to be told."""
Watch = Callable[["Tally"], None]


@define
class Tally:
    """How far all workers are."""

    done: dict[int, int] = field(factory=dict)
    total: dict[int, int] = field(factory=dict)
    failed: dict[str, str] = field(factory=dict)
    """Folder and sentence of every run that failed."""
    ended: dict[int, str] = field(factory=dict)
    """How each worker ended: finished, interrupted, or a reason."""
    paces: list[Pace] = field(factory=list)
    """How fast each of them was, once it has finished."""

    def hear(self, kind: str, worker: int, value: Any) -> None:
        if kind == "steps":
            self.done[worker], self.total[worker] = value
        elif kind == "failed":
            self.failed[value[0]] = value[1]
        elif kind == "pace":
            self.paces.append(Pace(**value))
        else:
            self.ended[worker] = value


def execute(
    folders: Sequence[RunFolder],
    *,
    device: str = "auto",
    workers: int | None = None,
    save_every: float = 60.0,
    watch: Watch | None = None,
    tally: Tally | None = None,
) -> dict[str, str]:
    """Bring all runs to their end: stacked in one process per GPU, or in one process per core.

    Returns the sentences of those that failed, by folder.  Ctrl-C saves everything and raises `Interrupted`."""
    shards = share(folders, device, workers)
    context = multiprocessing.get_context("spawn")
    events: Any = context.Queue()
    processes = [
        context.Process(target=work, args=(number, shard, place, save_every, events.put))
        for number, (place, shard) in enumerate(shards)
    ]
    for process in processes:
        process.start()
    tally = tally or Tally()
    asked = False
    while len(tally.ended) < len(shards):
        try:
            tally.hear(*events.get(timeout=0.2))
        except Empty:
            for number, process in enumerate(processes):
                if not process.is_alive() and events.empty():
                    tally.ended.setdefault(number, f"its process ended with code {process.exitcode}")
        except KeyboardInterrupt:
            asked = True  # the workers have heard it too, and are saving
        if watch is not None:
            watch(tally)
    for process in processes:
        process.join()
    return settle(tally, [shard for _, shard in shards], asked)


def settle(tally: Tally, shards: Sequence[Shard], asked: bool = False) -> dict[str, str]:
    """The failures; an interruption is passed on."""
    if asked or "interrupted" in tally.ended.values():
        raise Interrupted
    for number, shard in enumerate(shards):
        if tally.ended[number] != "finished":
            lost = (path for path, _ in shard if not RunFolder.is_finished(Path(path)))
            tally.failed |= {path: tally.failed.get(path, tally.ended[number]) for path in lost}
    return tally.failed


def share(folders: Sequence[RunFolder], device: str, workers: int | None) -> list[tuple[str, Shard]]:
    """Unfinished runs dealt out to devices."""
    open_runs = [(str(folder.path), folder.config.text()) for folder in folders if not folder.finished]
    places = [device]
    if device == "auto":
        import torch

        places = [f"cuda:{index}" for index in range(torch.cuda.device_count())] or ["cpu"]
    if places == ["cpu"]:
        places = ["cpu"] * max(1, min(workers or os.cpu_count() or 1, len(open_runs)))
    shards = [(place, open_runs[index :: len(places)]) for index, place in enumerate(places)]
    return [(place, shard) for place, shard in shards if shard]


def work(number: int, shard: Shard, device: str, save_every: float, tell: Callable[[Any], None]) -> None:
    """One worker: its runs stacked; should the stack break, each run by itself, so that one cannot harm another."""
    import torch

    torch.set_num_threads(1)
    last = 0.0

    def show(engine: Any) -> None:
        nonlocal last
        if time.monotonic() - last > 0.5:
            last = time.monotonic()
            tell(("steps", number, (engine.steps_done, engine.steps_total)))

    def fail(folder: RunFolder, error: Exception) -> None:
        tell(("failed", number, (str(folder.path), " ".join(str(error).split()))))

    try:
        folders = [RunFolder(Path(path), sections(tomllib.loads(text), path)) for path, text in shard]
        try:
            planners = 1 if device == "cpu" else os.cpu_count() or 1  # every core has a worker of its own on a CPU
            pace = train_folders(
                folders, device=device, save_every=save_every, show=show, failed=fail, planners=planners
            )
            tell(("pace", number, asdict(pace)))
        except RuntimeError:
            for folder in folders:
                try:
                    if not folder.finished:
                        train_folders([folder], device=device, save_every=save_every, show=show, failed=fail)
                except RuntimeError as error:
                    fail(folder, error)
        tell(("end", number, "finished"))
    except (Interrupted, KeyboardInterrupt) as stop:
        if isinstance(stop, Interrupted) and stop.pace is not None:
            tell(("pace", number, asdict(stop.pace)))
        tell(("end", number, "interrupted"))
    except InputError as error:
        tell(("end", number, str(error)))


def execute_on_ray(
    folders: Sequence[RunFolder], *, address: str | None = None, save_every: float = 60.0, watch: Watch | None = None
) -> dict[str, str]:
    """The same on a Ray cluster: one task per shard, the folders on storage that all its machines see."""
    if address is None and "RAY_ADDRESS" not in os.environ:  # a cluster of this machine listens to it alone
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise InputError("--on ray: needs the extra, pip install 'pipecycle[ray]'") from None
    ray.init(address=address, ignore_reinit_error=True, include_dashboard=False, log_to_driver=False)
    resources = ray.cluster_resources()
    gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 1))
    count = gpus or cpus
    open_runs = [(str(folder.path.resolve()), folder.config.text()) for folder in folders if not folder.finished]
    shards = [shard for shard in (open_runs[index::count] for index in range(count)) if shard]
    needs = {"num_gpus": 1} if gpus else {"num_cpus": 1}
    task = ray.remote(_ray_work).options(**needs)
    waiting = {task.remote(number, shard, save_every): number for number, shard in enumerate(shards)}
    tally = Tally()
    try:
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=0.5)
            for one in ready:
                for event in ray.get(one):
                    tally.hear(*event)
                tally.ended.setdefault(waiting.pop(one), "its task ended without a word")
            if watch is not None:
                watch(tally)
    except KeyboardInterrupt:
        for one in waiting:
            ray.cancel(one)
        raise Interrupted from None
    finally:
        ray.shutdown()
    return settle(tally, shards)


def _ray_work(number: int, shard: Shard, save_every: float) -> list[Any]:
    events: list[Any] = []
    work(number, shard, "auto", save_every, events.append)
    return [event for event in events if event[0] != "steps"] + [event for event in events if event[0] == "steps"][-1:]


@frozen
class Estimate:
    """What a sweep will take."""

    runs: int
    finished: int
    steps: int
    steps_per_second: float
    seconds: float


class _Enough(Exception):
    pass


def estimate(
    folders: Sequence[RunFolder],
    *,
    device: str = "auto",
    workers: int | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> Estimate:
    """Plan every unfinished run to count its steps, and train a shard for two seconds to see how fast they go.  `watch`
    is told how many are planned, of how many."""
    from pipecycle.runs import prepare
    from pipecycle.train.engine import Engine, train_many
    from pipecycle.train.job import Job

    shards = share(folders, device, workers)
    if not shards:
        return Estimate(len(folders), len(folders), 0, 0.0, 0.0)
    configs = {str(folder.path): folder.config for folder in folders}
    paths = [path for _, shard in shards for path, _ in shard]
    jobs: dict[str, Job] = {}
    for path in paths:
        jobs[path] = Job(*prepare(configs[path]))
        if watch is not None:
            watch(len(jobs), len(paths))
    place, first = shards[0]

    marks: list[tuple[float, int]] = []

    def enough(engine: Engine) -> None:
        """The first stack warms up; two seconds after it there is enough to go by."""
        marks.append((time.monotonic(), engine.steps_done))
        if marks[-1][0] - marks[0][0] > 2.0:
            raise _Enough

    started = time.monotonic()
    with suppress(_Enough):
        train_many([jobs[path] for path, _ in first], device=place, tick=enough)
    (begun, before), (ended, after) = marks[0] if len(marks) > 1 else (started, 0), marks[-1]
    rate = (after - before) / max(ended - begun, 1e-9)
    steps = sum(job.steps_total for job in jobs.values())
    longest = max(sum(jobs[path].steps_total for path, _ in shard) for _, shard in shards)
    return Estimate(len(folders), len(folders) - len(jobs), steps, rate * len(shards), longest / max(rate, 1e-9))
