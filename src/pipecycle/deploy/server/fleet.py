"""The fleet that a policy meets in a live run: batteries as last reported, and forecast since.

The node's ledger is the truth.  Between its reports the fleet is stepped like the simulated one, with the expected
harvest; a report corrects it.  Flower has no channel between clients, so every member uploads its own reply and pays as
it leaves; the policy's `send` comes later and finds the fee paid.  Until then the level that the policy sees still
includes the fee, so that nothing is charged twice and policies need not know.
"""

from __future__ import annotations

from copy import copy, deepcopy
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

_NONE: Ints = np.empty(0, np.int64)


@define
class Session:
    """One session: what its order says, and how it ended."""

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


class LiveFleet(Fleet):
    """Reported and forecast batteries behind the simulated fleet's questions and actions."""

    def __init__(self, clients: int, forecast: Forecast, *, session: int, capacity: ArrayLike = 1e6) -> None:
        super().__init__(clients, session=session, capacity=capacity)
        self.forecast = forecast
        self.reachable: NDArray[np.bool_] = np.zeros(clients, bool)
        self.sessions: list[Session] = []
        self.launched: list[dict[str, Any]] = []  # what has been started since the last orders, as the trace tells it
        self.life = ""
        """Of the run, for the orders to come."""
        self.asked: Ints = np.zeros(clients, np.int64)  # sessions per client
        self.orders: Ints = np.zeros(clients, np.int64)  # messages to train per client, repeated ones too
        self.ended: Ints = np.full(clients, -1)  # the number of each client's last session that has ended
        self.settled: Ints = self.ended.copy()  # the same as of the last checkpoint
        self.gained: Ints = np.zeros(clients, np.int64)
        self.trained: Ints = np.zeros(clients, np.int64)
        self.fees: Ints = np.zeros(clients, np.int64)
        self.paid: Ints = np.zeros(clients, np.int64)  # uploads that the policy has not asked for yet
        self.reports: dict[int, Report] = {}
        self._bases: dict[int, Ints] = {}  # what a ledger had harvested, overflowed and spent before us
        self._left: Ints = np.zeros(clients, np.int64)  # steps that each is expected to have still to do
        self._reported: Ints = np.full(clients, -1)  # the slot in which each reported last
        self._allowed = int(np.max(self.capacity))
        self._tallied: Ints = np.zeros(clients, np.int64)

    # The slot.

    def begin(self, slot: int) -> None:
        """A new slot with what is expected to come in."""
        gains = self.forecast.gains(slot)
        self.gained += gains
        self.harvest(slot, gains, int(gains.sum()), int(gains.max(initial=0)))

    def train(self) -> Ints:
        """One expected step of everyone who trains; sessions end by their replies."""
        busy = (self._left > 0).nonzero()[0]
        if len(busy):
            cost = at(self.step, busy)
            self.level[busy] -= cost
            self.trained[busy] += cost
            self._left[busy] -= 1
            self.ledger.training += int(np.sum(np.broadcast_to(cost, busy.shape)))
        return _NONE

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
        versions = reference if isinstance(reference, int) else reference.tolist()
        launch = {"sessions": sessions.tolist(), "clients": clients.tolist(), "reference": versions, "payload": payload}
        self.launched.append(launch)
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

    # What nodes report.

    def unsure(self, slots: int) -> list[int]:
        """Clients that are believed to have too little energy and have not reported for so many slots: if the forecast
        is too low they would never be asked again."""
        poor = (self._state == 0) & self.reachable & (self.level < self.to_train + self.to_report)
        unsure: list[int] = (poor & (self.slot - self._reported >= slots)).nonzero()[0].tolist()
        return unsure

    def training(self) -> Ints:
        """Sessions in flight."""
        clients = (self._state & TRAINING).nonzero()[0]
        return np.sort(self._session[clients])

    def end(self, session: int, status: Status, report: Report | None, *, samples: int = 0, fee: int = 0) -> None:
        """A session has ended: with an update (`UNUSED` so far), or lost or declined."""
        ended = self.sessions[session]
        client = ended.client
        ended.status, ended.end, ended.samples = status, self.slot, samples
        self.ended[client] = max(int(self.ended[client]), ended.number)
        self._state[client] = UNSENT | ACTED if status == Status.UNUSED else ACTED
        self._acted = True
        self._left[client] = 0
        self.paid[client] += fee
        if report is not None:
            self.correct(client, report)

    def present(self, client: int, report: Report) -> None:
        """A client has answered a roll call.  If it has a session under way its totals do not count yet: they may
        include the session, and would make the reply look unpaid."""
        self.reachable[client] = True
        if not self._state[client] & TRAINING or self.lost_ledger(client, report):
            self.correct(client, report)

    def lost_ledger(self, client: int, report: Report) -> bool:
        """Whether a node reports less than before, which only a node with a new ledger does."""
        before = self.reports.get(client)
        return before is not None and report.behind(before)

    def correct(self, client: int, report: Report) -> None:
        """Correct the books by a node's own: its totals, and the forecast since the slot they are for."""
        ahead = 0
        if report.at < self.slot:
            ahead = int((self.forecast.through(self.slot) - self.forecast.through(report.at))[client])
        totals = np.array([report.harvested + ahead, report.overflowed, report.spent])
        spent = self.trained[client] + self.fees[client] + self.paid[client]
        books = np.array([self.gained[client], self.overflow[client], spent])
        if self.lost_ledger(client, report):  # of a new ledger only the level counts
            change = report.level + ahead - int(self.level[client] - self.paid[client])
            self._bases[client] = totals - books - [max(0, change), max(0, -change), 0]
        base = self._bases.setdefault(client, np.array([report.overflowed, report.overflowed, 0]))
        self._reported[client], self.reports[client] = self.slot, report
        self._fit(client, report.capacity)
        gained, overflowed, spent = (totals - base - books).tolist()
        self.gained[client] += gained
        self.overflow[client] += overflowed
        self.trained[client] += spent
        self.ledger.harvested += gained
        self.ledger.overflowed += overflowed
        self.ledger.training += spent
        self.level[client] += gained - overflowed - spent
        self._overflow()

    def _overflow(self) -> None:
        """What exceeds the capacity is lost.  Uploads that are still in the policy's level have left the battery
        already, and made room."""
        excess = np.maximum(self.level - self.paid - self.capacity, 0)
        self.level -= excess
        self.overflow += excess
        self.ledger.overflowed += int(excess.sum())
        self._safe = self._gained + int(np.min(self.capacity - self.level))

    def most_spent(self, client: int) -> int:
        """The most that a node's ledger may show as spent on this run.

        Flower delivers a message once, and a node charges an order once: every order costs a session's energy at most,
        including those whose session broke off and was ordered again."""
        cost = at(self.to_train, np.array([client])) + at(self.to_server, np.array([client]))
        before = int(self._bases[client][2]) if client in self._bases else 0
        return before + int(self.orders[client]) * int(np.max(cost))

    def _fit(self, client: int, capacity: int) -> None:
        """A node may hold less than the run allows."""
        most = min(capacity, self._allowed)
        if most != at(self.capacity, np.array([client])):
            self.capacity = np.broadcast_to(np.asarray(self.capacity), (self.clients,)).copy()
            self.capacity[client] = most

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
        status = np.array([session.status for session in self.sessions], np.uint8)
        status[schedule.versions.update] = status[schedule.tables.session] = Status.USED
        spent = np.array([session.trained for session in self.sessions], np.int64)
        current = self._session[self._session >= 0]
        spent[current] += (self.trained - self._tallied)[self._session >= 0]
        for _, _, senders, cost in last.sent:
            spent[senders] += cost
        end = np.array([session.end for session in self.sessions], np.int32)
        schedule = deepcopy(schedule)  # its columns are the fleet's and the lineage's, which grow
        return attrs.evolve(schedule, sessions=attrs.evolve(schedule.sessions, end=end, status=status, spent=spent))

    def _under_way(self, clients: Ints, sessions: Ints) -> None:
        """Replies end sessions, not the clock."""

    def _samples_by_client(self) -> Ints | None:
        """Of each client's last session; None if all are equal."""
        known = np.zeros(self.clients, np.int64)
        for session in self.sessions:
            if session.samples:
                known[session.client] = session.samples
        known[known == 0] = known.max()
        return None if (known == known[0]).all() else known
