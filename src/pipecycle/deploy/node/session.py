"""A node's side of a session, whichever app trains: whether the battery allows it, the ledger, and the reply."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import isfinite
from pathlib import Path

import attrs
from flwr.app import ConfigRecord, Context, Message, RecordDict

from pipecycle.deploy.node.battery import Battery, OfFleet, battery
from pipecycle.deploy.node.ledger import Account, FileStore, Ledger, StateStore, Store
from pipecycle.deploy.node.settings import NodeSettings
from pipecycle.deploy.timing import Timer
from pipecycle.deploy.wire.packing import pack, unpack
from pipecycle.deploy.wire.protocol import HELLO, MOST_SAMPLES, OURS, WAIT, Order, Reply
from pipecycle.deploy.wire.settings import MARKS, RunSettings, ours
from pipecycle.errors import InputError
from pipecycle.world.energy import quanta, show

App = Callable[[Message, Context], Message]


class Late(Exception):
    """The deadline came before the last step."""

    def __init__(self, steps: int) -> None:
        super().__init__(f"stopped at its deadline after {steps} steps")
        self.steps = steps


def attend(
    message: Message,
    context: Context,
    app: App,
    defaults: RunSettings | None = None,
    timer: Timer | None = None,
    *,
    strict: bool = False,
) -> Message:
    """Answer an order; messages that hold none go straight to the app."""
    order = Order.of(message.content)
    if order is None:
        return app(message, context)
    run = settings_of(context, defaults, strict=strict)
    node = NodeSettings.of(ours(context.node_config, strict=strict), strict=strict)
    store = FileStore(Path(node.ledger)) if node.ledger else StateStore(context.state)
    with store.locked():
        reply = Node(run, node, store, timer or time).answer(order, message, context, app)
    reply.content[OURS].update(HELLO)  # not earlier: a stored reply may be of a version before this one
    return reply


def settings_of(context: Context, defaults: RunSettings | None = None, *, strict: bool = True) -> RunSettings:
    """The run's settings: Flower's run configuration over the app's own defaults."""
    base = {} if defaults is None else defaults.flat()
    return RunSettings.of({**base, **ours(context.run_config, strict=strict, marks=MARKS)}, strict=strict)


class Node:
    """One node: who it is, its ledger and its battery."""

    def __init__(self, run: RunSettings, node: NodeSettings, store: Store, timer: Timer) -> None:
        self.run, self.node, self.timer = run, node, timer
        self.battery: Battery = battery(run, node, timer)
        usual = self.battery if isinstance(self.battery, OfFleet) else run
        self.capacity = int(quanta(min(node.capacity or usual.capacity, run.capacity), "capacity"))
        initial = int(quanta(node.initial if node.initial >= 0 else usual.initial, "initial"))
        self.ledger = Ledger(store, node.partition_id, self.capacity, initial if self.battery.emulated else 0)

    @property
    def account(self) -> Account:
        return self.ledger.account

    def answer(self, order: Order, message: Message, context: Context, app: App) -> Message:
        """A repeated order is answered from the ledger; a new one is declined, or the session is trained."""
        self.ledger.enter(order.run)
        stored = None if order.roll_call else unpack(self.ledger.answer(order.key))
        if stored is not None:
            self.ledger.save()  # the run is the latest one now
            return Message(stored, reply_to=message)
        self.battery.advance(self.account, order.slot)
        if order.roll_call:
            return self.unsettled(message, attrs.evolve(self.reply(order, "present"), samples=self.node.samples))
        if order.client != self.node.partition_id:
            return self.unsettled(message, self.reply(order, "declined", f"this is client {self.node.partition_id}"))
        if order.turn <= self.account.page.turn:
            return self.unsettled(message, self.reply(order, "declined", "an old order, its reply is not kept"))
        reason = self.objection(order, message)
        if reason:
            return self.settled(order, message, self.reply(order, "declined", reason))
        return self.train(order, message, context, app)

    def objection(self, order: Order, message: Message) -> str:
        """Why the node declines, if it does; the kept model that it continues from is added to the message."""
        if self.account.level < order.need:
            return f"battery {show(self.account.level)} units, needs {show(order.need)}"
        if order.kept >= 0:
            model = unpack(self.ledger.kept(order.kept))
            if model is None:
                return "the kept model is gone"
            message.content["kept"] = model["arrays"]
        return ""

    def train(self, order: Order, message: Message, context: Context, app: App) -> Message:
        before = self.ledger.charge(order.key, order.steps * order.step)
        began = self.timer.monotonic()
        steps, samples, reason = order.steps, 0, ""
        content: RecordDict | None = None
        try:
            trained = app(message, context).content
            samples = _samples(trained)
            pack(trained)  # what can be neither kept nor sent must be known before it is paid for
            content = trained
        except Late as error:
            steps, reason = error.steps, str(error)
        except Exception as error:  # an exception would leave its energy out of the books under simulation
            reason = f"{type(error).__name__}: {error}".encode(errors="replace").decode()
        steps = _counted(message.content, steps)
        seconds = self.timer.monotonic() - began
        self.ledger.account = before
        self.burn(order, steps, seconds)
        if content is not None:
            if order.payload == "logits" and "arrays" in content:
                self.ledger.keep(order.key, pack(RecordDict({"arrays": content.pop("arrays")})))
            if self.wait(order, began):
                self.account.pay(upload=order.fee)
            else:
                content, reason = None, "no energy to report"
        reply = self.reply(order, "failed" if content is None else "trained", reason[:500])
        reply = attrs.evolve(reply, steps=steps, seconds=seconds, samples=0 if content is None else samples)
        return self.settled(order, message, reply, content)

    def burn(self, order: Order, steps: int, seconds: float) -> None:
        """Energy goes step by step while more may come in; on the logical clock a step takes a slot."""
        for step in range(steps):
            if self.battery.emulated:
                passed = int(step * seconds / steps / order.slot_seconds) if order.slot_seconds else step
                self.battery.advance(self.account, order.slot + passed)
            self.account.pay(training=order.step)
        if order.slot_seconds or not self.battery.emulated:
            passed = int(seconds / order.slot_seconds) if order.slot_seconds else max(0, steps - 1)
            self.measure(order.slot + passed)

    def measure(self, slot: int) -> None:
        """Update the account after training; if the level cannot be read, the books count: the session is not lost."""
        try:
            self.battery.advance(self.account, slot)
        except InputError:
            self.account.measure(max(0, self.account.level))

    def wait(self, order: Order, began: float) -> bool:
        """Wait until the upload can be paid, within the deadline; whether it can."""
        last = order.slot + order.steps * (1 + WAIT)
        while self.account.level < order.fee:
            if order.slot_seconds:
                passed = self.timer.monotonic() - began
                if passed >= order.seconds:
                    return False
                self.timer.sleep(min(order.slot_seconds, order.seconds - passed))
                self.measure(order.slot + int((self.timer.monotonic() - began) / order.slot_seconds))
            elif self.account.page.slot < last and self.battery.emulated:
                self.battery.advance(self.account, self.account.page.slot + 1)
            else:
                return False
        return True

    def reply(self, order: Order, outcome: str, reason: str = "") -> Reply:
        return Reply(outcome, reason, order.key, self.node.partition_id, self.account.report())

    def unsettled(self, message: Message, reply: Reply) -> Message:
        """A reply that is not kept: it may be given again."""
        self.ledger.save()
        return Message(reply.records(), reply_to=message)

    def settled(self, order: Order, message: Message, reply: Reply, content: RecordDict | None = None) -> Message:
        """Settle the session's energy together with its reply, then send it."""
        records = reply.records(content)
        self.ledger.settle(order, pack(records))
        return Message(records, reply_to=message)


def _counted(content: RecordDict, most: int) -> int:
    """The steps that an app says it has done, under `steps-done` in the record `config` of the message that it was
    given; one that does not count has done all of them."""
    config = content.get("config")
    done = config.get("steps-done") if isinstance(config, ConfigRecord) else None
    return max(0, min(most, done)) if isinstance(done, int) else most


def _samples(content: RecordDict) -> int:
    """What the app says it has used, under Flower's usual name; apps that do not say count alike."""
    for record in content.metric_records.values():
        count = record.get("num-examples")
        if isinstance(count, int | float):
            if not isfinite(count) or abs(count) > MOST_SAMPLES:
                raise InputError(f"num-examples = {count}: needs at most {MOST_SAMPLES}")
            return int(count)
    return 1
