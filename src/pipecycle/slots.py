"""The slot loop: one function steps a policy through a plan, a live run and the replay of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from pipecycle.streams import Ints
from pipecycle.world import Policy, World


class Devices(Protocol):
    """What happens to the clients of a fleet, apart from what the policy asks them for."""

    def begin(self, slot: int) -> None:
        """Batteries gain energy."""

    def end(self, slot: int) -> tuple[Ints, Ints]:
        """Clients train; the sessions that ended in this slot, and those that are lost."""


def steps(policy: Policy, world: World, devices: Devices, slots: Iterable[int]) -> Iterator[int]:
    """Yields every slot once it is over."""
    fleet, lineage = world.fleet, world.lineage
    ledger, totals = fleet.ledger, fleet.totals
    for slot in slots:
        # 1. Harvest.
        devices.begin(slot)
        # 2. Decide: transmissions, the aggregations that they trigger, then new sessions.
        lineage.slot = slot
        policy.decide(slot)
        # 3. Train: one step of everybody in a session.
        done, lost = devices.end(slot)
        # 4. Complete, and 5. the server's step where the policy has one in this slot.
        policy.collect(slot, done, lost)
        # 6. Record.
        totals.append((ledger.harvested, ledger.overflowed, ledger.training, ledger.to_hub, ledger.to_server))
        yield slot
