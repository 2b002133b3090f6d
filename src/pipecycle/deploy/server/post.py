"""Sessions as messages out, and what comes back as events: everything about a reply is checked here."""

from __future__ import annotations

import attrs
import numpy as np
import torch
from attrs import frozen
from flwr.app import ConfigRecord, RecordDict

from pipecycle.deploy.server.fleet import Launch, LiveFleet
from pipecycle.deploy.server.model import Learning
from pipecycle.deploy.server.roster import Arrival, Roster
from pipecycle.deploy.server.trace import Event
from pipecycle.deploy.server.weights import Weights
from pipecycle.deploy.wire.protocol import (
    OURS,
    Answer,
    Order,
    Refused,
    Report,
    check_report,
    check_samples,
    write_arrays,
)
from pipecycle.deploy.wire.settings import RunSettings
from pipecycle.energy import UNIT, show, units
from pipecycle.fleet import Payload
from pipecycle.streams import Ints


@frozen
class Errand:
    """What a session is sent out with, and again after a restart."""

    client: int
    reference: int
    need: int
    teacher: int
    payload: Payload
    slot: int
    life: str


class Post:
    """Between the fleet and the roster."""

    def __init__(
        self, run: RunSettings, learning: Learning, fleet: LiveFleet, weights: Weights, roster: Roster, ratio: float
    ) -> None:
        self.run, self.learning, self.fleet, self.weights, self.roster = run, learning, fleet, weights, roster
        self.ratio = ratio
        self.errands: dict[int, Errand] = {}
        self.settled: Ints = np.full(run.clients, -1)
        self.life = ""

    def note(self, slot: int, launch: Launch) -> None:
        """Remember what the sessions are to be sent out with."""
        references = np.broadcast_to(launch.reference, launch.clients.shape)
        for session, client, reference, need in zip(
            launch.sessions.tolist(), launch.clients.tolist(), references.tolist(), launch.need.tolist(), strict=True
        ):
            self.errands[session] = Errand(client, reference, need, launch.teacher, launch.payload, slot, self.life)

    def forget(self) -> None:
        """Only what is under way can be asked for again."""
        self.errands = {session: self.errands[session] for session in self.fleet.training().tolist()}

    def fee(self, payload: Payload) -> int:
        """Quanta for an upload: a logit table is a fraction of a model."""
        return int(np.min(self.fleet.price("server", self.ratio if payload == "logits" else 1.0)))

    def send(self, session: int) -> None:
        """Send a session's order out; it is in the trace already."""
        errand, run = self.errands[session], self.run
        order = Order(
            self.roster.run,
            errand.client,
            self.fleet.numbers[session],
            errand.slot,
            run.session,
            need=errand.need,
            step=UNIT,
            fee=self.fee(errand.payload),
            payload=errand.payload,
            kept=self.fleet.numbers[kept] if (kept := self.weights.kept.get(errand.reference)) is not None else -1,
            settled=int(self.settled[errand.client]),
            seconds=run.seconds,
            slot_seconds=run.slot_seconds if run.clock == "wall" else 0.0,
            life=errand.life,
        )
        config = {
            "classes": self.learning.classes,
            "lr": run.lr,
            "batch-size": run.batch,
            "local-steps": run.session,
            "server-round": order.k + 1,
        }
        content = RecordDict(
            {
                OURS: order.record(),
                "config": ConfigRecord(config),
                "arrays": write_arrays(self.learning.named(self.weights.version(errand.reference))),
            }
        )
        if errand.teacher >= 0:
            logits, valid = self.weights.teacher(errand.teacher, errand.client)
            content["teacher"] = write_arrays({"logits": logits.numpy(), "valid": valid.numpy()})
        self.fleet.orders[errand.client] += 1
        self.roster.launch(errand.client, session, order, content)

    def event(self, arrival: Arrival) -> Event:
        """What was heard as a line of the trace; a reply's weights are put away first, or refused."""
        event: Event = {"event": arrival.kind}
        if arrival.client < 0:
            named = {"name": arrival.name} if arrival.name else {}
            return {**event, "node": str(arrival.node), **named, "why": arrival.why}
        event["client"] = arrival.client
        if arrival.session >= 0:
            event["session"] = arrival.session
        answer = arrival.answer
        try:
            if answer is not None:
                self.check(arrival.client, answer)
            if answer is not None and arrival.kind == "reply":
                self._check_paid(arrival.session, answer.report)
                self._receive(arrival.session, answer)
        except Refused as error:
            if arrival.kind == "present":
                self.roster.disown(arrival.client, arrival.node)
            else:
                self.roster.distrust(arrival.client)
            return {**event, "event": "refused", "name": error.name, "why": str(error)[:500]}
        return event | self._told(arrival)

    def _told(self, arrival: Arrival) -> Event:
        """What is known of an arrival that is in order."""
        event: Event = {}
        answer = arrival.answer
        if arrival.why:
            event["why"] = arrival.why
        if arrival.name:
            event["name"] = arrival.name
        if arrival.kind == "present":
            event |= {"event": "roll-call", "node": str(arrival.node)}
            if self.roster.pins is not None:
                self.roster.pins.hold(arrival.client, arrival.node)
        if arrival.kind == "failed":
            event["event"] = "lost"
        if answer is not None:
            event |= {"battery": units(answer.report.level), "report": list(attrs.astuple(answer.report))}
        if answer is not None and arrival.kind == "reply":
            self.roster.trust(arrival.client)
            fee = self.fee(self.errands[arrival.session].payload)
            event |= {
                "samples": answer.samples,
                "fee": fee,
                "seconds": round(answer.seconds, 3),
                "took": round(arrival.took, 3),
            }
        return event

    def check(self, client: int, answer: Answer) -> None:
        """Refuse a report that does not follow from the client's last one and from what it was asked for."""
        report, present = answer.report, answer.outcome == "present"
        # A roll call may be answered from a new ledger, a session may not.
        anew = present and self.fleet.lost_ledger(client, report)
        check_report(report, None if present else self.fleet.reports.get(client), self.roster.most)
        most = self.fleet.most_spent(client)
        if not anew and report.spent > most:
            raise Refused("spent", f"{show(report.spent)} units, it was asked for {show(most)} at most")

    def _check_paid(self, session: int, report: Report) -> None:
        """Refuse a session that its ledger does not show as paid since the client's last report."""
        errand = self.errands[session]
        cost = self.run.session * UNIT + self.fee(errand.payload)
        before = self.fleet.reports.get(errand.client)
        spent = report.spent - (0 if before is None else before.spent)
        if spent < cost:
            raise Refused("spent", f"{show(spent)} units more than before, a session takes {show(cost)}")

    def _receive(self, session: int, answer: Answer) -> None:
        """Put the weights (or logits) of a reply away, if they are what was asked for."""
        errand, run = self.errands[session], self.run
        check_samples(answer.samples)
        if not self.learning.foreign and answer.samples > run.session * run.batch:
            raise Refused("samples", f"{answer.samples}, a session uses at most {run.session * run.batch}")
        if answer.steps != run.session:
            raise Refused("steps", f"{answer.steps}, needs {run.session}")
        if errand.payload == "logits":
            self.weights.received_logits(session, *self.learning.logits(answer.parts.get("logits"), answer.samples))
            return
        update = self.learning.vector(answer.parts.get("arrays")) - self.weights.version(errand.reference)
        if not bool(torch.isfinite(update).all()):
            raise Refused("arrays", "the update is not finite")
        self.weights.received(session, update)
