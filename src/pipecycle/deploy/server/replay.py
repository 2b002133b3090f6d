"""The slots of a live run again, from its trace: nothing is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipecycle.deploy.server.trace import Event
from pipecycle.world.streams import Ints

if TYPE_CHECKING:
    from pipecycle.deploy.server.driver import Driver

APPLIED = ("roll-call", "reply", "decline", "lost", "refused", "away")
"""Events that reach the fleet."""


class Replay:
    """What a policy's slots are stepped with, from recorded events instead of nodes."""

    def __init__(self, driver: Driver, events: list[Event]) -> None:
        self.driver = driver
        self.lives = {event["slot"]: event["life"] for event in events if event["event"] == "resume"}
        self.events: dict[tuple[int, bool], list[Event]] = {}
        for event in events:
            if event["event"] in APPLIED:
                between_slots = event["slot"] < 0 or "after" in event
                self.events.setdefault((event["slot"], between_slots), []).append(event)

    def begin(self, slot: int) -> None:
        self.driver.fleet.begin(slot)

    def end(self, slot: int) -> tuple[Ints, Ints]:
        self.driver.evaluate_recipes(slot, values=False)
        self.driver.fleet.train()
        return self.driver.apply_all(self.events.get((slot, False), []))

    def resumed(self, slot: int) -> None:
        """What happened after a slot and before the next: the first roll call, or a server that resumed there."""
        self.driver.apply_all(self.events.get((slot, True), []))
        self.driver.fleet.life = self.lives.get(slot, self.driver.fleet.life)
