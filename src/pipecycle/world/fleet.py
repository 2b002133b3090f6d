"""The clients: their batteries, what each is doing, and the only place where energy is spent."""

from __future__ import annotations

from typing import Literal, NoReturn

import numpy as np
from attrs import define
from numpy.typing import ArrayLike, NDArray

from pipecycle.errors import BusyError, EnergyError, InputError
from pipecycle.world.columns import Column
from pipecycle.world.energy import (
    UNIT,
    Costs,
    Quanta,
    at,
    each,
    figures,
    per_client,
    quanta,
    quanta_per_client,
    show,
    uniform,
)
from pipecycle.world.streams import Ints, merged

Payload = Literal["update", "logits"]
Receiver = Literal["hub", "server"]
Totals = tuple[int, ...]
"""Quanta harvested, overflowed, spent on training, sent to hubs and to the server, from slot 0; of a fleet in the field
also downloaded, lost, idled away and leaked."""

# What a client is doing, one bit each; a client with no bit set is free.
TRAINING, UNSENT, HOLDING, ACTED = 1, 2, 4, 8
_WORDS = {TRAINING: "training", UNSENT: "keeping an unsent update", HOLDING: "holding a hub model", ACTED: "done"}
_NOT_ACTED = np.uint8(0xFF ^ ACTED)
_NO_SENDING = np.ones(16, bool)  # by state
_NO_SENDING[[UNSENT, HOLDING]] = False
_NO_SENDING_AT_ONCE = _NO_SENDING.copy()
_NO_SENDING_AT_ONCE[[UNSENT | ACTED, HOLDING | ACTED]] = False
_NOBODY: Ints = np.empty(0, np.int64)
_PIECE = 1 << 15  # batteries that are gone through at a time: few enough to stay in cache

Due = dict[int, list[tuple[Ints, Ints]]]
"""Clients and their sessions by slot."""


@define
class Ledger:
    """Quanta so far.  `harvested` includes the initial charge, so that always harvested = spent + stored + overflowed
    + idle + leaked.  The last four figures are of a fleet in the field only (`pipecycle.world.field`)."""

    harvested: int = 0
    overflowed: int = 0
    training: int = 0
    to_hub: int = 0
    to_server: int = 0
    download: int = 0
    lost: int = 0
    """Transmissions that did not arrive, and sessions that failed."""
    idle: int = 0
    leaked: int = 0

    @property
    def spent(self) -> int:
        return self.training + self.to_hub + self.to_server + self.download + self.lost

    @property
    def stored(self) -> int:
        return self.harvested - self.overflowed - self.spent - self.idle - self.leaked


class Fleet:
    """Simulated batteries, one entry per client.

    Energy figures are quanta (see `pipecycle.world.energy`).  `to_train`, `to_hub`, `to_server` say what a whole
    session and the two kinds of transmission cost; each is one number, or one per client.
    """

    def __init__(
        self,
        clients: int,
        *,
        session: ArrayLike = 20,
        capacity: ArrayLike = 1e6,
        initial: ArrayLike = 0.0,
        costs: Costs | None = None,
        samples: ArrayLike | None = None,
    ) -> None:
        costs = costs or Costs()
        self.clients = clients
        lengths = figures(session, "session", "a whole number of at least 1 slot", 1, np.inf, whole=True)
        self.length = per_client(lengths.astype(np.int64), clients, "session")
        self.capacity = quanta_per_client(capacity, clients, "capacity")
        self.samples: Ints | None = None
        if samples is not None:
            needs = "a whole number of at least 1 per client"
            counts = figures(samples, "samples", needs, 1, np.inf, whole=True)
            self.samples = each(counts, clients, "samples").astype(np.int64)
        self.step = quanta_per_client(costs.step, clients, "cost of a step")
        self.to_hub = quanta_per_client(costs.to_hub, clients, "cost to the hub")
        self.to_server = quanta_per_client(costs.to_server, clients, "cost to the server")
        self.steps = uniform(self.step * self.length)  # all of a session
        self.to_train = self.steps
        self.download: Quanta = 0
        self.initial = quanta_per_client(initial, clients, "initial")
        if np.any(self.initial > self.capacity):
            most, held = int(np.max(self.initial)), int(np.min(self.capacity))
            raise InputError(f"initial = {show(most)}: needs at most the battery's capacity of {show(held)}")
        if float(np.max(self.initial)) * clients >= 2.0**63:
            raise InputError(
                f"initial = {show(int(np.max(self.initial)))}: {clients} clients hold 8.8e12 units at most"
            )

        self.level: Ints = np.empty(clients, np.int64)
        self.level[:] = self.initial
        self.reference: Ints = np.zeros(clients, np.int64)  # the version that each one's last session started from
        self.overflow: Ints = np.zeros(clients, np.int64)
        self.ledger = Ledger(harvested=int(self.level.sum()))
        self.slot = -1
        self.client = Column(np.int32)  # of every session
        self.launches: list[tuple[int, int, int | Ints, int, Payload]] = []  # slot, count, reference, teacher, payload
        self.sent: list[tuple[int, Receiver, Ints, Quanta]] = []  # slot, receiver, sessions, quanta each
        self.failures: list[tuple[int, Ints]] = []  # slot, sessions
        self.given_up: list[tuple[Ints, Ints]] = []  # sessions, quanta each
        self.totals: list[Totals] = []  # of every slot that is over
        self.failed: Ints = _NOBODY  # sessions that broke off in this slot

        self._state: NDArray[np.uint8] = np.zeros(clients, np.uint8)
        self._session: Ints = np.full(clients, -1)  # current or last one
        self._resting: Quanta = 0  # what a battery loses in a slot without and with a training step
        self._working: Quanta = self.step
        self._burn: Ints = np.zeros(clients, np.int64)  # which of the two each client is at
        self._burning = 0  # quanta of all training steps of a slot
        self._ends: Due = {}
        self._acted = False  # has anybody, in this slot?
        self._checked: Quanta = self.to_train  # the last `need` that was found to last through a session
        self._pieces = [slice(first, first + _PIECE) for first in range(0, clients, _PIECE)]
        self._gained, self._safe = 0, -1  # the sum of peaks, which no battery has gained more than; the least limit
        self._limits = [-1] * len(self._pieces)  # what that may come to before a battery of a piece can be full

    # The slot, in the order of its phases.

    def harvest(self, slot: int, gains: Ints, total: int, peak: int) -> None:
        """Every battery gains (a row that sums to `total`, no entry above `peak`); a new slot begins."""
        self.slot = slot
        if self._acted:
            self._state &= _NOT_ACTED
            self._acted = False
        self.level += gains
        self.ledger.harvested += total
        self._gained += peak
        if self._gained > self._safe:
            self._overflow()

    def train(self) -> Ints:
        """One step of everyone who trains; returns the sessions whose last step it was."""
        self._pay()
        ended = self._ends.pop(self.slot, None)
        if ended is None:
            return _NOBODY
        for clients, _ in ended:
            self._state[clients] = UNSENT | ACTED
            self._burn[clients] = at(self._resting, clients)
            self._burning -= self._steps(clients)
        self._acted = True
        if len(ended) == 1:
            return ended[0][1]
        return merged(*(sessions for _, sessions in ended))

    def record(self) -> None:
        """The slot is over: keep the ledger's totals."""
        ledger = self.ledger
        self.totals.append((ledger.harvested, ledger.overflowed, ledger.training, ledger.to_hub, ledger.to_server))

    # Questions.

    @property
    def drained(self) -> Ints | None:
        """Leaked and idled away, by client, where that happens."""
        return None

    def eligible(self, need: Quanta) -> NDArray[np.bool_]:
        """For every client: nothing to do or to send, no action yet in this slot, and at least `need` stored."""
        mask: NDArray[np.bool_] = (self._state == 0) & (self.level >= need)
        return mask

    def free(self, need: Quanta) -> Ints:
        """The eligible clients."""
        return self.eligible(need).nonzero()[0]

    def unsent(self, cost: Quanta) -> Ints:
        """Clients that finished a session in an earlier slot, have not sent its update and can pay `cost`."""
        mask: NDArray[np.bool_] = (self._state == UNSENT) & (self.level >= cost)
        return mask.nonzero()[0]

    def reaching(self, clients: Ints, to: Receiver) -> Ints:
        """Those of the clients that could transmit a whole model now; here, all that can pay for it."""
        return clients[self.level[clients] >= at(self.price(to), clients)]

    def reaches(self, client: int, to: Receiver) -> bool:
        """`reaching` for a single client."""
        cost = self.to_hub if to == "hub" else self.to_server
        return bool(self.level[client] >= (cost if isinstance(cost, int) else cost[client]))

    def client_of(self, sessions: Ints) -> Ints:
        return self.client[sessions].astype(np.int64)

    @property
    def to_report(self) -> Quanta:
        """The dearer of the two transmissions, for members who do not know yet whether they will be the hub."""
        if isinstance(self.to_hub, int) and isinstance(self.to_server, int):
            return max(self.to_hub, self.to_server)
        return uniform(np.maximum(self.to_hub, self.to_server))

    # Actions.

    def start(
        self,
        clients: Ints,
        reference: int | Ints,
        need: Quanta | None = None,
        *,
        teacher: int = -1,
        payload: Payload = "update",
    ) -> Ints:
        """Begin a session of every client, this slot being its first; returns the session ids.

        `need` is what the client must hold to be let in; training it through is the least."""
        if need is None:
            need = self.to_train
        elif need is not self._checked:
            self._checked = self._enough(need)
        state = self._state[clients]
        if np.count_nonzero(state):
            self._refuse_busy(clients, state, "start training")
        level = self.level[clients]
        least = at(need, clients)
        if np.count_nonzero(level < least):
            self._refuse_energy(clients, level, least, "train")
        first = len(self.client)
        sessions = np.arange(first, first + len(clients))
        self._session[clients] = sessions
        if np.count_nonzero(self._session[clients] != sessions):
            raise BusyError(f"slot {self.slot}: a client was started twice in one call")
        self.client.extend(clients)
        self.launches.append((self.slot, len(clients), reference, teacher, payload))
        self.reference[clients] = reference
        self._state[clients] = TRAINING
        self._burn[clients] = at(self._working, clients)
        self._burning += self._steps(clients)
        self._under_way(clients, sessions)
        return sessions

    def send(self, clients: Ints, to: Receiver, *, ratio: float = 1.0, last_step: bool = False) -> Ints:
        """Transmit the unsent update or held model of every client; returns the sessions of those that arrived.

        Here all do.  In the field (`pipecycle.world.field`) some are lost, and some have to wait: their clients are as
        if they had not been asked.  `ratio` is the size relative to a whole model.  `last_step` allows it in the slot
        of the session's own last step, as the paper's Algorithm 1 does for groups."""
        self._check_sending(clients, last_step)
        cost = self.price(to, ratio)
        if not isinstance(cost, int):
            cost = cost[clients]
        level = self.level[clients]
        if np.count_nonzero(level < cost):
            self._refuse_energy(clients, level, cost, f"send to the {to}")
        self.level[clients] = level - cost
        paid = cost * len(clients) if isinstance(cost, int) else int(cost.sum())
        if to == "hub":
            self.ledger.to_hub += paid
        else:
            self.ledger.to_server += paid
        self._state[clients] = ACTED
        self._acted = True
        sessions = self._session[clients]
        self.sent.append((self.slot, to, sessions, cost))
        return sessions

    def send_one(self, client: int, to: Receiver, *, last_step: bool = False) -> int:
        """`send` for a single client, as hubs, stars and heads do at every event: the same rules, ten times faster.

        -1 if it is lost.  A client that does not reach the receiver is refused: ask `reaches` first."""
        state = int(self._state[client])
        cost = self.to_hub if to == "hub" else self.to_server
        if not isinstance(cost, int):
            cost = int(cost[client])
        level = int(self.level[client])
        if (_NO_SENDING_AT_ONCE if last_step else _NO_SENDING)[state] or level < cost:
            return int(self.send(np.array([client]), to, last_step=last_step)[0])  # refuses, with the reason
        self.level[client] = level - cost
        if to == "hub":
            self.ledger.to_hub += cost
        else:
            self.ledger.to_server += cost
        self._state[client] = ACTED
        self._acted = True
        session = int(self._session[client])
        self.sent.append((self.slot, to, np.array((session,)), cost))
        return session

    def price(self, to: Receiver, ratio: float = 1.0) -> Quanta:
        """What a transmission costs; a part of a model costs that part, rounded up to a quantum."""
        whole = self.to_hub if to == "hub" else self.to_server
        if ratio == 1.0:
            return whole
        return uniform(np.asarray(quanta(np.asarray(whole) / UNIT * ratio)))

    def hold(self, client: int) -> None:
        """The client keeps its group's model: it is not free until it sends or releases it."""
        if not self._state[client] & UNSENT:
            self._refuse_busy(np.array([client]), self._state[[client]], "hold a model")
        self._state[client] = HOLDING | (self._state[client] & ACTED)

    def release(self, client: int) -> None:
        """The held model is discarded: the client is free again and pays nothing."""
        if not self._state[client] & HOLDING:
            self._refuse_busy(np.array([client]), self._state[[client]], "release a model")
        self._state[client] &= ACTED

    # Inside.

    def _check_sending(self, clients: Ints, last_step: bool) -> None:
        state = self._state[clients]
        refused = (_NO_SENDING_AT_ONCE if last_step else _NO_SENDING)[state]
        if np.count_nonzero(refused):
            self._refuse_busy(clients[refused], state[refused], "send")

    def _enough(self, need: Quanta) -> Quanta:
        """`need`, refused if it would not last through a session."""
        if isinstance(need, int) and isinstance(self.to_train, int):
            enough = need >= self.to_train
        else:
            enough = bool(np.all(np.asarray(need) >= self.to_train))
        if not enough:
            raise InputError(f"need = {show(int(np.min(need)))}: a session costs {show(int(np.max(self.to_train)))}")
        return need

    def _steps(self, clients: Ints) -> int:
        if isinstance(self.step, int):
            return self.step * len(clients)
        return int(self.step[clients].sum())

    def _under_way(self, clients: Ints, sessions: Ints) -> None:
        if isinstance(self.length, int):
            self._ends.setdefault(self.slot + self.length - 1, []).append((clients, sessions))
        else:
            deal(self._ends, self.slot + self.length[clients] - 1, clients, sessions)

    def _pay(self) -> None:
        """Everybody's costs of a slot, apart from transmissions."""
        if self._burning:
            self.level -= self._burn
            self.ledger.training += self._burning

    def _overflow(self) -> None:
        for place, piece in enumerate(self._pieces):
            if self._gained <= self._limits[place]:
                continue
            excess = self.level[piece] - (self.capacity if isinstance(self.capacity, int) else self.capacity[piece])
            fullest = int(excess.max())
            self._limits[place] = self._gained + max(0, -fullest)
            if fullest > 0:
                np.maximum(excess, 0, out=excess)
                self.level[piece] -= excess
                self.ledger.overflowed += int(excess.sum())
                self.overflow[piece] += excess
        self._safe = min(self._limits)

    def _refuse_busy(self, clients: Ints, state: NDArray[np.uint8], action: str) -> NoReturn:
        worst = int(np.argmax(state != 0)) if state.any() else 0
        client, bits = int(clients[worst]), int(state[worst])
        doing = " and ".join(word for bit, word in _WORDS.items() if bits & bit and bit != ACTED)
        if bits & ACTED:
            doing = f"{doing + ' and ' if doing else ''}done with its one action of the slot"
        raise BusyError(
            f"client {client} cannot {action} in slot {self.slot}: it is {doing or 'idle'}, "
            f"battery {show(int(self.level[client]))} units"
        )

    def _refuse_energy(self, clients: Ints, level: Ints, need: Quanta, action: str) -> NoReturn:
        worst = int(np.argmax(level < need))
        least = need if isinstance(need, int) else int(need[worst])
        raise EnergyError(
            f"client {int(clients[worst])} cannot {action} in slot {self.slot}: "
            f"battery {show(int(level[worst]))} units, needs {show(least)}"
        )


def deal(due: Due, slots: Ints, clients: Ints, sessions: Ints) -> None:
    """Write each session down for its slot."""
    for slot in np.unique(slots).tolist():
        mine = slots == slot
        due.setdefault(slot, []).append((clients[mine], sessions[mine]))
