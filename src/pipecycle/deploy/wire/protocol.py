"""What travels: orders to nodes and their answers, and why an answer is refused.

A model travels under Flower's usual record names (`arrays`, `config`), so that a user's own ClientApp understands it;
what is ours is in the record `pipecycle`, and a node's energy in the record `energy`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from math import isfinite
from typing import Any

import attrs
import numpy as np
from attrs import field, frozen
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from pipecycle.energy import show
from pipecycle.fleet import Payload

OURS, ENERGY = "pipecycle", "energy"
MOST_SAMPLES = 10**9
MOST_QUANTA = 1 << 52
"""In a ledger's totals: four billion units, and sums over a thousand clients still fit into 64 bits."""
LARGEST = 1e12
"""Weights beyond it are no weights, and would sooner or later not be finite."""
LONGEST_HEADER = 4096
"""Bytes before the values of an array in numpy's format."""
WAIT = 50
"""Sessions' lengths for which an emulated node on the logical clock waits for the energy to report."""
Arrays = dict[str, NDArray[Any]]


class Refused(Exception):
    """An answer that must not reach the model; `name` says what was wrong with it, the text how."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name


@frozen
class Order:
    """What a node is asked for: a session, or (k = -1) only who it is and what its battery holds."""

    run: str
    """A fresh word for every run: answers of other runs are never taken for this one's."""
    client: int = -1
    k: int = -1
    """How many sessions the client was asked for before."""
    slot: int = -1
    steps: int = 0
    need: int = 0
    """Quanta below which the node declines."""
    step: int = 0
    """Quanta per training step."""
    fee: int = 0
    """Quanta for the upload, paid as the answer leaves."""
    payload: Payload = "update"
    kept: int = -1
    """The session (its k) whose model the node has kept and continues from, instead of the reference alone."""
    settled: int = -1
    """The last k that the server has on disk: older answers need not be kept."""
    seconds: float = 0.0
    """Until the answer is due."""
    slot_seconds: float = 0.0
    """How long a slot lasts; 0 where slots have no length."""
    life: str = ""
    """A number and a fresh word for every server that went on with the run by the wall clock: what an earlier one asked
    for after its last checkpoint is forgotten, and its answers must not be taken for those to new orders of the same
    k, which says nothing about orders of another life."""

    @property
    def roll_call(self) -> bool:
        return self.k < 0

    @property
    def key(self) -> str:
        return f"{self.run}/{self.life}/{self.client}/{self.k}"

    @property
    def turn(self) -> tuple[int, int]:
        """Later for later orders to a client."""
        return age(self.life), self.k

    @staticmethod
    def of(content: RecordDict) -> Order | None:
        """The order in a message; None if the message is not ours."""
        record = content.get(OURS)
        if not isinstance(record, ConfigRecord):
            return None
        known = {one.name for one in attrs.fields(Order)}
        return Order(**{key: value for key, value in record.items() if key in known})

    def record(self) -> ConfigRecord:
        return ConfigRecord(attrs.asdict(self))


def age(life: str) -> int:
    """Which life of the run it is; the first has no name."""
    return int(life.partition("-")[0] or 0)


@frozen
class Report:
    """A node's battery: quanta since its ledger was opened, as of the end of slot `at`.  `spent` is on this run alone;
    what other runs have spent counts as overflowed."""

    at: int
    harvested: int
    overflowed: int
    spent: int
    capacity: int

    @property
    def level(self) -> int:
        return self.harvested - self.overflowed - self.spent

    def behind(self, before: Report) -> bool:
        """Whether any total is lower than it was, which no ledger's ever is."""
        return any(getattr(self, name) < getattr(before, name) for name in ("harvested", "overflowed", "spent"))


@frozen
class Answer:
    """A node's answer, read and checked for form; `check` says whether it may be used."""

    outcome: str
    """present, trained, declined or failed."""
    reason: str
    key: str
    client: int
    report: Report
    samples: int
    steps: int
    seconds: float
    parts: Mapping[str, Arrays] = field(factory=dict, repr=False)


OUTCOMES = ("present", "trained", "declined", "failed")


def write_answer(answer: Answer, extra: RecordDict | None = None) -> RecordDict:
    """As records, beside what the app itself has answered."""
    content = RecordDict(dict(extra.items()) if extra is not None else None)
    content[OURS] = ConfigRecord({"outcome": answer.outcome, "reason": answer.reason, "key": answer.key})
    report = answer.report
    content[ENERGY] = MetricRecord(
        {
            "client": answer.client,
            "battery": report.level,
            **attrs.asdict(report),
            "samples": answer.samples,
            "steps": answer.steps,
            "seconds": answer.seconds,
        }
    )
    return content


def read_answer(message: Message) -> Answer:
    """The answer in a reply; anything that does not have its form is refused."""
    try:
        content = message.content
        ours, energy = content[OURS], content[ENERGY]
        figures = {name: energy[name] for name in ("client", "battery", "samples", "steps")}
        report = {name.name: energy[name.name] for name in attrs.fields(Report)}
        words = {name: ours[name] for name in ("outcome", "reason", "key")}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refused("form", f"the answer lacks {error}") from None
    for name, value in {**figures, **report}.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise Refused(name, f"{value!r} is not a whole number")
    if not all(isinstance(word, str) for word in words.values()) or words["outcome"] not in OUTCOMES:
        raise Refused("outcome", f"{words['outcome']!r} is none of {', '.join(OUTCOMES)}")
    seconds = energy.get("seconds", 0.0)
    if figures.pop("battery") != Report(**report).level:
        raise Refused("battery", "the level is not what was harvested less what was spent and overflowed")
    return Answer(
        **words,
        **figures,
        report=Report(**report),
        seconds=float(seconds) if isinstance(seconds, int | float) and isfinite(seconds) else 0.0,
        parts={name: record for name, record in content.array_records.items()},  # noqa: C416
    )


def check_report(report: Report, before: Report | None, most: int) -> None:
    """Refuse what no battery of at most `most` quanta can show after `before`."""
    if before is not None and report.capacity != before.capacity:
        raise Refused("capacity", f"{show(report.capacity)} units, it was {show(before.capacity)}")
    if not 0 <= report.level <= min(report.capacity, most):
        raise Refused("battery", f"{show(report.level)} units, needs 0 to {show(min(report.capacity, most))}")
    totals = (report.harvested, report.overflowed, report.spent)
    if not 0 <= min(totals) <= max(totals) <= MOST_QUANTA or report.capacity <= 0:
        raise Refused("ledger", "a total is negative or beyond all bounds")
    if before is not None and report.behind(before):
        raise Refused("ledger", "a total is lower than it was before")


def read_arrays(record: object, like: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]], name: str) -> Arrays:
    """Arrays with exactly these names, shapes and types, all finite."""
    if not isinstance(record, ArrayRecord):
        raise Refused(name, "is missing")
    if list(record) != list(like):
        raise Refused(name, f"has the names {', '.join(record)[:80]}, needs {', '.join(like)[:80]}")
    out: Arrays = {}
    for key, (shape, kind) in like.items():
        if tuple(record[key].shape) != shape or record[key].dtype != str(kind):
            told = f"{record[key].dtype} {tuple(record[key].shape)}"
            raise Refused(name, f"{key} is {told}, needs {kind} {shape}")
        values = _unpacked(record[key], shape, kind, name, key)
        if values.dtype.kind == "f" and not (np.abs(values) <= LARGEST).all():
            raise Refused(name, f"{key} holds values that are not finite, or beyond {LARGEST:g}")
        out[key] = values
    return out


def _unpacked(array: Array, shape: tuple[int, ...], kind: np.dtype[Any], name: str, key: str) -> NDArray[Any]:
    """The values of an array in numpy's own format, whose header is compared with what is wanted before anything is
    made of it."""
    data = io.BytesIO(array.data)
    size = int(np.prod(shape)) * kind.itemsize
    if array.stype != "numpy.ndarray" or not size < len(array.data) <= size + LONGEST_HEADER:
        raise Refused(name, f"{key} is no array of {size} bytes in numpy's format")
    try:
        np.lib.format.read_magic(data)
        told, by_columns, dtype = np.lib.format.read_array_header_1_0(data)
    except Exception as error:  # a broken header fails in many ways, none of which is ours to know
        raise Refused(name, f"{key} cannot be read ({error})") from None
    if told != shape or dtype != kind or len(array.data) != data.tell() + size:
        raise Refused(name, f"{key} is {dtype} {told}, needs {kind} {shape}")
    values = np.frombuffer(array.data, kind, offset=data.tell())
    return values.reshape(shape, order="F" if by_columns else "C").copy()


def write_arrays(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    return ArrayRecord({key: Array(np.ascontiguousarray(value)) for key, value in arrays.items()})


def check_samples(samples: int) -> None:
    if not 1 <= samples <= MOST_SAMPLES:
        raise Refused("samples", f"{samples}, needs 1 to {MOST_SAMPLES}")
