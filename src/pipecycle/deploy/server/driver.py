"""A live run, from its first slot or from where an earlier server was killed, to its end."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np
from flwr.serverapp import Grid

from pipecycle.deploy.server.clocks import POLL, Clock, LogicalClock, WallClock
from pipecycle.deploy.server.evaluation import Evaluation
from pipecycle.deploy.server.fleet import LiveFleet
from pipecycle.deploy.server.forecast import Forecast
from pipecycle.deploy.server.model import Model
from pipecycle.deploy.server.monitoring import Monitor
from pipecycle.deploy.server.orders import Orders
from pipecycle.deploy.server.outputs import Outputs
from pipecycle.deploy.server.pins import Pins
from pipecycle.deploy.server.replay import Replay
from pipecycle.deploy.server.replies import Replies
from pipecycle.deploy.server.roster import Roster
from pipecycle.deploy.server.tensors import TensorStore
from pipecycle.deploy.server.trace import TENSORS, Event, Trace, orders
from pipecycle.deploy.server.weights import Weights
from pipecycle.deploy.timing import Timer
from pipecycle.deploy.wire.protocol import Report, age
from pipecycle.deploy.wire.settings import RunSettings
from pipecycle.errors import InputError
from pipecycle.policies.registry import build, revision
from pipecycle.runs.planning import with_upload_ratio
from pipecycle.schedule.assemble import about
from pipecycle.schedule.schedule import Schedule, Status
from pipecycle.schedule.slots import steps
from pipecycle.train.history import Checkpoint
from pipecycle.world.contract import Frugal, World
from pipecycle.world.energy import UNIT
from pipecycle.world.lineage import Lineage
from pipecycle.world.streams import Ints, streams

UNSURE = 5
"""Session lengths after which a client that is believed to be short of energy is asked for its level."""
ENDED = {"reply": Status.UNUSED, "decline": Status.DECLINED}
"""What becomes of a session by the event that ends it; by any other it is lost."""


class Driver:
    """One live run; `run` brings it to its end.  `begin` and `end` are what a policy's slots are stepped with (see
    `pipecycle.schedule.slots`)."""

    def __init__(self, grid: Grid, run: RunSettings, model: Model, timer: Timer | None = None) -> None:
        self.settings, self.model = run, model
        folder = Path(run.out) if run.out else None
        self.timer: Timer = timer or time
        options = with_upload_ratio(run.config(), model.classes, model.size)
        self.policy = build(run.policy, options)
        forecast = Forecast(run.harvest, run.clients, run.trial)
        self.fleet = LiveFleet(run.clients, forecast, session=run.session, capacity=run.capacity)
        if np.any(self.fleet.to_train + self.fleet.to_report > self.fleet.capacity):
            raise InputError(f"capacity = {run.capacity:g}: a session and its report need {run.session + 1} units")
        self.trace = Trace(folder, self.timer, resume=run.resume)  # after all that may be refused
        self.outputs = Outputs(folder, run, model)
        self.lineage = Lineage(self.fleet.samples_of)
        session = run.session + (run.slack if run.clock == "wall" else 0)
        self.world = World(self.fleet, self.lineage, streams(run.trial), run.clients, session)
        store = TensorStore(None if folder is None else folder / TENSORS)
        self.weights = Weights(self.lineage, self.fleet, model.initial, store)
        self.orders = Orders(run, model, self.fleet, self.weights, float(options.get("upload_ratio", 1.0)))
        pins = Pins() if run.pin_nodes else None
        replies = Replies(run, model, self.fleet, self.weights)
        self.roster = Roster(grid, secrets.token_hex(8), replies, self.timer, pins)
        self.evaluation = Evaluation(run, model, self.roster, self.trace, self.outputs)
        self.monitor = Monitor(self, folder)
        self.clock: Clock = LogicalClock()
        self.levels: list[Ints] = []
        self.counts: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._published = 0
        self._due = 0  # the slot from which the record so far is written again
        self._warned = False
        self._heard = ""

    @property
    def identity(self) -> str:
        """Equal for a run and its continuation."""
        values = self.settings.decisive()
        if revision(type(self.policy)) > 1:
            values["revision"] = revision(type(self.policy))
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def run(self) -> Schedule:
        """All slots, from the first or from the checkpoint."""
        run = self.settings
        try:
            first = self._resume() if run.resume else self._start()
            if run.clock == "wall":
                self.clock = WallClock(run.slot_seconds, self.roster, first)
            for _ in self.slots(first):
                pass
            schedule = self.schedule()  # as of the last slot; energy and batteries are those after the last reply
            self._drain(run.slots - 1)
            self._end(run.slots - 1, schedule)
            return schedule
        finally:
            self.trace.close()

    def slots(self, first: int) -> Iterator[int]:
        """The remaining slots; yields each once it is over and saved."""
        for slot in steps(self.policy, self.world, self, range(first, self.settings.slots)):
            self.evaluate_recipes(slot)
            self.levels.append(self.fleet.true_level())
            self.evaluation.collect(slot)
            if self.evaluation.due(slot + 1) and slot + 1 < self.settings.slots:
                self._evaluate_model(slot, self.fleet.ledger.spent, wait=self.settings.clock == "logical")
                if slot >= self._due:  # its length grows with the run, so that all of them together take linear time
                    self.outputs.save(self.schedule(), self.levels)
                    self._due = 5 * slot // 4
            self._save(slot)
            self.monitor.update()
            yield slot

    # Starting and resuming.

    def _start(self) -> int:
        run = self.settings
        self.outputs.begin()
        self.trace.write("start", -1, run=self.roster.run, settings=run.flat(), parameters=self.model.size)
        self.weights.catch_up()
        self._roll_call(-1, set(range(run.clients)))
        if not self.roster.reachable:
            raise InputError(self._nobody())
        self.policy.setup(self.world)
        self._save(-1)
        return 0

    def _resume(self) -> int:
        """Replay the trace through the policy, then repeat the orders that were under way."""
        saved, events = self.trace.resume(self.settings, self.identity)
        self.outputs.begin()
        self.roster.run = saved.run
        self._recall(events)
        replay = Replay(self, events)
        self.weights.catch_up(values=False)
        replay.resumed(-1)
        self.policy.setup(self.world)
        for slot in steps(self.policy, self.world, replay, range(saved.slot + 1)):
            self.evaluate_recipes(slot, values=False)
            self.levels.append(self.fleet.true_level())
            replay.resumed(slot)
        self.fleet.launched.clear()
        self.weights.used.clear()
        self.fleet.settled = self.fleet.ended.copy()
        self._find_nodes(saved.slot)
        under_way = self.fleet.training().tolist()
        if under_way:
            clients = [self.fleet.sessions[session].client for session in under_way]
            self.trace.write("again", saved.slot, sessions=under_way, clients=clients)
            self._send(under_way)
        return saved.slot + 1

    def _recall(self, events: list[Event]) -> None:
        """What the policy has no part in: evaluations, pins, and how many orders each client was sent."""
        for event in events:
            if event["event"] == "evaluation":
                self.model.recall(event)
            elif "back" in event:
                raise InputError(f"{self.settings.out}: pins came back in that run, which this version cannot replay")
            elif event["event"] == "pin" and self.roster.pins is not None:
                self.roster.pins.recall(event)
        for client, times in (self.trace.forgotten + orders(events)).items():
            self.fleet.orders[int(client)] = times

    def _find_nodes(self, slot: int) -> None:
        """Who is present after a restart, and the life that new orders belong to.

        An order is known by its number only as long as the policy decides as it did before.  On the logical clock it
        does, and nodes answer what was ordered after the checkpoint from their ledgers, unless a node has come or gone
        meanwhile; on the wall clock it never does."""
        run, reachable = self.settings, set(self.fleet.reachable.nonzero()[0].tolist())
        logical = run.clock == "logical"
        self.roster.slot = slot
        news = self._roll_call(slot, reachable, known=reachable if logical else set())
        if logical and reachable and not self.roster.reachable:
            raise InputError(self._nobody())  # slots would race by
        for client in sorted(reachable - self.roster.reachable):
            news = True
            event: Event = {"event": "away", "client": client, "why": "not there when the run went on", "after": True}
            self.trace.write(slot=slot, **event)
            self.apply(event)
        if news or not logical:
            self.fleet.life = f"{age(self.fleet.life) + 1}-{secrets.token_hex(4)}"
        self.trace.write("resume", slot, life=self.fleet.life, slots=run.slots)
        # Before anything is sent: two servers with the same life must agree on who is present.
        self.trace.save(self.roster.run, slot, self.identity)

    def _roll_call(self, slot: int, wanted: set[int], *, known: set[int] | None = None) -> bool:
        """Call until all the wanted clients have replied or the time for it is over; returns whether anything has
        changed.  After a restart only the presence of the `known` counts, unless they have lost their ledgers."""
        mark: Event = {} if known is None else {"after": True}
        until = self.timer.monotonic() + self.settings.roll_call
        news = False
        while True:
            self.roster.call(slot)
            for event in sorted(self.roster.receive(lambda flight: flight.session < 0), key=in_order):
                client = event.get("client", -1)
                self._heard = event.get("why", self._heard)
                if event["event"] == "roll-call" and client in (known or ()) and self._is_known(event):
                    continue
                news |= client >= 0
                self.trace.write(slot=slot, **event, **mark)
                self.apply(event)
            self._write_pins(slot)
            self.monitor.update()
            if wanted <= self.roster.reachable or self.timer.monotonic() >= until:
                return news
            self.timer.sleep(POLL)

    def _nobody(self) -> str:
        heard = f" (the last that was heard: {self._heard})" if self._heard else ""
        return f"no node has replied within {self.settings.roll_call:g} s{heard}"

    def _is_known(self, event: Event) -> bool:
        """Whether the reply to a roll call changes nothing."""
        client, report = event["client"], Report(*event["report"])
        return bool(self.fleet.reachable[client]) and not self.fleet.lost_ledger(client, report)

    # Within a slot.

    def begin(self, slot: int) -> None:
        """Batteries gain what is forecast."""
        self.fleet.begin(slot)

    def end(self, slot: int) -> tuple[Ints, Ints]:
        """New sessions are ordered, and replies end sessions."""
        self.roster.slot = slot
        self._launch(slot)
        self.fleet.train()
        self.roster.call(slot, self.fleet.unsure(UNSURE * self.settings.session))
        events = sorted(self.clock.events(slot, self.roster), key=in_order)
        for event in events:
            self.trace.write(slot=slot, **event)
        self._write_pins(slot)
        self._warn(slot, events)
        return self.apply_all(events)

    def _launch(self, slot: int) -> None:
        """Order what the policy has started: it is in the trace and on disk before it leaves."""
        self.evaluate_recipes(slot)
        launches, self.fleet.launched = self.fleet.launched, []
        for launch in launches:
            self.lineage.check(np.atleast_1d(launch["reference"]))
            self.trace.write("launch", slot, **launch)
        self._send([session for launch in launches for session in launch["sessions"]])

    def _send(self, sessions: list[int]) -> None:
        if sessions:
            self.trace.sync()
        for session in sessions:
            order, content = self.orders.make(self.roster.run, session)
            self.fleet.orders[order.client] += 1
            self.roster.send(session, order, content)
        self.roster.push()

    def apply_all(self, events: list[Event]) -> tuple[Ints, Ints]:
        """The sessions that ended with an update, and those that are lost."""
        done: list[int] = []
        lost: list[int] = []
        for event in events:
            self.apply(event)
            if "session" in event:
                (done if event["event"] == "reply" else lost).append(event["session"])
        return np.array(sorted(done), np.int64), np.array(sorted(lost), np.int64)

    def apply(self, event: Event) -> None:
        """What an event does to the fleet."""
        kind, client = event["event"], event.get("client", -1)
        if kind == "score":
            self.evaluation.scores.append(event)
            return
        self.counts[kind] += 1
        report = Report(*event["report"]) if "report" in event else None
        if kind == "refused":
            self.refused[event["name"]] += 1
        if kind == "roll-call":
            assert report is not None
            self.fleet.present(client, report)
        elif client >= 0 and kind not in ENDED:
            self.fleet.reachable[client] = False
        if "session" in event:
            status, samples, fee = ENDED.get(kind, Status.LOST), event.get("samples", 0), event.get("fee", 0)
            self.fleet.end(event["session"], status, report, samples=samples, fee=fee)

    def _write_pins(self, slot: int) -> None:
        event = None if self.roster.pins is None else self.roster.pins.event()
        if event is not None:
            self.trace.write("pin", slot, **event)

    def _warn(self, slot: int, events: list[Event]) -> None:
        """Write, once, that replies take longer than the time that policies by the clock allow for."""
        run = self.settings
        given = (run.session + run.slack) * run.slot_seconds
        took = max((event["took"] for event in events if event["event"] == "reply"), default=0.0)
        if run.clock == "wall" and took > given and not self._warned:
            self._warned = True
            why = f"a reply took {took:.0f} s, session and slack are {given:.0f} s: raise slack or slot-seconds"
            self.trace.write("warning", slot, why=why)

    # After a slot.

    def evaluate_recipes(self, slot: int, *, values: bool = True) -> None:
        """Make the versions that the policy has just asked for; without `values` they exist already."""
        made = self.weights.catch_up(values=values)
        new = self.lineage.publications[self._published :]
        self._published = len(self.lineage.publications)
        if values:
            for version, kind, sessions in made:
                self.trace.write("aggregation", slot, version=version, kind=kind.name.lower(), sessions=sessions)
            for _, version in new:
                self.trace.write("publish", slot, version=version)

    def _evaluate_model(self, slot: int, spent: int, *, wait: bool) -> None:
        """Evaluate the served model."""
        version = self.lineage.published
        self.evaluation.start(Checkpoint(slot + 1, version, spent / UNIT), self.weights.version(version))
        self.evaluation.collect(slot, wait=wait)

    def _save(self, slot: int) -> None:
        """A checkpoint, if anything happened; only then are tensors dropped that it does not need."""
        if not self.trace.save(self.roster.run, slot, self.identity) and self.trace.folder is not None:
            return
        self.weights.forget()
        self.fleet.settled = self.fleet.ended.copy()
        if isinstance(self.policy, Frugal):
            under_way = [self.fleet.sessions[session] for session in self.fleet.training().tolist()]
            needed = {*self.policy.references(), *(session.reference for session in under_way)}
            self.weights.prune(needed, {session.teacher for session in under_way})

    def schedule(self) -> Schedule:
        """What has happened so far, as a schedule."""
        run = self.settings
        meta = about(self.policy, self.fleet, trial=run.trial, harvest=run.harvest, horizon=run.slots, budget=None)
        return self.fleet.schedule(meta, self.lineage)

    # The end.

    def _drain(self, last: int) -> None:
        """Wait for sessions under way, whose updates come too late, and ask every node that is there for its books
        once more: the closing energy and batteries are what nodes say, not what was expected of them.

        A replay does not apply these events: if the run is extended, the sessions are ordered again, and nodes reply
        from their ledgers."""
        self._too_late(last, self.clock.held())
        while any(flight.session >= 0 for flight in self.roster.flights.values()):
            self.timer.sleep(0.05)
            self._too_late(last, self.roster.receive())
        self.roster.call(last, range(self.settings.clients))
        until = self.timer.monotonic() + self.settings.roll_call
        while self.roster.calling and self.timer.monotonic() < until:
            self.timer.sleep(0.05)
            self._too_late(last, self.roster.receive())

    def _too_late(self, last: int, events: list[Event]) -> None:
        for event in events:
            self.trace.write(**{**event, "event": "late", "slot": last, "outcome": event["event"]})
            self.apply(event)
            if event["event"] == "reply":
                self.weights.used.append(event["session"])  # nobody will use it

    def _end(self, last: int, schedule: Schedule) -> None:
        """The closing files, and then the trace's last line: a run that has it is complete."""
        self._evaluate_model(last, self.fleet.ledger.spent + int(self.fleet.paid.sum()), wait=True)
        version = self.lineage.published
        counts, refused = dict(self.counts), dict(self.refused)
        self.monitor.update(ended=True)
        self.outputs.finish(schedule, self.levels, counts, refused)
        ledgers = {str(client): attrs.astuple(report) for client, report in sorted(self.fleet.reports.items())}
        self.trace.write("end", last, version=version, counts=counts, refused=refused, ledgers=ledgers)
        self._save(last)


def in_order(event: Event) -> tuple[bool, int, int]:
    """Sessions by number, then roll calls: a node whose session was lost and that is back within the same slot is
    reachable in the end."""
    session = event.get("session", -1)
    return session < 0, session, event.get("client", -1)
