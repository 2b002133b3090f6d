from __future__ import annotations

import numpy as np
import pytest

from pipecycle.results import Metrics, mean_curve


def metrics(
    slot: list[float], energy: list[float], accuracy: list[float], budget: list[float] | None = None
) -> Metrics:
    columns = {"slot": slot, "energy": energy, "accuracy": accuracy, "loss": accuracy, "best": accuracy}
    columns["budget"] = budget or [0.0] * len(slot)
    return Metrics.of({name: np.array(values, np.float64) for name, values in columns.items()})


def test_trials_that_share_no_stretch_have_no_mean() -> None:
    assert mean_curve([metrics([1], [95], [20]), metrics([1], [110], [30])], "energy") is None
    assert mean_curve([], "slot") is None


def test_over_slots_the_regular_checkpoints_count_and_over_energy_those_within_the_budget() -> None:
    shown = metrics([100, 190, 200], [10, 19, 20], [50, 60, 70], (0, 1, 0))
    assert [column.tolist() for column in shown.line("slot")] == [[100, 200], [50, 70]]
    assert [column.tolist() for column in shown.line("energy")] == [[10, 19], [50, 60]]
    assert shown.reaches(70) is None
    assert (shown.reaches(55), shown.energy_to(55), shown.cost(70)) == (1, 19, 19)


def test_where_energy_stood_still_the_last_evaluation_counts() -> None:
    shown = metrics([100, 200, 300, 400], [0, 10, 10, 20], [10, 50, 60, 70])
    assert [column.tolist() for column in shown.line("energy")] == [[0, 10, 20], [10, 60, 70]]


def test_the_noise_of_one_run_is_of_its_test_samples_and_of_what_still_moves() -> None:
    """50 % of 10,000 samples is known to half a point, and steps of 3 up and down are evaluations 3 / sqrt(2) off."""
    restless = metrics([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [50, 53, 50, 53, 50])
    assert restless.noise(10_000) == pytest.approx((0.25 + 4.5) ** 0.5)
    assert metrics([1, 2], [1, 2], [40, 50]).noise(10_000) == pytest.approx(0.5)


def test_an_accuracy_that_nobody_knows_is_not_drawn() -> None:
    assert mean_curve([metrics([100, 200], [1, 2], [np.nan, np.nan])], "slot") is None
