"""What a policy is given and what it must answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal, Protocol, runtime_checkable

from attrs import frozen

from pipecycle.world.fleet import Fleet
from pipecycle.world.lineage import Lineage
from pipecycle.world.streams import Draw, Ints

Grouping = Literal["launch", "aggregation"] | None
"""What a group is: clients that start together, updates that are aggregated together, or nothing."""


@frozen
class World:
    """The only things a policy may touch."""

    fleet: Fleet
    lineage: Lineage
    draw: Draw
    clients: int
    session: int
    """Session length in slots, the longest if clients differ."""


class Policy(Protocol):
    """A scheduler: decisions only, no tensor, no clock, no randomness of its own, no file.

    Its constructor's parameters are the settings that a user can change by name.  A class may also have a `revision`:
    2 says that the name stood for another algorithm before (`former`: a policy and its settings), runs of which are not
    resumed; `later`, the names of settings that were added when schedules had been made without them; and `fetches`,
    false if its sessions start from what their clients have already, so that no download is paid."""

    name: ClassVar[str]
    grouping: ClassVar[Grouping]

    def setup(self, world: World) -> None:
        """Keep what is needed of the world; called once, before slot 0."""

    def decide(self, slot: int) -> None:
        """After harvest and before training; called for every slot in order."""

    def collect(self, slot: int, done: Ints, lost: Ints) -> None:
        """After training, for every slot: the sessions that ended in it, and those that failed or, live, were given up.

        A transmission that was lost is not told here: `fleet.send` returns those that arrived."""


@runtime_checkable
class Frugal(Policy, Protocol):
    """A policy that says which models it may still name, so that a live server can delete the others."""

    def references(self) -> Iterable[int]:
        """Versions that it may start sessions from, put into a recipe or publish later.

        Version 0 and the published one are kept anyway, and so is what sessions under way started from.  Of teacher
        tables the newest is kept, and those that sessions under way learn from."""
