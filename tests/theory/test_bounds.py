"""Numbers of the bounds that were computed independently, to their printed digits."""

from __future__ import annotations

import math

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecycle import InputError, plan, theory
from pipecycle.policies import PipeCycle
from pipecycle.theory import Constants, System

LONG, LONGER = System(slots=15_000), System(slots=30_000)


def test_depth_limits() -> None:
    assert LONG.d_max == 750
    assert LONGER.d_max == 1500


@pytest.mark.parametrize(
    ("L", "short", "long"),
    [
        (10, 0.999999, 1.000000),
        (1, 0.999999, 1.000000),
        (0.25, 1.0, 1.0),
        (1e-2, 1.000021, 1.000005),
        (1e-4, 1.002214, 1.000555),
        (1e-6, 1.175841, 1.051567),
        (1e-7, 1.928645, 1.360555),
        (1e-8, 4.530072, 2.619821),
        (1e-9, 12.842832, 6.761593),
    ],
)
def test_optimal_groups(L: float, short: float, long: float) -> None:
    assert round(theory.optimal_groups(LONG, L), 6) == short
    assert round(theory.optimal_groups(LONGER, L), 6) == long


@pytest.mark.parametrize(
    ("slots", "groups", "L"),
    [
        (15_000, 2, 8.889e-8), (15_000, 5, 7.936e-9), (15_000, 10, 1.703e-9),
        (30_000, 2, 2.222e-8), (30_000, 5, 1.984e-9), (30_000, 10, 4.257e-10),
    ],
)  # fmt: skip
def test_the_smoothness_that_a_given_optimum_would_take(slots: int, groups: int, L: float) -> None:
    assert theory.optimal_groups(System(slots=slots), L) == pytest.approx(groups, rel=3e-4)


@pytest.mark.parametrize("L", [1e-9, 1e-8, 1e-7, 1e-6])
def test_optimal_groups_by_searching_the_maximum(L: float) -> None:
    """h(G) = G zeta(G) over a fine grid of real G."""
    grid = np.linspace(1.0, 20.0, 2_000_001)
    Bg, d = LONG.B * LONG.gamma, LONG.d_max
    h = grid * (Bg / 2 - 2 * Bg**2 * L - 2 * Bg**2 * (d**2 + 1) * L * (grid - 1) ** 2)
    assert theory.optimal_groups(LONG, L) == pytest.approx(grid[np.argmax(h)], abs=2e-5)
    whole = max(range(1, 21), key=lambda groups: groups * theory.zeta(attrs.evolve(LONG, G=groups), L))
    assert theory.best_whole_groups(LONG, L) == whole


@pytest.mark.parametrize(("G", "value"), [(1, -1.5), (2, -1.125e6), (5, -1.8e7), (10, -9.11e7)])
def test_the_bound_is_vacuous_at_the_papers_settings(G: int, value: float) -> None:
    system = attrs.evolve(LONG, G=G)
    assert theory.zeta(system, 1.0) == pytest.approx(value, rel=1e-3)
    bound = theory.theorem(system, Constants(L=1.0))
    assert bound.value == math.inf
    assert bound.vacuous is not None
    assert "not positive" in bound.vacuous


@pytest.mark.parametrize(
    ("slots", "theorem", "needed"),
    [
        (15_000, (math.inf, 2.222e-8, 5.556e-9, 2.469e-9), (1.25e-2, 2.222e-8, 1.389e-9, 2.743e-10)),
        (30_000, (math.inf, 5.556e-9, 1.389e-9, 6.173e-10), (1.25e-2, 5.556e-9, 3.472e-10, 6.859e-11)),
    ],
)
def test_step_sizes(slots: int, theorem: tuple[float, ...], needed: tuple[float, ...]) -> None:
    for G, stated, real in zip((1, 2, 5, 10), theorem, needed, strict=True):
        system = System(G=G, slots=slots)
        assert theory.step_limit(system, 1.0, "theorem") == pytest.approx(stated, rel=3e-4)
        assert theory.step_limit(system, 1.0, "needed") == pytest.approx(real, rel=3e-4)
        # The needed one is where zeta changes sign; the proof's agrees with it up to two groups.
        assert abs(theory.zeta(attrs.evolve(system, gamma=real), 1.0)) < 1e-3 * system.B * real
        proof = theory.step_limit(system, 1.0, "proof")
        assert (proof == pytest.approx(real, rel=1e-3)) == (G <= 2)


def test_event_rates() -> None:
    for delta, rates in (
        (0.1, (0.0263, 0.0658, 0.1316)),
        (0.3, (0.1, 0.25, 0.5)),
        (0.5, (0.1, 0.25, 0.5)),
        (1.0, (0.1, 0.25, 0.5)),
    ):
        for G, rate in zip((2, 5, 10), rates, strict=True):
            assert round(theory.event_rate(System(G=G, delta=delta)), 4) == rate
    assert [round(theory.expected_events(System(G=G, delta=0.1))) for G in (2, 5, 10)] == [395, 987, 1974]
    assert [round(theory.expected_events(System(G=G, delta=0.5))) for G in (2, 5, 10)] == [1500, 3750, 7500]
    for delta, rate in ((0.1, 0.0238), (0.3, 0.0714), (0.5, 0.1190), (1.0, 0.2381)):
        system = System(delta=delta)
        assert round(theory.energy_rate(system, "corrected"), 4) == rate
        assert round(theory.event_rate(system, "corrected"), 4) == min(rate, 0.1)  # the pipeline's G / B
        assert theory.energy_rate(system) > theory.energy_rate(system, "corrected")
    assert theory.saturation(20, "corrected") == 0.42
    assert round(theory.saturation(20), 2) == 0.30


@pytest.mark.parametrize(
    ("L", "G", "gamma", "omega2", "zeta", "gamma2", "lambda2", "T", "transient", "floor", "bound", "optimum"),
    [
        (1, 2, 1e-4, 0.05, 1.84e-4, 1.665e-5, 2.098e-4, 20, 625, 1.14022, 626.14, 1.3880),
        (1, 1, 1e-4, 0.025, 9.92e-4, 1.6645e-5, 2.6645e-5, 10, 231.855, 0.02686, 231.882, 1.3880),
        (0.01, 3, 1e-3, 0.08, 6.76e-3, 6.576e-5, 1.15125e-4, 30, 11.3412, 0.01703, 11.3583, 2.7241),
    ],
)
def test_worked_examples(
    L: float, G: int, gamma: float, omega2: float, zeta: float, gamma2: float, lambda2: float, T: int,
    transient: float, floor: float, bound: float, optimum: float,
) -> None:  # fmt: skip
    system = System(G=G, gamma=gamma, slots=200, delta=0.5)
    constants = Constants(L=L, omega2=omega2)
    assert theory.zeta(system, L) == pytest.approx(zeta, rel=2e-3)
    assert theory.gamma_squared(system, constants) == pytest.approx(gamma2, rel=1e-3)
    assert theory.lambda_squared(system, constants) == pytest.approx(lambda2, rel=1e-3)
    assert theory.expected_events(system) == pytest.approx(T)
    found = theory.corollary(system, constants)
    assert found.vacuous is None
    assert found.transient == pytest.approx(transient, rel=1e-4)
    assert found.floor == pytest.approx(floor, rel=1e-3)
    assert found.value == pytest.approx(bound, rel=1e-4)
    assert theory.optimal_groups(system, L) == pytest.approx(optimum, abs=5e-5)
    # Keeping all copies of the sums can only loosen the bound, and changes nothing with one chain.
    consistent = theory.corollary(system, constants, "consistent")
    assert consistent.value == found.value if G == 1 else consistent.value > found.value


systems = st.builds(
    System,
    B=st.integers(1, 50),
    G=st.integers(2, 60),
    gamma=st.floats(1e-14, 10.0),
    slots=st.integers(50, 100_000),
    clients=st.integers(1, 2000),
    delta=st.floats(0.01, 1.0),
)


@given(systems, st.floats(1e-6, 1e4), st.floats(1e-6, 100.0), st.floats(0.0, 10.0))
def test_with_two_groups_the_theorem_never_says_more_than_smoothness_alone(
    system: System, L: float, gap: float, beta: float
) -> None:
    """Twelve times as much at the very least, for any step size, constants, horizon and energy."""
    constants = Constants(L=L, f0_gap=gap, sigma2=0.0, alpha=0.0, beta=beta)
    assert theory.least_ratio(system) >= 12
    best = attrs.evolve(system, gamma=theory.best_step(system, constants))
    for one in (system, best):
        assert theory.corollary(one, constants).value >= 12 * theory.smoothness_alone(constants) * (1 - 1e-9)


def test_with_one_chain_it_can() -> None:
    system, constants = System(G=1, gamma=5e-4), Constants(L=0.5, sigma2=0.1, omega2=0.025)
    assert theory.corollary(system, constants).value < theory.smoothness_alone(constants)
    assert theory.least_ratio(system) == pytest.approx(16 / 750)


@pytest.mark.parametrize("reading", ["as_printed", "consistent"])
@pytest.mark.parametrize("G", [1, 2, 5])
def test_the_best_step_by_searching(G: int, reading: theory.bounds.Reading) -> None:
    system, constants = System(G=G, slots=1000), Constants(L=3.0, beta=0.4)
    found = theory.best_step(system, constants, reading=reading)
    assert 0 < found < theory.step_limit(system, 3.0)
    least = theory.corollary(attrs.evolve(system, gamma=found), constants, reading).value
    for factor in np.linspace(0.05, 20.0, 2000):
        assert theory.corollary(attrs.evolve(system, gamma=found * factor), constants, reading).value >= least * (
            1 - 1e-12
        )


def test_a_bound_with_no_event_is_none() -> None:
    assert theory.theorem(System(G=1, gamma=1e-4), Constants(L=1.0), events=0).vacuous == "there is no event"


def test_the_lemmas_by_hand() -> None:
    system, constants = (
        System(B=2, G=3, gamma=0.5, slots=8),
        Constants(L=1.0, sigma2=2.0, omega2=0.5, alpha=1.0, beta=1.0),
    )
    gamma2 = 2 * 0.25 * 2 * 0.5 + 4 * 4 * 0.25 + 4 * 4 * 0.25 * 4  # 0.5 + 4 + 16
    assert theory.lemma_1(system, constants, 3.0) == pytest.approx(gamma2 + 2 * 4 * 0.25 * 3)
    others = 4 * 2
    assert theory.lemma_2(system, constants, 3.0) == pytest.approx(others * (gamma2 + others * 6))
    assert theory.lemma_2(system, constants, 3.0, "consistent") == pytest.approx(others**2 * (gamma2 + 6))
    assert theory.lemma_2(system, constants, 3.0, "consistent", 5) == pytest.approx(25 * (gamma2 + 6))
    assert theory.lemma_2(attrs.evolve(system, G=1), constants, 3.0) == 0.0


def test_coverage_rule_against_planned_schedules() -> None:
    for groups in range(1, 41):
        rule = theory.chain_coverage(100, groups, 20)
        if rule is not None:
            chains = plan(PipeCycle(groups=groups), 1.0, slots=1600).ancestry.chains
            assert {chain.coverage for chain in chains} == {rule}, groups


@pytest.mark.slow
def test_where_groups_straddle_every_chain_meets_everybody() -> None:
    """Cohorts of n_G do not divide N, so random ties mix them; with short groups that takes the paper's horizon."""
    straddling = [groups for groups in range(1, 41) if theory.chain_coverage(100, groups, 20) is None]
    assert straddling == [1, 3, 5, 6, 11, 12, 13]
    for groups in straddling:
        chains = plan(PipeCycle(groups=groups), 1.0, slots=15_000).ancestry.chains
        assert {chain.coverage for chain in chains} == {100}, groups


@pytest.mark.parametrize("settings", [{"B": 0}, {"G": 0}, {"gamma": 0.0}, {"delta": 0.0}, {"delta": 1.5}])
def test_impossible_systems_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InputError):
        System(**settings)  # type: ignore[arg-type]
