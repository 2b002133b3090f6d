"""No process is left behind: all descendants of a process, and a guard that ends them if the process is killed.

Flower's processes start others (SuperExec, one ClientApp per message), some in sessions of their own, and a killed
parent's children cannot be found any more.  So descendants are recorded while their parents are alive.
"""

from __future__ import annotations

import ctypes
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import psutil
from attrs import define, field

GRACE = 8.0
"""Seconds for a process to end by itself; a SuperNode unregisters in that time."""
EVERY = 0.5
"""Seconds between two looks of the guard."""


@define
class Descendants:
    """All descendants of a process, by number and start time: a number that is used again is another process."""

    root: int
    known: set[psutil.Process] = field(factory=set)
    spared: set[int] = field(factory=set)
    """Numbers of processes that are not to be ended: the guard's."""
    awaited: set[int] = field(factory=set)
    """Numbers of processes that the caller itself waits for."""

    def look(self) -> set[psutil.Process]:
        """Record and return those that are alive, including children of those whose parent has died."""
        self.known = {process for process in self.known if self._lives(process)}
        for process in _below({self.root, *(process.pid for process in self.known)}):
            if process.pid not in self.spared and self._lives(process):
                self.known.add(process)
        return self.known

    def end(self, grace: float = GRACE, hurry: Callable[[], bool] = lambda: False) -> None:
        """Ask all of them to end, wait, and kill the rest; suspended ones are resumed first."""
        until = time.monotonic() + grace
        for process in self.look():
            _signal(process, "terminate")
            _signal(process, "resume")
        while self.look() and time.monotonic() < until and not hurry():
            time.sleep(0.05)
        while left := self.look():  # including those started meanwhile
            for process in left:
                _signal(process, "kill")
            psutil.wait_procs(left, timeout=0.5)

    def _lives(self, process: psutil.Process) -> bool:
        """Zombies are dead; one that became our child when its parent died is waited for, so that it disappears."""
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                return bool(process.is_running())
            if process.ppid() == os.getpid() and process.pid not in self.awaited:
                process.wait(0)
        return False


def family(pid: int) -> list[psutil.Process]:
    """A process and all that descends from it."""
    try:
        return [psutil.Process(pid), *_below({pid})]
    except psutil.Error:
        return _below({pid})


def kill_family(pid: int) -> None:
    """Kill a process and its descendants at once, as if the device had lost power."""
    members = family(pid)
    for signal in ("suspend", "kill"):  # suspended first, so that none starts another meanwhile
        for process in members:
            _signal(process, signal)
    psutil.wait_procs(members, timeout=5)


def start_guard(pid: int) -> subprocess.Popen[bytes]:
    """Start a process that ends the descendants of `pid` once `pid` is gone, however it died.

    The end of its input tells it; it has a session of its own, so that no Ctrl-C reaches it."""
    command = [sys.executable, "-m", "pipecycle.deploy.local.processes", str(pid)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def main() -> None:
    descendants = Descendants(int(sys.argv[1]), spared={os.getpid()})
    while not select.select([sys.stdin], [], [], EVERY)[0]:
        descendants.look()
    descendants.end(grace=0.0)  # ledgers and checkpoints withstand it


def _below(roots: set[int]) -> list[psutil.Process]:
    """All descendants, in one pass over the machine's processes."""
    children: dict[int, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            children.setdefault(process.ppid(), []).append(process)
    below, ahead, met = [], list(roots), set(roots)
    while ahead:
        for process in children.get(ahead.pop(), []):
            if process.pid not in met:
                met.add(process.pid)
                ahead.append(process.pid)
                below.append(process)
    return below


def adopt() -> None:
    """Linux: orphans among our descendants become our children, so that we can wait for them (process 1 of a container
    often does not).  On other systems process 1 does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _signal(process: psutil.Process, what: str) -> None:
    with suppress(psutil.Error):
        getattr(process, what)()


if __name__ == "__main__":
    main()
