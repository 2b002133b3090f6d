"""A run's folder on disk: who may write into it, whether its result is whole, and what may be removed from it."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import os
import socket
import time
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipecycle.errors import InputError
from pipecycle.files import LEFT, reason, tidy, using
from pipecycle.runs.config import FORMAT, SECTIONS

try:
    import fcntl
    import resource
except ImportError:  # Windows
    fcntl = resource = None  # type: ignore[assignment]

CHECKPOINT = Path("checkpoint") / "state.safetensors"
LOCK = ".lock"
FILES = ("config.toml", "schedule.npz", "metrics.csv", "model.safetensors", "result.json")
LIVE = "trace.jsonl"
"""What only a live run's folder has; those belong to `pipecycle deploy`."""


class Busy(InputError):
    """Another process is training the run."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path}: is being trained by {holder}")
        self.holder = holder


class Damaged(InputError):
    """A folder holds a result that does not belong to its metrics."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}; the command that made the run trains it again")


def result(path: Path) -> dict[str, Any] | None:
    """The closing figures of a finished run, None if it has not finished; `Damaged` if metrics.csv is not what they
    were written with."""
    try:
        figures = json.loads((path / "result.json").read_bytes())
        ended, final = str(figures["ended"]), dict(figures.get("final", {}))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise Damaged(path, "result.json is not the result of a run, or is damaged") from None
    try:
        data = (path / "metrics.csv").read_bytes()
    except OSError as error:
        raise Damaged(path, f"metrics.csv cannot be read ({reason(error)})") from None
    known = figures.get("metrics")
    if known is not None:  # older results have no digest: their last row is compared
        whole = known == _seal(data)
    else:
        last = _last_row(data)
        compared = [key for key in ("slot", "energy", "accuracy") if key in final]
        whole = bool(last) and all(_equal(last.get(key), final[key]) for key in compared)
    if not whole:
        raise Damaged(path, f"metrics.csv is not what result.json (ended: {ended}) was written with")
    assert isinstance(figures, dict)
    return figures


def finished(path: Path, text: str | None = None) -> bool:
    """Whether a run has ended and all its rows are there; given the text of a configuration, whether it is that run."""
    try:
        if result(path) is None:
            return False
    except Damaged:
        return False
    known = path / "config.toml"
    return text is None or (known.exists() and known.read_text(errors="replace") == text)


def result_text(figures: dict[str, Any], metrics: str) -> str:
    """result.json, sealed to the metrics.csv beside it."""
    return json.dumps({**figures, "metrics": _seal(metrics.encode())}, indent=1) + "\n"


def _seal(metrics: bytes) -> str:
    return f"sha256:{hashlib.sha256(metrics).hexdigest()}"


def spent(path: Path) -> float:
    """Units that a run had spent when its metrics were last written; 0 if they never were."""
    try:
        return float(_last_row((path / "metrics.csv").read_bytes())["energy"])
    except (OSError, KeyError, ValueError):
        return 0.0


def _last_row(data: bytes) -> dict[str, str]:
    last: dict[str, str] = {}
    try:
        for last in csv.DictReader(io.StringIO(data.decode())):  # noqa: B007
            pass
    except (UnicodeDecodeError, csv.Error):
        return {}
    return last


def _equal(text: str | None, value: Any) -> bool:
    try:
        return float(text or "nan") == float(value)
    except (TypeError, ValueError):
        return False


def clear(*paths: Path) -> dict[Path, list[str]]:
    """Remove the files of runs from folders, from all or from none; returns the names of the other files, which stay,
    by folder.

    A folder is a run's if pipecycle wrote its config.toml and it holds another file of a run, or if there is nothing in
    it but what a run leaves that was killed as it began."""
    locks = [Lock(path) for path in paths if path.exists()]
    try:
        for lock in locks:
            with using(lock.folder, "cleared"):
                _refuse_others(lock.folder)
                lock.take()
        kept = {lock.folder: _emptied(lock.folder) for lock in locks}
    finally:
        for lock in locks:
            lock.release()
    return {path: names for path, names in kept.items() if names}


def _refuse_others(path: Path) -> None:
    """Refuse a folder that is not a run's."""
    if _just_made(path):
        return
    others = (*FILES[1:], LOCK, "checkpoint")
    if not _wrote(path / "config.toml") or not any((path / name).exists() for name in others):
        raise InputError(f"{path}: is not the folder of a run, so nothing in it is removed")
    if (path / LIVE).exists():
        raise InputError(f"{path}: is the folder of a live run, so nothing in it is removed")


def _emptied(path: Path) -> list[str]:
    with using(path, "cleared"):
        tidy(path)
        tidy(path / "checkpoint")
        for name in (str(CHECKPOINT), *reversed(FILES)):  # what says that the folder is ours is last
            (path / name).unlink(missing_ok=True)
        kept = [file.name for file in path.iterdir() if file.name not in (LOCK, "checkpoint")]
        return sorted([*kept, *(f"checkpoint/{file.name}" for file in path.glob("checkpoint/*"))])


def _just_made(path: Path) -> bool:
    """Whether a folder holds nothing, or only what a run leaves there before its config.toml."""
    ours = all(file.name in (LOCK, "checkpoint") or LEFT.fullmatch(file.name) for file in path.iterdir())
    return ours and not any(path.glob("checkpoint/*"))


def _wrote(path: Path) -> bool:
    """Whether a file is the configuration of a run: of our format, with all sections."""
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return values.get("format") == FORMAT and all(isinstance(values.get(key), dict) for key in ("policy", *SECTIONS))


class Lock:
    """The right to write into a run's folder.  The system releases it when the process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self.folder, self.path = path, path / LOCK
        self._file: int | None = None

    def take(self) -> None:
        """Take the lock, or raise `Busy`; a lock that we hold already is kept."""
        if fcntl is None:
            _no_locks()
            return
        while self._file is None:
            file = self._open()
            try:
                _lock(file)
            except BlockingIOError:
                holder = _holder(file)
                os.close(file)
                raise Busy(self.folder, holder) from None
            if not self._names(file):  # the last holder has removed the file meanwhile
                os.close(file)
                continue
            self._file = file
            with suppress(OSError):  # a full disk: the lock holds all the same
                os.ftruncate(file, 0)
                os.pwrite(file, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)

    def check(self) -> None:
        """Refuse to write into a folder that was removed; another process may have made it again."""
        if fcntl is not None and (self._file is None or not self._names(self._file)):
            raise InputError(f"{self.folder}: was removed while it was being trained")

    def release(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # a folder that cannot be written any more keeps the file, which locks nothing
                if self._names(self._file):
                    self.path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None

    def _names(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), self.path.stat())
        except FileNotFoundError:
            return False

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT
        with using(self.folder, "written"):
            try:
                return os.open(self.path, flags, 0o666)
            except OSError as error:
                if error.errno != errno.EMFILE or resource is None:
                    raise
                _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # a file is open for every run of a sweep
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
                return os.open(self.path, flags, 0o666)


def unlocked(path: Path) -> None:
    """Remove the lock of a process that was killed while it had the folder."""
    lock = Lock(path)
    if lock.path.exists():
        with suppress(Busy):
            lock.take()
        lock.release()


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Inside, this process alone has a folder; it waits for another that does."""
    lock = Lock(path)
    while True:
        with suppress(Busy):
            lock.take()
            break
        time.sleep(0.05)
    try:
        yield
    finally:
        lock.release()


def _lock(file: int) -> None:
    """`BlockingIOError` if another process holds it; on a file system without locks, a warning."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        _no_locks()


def _no_locks() -> None:
    warnings.warn("runs cannot be locked here: use each folder from one command at a time", stacklevel=2)


def _holder(file: int) -> str:
    number, _, host = os.pread(file, 300, 0).decode(errors="replace").strip().partition(" ")
    if not number.isdecimal():
        return "another process"
    return f"process {number}" if host == socket.gethostname() else f"process {number} on {host}"
