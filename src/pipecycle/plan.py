"""Planning: run a policy against simulated batteries, slot by slot, and record what it decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pipecycle.checks import MOST_CLIENTS, MOST_SLOTS, at_least, some_units
from pipecycle.energy import Costs, quanta, show
from pipecycle.errors import InputError, shown
from pipecycle.fleet import Fleet
from pipecycle.harvest import Bernoulli, Harvest, rows
from pipecycle.lineage import Lineage
from pipecycle.record import Totals, about, record
from pipecycle.schedule import Schedule
from pipecycle.specs import parse_harvest
from pipecycle.streams import streams
from pipecycle.world import Policy, World


def plan(
    policy: Policy,
    harvest: Harvest | float | str = 0.5,
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

    `harvest` may be a charging probability, or a description such as `markov:0.3,10`.  `session`, `capacity`,
    `initial`, `samples` and the costs are one figure for all clients or one per client.  Updates count by `samples`,
    those that a session uses (`Problem.samples`); without them they count alike."""
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
        harvest: Harvest | float | str,
        clients: int,
        slots: int,
        *,
        session: ArrayLike = 20,
        budget: float | None = None,
        trial: int = 0,
        **fleet: Any,
    ) -> None:
        at_least(1, "client", most=MOST_CLIENTS).of("clients", clients)
        at_least(1, "slot", most=MOST_SLOTS).of("slots", slots)
        at_least(0).of("trial", trial)
        if budget is not None:
            some_units.of("budget", budget)
        clients, slots, trial = int(clients), int(slots), int(trial)
        self.policy, self.slots, self.trial, self.budget = policy, slots, trial, budget
        self.harvest = _harvest(harvest)
        self.fleet = Fleet(clients, session=session, **fleet)
        if np.any(self.fleet.to_train > self.fleet.capacity):
            held, need = int(np.min(self.fleet.capacity)), int(np.max(self.fleet.to_train))
            raise InputError(f"capacity = {show(held)}: a session needs {show(need)} units in the battery")
        self.lineage = Lineage(self._samples)
        self.world = World(self.fleet, self.lineage, streams(trial), clients, int(np.max(self.fleet.length)))
        self.weather = self.harvest.weather(clients, trial)
        if clients * (int(np.max(self.fleet.initial)) + slots * self.weather.peak) >= 1 << 63:
            raise InputError(
                f"{shown(str(self.harvest))}: {clients} clients could gain more than 8.8e12 units in {slots} slots"
            )
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


def _harvest(given: Harvest | float | str) -> Harvest:
    if isinstance(given, str):
        return parse_harvest(given)
    if isinstance(given, int | float):
        return Bernoulli(given)
    if not hasattr(given, "weather"):
        raise InputError(f"harvest = {shown(given)}: needs a charging probability, a description or a Harvest")
    return given
