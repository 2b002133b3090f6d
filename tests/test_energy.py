from __future__ import annotations

import numpy as np
import pytest

from pipecycle.errors import InputError
from pipecycle.world.energy import UNIT, quanta, show, units


def test_costs_are_rounded_up_once() -> None:
    assert quanta(1.0) == UNIT
    assert quanta(100 / 307_842) == 341  # 340.6 quanta
    assert quanta(2.0**-30) == 1
    assert quanta(0.0) == 0
    assert np.asarray(quanta([0.5, 2.0**-30])).tolist() == [UNIT // 2, 1]


def test_units_are_exact() -> None:
    assert units(21 * UNIT) == 21.0
    assert units(341) == 341 / 1048576
    assert show(21 * UNIT) == "21"


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 2.0**41])
def test_impossible_energies_are_refused(value: float) -> None:
    with pytest.raises(InputError, match=r"capacity = .*: needs a number of units"):
        quanta(value, "capacity")
