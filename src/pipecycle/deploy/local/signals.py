"""Signals that mean "stop": heard once as a Ctrl-C, and not again while everything is being taken down."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stoppable() -> Iterator[None]:
    """Inside, SIGTERM and a closed terminal are a Ctrl-C: a way out that takes everything down."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    kept = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, before in kept.items():
            signal.signal(number, before)


@contextmanager
def deaf() -> Iterator[threading.Event]:
    """Inside, signals to stop are counted and not obeyed: stopping is what goes on already."""
    heard = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield heard
        return
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    kept = {number: signal.signal(number, lambda *_: heard.set()) for number in signals}
    try:
        yield heard
    finally:
        for number, before in kept.items():
            signal.signal(number, before)
