"""Nobody is left behind: everything that descends from a process, and a keeper that outlives the process itself.

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
class Kin:
    """The descendants of a process, remembered by number and time of birth: a number used again is somebody else."""

    root: int
    known: set[psutil.Process] = field(factory=set)
    spared: set[int] = field(factory=set)
    """Numbers that are none of ours, such as the keeper's."""
    hired: set[int] = field(factory=set)
    """Numbers of those whose end somebody else waits for."""

    def look(self) -> set[psutil.Process]:
        """Note who is there now; also children of those whose own parent has died."""
        self.known = {one for one in self.known if self._lives(one)}
        elders = {self.root, *(one.pid for one in self.known)}
        for one in _descendants(elders):
            if one.pid not in self.spared and self._lives(one):
                self.known.add(one)
        return self.known

    def end(self, grace: float = GRACE, hurry: Callable[[], bool] = lambda: False) -> None:
        """Ask all of them to end, wait, and kill whoever has not; a suspended one is woken to hear it."""
        until = time.monotonic() + grace
        for one in self.look():
            _signal(one, "terminate")
            _signal(one, "resume")
        while self.look() and time.monotonic() < until and not hurry():
            time.sleep(0.05)
        while left := self.look():  # whoever was born while we waited dies too
            for one in left:
                _signal(one, "kill")
            psutil.wait_procs(left, timeout=0.5)

    def _lives(self, one: psutil.Process) -> bool:
        """Zombies are dead; one that has become our child by its parent's death is waited for, so that it vanishes."""
        try:
            if one.status() != psutil.STATUS_ZOMBIE:
                return bool(one.is_running())
            if one.ppid() == os.getpid() and one.pid not in self.hired:
                one.wait(0)
        except psutil.Error:
            pass
        return False


def family(pid: int) -> list[psutil.Process]:
    """A process and all that descends from it."""
    return [*_existing(pid), *_descendants({pid})]


def kill_family(pid: int) -> None:
    """As if the device had lost power: a process and its descendants, at once."""
    members = family(pid)
    for one in members:
        _signal(one, "suspend")  # nobody gives birth while we go round
    for one in members:
        _signal(one, "kill")
    psutil.wait_procs(members, timeout=5)


def start_keeper(pid: int) -> subprocess.Popen[bytes]:
    """A process that ends the descendants of `pid` once `pid` is gone, by whatever it died.

    It hears so by the end of its input, and has a session of its own: no Ctrl-C reaches it."""
    command = [sys.executable, "-m", "pipecycle.deploy.local.processes", str(pid)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def main() -> None:
    kin = Kin(int(sys.argv[1]), spared={os.getpid()})
    while not select.select([sys.stdin], [], [], GLANCE)[0]:
        kin.look()
    kin.end(grace=0.0)  # whoever was at work is cut off, as by a power failure; ledgers and checkpoints stand that


def _existing(pid: int) -> list[psutil.Process]:
    try:
        return [psutil.Process(pid)]
    except psutil.Error:
        return []


def _descendants(elders: set[int]) -> list[psutil.Process]:
    """Children, and theirs, in one pass over the machine's processes."""
    children: dict[int, list[psutil.Process]] = {}
    for one in psutil.process_iter():
        try:
            children.setdefault(one.ppid(), []).append(one)
        except psutil.Error:
            continue
    found, ahead, met = [], list(elders), set(elders)
    while ahead:
        for one in children.get(ahead.pop(), []):
            if one.pid not in met:
                met.add(one.pid)
                ahead.append(one.pid)
                found.append(one)
    return found


def adopt() -> None:
    """Linux: orphans among our descendants become our children, so that they can be waited for (pid 1 of a container
    often does not).  Elsewhere the system's first process sees to it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _signal(one: psutil.Process, what: str) -> None:
    with suppress(psutil.Error):
        getattr(one, what)()


if __name__ == "__main__":
    main()
