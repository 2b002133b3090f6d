"""Samples held back to choose settings by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipecycle.data import Task, dirichlet, iid, load, load_split, save_split
from pipecycle.errors import InputError
from pipecycle.runs.config import Config
from pipecycle.runs.run import problem_of


@pytest.fixture(scope="module")
def digits() -> Task:
    return load("digits")


@pytest.mark.parametrize("alpha", [None, 0.3])
def test_nobody_trains_on_validation_samples(digits: Task, alpha: float | None) -> None:
    def split(held: int, samples: int | None = None):  # type: ignore[no-untyped-def]
        if alpha is None:
            return iid(digits, 10, samples, 1, held)
        return dirichlet(digits, 10, samples, alpha, 1, held)

    held = split(200)
    assert len(held.validation) == 200
    assert not np.isin(held.validation, held.indices).any()
    assert (held.test == split(0).test).all()
    assert held.digest() != split(0).digest()
    assert (held.validation == split(200, 5).validation).all()
    assert held.sizes.tolist() == [(len(digits.y_train) - 200) // 10] * 10
    assert len(np.unique(digits.y_train[held.validation])) == 10


def test_too_many_are_refused(digits: Task) -> None:
    with pytest.raises(InputError, match="validation = 99999: digits has"):
        iid(digits, 3, None, 0, 99_999)
    with pytest.raises(InputError, match="samples = 140"):
        iid(digits, 10, 140, 0, 300)
    with pytest.raises(InputError, match=r"look\.on = validation: needs data\.validation"):
        Config().changed({"look.on": "validation"})


@pytest.mark.parametrize("name", ["split.npz", "split.json"])
def test_a_file_keeps_them(digits: Task, tmp_path: Path, name: str) -> None:
    split = iid(digits, 4, 20, 0, 50)
    save_split(split, tmp_path / name)
    again = load_split(tmp_path / name, digits)
    assert again.digest() == split.digest()
    assert (again.validation == split.validation).all()
    more = iid(digits, 4, 20, 0).hold_back(60, digits, 0)
    assert len(more.validation) == 60
    assert not np.isin(more.validation, more.indices).any()


def test_models_are_judged_by_what_look_on_says() -> None:
    base = Config().changed({"data.validation": 120, "world.clients": 10})
    usual, chosen = problem_of(base), problem_of(base.changed({"look.on": "validation"}))
    assert (usual.split.indices == chosen.split.indices).all()
    assert len(usual.split.test) == 360
    assert len(chosen.split.test) == 120
    judged = chosen.task.y_test[chosen.split.test]
    assert (judged == usual.task.y_train[usual.split.validation]).all()
    assert Config().identity() != base.identity()
    assert "validation" not in Config().text()
    again = problem_of(base.changed({"look.on": "validation", "world.trial": 1}))
    assert again.task is chosen.task  # runs of several trials are stacked
