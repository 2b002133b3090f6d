"""Time, so that tests need not wait for it."""

from __future__ import annotations

import time
from typing import Protocol


class Timer(Protocol):
    """Says what time it is, and waits."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class RealTime:
    """The machine's clock."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
