"""What happens to clients in a slot of a live run, and in the replay of one (see `pipecycle.schedule.slots`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipecycle.deploy.server.trace import Event
from pipecycle.world.streams import Ints

if TYPE_CHECKING:
    from pipecycle.deploy.server.driver import Driver

UNSURE = 5
"""Sessions' lengths after which a client that is believed to be short of energy is asked."""
HEARD = ("roll-call", "reply", "decline", "lost", "refused", "away")
"""Events that reach the fleet."""


class Live:
    """Batteries that gain what is forecast, sessions that are sent out, and replies that end them."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def begin(self, slot: int) -> None:
        self.driver.fleet.begin(slot)

    def end(self, slot: int) -> tuple[Ints, Ints]:
        driver = self.driver
        driver.roster.slot = slot
        driver.launch(slot)
        driver.fleet.train()
        driver.roster.call(slot, driver.fleet.unsure(UNSURE * driver.settings.session))
        events = sorted(driver.clock.heard(slot, driver.roster), key=in_order)
        for event in events:
            driver.trace.write(slot=slot, **event)
        driver.note_pins(slot)
        driver.warn(slot, events)
        return driver.apply_all(events)


class Recorded(Live):
    """The same from the trace: nothing is sent, and what was heard is heard again."""

    def __init__(self, driver: Driver, events: list[Event]) -> None:
        super().__init__(driver)
        self.lives = {event["slot"]: event["life"] for event in events if event["event"] == "resume"}
        self.heard: dict[int, list[Event]] = {}
        for event in events:
            if event["event"] in HEARD:
                self.heard.setdefault(event["slot"], []).append(event)

    def before(self) -> None:
        """The roll call before slot 0."""
        self.driver.apply_all(self.heard.get(-1, []))
        self.driver.fleet.life = self.lives.get(-1, "")

    def end(self, slot: int) -> tuple[Ints, Ints]:
        self.driver.evaluate_recipes(slot, values=False)
        self.driver.fleet.train()
        return self.driver.apply_all([event for event in self.heard.get(slot, []) if "after" not in event])

    def after(self, slot: int) -> None:
        """What a server heard that resumed from here."""
        self.driver.apply_all([event for event in self.heard.get(slot, []) if "after" in event])
        self.driver.fleet.life = self.lives.get(slot, self.driver.fleet.life)


def in_order(event: Event) -> tuple[bool, int, int]:
    """Sessions by number, then roll calls: a node whose session was lost and that is back within the same slot is
    there in the end."""
    session = event.get("session", -1)
    return session < 0, session, event.get("client", -1)
