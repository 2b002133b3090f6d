"""What plans say about G: figures that can be worked out by hand, and the choice between them."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from pipecycle import InputError, Schedule, build, plan
from pipecycle.runs.config import Config
from pipecycle.theory import stable_curvature
from pipecycle.theory.plans import Planned, plan_at, planned, recommend, recommend_measured, system_of
from pipecycle.world.lineage import Kind

BASE = Config().changed({"world.slots": 1500, "world.harvest": "always"})


def at(policy: str, groups: int, **changes: object) -> Planned:
    return plan_at(attrs.evolve(BASE, policy=policy).changed(changes), groups)


def by_hand(schedule: Schedule) -> float:
    """The weight of all updates in the served model, by following every line of descent separately."""
    ancestry = schedule.ancestry
    total, open_ends = 0.0, [(int(schedule.publications.version[-1]), 1.0)]
    while open_ends:
        version, part = open_ends.pop()
        recipe = ancestry.recipe(version)
        total += part * float(recipe.weights.sum())
        shares = (part * recipe.coefficients).tolist()
        open_ends += list(zip(recipe.versions.tolist(), shares, strict=True))
    return total


@pytest.mark.parametrize(("policy", "slots"), [("pipecycle", 600), ("pipecycle+", 60), ("cycp", 600), ("fedseq", 600)])
def test_rounds_are_the_weight_of_all_updates(policy: str, slots: int) -> None:
    schedule = plan(build(policy, {"groups": 3}), 0.6, clients=20, slots=slots, session=7)
    served = int(schedule.publications.version[-1])
    assert schedule.ancestry.rounds(served) == pytest.approx(by_hand(schedule))
    assert schedule.ancestry.rounds(served) > 1


def test_rounds_of_chains_of_mixtures_and_of_a_shared_model() -> None:
    """G chains of PipeCycle have one chain's rounds; with mixtures of weight m = 1/2 a model moves by
    m C / (1 - m + m C) of an update per session; a shared model takes everything in, or as much as its step."""
    single, relayed = at("pipecycle", 1), at("pipecycle", 10)
    assert single.rounds == relayed.rounds == single.depth - 1  # the last group's model is still at its hub
    for groups in (1, 2, 5, 10):
        mixed = at("pipecycle", groups, rotation="spread", relay_mix=0.5)
        assert mixed.rounds / single.rounds == pytest.approx(0.5 * groups / (0.5 + 0.5 * groups), rel=0.02)
    shared = at("fedseq", 5)
    assert shared.rounds == shared.aggregations
    stepped = at("pipecycle+", 5)
    assert stepped.step == pytest.approx(0.85 * 0.347296, abs=1e-6)
    assert stepped.rounds == pytest.approx((stepped.aggregations - 1) * stepped.step)


def test_staleness_is_lag_only_where_updates_meet_another_model() -> None:
    chains = at("pipecycle", 5)
    assert chains.lag == pytest.approx(4.0, abs=0.05)
    assert (chains.staleness, chains.step, chains.stable_curvature) == (0.0, 1.0, 40.0)
    stepped = at("pipecycle+", 5)
    assert stepped.staleness == pytest.approx(4.0, abs=0.05)
    assert stepped.stable_curvature == 40.0  # whatever the session itself bears
    for policy in ("cycp", "fedseq", "fedbacys"):
        one = at(policy, 5)
        assert one.staleness == one.lag == pytest.approx(4.0, abs=0.05)
        assert one.stable_curvature == pytest.approx(stable_curvature(one.staleness))
        assert at(policy, 1).staleness == 0.0


def test_sessions_in_the_served_model() -> None:
    assert at("pipecycle", 1).share == pytest.approx(1.0, abs=0.03)
    assert at("pipecycle", 5).share == pytest.approx(0.2, abs=0.01)
    assert at("pipecycle+", 5).share == pytest.approx(1.0, abs=0.03)
    assert at("pipecycle", 10).coverage == at("pipecycle", 10).rule == 20


def test_the_rule_is_silent_where_it_does_not_apply() -> None:
    assert at("pipecycle", 10, **{"world.harvest": "bernoulli:0.3"}).rule is None  # not saturated
    assert at("pipecycle", 10, group_size=3).rule is None
    assert at("pipecycle+", 10).rule is None


def test_the_system_of_a_schedule() -> None:
    config = BASE.changed({"world.harvest": "markov:0.3,10", "train.lr": 0.1, "world.session": 10, "group_size": 7})
    schedule = plan(build("pipecycle", {"groups": 4, "group_size": 7}), 0.3, slots=1500, session=10)
    system = system_of(schedule, config)
    assert (system.B, system.G, system.gamma, system.slots, system.n_G) == (10, 4, 0.1, 1500, 7)
    assert system.delta == pytest.approx(0.3, abs=0.01)  # what was harvested
    assert system_of(schedule, BASE.changed({"world.harvest": "bernoulli:0.3"})).delta == 0.3


def test_plans_choose_for_each_policy() -> None:
    groups = (1, 2, 5, 10)
    paper = recommend([at("pipecycle", one) for one in groups])
    assert (paper.groups, paper.source) == (1, "planned")
    assert "G = 10: a chain meets 20 of 100" in paper.reason
    assert "G = 2: 50 % of the sessions" in paper.reason
    mixed = recommend([at("pipecycle", one, rotation="spread", relay_mix=0.5) for one in groups])
    assert mixed.groups == 10
    stepped = recommend([at("pipecycle+", one) for one in groups])
    assert stepped.groups == 2  # all are stable; two groups make the most rounds, 0.85 for each session
    assert "rounds" in stepped.reason
    stale = [at("cycp", one) for one in groups]
    assert recommend(stale).groups == 2  # lag 1 is stable whatever the curvature, lag 4 is not
    assert recommend(stale, curvature=0.3).groups == 5
    assert recommend(stale, curvature=0.1).groups == 10
    assert recommend(stale[2:], curvature=7.0).groups == 5
    assert "none is safe" in recommend(stale[2:], curvature=7.0).reason


def test_nothing_to_choose_from() -> None:
    assert recommend([at("pipecycle", 2, **{"world.slots": 20})]).groups is None
    with pytest.raises(InputError, match="fedavg has no groups"):
        plan_at(attrs.evolve(BASE, policy="fedavg"), 2)


def test_measurements_choose_before_plans() -> None:
    plans = [at("pipecycle", one) for one in (1, 2, 5)]
    clear = recommend_measured({1: {0: (80.0, 1.0)}, 5: {0: (90.0, 1.0)}}, plans)
    assert (clear.groups, clear.source) == (5, "measured")
    tied = recommend_measured({1: {0: (89.0, 1.0)}, 5: {0: (90.0, 1.0)}}, plans)
    assert tied.groups == 1
    assert "within the noise" in tied.reason
    # Paired trials: each differs by the same amount, so a small difference is a difference.
    steady = {1: {0: (80.0, 9.0), 1: (70.0, 9.0), 2: (60.0, 9.0)}, 5: {0: (81.1, 9.0), 1: (71.0, 9.0), 2: (60.9, 9.0)}}
    assert recommend_measured(steady, plans).groups == 5
    # A G that was measured but not planned can still win, and a tie without plans goes to the best.
    assert recommend_measured({7: {0: (80.0, 1.0)}, 8: {0: (80.5, 1.0)}}, plans).groups == 8


def test_figures_survive_a_schedule_without_sessions() -> None:
    schedule = plan(build("pipecycle", {"groups": 2}), 0.5, clients=4, slots=10)
    one = planned(schedule, BASE)
    assert (one.aggregations, one.share, one.rounds) == (0, 0.0, 0.0)
    assert one.lag is None
    assert not np.any(schedule.versions.kind == Kind.AGGREGATION)
