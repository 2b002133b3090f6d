from __future__ import annotations

import numpy as np
import pytest

from pipecycle.report import load
from pipecycle.results import Axis, Curve, mean_curve
from pipecycle.runs.records import Group


def curve(group: Group, axis: Axis, most: int = 300) -> Curve | None:
    return mean_curve(group.curves, axis, most=most)


def test_mean_and_deviation_over_slots(make) -> None:
    (group,) = load([make("a", accuracy=(10, 30, 50)), make("b", accuracy=(20, 30, 70), world__trial=1)])
    found = curve(group, "slot")
    assert found is not None
    assert found.x.tolist() == [100, 200, 300]
    assert found.mean.tolist() == [15, 30, 60]
    assert found.sd == pytest.approx([np.sqrt(50), 0, np.sqrt(200)])


def test_over_energy_only_where_all_trials_are(make) -> None:
    (group,) = load([make("a", accuracy=(10, 30)), make("b", accuracy=(20, 30, 70), world__trial=1)])
    found = curve(group, "energy")
    assert found is not None
    ends = [record.metrics.energy for record in group.records]
    assert found.x[0] == max(ends[0][0], ends[1][0])
    assert found.x[-1] == min(ends[0][-1], ends[1][-1])
    assert (np.diff(found.x) > 0).all()


def test_one_trial_has_no_band_and_a_diverged_one_stays_where_it_is(make) -> None:
    (group,) = load([make("a", accuracy=(60, 10), ended="diverged")])
    found = curve(group, "slot")
    assert found is not None
    assert found.sd is None
    assert found.x.tolist() == [100, 200, 400]
    assert found.mean.tolist() == [60, 10, 10]


def test_nothing_trained_nothing_drawn(make) -> None:
    (group,) = load([make("a") / "schedule.npz"])
    assert curve(group, "slot") is None


def test_long_runs_are_thinned(make) -> None:
    (group,) = load([make("a", accuracy=[step / 4 for step in range(400)], every=1)])
    found = curve(group, "slot", 50)
    assert found is not None
    assert len(found.x) == 50
    assert found.x[[0, -1]].tolist() == [1, 400]
