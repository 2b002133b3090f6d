"""Planning: run a policy against simulated batteries, slot by slot, and record what it decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pipecycle.energy import Costs, quanta, show
from pipecycle.errors import InputError
from pipecycle.fleet import Fleet
from pipecycle.harvest import Bernoulli, Harvest, rows
from pipecycle.lineage import Lineage
from pipecycle.record import Totals, about, record
from pipecycle.schedule import Schedule
from pipecycle.streams import streams
from pipecycle.world import Policy, World


def plan(
    policy: Policy,
    harvest: Harvest | float = 0.5,
    clients: int = 100,
    slots: int = 15_000,
    *,
    session: ArrayLike = 20,
    budget: float | None = None,
    trial: int = 0,
    capacity: ArrayLike = 1e6,
    initial: ArrayLike = 0.0,
    costs: Costs | None = None,
    samples: ArrayLike | None = None,
) -> Schedule:
    """The schedule of a policy: `slots` slots, or up to the first at whose end `budget` units have been spent.

    `harvest` may be a charging probability.  `session`, `capacity`, `initial`, `samples` and the costs are one
    figure for all clients or one per client.  Updates count by `samples`, those that a session uses
    (`Problem.samples`); without them they count alike."""
    run = Run(
        policy,
        harvest,
        clients,
        slots,
        session=session,
        budget=budget,
        trial=trial,
        capacity=capacity,
        initial=initial,
        costs=costs,
        samples=samples,
    )
    for _ in run.steps():
        pass
    return run.schedule()


class Run:
    """One planning run that can be watched: iterate `steps()`, look at `world` in between, ask for the schedule."""

    def __init__(
        self,
        policy: Policy,
        harvest: Harvest | float,
        clients: int,
        slots: int,
        *,
        session: ArrayLike = 20,
        budget: float | None = None,
        trial: int = 0,
        **fleet: Any,
    ) -> None:
        _at_least("clients", clients, 1)
        _at_least("slots", slots, 1)
        _at_least("trial", trial, 0)
        if budget is not None and not budget > 0:
            raise InputError(f"budget = {budget:g}: needs a positive number of units")
        self.policy, self.slots, self.trial, self.budget = policy, slots, trial, budget
        self.harvest = Bernoulli(harvest) if isinstance(harvest, (int, float)) else harvest
        self.fleet = Fleet(clients, session=session, **fleet)
        if np.any(self.fleet.to_train > self.fleet.capacity):
            held, need = int(np.min(self.fleet.capacity)), int(np.max(self.fleet.to_train))
            raise InputError(f"capacity = {show(held)}: a session needs {show(need)} units in the battery")
        self.lineage = Lineage(self._samples)
        self.world = World(self.fleet, self.lineage, streams(trial), clients, int(np.max(self.fleet.length)))
        self.weather = self.harvest.weather(clients, trial)
        self.totals: list[Totals] = []

    def steps(self) -> Iterator[int]:
        """The slot loop; yields every slot once it is over."""
        fleet, lineage, policy = self.fleet, self.lineage, self.policy
        nobody = np.empty(0, np.int64)
        limit = None if self.budget is None else quanta(self.budget, "budget")
        ledger, peak = fleet.ledger, self.weather.peak
        policy.setup(self.world)
        for slot, (gains, total) in enumerate(rows(self.weather, fleet.clients, self.slots)):
            # 1. Harvest.
            fleet.harvest(slot, gains, total, peak)
            # 2. Decide: transmissions, the aggregations that they trigger, then new sessions.
            lineage.slot = slot
            policy.decide(slot)
            # 3. Train: one step of everybody in a session.
            done = fleet.train()
            # 4. Complete, and 5. the server's step where the policy has one in this slot.
            policy.collect(slot, done, nobody)
            # 6. Record, and stop once the budget is spent.
            self.totals.append((ledger.harvested, ledger.overflowed, ledger.training, ledger.to_hub, ledger.to_server))
            yield slot
            if limit is not None and ledger.spent >= limit:
                return

    def schedule(self) -> Schedule:
        """What has happened so far; the run is over after this."""
        meta = about(
            self.policy,
            self.fleet,
            trial=self.trial,
            harvest=str(self.harvest),
            horizon=self.slots,
            budget=self.budget,
        )
        return record(meta, self.fleet, self.lineage, self.totals)

    def _samples(self, sessions: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        samples = self.fleet.samples
        return None if samples is None else samples[self.fleet.client_of(sessions)]


def _at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} = {value}: needs a whole number of at least {least}")
