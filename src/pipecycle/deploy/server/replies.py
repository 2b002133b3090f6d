"""Replies, checked in one place: their form, whether they answer the order, the energy, the weights.

A reply that fails a check is refused by name, and reaches neither the policy nor the model."""

from __future__ import annotations

from collections import deque
from math import ceil, isfinite
from statistics import median

import attrs
import torch
from attrs import field, frozen
from flwr.app import Message, RecordDict

from pipecycle.deploy.server.fleet import LiveFleet, Session
from pipecycle.deploy.server.model import Model
from pipecycle.deploy.server.weights import Weights
from pipecycle.deploy.wire.arrays import LARGEST, Refused
from pipecycle.deploy.wire.protocol import ENERGY, MOST_SAMPLES, OURS, OUTCOMES, WAIT, Order, Reply, Report, compare
from pipecycle.deploy.wire.settings import RunSettings
from pipecycle.world.energy import quanta, show

MOST_QUANTA = 1 << 52
"""In a ledger's totals: four billion units, and sums over a thousand clients still fit into 64 bits."""
NORMS, ENOUGH = 101, 10
"""Updates whose norms are remembered, and from how many on the next is compared with them."""
SCORES = {"accuracy": (0, 100), "eval_acc": (0, 1), "loss": (-LARGEST, LARGEST), "eval_loss": (-LARGEST, LARGEST)}
"""What an app may say of a model, and the bounds; those with `eval_` are the names in Flower's own examples."""
LATE = 5.0
"""Seconds for which a reply is still accepted after its time."""


@frozen
class Replies:
    """Reads and checks replies."""

    run: RunSettings
    model: Model
    fleet: LiveFleet
    weights: Weights
    norms: deque[float] = field(init=False, factory=lambda: deque(maxlen=NORMS))
    """Of the latest updates."""
    registered: dict[int, int] = field(init=False, factory=dict)
    """Samples that clients of a user's own app said they have, when they first came."""

    @property
    def patience(self) -> int:
        """Slots by which a node's books may be ahead of the slot that it was asked in."""
        slots = self.run.session * (1 + WAIT) + 1
        if self.run.clock == "wall":
            slots = max(slots, ceil((self.run.lifetime + LATE) / self.run.slot_seconds) + 1)
        return slots

    def read(self, message: Message, order: Order, session: int, slot: int) -> Reply:
        """The reply to an order; if the node has trained, its update is stored."""
        reply = _form(message)
        self._check_order(reply, order)
        self._check_report(reply, order, slot)
        if reply.outcome == "present" and reply.samples > 0:
            self.registered.setdefault(reply.client, reply.samples)
        if reply.outcome == "trained":
            self._receive(reply, message.content, session, self.fleet.sessions[session])
        return reply

    def score(self, message: Message, client: int) -> dict[str, float]:
        """What a client's own app has found: accuracy in percent, loss, and the samples that were used."""
        bounds = {**SCORES, "num-examples": (1, self.registered.get(client, MOST_SAMPLES))}
        found = {}
        for record in message.content.metric_records.values():
            for name, value in record.items():
                if name in bounds:
                    found[name] = _within(name, value, *bounds[name])
        if "eval_acc" in found:
            found["accuracy"] = 100 * found["eval_acc"]
        if "eval_loss" in found:
            found["loss"] = found["eval_loss"]
        score = {name: found[name] for name in ("accuracy", "loss") if name in found}
        if not score:
            raise Refused("score", f"its metrics have none of {', '.join(SCORES)}")
        return {**score, "samples": int(found.get("num-examples", 1))}

    def _check_order(self, reply: Reply, order: Order) -> None:
        """It is a reply to this order, from the client that was asked."""
        if not 0 <= reply.client < self.run.clients:
            raise Refused("client", f"{reply.client}, needs 0 to {self.run.clients - 1}")
        if order.client >= 0 and reply.client != order.client:
            raise Refused("client", f"client {reply.client} answered in place of {order.client}")
        if reply.key != order.key:
            raise Refused("key", f"{reply.key[:60]!r} is the reply to another order")
        if (reply.outcome == "present") != order.roll_call:
            raise Refused("outcome", f"{reply.outcome!r} is no reply to this order")

    def _check_report(self, reply: Reply, order: Order, slot: int) -> None:
        """The books add up, follow from the client's last report, and show what it was asked to spend."""
        report, before = reply.report, self.fleet.reports.get(reply.client)
        most = min(report.capacity, int(quanta(self.run.capacity, "capacity")))
        if not 0 <= report.level <= most:
            raise Refused("battery", f"{show(report.level)} units, needs 0 to {show(most)}")
        totals = (report.harvested, report.overflowed, report.spent)
        if not 0 <= min(totals) <= max(totals) <= MOST_QUANTA or report.capacity <= 0:
            raise Refused("ledger", "a total is negative or beyond all bounds")
        # A node that had the energy for its report from the start does not wait for it.
        waits = order.need < order.steps * order.step + order.fee or order.slot_seconds
        latest = order.slot + (self.patience if waits else order.steps - 1)
        if not order.roll_call and not order.slot <= report.at <= latest:
            raise Refused("at", f"slot {report.at}, needs {order.slot} to {latest}")
        if not -1 <= report.at <= slot + self.patience:
            raise Refused("at", f"slot {report.at}, it is {slot} now")
        lost = before is not None and report.behind(before)
        if before is not None and not order.roll_call:  # a roll call may be answered from a new ledger
            if report.capacity != before.capacity:
                raise Refused("capacity", f"{show(report.capacity)} units, it was {show(before.capacity)}")
            if lost:
                raise Refused("ledger", "a total is lower than it was before")
        allowed = self.fleet.most_spent(reply.client)
        if not lost and report.spent > allowed:
            raise Refused("spent", f"{show(report.spent)} units, it was asked for {show(allowed)} at most")
        paid, cost = report.spent - (0 if before is None else before.spent), reply.steps * order.step + order.fee
        if reply.outcome == "trained" and paid < cost:
            raise Refused("spent", f"{show(paid)} units more than before, a session takes {show(cost)}")

    def _receive(self, reply: Reply, content: RecordDict, number: int, session: Session) -> None:
        """The session is as long as it was asked for, and so are its weights or logits."""
        run, most = self.run, self.registered.get(reply.client, MOST_SAMPLES)
        if not self.model.foreign:
            most = run.session * run.batch
        if not 1 <= reply.samples <= most:
            raise Refused("samples", f"{reply.samples}, needs 1 to {most}")
        least = 1 if self.model.foreign else run.session  # a user's own app may have done fewer
        if not least <= reply.steps <= run.session:
            needs = run.session if least == run.session else f"{least} to {run.session}"
            raise Refused("steps", f"{reply.steps}, needs {needs}")
        if session.payload == "logits":
            sums, counts = self.model.logits(content.get("logits"))
            if bool((counts < 0).any()) or not bool((counts == counts.round()).all()):
                raise Refused("logits", "counts are not whole numbers of at least 0")
            if (counted := counts.double().sum().item()) != reply.samples:  # each time that a sample was used
                raise Refused("logits", f"{counted:g} samples are counted, the session used {reply.samples}")
            self.weights.received_logits(number, sums, counts)
            return
        update = self.model.vector(content.get("arrays")) - self.weights.version(session.reference)
        if not bool(torch.isfinite(update).all()):
            raise Refused("arrays", "the update is not finite")
        self._check_norm(self.model.norm(update))
        self.weights.received(number, update)

    def _check_norm(self, norm: float) -> None:
        """No update may outweigh all others by its size alone."""
        bound = self.run.norm_bound
        if bound and len(self.norms) >= ENOUGH and norm > (most := bound * median(self.norms)) > 0:
            raise Refused("norm", f"{norm:.3g}, needs at most {most:.3g}, {bound:g} times the median of the latest")
        self.norms.append(norm)


def _within(name: str, value: object, least: float, most: float) -> float:
    if isinstance(value, int | float) and least <= value <= most:
        return float(value)
    raise Refused(name, f"{value!r}, needs a number from {least:g} to {most:g}")


def _form(message: Message) -> Reply:
    """The reply in a message; anything that does not have its form is refused."""
    try:
        content = message.content
        ours = content[OURS]
        understood, differs = compare(ours, "server", "node")
        if not understood:
            raise Refused("protocol", differs)
        energy = content[ENERGY]
        figures = {name: energy[name] for name in ("client", "battery", "samples", "steps")}
        report = {field.name: energy[field.name] for field in attrs.fields(Report)}
        words = {name: ours[name] for name in ("outcome", "reason", "key")}
        if words["outcome"] == "present":
            words["reason"] = differs
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refused("form", f"the reply lacks {error}") from None
    for name, value in {**figures, **report}.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise Refused(name, f"{value!r} is not a whole number")
    if not all(isinstance(word, str) for word in words.values()) or words["outcome"] not in OUTCOMES:
        raise Refused("outcome", f"{words['outcome']!r} is none of {', '.join(OUTCOMES)}")
    if figures.pop("battery") != Report(**report).level:
        raise Refused("battery", "the level is not what was harvested less what was spent and overflowed")
    seconds = energy.get("seconds", 0.0)
    usable = isinstance(seconds, int | float) and isfinite(seconds)
    return Reply(**words, **figures, report=Report(**report), seconds=float(seconds) if usable else 0.0)
