"""Nobody is left behind: everything that descends from a process, and a guard that outlives the process itself.

Flower starts processes of processes (SuperExec, one ClientApp per message), some in sessions of their own, and a killed
parent loses sight of them.  So descendants are noted while the family tree is whole, and ended by what was noted.
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
"""Seconds that a process is given to end by itself; a SuperNode unregisters in that time."""
GLANCE = 0.5


@define
class Descendants:
    """Of a process, remembered by number and time of birth: a number used again is another process."""

    root: int
    known: set[psutil.Process] = field(factory=set)
    spared: set[int] = field(factory=set)
    """Numbers that are none of ours, such as the guard's."""
    awaited: set[int] = field(factory=set)
    """Numbers of those whose end somebody else waits for."""

    def look(self) -> set[psutil.Process]:
        """Note who is there now; also children of those whose own parent has died."""
        self.known = {process for process in self.known if self._lives(process)}
        for process in _below({self.root, *(process.pid for process in self.known)}):
            if process.pid not in self.spared and self._lives(process):
                self.known.add(process)
        return self.known

    def end(self, grace: float = GRACE, hurry: Callable[[], bool] = lambda: False) -> None:
        """Ask all of them to end, wait, and kill whoever has not; a suspended one is woken to hear it."""
        until = time.monotonic() + grace
        for process in self.look():
            _signal(process, "terminate")
            _signal(process, "resume")
        while self.look() and time.monotonic() < until and not hurry():
            time.sleep(0.05)
        while left := self.look():  # also whoever was started while we waited
            for process in left:
                _signal(process, "kill")
            psutil.wait_procs(left, timeout=0.5)

    def _lives(self, process: psutil.Process) -> bool:
        """Zombies are dead; one that has become our child by its parent's death is waited for, so that it vanishes."""
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
    """As if the device had lost power: a process and its descendants, at once."""
    members = family(pid)
    for signal in ("suspend", "kill"):  # suspended, nobody starts another one while we go round
        for process in members:
            _signal(process, signal)
    psutil.wait_procs(members, timeout=5)


def start_guard(pid: int) -> subprocess.Popen[bytes]:
    """A process that ends the descendants of `pid` once `pid` is gone, by whatever it died.

    It hears so by the end of its input, and has a session of its own: no Ctrl-C reaches it."""
    command = [sys.executable, "-m", "pipecycle.deploy.local.processes", str(pid)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def main() -> None:
    descendants = Descendants(int(sys.argv[1]), spared={os.getpid()})
    while not select.select([sys.stdin], [], [], GLANCE)[0]:
        descendants.look()
    descendants.end(grace=0.0)  # as by a power failure; ledgers and checkpoints stand that


def _below(elders: set[int]) -> list[psutil.Process]:
    """Children, and theirs, in one pass over the machine's processes."""
    children: dict[int, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            children.setdefault(process.ppid(), []).append(process)
    below, ahead, met = [], list(elders), set(elders)
    while ahead:
        for process in children.get(ahead.pop(), []):
            if process.pid not in met:
                met.add(process.pid)
                ahead.append(process.pid)
                below.append(process)
    return below


def adopt() -> None:
    """Linux: orphans among our descendants become our children, so that they can be waited for (pid 1 of a container
    often does not).  Elsewhere the system's first process sees to it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _signal(process: psutil.Process, what: str) -> None:
    with suppress(psutil.Error):
        getattr(process, what)()


if __name__ == "__main__":
    main()
