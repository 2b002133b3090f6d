"""The slot loop: one function steps a policy through a plan, a live run and the replay of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from pipecycle.world.contract import Policy, World
from pipecycle.world.streams import Ints


class SlotEvents(Protocol):
    """What happens to the clients of a fleet, apart from what the policy asks them for."""

    def begin(self, slot: int) -> None:
        """Batteries gain energy."""

    def end(self, slot: int) -> tuple[Ints, Ints]:
        """Clients train; the sessions that ended in this slot, and those that are lost."""


def steps(
    policy: Policy, world: World, devices: SlotEvents, slots: Iterable[int], limit: int | None = None
) -> Iterator[int]:
    """Yields every slot once it is over; the last is the first at whose end `limit` quanta have been spent."""
    lineage, ledger, record = world.lineage, world.fleet.ledger, world.fleet.record
    begin, decide, end, collect = devices.begin, policy.decide, devices.end, policy.collect
    for slot in slots:
        # 1. Harvest.
        begin(slot)
        # 2. Decide: transmissions, the aggregations that they trigger, then new sessions.
        lineage.slot = slot
        decide(slot)
        # 3. Train: one step of everybody in a session.
        done, lost = end(slot)
        # 4. Complete, and 5. the server's step where the policy has one in this slot.
        collect(slot, done, lost)
        # 6. Record, and stop once the budget is spent.
        record()
        yield slot
        if limit is not None and ledger.spent >= limit:
            return
