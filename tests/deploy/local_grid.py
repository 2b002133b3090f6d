"""A Flower grid within this process, for tests and trials: nodes that fail on demand, and time that costs none."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from attrs import define
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity  # not public, but a Message cannot be made without it

Fault = Callable[[int, Message, float], str | Callable[[Message], Message] | None]
"""What befalls a message to a client at a time: refuse, lose, late, crash, raise, slow, or a change to the reply."""
NEVER = float("inf")


class VirtualTime:
    """A clock that stands still unless somebody sleeps."""

    def __init__(self) -> None:
        self.time = 0.0

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += max(seconds, 1e-6)


@define
class _Pending:
    node: int
    reply: Message
    ready: float


class LocalGrid:
    """What the driver needs of a `Grid`; node i is 1000 + i until it is restarted, and for good with keys that are
    `registered`."""

    def __init__(
        self,
        app: ClientApp,
        nodes: Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Any],
        fault: Fault = lambda client, message, now: None,
        latency: float = 0.05,
        registered: bool = False,
    ) -> None:
        self.app, self.fault, self.latency, self.registered = app, fault, latency, registered
        self.run_config, self.nodes = dict(run_config), [dict(node) for node in nodes]
        self.timer = VirtualTime()
        self.run = SimpleNamespace(run_id=1)
        self.ids: dict[int, int] = {}
        self.contexts: dict[int, Context] = {}
        self.messages: list[tuple[int, Message]] = []
        self._pending: dict[str, _Pending] = {}
        self._restarts = 0
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        for client in range(len(nodes)):
            self.start(client)

    def start(self, client: int) -> None:
        """The node comes (back) with its memory empty."""
        self._restarts += client in self.contexts and not self.registered
        node = 1000 * (1 + self._restarts) + client
        self.ids[client] = node
        self.contexts[client] = Context(1, node, self.nodes[client], RecordDict(), dict(self.run_config))

    def stop(self, client: int) -> None:
        """The node is gone from one moment to the next."""
        node = self.ids.pop(client, None)
        for pending in self._pending.values():
            if pending.node == node:
                self._gone(pending)

    def _gone(self, pending: _Pending) -> None:
        pending.reply = Message(Error(code=5, reason="node unavailable"), reply_to=_asked(pending.reply, self))
        pending.ready = self.timer.monotonic()

    def set_run(self, run: Any) -> None:
        self.run = run

    def create_message(self, *args: Any, **options: Any) -> Message:
        raise NotImplementedError("build a flwr.app.Message")

    def get_node_ids(self) -> list[int]:
        return list(self.ids.values())

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        node = message.metadata.dst_node_id
        client = next((client for client, known in self.ids.items() if known == node), -1)
        self.messages.append((client, message))
        now = self.timer.monotonic()
        fault = self.fault(client, message, now) if client >= 0 else "refuse"
        if fault == "refuse":
            return ""
        message_id = uuid.uuid4().hex
        message.metadata.__dict__["_message_id"] = message_id
        self._pending[message_id] = self._deliver(client, message, fault, now)
        return message_id

    def _deliver(self, client: int, message: Message, fault: object, now: float) -> _Pending:
        node, ttl = message.metadata.dst_node_id, message.metadata.ttl

        def error(code: int, after: float) -> _Pending:
            return _Pending(node, Message(Error(code=code, reason="injected"), reply_to=message), now + after)

        if fault == "lose":
            return error(5, 45.0)
        if fault == "crash":
            return error(8, 65.0)
        if fault == "raise":
            return error(2, self.latency)
        try:
            reply = self.app(message, self.contexts[client])
        except Exception as failure:  # as Flower's engines do
            return _Pending(node, Message(Error(code=2, reason=repr(failure)), reply_to=message), now + self.latency)
        if fault == "late":
            return error(3, ttl)
        if callable(fault):
            reply = fault(reply)
        return _Pending(node, reply, now + (0.8 * ttl if fault == "slow" else self.latency))

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        for message_id in list(message_ids):
            pending = self._pending.get(message_id)
            if pending is not None and pending.ready <= self.timer.monotonic():
                del self._pending[message_id]
                replies.append(pending.reply)
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError("push and pull")


def _asked(reply: Message, grid: LocalGrid) -> Message:
    """The message that a reply answers."""
    message_id = reply.metadata.reply_to_message_id
    return next(message for _, message in grid.messages if message.metadata.message_id == message_id)
