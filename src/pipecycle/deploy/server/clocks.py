"""When a slot is over: once the sessions that are due have ended, or when its time is up.

Either way every slot is stepped in order; a server that is late catches up and skips none."""

from __future__ import annotations

from typing import Protocol

from pipecycle.deploy.server.roster import Flight, Roster
from pipecycle.deploy.server.trace import Event

TICK = 0.02
CALL = 5.0
"""Seconds between two roll calls within a long slot, for nodes that have come (back)."""
POLL = 0.5
"""Seconds between two fetches; a reply may be lost if its node goes offline before it is fetched."""


class Clock(Protocol):
    """Waits for the end of a slot."""

    def events(self, slot: int, roster: Roster) -> list[Event]:
        """What has arrived by the end of the slot."""

    def held(self) -> list[Event]:
        """What has arrived and belongs to later slots."""


class LogicalClock:
    """A slot ends when every session whose last step it is has replied or is lost; reproducible.

    Replies of sessions that are not due yet are fetched later."""

    def __init__(self) -> None:
        self._held: list[Event] = []

    def events(self, slot: int, roster: Roster) -> list[Event]:
        def due(flight: Flight) -> bool:
            return flight.session < 0 or flight.order.slot + flight.order.steps - 1 <= slot

        events, pause = self._held + roster.receive(due), TICK
        while any(due(flight) and flight.urgent for flight in roster.flights.values()):
            roster.timer.sleep(pause)
            events, pause = events + roster.receive(due), min(POLL, 1.5 * pause)
        self._held = [event for event in events if _counts_from(event) > slot]
        return [event for event in events if _counts_from(event) <= slot]

    def held(self) -> list[Event]:
        return self._held


def _counts_from(event: Event) -> int:
    """A node that had to wait for the energy to report counts in the slot before it could."""
    return int(event["report"][0]) - 1 if event["event"] == "reply" else -1


class WallClock:
    """A slot lasts so many seconds; what has arrived by its end counts."""

    def __init__(self, slot_seconds: float, roster: Roster, first: int = 0) -> None:
        self.slot_seconds, self._first = slot_seconds, first
        self._began = roster.timer.monotonic()

    def events(self, slot: int, roster: Roster) -> list[Event]:
        until = self._began + (slot + 1 - self._first) * self.slot_seconds
        events = roster.receive()
        called = roster.timer.monotonic()
        while (rest := until - roster.timer.monotonic()) > 0:
            roster.timer.sleep(min(POLL, rest))
            events += roster.receive()
            if roster.timer.monotonic() - called >= CALL:
                roster.call(slot)
                called = roster.timer.monotonic()
        return events

    def held(self) -> list[Event]:
        return []
