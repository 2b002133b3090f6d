"""Which node is which client, and what is on its way to each: one message at a time.

Node ids are Flower's and may change when a node restarts; a client is the number that the node itself goes by, learnt
in a roll call (`pins` says who may claim it).  Whoever failed in any way is out of reach until it has answered a roll
call again, which it is asked for at growing intervals.  Whatever is heard becomes an event: a line of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
from attrs import define, frozen
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from pipecycle.deploy.server.pins import Pins
from pipecycle.deploy.server.replies import LATE, Replies
from pipecycle.deploy.server.trace import Event
from pipecycle.deploy.timing import Timer
from pipecycle.deploy.wire.arrays import Refused
from pipecycle.deploy.wire.protocol import OURS, Order
from pipecycle.world.energy import units

NODE_GONE, EXPIRED = 5, 3
WORDS = {
    0: "unknown error",
    2: "the app raised an exception",
    3: "no answer within its time",
    5: "the node is gone",
    8: "the app crashed",
}
KINDS = {"present": "roll-call", "trained": "reply", "declined": "decline", "failed": "lost"}
"""Events by the outcome of an answer."""
OUSTED = "ousted"
"""What has become of a node whose reports do not count any more."""
AGAIN = 10.0
"""Seconds after which a node that could not say who it is is asked again, twice as many after every further time."""
MOST_PAUSE = 16
"""Sessions' lengths for which a client that keeps failing is left alone, at most; so many times `AGAIN` for a node that
is nobody."""


@frozen
class Flight:
    """A message under way; session -1 is a roll call."""

    node: int
    session: int
    order: Order
    until: float
    urgent: bool = True
    """Whether a slot may wait for it; nobody waits for a node that has failed to say who it is before."""

    @property
    def client(self) -> int:
        return self.order.client


@define
class Standing:
    """How a client, or a node that is nobody yet, behaves."""

    failures: int = 0
    again: float = 0.0
    """The slot (of a client) or time (of a node) from which it may be asked for its presence again."""


class Roster:
    """The bridge between clients and a Flower grid; nothing in it waits."""

    def __init__(self, grid: Grid, run: str, replies: Replies, timer: Timer, pins: Pins | None = None) -> None:
        self.grid, self.run, self.replies, self.timer, self.pins = grid, run, replies, timer, pins
        self.session, self.ttl = replies.run.session, replies.run.lifetime
        self.slot = -1
        self.node_of: dict[int, int] = {}
        self.client_of: dict[int, int] = {}
        self.flights: dict[str, Flight] = {}
        self.reachable: set[int] = set()
        self._clients = [Standing() for _ in range(replies.run.clients)]
        self._strangers: dict[int, Standing] = {}
        self._gone: set[int] = set()  # nodes of clients that are not there any more, though something is on its way
        self._early: list[Event] = []

    # Asking.

    def call(self, slot: int, unsure: Iterable[int] = ()) -> None:
        """Ask unknown nodes who they are, clients that were out of reach whether they are back, and the `unsure`
        ones what their batteries hold by now."""
        self.slot = slot
        online, asked = set(self.grid.get_node_ids()), set(unsure)
        self._gone = self.client_of.keys() - online
        if self.pins is not None:
            for wronged in sorted(self.pins.meet(online)):
                self._oust(wronged)
        self._strangers = {node: standing for node, standing in self._strangers.items() if node in online}
        busy = {flight.node for flight in self.flights.values()}
        for node in sorted(online - busy):
            client = self.client_of.get(node)
            if client is None:
                due = node not in self._strangers or self._strangers[node].again <= self.timer.now()
            else:
                away = client not in self.reachable
                due = (away and self._clients[client].again <= slot) or (not away and client in asked)
            if due:
                self._ask(node, -1 if client is None else client)
        for node in [node for node in self.client_of if node not in online and node not in busy]:
            self._forget(node)

    def _ask(self, node: int, client: int) -> None:
        order = Order(self.run, client=client, slot=self.slot, seconds=self.ttl)
        content = RecordDict({OURS: order.record(), "config": ConfigRecord({})})
        self._push(content, Flight(node, -1, order, self.timer.now() + self.ttl, node not in self._strangers))

    def _forget(self, node: int) -> None:
        client = self.client_of.pop(node)
        if self.node_of.get(client) == node:
            del self.node_of[client]
            if client in self.reachable:
                self.reachable.discard(client)
                self._early.append({"event": "away", "client": client, "why": "the node is gone"})

    def launch(self, session: int, order: Order, content: RecordDict) -> None:
        """Send a session out; a refusal is heard of at the next look."""
        client = order.client
        flight = Flight(self.node_of.get(client, 0), session, order, self.timer.now() + self.ttl)
        for message_id in [message_id for message_id, other in self.flights.items() if other.client == client]:
            del self.flights[message_id]  # a question about its battery, which its answer to this settles too
        if client not in self.node_of:
            self._early.append(self._fallen(flight, "the node is gone"))
        else:
            self._push(content, flight)

    def _push(self, content: RecordDict, flight: Flight) -> None:
        message = Message(content, flight.node, "train", ttl=self.ttl, group_id=str(max(0, flight.order.slot)))
        # One by one: a refused message is '' in a deployment and missing in a simulation.
        message_id = next(iter(self.grid.push_messages([message])), "")
        if message_id:
            self.flights[message_id] = flight
        else:
            self._early.append(self._fallen(flight, "the message was refused"))

    # Listening.

    def look(self, wanted: Callable[[Flight], bool] = lambda flight: True) -> list[Event]:
        """What has come of the wanted flights; nothing is waited for."""
        events, self._early = self._early, []
        ids = [message_id for message_id, flight in self.flights.items() if wanted(flight)]
        for reply in self.grid.pull_messages(ids) if ids else ():
            flight = self.flights.pop(reply.metadata.reply_to_message_id, None)
            if flight is not None:
                events.append(self._heard(flight, reply))
        now = self.timer.now()
        for message_id in ids:
            if message_id in self.flights and self.flights[message_id].until + LATE < now:
                events.append(self._fallen(self.flights.pop(message_id), WORDS[EXPIRED]))
        return events

    def _heard(self, flight: Flight, reply: Message) -> Event:
        if reply.has_error():
            code = reply.error.code
            detail = f": {str(reply.error.reason)[:200]}" if code not in (NODE_GONE, EXPIRED) else ""
            return self._fallen(flight, f"{WORDS.get(code, 'error')} (code {code}){detail}", gone=code == NODE_GONE)
        try:
            answer = self.replies.read(reply, flight.order, flight.session, self.slot)
            if flight.session < 0:
                self._admit(answer.client, flight.node)
        except Refused as error:
            return {**self._fallen(flight, str(error)[:500]), "event": "refused", "name": error.name}
        event: Event = {"event": KINDS[answer.outcome], "client": answer.client}
        if flight.session >= 0:
            event["session"] = flight.session
        if answer.reason:
            event["why"] = answer.reason[:500]
        if answer.outcome == "present":
            event["node"] = str(flight.node)
        event |= {"battery": units(answer.report.level), "report": list(attrs.astuple(answer.report))}
        if answer.outcome == "failed":
            self._strike(answer.client)
        if answer.outcome == "trained":
            self._clients[answer.client].failures = 0
            took = self.timer.now() - flight.until + self.ttl
            event |= {"samples": answer.samples, "fee": flight.order.fee}
            event |= {"seconds": round(answer.seconds, 3), "took": round(took, 3)}
        return event

    def _admit(self, client: int, node: int) -> None:
        """The node is the client from now on, unless the number is another's."""
        if self.node_of.get(client, node) not in (node, *self._gone):
            raise Refused("client", f"client {client} is another node's")
        if self.pins is not None:
            self.pins.hold(client, node)
        self.client_of.pop(self.node_of.get(client, node), None)  # restarted, and back under another id
        self.node_of[client], self.client_of[node] = node, client
        self._strangers.pop(node, None)
        self.reachable.add(client)

    # Falling out of reach.

    def _fallen(self, flight: Flight, why: str, *, gone: bool = False) -> Event:
        client = flight.client
        if client < 0:
            self._put_off(flight.node)
            return {"event": "lost", "node": str(flight.node), "why": why}
        self._strike(client, gentle=gone)
        if gone and self.client_of.get(flight.node) == client:
            self._forget(flight.node)
            self._early = [event for event in self._early if event["event"] != "away" or event["client"] != client]
        if flight.session < 0:
            return {"event": "away", "client": client, "why": why}
        return {"event": "lost", "client": client, "session": flight.session, "why": why}

    def _strike(self, client: int, *, gentle: bool = False) -> None:
        """Out of reach until a roll call is answered, which is asked for at once after a first failure; the more
        there are in a row, the longer it is left alone.  That its node went away is nothing to be blamed for."""
        self.reachable.discard(client)
        standing = self._clients[client]
        standing.failures += not gentle
        doublings = 0 if gentle else standing.failures - 1
        standing.again = self.slot + (self.session * min(MOST_PAUSE, 2 ** (doublings - 1)) if doublings else 1)

    def _put_off(self, node: int) -> None:
        standing = self._strangers.setdefault(node, Standing())
        standing.again = self.timer.now() + AGAIN * min(MOST_PAUSE, 2**standing.failures)
        standing.failures += 1

    def _oust(self, client: int) -> None:
        """Somebody has had the client's number who should not have."""
        node = self.node_of.pop(client, None)
        if node is not None:
            del self.client_of[node]
            self._put_off(node)
        self.reachable.discard(client)
        why = "another node has had its number"
        self._early.append({"event": "away", "client": client, "why": why, "name": OUSTED})
