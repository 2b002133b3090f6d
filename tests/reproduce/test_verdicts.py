from __future__ import annotations

import pytest

from pipecycle_paper.grid import Value
from pipecycle_paper.verdicts import Check, above, judge


def check(margin: float, error: float = 1.0, what: str = "here") -> Check:
    return Check(what, margin, error, f"{margin:+g}")


@pytest.mark.parametrize(
    ("checks", "words"),
    [
        ([check(3)], "holds"),
        ([check(0, 0)], "holds"),
        ([check(0.5)], "holds, but within the error"),
        ([check(3), check(0.5)], "holds, but within the error"),
        ([check(-0.5)], "does not hold, but within the error"),
        ([check(-3)], "does not hold"),
        ([check(3), check(-3)], "does not hold"),
        ([check(3), None], "cannot be tested"),
        ([check(-0.5), None], "cannot be tested"),
        ([check(-3), None], "does not hold"),
        ([None], "cannot be tested"),
        ([], "cannot be tested"),
    ],
)
def test_every_comparison_must_hold(checks: list[Check | None], words: str) -> None:
    assert judge(checks).words == words


def test_among_many_comparisons_one_small_failure_is_chance() -> None:
    assert judge([check(-1.2)]).words == "does not hold"
    assert judge([*[check(9)] * 39, check(-1.2)]).words == "does not hold, but within the error"
    assert judge([*[check(9)] * 39, check(-2)]).words == "does not hold"  # 3.2 standard errors are the bar among forty


def test_the_worst_is_named() -> None:
    found = judge([check(-3, what="a"), check(-7, what="b"), *[check(5)] * 4])
    assert found.figure == "4 of 6 hold; worst b: -7"
    assert found.why.startswith("2 of 6 comparisons clearly fail; worst b: -7.0 points, error 1.3 points")
    assert judge([check(4), check(6)]).figure == "here: +4; here: +6"


def test_errors_of_two_means_add_up_as_squares() -> None:
    found = above("x", Value(60.0, None, 1, 3.0), Value(57.0, None, 1, 4.0))
    assert found is not None
    assert (found.margin, found.error) == (3.0, 5.0)
    assert above("x", None, Value(57.0, None, 1, 4.0)) is None
