"""Who plans what, and when: processes, because a user's policy may do anything, and a process can be ended."""

from __future__ import annotations

import queue
import signal
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from attrs import define, field

from pipecycle.errors import InputError, own_code, sentence
from pipecycle.runs.config import Config
from pipecycle.stopping import die_with_parent, unheard
from pipecycle.studio.planner import Superseded, message

WORKERS = 2
"""Two schedulers are planned side by side, and a newer request need not wait until an older one is dropped."""
MOST_SECONDS = 30.0
GRACE = 1.0
"""Seconds that a plan which is not wanted any more has to notice it."""
LOOK = 0.05
"""Seconds between two looks at the clock."""
MOST_KEPT = 64 << 20
"""Bytes of messages that are kept, since a setting is often put back to what it was."""
WAITING = 32


class PlanningError(Exception):
    """An error in pipecycle itself."""


class Planner:
    """A process that makes one plan after the other."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._dropped, self._slot = context.RawValue("b"), context.RawValue("q")
        self._process = context.Process(target=_work, args=(theirs, self._dropped, self._slot), daemon=True)
        with unheard():
            self._process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def drop(self, now: bool = True) -> None:
        """The plan under way, or the next, is not wanted any more."""
        self._dropped.value = now

    def plan(self, config: Config) -> bytes:
        """The message about a configuration.  A plan that takes too long ends with its process."""
        self._slot.value = 0
        began, most, dropped = time.monotonic(), MOST_SECONDS, 0.0
        try:
            self._pipe.send(config)
            while not self._pipe.poll(LOOK):
                now = time.monotonic()
                if self._dropped.value and now > (dropped := dropped or now) + GRACE:
                    self.end()
                    raise Superseded
                if now > began + most:
                    self.end()
                    slot = self._slot.value
                    raise InputError(f"planning took more than {most:g} s, and was given up in slot {slot:,}")
            problem = self._pipe.recv()
            if problem is None:
                return self._pipe.recv_bytes()
        except (EOFError, OSError):
            self.end()
            how = f"in slot {self._slot.value:,}, with exit code {self._process.exitcode}"
            raise InputError(f"the process that planned this has ended {how}") from None
        raise problem


@define(eq=False)
class Request:
    """A plan that somebody waits for."""

    number: int = 0
    planner: Planner | None = None
    dropped: bool = False


@define
class Desk:
    """Plans by a few processes, the newest request of every page first, and the last messages."""

    _idle: queue.LifoQueue[Planner] = field(factory=queue.LifoQueue)
    _guard: threading.Lock = field(factory=threading.Lock)
    _newest: OrderedDict[tuple[str, str], Request] = field(factory=OrderedDict)
    _kept: OrderedDict[str, bytes] = field(factory=OrderedDict)
    _waiting: int = 0

    def open(self) -> None:
        for _ in range(WORKERS):
            self._idle.put(Planner())

    def close(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().end()

    def ask(self, page: str, side: str, number: int, config: Config) -> bytes:
        """The message about a configuration; `Superseded` as soon as a newer one is asked for."""
        key, request = (page, side), Request(number)
        with self._guard:
            before = self._newest.get(key)
            if before is not None and number < before.number:
                raise Superseded
            if before is not None:
                before.dropped = True
                if before.planner is not None:
                    before.planner.drop()
            self._newest[key] = request
            self._newest.move_to_end(key)
            while len(self._newest) > 1000:
                self._newest.popitem(last=False)
        return self.message(config, request)

    def message(self, config: Config, request: Request | None = None) -> bytes:
        identity = config.text()
        with self._guard:
            made = self._kept.get(identity)
            if made is None and self._waiting >= WAITING:
                raise InputError(f"more than {WAITING} plans are waited for at once; ask again later")
            self._waiting += 1
        try:
            if made is None:
                made = self._plan(config, request or Request())
        finally:
            with self._guard:
                self._waiting -= 1
        with self._guard:
            self._kept[identity] = made
            self._kept.move_to_end(identity)
            while sum(map(len, self._kept.values())) > MOST_KEPT and len(self._kept) > 1:
                self._kept.popitem(last=False)
        return made

    def _plan(self, config: Config, request: Request) -> bytes:
        planner = None
        while planner is None:
            if request.dropped:
                raise Superseded
            with suppress(queue.Empty):
                planner = self._idle.get(timeout=LOOK)
        try:
            with self._guard:
                request.planner = planner
                planner.drop(request.dropped)
            return planner.plan(config)
        finally:
            with self._guard:
                request.planner = None
            self._idle.put(planner if planner.alive else Planner())


def _work(pipe: Connection, dropped: Any, slot: Any) -> None:
    """Inside the process: Ctrl-C is for the studio, which ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # multiprocessing ends it by SIGTERM when the studio ends
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    die_with_parent()

    def watch(over: int) -> None:
        slot.value = over
        if dropped.value:
            raise Superseded

    with suppress(EOFError):
        while True:
            answer = _answer(pipe.recv(), watch)
            pipe.send(None if isinstance(answer, bytes) else answer)
            if isinstance(answer, bytes):
                pipe.send_bytes(answer)


def _answer(config: Config, watch: Callable[[int], None]) -> bytes | Exception:
    """The message, or what the studio raises in its turn."""
    try:
        return message(config, watch)
    except Superseded as superseded:
        return superseded
    except (Exception, SystemExit) as error:
        if isinstance(error, InputError) or own_code(error) is not None:
            return InputError(sentence(error))
        traceback.print_exception(error)
        return PlanningError(sentence(error))
