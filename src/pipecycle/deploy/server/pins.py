"""Which node each client is, for the whole run.

A client's number is what its node says.  Where nodes have registered keys, Flower binds a node's id to its key, so the
id from which a client first replied tells it from any other admitted node that claims its number while it is away.
Ids last as long as the SuperLink's database.  A run that is resumed on another SuperLink meets none of the ids it
knows; it then pins its clients again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import define, field

from pipecycle.deploy.wire.arrays import Refused


@define
class Pins:
    """Clients' nodes, and which of them are still to be written down."""

    nodes: dict[int, int] = field(factory=dict)
    _unmet: set[int] = field(factory=set)  # ids from before a restart, as long as none of them has been online since
    _new: list[int] = field(factory=list)
    _again: bool = False

    def recall(self, event: dict[str, Any]) -> None:
        """As an earlier server has pinned."""
        if event.get("anew"):
            self.nodes = {}
        self.nodes |= zip(event["clients"], map(int, event["nodes"]), strict=True)
        self._unmet = set(self.nodes.values())

    def meet(self, online: Iterable[int]) -> None:
        """If one of the old ids is online, this is the SuperLink that gave them, and they all count."""
        if not self._unmet.isdisjoint(online):
            self._unmet = set()

    def hold(self, client: int, node: int) -> None:
        """The client is this node from now on; refuses a node that claims another's number."""
        if self._contradicts(client, node) and self._unmet:
            self.nodes = {other: id_ for other, id_ in self.nodes.items() if id_ not in self._unmet}
            self._unmet, self._new, self._again = set(), list(self.nodes), True
        if self._contradicts(client, node):
            raise Refused("client", f"client {client} is another node's for the whole run, or this node another client")
        if client not in self.nodes:
            self.nodes[client] = node
            self._new.append(client)

    def _contradicts(self, client: int, node: int) -> bool:
        known = next((other for other, id_ in self.nodes.items() if id_ == node), client)
        return known != client or self.nodes.get(client, node) != node

    def event(self) -> dict[str, Any] | None:
        """For the trace: who was pinned since the last call; `anew` if earlier pins do not count any more."""
        if not self._new:
            return None
        nodes = [str(self.nodes[client]) for client in self._new]
        event = {"clients": self._new, "nodes": nodes, **({"anew": True} if self._again else {})}
        self._new, self._again = [], False
        return event
