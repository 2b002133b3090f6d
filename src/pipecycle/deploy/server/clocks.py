"""When a slot is over: once the sessions that are due have answered, or when its time is up.

Either way every slot is stepped in order; a server that is late catches up and never skips one."""

from __future__ import annotations

from typing import Protocol

from pipecycle.deploy.server.roster import Flight, Roster
from pipecycle.deploy.server.trace import Event

TICK = 0.02
CALL = 5.0
"""Seconds between two looks for nodes that have come (back), within a long slot."""
LOOK = 0.25
"""Seconds between two looks; an answer may be lost if its node goes offline before it is fetched."""


class Clock(Protocol):
    """Says what has been heard by the end of a slot."""

    def heard(self, slot: int, roster: Roster) -> list[Event]: ...

    def held(self) -> list[Event]:
        """What has been heard and belongs to slots that are still to come."""


class LogicalClock:
    """A slot ends when every session whose last step it is has answered or is lost; reproducible.

    Answers of sessions that are not due yet are left where they are."""

    def __init__(self) -> None:
        self._held: list[Event] = []

    def heard(self, slot: int, roster: Roster) -> list[Event]:
        def due(flight: Flight) -> bool:
            return flight.session < 0 or flight.order.slot + flight.order.steps - 1 <= slot

        events, pause = self._held + roster.look(due), TICK
        while any(due(flight) and flight.urgent for flight in roster.flights.values()):
            roster.timer.sleep(pause)
            events, pause = events + roster.look(due), min(LOOK, 1.5 * pause)
        self._held = [event for event in events if _counts_from(event) > slot]
        return [event for event in events if _counts_from(event) <= slot]

    def held(self) -> list[Event]:
        return self._held


def _counts_from(event: Event) -> int:
    """A node that had to wait for the energy to report is heard of in the slot before it could."""
    return int(event["report"][0]) - 1 if event["event"] == "reply" else -1


class WallClock:
    """A slot lasts so many seconds; what has come by its end counts."""

    def __init__(self, slot_seconds: float, roster: Roster, first: int = 0) -> None:
        self.slot_seconds, self._first = slot_seconds, first
        self._began = roster.timer.now()

    def heard(self, slot: int, roster: Roster) -> list[Event]:
        until = self._began + (slot + 1 - self._first) * self.slot_seconds
        events = roster.look()
        called = roster.timer.now()
        while (rest := until - roster.timer.now()) > 0:
            roster.timer.sleep(min(LOOK, rest))
            events += roster.look()
            if roster.timer.now() - called >= CALL:
                roster.call(slot)
                called = roster.timer.now()
        return events

    def held(self) -> list[Event]:
        return []
