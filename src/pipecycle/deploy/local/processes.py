"""No process is left behind: all that belong to a federation are known by a mark in their environment, and a guard ends
them if whoever started them is killed.

Flower's processes start others (SuperExec, one ClientApp per message), some in sessions of their own, and a killed
parent's children have no parent that would lead to them.  But children inherit the environment."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "PIPECYCLE_FEDERATION"
"""The variable that holds the federation's folder."""
GRACE = 8.0
"""Seconds for a process to end by itself; a SuperNode unregisters in that time."""


def members(folder: Path) -> set[psutil.Process]:
    """The living processes of the federation in a folder, with those that they have started."""
    parents: dict[psutil.Process, int] = {}
    marked = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                parents[process] = process.ppid()
                if process.environ().get(MARK) == str(folder):
                    marked.add(process)
    numbers = {process.pid for process in marked}
    return marked | {process for process, parent in parents.items() if parent in numbers}  # a SuperExec hides its own


def end(folder: Path, grace: float = GRACE, hurry: Callable[[], bool] = lambda: False) -> None:
    """Ask all of them to end, wait, and kill the rest; suspended ones are resumed first."""
    until = time.monotonic() + grace
    for process in members(folder):
        _signal(process, "terminate")
        _signal(process, "resume")
    while members(folder) and time.monotonic() < until and not hurry():
        time.sleep(0.05)
    while left := members(folder):  # including those started meanwhile
        for process in left:
            _signal(process, "kill")
        psutil.wait_procs(left, timeout=0.5)


def family(pid: int) -> list[psutil.Process]:
    """A process and all that descends from it."""
    with suppress(psutil.Error):
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    return []


def kill_family(pid: int) -> None:
    """Kill a process and its descendants at once, as if the device had lost power."""
    relatives = family(pid)
    for signal in ("suspend", "kill"):  # suspended first, so that none starts another meanwhile
        for process in relatives:
            _signal(process, signal)
    psutil.wait_procs(relatives, timeout=5)


def start_guard(folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that ends the federation in a folder once we are gone, however we died.

    The end of its input tells it; it has a session of its own, so that no Ctrl-C reaches it."""
    command = [sys.executable, "-m", "pipecycle.deploy.local.processes", str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def _signal(process: psutil.Process, what: str) -> None:
    with suppress(psutil.Error):
        getattr(process, what)()


if __name__ == "__main__":
    sys.stdin.read()
    end(Path(sys.argv[1]), grace=0.0)  # ledgers and checkpoints withstand it
