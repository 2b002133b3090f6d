"""How commands and their processes are stopped: by signals, by each other, and when whoever started them is gone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any

from attrs import define


class Interrupted(Exception):
    """Runs were asked to stop, by which signal; their state is on disk."""

    def __init__(self, number: int = signal.SIGINT, pace: Any = None) -> None:
        super().__init__()
        self.number, self.pace = number, pace


class Terminated(BaseException):
    """SIGTERM where nothing has to be saved: what KeyboardInterrupt is to Ctrl-C."""


def _at_once(number: int) -> BaseException:
    """What ends a program that saves nothing first."""
    return Terminated() if number == signal.SIGTERM else KeyboardInterrupt()


def obey_signals() -> None:
    """Ctrl-C and SIGTERM end the program, but never in the middle of an import: code that runs there may swallow the
    exception, and the program would carry on.  The signal comes again later, to whoever listens then."""

    def obey(number: int, frame: FrameType | None) -> None:
        if _importing(frame):
            signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        else:
            raise _at_once(number)

    signal.signal(signal.SIGTERM, obey)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as it is in background jobs
        signal.signal(signal.SIGINT, obey)


def end_at_signals(saying: str = "") -> None:
    """Ctrl-C and SIGTERM end the process at once, with no words but these: all that is left to stop is Python, which
    takes itself down."""

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, saying.encode())
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


@define
class Stop:
    """Whether somebody asked to stop, by which signal."""

    asked: int = 0
    training: bool = False
    """Whether there is anything to save first."""

    @contextmanager
    def while_training(self) -> Iterator[None]:
        self.training = True
        try:
            yield
        finally:
            self.training = False

    @staticmethod
    @contextmanager
    def watched() -> Iterator[Stop]:
        """Asked by Ctrl-C or SIGTERM; the second does not wait for a good moment."""
        stop = Stop()

        def ask(number: int, frame: FrameType | None) -> None:
            if stop.asked:
                raise _at_once(number)
            stop.asked = number

        with listening(ask):
            yield stop


@contextmanager
def listening(
    hear: Callable[[int, FrameType | None], None], signals: Iterable[int] = (signal.SIGINT, signal.SIGTERM)
) -> Iterator[None]:
    """Calls `hear` at Ctrl-C and SIGTERM; signals that the process was started to ignore stay ignored."""
    before = {}
    for number in signals:
        try:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, hear)
        except ValueError:  # not in the main thread: whoever runs it there stops it otherwise
            break
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """Inside, SIGTERM and a closed terminal are a Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with listening(interrupt, (signal.SIGTERM, signal.SIGHUP)):
        yield


@contextmanager
def undisturbed() -> Iterator[threading.Event]:
    """Inside, signals to stop are noted and not obeyed: for taking things down."""
    heard = threading.Event()
    with listening(lambda *_: heard.set(), (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
        yield heard


@contextmanager
def unheard() -> Iterator[None]:
    """Processes started inside never receive Ctrl-C or SIGTERM, not even while they import; this process passes them
    on, or ends them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows: there it does so itself
        yield
        return
    resource_tracker.ensure_running()  # which would let them through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with_parent() -> None:
    """End this process when the one that spawned it is gone, even by `kill -9`: the system then closes the pipe that
    multiprocessing keeps between the two."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
