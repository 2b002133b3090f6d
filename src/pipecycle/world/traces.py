"""Harvest from a file: measured irradiance through a panel, or a user's own gains per slot."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from attrs import field, frozen

from pipecycle import checks
from pipecycle.checks import Check
from pipecycle.errors import InputError, shown
from pipecycle.world.energy import UNIT, each
from pipecycle.world.harvest import Weather, digest_or_number
from pipecycle.world.source import Source
from pipecycle.world.streams import Floats, Ints, streams, unit

DAY = 1440.0
LEAST_MINUTES, MOST_MINUTES = 1e-3, 366 * DAY
"""Of a slot, a step of a file and a shift of time."""
MOST_VALUE = 1e15
"""In a file, of a time or a value: sums of them stay finite."""
MOST_GAIN = 2.0**20
"""Units in a slot."""
_STAMPS = ("%m/%d/%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%H:%M")


@frozen(eq=False)
class Trace:
    """Values at a regular step of `minutes` (0 if the file has no clock), one column for all or one per client."""

    values: Floats
    minutes: float
    name: str

    def __str__(self) -> str:
        """The file's name and content, so that a schedule says which weather it met."""
        return f"{self.name}#{hashlib.sha256(self.values.tobytes()).hexdigest()[:12]}"

    def __repr__(self) -> str:
        rows, columns = self.values.shape
        return f"Trace({self.name}: {rows:,} rows x {columns}, every {self.minutes:g} min)"


_TRACE = checks.made(Trace, "pipecycle.world.traces.read(FILE)")


def read(path: str | Path) -> Trace:
    """A CSV of time and value(s).  Time is one column (ISO or US date and time, or a number of minutes) or two
    (date, clock) as in NREL's files; a header is optional.  Missing rows and values are refused by line."""
    source = Source.of(Path(path))
    lines = source.cells()
    if lines and _is_header(lines[0][1]):
        del lines[0]
    if len(lines) < 2:
        source.refuse("needs at least two rows of time and value")
    width = len(lines[0][1])
    if width < 2:
        source.refuse("needs at least two columns, time and value, separated by commas")
    clock_apart = width > 2 and not _is_number(lines[0][1][1])
    first_value = 2 if clock_apart else 1
    values, stamps = np.empty((len(lines), width - first_value)), np.empty(len(lines))
    for index, (line, row) in enumerate(lines):
        if len(row) != width:
            source.refuse(f"has {len(row)} columns where the first row has {width}", line)
        try:
            stamps[index] = _minutes(" ".join(cell.strip() for cell in row[:first_value]))
            values[index] = [float(cell) for cell in row[first_value:]]
        except ValueError:
            source.refuse(f"{shown(','.join(row))!r} is not a time and numbers", line)
    fit = (np.abs(values) <= MOST_VALUE).all(axis=1) & (np.abs(stamps) <= MOST_VALUE)  # nan is not
    if not fit.all():
        source.refuse("the time or a value is not a finite number of at most 1e15", lines[int(np.argmin(fit))][0])
    steps = np.diff(stamps)
    uneven = np.abs(steps - steps[0]) > 1e-6 * abs(steps[0])
    if steps[0] <= 0 or uneven.any():
        source.refuse("time must advance by the same step in every row", lines[1 + int(np.argmax(uneven))][0])
    checks.number(least=LEAST_MINUTES, most=MOST_MINUTES).of(f"{path}: minutes between two rows", float(steps[0]))
    return Trace(values, float(steps[0]), source.path.name)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_header(row: list[str]) -> bool:
    """Whether a first row names the columns: neither its time nor its last value is one."""
    return not _is_number(row[-1]) and not any(_is_time(" ".join(row[:cells])) for cells in (1, 2))


def _is_time(text: str) -> bool:
    try:
        _minutes(text.strip())
    except ValueError:
        return False
    return True


def _minutes(text: str) -> float:
    """A time in minutes since some moment; a date that names its distance from UTC is moved there."""
    if _is_number(text):
        return float(text)
    for pattern in _STAMPS:
        try:
            return (datetime.strptime(text, pattern) - datetime(1900, 1, 1)).total_seconds() / 60.0
        except ValueError:
            continue
    moment = datetime.fromisoformat(text)
    since = moment.replace(tzinfo=None) - datetime(1900, 1, 1)
    return (since - (moment.utcoffset() or timedelta())).total_seconds() / 60.0


def first_day(trial: int, days: int) -> int:
    """The trial's starting day; neighbouring trials never share one while there are enough days."""
    return int(streams(0)("first day", days).permutation(days)[trial % days])


@frozen
class Spread:
    """A figure that differs between clients: uniform between two bounds, drawn by the trial."""

    low: float = field(validator=checks.number())
    high: float = field(validator=checks.number())

    def __attrs_post_init__(self) -> None:
        if self.low > self.high:
            raise InputError(f"{self.low:g}..{self.high:g}: give the smaller number first")

    def values(self, clients: int, trial: int, purpose: str, place: int = 0) -> Floats:
        words = streams(trial)(purpose, *([place] if place else [])).words(clients)
        return self.low + (self.high - self.low) * unit(words)


PerClient = float | Floats | Spread


def _text(value: PerClient) -> str:
    if isinstance(value, Spread):
        return f"{value.low:g}..{value.high:g}"
    return digest_or_number(np.asarray(value, np.float64))


def _between(rule: Check) -> Check:
    """A rule for one number, for both ends of a spread and for every client's figure."""

    def fault(value: Any) -> str | None:
        if isinstance(value, Spread):
            return rule.fault(value.low) or rule.fault(value.high)
        if isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
            return rule.fault(float(value.min(initial=1.0))) or rule.fault(float(value.max(initial=1.0)))
        return rule.fault(value)

    return Check(fault)


def _per_client(value: PerClient, clients: int, trial: int, name: str, place: int) -> Floats:
    values = value.values(clients, trial, name, place) if isinstance(value, Spread) else np.asarray(value, np.float64)
    return each(values, clients, name)


@frozen(eq=False)
class Solar:
    """A panel under measured global irradiance in W/m2 (negative night readings count as zero).

    A slot lasts `minutes`; `panel` is what it yields in units at 1,000 W/m2.  `shift` delays a client's day by
    minutes (its time zone, to the minute) and `shade` multiplies what it gets; each is one number, one per
    client, or a `Spread` between two bounds."""

    trace: Trace = field(validator=_TRACE)
    panel: float = field(default=1.0, validator=checks.number(above=0, most=MOST_GAIN))
    minutes: float = field(default=1.0, validator=checks.number(least=LEAST_MINUTES, most=MOST_MINUTES))
    shift: PerClient = field(default=0.0, validator=_between(checks.number(least=-MOST_MINUTES, most=MOST_MINUTES)))
    shade: PerClient = field(default=1.0, validator=_between(checks.number(least=0, most=1000)))

    def __str__(self) -> str:
        options = f"panel={self.panel:g},minutes={self.minutes:g},shift={_text(self.shift)},shade={_text(self.shade)}"
        return f"solar:{self.trace},{options}"

    def weather(self, clients: int, trial: int, place: int = 0) -> Weather:
        return _Sun(self, clients, trial, place)


class _Sun:
    def __init__(self, solar: Solar, clients: int, trial: int, place: int) -> None:
        if solar.trace.values.shape[1] != 1:
            raise InputError(f"{solar.trace.name}: solar needs one column of irradiance")
        light = np.maximum(solar.trace.values[:, 0], 0.0)
        self.step = solar.trace.minutes
        self.energy = np.concatenate([[0.0], np.cumsum(light)]) * (self.step / 1000.0)
        self.span = len(light) * self.step
        self.minutes, self.scale = solar.minutes, solar.panel / solar.minutes * UNIT
        self.start = first_day(trial, max(1, int(self.span // DAY))) * DAY
        shift = np.round(_per_client(solar.shift, clients, trial, "shift", place))
        self.shifts, self.zone = np.unique(shift, return_inverse=True)
        self.shade = _per_client(solar.shade, clients, trial, "shade", place)
        most = float(light.max()) / 1000.0 * solar.panel * float(self.shade.max(initial=0.0))
        checks.number(most=MOST_GAIN).of(f"{solar.trace.name}: units in the brightest slot", most)
        self.peak = int(np.ceil(most * UNIT)) + 1
        self.slot = 0

    def block(self, slots: int) -> Ints:
        edges = self.start + np.arange(self.slot, self.slot + slots + 1)[:, None] * self.minutes - self.shifts
        turns = np.floor(edges / self.span)
        within = np.interp(edges - turns * self.span, np.arange(len(self.energy)) * self.step, self.energy)
        gains = np.maximum(np.diff(within + turns * self.energy[-1], axis=0), 0.0) * self.scale
        self.slot += slots
        # Rounding to 2^-30 units first keeps last-bit differences between machines from moving a quantum.
        row: Ints = np.floor(np.round(gains[:, self.zone] * self.shade, 3)).astype(np.int64)
        return row


@frozen(eq=False)
class Table:
    """A user's own gains: one row per slot, in units, one column for all clients or one per client.

    The rows wrap around; `day` is how many rows make a day, and the trial picks the starting day."""

    trace: Trace = field(validator=_TRACE)
    day: int = field(default=1, validator=checks.at_least(1))

    def __attrs_post_init__(self) -> None:
        if self.day > len(self.trace.values):
            raise InputError(f"day = {self.day}: needs 1 to {len(self.trace.values)} rows")
        if (self.trace.values < 0).any() or (self.trace.values > MOST_GAIN).any():
            raise InputError(f"{self.trace.name}: gains must be from 0 to 2^20 units per slot")

    def __str__(self) -> str:
        return f"csv:{self.trace},day={self.day}"

    def weather(self, clients: int, trial: int, place: int = 0) -> Weather:
        columns = self.trace.values.shape[1]
        if columns not in (1, clients):
            raise InputError(f"{self.trace.name}: has {columns} columns of gains for {clients} clients")
        return _Rows(self, clients, trial)


class _Rows:
    def __init__(self, table: Table, clients: int, trial: int) -> None:
        self.values = np.floor(table.trace.values * UNIT).astype(np.int64)
        self.peak = int(self.values.max())
        self.clients = clients
        self.slot = first_day(trial, len(self.values) // table.day) * table.day

    def block(self, slots: int) -> Ints:
        index = np.arange(self.slot, self.slot + slots) % len(self.values)
        self.slot += slots
        return np.broadcast_to(self.values[index], (slots, self.clients))
