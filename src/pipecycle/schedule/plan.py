"""Planning: run a policy against simulated batteries, slot by slot, and record what it decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve
from numpy.typing import ArrayLike

from pipecycle.checks import at_least, made, some_clients, some_slots, some_units
from pipecycle.errors import InputError, shown
from pipecycle.policies.registry import build, check_policy
from pipecycle.schedule.assemble import about, record
from pipecycle.schedule.schedule import Schedule
from pipecycle.schedule.slots import steps
from pipecycle.schedule.verify import verify_energy
from pipecycle.world.contract import Policy, World
from pipecycle.world.devices import Devices
from pipecycle.world.devices_file import load
from pipecycle.world.energy import Costs, quanta, show
from pipecycle.world.field import FieldFleet
from pipecycle.world.fleet import Fleet
from pipecycle.world.harvest import Bernoulli, Harvest, rows
from pipecycle.world.lineage import Lineage
from pipecycle.world.links import Links
from pipecycle.world.specs import parse_harvest
from pipecycle.world.streams import Ints, streams


def plan(
    policy: Policy | str,
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
    leak: ArrayLike = 0.0,
    links: Links | None = None,
    samples: ArrayLike | None = None,
    fleet: Devices | str | Path | None = None,
) -> Schedule:
    """The schedule of a policy: `slots` slots, or up to the first at whose end `budget` units have been spent.

    `policy` may be a name, with settings if there are any, as on the command line: `pipecycle(groups=3)`.
    `harvest` may be a charging probability, or a description such as `markov:0.3,10`.  `session`, `capacity`,
    `initial`, `leak` (units a slot), `samples` and the costs are one figure for all clients or one per client.
    Updates count by `samples`, those that a session uses (`Problem.samples`); without them they count alike.
    `fleet` is a file of devices, one of our own by name, or `Devices`; costs, leaks and links are then the fleet's, and
    `session`, `capacity`, `initial` and `harvest` are those of devices that do not say.

    >>> plan("pipecycle(groups=3)", harvest="markov:0.3,12", clients=20, slots=600)
    """
    run = Planning(
        build(policy) if isinstance(policy, str) else policy,
        harvest,
        clients,
        slots,
        session=session,
        budget=budget,
        trial=trial,
        capacity=capacity,
        initial=initial,
        costs=costs,
        leak=leak,
        links=links,
        samples=samples,
        fleet=fleet,
    )
    for _ in run.steps():
        pass
    return run.schedule()


class Planning:
    """A plan in the making, slot by slot: iterate `steps()`, look at `world` in between, ask for the schedule."""

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
        fleet: Devices | str | Path | None = None,
        **usual: Any,
    ) -> None:
        check_policy(policy)
        some_clients.of("clients", clients)
        some_slots.of("slots", slots)
        at_least(0).of("trial", trial)
        if budget is not None:
            some_units.of("budget", budget)
        clients, slots, trial = int(clients), int(slots), int(trial)
        self.policy, self.slots, self.trial, self.budget = policy, slots, trial, budget
        self.harvest = _harvest(harvest)
        self.devices = load(fleet) if isinstance(fleet, str | Path) else fleet
        if self.devices is not None:
            made(Devices, "the name of a file").of("fleet", self.devices)
            for name in ("costs", "leak", "links"):
                if np.any(usual.get(name)):
                    raise InputError(f"{name}: has no effect, devices of {self.devices.name} have their own")
            clients = self.devices.clients(clients)
            usual["samples"] = self.devices.samples(clients) if usual.get("samples") is None else usual["samples"]
            own = self.devices.world(
                clients,
                session=session,
                capacity=usual.pop("capacity", 1e6),
                initial=usual.pop("initial", 0.0),
                harvest=self.harvest,
            )
            session, self.harvest = own.pop("session"), own.pop("harvest")
            usual |= own
        self.fleet = fleet_of(policy, clients, trial, session=session, **usual)
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

    def steps(self) -> Iterator[int]:
        """The slot loop; yields every slot once it is over."""
        limit = None if self.budget is None else int(quanta(self.budget, "budget"))
        self.policy.setup(self.world)
        self._rows = rows(self.weather, self.fleet.clients, self.slots)
        return steps(self.policy, self.world, self, range(self.slots), limit)

    def begin(self, slot: int) -> None:
        """Batteries gain what the weather brings."""
        gains, total = next(self._rows)
        self.fleet.harvest(slot, gains, total, self.weather.peak)

    def end(self, slot: int) -> tuple[Ints, Ints]:
        """Sessions end by the clock."""
        return self.fleet.train(), self.fleet.failed

    def schedule(self) -> Schedule:
        """What has happened so far; the run is over after this."""
        meta = about(
            self.policy,
            self.fleet,
            trial=self.trial,
            harvest=str(self.harvest),
            horizon=self.slots,
            budget=self.budget,
            devices=self.devices,
        )
        made = record(meta, self.fleet, self.lineage)
        try:
            verify_energy(made)
        except InputError as error:
            name = type(self.policy).__name__
            raise InputError(f"policy {name}: has changed what only the fleet may ({error})") from None
        return made

    def _samples(self, sessions: Ints) -> Ints | None:
        samples = self.fleet.samples
        return None if samples is None else samples[self.fleet.client_of(sessions)]


def fleet_of(
    policy: Policy,
    clients: int,
    trial: int,
    *,
    costs: Costs | None = None,
    leak: ArrayLike = 0.0,
    links: Links | None = None,
    **usual: Any,
) -> Fleet:
    """The ideal fleet where nothing leaks, idles, fails or is fetched, which plans as fast as can be."""
    for name, given, kind in (("costs", costs, Costs), ("links", links, Links)):
        if given is not None and not isinstance(given, kind):
            raise InputError(f"{name} = {shown(given)}: needs {kind.__name__}(...)")
    costs = costs or Costs()
    if not getattr(policy, "fetches", True):
        costs = evolve(costs, download=0.0)
    if np.any(leak) or np.any(costs.download) or np.any(costs.idle) or (links is not None and not links.perfect):
        return FieldFleet(clients, costs=costs, leak=leak, links=links, trial=trial, **usual)
    return Fleet(clients, costs=costs, **usual)


def _harvest(given: Harvest | float | str) -> Harvest:
    if isinstance(given, str):
        return parse_harvest(given)
    if isinstance(given, int | float):
        return Bernoulli(given)
    if not hasattr(given, "weather"):
        raise InputError(f"harvest = {shown(given)}: needs a charging probability, a description or a Harvest")
    return given
