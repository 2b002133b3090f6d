from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipecycle.data import Scale, Task
from pipecycle.errors import InputError

X, Y = np.ones((4, 3)), np.array([0, 1, 2, 1])


def made(**changes: Any) -> Task:
    return Task(**{"x_train": X, "y_train": Y, "x_test": X[:2], "y_test": Y[:2], **changes})


def test_arrays_become_float32_and_int64() -> None:
    task = made(x_train=X.astype(np.float64), y_train=Y.astype(np.uint8))
    assert task.x_train.dtype == np.float32
    assert task.y_train.dtype == np.int64
    assert task.classes == 3
    assert task.shape == (3,)
    assert repr(task) == "Task(arrays: 4 training and 2 test samples of 3 features, 3 classes)"


def test_lists_will_do() -> None:
    task = Task([[0, 1], [2, 3]], [0, 1], [[4, 5]], [2], name="mine")  # type: ignore[arg-type]
    assert task.x_train.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert task.classes == 3


def test_bytes_are_divided_by_255() -> None:
    images = np.array([0, 51, 255, 102], np.uint8).reshape(4, 1, 1, 1)
    task = made(x_train=images, x_test=images[:2])
    assert task.x_train.ravel().tolist() == [0.0, np.float32(0.2), 1.0, np.float32(0.4)]


def test_more_classes_than_labels() -> None:
    assert made(classes=10).classes == 10
    assert made(y_train=Y + 1, y_test=Y[:2] + 1, classes=4).classes == 4  # who counts the classes knows about class 0
    assert made(y_test=Y[:2] + 1).classes == 3  # no sample of class 0 to test on


def test_a_scale_by_channel() -> None:
    raw = np.array([255, 0], np.uint8).reshape(1, 2, 1, 1)
    scale = Scale((0.5, 0.25), (0.25, 0.5))
    assert scale(raw).ravel().tolist() == [2.0, -0.5]
    assert scale.black == (-2.0, -0.5)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"x_train": np.ones(4)}, "x_train has shape (4,): needs (n, features) or (n, channels, height, width)"),
        ({"x_train": np.ones((4, 8, 8))}, "x_train has shape (4, 8, 8): needs (n, features) or"),
        ({"x_train": np.ones((4, 8, 8, 3))}, "x_train has shape (4, 8, 8, 3): channels are last"),
        ({"x_train": np.ones((0, 3))}, "x_train has shape (0, 3): is empty"),
        ({"x_train": np.array([["a"]] * 4)}, "x_train has type <U1: needs numbers"),
        ({"x_train": [[1, 2], [3]]}, "x_train is ragged"),
        ({"x_train": np.array([[1.0], [np.nan], [1], [1]])}, "x_train[1] holds a value that is not a finite"),
        ({"x_test": np.array([[1.0], [1e300]])}, "x_test[1] holds a value that is not a finite 32-bit number"),
        ({"y_train": Y.astype(float)}, "y_train has type float64: labels need to be integers"),
        ({"y_train": Y - 1}, "y_train holds -1: labels need to be 0 or more"),
        ({"y_train": Y + 1, "y_test": Y[:2] + 1}, "hold labels 1 to 3: need to begin at 0, subtract 1"),
        ({"y_train": Y[:, None]}, "y_train has shape (4, 1): needs one label per sample"),
        ({"y_train": Y + 2**40}, "labels need to be below 65,536"),
        ({"y_train": Y[:3]}, "x_train has 4 samples but y_train has 3 labels"),
        ({"y_test": np.array([], int)}, "y_test is empty"),
        ({"x_test": np.ones((2, 4))}, "x_test has samples of shape (4,), x_train of (3,)"),
        ({"classes": 2}, "y_train holds 2: labels need to be below the 2 classes"),
    ],
)
def test_bad_arrays_get_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as raised:
        made(**changes)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
