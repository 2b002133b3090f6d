"""The fleet that a policy meets in a live run: batteries as last reported, and forecast since.

The node's ledger is the truth.  Between its reports the fleet counts on as the simulated one does, with the expected
harvest; a report puts right whatever differs.  Flower has no channel between clients, so every member uploads its own
answer and pays for it as it leaves; the policy's `send` comes later and finds the fee paid: until then the level that
the policy sees still includes it, so that nothing is charged twice and a policy needs not know.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import attrs
import numpy as np
from attrs import define
from numpy.typing import ArrayLike, NDArray

from pipecycle.deploy.server.forecast import Forecast
from pipecycle.deploy.wire.protocol import Report
from pipecycle.energy import Quanta, at
from pipecycle.errors import BusyError
from pipecycle.fleet import ACTED, TRAINING, UNSENT, Fleet, Payload, Receiver
from pipecycle.lineage import Lineage
from pipecycle.record import record
from pipecycle.schedule import Schedule, Status
from pipecycle.streams import Ints

_NOBODY: Ints = np.empty(0, np.int64)


@define(eq=False)
class Launch:
    """Sessions that were started together and are still to be sent out."""

    sessions: Ints
    clients: Ints
    reference: int | Ints
    need: Ints
    teacher: int
    payload: Payload


@define
class Life:
    """What became of one session."""

    slot: int
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
        self.launched: list[Launch] = []
        self.lives: list[Life] = []
        self.numbers: list[int] = []  # k of every session
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
        least = np.broadcast_to(at(self.to_train if need is None else need, clients), clients.shape)
        self.launched.append(Launch(sessions, clients, reference, least.astype(np.int64), teacher, payload))
        self.lives += [Life(self.slot) for _ in sessions]
        self.numbers += self.asked[clients].tolist()
        self.asked[clients] += 1
        self._left[clients] = at(self.length, clients)
        return sessions

    def send(self, clients: Ints, to: Receiver, *, ratio: float = 1.0, last_step: bool = False) -> Ints:
        sessions = super().send(clients, to, ratio=ratio, last_step=last_step)
        self._collect_fee(clients, at(self.price(to, ratio), clients))
        return sessions

    def send_one(self, client: int, to: Receiver, *, last_step: bool = False) -> int:
        return int(self.send(np.array([client]), to, last_step=last_step)[0])

    def release(self, client: int) -> None:
        """The model is discarded, but over Flower its upload has been paid."""
        super().release(client)
        self._write_off(np.array([client]))

    def _collect_fee(self, clients: Ints, cost: Quanta) -> None:
        self.fees[clients] += cost
        self.paid[clients] = np.maximum(0, self.paid[clients] - cost)

    def _write_off(self, clients: Ints) -> None:
        """Uploads that were paid and never asked for."""
        clients = clients[self.paid[clients] > 0]
        for client in clients.tolist():
            cost = int(self.paid[client])
            self.level[client] -= cost
            self.fees[client] += cost
            self.paid[client] = 0
            self.ledger.to_server += cost
            self.sent.append((self.slot, "server", np.array([self._session[client]]), cost))

    # What is heard from nodes.

    def unsure(self, slots: int) -> list[int]:
        """Clients that are believed to have too little energy and have not been heard of for so many slots: if the
        forecast is too low they would never be asked again."""
        poor = (self._state == 0) & self.reachable & (self.level < self.to_train + self.to_report)
        found: list[int] = (poor & (self.slot - self._heard >= slots)).nonzero()[0].tolist()
        return found

    def take_launched(self) -> list[Launch]:
        launched, self.launched = self.launched, []
        return launched

    def training(self) -> Ints:
        """Sessions in flight."""
        clients = (self._state & TRAINING).nonzero()[0]
        return np.sort(self._session[clients])

    def finished(self, session: int, samples: int, fee: int, report: Report) -> None:
        client = self._end(session, Status.UNUSED, UNSENT | ACTED)
        self.lives[session].samples = samples
        self.paid[client] += fee
        self.heard(client, report)

    def gone(self, session: int, status: Status, report: Report | None = None) -> None:
        """The session will not come back: lost, refused, declined or failed."""
        client = self._end(session, status, ACTED)
        if report is not None:
            self.heard(client, report)

    def _end(self, session: int, status: Status, state: int) -> int:
        client = int(self.client.values()[session])
        life = self.lives[session]
        life.status, life.end = status, self.slot
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
        base = self._bases.get(client)
        if base is None:
            base = Base(report.harvested - report.level - report.spent, report.overflowed, 0)
            self._bases[client] = base
        self._heard[client] = self.slot
        anew = self.lost_ledger(client, report)
        self.reports[client] = report
        self._fit(client, report.capacity)
        ahead = 0
        if report.at < self.slot:
            ahead = int((self.forecast.through(self.slot) - self.forecast.through(report.at))[client])
        assert self.overflow is not None
        if anew:
            self._begin_anew(client, report, ahead)
            return
        gained = report.harvested - base.harvested + ahead - int(self.gained[client])
        overflowed = report.overflowed - base.overflowed - int(self.overflow[client])
        known = int(self.trained[client] + self.fees[client] + self.paid[client])
        spent = report.spent - base.spent - known
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

    def _begin_anew(self, client: int, report: Report, ahead: int) -> None:
        """The node has lost its ledger and opened another: only the level that it tells counts."""
        assert self.overflow is not None
        change = report.level + ahead - int(self.level[client] - self.paid[client])
        self.level[client] += change
        self.gained[client] += max(0, change)
        self.overflow[client] += max(0, -change)
        self.ledger.harvested += max(0, change)
        self.ledger.overflowed += max(0, -change)
        self._bases[client] = Base(
            report.harvested + ahead - int(self.gained[client]),
            report.overflowed - int(self.overflow[client]),
            report.spent - int(self.trained[client] + self.fees[client] + self.paid[client]),
        )
        self._overflow()

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
        return np.array([max(1, self.lives[session].samples) for session in sessions.tolist()], np.int64)

    def _tally(self, clients: Ints) -> None:
        """What clients have spent on training since the last tally belongs to the session that each had."""
        for client in clients.tolist():
            session = int(self._session[client])
            if session >= 0:
                self.lives[session].trained += int(self.trained[client] - self._tallied[client])
                self._tallied[client] = self.trained[client]

    def schedule(self, meta: dict[str, Any], lineage: Lineage) -> Schedule:
        """What has happened so far, as a schedule; the trainer can execute it and reports can open it."""
        return deepcopy(self)._schedule(meta, deepcopy(lineage))

    def _schedule(self, meta: dict[str, Any], lineage: Lineage) -> Schedule:
        self._write_off(np.arange(self.clients))
        self._tally(np.arange(self.clients))
        ledger = self.ledger
        rows = self.totals[:-1]
        rows.append((ledger.harvested, ledger.overflowed, ledger.training, ledger.to_hub, ledger.to_server))
        # A report may take back what was only expected: the running totals must not go down.
        smooth = np.minimum.accumulate(np.array(rows, np.int64)[::-1], axis=0)[::-1]
        known = self._samples_by_client()
        self.samples = None if known is None or (known == known[0]).all() else known
        self.totals = [tuple(row) for row in smooth.tolist()]
        found = record(meta, self, lineage)
        status = np.array([life.status for life in self.lives], np.uint8)
        status[lineage.update.values()] = Status.USED
        for _, _, contributors in lineage.tables:
            status[contributors] = Status.USED
        spent = np.array([life.trained for life in self.lives], np.int64)
        for _, _, senders, cost in self.sent:
            spent[senders] += cost
        end = np.array([life.end for life in self.lives], np.int32)
        return attrs.evolve(found, sessions=attrs.evolve(found.sessions, end=end, status=status, spent=spent))

    def _schedule_ends(self, clients: Ints, sessions: Ints) -> None:
        """Answers end sessions, not the clock."""

    def _samples_by_client(self) -> Ints | None:
        known = np.zeros(self.clients, np.int64)
        clients = self.client.values()
        for session, life in enumerate(self.lives):
            if life.samples:
                known[clients[session]] = life.samples
        if not known.any():
            return None
        known[known == 0] = known.max()
        return known
