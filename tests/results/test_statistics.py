from __future__ import annotations

import math

import pytest

from pipecycle.results import Difference, Value, paired, sampling_error, standard_error


def test_the_paired_interval_of_three_trials_by_hand() -> None:
    found = paired({0: 80.0, 1: 82.0, 2: 87.0, 5: 1.0}, {0: 79.0, 1: 79.0, 2: 83.0, 7: 2.0})
    # The differences are 1, 3 and 4.
    mean = (1 + 3 + 4) / 3
    variance = ((1 - mean) ** 2 + (3 - mean) ** 2 + (4 - mean) ** 2) / 2
    half = 4.302652729749464 * math.sqrt(variance / 3)  # Student's t, two degrees of freedom, 97.5 %
    assert found is not None
    assert found.pairs == 3
    assert found.mean == pytest.approx(8 / 3)
    assert found.low == pytest.approx(mean - half)
    assert found.high == pytest.approx(mean + half)
    assert half == pytest.approx(3.7946, abs=1e-4)


def test_one_pair_has_no_interval_and_none_no_difference() -> None:
    assert paired({3: 50.0}, {3: 48.5}) == Difference(1.5, None, None, 1)
    assert paired({3: 50.0}, {4: 48.5}) is None


def test_equal_differences_have_no_interval() -> None:
    """90.3 - 90.0 and 88.0 - 87.7 are not equal as floats; neither is a spread."""
    found = paired({0: 90.3, 1: 88.0}, {0: 90.0, 1: 87.7})
    assert found is not None
    assert (found.low, found.high, found.pairs) == (None, None, 2)
    assert Difference.of([0.3, 0.3, 0.3]) == Difference(pytest.approx(0.3), None, None, 3)
    assert standard_error([1.0]) is None
    assert standard_error([1.0, 3.0]) == pytest.approx(1.0)  # deviation sqrt(2), over sqrt(2)


def test_a_mean_and_its_error() -> None:
    value = Value.of([60.0, 64.0])
    assert (value.mean, value.sd, value.trials) == (62.0, pytest.approx(math.sqrt(8)), 2)
    assert value.error == pytest.approx(4.0)  # twice sqrt(8) over sqrt(2)
    assert value.text() == "62.0 ± 2.8"
    assert Value.of([60.0, 64.0], noise=10.0).error == pytest.approx(20 / math.sqrt(2))
    assert Value.of([65.0]).sd is None
    assert Value.of([65.0]).text() == "65.0"


def test_the_error_of_a_share_of_samples() -> None:
    assert sampling_error(65.0, 1000) == pytest.approx(100 * math.sqrt(0.65 * 0.35 / 1000))
    assert sampling_error(100.0, 10) == 0.0
