"""Steps against lags: the rule by hand, and what policies do with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipecycle import InputError, Schedule, build, plan
from pipecycle.policies.steps import LagStable, stability_limit

STABLE = {"step": "lag-stable"}


def steps(schedule: Schedule) -> list[float]:
    """The weight of the updates in every published version (a rounded sum), or of the hub's model (to the bit)."""
    found = []
    for version in schedule.publications.version.tolist():
        recipe = schedule.ancestry.recipe(version)
        found.append(
            float(recipe.coefficients[1]) if len(recipe.versions) == 3 else round(float(recipe.weights.sum()), 14)
        )
    return found


def test_the_limit() -> None:
    assert [round(stability_limit(lag), 3) for lag in (0, 1, 2, 3, 4, 6, 9)] == [
        2,
        1,
        0.618,
        0.445,
        0.347,
        0.241,
        0.165,
    ]
    assert stability_limit(1) == 1.0  # to the bit, on every machine
    with pytest.raises(InputError, match="lag = -1: needs at least 0"):
        stability_limit(-1)


def test_equal_groups_take_equal_steps() -> None:
    rule = LagStable(5)
    assert {rule.of(lag, 8) for lag in (0, 1, 2, 3, 4, 4, 4)} == {0.85 * stability_limit(4)}
    assert rule.of(6, 8) == 0.85 * stability_limit(6)  # older than the pipeline would have it
    assert LagStable(1).of(0, 8) == 1.0  # 1.7, but a step is never more than whole
    assert LagStable(2, kappa=0.5).of(1, 8) == 0.5


def test_unequal_groups_are_weighted_but_not_beyond_the_proven() -> None:
    rule = LagStable(2)
    assert rule.of(1, 6) == 0.85
    assert rule.of(1, 2) == pytest.approx(0.85 * 2 / 4)
    assert rule.of(1, 1) == pytest.approx(0.85 * 1 / 3)
    assert rule.of(1, 11) == 0.87
    for _ in range(49):
        rule.of(1, 3)
    assert rule.of(1, 3) == 0.85  # the unequal ones are more than 50 groups ago
    alone = LagStable(1)
    alone.of(0, 4)
    assert alone.of(0, 2) == pytest.approx(2 / 3)
    assert alone.of(0, 9) == 1.0
    eager = LagStable(2, kappa=0.95)
    assert (eager.of(1, 4), eager.of(1, 5)) == (0.95, 0.87)


@pytest.mark.parametrize("groups", [1, 2, 5, 10])
def test_at_saturation_the_step_is_one_constant(groups: int) -> None:
    constant = min(1.0, 0.85 * stability_limit(groups - 1))
    options: dict[str, Any]
    for name, options, taken in (("pipecycle+", {}, constant), ("fedseq", STABLE, round(constant, 14))):
        assert set(steps(plan(build(name, {"groups": groups, **options}), 1.0, slots=2000))) == {taken}
        started = steps(plan(build(name, {"groups": groups, **options}), 0.5, slots=3000))
        assert set(started[-100:]) == {taken}  # the first groups were small


def test_at_saturation_two_groups_of_cycp_and_fedbacys_are_one_version_old() -> None:
    for name in ("cycp", "fedbacys"):
        assert set(steps(plan(build(name, {"groups": 2, **STABLE}), 1.0, slots=3000))[-50:]) == {0.85}


@pytest.mark.parametrize("name", ["fedseq", "cycp", "fedbacys", "fedbacys-odd"])
@pytest.mark.parametrize("delta", [0.1, 0.5])
def test_every_lag_stable_step_is_below_the_limit_of_the_oldest_update(name: str, delta: float) -> None:
    schedule = plan(build(name, {"groups": 3, **STABLE}), delta, clients=30, slots=2000)
    versions, ancestry = schedule.versions, schedule.ancestry
    maker = np.repeat(np.arange(len(versions)), np.diff(versions.update_at))
    oldest = np.zeros(len(versions), int)
    np.maximum.at(oldest, maker, ancestry.lags)
    seen = set()
    for version, step in zip(schedule.publications.version.tolist(), steps(schedule), strict=True):
        limit = stability_limit(max(2, oldest[version]))
        assert 0 < step <= 0.87 * limit + 1e-12
        seen.add(int(oldest[version]))
    assert len(seen) > 1
    assert name == "fedseq" or max(seen) > 2  # lags beyond G - 1 came up


@pytest.mark.parametrize("name", ["fedseq", "cycp", "fedbacys"])
def test_a_step_changes_weights_and_nothing_else(name: str) -> None:
    usual = plan(build(name, {"groups": 3}), 0.3, clients=30, slots=1000)
    for step in (0.4, "lag-stable"):
        other = plan(build(name, {"groups": 3, "step": step}), 0.3, clients=30, slots=1000)
        assert other.differences(usual) == ["meta.settings", "versions.weight"]
        if step == 0.4:
            assert np.allclose(other.versions.weight, 0.4 * usual.versions.weight, rtol=1e-15)
    assert plan(build(name, {"groups": 3, "step": 1}), 0.3, clients=30, slots=1000).digest() == usual.digest()


def test_pipecycle_plus_by_hand() -> None:
    """Two groups of one, sessions of 4, a formation every 2 slots, as in PipeCycle's example."""
    schedule = plan(build("pipecycle+", {"groups": 2, "group_size": 1}), 1.0, clients=4, slots=14, session=4)
    assert schedule.sessions.start.tolist() == [4, 6, 8, 10, 12]
    # Versions 1, 3, 5, 7 are hub models, made with slots 7, 9, 11, 13; 2, 4, 6 what the server made of the first three.
    assert schedule.publications.version.tolist() == [2, 4, 6]
    assert schedule.sessions.reference.tolist() == [0, 0, 2, 4, 6]
    recipes = [schedule.ancestry.recipe(version) for version in (2, 4, 6)]
    assert [recipe.versions.tolist() for recipe in recipes] == [[0, 1, 0], [2, 3, 0], [4, 5, 2]]
    assert [recipe.coefficients.tolist() for recipe in recipes] == [[1.0, 0.85, -0.85]] * 3


@pytest.mark.parametrize("delta", [0.1, 0.5])
def test_pipecycle_plus_with_unequal_sessions(delta: float) -> None:
    """Groups wait for their slowest member and overtake each other: lags above G - 1 shorten the step."""
    lengths = np.where(np.arange(40) % 2, 5, 60)
    schedule = plan(build("pipecycle+", {"groups": 4, "group_size": 1}), delta, clients=40, slots=4000, session=lengths)
    published = [0, *schedule.publications.version.tolist()]
    order = {version: number for number, version in enumerate(published)}
    lags = []
    for number, (version, step) in enumerate(zip(published[1:], steps(schedule), strict=True)):
        lags.append(number - order[int(schedule.ancestry.recipe(version).versions[2])])
        assert step == 0.85 * stability_limit(max(3, lags[-1]))
    assert max(lags) > 3


def quadratic(schedule: Schedule, stiff: float = 1.0) -> float:
    """The largest error late in a run whose sessions each remove a part `stiff` of the error that they start with."""
    versions, error = schedule.versions, np.zeros(len(schedule.versions))
    error[0] = 1.0
    for version in range(1, len(versions)):
        recipe = schedule.ancestry.recipe(version)
        moved = -stiff * error[schedule.sessions.reference[recipe.sessions]]
        error[version] = recipe.coefficients @ error[recipe.versions] + recipe.weights @ moved
    return float(np.abs(error[schedule.publications.version[-30:]]).max())


@pytest.mark.parametrize("delta", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("groups", [2, 5, 10])
@pytest.mark.parametrize("name", ["pipecycle+", "fedseq", "cycp", "fedbacys", "fedbacys-odd"])
def test_lag_stable_schedules_converge_in_the_stiffest_direction(name: str, groups: int, delta: float) -> None:
    options: dict[str, Any] = {"groups": groups} | ({} if name == "pipecycle+" else STABLE)
    assert quadratic(plan(build(name, options), delta, slots=4000)) < 0.02


@pytest.mark.parametrize("name", ["fedseq", "cycp", "fedbacys"])
def test_whole_steps_of_many_groups_do_not(name: str) -> None:
    assert quadratic(plan(build(name, {"groups": 5}), 1.0, slots=4000)) > 1e6
    assert quadratic(plan(build(name, {"groups": 5}), 1.0, slots=4000), stiff=0.3) < 0.02  # a gentle direction
