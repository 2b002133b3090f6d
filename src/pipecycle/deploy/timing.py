"""Time, which tests replace by a clock of their own so that they need not wait."""

from __future__ import annotations

from typing import Protocol


class Timer(Protocol):
    """What the module `time` is used for."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...
