"""A live run from its first slot, or from where an earlier server was killed, to its end."""

from __future__ import annotations

import secrets

import attrs

from pipecycle.deploy.server.clocks import WallClock
from pipecycle.deploy.server.slots import Slots
from pipecycle.deploy.server.trace import Event, orders
from pipecycle.deploy.wire.protocol import Refused, age
from pipecycle.errors import InputError
from pipecycle.schedule import Schedule
from pipecycle.streams import streams
from pipecycle.world import World


class Driver(Slots):
    """One live run; `run` brings it to its end."""

    def run(self) -> Schedule:
        """All slots, from the first or from the checkpoint on."""
        run = self.settings
        try:
            first = self._go_on() if run.resume else self._begin()
            if run.clock == "wall":
                self.clock = WallClock(run.slot_seconds, self.roster, first)
            for slot in range(first, run.slots):
                self._slot(slot)
            self._drain()
            return self._end()
        finally:
            self.journal.close()

    def _begin(self) -> int:
        run = self.settings
        self.folder.begin()
        self.journal.write("start", -1, run=self.roster.run, settings=run.flat(), parameters=self.learning.size)
        self.weights.catch_up()
        self._roll_call(-1, set(range(run.clients)))
        if not self.roster.reachable:
            raise InputError(f"no node has answered within {run.roll_call:g} s")
        self._setup()
        self._save(-1)
        return 0

    def _setup(self) -> None:
        run = self.settings
        session = run.session + (run.slack if run.clock == "wall" else 0)
        self.policy.setup(World(self.fleet, self.lineage, streams(run.trial), run.clients, session))

    def _go_on(self) -> int:
        """Replay the trace through the policy, then send out again what was under way."""
        saved, events = self.journal.resume(self.identity)
        if saved.slot + 1 >= self.settings.slots and events[-1]["event"] == "end":
            raise InputError(f"{self.settings.out}: that run has ended; there is nothing to go on with")
        self.roster.run = saved.run
        by_slot: dict[int, list[Event]] = {}
        lives: dict[int, str] = {}
        for event in events:
            if event["event"] == "resume":
                lives[event["slot"]] = event["life"]
            if event["event"] in ("roll-call", "reply", "decline", "lost", "refused", "away"):
                by_slot.setdefault(event["slot"], []).append(event)
        self._recall(events)
        self.weights.catch_up(values=False)
        for event in by_slot.get(-1, ()):
            self._apply(event)
        self.post.life = lives.get(-1, "")
        self._setup()
        for slot in range(saved.slot + 1):
            self.fleet.begin(slot)
            self.lineage.slot = slot
            self.policy.decide(slot)
            self._made(slot, values=False)
            for launch in self.fleet.take_launched():
                self.post.note(slot, launch)
            self.fleet.train()
            mine = by_slot.get(slot, [])
            self._collect(slot, [event for event in mine if "after" not in event])
            self._made(slot, values=False)
            self._record()
            for event in mine:
                if "after" in event:  # heard by a server that went on from here
                    self._apply(event)
            self.post.life = lives.get(slot, self.post.life)
        self.weights.used.clear()
        self.post.settled = self._answered.copy()
        self._meet_again(saved.slot)
        self._send_again(saved.slot)
        return saved.slot + 1

    def _meet_again(self, slot: int) -> None:
        """Who is there after a restart, and the life that new orders belong to.

        An order's number is its key only as long as the policy decides as it did before.  By the logical clock it
        does, and what was sent out after the checkpoint is answered from the nodes' files, unless somebody has come or
        gone meanwhile; by the wall clock it never does."""
        run, reachable = self.settings, set(self.fleet.reachable.nonzero()[0].tolist())
        logical = run.clock == "logical"
        self.roster.slot = slot
        news = self._roll_call(slot, reachable, known=reachable if logical else set())
        if logical and reachable and not self.roster.reachable:
            raise InputError(f"no node has answered within {run.roll_call:g} s")  # slots would race by
        for client in sorted(reachable - self.roster.reachable):
            news = True
            event: Event = {"event": "away", "client": client, "why": "not there when the run went on", "after": True}
            self.journal.write(slot=slot, **event)
            self._apply(event)
        if news or not logical:
            self.post.life = f"{age(self.post.life) + 1}-{secrets.token_hex(4)}"
        self.journal.write("resume", slot, life=self.post.life)
        # Before anything is sent: no two servers may have the same life and another view of who is there.
        self.journal.save(self.roster.run, slot, self.identity)

    def _recall(self, events: list[Event]) -> None:
        """What the policy has no part in: evaluations, who is which node, and how often each was sent an order."""
        for event in events:
            if event["event"] == "evaluation":
                self.learning.recall(event)
            elif event["event"] == "pin" and self.roster.pins is not None:
                self.roster.pins.recall(event)
        for client, times in (self.journal.forgotten + orders(events)).items():
            self.fleet.orders[int(client)] = times

    def _send_again(self, slot: int) -> None:
        """What was under way, under the same keys."""
        sessions = self.fleet.training()
        if len(sessions):
            clients = self.fleet.client_of(sessions).tolist()
            self.journal.write("again", slot, sessions=sessions.tolist(), clients=clients)
            self._send(sessions.tolist())

    def _drain(self) -> None:
        """Wait for those who are still at work, so that their ledgers are known; their updates come too late."""
        found = self.clock.held()
        while True:
            for arrival in found:
                if arrival.answer is not None:
                    try:
                        self.post.check(arrival.client, arrival.answer)
                    except Refused:
                        continue
                    self.fleet.reports[arrival.client] = arrival.answer.report
            if not any(flight.session >= 0 for flight in self.roster.flights.values()):
                return
            self.roster.timer.sleep(0.05)
            found = self.roster.look()

    def _end(self) -> Schedule:
        """The closing files, and then the trace's last line: a run that has it is complete."""
        found = self.schedule()
        version = self.lineage.published
        self.folder.finish(found, self.levels, self.weights.version(version), self.counts, self.refused)
        ledgers = {str(client): attrs.astuple(report) for client, report in sorted(self.fleet.reports.items())}
        self.journal.write(
            "end",
            self.settings.slots - 1,
            version=version,
            counts=dict(self.counts),
            refused=dict(self.refused),
            ledgers=ledgers,
        )
        self._save(self.settings.slots - 1)
        return found
