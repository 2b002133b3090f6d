"""Training what is shown, in a process of its own, so that plans stay as fast as they were."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path
from typing import Any

from attrs import define, field

from pipecycle.errors import InputError
from pipecycle.runs.config import Config
from pipecycle.runs.records import read_metrics
from pipecycle.runs.run import RunFolder
from pipecycle.runs.workers import Tally, Worker

EVERY = 1.0
"""Seconds between two checkpoints; the curves on the page are those of the files."""
GRACE = 30.0
"""Seconds that a training has to save what it has when the studio ends."""
Point = tuple[int, float, float]
"""Slots elapsed, units spent, accuracy in percent."""


@define
class TrainingProcess:
    """The last training that was asked for: runs in their folders, and the worker that trains them."""

    _lock: threading.Lock = field(factory=threading.Lock)
    _runs: dict[Path, Config] = field(factory=dict)
    _tally: Tally = field(factory=Tally)
    _worker: Worker | None = None
    """None once it has ended."""
    _listener: threading.Thread | None = None
    _stopping: bool = False

    def start(self, runs: Mapping[Path, Config]) -> None:
        """Train these in their folders; refused while another training is under way."""
        with self._lock:
            if self._worker is not None:
                raise InputError("a training is under way: stop it first")
            folders = [RunFolder(path, config) for path, config in runs.items()]
            shard = [(str(folder.path), folder.config.text()) for folder in folders]
            self._runs, self._tally, self._stopping = dict(runs), Tally(), False
            self._worker = Worker(0, "auto", shard, EVERY)
            self._listener = threading.Thread(target=self._listen, args=(self._worker,), daemon=True)
            self._listener.start()

    def stop(self) -> None:
        """Ask for an end; what has been trained is saved first, and the same command resumes it."""
        with self._lock:
            if self._worker is not None:
                self._stopping = True
                self._worker.ask(signal.SIGINT)

    def close(self) -> None:
        """Stop, and wait until everything is saved."""
        self.stop()
        worker = self._worker
        if worker is not None and self._listener is not None:
            self._listener.join(GRACE)
            worker.process.kill()
            self._listener.join()

    def state(self) -> dict[str, Any]:
        with self._lock:
            tally = self._tally
            word, error = self._word()
            runs = [
                {"policy": config.policy, "toml": config.text(), "folder": str(path), "points": _points(path)}
                for path, config in self._runs.items()
            ]
            steps = {"done": sum(tally.done.values()), "total": sum(tally.total.values())}
            return {"state": word, "error": error, "note": "".join(tally.notes[-1:]), **steps, "runs": runs}

    def _word(self) -> tuple[str, str]:
        """`idle`, `running`, `stopping`, `finished`, `stopped` or `failed`, and why it failed."""
        if self._worker is not None:
            return "stopping" if self._stopping else "running", ""
        for sentence in self._tally.failed.values():
            return "failed", sentence
        ended = self._tally.ended.get(0, "idle")
        if self._stopping and ended != "finished":
            return "stopped", ""
        return (ended, "") if ended in ("idle", "finished") else ("failed", ended)

    def points(self, config: Config) -> list[Point]:
        """The accuracies of a configuration, if it was trained last."""
        return next((_points(path) for path, known in self._runs.items() if known.text() == config.text()), [])

    def _listen(self, worker: Worker) -> None:
        while self._hears(worker):
            connection.wait([worker.line])

    def _hears(self, worker: Worker) -> bool:
        with self._lock:
            alive = worker.heard(self._tally)
            self._worker = worker if alive else None
            return alive


def _points(path: Path) -> list[Point]:
    """The evaluations that a run's folder holds."""
    with suppress(InputError):
        shown = read_metrics(path / "metrics.csv")
        if shown is not None:
            return list(
                zip(shown.slot.astype(int).tolist(), shown.energy.tolist(), shown.accuracy.tolist(), strict=True)
            )
    return []
