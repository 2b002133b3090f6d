"""Random worlds in which everything may go wrong, and what must hold in each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipecycle import build
from pipecycle.policies import REGISTRY
from pipecycle.policies.registry import parameters
from pipecycle.schedule.plan import Planning
from pipecycle.schedule.schedule import Schedule, Sent, Status
from pipecycle.schedule.verify import verify
from pipecycle.world.energy import Costs, at, quanta
from pipecycle.world.field import FieldFleet
from pipecycle.world.harvest import rows
from pipecycle.world.links import Links, Passes, Windows

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "pipecycle": [{}, {"queue_threshold": 1}, {"rotation": "spread"}, {"relay_mix": 0.3}, {"interval": 1}],
    "pipecycle+": [{}, {"queue_threshold": 1}, {"kappa": 0.5}, {"interval": 1}],
    "cycp": [{}, {"step": "lag-stable"}, {"step": 0.4}],
    "mifa": [{}, {"use_memory": False}],
    "flda": [{}, {"phase": "global"}],
    "fedseq": [{}, {"step": "lag-stable"}, {"mode": "chain", "patience": 15}],
    "fedasync": [{}, {"concurrency": 1}, {"concurrency": 100, "mixing": 1.0}],
    "fedbuff": [{}, {"buffer": 3}, {"concurrency": 2, "buffer": 1}],
    "fedau": [{}, {"cutoff": 2}],
    "fedvarp": [{}, {"beta": 0.4}],
    "f3ast": [{}, {"picked": 2, "beta": 0.3}],
    "fedbacys": [{}, {"reference_refresh": "next_group"}, {"reference_refresh": "broadcast"}, {"step": "lag-stable"}],
}
"""Settings that take a policy through other lines of its code."""

Pick = Callable[[Any], Any]
"""One of some values, by Hypothesis or at random."""


def rough(pick: Pick, names: tuple[str, ...] = tuple(REGISTRY)) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A policy, its settings, and a world with leaks, losses, windows, channels, downloads, idling and failures, with
    figures that differ between clients."""
    name = pick(names)
    options = dict(pick(VARIANTS.get(name, [{}])))
    if "groups" in parameters(REGISTRY[name]):
        options["groups"] = pick((1, 2, 5, 12))
    clients = pick((1, 2, 7, 24))

    def spread(*values: float) -> Any:
        return np.array([values[client % len(values)] for client in range(clients)]) if pick((0, 1)) else values[0]

    lengths = pick((1, 3, 9))
    session = np.array([lengths + client % 3 for client in range(clients)]) if pick((0, 1)) else lengths
    costs = Costs(
        step=spread(1.0, 0.3),
        to_hub=spread(1.0, 0.0, 0.7),
        to_server=spread(1.0, 2.5),
        download=spread(pick((0.0, 0.6)), 1.0),
        idle=spread(pick((0.0, 0.01)), 0.25),
    )
    windows = None
    if pick((0, 0, 1)):
        first = np.repeat(np.array([0, 40, 90]), clients)
        windows = Windows(np.tile(np.arange(clients), 3), first, first + 4, pick((None, 120)))
    links = Links(
        channels=pick((None, None, 1, 3)),
        loss=spread(pick((0.0, 0.1, 0.3, 0.3, 1.0)), 0.1),
        loss_to_hub=spread(pick((0.0, 0.4)), 0.9),
        tries=pick((1, 2, 5)),
        failure=spread(pick((0.0, 0.0, 0.05, 0.2, 1.0)), 0.05),
        passes=Passes(pick((1, 13)), spread(0.3, 1.0)) if pick((0, 1)) else None,
        windows=windows,
    )
    world = {
        "harvest": pick((0.0, 0.2, 0.5, 0.5, 1.0, 1.0, "markov:0.4,5")),
        "clients": clients,
        "slots": pick((1, 60, 200, 200, 300)),
        "session": session,
        "capacity": pick((40.0, 1e6)),
        "initial": pick((0.0, 12.5)),
        "costs": costs,
        "leak": spread(pick((0.0, 0.02)), 0.1),
        "links": links,
        "trial": pick((0, 1, 2)),
        "budget": pick((None, None, 150.0)),
    }
    return name, options, world


def holds(name: str, options: dict[str, Any], world: dict[str, Any]) -> Schedule:
    """Plan, checking the batteries and the books after every slot; then recompute all of it from the record."""
    run = Planning(build(name, options), **world)
    fleet = run.fleet
    for _ in run.steps():
        ledger = fleet.ledger
        assert int(fleet.level.min()) >= 0
        assert (fleet.level <= fleet.capacity).all()
        assert ledger.stored == int(fleet.level.sum())
    schedule = run.schedule()
    verify(schedule)
    energy, sessions = schedule.energy, schedule.sessions
    assert int(sessions.spent.sum()) == int(energy.spent[-1])
    if name not in ("mifa", "isolated"):  # MIFA repeats its memories
        uploads = np.sort(sessions.sent[sessions.receiver == Sent.TO_SERVER])
        served = schedule.publications.slot
        assert len(served) <= len(uploads)
        assert (uploads[: len(served)] <= served).all()  # the server learns nothing that nobody has sent
    if not isinstance(fleet, FieldFleet):
        return schedule

    # Every battery by itself: what the weather gave, less what its sessions, idling, leaks and fullness took.
    weather = run.harvest.weather(schedule.clients, schedule.trial)
    gains = np.broadcast_to(np.asarray(quanta(world["initial"])), (schedule.clients,)).astype(np.int64)
    for row, _ in rows(weather, schedule.clients, schedule.slots):
        gains = gains + row
    spent = np.zeros(schedule.clients, np.int64)
    np.add.at(spent, sessions.client, sessions.spent)
    assert energy.drained is not None
    assert (gains == spent + energy.level + energy.overflow + energy.drained).all()

    # Steps are paid to the quantum, and what was lost is what failed or never arrived.
    last = np.where(sessions.end < 0, schedule.slots - 1, sessions.end)
    steps = (last - sessions.start + 1) * at(fleet.step, sessions.client) + at(fleet.download, sessions.client)
    assert (sessions.spent >= steps).all()
    untried = (sessions.sent < 0) & ~_given_up(fleet, len(sessions))
    assert (sessions.spent == steps)[untried].all()
    lost = sessions.status == Status.LOST
    assert not np.isin(np.flatnonzero(lost), schedule.versions.update).any()
    failed = lost & (last - sessions.start + 1 < at(fleet.length, sessions.client))
    assert energy.lost is not None
    assert int(energy.lost[-1]) >= int(steps[failed].sum())
    return schedule


def _given_up(fleet: FieldFleet, count: int) -> NDArray[np.bool_]:
    tried = np.zeros(count, bool)
    for some, _ in fleet.given_up:
        tried[some] = True
    return tried
