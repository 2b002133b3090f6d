"""Runs on all available devices: one process per GPU or core, or the workers of a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from multiprocessing import connection, resource_tracker
from pathlib import Path
from types import FrameType
from typing import Any

from attrs import asdict, define, field

from pipecycle.errors import InputError, sentence
from pipecycle.runs.config import sections
from pipecycle.runs.folders import Busy, spent
from pipecycle.runs.planning import expected_units
from pipecycle.runs.run import Pace, RunFolder, train_folders
from pipecycle.stopping import Interrupted, Stop, die_with_parent, listening

Shard = list[tuple[str, str]]
"""Folders and the text of their configurations, which a worker is sent."""
Progress = Callable[["Tally"], None]
GRACE = 30.0
"""Seconds that workers have to save when they are asked to stop."""
PATIENCE = 1.0
"""Seconds between two checks of a run that another process is training."""


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
    """How fast each of them was, once it has ended."""
    notes: list[str] = field(factory=list)
    """Sentences for the user, in the order of events."""

    def hear(self, kind: str, worker: int, value: Any) -> None:
        if kind == "steps":
            self.done[worker], self.total[worker] = value
        elif kind == "failed":
            self.failed[value[0]] = value[1]
        elif kind == "pace":
            self.paces.append(Pace(**value))
        elif kind == "note":
            self.notes += [value] if value not in self.notes else []
        else:
            self.ended[worker] = value


class Worker:
    """A process with runs to train and a pipe to it, through which it is asked to stop and reports its progress."""

    def __init__(
        self, number: int, place: str, shard: Shard, save_every: float, later: Sequence[Shard] | None = None
    ) -> None:
        self.number, self.place, self.shard = number, place, shard
        self.later = later
        """None for the first attempt; in a retry, the runs to retry after this one, a process each."""
        context = multiprocessing.get_context("spawn")
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(number, shard, place, save_every, theirs))
        with _unheard():
            self.process.start()
        theirs.close()

    def heard(self, tally: Tally) -> bool:
        """Reads its messages; false once it has ended."""
        alive = self.process.is_alive()  # asked before reading, so that its last messages are read
        try:
            while self.line.poll():
                tally.hear(*self.line.recv())
        except (EOFError, OSError):
            alive = False
        if not alive:
            self.process.join()
            self.line.close()
            code = self.process.exitcode or 0
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            tally.ended.setdefault(self.number, f"its process {how}")
        return alive

    def ask(self, number: int) -> None:
        with suppress(OSError):
            self.line.send(number)


def execute(
    folders: Sequence[RunFolder],
    *,
    device: str = "auto",
    workers: int | None = None,
    save_every: float = 60.0,
    watch: Progress | None = None,
    tally: Tally | None = None,
) -> dict[str, str]:
    """Bring all runs to their end: stacked in one process per GPU, or in one process per core.

    Returns the sentences of those that failed, by folder.  Should a worker die, each of its runs gets another process
    for itself.  Ctrl-C and SIGTERM save everything and raise `Interrupted`; a second one does not wait for it."""
    tally = Tally() if tally is None else tally
    heard: list[int] = []
    crew: list[Worker] = []
    numbers = count()
    deadline = float("inf")

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)

    with listening(hear):
        try:
            for place, shard in share(folders, device, workers):
                crew.append(Worker(next(numbers), place, shard, save_every))
            while crew:
                connection.wait([worker.line for worker in crew], 0.2)
                for worker in [worker for worker in crew if not worker.heard(tally)]:
                    crew.remove(worker)
                    later = [] if heard else _later(worker, tally)
                    if later:
                        crew.append(Worker(next(numbers), worker.place, later[0], save_every, later[1:]))
                if heard and deadline == float("inf"):
                    deadline = time.monotonic() + GRACE
                    for worker in crew:
                        worker.ask(heard[0])
                if len(heard) > 1 or time.monotonic() > deadline:
                    for worker in crew:
                        worker.process.kill()
                if watch is not None:
                    watch(tally)
        finally:
            for worker in crew:
                worker.process.kill()
                worker.process.join()
    if heard:
        raise Interrupted(heard[0])
    return tally.failed


def _later(worker: Worker, tally: Tally) -> list[Shard]:
    """The runs to retry after a worker has ended.  Each gets a process of its own, so that a run that kills its process
    does not stop others."""
    lost = [run for run in worker.shard if run[0] not in tally.failed and not _folder(*run).finished]
    how = tally.ended[worker.number]
    if lost:
        tally.done.pop(worker.number, None)
        tally.total.pop(worker.number, None)
    if worker.later is not None:
        tally.failed |= {path: how for path, _ in lost}
        return list(worker.later)
    if lost:
        tally.notes.append(f"A worker stopped early ({how}); its {len(lost)} runs are retried one by one.")
    return [[run] for run in lost]


@contextmanager
def _unheard() -> Iterator[None]:
    """Processes started inside never receive Ctrl-C or SIGTERM; this process passes them on."""
    resource_tracker.ensure_running()  # which would let them through again
    if not hasattr(signal, "pthread_sigmask"):  # Windows: there it does so itself
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def share(folders: Sequence[RunFolder], device: str, workers: int | None) -> list[tuple[str, Shard]]:
    """Unfinished runs dealt out to devices."""
    places = [device]
    if device == "auto":
        import torch

        places = [f"cuda:{index}" for index in range(torch.cuda.device_count())] or ["cpu"]
    elif device != "cpu":
        from pipecycle.train.engine import pick_device

        pick_device(device)  # or it is refused before anything begins
    if places == ["cpu"]:
        unfinished = sum(not folder.finished for folder in folders)
        places = ["cpu"] * max(1, min(workers or os.cpu_count() or 1, unfinished))
    return [(place, shard) for place, shard in zip(places, dealt(folders, len(places)), strict=True) if shard]


def dealt(folders: Sequence[RunFolder], count: int) -> list[Shard]:
    """Unfinished runs in `count` shards that have about as much left to do: the longest run first, each to the shard
    that has least."""
    shards: list[Shard] = [[] for _ in range(count)]
    loads = [0.0] * count
    left = [(units_left(folder), folder) for folder in folders if not folder.finished]
    for units, folder in sorted(left, key=lambda entry: -entry[0]):
        least = loads.index(min(loads))
        shards[least].append((str(folder.path), folder.config.text()))
        loads[least] += units
    return shards


def units_left(folder: RunFolder) -> float:
    """What a run will spend, less what it has spent by its last checkpoint: nearly all of it goes into training steps,
    and no plan is needed to know it."""
    try:
        return max(0.0, expected_units(folder.config) - spent(folder.path))
    except InputError:  # said when the run begins
        return 0.0


def _folder(path: str, text: str) -> RunFolder:
    """The folder of a run; refused if its code or data has changed since the run was asked for."""
    folder = RunFolder(Path(path), sections(tomllib.loads(text), path))
    if folder.config.text() != text:
        raise InputError("code or data has changed since the command was given; run it again")
    return folder


def _serve(number: int, shard: Shard, device: str, save_every: float, line: Any) -> None:
    """A worker's process: it ends when it is asked to stop, or when its parent is gone."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop = Stop()

    def obey() -> None:
        try:
            stop.asked = line.recv()
        except (EOFError, OSError):
            return
        if not stop.training:  # nothing to save
            os._exit(0)

    threading.Thread(target=obey, daemon=True).start()
    work(number, shard, device, save_every, line.send, stop)


def work(
    number: int, shard: Shard, device: str, save_every: float, tell: Callable[[Any], None], stop: Stop | None = None
) -> None:
    """One worker trains its runs stacked, and if that fails each by itself.  It waits for runs that another process
    is training, and takes them over if that process does not finish them."""
    last = 0.0
    over: set[str] = set()  # failed
    busy: dict[str, RunFolder] = {}
    paces: list[Pace] = []

    def show(engine: Any) -> None:
        nonlocal last
        if time.monotonic() - last > 0.5:
            last = time.monotonic()
            tell(("steps", number, (engine.steps_done, engine.steps_total)))

    def fail(folder: RunFolder, error: BaseException) -> None:
        path = str(folder.path)
        if isinstance(error, Busy):
            busy[path] = folder
            tell(("note", number, f"Waiting for runs that {error.holder} is training."))
            return
        over.add(path)
        tell(("failed", number, (path, sentence(error))))

    def begun(folders: Sequence[RunFolder]) -> None:
        slots = [folder.resumed for folder in folders if folder.resumed is not None]
        if slots:
            tell(("note", number, f"Worker {number + 1}: {_resumed(slots)}"))

    def attempt(folders: list[RunFolder], planners: int = 1) -> None:
        try:
            paces.append(
                train_folders(
                    folders,
                    device=device,
                    save_every=save_every,
                    show=show,
                    failed=fail,
                    planners=planners,
                    stop=stop,
                    begun=begun,
                )
            )
        except Interrupted as stopped:
            paces.extend([stopped.pace] if stopped.pace is not None else [])
            raise
        except (Exception, SystemExit) as error:
            if len(folders) == 1:
                fail(folders[0], error)
                return
            for folder in folders:
                if str(folder.path) not in over and str(folder.path) not in busy and not folder.finished:
                    attempt([folder])

    try:
        folders = [_folder(path, text) for path, text in shard]
        attempt(folders, 1 if device == "cpu" else os.cpu_count() or 1)  # on a CPU every core has a worker of its own
        while busy:
            time.sleep(PATIENCE)
            folders = list(busy.values())
            busy.clear()
            attempt(folders)
        how = "finished"
    except (Interrupted, KeyboardInterrupt):
        how = "interrupted"
    except (Exception, SystemExit) as error:
        how = sentence(error)
    if paces:
        tell(("pace", number, asdict(_together(paces))))
    tell(("end", number, how))


def _resumed(slots: Sequence[int]) -> str:
    if len(slots) == 1:
        return f"1 run resumes from slot {slots[0]:,}."
    where = f"slot {slots[0]:,}" if len(set(slots)) == 1 else f"slots {min(slots):,} to {max(slots):,}"
    return f"{len(slots)} runs resume from {where}."


def _together(paces: Sequence[Pace]) -> Pace:
    seconds = sum(pace.seconds for pace in paces)
    return Pace(paces[0].device, sum(pace.runs for pace in paces), sum(pace.steps for pace in paces), seconds)


def execute_on_ray(
    folders: Sequence[RunFolder], *, address: str | None = None, save_every: float = 60.0, watch: Progress | None = None
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
    shards = [[(str(Path(path).resolve()), text) for path, text in shard] for shard in dealt(folders, gpus or cpus)]
    shards = [shard for shard in shards if shard]
    needs = {"num_gpus": 1} if gpus else {"num_cpus": 1}
    train = ray.remote(_ray_work).options(**needs)
    waiting = {train.remote(number, shard, save_every): number for number, shard in enumerate(shards)}
    tally = Tally()
    heard: list[int] = []
    try:
        with listening(lambda number, frame: heard.append(number)):
            while waiting and not heard:
                ready, _ = ray.wait(list(waiting), num_returns=1, timeout=0.5)
                for task in ready:
                    worker = waiting.pop(task)
                    try:
                        for event in ray.get(task):
                            tally.hear(*event)
                    except ray.exceptions.RayError as error:
                        tally.ended[worker] = sentence(error)
                if watch is not None:
                    watch(tally)
            for task in waiting:
                ray.cancel(task)
            if waiting:
                ray.wait(list(waiting), num_returns=len(waiting), timeout=GRACE)  # they are saving
    finally:
        ray.shutdown()
    if heard:
        raise Interrupted(heard[0])
    for number, shard in enumerate(shards):
        lost = (path for path, text in shard if path not in tally.failed and not _folder(path, text).finished)
        tally.failed |= {path: tally.ended.get(number, "its Ray task ended without a result") for path in lost}
    return tally.failed


def _ray_work(number: int, shard: Shard, save_every: float) -> list[Any]:
    events: list[Any] = []
    work(number, shard, "auto", save_every, events.append)
    return [event for event in events if event[0] != "steps"] + [event for event in events if event[0] == "steps"][-1:]
