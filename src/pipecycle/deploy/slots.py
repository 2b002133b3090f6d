"""One slot of a live run: the policy is stepped, its sessions are sent out, and what comes back is put before it."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from pathlib import Path

import numpy as np
from flwr.serverapp import Grid

from pipecycle.deploy.clocks import Clock, LogicalClock
from pipecycle.deploy.folder import Folder
from pipecycle.deploy.forecast import Forecast
from pipecycle.deploy.journal import VAULT, Event, Journal
from pipecycle.deploy.learning import Learning
from pipecycle.deploy.live import LiveFleet
from pipecycle.deploy.memory import held
from pipecycle.deploy.pins import Pins
from pipecycle.deploy.post import Post
from pipecycle.deploy.protocol import Report
from pipecycle.deploy.roster import OUSTED, Arrival, RealTime, Roster, Timer
from pipecycle.deploy.settings import RunSettings
from pipecycle.deploy.vault import Vault
from pipecycle.deploy.weights import Weights
from pipecycle.energy import UNIT, quanta
from pipecycle.errors import InputError
from pipecycle.lineage import Lineage
from pipecycle.record import Totals, about
from pipecycle.registry import build, parameters, policy_class, revision
from pipecycle.schedule import Schedule, Status
from pipecycle.streams import Ints

UNSURE = 5
"""Sessions' lengths after which a client that is believed to be short of energy is asked."""
NOT_DECISIVE = ("resume", "out", "slots", "roll-call", "deadline", "margin", "pin-nodes")
LATER = ("scale", "augment")
"""Settings that older checkpoints do not know; they count where they are set."""


class Slots:
    """Everything that a live run consists of, and what happens in a slot."""

    def __init__(self, grid: Grid, run: RunSettings, learning: Learning, timer: Timer | None = None) -> None:
        self.settings, self.learning = run, learning
        folder = Path(run.out) if run.out else None
        timer = timer or RealTime()
        self.journal = Journal(folder, timer, resume=run.resume)
        self.folder = Folder(folder, run, learning)
        options = dict(run.options)
        self.ratio = 1.0
        if "upload_ratio" in parameters(policy_class(run.policy)):
            # A logit table has a row and a column per class; the model is this run's.
            options.setdefault("upload_ratio", min(1.0, max(1, learning.classes) ** 2 / learning.size))
            self.ratio = float(options["upload_ratio"])
        self.policy = build(run.policy, options)
        forecast = Forecast(run.harvest, run.clients, run.trial)
        self.fleet = LiveFleet(run.clients, forecast, session=run.session, capacity=run.capacity)
        if np.any(self.fleet.to_train + self.fleet.to_report > self.fleet.capacity):
            raise InputError(f"capacity = {run.capacity:g}: a session and its report need {run.session + 1} units")
        self.lineage = Lineage(self.fleet.samples_of)
        vault = Vault(None if folder is None else folder / VAULT)
        self.weights = Weights(self.lineage, self.fleet.client_of, run.clients, learning.initial, vault)
        self.roster = Roster(
            grid,
            secrets.token_hex(8),
            run.clients,
            ttl=run.seconds + run.margin,
            session=run.session,
            most=int(quanta(run.capacity, "capacity")),
            slot_seconds=run.slot_seconds if run.clock == "wall" else 0.0,
            timer=timer,
            pins=Pins() if run.pin_nodes else None,
        )
        self.post = Post(run, learning, self.fleet, self.weights, self.roster, self.ratio)
        self.clock: Clock = LogicalClock()
        self.totals: list[Totals] = []
        self.levels: list[Ints] = []
        self.counts: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._answered: Ints = np.full(run.clients, -1)
        self._published = 0
        self._warned = False

    @property
    def identity(self) -> str:
        """What must not change between a run and its resumption."""
        values = {key: value for key, value in self.settings.flat().items() if key not in NOT_DECISIVE}
        values = {key: value for key, value in values.items() if value or key not in LATER}
        if revision(type(self.policy)) > 1:
            values["revision"] = revision(type(self.policy))
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def _slot(self, slot: int) -> None:
        # 1. Harvest, as forecast.
        self.fleet.begin(slot)
        self.lineage.slot = slot
        # 2. Decide, and send out what was started.
        self.policy.decide(slot)
        self._made(slot)
        self.roster.slot = slot
        leaving: list[int] = []
        for launch in self.fleet.take_launched():
            self.post.note(slot, launch)
            sessions, clients = launch.sessions.tolist(), launch.clients.tolist()
            reference = launch.reference if isinstance(launch.reference, int) else launch.reference.tolist()
            self.journal.write(
                "launch", slot, sessions=sessions, clients=clients, reference=reference, payload=launch.payload
            )
            leaving += sessions
        self._send(leaving)
        # 3. Train: one step is expected of everybody in a session.
        self.fleet.train()
        # 4. Listen until the slot is over, and put what was heard before the policy.
        self.roster.call(slot, self.fleet.unsure(UNSURE * self.settings.session))
        events = [self.post.event(one) for one in sorted(self.clock.arrivals(slot, self.roster), key=_order)]
        for event in events:
            self.journal.write(slot=slot, **event)
        self._note_pins(slot)
        self._warn(slot, events)
        self._collect(slot, events)
        self._made(slot)
        # 5. Record.
        self._record()
        self._look(slot)
        self._save(slot)

    def _send(self, sessions: list[int]) -> None:
        if sessions:
            self.journal.sync()
        for session in sessions:
            self.post.send(session)

    def _collect(self, slot: int, events: list[Event]) -> None:
        done: list[int] = []
        lost: list[int] = []
        for event in events:
            ended = self._apply(event)
            if ended is not None:
                (done if ended else lost).append(event["session"])
        self.policy.collect(slot, np.array(sorted(done), np.int64), np.array(sorted(lost), np.int64))

    def _record(self) -> None:
        ledger = self.fleet.ledger
        self.totals.append((ledger.harvested, ledger.overflowed, ledger.training, ledger.to_hub, ledger.to_server))
        self.levels.append(self.fleet.true_level())

    def _apply(self, event: Event) -> bool | None:
        """What an event does to the fleet; whether a session ended well, or None if none did."""
        fleet, kind, client = self.fleet, event["event"], event.get("client", -1)
        self.counts[kind] += 1
        report = Report(*event["report"]) if "report" in event else None
        session = event.get("session", -1)
        if session >= 0:
            self._answered[client] = max(int(self._answered[client]), fleet.numbers[session])
        if kind == "reply":
            assert report is not None
            fleet.finished(session, event["samples"], event["fee"], report)
            return True
        if kind == "decline":
            fleet.gone(session, Status.DECLINED, report)
            return False
        if kind == "roll-call":
            assert report is not None
            fleet.reachable[client] = True
            if fleet.news(client, report):
                fleet.heard(client, report)
            return None
        if kind == "refused":
            self.refused[event["name"]] += 1
        if client < 0:  # a node that is nobody yet
            return None
        fleet.reachable[client] = False
        if event.get("name") == OUSTED:
            fleet.unhear(client)
        if session < 0:
            return None
        fleet.gone(session, Status.LOST, report)
        return False

    def _roll_call(self, slot: int, wanted: set[int], *, known: set[int] | None = None) -> bool:
        """Ask everybody until all the wanted have answered or the time for it is over; `known` after a restart: of
        those only their presence counts, unless they have lost their ledgers.  Whether there was any news of clients.
        """
        mark: Event = {} if known is None else {"after": True}
        until = self.roster.timer.now() + self.settings.roll_call
        news = False
        while True:
            self.roster.call(slot)
            for arrival in sorted(self.roster.look(lambda flight: flight.session < 0), key=_order):
                event = self.post.event(arrival)
                if event["event"] == "roll-call" and arrival.client in (known or ()):
                    assert arrival.answer is not None
                    lost = self.fleet.lost_ledger(arrival.client, arrival.answer.report)
                    if self.fleet.reachable[arrival.client] and not lost:
                        continue
                news |= arrival.client >= 0
                self.journal.write(slot=slot, **event, **mark)
                self._apply(event)
            self._note_pins(slot)
            if wanted <= self.roster.reachable or self.roster.timer.now() >= until:
                return news
            self.roster.timer.sleep(0.25)

    def _note_pins(self, slot: int) -> None:
        news = self.roster.pins.news() if self.roster.pins is not None else None
        if news is not None:
            self.journal.write("pin", slot, **news)

    def _made(self, slot: int, *, values: bool = True) -> None:
        """Evaluate the recipes that the policy has just asked for; without `values` they exist already."""
        made = self.weights.catch_up(values=values)
        new = self.lineage.publications[self._published :]
        self._published = len(self.lineage.publications)
        if values:
            for version, kind, sessions in made:
                self.journal.write("aggregation", slot, version=version, kind=kind.name.lower(), sessions=sessions)
            for _, version in new:
                self.journal.write("publish", slot, version=version)

    def _look(self, slot: int) -> None:
        """Evaluate the served model where it is time to."""
        run, last = self.settings, slot + 1 == self.settings.slots
        if (slot + 1) % run.evaluate_every and not last:
            return
        spent = self.fleet.ledger.spent + (int(self.fleet.paid.sum()) if last else 0)
        version = self.lineage.published
        row = self.learning.look(slot + 1, version, self.weights.version(version), spent / UNIT)
        self.journal.write("evaluation", slot, version=version, energy=row.energy, **self.learning.told(row))
        self.folder.save(self.schedule(), self.levels)

    def _save(self, slot: int) -> None:
        """A checkpoint, if anything happened; only then may what was used up be forgotten."""
        if self.journal.save(self.roster.run, slot, self.identity) or self.journal.folder is None:
            self.weights.forget()
            self.post.settled = self._answered.copy()
            self.post.forget()
            self._prune()

    def _prune(self) -> None:
        """Drop the versions that neither the policy nor a session under way has any use for."""
        numbers = held(self.policy)
        if numbers is not None:
            errands = self.post.errands.values()
            self.weights.prune(numbers | {one.reference for one in errands} | {one.teacher for one in errands})

    def schedule(self) -> Schedule:
        """What has happened so far, as a schedule."""
        run = self.settings
        meta = about(self.policy, self.fleet, trial=run.trial, harvest=run.harvest, horizon=run.slots, budget=None)
        return self.fleet.schedule(meta, self.lineage, self.totals)

    def _warn(self, slot: int, events: list[Event]) -> None:
        """Say so, once, where answers take longer than policies that work by the clock count with."""
        run = self.settings
        given = (run.session + run.slack) * run.slot_seconds
        took = max((event["took"] for event in events if event["event"] == "reply"), default=0.0)
        if run.clock == "wall" and took > given and not self._warned:
            self._warned = True
            why = f"an answer took {took:.0f} s, session and slack are {given:.0f} s: raise slack or slot-seconds"
            self.journal.write("warning", slot, why=why)


def _order(arrival: Arrival) -> tuple[bool, int, int]:
    """Sessions by number, then roll calls: a node whose session was lost and that is back within the same slot is
    there in the end."""
    return arrival.session < 0, arrival.session, arrival.client
