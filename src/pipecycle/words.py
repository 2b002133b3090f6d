"""Numbers and lists as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def number(value: Any) -> str:
    """A figure with as many digits as help."""
    if value is None:
        return "-"
    if isinstance(value, float) and value != round(value):
        return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.1f}"
    return f"{value:,.0f}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def plural(count: int, noun: str) -> str:
    """`1 run`, `1,200 runs`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def some(words: Sequence[str], most: int) -> str:
    """`a, b and 4 more`."""
    return ", ".join(words[:most]) + (f" and {len(words) - most:,} more" if len(words) > most else "")


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "nothing"
