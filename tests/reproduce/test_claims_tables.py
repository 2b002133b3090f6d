"""Each claim about the tables, made true and made false, and with nothing run; then what the paper's own say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipecycle_paper.claims import CLAIMS
from pipecycle_paper.claims_tables import Source, printed
from pipecycle_paper.grid import Value
from pipecycle_paper.paper import CYCLIC
from pipecycle_paper.verdicts import Finding

Change = Callable[[str, str, int | None, float], float | None]


def changed(change: Change) -> Source:
    """The paper's tables with some cells changed, to a tenth of a point."""

    def source(where: str, policy: str, groups: int | None, delta: float) -> Value | None:
        value, new = printed(where, policy, groups, delta), change(where, policy, groups, delta)
        return None if value is None else Value(value.mean if new is None else new, None, 3, 0.05)

    return source


def pipecycle(two: float, five: float, ten: float, where: str | None = None, only: float | None = None) -> Change:
    def change(at: str, policy: str, groups: int | None, delta: float) -> float | None:
        if policy != "pipecycle" or where not in (None, at) or only not in (None, delta):
            return None
        return {2: two, 5: five, 10: ten}[groups or 2]

    return change


def cyclic(two: float, five: float, ten: float) -> Change:
    return lambda at, policy, groups, delta: {2: two, 5: five, 10: ten}[groups or 2] if policy in CYCLIC else None


def by_delta(values: dict[float, tuple[float, float, float]]) -> Change:
    def change(at: str, policy: str, groups: int | None, delta: float) -> float | None:
        return values[delta][{2: 0, 5: 1, 10: 2}[groups or 2]] if policy == "pipecycle" else None

    return change


NARROWS = by_delta({0.1: (60, 50, 40), 0.3: (60, 55, 50), 0.5: (60, 56, 52), 1.0: (60, 59, 58)})
WIDENS = by_delta({0.1: (60, 59, 58), 0.3: (60, 55, 50), 0.5: (60, 56, 52), 1.0: (60, 50, 40)})
DEPENDS = by_delta({0.1: (60, 50, 40), 0.3: (60, 55, 50), 0.5: (50, 56, 62), 1.0: (50, 59, 68)})
FLAT = by_delta(dict.fromkeys((0.1, 0.3, 0.5, 1.0), (60.0, 50.0, 40.0)))
DELTA_FALLS: Change = lambda at, policy, groups, delta: 60 - 20 * delta if policy in CYCLIC else None  # noqa: E731
DELTA_RISES: Change = lambda at, policy, groups, delta: 40 + 20 * delta if policy in CYCLIC else None  # noqa: E731

CASES: list[tuple[str, Change, Change]] = [
    ("highest iid", pipecycle(80, 50, 50), pipecycle(60, 50, 50)),
    ("never drops", pipecycle(60, 61, 62), pipecycle(60, 61, 59)),
    ("others drop", cyclic(60, 61, 30), cyclic(30, 40, 50)),
    ("grouped break", cyclic(60, 45, 12), cyclic(60, 55, 12)),
    ("functional to five", pipecycle(60, 51, 10), pipecycle(60, 49, 60)),
    ("degrades at ten", pipecycle(60, 50, 40), pipecycle(60, 50, 51)),
    ("two is best when scarce", pipecycle(60, 59, 58), pipecycle(60, 59, 61)),
    ("gap narrows", NARROWS, WIDENS),
    ("small wins when scarce", pipecycle(60, 59, 58), pipecycle(60, 59, 61)),
    ("large settles lower", pipecycle(60, 59, 58), pipecycle(60, 61, 58)),
    ("larger is better iid", pipecycle(60, 61, 61), pipecycle(60, 61, 59)),
    ("two beats all iid", pipecycle(68, 50, 50), pipecycle(67, 80, 80)),
    ("highest noniid", pipecycle(64, 50, 50), pipecycle(63, 80, 80)),
    ("sixty at two", pipecycle(61, 10, 10), pipecycle(59, 80, 80)),
    ("degrade or collapse", DELTA_FALLS, DELTA_RISES),
    ("cyclic collapse", cyclic(11, 12, 13), cyclic(16, 10, 10)),
    ("collapse at ten", cyclic(60, 60, 13), cyclic(10, 10, 16)),
    ("fedbacys fails", cyclic(10, 10, 10), cyclic(16, 10, 10)),
    ("keeps 45", pipecycle(46, 46, 46), pipecycle(60, 60, 44)),
    ("comparable to fedseq", pipecycle(64, 10, 10), pipecycle(63, 80, 80)),
    ("best groups depend", DEPENDS, FLAT),
    ("half the energy to 65", pipecycle(66, 10, 10), pipecycle(64, 60, 60)),
]


def asked(claim: str, source: Source) -> Finding:
    table = CLAIMS[claim].table
    assert table is not None
    return table(source)


@pytest.mark.parametrize(("claim", "good", "bad"), CASES, ids=[case[0] for case in CASES])
def test_both_ways_and_with_nothing(claim: str, good: Change, bad: Change) -> None:
    assert asked(claim, changed(good)).words == "holds"
    assert asked(claim, changed(bad)).words == "does not hold"
    assert asked(claim, lambda *_: None).verdict == "cannot be tested"


@pytest.mark.parametrize(("claim", "good", "bad"), CASES, ids=[case[0] for case in CASES])
def test_a_large_error_is_admitted(claim: str, good: Change, bad: Change) -> None:
    def blurred(source: Source) -> Source:
        def blur(*where) -> Value | None:
            value = source(*where)
            return None if value is None else Value(value.mean, None, 1, 90.0)

        return blur

    assert asked(claim, blurred(changed(good))).close
    assert asked(claim, blurred(changed(bad))).close


def test_every_claim_about_the_tables_is_tested_here() -> None:
    used = {name for name, claim in CLAIMS.items() if claim.table is not None and not claim.print_only}
    assert used == {case[0] for case in CASES}


def test_where_the_paper_contradicts_its_own_tables() -> None:
    """Sentences of the paper and its printed numbers."""
    verdicts = {name: claim.own() for name, claim in CLAIMS.items()}
    wrong = {name for name, found in verdicts.items() if found is not None and found.verdict == "does not hold"}
    assert {
        "two is best when scarce", "never drops", "half the energy to 65", "bold is best", "gap narrows",
        "cyclic collapse", "small wins when scarce", "large settles lower", "larger is better iid", "grouped break",
    } == wrong  # fmt: skip
    found = verdicts["two is best when scarce"]
    assert found is not None
    assert "65.0 (G = 2) against 65.3 (G = 10)" in found.figure
