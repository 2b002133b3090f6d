"""Harvests as one word on a command line: `bernoulli:0.3`, `markov:0.3,10`, `solar:FILE`, `clearsky:LATITUDE`,
`csv:FILE`, `always`."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from pipecycle.checks import text
from pipecycle.errors import InputError, shown
from pipecycle.world.harvest import Always, Bernoulli, Markov, Placed
from pipecycle.world.sky import YEAR, clear_sky
from pipecycle.world.traces import Solar, Spread, Table, Trace, read

FORMS = (
    "bernoulli:RATE, markov:RATE,BURST, solar:FILE[,panel=,minutes=,shift=,shade=], "
    "clearsky:LATITUDE[,days=,panel=, ...], csv:FILE[,day=] or always"
)
PANEL = ("panel", "minutes", "shift", "shade")
Read = Callable[[str], Trace]


def parse_harvest(spec: str, home: Path | None = None) -> Placed:
    """A harvest from its description; options of `solar`, `clearsky` and `csv` follow the first word.

    solar: `panel` (units per slot at 1,000 W/m2), `minutes` (slot length), `shift` (minutes by which a client's
    day is late) and `shade` (factor); the last two take LOW..HIGH to differ between clients.
    clearsky: the same, and `days` (FIRST..LAST of the year).
    csv: `day` (rows in a day).

    Paths of files count from the folder `home`, if it is given."""
    return _parse(spec, read if home is None else lambda path: read(home / path))


@lru_cache(1024)
def check_harvest(spec: str) -> None:
    """Refuse what no file could make right; files are not opened, since a description outlives them."""
    _parse(spec, _unread)


def files(spec: str) -> list[str]:
    """The files that a harvest is read from."""
    paths: list[str] = []

    def note(path: str) -> Trace:
        paths.append(path)
        return _unread(path)

    _parse(spec, note)
    return paths


class _Unread(Trace):
    """In place of a file."""


def _unread(path: str) -> Trace:
    return _Unread(np.zeros((1, 1)), 1.0, Path(path).name)


def _parse(spec: str, reading: Read) -> Placed:
    text.of("harvest", spec)
    kind, _, rest = spec.partition(":")
    named = rest.partition(",")[0].strip()
    if spec == "always":
        return Always()
    if kind == "bernoulli" and rest:
        return Bernoulli(_number("rate", rest))
    if kind == "markov" and rest.count(",") == 1:
        rate, burst = rest.split(",")
        return Markov(_number("rate", rate), _number("burst", burst))
    if kind == "solar" and named:
        path, options = _options(rest, PANEL)
        return Solar(reading(path), **options)
    if kind == "clearsky" and named:
        latitude, options = _options(rest, ("days", *PANEL))
        first, last = options.pop("days", (1, YEAR))
        return Solar(clear_sky(_number("latitude", latitude), first, last), **options)
    if kind == "csv" and named:
        path, options = _options(rest, ("day",))
        trace = reading(path)
        return Always() if isinstance(trace, _Unread) else Table(trace, **options)
    raise InputError(f"harvest {shown(spec)!r}: needs {FORMS}")


def _options(text: str, allowed: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    path, *pairs = text.split(",")
    options: dict[str, Any] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in allowed or not value:
            raise InputError(
                f"harvest option {shown(pair)!r}: needs one of {', '.join(f'{name}=...' for name in allowed)}"
            )
        if key in options:
            raise InputError(f"harvest option {shown(pair)!r}: {key} is set twice, needs one value")
        options[key] = OPTIONS.get(key, _number)(key, value)
    return path, options


def _number(name: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise InputError(f"{name} = {shown(word)}: needs a number") from None


def _whole(name: str, word: str) -> int:
    try:
        value = int(word)
    except ValueError:
        value = 0
    if value < 1:
        raise InputError(f"{name} = {shown(word)}: needs a whole number of at least 1")
    return value


def _days(name: str, words: str) -> tuple[int, int]:
    first, _, last = words.partition("..")
    try:
        return int(first), int(last or first)
    except ValueError:
        raise InputError(f"{name} = {shown(words)}: needs FIRST..LAST, whole numbers") from None


def _range(name: str, word: str) -> float | Spread:
    low, dots, high = word.partition("..")
    return Spread(_number(name, low), _number(name, high)) if dots else _number(name, low)


OPTIONS: dict[str, Callable[[str, str], Any]] = {"days": _days, "day": _whole, "shift": _range, "shade": _range}
"""How options are read; all others are numbers."""
