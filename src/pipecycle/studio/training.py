"""Training what is shown, in a process of its own, so that plans stay as fast as they were."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field

from pipecycle.errors import InputError, sentence
from pipecycle.runs.config import Config
from pipecycle.runs.records import read_metrics
from pipecycle.runs.run import RunFolder, train_folders
from pipecycle.stopping import Interrupted, Stop, die_with_parent

if TYPE_CHECKING:
    from pipecycle.train.engine import Engine

BETWEEN = 0.1
"""Seconds between two messages about progress."""
GRACE = 30.0
"""Seconds that a training has to save what it has when the studio ends."""
Point = tuple[int, float, float]
"""Slots elapsed, units spent, accuracy in percent."""


@define
class TrainingProcess:
    """The last training that was asked for, as far as it has come."""

    _lock: threading.Lock = field(factory=threading.Lock)
    _process: BaseProcess | None = None
    _pipe: Any = None
    _configs: tuple[Config, ...] = ()
    _folders: tuple[Path, ...] = ()
    _state: str = "idle"
    """idle, running, stopping, finished, stopped or failed."""
    _error: str = ""
    _done: int = 0
    _total: int = 0
    _points: dict[str, list[Point]] = field(factory=dict)
    """By folder."""

    def start(self, configs: Sequence[Config], folders: Sequence[Path]) -> None:
        """Train these in their folders; refused while another training is under way."""
        with self._lock:
            if self._state in ("running", "stopping"):
                raise InputError("a training is under way: stop it first")
            self._configs, self._folders = tuple(configs), tuple(folders)
            self._state, self._error, self._done, self._total, self._points = "running", "", 0, 0, {}
            context = get_context("spawn")
            self._pipe, theirs = context.Pipe()
            jobs = [(str(folder), config) for folder, config in zip(folders, configs, strict=True)]
            self._process = context.Process(target=_train, args=(theirs, jobs), daemon=True)
            self._process.start()
            theirs.close()
            threading.Thread(target=self._listen, args=(self._pipe,), daemon=True).start()

    def stop(self) -> None:
        """Ask for an end; what has been trained is saved first, and the same command resumes it."""
        with self._lock:
            if self._state == "running":
                self._state = "stopping"
                with suppress(OSError):
                    self._pipe.send("stop")

    def close(self) -> None:
        """Stop, and wait until everything is saved."""
        self.stop()
        if self._process is not None:
            self._process.join(GRACE)
            if self._process.is_alive():
                self._process.terminate()
                self._process.join()

    def state(self) -> dict[str, Any]:
        with self._lock:
            return {
                "state": self._state,
                "error": self._error,
                "done": self._done,
                "total": self._total,
                "runs": [
                    {
                        "policy": config.policy,
                        "toml": config.text(),
                        "folder": str(folder),
                        "points": self._points.get(str(folder), []),
                    }
                    for config, folder in zip(self._configs, self._folders, strict=True)
                ],
            }

    def points(self, config: Config) -> list[Point]:
        """The accuracies of a configuration, if it was trained last."""
        with self._lock:
            for known, folder in zip(self._configs, self._folders, strict=True):
                if known.text() == config.text():
                    return list(self._points.get(str(folder), []))
        return []

    def _listen(self, pipe: Connection) -> None:
        ended = "failed"
        try:
            while True:
                kind, value = pipe.recv()
                with self._lock:
                    if kind == "progress":
                        self._done, self._total, points = value
                        self._points |= points
                    elif kind == "failed":
                        self._error = value
                    else:
                        ended = kind
                        self._points |= value
        except (EOFError, OSError):
            pass
        with self._lock:
            if ended == "failed" and not self._error:
                self._error = "the process that trained has died"
            self._state = ended


def _train(pipe: Connection, jobs: list[tuple[str, Config]]) -> None:
    """Inside the process: Ctrl-C is for the studio, which asks for a stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    stop = Stop()

    def listen() -> None:
        with suppress(EOFError, OSError):
            pipe.recv()
            stop.asked = int(signal.SIGINT)

    threading.Thread(target=listen, daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = "1"
    last = 0.0

    def show(engine: Engine) -> None:
        nonlocal last
        if time.monotonic() - last < BETWEEN:
            return
        last = time.monotonic()
        points = {
            path: [(row.slot, row.energy, row.accuracy) for row in job.history.rows]
            for job in engine.jobs
            for path in [path for path, _ in jobs if Path(path).name == job.name]
        }
        pipe.send(("progress", (engine.steps_done, engine.steps_total, points)))

    try:
        import torch

        torch.set_num_threads(1)  # gradients differ in bits between one thread and two
        train_folders([RunFolder(Path(path), config) for path, config in jobs], show=show, stop=stop)
        pipe.send(("finished", _on_disk(jobs)))
    except Interrupted:
        pipe.send(("stopped", _on_disk(jobs)))
    except (Exception, SystemExit) as error:
        pipe.send(("failed", sentence(error)))


def _on_disk(jobs: list[tuple[str, Config]]) -> dict[str, list[Point]]:
    points = {}
    for path, _ in jobs:
        with suppress(InputError):
            shown = read_metrics(Path(path) / "metrics.csv")
            if shown is not None:
                columns = (shown.slot.astype(int), shown.energy, shown.accuracy)
                points[path] = list(zip(*(column.tolist() for column in columns), strict=True))
    return points
