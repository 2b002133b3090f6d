"""The fleet that a policy meets in a live run: batteries as last reported, and forecast since.

The node's ledger is the truth.  Between its reports the fleet counts on as the simulated one does, with the expected
harvest; a report puts right whatever differs.  Flower has no channel between clients, so every member uploads its own
answer and pays for it as it leaves; the policy's `send` comes later and finds the fee paid: until then the level that
the policy sees still includes it, so that nothing is charged twice and a policy needs not know.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import attrs
import numpy as np
from attrs import define
from numpy.typing import ArrayLike, NDArray

from pipecycle.deploy.server.forecast import Forecast
from pipecycle.deploy.wire.protocol import Report
from pipecycle.errors import BusyError
from pipecycle.schedule.assemble import record
from pipecycle.schedule.schedule import Schedule, Status
from pipecycle.world.energy import Quanta, at
from pipecycle.world.fleet import ACTED, TRAINING, UNSENT, Fleet, Payload, Receiver
from pipecycle.world.lineage import Lineage
from pipecycle.world.streams import Ints

_NOBODY: Ints = np.empty(0, np.int64)


@define
class Session:
    """One session in the server's book: what its order says, and what became of it."""

    client: int
    number: int
    """How many sessions the client was asked for before (k)."""
    slot: int
    reference: int
    need: int
    teacher: int
    payload: Payload
    life: str
    status: Status = Status.IN_FLIGHT
    end: int = -1
    samples: int = 0
    trained: int = 0
    """Quanta."""


@define
class Base:
    """A node's totals when it was first heard of, so that ledgers with a past count from there."""

    harvested: int
    overflowed: int
    spent: int


class LiveFleet(Fleet):
    """Reported and forecast batteries behind the simulated fleet's questions and actions."""

    def __init__(self, clients: int, forecast: Forecast, *, session: int, capacity: ArrayLike = 1e6) -> None:
        super().__init__(clients, session=session, capacity=capacity)
        self.forecast = forecast
        self.reachable: NDArray[np.bool_] = np.zeros(clients, bool)
        self.sessions: list[Session] = []
        self.life = ""
        """Of the run, for the orders to come."""
        self.asked: Ints = np.zeros(clients, np.int64)  # sessions per client
        self.orders: Ints = np.zeros(clients, np.int64)  # messages to train per client, repeated ones too
        self.overflow = np.zeros(clients, np.int64)
        self.gained: Ints = np.zeros(clients, np.int64)
        self.trained: Ints = np.zeros(clients, np.int64)
        self.fees: Ints = np.zeros(clients, np.int64)
        self.paid: Ints = np.zeros(clients, np.int64)  # uploads that the policy has not asked for yet
        self.reports: dict[int, Report] = {}
        self._bases: dict[int, Base] = {}
        self._left: Ints = np.zeros(clients, np.int64)  # steps that each is expected to have still to do
        self._heard: Ints = np.full(clients, -1)  # the slot in which each was last heard of
        self._allowed = int(np.max(self.capacity))
        self._tallied: Ints = np.zeros(clients, np.int64)

    # The slot.

    def begin(self, slot: int) -> None:
        """A new slot with what is expected to come in."""
        gains = self.forecast.gains(slot)
        self.gained += gains
        self.harvest(slot, gains, int(gains.sum()), int(gains.max(initial=0)))

    def train(self) -> Ints:
        """One expected step of everyone who trains; sessions end by their answers."""
        busy = (self._left > 0).nonzero()[0]
        if len(busy):
            cost = at(self.step, busy)
            self.level[busy] -= cost
            self.trained[busy] += cost
            self._left[busy] -= 1
            self.ledger.training += int(np.sum(np.broadcast_to(cost, busy.shape)))
        return _NOBODY

    # Questions and actions of the policy.

    def eligible(self, need: Quanta) -> NDArray[np.bool_]:
        return super().eligible(need) & self.reachable

    def start(
        self,
        clients: Ints,
        reference: int | Ints,
        need: Quanta | None = None,
        *,
        teacher: int = -1,
        payload: Payload = "update",
    ) -> Ints:
        away = clients[~self.reachable[clients]]
        if len(away):
            raise BusyError(f"client {int(away[0])} cannot start training in slot {self.slot}: it is out of reach")
        self._tally(clients)
        sessions = super().start(clients, reference, need, teacher=teacher, payload=payload)
        references = np.broadcast_to(reference, clients.shape).tolist()
        least = np.broadcast_to(at(self.to_train if need is None else need, clients), clients.shape).tolist()
        self.sessions += [
            Session(client, number, self.slot, version, quanta, teacher, payload, self.life)
            for client, number, version, quanta in zip(
                clients.tolist(), self.asked[clients].tolist(), references, least, strict=True
            )
        ]
        self.asked[clients] += 1
        self._left[clients] = at(self.length, clients)
        return sessions

    def send(self, clients: Ints, to: Receiver, *, ratio: float = 1.0, last_step: bool = False) -> Ints:
        sessions = super().send(clients, to, ratio=ratio, last_step=last_step)
        cost = at(self.price(to, ratio), clients)
        self.fees[clients] += cost
        self.paid[clients] = np.maximum(0, self.paid[clients] - cost)
        return sessions

    def send_one(self, client: int, to: Receiver, *, last_step: bool = False) -> int:
        return int(self.send(np.array([client]), to, last_step=last_step)[0])

    def release(self, client: int) -> None:
        """The model is discarded, but over Flower its upload has been paid."""
        super().release(client)
        cost = int(self.paid[client])
        if cost:
            self.level[client] -= cost
            self.fees[client] += cost
            self.paid[client] = 0
            self.ledger.to_server += cost
            self.sent.append((self.slot, "server", self._session[[client]], cost))

    # What is heard from nodes.

    def unsure(self, slots: int) -> list[int]:
        """Clients that are believed to have too little energy and have not been heard of for so many slots: if the
        forecast is too low they would never be asked again."""
        poor = (self._state == 0) & self.reachable & (self.level < self.to_train + self.to_report)
        unsure: list[int] = (poor & (self.slot - self._heard >= slots)).nonzero()[0].tolist()
        return unsure

    def training(self) -> Ints:
        """Sessions in flight."""
        clients = (self._state & TRAINING).nonzero()[0]
        return np.sort(self._session[clients])

    def finished(self, session: int, samples: int, fee: int, report: Report) -> None:
        client = self._end(session, Status.UNUSED, UNSENT | ACTED)
        self.sessions[session].samples = samples
        self.paid[client] += fee
        self.heard(client, report)

    def gone(self, session: int, status: Status, report: Report | None = None) -> None:
        """The session will not come back: lost, refused, declined or failed."""
        client = self._end(session, status, ACTED)
        if report is not None:
            self.heard(client, report)

    def _end(self, session: int, status: Status, state: int) -> int:
        ended = self.sessions[session]
        ended.status, ended.end = status, self.slot
        client = ended.client
        self._state[client] = state
        self._acted = True
        self._left[client] = 0
        return client

    def lost_ledger(self, client: int, report: Report) -> bool:
        """Whether a node tells less than it did before, as only one with a new ledger does."""
        before = self.reports.get(client)
        return before is not None and report.behind(before)

    def news(self, client: int, report: Report) -> bool:
        """Whether a roll call's totals count.  Who has a session under way speaks with its answer: totals that hold the
        session already would make that answer look unpaid."""
        return not self._state[client] & TRAINING or self.lost_ledger(client, report)

    def unhear(self, client: int) -> None:
        """What was reported was another's: the next report is taken as the first."""
        self.reports.pop(client, None)
        self._bases.pop(client, None)

    def heard(self, client: int, report: Report) -> None:
        """Put the books right by a node's own: its totals, and the forecast since the slot they are for."""
        assert self.overflow is not None
        ahead = 0
        if report.at < self.slot:
            ahead = int((self.forecast.through(self.slot) - self.forecast.through(report.at))[client])
        gained, overflowed = int(self.gained[client]), int(self.overflow[client])
        spent = int(self.trained[client] + self.fees[client] + self.paid[client])
        if self.lost_ledger(client, report):  # only the level that the new one tells counts
            change = report.level + ahead - int(self.level[client] - self.paid[client])
            self._bases[client] = Base(
                report.harvested + ahead - gained - max(0, change),
                report.overflowed - overflowed - max(0, -change),
                report.spent - spent,
            )
        base = self._bases.setdefault(client, Base(report.overflowed, report.overflowed, 0))
        self._heard[client], self.reports[client] = self.slot, report
        self._fit(client, report.capacity)
        gained = report.harvested - base.harvested + ahead - gained
        overflowed = report.overflowed - base.overflowed - overflowed
        spent = report.spent - base.spent - spent
        self.gained[client] += gained
        self.overflow[client] += overflowed
        self.trained[client] += spent
        self.ledger.harvested += gained
        self.ledger.overflowed += overflowed
        self.ledger.training += spent
        self.level[client] += gained - overflowed - spent
        self._overflow()

    def _overflow(self) -> None:
        """What exceeds the capacity is lost: a harvest, or the forecast since the slot that a report is for.  Uploads
        that are still in the policy's level have left the battery already, and made room."""
        assert self.overflow is not None
        excess = np.maximum(self.level - self.paid - self.capacity, 0)
        self.level -= excess
        self.overflow += excess
        self.ledger.overflowed += int(excess.sum())
        self._ceiling = int(self.level.max(initial=0))

    def most_spent(self, client: int) -> int:
        """What a node's ledger may show as spent on this run at most.

        Flower hands a message to a node once, and a node charges an order once: every order is a session's energy at
        most, also one whose session broke off and was asked for again."""
        base = self._bases.get(client)
        cost = at(self.to_train, np.array([client])) + at(self.to_server, np.array([client]))
        return (0 if base is None else base.spent) + int(self.orders[client]) * int(np.max(cost))

    def _fit(self, client: int, capacity: int) -> None:
        """A node may hold less than the run allows."""
        most = min(capacity, self._allowed)
        if most != at(self.capacity, np.array([client])):
            self.capacity = np.broadcast_to(np.asarray(self.capacity), (self.clients,)).copy()
            self.capacity[client] = most
            self._lowest_capacity = int(self.capacity.min())

    # The record.

    def true_level(self) -> Ints:
        """Without the uploads that the policy has not asked for yet: what the batteries hold."""
        return self.level - self.paid

    def samples_of(self, sessions: Ints) -> Ints:
        return np.array([max(1, self.sessions[session].samples) for session in sessions.tolist()], np.int64)

    def _tally(self, clients: Ints) -> None:
        """What clients have spent on training since the last tally belongs to the session that each had."""
        for client in clients.tolist():
            session = int(self._session[client])
            if session >= 0:
                self.sessions[session].trained += int(self.trained[client] - self._tallied[client])
                self._tallied[client] = self.trained[client]

    def schedule(self, meta: dict[str, Any], lineage: Lineage) -> Schedule:
        """What has happened so far, as a schedule; the trainer can execute it and reports can open it."""
        last, ledger = copy(self), self.ledger
        assert self.overflow is not None
        last.level, last.overflow = self.true_level(), self.overflow.copy()
        last.sent = list(self.sent)
        for client in (self.paid > 0).nonzero()[0].tolist():  # uploads that were never asked for
            last.sent.append((self.slot, "server", self._session[[client]], int(self.paid[client])))
        totals = (ledger.harvested, ledger.overflowed, ledger.training, ledger.to_hub)
        rows = np.array([*self.totals[:-1], (*totals, ledger.to_server + int(self.paid.sum()))], np.int64)
        # A report may take back what was only expected: the running totals must not go down.
        last.totals = [tuple(row) for row in np.minimum.accumulate(rows[::-1], axis=0)[::-1].tolist()]
        last.samples = self._samples_by_client()
        schedule = record(meta, last, lineage)
        sessions, versions = schedule.sessions, schedule.versions
        status = np.array([session.status for session in self.sessions], np.uint8)
        status[versions.update] = status[schedule.tables.session] = Status.USED
        spent = np.array([session.trained for session in self.sessions], np.int64)
        current = self._session[self._session >= 0]
        spent[current] += (self.trained - self._tallied)[self._session >= 0]
        for _, _, senders, cost in last.sent:
            spent[senders] += cost
        end = np.array([session.end for session in self.sessions], np.int32)
        # The columns grow on; the schedule has copies.
        return attrs.evolve(
            schedule,
            sessions=attrs.evolve(sessions, client=sessions.client.copy(), end=end, status=status, spent=spent),
            versions=attrs.evolve(
                versions,
                base=versions.base.copy(),
                coefficient=versions.coefficient.copy(),
                update=versions.update.copy(),
                weight=versions.weight.copy(),
            ),
        )

    def _schedule_ends(self, clients: Ints, sessions: Ints) -> None:
        """Answers end sessions, not the clock."""

    def _samples_by_client(self) -> Ints | None:
        """Of each client's last session; None if all are equal."""
        known = np.zeros(self.clients, np.int64)
        for session in self.sessions:
            if session.samples:
                known[session.client] = session.samples
        known[known == 0] = known.max()
        return None if (known == known[0]).all() else known
