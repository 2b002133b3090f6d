from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipecycle.data import Split
from pipecycle.errors import InputError

from .conftest import task_of

TASK = task_of([0, 1, 2, 0, 1, 2, 0, 0], test=4)


def test_clients_and_their_indices() -> None:
    split = Split.of([[3, 0], [7], [2, 5, 1]], test=[1, 0])
    assert [indices.tolist() for indices in split] == [[0, 3], [7], [1, 2, 5]]
    assert split.sizes.tolist() == [2, 1, 3]
    assert split.test.tolist() == [0, 1]
    assert repr(split) == "Split(3 clients x 1 to 3 samples, 2 test)"
    with pytest.raises(IndexError):
        split[3]


def test_a_session_uses_at_most_a_batch_in_every_step() -> None:
    split = Split.of([[3, 0], [7], [2, 5, 1, 4]], test=[0])
    assert split.used(20, batch=3).tolist() == [40, 20, 60]
    assert split.used([20, 10, 5], batch=2).tolist() == [40, 10, 10]


def test_class_counts() -> None:
    split = Split.of([[3, 0], [7], [2, 5, 1]], test=[0])
    assert split.counts(TASK).tolist() == [[2, 0, 0], [1, 0, 0], [0, 1, 2]]
    assert split.show(TASK)[2] == {"client": 2, "samples": 3, "0": 0, "1": 1, "2": 2}


def test_digest_is_of_sets_not_of_orders() -> None:
    one = Split.of([[3, 0], [7]], test=[0, 1])
    assert one.digest() == Split.of([[0, 3], [7]], test=[1, 0], notes=["x"]).digest()
    others = [
        Split.of([[0], [3, 7]], test=[0, 1]),
        Split.of([[0, 3], [7]], test=[0]),
        Split.of([[0, 3, 7]], test=[0, 1]),
        Split.of([[0, 3], [6]], test=[0, 1]),
    ]
    assert len({split.digest() for split in [one, *others]}) == 5


@pytest.mark.parametrize(
    ("clients", "test", "sentence"),
    [
        ([], [0], "a split needs at least 1 client"),
        ([[0], []], [0], "client 1 has no samples: needs at least 1"),
        ([[0], [1, -2]], [0], "client 1 holds index -2: needs 0 or more"),
        ([[0, 4, 0]], [0], "client 0 holds index 0 twice"),
        ([[0.5]], [0], "client 0: has indices of type float64, needs integers"),
        ([[True]], [0], "client 0: has indices of type bool, needs integers"),
        ([[2**70]], [0], "client 0: has indices of type object, needs integers"),
        ([[2**63]], [0], "client 0 holds index 9223372036854775808: is too large"),
        ([[[0]]], [0], "client 0: has indices of shape (1, 1), needs a flat list"),
        ([[[0], 1]], [0], "client 0: needs a flat list of indices"),
        ([3], [0], "client 0: has indices of shape (), needs a flat list"),
        ([[0]], [], "test has no samples: needs at least 1"),
        ([[0]], [1, 1], "test holds index 1 twice"),
    ],
)
def test_bad_indices(clients: list[Any], test: list[int], sentence: str) -> None:
    with pytest.raises(InputError) as raised:
        Split.of(clients, test)
    assert str(raised.value) == sentence


def test_check_against_a_task() -> None:
    with pytest.raises(InputError, match="client 1 holds index 8: toy has 0 to 7"):
        Split.of([[0, 1], [2, 8]], [0]).check(TASK)
    with pytest.raises(InputError, match="test holds index 4: toy has 0 to 3"):
        Split.of([[0, 1]], [0, 4]).check(TASK)
    shared = Split.of([[0, 1], [2], [3, 1]], np.array([0]))
    with pytest.raises(InputError, match="clients 0 and 2 share index 1: overlap is not allowed"):
        shared.check(TASK)
    assert shared.check(TASK, overlap=True) is shared
