from __future__ import annotations

import numpy as np
import pytest

from pipecycle import Costs, InputError, build, plan
from pipecycle.policies import REGISTRY
from pipecycle.report import Record, load
from pipecycle.report.battery import Levels, levels, replay

UNIT = 1 << 20


@pytest.mark.parametrize("policy", sorted(REGISTRY))
@pytest.mark.parametrize("harvest", ["bernoulli:0.3", "markov:0.4,5", "always"])
def test_the_replay_ends_at_the_recorded_levels_exactly(make, policy: str, harvest: str) -> None:
    (group,) = load([make("run", policy, world__harvest=harvest, world__slots=333)])
    schedule = group.example.schedule
    found = levels(group.example, 50)
    assert found.slot[-1] == schedule.slots - 1
    assert np.array_equal(found.level[-1], schedule.energy.level)
    assert np.array_equal(found.level.sum(axis=1), schedule.energy.stored[found.slot])


def test_full_batteries_and_a_charge_at_the_start(make) -> None:
    (group,) = load([make("run", world__capacity=25.0, world__initial=7.0, world__harvest="bernoulli:0.9")])
    schedule = group.example.schedule
    assert schedule.energy.overflow.any()
    found = levels(group.example)
    assert np.array_equal(found.level[-1], schedule.energy.level)
    assert found.level.max() <= 25 * UNIT


def test_a_stop_in_mid_session(make) -> None:
    (group,) = load([make("run", "fedavg", world__budget=150.0)])
    schedule = group.example.schedule
    assert (schedule.sessions.end < 0).any()
    assert np.array_equal(levels(group.example).level[-1], schedule.energy.level)


def test_a_battery_by_hand() -> None:
    """One client, one unit a slot: it needs 21 units, trains in slots 20 to 39, and so on."""
    schedule = plan(build("fedavg", {}), 1.0, 1, 70)
    found = replay(schedule, "always", np.arange(70), None, None)[:, 0] // UNIT
    start = int(schedule.sessions.start[0])
    assert found[:start].tolist() == list(range(1, start + 1))
    assert (found[start : start + 20] == start).all()  # gains one and spends one
    assert found[-1] * UNIT == schedule.energy.level[0]


def test_a_lone_schedule_replays_unless_batteries_overflowed(make) -> None:
    (group,) = load([make("a", world__initial=3.0) / "schedule.npz"])
    assert np.array_equal(levels(group.example).level[-1], group.example.schedule.energy.level)
    (full,) = load([make("b", world__capacity=25.0, world__harvest="always") / "schedule.npz"])
    with pytest.raises(InputError, match="the battery capacity is unknown"):
        levels(full.example)


def test_costs_that_differ_by_client_are_refused(tmp_path) -> None:
    schedule = plan(build("fedavg", {}), 0.5, 4, 300, costs=Costs(step=[1.0, 1.5, 1.0, 1.25]))
    record = Record(tmp_path, schedule, None, None, None)
    with pytest.raises(InputError, match=r"clients pay different costs|do not end where"):
        levels(record)


def test_other_costs_for_all_are_found_out(tmp_path) -> None:
    schedule = plan(build("pipecycle", {}), 0.5, 8, 300, costs=Costs(step=0.5, to_hub=0.25, to_server=2.0))
    assert np.array_equal(levels(Record(tmp_path, schedule, None, None, None)).level[-1], schedule.energy.level)


def test_rows_are_means_over_neighbours() -> None:
    some = Levels(np.array([0, 1]), UNIT * np.array([[1, 3, 5, 7, 100], [0, 2, 4, 6, 8]]))
    values, names = some.binned(2)
    assert names == ["0 to 1", "2 to 4"]
    assert values.tolist() == [[2.0, 1.0], [112 / 3, 6.0]]
    assert some.binned(9)[1] == ["0", "1", "2", "3", "4"]
