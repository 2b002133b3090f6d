"""Which node is which client, and what is on its way to each: one message at a time.

Node ids are Flower's and may change when a node restarts; a client is the number that the node itself goes by, learnt
in a roll call (`pins` says who may claim it).  Whoever failed in any way is out of reach until it has answered a roll
call again, which it is asked for at growing intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil
from typing import Any, Literal

import attrs
from attrs import define, field, frozen
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from pipecycle.deploy.server.pins import Pins
from pipecycle.deploy.timing import RealTime, Timer
from pipecycle.deploy.wire.protocol import OURS, WAIT, Answer, Order, Refused, check_report, read_answer

Kind = Literal["present", "reply", "decline", "failed", "lost", "refused", "away"]
NODE_GONE, EXPIRED = 5, 3
WORDS = {
    0: "unknown error",
    2: "the app raised an exception",
    3: "no answer within its time",
    5: "the node is gone",
    8: "the app crashed",
}
OUSTED = "ousted"
"""What has become of a node whose reports do not count any more."""
LATE = 5.0
"""Seconds after its time for which an answer is still looked for."""
AGAIN = 10.0
"""Seconds after which a node that could not say who it is is asked again, twice as many after every further time."""
MOST_PAUSE = 16
"""Sessions' lengths for which a client that keeps failing is left alone, at most; so many times `AGAIN` for a node that
is nobody."""


@frozen
class Flight:
    """A message under way; session -1 is a roll call."""

    node: int
    client: int
    session: int
    order: Order
    until: float
    urgent: bool = True
    """Whether a slot may wait for it; nobody waits for a node that has failed to say who it is before."""


@frozen
class Arrival:
    """Something that was heard of a client or a session."""

    kind: Kind
    client: int
    session: int = -1
    why: str = ""
    name: str = ""
    """What a refused answer was refused for."""
    answer: Answer | None = None
    message: Message | None = field(default=None, repr=False)
    node: int = 0
    took: float = 0.0
    """Seconds from launch to answer."""


@define
class Standing:
    """How a client behaves."""

    strikes: int = 0
    again: int = 0
    """The slot from which it may be asked for its presence again."""


@define
class Stranger:
    """A node that has not said yet who it is, or not so that it could be believed."""

    failures: int = 0
    again: float = 0.0
    """The time from which it may be asked again."""


class Roster:
    """The bridge between clients and a Flower grid; nothing in it waits."""

    def __init__(
        self,
        grid: Grid,
        run: str,
        clients: int,
        *,
        ttl: float,
        session: int,
        most: int,
        slot_seconds: float = 0.0,
        timer: Timer | None = None,
        pins: Pins | None = None,
    ) -> None:
        self.grid, self.run, self.clients, self.ttl, self.session, self.most = grid, run, clients, ttl, session, most
        self.timer: Timer = timer or RealTime()
        self.pins = pins
        self.slot = -1
        self.node_of: dict[int, int] = {}
        self.client_of: dict[int, int] = {}
        self.flights: dict[str, Flight] = {}
        self.standing = [Standing() for _ in range(clients)]
        self._reachable: set[int] = set()
        self._strangers: dict[int, Stranger] = {}
        self._gone: set[int] = set()  # nodes of clients that are not there any more, though something is on its way
        self._early: list[Arrival] = []
        # Slots by which a node's books may be ahead of the slot that it was asked in.
        self.patience = session * (1 + WAIT) + 1
        if slot_seconds:
            self.patience = max(self.patience, ceil((ttl + LATE) / slot_seconds) + 1)

    @property
    def reachable(self) -> set[int]:
        return self._reachable

    def present(self) -> set[int]:
        return set(self.grid.get_node_ids())

    # Asking.

    def call(self, slot: int, unsure: Iterable[int] = ()) -> None:
        """Ask unknown nodes who they are, clients that were out of reach whether they are back, and the `unsure`
        ones what their batteries hold by now."""
        self.slot = slot
        online, asked = self.present(), set(unsure)
        self._gone = self.client_of.keys() - online
        if self.pins is not None:
            for one in sorted(self.pins.meet(online)):
                self._oust(one)
        self._strangers = {node: one for node, one in self._strangers.items() if node in online}
        busy = {flight.node for flight in self.flights.values()}
        for node in sorted(online - busy):
            client = self.client_of.get(node)
            if client is None:
                due = node not in self._strangers or self._strangers[node].again <= self.timer.now()
            else:
                away = client not in self._reachable
                due = (away and self.standing[client].again <= slot) or (not away and client in asked)
            if due:
                self._ask(node, -1 if client is None else client, slot)
        for node in [node for node in self.client_of if node not in online and node not in busy]:
            self._forget(node)

    def _ask(self, node: int, client: int, slot: int) -> None:
        order = Order(self.run, client=client, slot=slot, seconds=self.ttl)
        content = RecordDict({OURS: order.record(), "config": ConfigRecord({})})
        urgent = node not in self._strangers
        self._push(content, Flight(node, client, -1, order, self.timer.now() + self.ttl, urgent))

    def _forget(self, node: int) -> None:
        client = self.client_of.pop(node)
        if self.node_of.get(client) == node:
            del self.node_of[client]
            if client in self._reachable:
                self._reachable.discard(client)
                self._early.append(Arrival("away", client, why="the node is gone"))

    def launch(self, client: int, session: int, order: Order, content: RecordDict) -> None:
        """Send a session out; a refusal is heard of at the next look."""
        flight = Flight(self.node_of.get(client, 0), client, session, order, self.timer.now() + self.ttl)
        for told in [told for told, one in self.flights.items() if one.client == client]:
            del self.flights[told]  # a question about its battery, which its answer to this settles too
        if client not in self.node_of:
            self._early.append(self._fallen(flight, "the node is gone"))
        else:
            self._push(content, flight)

    def _push(self, content: RecordDict, flight: Flight) -> None:
        message = Message(content, flight.node, "train", ttl=self.ttl, group_id=str(max(0, flight.order.slot)))
        # One by one: a refused message is '' in a deployment and missing in a simulation.
        told = next(iter(self.grid.push_messages([message])), "")
        if told:
            self.flights[told] = flight
        else:
            self._early.append(self._fallen(flight, "the message was refused"))

    # Listening.

    def look(self, wanted: Callable[[Flight], bool] = lambda flight: True) -> list[Arrival]:
        """What has come of the wanted flights; nothing is waited for."""
        found, self._early = self._early, []
        ids = [told for told, flight in self.flights.items() if wanted(flight)]
        for reply in self.grid.pull_messages(ids) if ids else ():
            flight = self.flights.pop(reply.metadata.reply_to_message_id, None)
            if flight is not None:
                found.append(self._heard(flight, reply))
        now = self.timer.now()
        for told in [told for told in ids if told in self.flights and self.flights[told].until + LATE < now]:
            found.append(self._fallen(self.flights.pop(told), WORDS[EXPIRED]))
        return found

    def _heard(self, flight: Flight, reply: Message) -> Arrival:
        if reply.has_error():
            code = reply.error.code
            detail = f": {str(reply.error.reason)[:200]}" if code not in (NODE_GONE, EXPIRED) else ""
            return self._fallen(flight, f"{WORDS.get(code, 'error')} (code {code}){detail}", gone=code == NODE_GONE)
        try:
            answer = read_answer(reply)
            self._check(flight, answer)
        except Refused as error:
            arrival = self._fallen(flight, str(error)[:500])
            return _evolved(arrival, kind="refused", name=error.name)
        client = answer.client
        if flight.session < 0:
            self.client_of.pop(self.node_of.get(client, flight.node), None)  # restarted, and back under another id
            self.node_of[client], self.client_of[flight.node] = flight.node, client
            self._strangers.pop(flight.node, None)
            self._reachable.add(client)
            return Arrival("present", client, answer=answer, node=flight.node)
        kinds: dict[str, Kind] = {"trained": "reply", "declined": "decline", "failed": "failed"}
        kind = kinds[answer.outcome]
        if kind == "failed":
            self._strike(client)
        return Arrival(
            kind,
            client,
            flight.session,
            answer.reason[:500],
            answer=answer,
            message=reply,
            node=flight.node,
            took=self.timer.now() - flight.until + self.ttl,
        )

    def _check(self, flight: Flight, answer: Answer) -> None:
        """Whether the answer is this flight's and its client's."""
        if not 0 <= answer.client < self.clients:
            raise Refused("client", f"{answer.client}, needs 0 to {self.clients - 1}")
        if flight.client >= 0 and answer.client != flight.client:
            raise Refused("client", f"client {answer.client} answered in place of {flight.client}")
        if flight.session < 0:
            if self.node_of.get(answer.client, flight.node) not in (flight.node, *self._gone):
                raise Refused("client", f"client {answer.client} is another node's")
            if self.pins is not None:
                self.pins.check(answer.client, flight.node)
        if answer.key != ("" if flight.session < 0 else flight.order.key):
            raise Refused("key", f"{answer.key[:60]!r} is the answer to another order")
        if (answer.outcome == "present") != (flight.session < 0):
            raise Refused("outcome", f"{answer.outcome!r} is no answer to this order")
        check_report(answer.report, None, self.most)
        order, at = flight.order, answer.report.at
        # With the energy for its report in hand from the start there is nothing to wait for.
        waits = order.need < order.steps * order.step + order.fee
        latest = order.slot + order.steps - 1 if not waits and not order.slot_seconds else order.slot + self.patience
        if flight.session >= 0 and not order.slot <= at <= latest:
            raise Refused("at", f"slot {at}, needs {order.slot} to {latest}")
        if not -1 <= at <= self.slot + self.patience:
            raise Refused("at", f"slot {at}, it is {self.slot} now")

    # Falling out of reach.

    def _fallen(self, flight: Flight, why: str, *, gone: bool = False) -> Arrival:
        client = flight.client
        if client < 0:
            self._put_off(flight.node)
            return Arrival("lost", client, why=why, node=flight.node)
        self._strike(client, gentle=gone)
        if gone and self.client_of.get(flight.node) == client:
            self._forget(flight.node)
            self._early = [one for one in self._early if one.kind != "away" or one.client != client]
        kind: Kind = "lost" if flight.session >= 0 else "away"
        return Arrival(kind, client, flight.session, why, node=flight.node)

    def _strike(self, client: int, *, gentle: bool = False) -> None:
        """Out of reach until a roll call is answered, which is asked for at once after a first failure; the more
        there are in a row, the longer it is left alone.  That its node went away is nothing to be blamed for."""
        self._reachable.discard(client)
        standing = self.standing[client]
        standing.strikes += not gentle
        doublings = 0 if gentle else standing.strikes - 1
        standing.again = self.slot + (self.session * min(MOST_PAUSE, 2 ** (doublings - 1)) if doublings else 1)

    def _put_off(self, node: int) -> None:
        one = self._strangers.setdefault(node, Stranger())
        one.again = self.timer.now() + AGAIN * min(MOST_PAUSE, 2**one.failures)
        one.failures += 1

    def distrust(self, client: int) -> None:
        """An answer turned out to be unusable after all."""
        self._strike(client)

    def _oust(self, client: int) -> None:
        """Somebody has had the client's number who should not have."""
        node = self.node_of.pop(client, None)
        if node is not None:
            del self.client_of[node]
            self._put_off(node)
        self._reachable.discard(client)
        self._early.append(Arrival("away", client, why="another node has had its number", name=OUSTED))

    def disown(self, client: int, node: int) -> None:
        """What a node said in a roll call turned out to be unusable: it is nobody, and keeps nobody's number taken."""
        self._strike(client)
        if self.node_of.get(client) == node:
            del self.node_of[client], self.client_of[node]
        self._put_off(node)

    def trust(self, client: int) -> None:
        """A session came back in order."""
        self.standing[client].strikes = 0

    def open_roll_calls(self, nodes: Iterable[int] | None = None) -> Sequence[Flight]:
        online = set(nodes) if nodes is not None else self.present()
        return [flight for flight in self.flights.values() if flight.session < 0 and flight.node in online]


def _evolved(arrival: Arrival, **changes: Any) -> Arrival:
    return attrs.evolve(arrival, **changes)
