from __future__ import annotations

import numpy as np
import pytest

from pipecycle.data.shares import ONE, labels, log_gammas, uniform, weights
from pipecycle.world.streams import streams


def test_uniform_never_reaches_its_ends() -> None:
    ends = uniform(np.array([0, 2**64 - 1], np.uint64))
    assert ends[0] == 2.0**-53
    assert ends[1] == 1.0 - 2.0**-53


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0, 7.0])
def test_gamma_moments(alpha: float) -> None:
    """Mean and variance of Gamma(alpha) are both alpha; four standard errors either way."""
    count = 200_000
    values = np.exp(log_gammas(streams(3), "test", 0, count, alpha))
    assert abs(values.mean() - alpha) < 4 * np.sqrt(alpha / count)
    assert abs(values.var() - alpha) < 4 * np.sqrt((6 * alpha + 2 * alpha**2) / count)


def test_small_concentration_does_not_underflow() -> None:
    """log Gamma(0.01) has mean psi(0.01) = -100.56 and deviation 100: far below what exp can hold."""
    logs = log_gammas(streams(0), "test", 0, 100_000, 0.01)
    assert np.isfinite(logs).all()
    assert logs.min() < -800
    assert abs(logs.mean() + 100.56) < 4 * 100 / np.sqrt(100_000)
    assert (weights(logs.reshape(-1, 10), np.ones(10, bool)).max(axis=1) >= ONE // 10).all()


def test_first_ones_do_not_depend_on_the_count() -> None:
    few, many = (log_gammas(streams(0), "test", 0, count, 0.3) for count in (2, 5000))
    assert (few == many[:2]).all()


def test_weights() -> None:
    logs = np.log(np.array([[1.0, 2.0, 5.0]]))
    assert weights(logs, np.array([True, True, True])).tolist() == [[268435456, 536870912, 1342177280]]
    assert weights(logs, np.array([True, True, False])).tolist() == [[715827883, 1431655765, 0]]


def test_weights_of_what_exp_cannot_hold() -> None:
    logs = np.array([[0.0, -1000.0, -1000.0 + np.log(3.0)]])
    assert weights(logs, np.array([True, True, True])).tolist() == [[ONE, 0, 0]]
    assert weights(logs, np.array([False, True, True])).tolist() == [[0, ONE // 4, 3 * ONE // 4]]


def test_labels_at_the_edges() -> None:
    rows = np.array([[ONE // 2, 0, ONE // 2], [0, ONE, 0]])
    words = np.array([[0, 2**63 - 1, 2**63, 2**64 - 1]] * 2, np.uint64)
    assert labels(rows, words).tolist() == [[0, 0, 2, 2], [1, 1, 1, 1]]


def test_label_frequencies() -> None:
    rows = np.array([[1, 2, 5]]) * (ONE // 8)
    drawn = labels(rows, streams(0)("test").words(80_000)[None])
    assert np.abs(np.bincount(drawn[0]) - [10_000, 20_000, 50_000]).max() < 500
