"""Which node each client is, for the whole run.

A client's number is what its node says.  Where nodes have registered keys, Flower binds a node's id to its key, and the
id that a client was first heard from tells it from any other admitted node that claims its number while it is away.
Ids last as long as the SuperLink's database.  A run that is resumed on another SuperLink meets none of the ids that it
knows, and pins anew; should one of the old ids turn up after all, it was the same one, and the old pins count again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import define, field

from pipecycle.deploy.wire.arrays import Refused


@define
class Pins:
    """Clients' nodes, and what of them is still to be written down."""

    nodes: dict[int, int] = field(factory=dict)
    _before: set[int] = field(factory=set)  # ids of an earlier server's time, not met since
    _lifted: dict[int, int] = field(factory=dict)  # pins that count no more
    _new: list[int] = field(factory=list)
    _how: str = ""

    def recall(self, event: dict[str, Any]) -> None:
        """As an earlier server has pinned."""
        if event.get("anew"):
            self._lifted, self.nodes = self._lifted | self.nodes, {}
        if event.get("back"):
            self._lifted, self.nodes = {}, {}
        self.nodes |= zip(event["clients"], map(int, event["nodes"]), strict=True)
        self._before = set(self.nodes.values())

    def meet(self, online: Iterable[int]) -> set[int]:
        """One of the old ids is there, so this is the SuperLink that gave them.  Returns the clients whose numbers
        somebody has taken who should not have."""
        online = set(online)
        if not self._before.isdisjoint(online):
            self._before = set()
        if online.isdisjoint(self._lifted.values()):
            return set()
        whose = {node: client for client, node in self._lifted.items()}
        wrong = {
            client
            for client, node in self.nodes.items()
            if self._lifted.get(client, node) != node or whose.get(node, client) != client
        }
        self.nodes = {client: node for client, node in self.nodes.items() if client not in wrong} | self._lifted
        self._lifted, self._new, self._how = {}, list(self.nodes), "back"
        return wrong

    def hold(self, client: int, node: int) -> None:
        """The client is this node from now on; refuses a node that claims another's number."""
        if self._stranger(client, node) and self._before:
            self._lifted |= {other: id_ for other, id_ in self.nodes.items() if id_ in self._before}
            self.nodes = {other: id_ for other, id_ in self.nodes.items() if id_ not in self._before}
            self._before, self._new, self._how = set(), list(self.nodes), "anew"
        if self._stranger(client, node):
            raise Refused("client", f"client {client} is another node's for the whole run, or this node another client")
        if client not in self.nodes:
            self.nodes[client] = node
            self._new.append(client)

    def _stranger(self, client: int, node: int) -> bool:
        mine = next((other for other, id_ in self.nodes.items() if id_ == node), client)
        return mine != client or self.nodes.get(client, node) != node

    def news(self) -> dict[str, Any] | None:
        """For the trace: who was pinned since this was last asked; `anew` if those before do not count any more, `back`
        if those before that do again."""
        if not self._new:
            return None
        pinned = {"clients": self._new, "nodes": [str(self.nodes[client]) for client in self._new]}
        how = {self._how: True} if self._how else {}
        self._new, self._how = [], ""
        return {**pinned, **how}
