"""When a slot is over: once the sessions that are due have answered, or when its time is up.

Either way every slot is stepped in order; a server that is late catches up and never skips one."""

from __future__ import annotations

from typing import Protocol

from pipecycle.deploy.server.roster import Arrival, Flight, Roster

TICK = 0.02
CALL = 5.0
"""Seconds between two looks for nodes that have come (back), within a long slot."""
LOOK = 0.25
"""Seconds between two looks; an answer may be lost if its node goes offline before it is fetched."""


class Clock(Protocol):
    """Says what has arrived by the end of a slot."""

    slot_seconds: float

    def arrivals(self, slot: int, roster: Roster) -> list[Arrival]: ...

    def held(self) -> list[Arrival]:
        """What has arrived and belongs to slots that are still to come."""


class LogicalClock:
    """A slot ends when every session whose last step it is has answered or is lost; reproducible.

    Answers of sessions that are not due yet are left where they are."""

    slot_seconds = 0.0

    def __init__(self) -> None:
        self._held: list[Arrival] = []

    def arrivals(self, slot: int, roster: Roster) -> list[Arrival]:
        def due(flight: Flight) -> bool:
            return flight.session < 0 or flight.order.slot + flight.order.steps - 1 <= slot

        found, pause = roster.look(due), TICK
        while any(due(flight) and flight.urgent for flight in roster.flights.values()):
            roster.timer.sleep(pause)
            found, pause = found + roster.look(due), min(LOOK, 1.5 * pause)
        # A node that had to wait for the energy to report is heard of in the slot before it could.
        found += self._held
        self._held = [one for one in found if _at(one) - 1 > slot]
        return [one for one in found if _at(one) - 1 <= slot]

    def held(self) -> list[Arrival]:
        return self._held


def _at(arrival: Arrival) -> int:
    return arrival.answer.report.at if arrival.kind == "reply" and arrival.answer is not None else -1


class WallClock:
    """A slot lasts so many seconds; what has come by its end counts."""

    def __init__(self, slot_seconds: float, roster: Roster, first: int = 0) -> None:
        self.slot_seconds, self._first = slot_seconds, first
        self._began = roster.timer.now()

    def arrivals(self, slot: int, roster: Roster) -> list[Arrival]:
        until = self._began + (slot + 1 - self._first) * self.slot_seconds
        found = roster.look()
        called = roster.timer.now()
        while (rest := until - roster.timer.now()) > 0:
            roster.timer.sleep(min(LOOK, rest))
            found += roster.look()
            if roster.timer.now() - called >= CALL:
                roster.call(slot)
                called = roster.timer.now()
        return found

    def held(self) -> list[Arrival]:
        return []
