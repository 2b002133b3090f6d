"""The settings of a node: flat scalars, as Flower's node configuration carries them."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from pipecycle import checks
from pipecycle.checks import at_least, setting
from pipecycle.deploy.node.battery import SOURCES, check_source
from pipecycle.deploy.wire.settings import FlatSettings, absolute
from pipecycle.world.specs import parse_harvest


def _battery(instance: object, attribute: Any, value: Any) -> None:
    check_source(value)


def _harvest(instance: object, attribute: Any, value: Any) -> None:
    if value:
        parse_harvest(value)


@frozen
class NodeSettings(FlatSettings):
    """One node.  What is left empty comes from the run's settings."""

    partition_id: int = setting(0, "Which client it is, from 0.", at_least(0))
    data: str = setting("", "Its own data: an .npz file with x and y, or a folder of x.npy and y.npy.", absolute)
    samples: int = setting(0, "How many samples it has: an own app's num-examples may not exceed it.", at_least(0))
    ledger: str = setting(
        "", "File of its energy ledger and replies; without one Flower's memory holds them.", absolute
    )
    battery: str = setting("emulated", f"Where the level comes from: {', '.join(SOURCES)}.", _battery)
    joules: float = setting(0.0, "Joules per unit (a training step); a gauge file then holds joules.", checks.units)
    harvest: str = setting("", "Emulated battery: where energy comes from.", _harvest)
    capacity: float = setting(0.0, "Units that its battery holds; 0 for the run's capacity.", checks.units)
    initial: float = setting(
        -1.0,
        "Emulated battery: units at the very beginning; negative for the run's.",
        checks.number(most=checks.MOST_UNITS),
    )
    pace: float = setting(0.0, "Seconds per step at least, to emulate a slow device.", checks.seconds)
