"""The usual ServerApp; it also measures which of its parts takes how long, and when each message left and came back."""

import json
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from pipecycle.deploy.server.driver import Driver
from pipecycle.deploy.server.model import own
from pipecycle.deploy.wire.protocol import Order
from pipecycle.deploy.wire.settings import RunSettings


class Parts:
    """Calls, seconds and CPU seconds of each part, without the parts that it calls itself."""

    def __init__(self, first: str) -> None:
        self.spent: dict[str, list[float]] = {}
        self._part, self._since = first, self._now()

    def _now(self) -> tuple[float, float]:
        return time.monotonic(), time.thread_time()

    def enter(self, part: str) -> str:
        """What was under way before."""
        now, left = self._now(), self._part
        spent = self.spent.setdefault(left, [0, 0.0, 0.0])
        spent[1] += now[0] - self._since[0]
        spent[2] += now[1] - self._since[1]
        self._part, self._since = part, now
        return left

    def measure(self, part: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(inner)
        def measured(*arguments: Any, **options: Any) -> Any:
            before = self.enter(part)
            self.spent.setdefault(part, [0, 0.0, 0.0])[0] += 1
            try:
                return inner(*arguments, **options)
            finally:
                self.enter(before)

        return measured


class Clock:
    """The module `time`, whose sleep is measured."""

    def __init__(self, parts: Parts) -> None:
        self.monotonic, self.sleep = time.monotonic, parts.measure("waiting for replies", time.sleep)


def measure(driver: Driver, grid: Grid, parts: Parts) -> dict[str, dict[str, Any]]:
    """Measure the parts of a run; returns its messages, which are noted as they go and come."""
    for owner, part, names in (
        (grid, "Flower: orders pushed", ["push_messages"]),
        (grid, "Flower: replies fetched", ["pull_messages"]),
        (grid, "Flower: asked who is online", ["get_node_ids"]),
        (driver.policy, "policy", ["decide", "collect"]),
        (driver.orders, "orders made", ["make"]),
        (driver.roster, "replies checked", ["receive"]),
        (driver.trace, "trace and checkpoint written", ["write", "sync", "save"]),
        (driver.weights.store, "trace and checkpoint written", ["put"]),
        (driver, "aggregation", ["evaluate_recipes"]),
        (driver, "evaluation", ["_evaluate_model"]),
        (driver, "record of the run", ["schedule"]),
        (driver.outputs, "record of the run", ["begin", "save", "finish"]),
    ):
        for name in names:
            setattr(type(owner), name, parts.measure(part, getattr(type(owner), name)))
    messages: dict[str, dict[str, Any]] = {}
    push, pull = grid.push_messages, grid.pull_messages

    def pushed(waiting: list[Message]) -> Any:
        began, accepted = time.time(), push(waiting)
        for message in waiting:
            order = Order.of(message.content)
            asked = "session" if order is not None and not order.roll_call else "roll call"
            messages[message.metadata.message_id] = {"what": asked, "pushed": began}
        return accepted

    def pulled(ids: list[str]) -> Any:
        replies = list(pull(ids))
        for reply in replies:
            messages[reply.metadata.reply_to_message_id]["pulled"] = time.time()
        return replies

    grid.push_messages, grid.pull_messages = pushed, pulled
    return messages


app = ServerApp()


def main(grid: Grid, context: Context) -> None:
    parts = Parts("model and data loaded")
    began = time.time()
    run = RunSettings.of(context.run_config)
    driver = Driver(grid, run, own(run), Clock(parts))
    parts.enter("everything else")
    messages = measure(driver, grid, parts)
    driver.run()
    parts.enter("end")
    noted = {"began": began, "ended": time.time(), "parts": parts.spent, "messages": messages}
    noted["cpu"] = time.process_time()
    Path(run.out, "times.json").write_text(json.dumps(noted))


app.main()(main)
