"""Which node is which client, and the messages to them: one at a time for each.

Node ids are Flower's and may change when a node restarts; a client is the number in the node's own configuration,
learnt in a roll call (`pins` says who may claim it).  A client that failed in any way is out of reach until it has
answered a roll call again, which is sent at growing intervals.  Every reply becomes an event: a line of the trace.
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
ERRORS = {
    0: "unknown error",
    2: "the app raised an exception",
    3: "no reply within its time",
    5: "the node is gone",
    8: "the app crashed",
}
KINDS = {"present": "roll-call", "trained": "reply", "declined": "decline", "failed": "lost"}
"""Events by the outcome of a reply."""
AGAIN = 10.0
"""Seconds until a node that could not say which client it is gets asked again; they double with every failure."""
BATCH = 100
"""Messages in one push."""
EVALUATION = -2
"""The session of a flight that asks an app of a user's own how good a model is; that of a roll call is -1."""
MOST_PAUSE = 16
"""Limit of the pause after failures: in session lengths for a client, in `AGAIN` for a node that is no client yet."""


@frozen
class Flight:
    """A message under way: an order, or with a negative session a roll call or an evaluation."""

    node: int
    session: int
    order: Order
    until: float
    urgent: bool = True
    """Whether a slot waits for it; none does for a node that has failed before to say which client it is."""

    @property
    def client(self) -> int:
        return self.order.client


@define
class Failures:
    """How often a client, or a node that is no client yet, has failed in a row."""

    count: int = 0
    again: float = 0.0
    """The slot (for a client) or time (for a node) from which the next roll call may be sent."""


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
        self._clients = [Failures() for _ in range(replies.run.clients)]
        self._strangers: dict[int, Failures] = {}
        self._gone: set[int] = set()  # nodes of clients that are offline while a message to them is under way
        self._events: list[Event] = []  # for the next call of `receive`
        self._waiting: list[tuple[Message, Flight]] = []  # for the next `push`

    # Asking.

    def call(self, slot: int, unsure: Iterable[int] = ()) -> None:
        """Ask unknown nodes which client they are, clients that were out of reach whether they are back, and the
        `unsure` ones, wherever they are, what their batteries hold by now."""
        self.slot = slot
        online, asked = set(self.grid.get_node_ids()), set(unsure)
        self._gone = self.client_of.keys() - online
        if self.pins is not None:
            self.pins.meet(online)
        self._strangers = {node: failures for node, failures in self._strangers.items() if node in online}
        busy = {flight.node for flight in self.flights.values()}
        for node in sorted(online - busy):
            client = self.client_of.get(node)
            if client is None:
                due = node not in self._strangers or self._strangers[node].again <= self.timer.monotonic()
            else:
                away = client not in self.reachable
                due = (away and self._clients[client].again <= slot) or client in asked
            if due:
                self._ask(node, -1 if client is None else client)
        self.push()
        for node in [node for node in self.client_of if node not in online and node not in busy]:
            self._forget(node)

    def _ask(self, node: int, client: int) -> None:
        order = Order(self.run, client=client, slot=self.slot, seconds=self.ttl)
        content = RecordDict({OURS: order.record(), "config": ConfigRecord({})})
        self._add(content, Flight(node, -1, order, self.timer.monotonic() + self.ttl, node not in self._strangers))

    def _forget(self, node: int) -> None:
        client = self.client_of.pop(node)
        if self.node_of.get(client) == node:
            del self.node_of[client]
            if client in self.reachable:
                self.reachable.discard(client)
                self._events.append({"event": "away", "client": client, "why": "the node is gone"})

    def idle(self) -> list[int]:
        """Clients that are present and have no message under way."""
        busy = {flight.node for flight in self.flights.values()}
        return sorted(client for client in self.reachable if self.node_of.get(client, 0) not in {0, *busy})

    def examine(self, client: int, content: RecordDict) -> None:
        """Ask a client, with the next `push`, for the score of a model."""
        until = self.timer.monotonic() + self.ttl
        self._add(content, Flight(self.node_of[client], EVALUATION, Order(self.run, client, slot=self.slot), until))

    @property
    def calling(self) -> bool:
        """Whether the answer to a roll call is still to come, other than from a node that has failed before."""
        return any(flight.session == -1 and flight.urgent for flight in self.flights.values())

    @property
    def examined(self) -> bool:
        """Whether a score is still to come."""
        return any(flight.session == EVALUATION for flight in self.flights.values())

    def stop_examining(self) -> None:
        """Scores that have not come by now do not count."""
        self.flights = {key: flight for key, flight in self.flights.items() if flight.session != EVALUATION}

    def send(self, session: int, order: Order, content: RecordDict) -> None:
        """Order a session with the next `push`; if the message is refused, the next `receive` says so."""
        client = order.client
        flight = Flight(self.node_of.get(client, 0), session, order, self.timer.monotonic() + self.ttl)
        asked = [key for key, other in self.flights.items() if other.client == client and other.session != EVALUATION]
        for message_id in asked:
            del self.flights[message_id]  # a question about its battery, which its reply to this order answers too
        if client not in self.node_of:
            self._events.append(self._failed(flight, "the node is gone"))
        else:
            self._add(content, flight)

    def _add(self, content: RecordDict, flight: Flight) -> None:
        kind = "evaluate" if flight.session == EVALUATION else "train"
        message = Message(content, flight.node, kind, ttl=self.ttl, group_id=str(max(0, flight.order.slot)))
        self._waiting.append((message, flight))

    def push(self) -> None:
        """Send what was asked and ordered, many messages at a time: each push takes a quarter of a second."""
        waiting, self._waiting = self._waiting, []
        for first in range(0, len(waiting), BATCH):
            batch = waiting[first : first + BATCH]
            # Flower writes a message's id into it.  A refused one is '' in a deployment, missing in a simulation.
            accepted = set(self.grid.push_messages([message for message, _ in batch]))
            for message, flight in batch:
                if message.metadata.message_id in accepted - {""}:
                    self.flights[message.metadata.message_id] = flight
                else:
                    self._events.append(self._failed(flight, "the message was refused"))

    # Receiving.

    def receive(self, wanted: Callable[[Flight], bool] = lambda flight: True) -> list[Event]:
        """What has become of the wanted flights by now."""
        events, self._events = self._events, []
        ids = [message_id for message_id, flight in self.flights.items() if wanted(flight)]
        for reply in self.grid.pull_messages(ids) if ids else ():
            flight = self.flights.pop(reply.metadata.reply_to_message_id, None)
            if flight is not None:
                events.append(self._event(flight, reply))
        now = self.timer.monotonic()
        for message_id in ids:
            if message_id in self.flights and self.flights[message_id].until + LATE < now:
                events.append(self._failed(self.flights.pop(message_id), ERRORS[EXPIRED]))
        return events

    def scores(self) -> list[Event]:
        """The scores that have come by now; other events wait for `receive`."""
        events = self.receive(lambda flight: flight.session == EVALUATION)
        self._events = [event for event in events if event["event"] != "score"]
        return [event for event in events if event["event"] == "score"]

    def _event(self, flight: Flight, message: Message) -> Event:
        if message.has_error():
            code = message.error.code
            detail = f": {str(message.error.reason)[:200]}" if code not in (NODE_GONE, EXPIRED) else ""
            return self._failed(flight, f"{ERRORS.get(code, 'error')} (code {code}){detail}", gone=code == NODE_GONE)
        try:
            if flight.session == EVALUATION:
                return {"event": "score", "client": flight.client, **self.replies.score(message, flight.client)}
            reply = self.replies.read(message, flight.order, flight.session, self.slot)
            if flight.session < 0:
                self._admit(reply.client, flight.node)
        except Refused as error:
            failed = self._failed(flight, str(error)[:500])
            return failed if flight.session == EVALUATION else {**failed, "event": "refused", "name": error.name}
        event: Event = {"event": KINDS[reply.outcome], "client": reply.client}
        if flight.session >= 0:
            event["session"] = flight.session
        if reply.reason:
            event["why"] = reply.reason[:500]
        if reply.outcome == "present":
            event["node"] = str(flight.node)
        event |= {"battery": units(reply.report.level), "report": list(attrs.astuple(reply.report))}
        if reply.outcome == "failed":
            self._set_unreachable(reply.client)
        if reply.outcome == "trained":
            self._clients[reply.client].count = 0
            took = self.timer.monotonic() - flight.until + self.ttl
            event |= {"samples": reply.samples, "fee": flight.order.fee}
            event |= {"seconds": round(reply.seconds, 3), "took": round(took, 3)}
        return event

    def _admit(self, client: int, node: int) -> None:
        """The node is the client from now on, unless the number is another node's."""
        if self.node_of.get(client, node) not in (node, *self._gone):
            raise Refused("client", f"client {client} is another node's")
        if self.pins is not None:
            self.pins.hold(client, node)
        self.client_of.pop(self.node_of.get(client, node), None)  # restarted, and back under another id
        self.node_of[client], self.client_of[node] = node, client
        self._strangers.pop(node, None)
        self.reachable.add(client)

    # Falling out of reach.

    def _failed(self, flight: Flight, why: str, *, gone: bool = False) -> Event:
        client = flight.client
        if flight.session == EVALUATION:
            return {"event": "score", "client": client, "why": why}
        if client < 0:
            self._ask_later(flight.node)
            return {"event": "lost", "node": str(flight.node), "why": why}
        self._set_unreachable(client, blamed=not gone)
        if gone and self.client_of.get(flight.node) == client:
            self._forget(flight.node)
            self._events = [event for event in self._events if event["event"] != "away" or event["client"] != client]
        if flight.session < 0:
            return {"event": "away", "client": client, "why": why}
        return {"event": "lost", "client": client, "session": flight.session, "why": why}

    def _set_unreachable(self, client: int, *, blamed: bool = True) -> None:
        """Out of reach until a roll call is answered.  It is sent at once after a first failure; the more failures in
        a row, the longer the pause.  A client is not blamed for a node that went away."""
        self.reachable.discard(client)
        failures = self._clients[client]
        failures.count += blamed
        doublings = failures.count - 1 if blamed else 0
        failures.again = self.slot + (self.session * min(MOST_PAUSE, 2 ** (doublings - 1)) if doublings else 1)

    def _ask_later(self, node: int) -> None:
        failures = self._strangers.setdefault(node, Failures())
        failures.again = self.timer.monotonic() + AGAIN * min(MOST_PAUSE, 2**failures.count)
        failures.count += 1
