"""The ledger of a fleet in the field, to the quantum and slot by slot, against a second implementation."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from pipecycle import Costs, build
from pipecycle.schedule.plan import Planning
from pipecycle.world.harvest import rows
from pipecycle.world.links import Links, Passes, Windows
from tests.properties.naive_fedavg import COLUMNS, fedavg


def drawn(number: int) -> tuple[dict[str, Any], Any]:
    """A world, and a harvest; figures differ from client to client."""
    pick = random.Random(number).choice
    devices = {
        "session": pick(((3, 5), (9, 2, 4), (20, 15), (6,))),
        "step": pick(((1.0,), (1.0, 0.3, 2.2))),
        "to_server": pick(((1.0,), (2.5, 0.7), (0.0, 1.1))),
        "download": pick(((0.0,), (0.6, 1.3))),
        "idle": pick(((0.0,), (0.01, 0.2))),
        "leak": pick(((0.0,), (0.02, 0.1))),
        "capacity": pick(((70.0, 90.0), (1e6,))),
        "initial": pick(((0.0,), (7.3, 1.0))),
        "loss": pick(((0.0,), (0.3,), (0.1, 0.7))),
        "failure": pick(((0.0,), (0.1, 0.4))),
        "period": pick(((1,), (13, 30))),
        "share": pick(((1.0,), (0.3, 0.55))),
    }
    windows = [(client, first, first + 6) for client in (0, 2) for first in (3, 20, 33)] if pick((0, 1)) else []
    world = {
        "devices": devices,
        "windows": windows,
        "windows_period": pick((None, 60)) if windows else None,
        "channels": pick((None, 1, 3)),
        "tries": pick((1, 2, 5)),
    }
    return world, pick((0.3, 0.6, 1.0, "markov:0.4,5"))


@pytest.mark.parametrize("number", range(24))
def test_a_second_implementation_has_the_same_ledger(number: int) -> None:
    world, harvest = drawn(number)
    clients, slots, trial = 7, 250, number % 3
    own = {key: np.array([value[k % len(value)] for k in range(clients)]) for key, value in world["devices"].items()}
    table = np.array(world["windows"], np.int64).reshape(-1, 3).T
    windows = Windows(*table, world["windows_period"]) if world["windows"] else None
    passes = Passes(own["period"], own["share"])
    links = Links(world["channels"], own["loss"], 0.0, world["tries"], own["failure"], passes, windows)
    costs = Costs(own["step"], 1.0, own["to_server"], own["download"], own["idle"])
    batteries = {key: own[key] for key in ("session", "capacity", "initial", "leak")}
    run = Planning(build("fedavg"), harvest, clients, slots, trial=trial, costs=costs, links=links, **batteries)
    for _ in run.steps():
        pass
    schedule = run.schedule()
    weather = [row.copy() for row, _ in rows(run.harvest.weather(clients, trial), clients, slots)]

    again = fedavg(weather, world, trial)
    for column in COLUMNS:
        assert getattr(schedule.energy, column).tolist() == [row[column] for row in again["rows"]], column
    assert schedule.energy.level.tolist() == again["level"]
    assert len(schedule.sessions) == again["sessions"]
    assert schedule.publications.slot.tolist() == again["published"]
