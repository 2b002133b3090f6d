"""Runs on all available devices: one process per GPU or core."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import runpy
import signal
import threading
import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from multiprocessing import connection
from pathlib import Path
from types import FrameType
from typing import Any

from attrs import asdict, define, field

from pipecycle.errors import InputError, sentence
from pipecycle.runs.config import sections
from pipecycle.runs.folders import Busy, finished, spent
from pipecycle.runs.planning import expected_units
from pipecycle.runs.run import Pace, RunFolder, train_folders
from pipecycle.stopping import Interrupted, Stop, die_with_parent, listening, unheard

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
        self.training = False
        """Whether it has begun, so that it may have something to save."""
        context = multiprocessing.get_context("spawn")
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(number, place, save_every, theirs))
        with unheard():
            self.process.start()
        theirs.close()
        self.giving = threading.Thread(target=self._give, daemon=True)
        self.giving.start()

    def _give(self) -> None:
        """It takes its runs once it is up; thousands of them are more than a pipe holds, and it may die before."""
        with suppress(OSError):
            self.line.send(self.shard)

    def heard(self, tally: Tally) -> bool:
        """Reads its messages; false once it has ended."""
        alive = self.process.is_alive()  # asked before reading, so that its last messages are read
        try:
            while self.line.poll():
                tally.hear(*self.line.recv())
        except (EOFError, OSError):
            alive = False
        self.training = self.number in tally.total
        if not alive:
            self.process.join()
            self.giving.join()  # nobody reads any more, so it ends; it writes to the line until then
            self.line.close()
            code = self.process.exitcode or 0
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            tally.ended.setdefault(self.number, f"its process {how}")
        return alive

    def ask(self, number: int) -> None:
        """To save and to end.  One that is still starting has nothing to save, and hears nothing while it imports."""
        if not self.training:
            self.process.kill()
            return
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

    Returns a sentence for every run without a result, by folder.  Should a worker die, each of its runs gets another
    process for itself.  Ctrl-C and SIGTERM save everything and raise `Interrupted`; a second one does not wait."""
    tally = Tally() if tally is None else tally
    heard: list[int] = []
    crew: list[Worker] = []
    numbers = count()
    deadline = float("inf")

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)

    with listening(hear):
        try:
            places = share(folders, device, workers)  # may take long, and somebody may change their mind
            crew.extend(Worker(next(numbers), place, shard, save_every) for place, shard in places if not heard)
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
    lacking = [str(folder.path) for folder in folders if not folder.finished]
    return dict.fromkeys(lacking, "its result was removed or changed meanwhile") | tally.failed


def _later(worker: Worker, tally: Tally) -> list[Shard]:
    """The runs to retry after a worker has ended.  Each gets a process of its own, so that a run that kills its process
    does not stop others."""
    lost = [run for run in worker.shard if run[0] not in tally.failed and not finished(Path(run[0]), run[1])]
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


def share(folders: Sequence[RunFolder], device: str, workers: int | None) -> list[tuple[str, Shard]]:
    """Unfinished runs dealt out to devices."""
    places = [device]
    if device == "auto":
        places = [f"cuda:{index}" for index in range(_gpus())] or ["cpu"]
    elif device != "cpu":
        from pipecycle.train.engine import pick_device

        pick_device(device)  # or it is refused before anything begins
    if places == ["cpu"]:
        unfinished = sum(not folder.finished for folder in folders)
        places = ["cpu"] * max(1, min(workers or os.cpu_count() or 1, unfinished))
    return [(place, shard) for place, shard in zip(places, dealt(folders, len(places)), strict=True) if shard]


def _gpus() -> int:
    """How many there are.  Torch says so, but a torch that was built without them is not imported for that: it takes
    seconds, and meanwhile nobody hears Ctrl-C."""
    about = Path(str(importlib.util.find_spec("torch").origin)).with_name("version.py")  # type: ignore[union-attr]
    built = runpy.run_path(str(about))
    if built.get("cuda") is None and built.get("hip") is None:
        return 0
    import torch

    return torch.cuda.device_count()


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


def _serve(number: int, device: str, save_every: float, line: Any) -> None:
    """A worker's process: it ends when it is asked to stop, or when its parent is gone."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop = Stop()

    def tell(message: Any) -> None:
        try:
            line.send(message)
        except OSError:  # the parent is gone
            os._exit(1)

    def obey() -> None:
        try:
            stop.asked = line.recv()
        except (EOFError, OSError):
            return
        if not stop.training:  # nothing to save
            os._exit(0)

    try:
        shard = line.recv()
    except EOFError:
        return
    threading.Thread(target=obey, daemon=True).start()
    work(number, shard, device, save_every, tell, stop)


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
