"""The limit on stale steps: on simulated quadratics, and what real schedules are beside it."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest

from pipecycle import InputError, build, plan, theory
from pipecycle.policies import REGISTRY

LAGS = range(13)


def errors(part: float, lag: int, count: int) -> Any:
    """`count` errors of the recursion with s m = `part`, from an error of 1 that has lasted."""
    past = np.ones(lag + 1 + count)
    for k in range(lag + 1, len(past)):
        past[k] = past[k - 1] - part * past[k - 1 - lag]
    return past[lag + 1 :]


def growth(part: float, lag: int) -> float:
    """By how much the error grows per version in the long run: the largest root of z^(l+1) - z^l + s m."""
    polynomial = np.zeros(lag + 2)
    polynomial[[0, 1]] = 1.0, -1.0
    polynomial[-1] += part
    return float(np.abs(np.roots(polynomial)).max())


def varying_limit(lag: int) -> float:
    """What steps that vary from version to version may go up to: (3/2 + 1/(2 (l+1))) / (l+1), by a criterion that is
    sufficient (Erbe, Xia and Yu 1995); never below 0.875 of the limit for a constant step."""
    return (1.5 + 0.5 / (lag + 1)) / (lag + 1)


def contraction(curvature: float, B: int = 20, gamma: float = 0.05) -> float:
    """m: the part of an error along a direction of that curvature that a session's B steps remove."""
    return 1 - float((1 - gamma * curvature) ** B)


def server(curvature: float, lag: int, step: float, *, B: int = 20, gamma: float = 0.05, count: int = 6000) -> float:
    """The largest of the last errors of a server that adds a part of real sessions' updates, each of B gradient steps
    on h x^2 / 2 from the model that was served `lag` versions ago."""
    models = [1.0] * (lag + 1)
    for _ in range(count):
        start = x = models[-1 - lag]
        for _ in range(B):
            x -= gamma * curvature * x
        models.append(models[-1] + step * (x - start))
        if abs(models[-1]) > 1e9:
            break
    return max(map(abs, models[-2 * lag - 2 :]))


@pytest.mark.parametrize("lag", LAGS)
def test_stable_just_below_and_unstable_just_above(lag: int) -> None:
    """Sessions that go all the way (gamma h = 1), or almost: then the step is the whole story."""
    limit = theory.stability_limit(lag)
    for curvature in (20.0, 8.0):
        assert server(curvature, lag, 0.97 * limit) < 0.01
        assert server(curvature, lag, 1.03 * limit) > 100
    assert growth(0.999 * limit, lag) < 1 < growth(1.001 * limit, lag)
    assert growth(limit, lag) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("lag", LAGS)
def test_the_lag_stable_step_needs_no_curvature(lag: int) -> None:
    """0.85 of the limit decays in every direction that a session does not overshoot in."""
    step = min(1.0, 0.85 * theory.stability_limit(lag))
    for curvature in (0.1, 0.5, 2.0, 7.0, 20.0, 30.0, 39.0):
        assert server(curvature, lag, step) < 1e-3


@pytest.mark.parametrize("lag", LAGS)
def test_gentle_directions_allow_more(lag: int) -> None:
    """What counts is the step times what a session removes: a whole step is stable up to a curvature."""
    if lag < 2:
        assert theory.stable_curvature(lag) == 40.0
        return
    edge = theory.stable_curvature(lag)
    assert server(0.97 * edge, lag, 1.0) < 0.01
    assert server(1.03 * edge, lag, 1.0) > 100
    assert contraction(edge) == pytest.approx(theory.stability_limit(lag))


def test_curvatures_of_the_papers_sessions() -> None:
    assert [round(theory.stability_limit(lag), 3) for lag in (0, 1, 2, 3, 4, 6, 9)] == [
        2.0, 1.0, 0.618, 0.445, 0.347, 0.241, 0.165,
    ]  # fmt: skip
    assert [round(theory.stable_curvature(lag), 2) for lag in (2, 4, 9)] == [0.94, 0.42, 0.18]
    assert theory.stable_curvature(4, step=0.295) == 40.0
    assert contraction(theory.stable_curvature(4, step=0.6)) == pytest.approx(theory.stability_limit(4) / 0.6)
    with pytest.raises(InputError, match="step = 0: needs a positive number"):
        theory.stable_curvature(4, step=0)


@pytest.mark.parametrize("curvature", [0.0, 0.3, 5.0, 20.0, 30.0, 39.9, 41.0])
@pytest.mark.parametrize("B", [1, 4, 5, 20, 21])
def test_what_a_session_removes(B: int, curvature: float) -> None:
    x = 1.0
    for _ in range(B):
        x -= 0.05 * curvature * x
    assert contraction(curvature, B) == pytest.approx(1 - x)
    inside = 0.0 < 0.05 * curvature < 2.0
    if B % 2 == 0:
        assert (0 < contraction(curvature, B) <= 1) == inside  # an even session never overshoots
    else:
        assert (contraction(curvature, B) > 1) == (curvature > 20)  # an odd one does beyond gamma h = 1
        assert contraction(curvature, B) < 2 or not inside


def test_an_odd_session_can_spend_the_limit_of_2() -> None:
    """Lag 0 and gamma h near 2: m is near 2, which a whole step bears and no more."""
    edge = theory.stable_curvature(0, B=5)
    assert edge == pytest.approx(40.0)
    assert theory.stable_curvature(1, B=5) == pytest.approx(20.0)
    assert server(10.0, 1, 1.0, B=5) < 0.01
    assert server(28.0, 1, 1.0, B=5) > 100
    assert server(28.0, 1, 1.0, B=4) < 0.01


@pytest.mark.parametrize("lag", LAGS)
def test_varying_steps_below_the_criterion(lag: int) -> None:
    """0.87 of the constant limit is below what is proven for steps that vary, for every lag."""
    assert 0.87 * theory.stability_limit(lag) < varying_limit(lag) <= theory.stability_limit(lag)
    rng = np.random.default_rng(lag)
    for _ in range(20):
        high = 0.87 * theory.stability_limit(lag)
        pattern = rng.choice([0.05, 0.3, 1.0], size=rng.integers(1, 3 * lag + 4)) * high
        past = [1.0] * (lag + 1)
        for k in range(20_000):
            past.append(past[-1] - float(pattern[k % len(pattern)]) * past[-1 - lag])
        assert max(map(abs, past[-lag - 1 :])) < 1e-3


def test_the_recursion_itself() -> None:
    assert errors(0.5, 0, 3).tolist() == [0.5, 0.25, 0.125]
    assert errors(0.5, 1, 4).tolist() == [0.5, 0.0, -0.25, -0.25]
    assert growth(0.5, 0) == pytest.approx(0.5)
    assert growth(0.5, 1) == pytest.approx(sqrt(0.5))
    assert abs(errors(0.5, 1, 200)[-20:]).max() < 1e-20


@pytest.mark.parametrize("rounds", range(1, 11))
def test_a_memory_has_a_limit_of_its_own(rounds: int) -> None:
    """Every round adds the mean of updates that are 0 to `rounds` - 1 rounds old."""

    def late(part: float) -> float:
        past = [1.0] * rounds
        for _ in range(4000):
            past.append(past[-1] - part * float(np.mean(past[-rounds:])))
            if abs(past[-1]) > 1e9:
                break
        return max(map(abs, past[-rounds - 1 :]))

    limit = theory.memory_limit(rounds)
    assert late(0.97 * limit) < 0.01
    assert late(1.03 * limit) > 100
    assert theory.memory_limit(1) == pytest.approx(theory.stability_limit(0))


# What schedules do.


def borne(policy: str, delta: float, **settings: Any) -> float | None:
    return theory.stable_share(plan(build(policy, settings), delta, slots=4000))


@pytest.mark.parametrize(("groups", "lag"), [(3, 2), (5, 4), (10, 9)])
def test_whole_schedules_bear_what_the_limit_says(groups: int, lag: int) -> None:
    assert borne("fedseq", 1.0, groups=groups) == pytest.approx(theory.stability_limit(lag), abs=0.011)
    assert borne("cycp", 1.0, groups=groups) == pytest.approx(theory.stability_limit(lag), abs=0.03)
    for delta in (0.1, 1.0):
        assert borne("pipecycle+", delta, groups=groups) == borne("pipecycle", delta, groups=groups) == 1.0
        assert borne("fedseq", delta, groups=groups, step="lag-stable") == 1.0


def test_what_a_memory_bears_depends_on_the_harvest() -> None:
    """21 units take 7 rounds at 0.1, and 2 to 3 at 0.3."""
    assert borne("mifa", 0.1) == pytest.approx(theory.memory_limit(7), abs=0.05)
    assert borne("mifa", 0.3) == borne("mifa", 0.1, use_memory=False) == 1.0


def test_a_schedule_too_short_to_tell() -> None:
    assert theory.stable_share(plan(build("fedavg"), 0.5, slots=1000)) is None
    assert theory.stable_share(plan(build("isolated"), 0.5, slots=4000)) is None


def taken(policy: str, delta: float = 1.0, **settings: Any) -> theory.Steps:
    return theory.steps(plan(build(policy, settings), delta, slots=2000))


@pytest.mark.parametrize("groups", [1, 2, 5, 10])
def test_who_satisfies_it_at_saturation(groups: int) -> None:
    limit = theory.stability_limit(groups - 1)
    for policy in ("fedseq", "cycp", "fedbacys"):
        found = taken(policy, groups=groups)
        late = found.ratio[len(found.ratio) // 2 :]
        assert late.max() >= 1 / limit - 1e-9  # FedBacys also has updates older than G - 1
        assert (late.min() > 1.5) == (groups > 2)
    for policy, settings in (("pipecycle+", {}), ("fedseq", {"step": "lag-stable"})):
        found = taken(policy, groups=groups, **settings)
        assert found.lag.max() == groups - 1
        assert found.figures()["ratio_max"] == pytest.approx(min(0.85, 1 / limit))
    chains = taken("pipecycle", groups=groups)
    assert chains.figures() == pytest.approx({"lag_max": 0, "step_mean": 1.0, "ratio_mean": 0.5, "ratio_max": 0.5})


@pytest.mark.parametrize("policy", ["pipecycle+", "fedseq", "cycp", "fedbacys", "fedbacys-odd"])
@pytest.mark.parametrize("delta", [0.1, 0.3])
def test_lag_stable_steps_are_within_the_proven_part(policy: str, delta: float) -> None:
    settings = {} if policy == "pipecycle+" else {"step": "lag-stable"}
    found = taken(policy, delta, groups=5, **settings)
    assert 0 < found.ratio.max() <= 0.87 + 1e-9
    assert len(found.version) > 90


WEIGHTED = ("fedbuff", "fedau", "f3ast")
"""Their updates count by staleness or by how rare they are, and not as a mean."""


@pytest.mark.parametrize("policy", [name for name in REGISTRY if name not in ("pipecycle+", "pipecycle")])
def test_lags_of_additive_schedules_are_the_ancestrys(policy: str) -> None:
    schedule = plan(build(policy), 0.4, slots=1500)
    found = theory.steps(schedule)
    if policy in ("mifa", "fedvarp", "isolated"):  # memories are used again and again; nothing is published
        assert (len(found.version) == 0) == (policy == "isolated")
    elif policy == "fedasync":  # what it mixes in holds its own reference
        assert (found.lag.max(), schedule.ancestry.lags.max()) == (0, 19)
        assert 0.6 <= found.step.max() < 1.0
    else:
        assert sorted(found.update_lag) == sorted(schedule.ancestry.lags)
        assert policy in WEIGHTED or np.allclose(found.step, 1.0)


def test_steps_by_hand() -> None:
    """PipeCycle+, two groups of one: hub models 1, 3, 5, published 2, 4, 6, of which 4 and 6 are one version late."""
    schedule = plan(build("pipecycle+", {"groups": 2, "group_size": 1}), 1.0, clients=4, slots=14, session=4)
    found = theory.steps(schedule)
    assert found.version.tolist() == [2, 4, 6]
    assert found.lag.tolist() == found.update_lag.tolist() == [0, 1, 1]
    assert found.step.tolist() == [0.85] * 3
    assert found.ratio.tolist() == [0.425, 0.85, 0.85]


def test_a_blend_holds_its_own_reference() -> None:
    mixed = taken("pipecycle", groups=5, relay_mix=0.5)
    assert mixed.figures() == pytest.approx({"lag_max": 0, "step_mean": 0.5, "ratio_mean": 0.25, "ratio_max": 0.25})


def test_mifa_repeats_old_updates() -> None:
    found = theory.steps(plan(build("mifa"), 0.1, slots=1500))
    assert found.lag.max() > 5
    assert found.step[-1] == pytest.approx(1.0)


def test_kept_models_and_chains_count_once() -> None:
    chains = theory.steps(plan(build("fedseq", {"groups": 2, "mode": "chain"}), 1.0, clients=10, slots=1500))
    assert (chains.lag.max(), chains.step.tolist()) == (0, pytest.approx([1.0] * len(chains.step)))
    kept = theory.steps(plan(build("flda", {"phase": "global"}), 0.5, slots=1500))
    assert kept.step.tolist() == pytest.approx([1.0] * len(kept.step))


def test_nothing_published() -> None:
    assert theory.steps(plan(build("pipecycle"), 0.5, slots=10)).figures() == {
        "lag_max": None, "step_mean": None, "ratio_mean": None, "ratio_max": None,
    }  # fmt: skip
