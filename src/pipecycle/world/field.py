"""A fleet in the field: downloads and idling cost, batteries leak, transmissions get lost or wait, sessions fail.

What never fails and costs nothing but training and transmissions is in `pipecycle.world.fleet`, and is what the paper
has.  Ours, all of it:

* a session's price includes what the battery leaks during it, so that it never breaks off for want of energy;
* a transmission is tried again in its own slot until it arrives, has been tried often enough or the battery cannot pay
  for another try: then it is given up, and the client is free (a member that finished early and idled its reserve away
  while its group trained gives up without a try);
* who is out of contact or finds no channel free pays nothing and keeps what it has, as if it had not been asked;
* windows and channels are about the server; a hub is a neighbour, and only losses happen on the way to it;
* energy of what will not arrive is lost from the first quantum on: a doomed session's download and steps too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pipecycle.errors import BusyError
from pipecycle.world.energy import Costs, Quanta, at, quanta_per_client, uniform
from pipecycle.world.fleet import ACTED, TRAINING, Due, Fleet, Receiver, deal
from pipecycle.world.links import Air, Links
from pipecycle.world.streams import Ints, merged

_NOBODY: Ints = np.empty(0, np.int64)


class FieldFleet(Fleet):
    """Simulated batteries under real conditions; the questions and actions are the ideal fleet's."""

    def __init__(
        self,
        clients: int,
        *,
        costs: Costs | None = None,
        leak: ArrayLike = 0.0,
        links: Links | None = None,
        trial: int = 0,
        **usual: Any,
    ) -> None:
        costs = costs or Costs()
        super().__init__(clients, costs=costs, **usual)
        self.download = quanta_per_client(costs.download, clients, "cost of a download")
        self.idle = quanta_per_client(costs.idle, clients, "cost of an idle slot")
        self.leak = quanta_per_client(leak, clients, "leak")
        self.to_train = uniform(np.asarray(self.steps + self.leak * self.length + self.download, np.int64))
        self._checked = self.to_train
        self.links = links or Links()
        self.air = Air(self.links, clients, trial)
        self._fails: Due = {}
        self._wasting = 0  # quanta that doomed sessions spend per slot
        self._fetches, self._idles = bool(np.any(self.download)), bool(np.any(self.idle))
        self._channels = self.links.channels
        self._leaks = int(np.broadcast_to(self.leak, (clients,)).sum())  # all batteries, in a slot
        self._resting, self._working = uniform(self.leak + self.idle), uniform(self.leak + self.step)
        self._burn[:] = self._resting
        self._idling = int(np.broadcast_to(self.idle, (clients,)).sum())  # all who rest, in a slot
        self._drains = bool(self._leaks or self._idling)
        self._busy: list[Ints] = []  # who transmits before the costs of this slot are paid, and does not idle
        self._slots = 0  # paid so far
        self._active: Ints = np.zeros(
            clients, np.int64
        )  # slots without idling; those of open sessions count at the end
        self._missing: Ints = np.zeros(clients, np.int64)  # what empty batteries could not pay

    # The slot, in the order of its phases.

    def harvest(self, slot: int, gains: Ints, total: int, peak: int) -> None:
        super().harvest(slot, gains, total, peak)
        self._channels = self.links.channels

    def train(self) -> Ints:
        ended = self._ends.get(self.slot, ())
        done = super().train()
        for clients, _ in ended:
            self._rest(clients)
        broken = self._fails.pop(self.slot, [])
        for clients, _ in broken:
            self._state[clients] = ACTED
            self._acted = True
            self._burn[clients] = at(self._resting, clients)
            self._rest(clients)
            steps = self._steps(clients)
            self._burning -= steps
            self._wasting -= steps
        self.failed = merged(*(sessions for _, sessions in broken)) if broken else _NOBODY
        if broken:
            self.failures.append((self.slot, self.failed))
        return done

    def record(self) -> None:
        super().record()
        ledger = self.ledger
        self.totals[-1] += (ledger.download, ledger.lost, ledger.idle, ledger.leaked)

    # Questions.

    @property
    def drained(self) -> Ints:
        """Leaked and idled away, by client."""
        active = np.where(self._state & TRAINING, self._active + self._slots, self._active)
        return np.asarray(self._slots * self.leak + (self._slots - active) * self.idle - self._missing, np.int64)

    def reaching(self, clients: Ints, to: Receiver) -> Ints:
        able = super().reaching(clients, to)
        if to == "hub":
            return able
        if self._channels == 0:
            return _NOBODY
        return able[self.air.contact(able, self.slot)]

    def reaches(self, client: int, to: Receiver) -> bool:
        return len(self.reaching(np.array([client]), to)) == 1

    # Actions.

    def send(self, clients: Ints, to: Receiver, *, ratio: float = 1.0, last_step: bool = False) -> Ints:
        self._check_sending(clients, last_step)
        if to == "server":
            clients = self._admitted(clients)
        cost = at(self.price(to, ratio), clients)
        level = self.level[clients]
        sessions = self._session[clients]
        self._state[clients] = ACTED
        self._acted = True
        if self._idles and self._slots <= self.slot:  # not in the slot of a last step, which has been paid
            self._busy.append(clients)
            self._burn[clients] = at(self.leak, clients)
            self._rest(clients, starts=True)
        needed = self.air.tries(clients, to)
        tried = np.minimum(needed, self.links.tries)
        if np.any(cost):  # an empty battery can still pay for what costs nothing
            tried = np.where(np.asarray(cost) > 0, np.minimum(tried, level // np.maximum(cost, 1)), tried)
        paid: Ints = np.asarray(tried * cost, np.int64)
        self.level[clients] = level - paid
        arrived = tried == needed
        through = _total(at(self.price(to, ratio), clients[arrived]), clients[arrived])
        if to == "hub":
            self.ledger.to_hub += through
        else:
            self.ledger.to_server += through
        self.ledger.lost += int(paid.sum()) - through
        if not arrived.all():
            self.given_up.append((sessions[~arrived], paid[~arrived]))
            sessions, paid = sessions[arrived], paid[arrived]
        self.sent.append((self.slot, to, sessions, paid))
        return sessions

    def send_one(self, client: int, to: Receiver, *, last_step: bool = False) -> int:
        if not self.reaches(client, to) and super().reaches(client, to):
            raise BusyError(f"client {client} cannot send to the {to} in slot {self.slot}: it is out of reach")
        arrived = self.send(np.array([client]), to, last_step=last_step)
        return int(arrived[0]) if len(arrived) else -1

    # Inside.

    def _admitted(self, clients: Ints) -> Ints:
        """Those in contact, and of them as many as there are channels: the sessions that started first."""
        clients = clients[self.air.contact(clients, self.slot)]
        if self._channels is not None:
            if len(clients) > self._channels:
                clients = clients[np.sort(np.argsort(self._session[clients], kind="stable")[: self._channels])]
            self._channels -= len(clients)
        return clients

    def _under_way(self, clients: Ints, sessions: Ints) -> None:
        step = self.air.failures(clients, at(self.length, clients))
        doomed = step >= 0
        failing = clients[doomed]
        deal(self._fails, self.slot + step[doomed], failing, sessions[doomed])
        self._wasting += self._steps(failing)
        super()._under_way(clients[~doomed], sessions[~doomed])
        self._rest(clients, starts=True)
        if self._fetches:
            cost = at(self.download, clients)
            self.level[clients] -= cost
            lost = _total(at(self.download, failing), failing)
            self.ledger.download += _total(cost, clients) - lost
            self.ledger.lost += lost

    def _pay(self) -> None:
        """Steps, leaks and, of those who rest, idling, as far as the battery goes: who trains has enough."""
        ledger = self.ledger
        ledger.training += self._burning - self._wasting
        ledger.lost += self._wasting
        ledger.leaked += self._leaks
        ledger.idle += self._idling
        if self._drains or self._burning:
            for piece in self._pieces:
                level = self.level[piece]
                level -= self._burn[piece]
                if level.min() < 0:
                    self._forgive(piece.start + (level < 0).nonzero()[0])
        self._slots += 1
        for clients in self._busy:
            self._burn[clients] = at(self._resting, clients)
            self._rest(clients)
        self._busy.clear()

    def _forgive(self, clients: Ints) -> None:
        """Overdrawn batteries are empty: they have not paid for idling and, after that, for leaking."""
        missing = -self.level[clients]
        leaks = np.maximum(missing - self._burn[clients] + at(self.leak, clients), 0)
        self.level[clients] = 0
        self._missing[clients] += missing
        self.ledger.leaked -= int(leaks.sum())
        self.ledger.idle -= int(missing.sum()) - int(leaks.sum())

    def _rest(self, clients: Ints, *, starts: bool = False) -> None:
        """From now on the clients pay for idling; if something `starts` they no longer do."""
        if self._idles:
            idle = _total(at(self.idle, clients), clients)
            self._idling += -idle if starts else idle
            self._active[clients] += -self._slots if starts else self._slots


def _total(cost: Quanta, clients: Ints) -> int:
    return cost * len(clients) if isinstance(cost, int) else int(cost.sum())
