"""What travels: orders to nodes, and their replies.

A model travels under Flower's usual record names (`arrays`, `config`), so that a user's own ClientApp understands it;
what is ours is in the record `pipecycle`, and a node's energy in the record `energy`.

Both sides say in that record which protocol they speak, and check it before they read anything else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs
from attrs import frozen
from flwr.app import ConfigRecord, MetricRecord, RecordDict

from pipecycle import __version__
from pipecycle.errors import InputError, shown
from pipecycle.world.fleet import Payload

OURS, ENERGY = "pipecycle", "energy"
PROTOCOL = 1
"""Higher whenever an older node would misread an order, or an older server a reply."""
HELLO = {"protocol": PROTOCOL, "version": __version__}
"""Every order and every reply has it; its two names never change."""
MOST_SAMPLES = 10**9
WAIT = 50
"""Sessions' lengths for which an emulated node on the logical clock waits for the energy to report."""


def compare(record: Mapping[str, object], here: str, there: str) -> tuple[bool, str]:
    """Whether this side and the other understand each other, and if their versions differ, which one to upgrade."""
    protocol, version = record.get("protocol"), shown(record.get("version"), 30)
    if not isinstance(protocol, int):
        return False, f"the {there}'s pipecycle is older than versions that say their protocol: upgrade the {there}"
    if (protocol, version) == (PROTOCOL, __version__):
        return True, ""
    older = there if (protocol, _numbers(version)) < (PROTOCOL, _numbers(__version__)) else here
    theirs, ours = f"pipecycle {version} (protocol {protocol})", f"{__version__} (protocol {PROTOCOL})"
    return protocol == PROTOCOL, f"the {there} has {theirs}, the {here} {ours}: upgrade the {older}"


def _numbers(version: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", version)]


@frozen
class Order:
    """What a node is asked for: a session, or (k = -1) only who it is and what its battery holds."""

    run: str
    """A fresh word for every run, so that replies of other runs are never taken for this one's."""
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
    """Quanta for the upload, paid as the reply leaves."""
    payload: Payload = "update"
    kept: int = -1
    """The session (its k) whose model the node has kept and continues from, instead of the reference alone."""
    settled: int = -1
    """The last k that the server has on disk: older replies need not be kept."""
    seconds: float = 0.0
    """Until the reply is due."""
    slot_seconds: float = 0.0
    """How long a slot lasts; 0 where slots have no length."""
    life: str = ""
    """A number and a fresh word for every server that resumed the run by the wall clock.  What an earlier server asked
    for after its last checkpoint is forgotten, and the same k may be used again: replies to the two must differ."""

    @property
    def roll_call(self) -> bool:
        return self.k < 0

    @property
    def key(self) -> str:
        """What its reply must repeat."""
        return "" if self.roll_call else f"{self.run}/{self.life}/{self.client}/{self.k}"

    @property
    def turn(self) -> tuple[int, int]:
        """Later for later orders to a client."""
        return age(self.life), self.k

    @staticmethod
    def of(content: RecordDict) -> Order | None:
        """The order in a message; None if the message is not ours.  One in another protocol is refused: Flower carries
        the sentence to the server, whatever protocol that speaks."""
        record = content.get(OURS)
        if not isinstance(record, ConfigRecord):
            return None
        understood, why = compare(record, "node", "server")
        if not understood:
            raise InputError(why)
        known = {field.name for field in attrs.fields(Order)}
        return Order(**{key: value for key, value in record.items() if key in known})

    def record(self) -> ConfigRecord:
        return ConfigRecord({**HELLO, **attrs.asdict(self)})


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


OUTCOMES = ("present", "trained", "declined", "failed")


@frozen
class Reply:
    """What a node replies to an order, beside the weights."""

    outcome: str
    """One of OUTCOMES."""
    reason: str
    key: str
    client: int
    report: Report
    samples: int = 0
    steps: int = 0
    seconds: float = 0.0

    def records(self, extra: RecordDict | None = None) -> RecordDict:
        """For a message, beside what the app itself has returned."""
        content = RecordDict(None if extra is None else dict(extra.items()))
        content[OURS] = ConfigRecord({"outcome": self.outcome, "reason": self.reason, "key": self.key})
        figures = {"client": self.client, "battery": self.report.level, **attrs.asdict(self.report)}
        figures |= {"samples": self.samples, "steps": self.steps, "seconds": self.seconds}
        content[ENERGY] = MetricRecord(figures)
        return content
