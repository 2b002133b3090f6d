"""Numbers computed by hand and by independent simulators: exact where nothing is random, within noise elsewhere."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from pipecycle import Costs, InputError, Schedule, build, plan
from pipecycle.policies import PipeCycle
from pipecycle.schedule.plan import Planning
from pipecycle.schedule.summary import summarise, warnings
from pipecycle.world.energy import UNIT


@cache
def planned(name: str, delta: float, groups: int | None = None, slots: int = 15_000) -> Schedule:
    return plan(build(name, {} if groups is None else {"groups": groups}), delta, slots=slots)


@pytest.mark.parametrize(
    ("name", "groups", "aggregations", "used", "budget_slot", "by_then"),
    [
        ("pipecycle", 2, 1497, 628_939, 11_930, 1190),
        ("pipecycle", 5, 3741, 628_807, 11_933, 2974),
        ("pipecycle", 10, 7481, 628_763, 11_934, 5948),
        ("fedseq", 2, 1497, 628_940, 11_929, None),
        ("fedseq", 5, 3741, 628_808, 11_933, None),
        ("fedseq", 10, 7481, 628_764, 11_934, None),
        ("fedavg", None, 499, 1_498_100, 5018, 166),
        ("mifa", None, 499, 1_047_900, 7180, 238),
        ("flda", None, 499, 1_022_958.1, 7347, 243),
        ("cycp", 2, 998, 1_048_650, 7159, 475),
        ("cycp", 5, 2494, 1_048_600, 7162, 1187),
        ("cycp", 10, 4987, 1_048_500, 7164, 2375),
        ("fedbacys", 2, 998, 1_048_200, 7168, 475),
        ("fedbacys", 5, 2493, 1_047_600, 7177, 1189),
        ("fedbacys", 10, 4984, 1_047_270, 7181, 2378),
    ],
)
def test_always_charged(
    name: str, groups: int | None, aggregations: int, used: float, budget_slot: int, by_then: int | None
) -> None:
    schedule = planned(name, 1.0, groups)
    assert schedule.ancestry.events == aggregations
    assert round(schedule.energy.spent[-1] / UNIT, 1) == used
    assert schedule.budget_slot(5e5) == budget_slot
    if by_then is not None:
        assert (schedule.ancestry.event_slots[1:] <= budget_slot).sum() == by_then


@pytest.mark.parametrize(
    ("clients", "groups", "session", "slots", "aggregations", "used", "chains"),
    [
        (41, 3, 8, 1500, 495, 22_335, 3),
        (50, 4, 9, 1000, 328, 16_460, 3),
        (30, 1, 5, 400, 79, 5_687, 1),
        (12, 20, 6, 600, 589, 4_137, 6),
        (9, 2, 1, 100, 99, 197, 1),
    ],
)
def test_other_sizes(
    clients: int, groups: int, session: int, slots: int, aggregations: int, used: int, chains: int
) -> None:
    figures = summarise(plan(PipeCycle(groups=groups), 1.0, clients, slots, session=session))
    assert figures["aggregations"] == aggregations
    assert figures["energy"]["spent"] == used
    assert figures["chains"]["count"] == chains


@pytest.mark.parametrize(("groups", "lag", "coverage"), [(2, 1, 100), (5, 4, 100), (10, 9, 20)])
def test_pipeline_structure_when_always_charged(groups: int, lag: int, coverage: int) -> None:
    figures = summarise(planned("pipecycle", 1.0, groups))
    assert figures["max_concurrent_groups"] == groups
    assert figures["ancestry_max"] == groups
    assert figures["lag"]["max"] == lag  # ceil(B / R) - 1
    assert figures["chains"] == {
        "count": groups,
        "coverage_min": coverage,
        "coverage_mean": coverage,
        "depth_max": 749,
    }
    assert bool(warnings(figures)) == (coverage < 100)


@pytest.mark.parametrize(
    ("groups", "coverage"), [(1, 100), (2, 100), (4, 50), (10, 20), (14, 10), (20, 10), (21, 5), (40, 5)]
)
def test_chain_resonance(groups: int, coverage: int) -> None:
    """Coverage = N / gcd(C, K) where the group size divides the population."""
    chains = plan(PipeCycle(groups=groups), 1.0, slots=3000).ancestry.chains
    assert {chain.coverage for chain in chains} == {coverage}


@pytest.mark.parametrize("groups", [2, 5, 10])
def test_pipecycle_plus_covers_everybody_for_the_same_energy(groups: int) -> None:
    plus, paper = planned("pipecycle+", 1.0, groups), planned("pipecycle", 1.0, groups)
    assert min(chain.coverage for chain in plus.ancestry.chains) == 100
    assert plus.energy.spent[-1] == paper.energy.spent[-1]
    assert plus.ancestry.events == paper.ancestry.events


@pytest.mark.parametrize(
    ("delta", "groups", "events", "size", "depth"),
    [
        (0.1, 2, 1484, 4.8, 742),
        (0.1, 5, 3382, 2.1, 677),
        (0.1, 10, 4933, 1.4, 495),
        (0.3, 2, 1494, 14.3, 747),
        (0.3, 5, 3731, 5.7, 747),
        (0.3, 10, 7274, 2.9, 728),
        (0.5, 2, 1496, 20.0, 748),
        (0.5, 5, 3739, 8.0, 748),
        (0.5, 10, 7477, 4.0, 748),
    ],
)
def test_pipecycle_within_noise(delta: float, groups: int, events: int, size: float, depth: int) -> None:
    figures = summarise(planned("pipecycle", delta, groups))
    assert figures["aggregations"] == pytest.approx(events, rel=0.012)
    assert figures["group_size"]["mean"] == pytest.approx(size, abs=0.06)
    assert figures["chains"]["depth_max"] == pytest.approx(depth, rel=0.015)


@pytest.mark.parametrize(
    ("name", "groups", "lags"),
    [
        ("fedavg", None, (0.69, 0.67, 0.67, 0.70)),
        ("cycp", 2, (1.33, 1.27, 1.25, 1.00)),
        ("cycp", 5, (3.2, 3.2, 3.2, 4.0)),
        ("cycp", 10, (5.1, 6.3, 6.4, 9.0)),
        ("fedbacys", 2, (6.0, 3.6, 1.8, 1.0)),
        ("fedbacys", 5, (9.5, 9.6, 6.0, 4.0)),
        ("fedbacys", 10, (15.4, 15.8, 13.0, 9.0)),
        ("fedseq", 2, (1.0, 1.0, 1.0, 1.0)),
        ("fedseq", 10, (6.2, 8.9, 9.0, 9.0)),
    ],
)
def test_mean_lag(name: str, groups: int | None, lags: tuple[float, ...]) -> None:
    for delta, lag in zip((0.1, 0.3, 0.5, 1.0), lags, strict=True):
        assert planned(name, delta, groups).ancestry.lags.mean() == pytest.approx(lag, rel=0.05)


@pytest.mark.parametrize(
    ("name", "groups", "events"),
    [
        ("fedavg", None, (496, 499, 499)),
        ("mifa", None, (496, 498, 499)),
        ("flda", None, (496, 498, 499)),
        ("cycp", 2, (992, 997, 997)),
        ("cycp", 5, (2340, 2491, 2493)),
        ("cycp", 10, (3772, 4901, 4984)),
        ("fedbacys", 2, (499, 996, 997)),
        ("fedbacys", 5, (739, 2243, 2492)),
        ("fedbacys", 10, (1148, 3616, 4982)),
    ],
)
def test_aggregations_of_the_rivals_within_noise(name: str, groups: int | None, events: tuple[int, ...]) -> None:
    for delta, expected in zip((0.1, 0.3, 0.5), events, strict=True):
        assert planned(name, delta, groups).ancestry.events == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize(("groups", "rounds"), [(2, 14), (10, 71)])
def test_faithful_fedseq(groups: int, rounds: int) -> None:
    schedule = plan(build("fedseq", {"groups": groups, "mode": "chain"}), 1.0)
    figures = summarise(schedule)
    assert figures["aggregations"] == rounds
    assert figures["group_size"]["mean"] == 100
    assert figures["max_concurrent_groups"] == groups
    assert figures["lag"]["max"] == 0


def test_discarding_keeps_chains_deep_under_scarcity() -> None:
    """Threshold 2 at delta 0.1, G = 10: about 1320 hops over 30,000 slots instead of 996."""
    kept = plan(PipeCycle(groups=10), 0.1, slots=30_000)
    short = plan(PipeCycle(groups=10, queue_threshold=2), 0.1, slots=30_000)
    assert max(chain.depth for chain in kept.ancestry.chains) == pytest.approx(996, rel=0.02)
    assert max(chain.depth for chain in short.ancestry.chains) == pytest.approx(1320, rel=0.03)
    assert short.versions.discarded.sum() > 0
    assert not kept.versions.discarded.any()
    never = plan(PipeCycle(groups=10, queue_threshold=2), 0.5, slots=3000)
    assert not never.versions.discarded.any()


def test_flush_publishes_when_the_pipeline_stagnates() -> None:
    """Two clients with energy for one session each: the second model is flushed, nobody being left to form."""
    schedule = plan(PipeCycle(groups=2, group_size=1), 0.0, clients=2, slots=60, session=5, initial=6.0)
    assert schedule.sessions.start.tolist() == [0, 3]
    assert schedule.publications.slot.tolist() == [8, 9]  # both models are there when the last group has ended
    assert schedule.energy.level.tolist() == [0, 0]


def test_lengths_costs_and_samples_per_client() -> None:
    lengths = np.arange(100) % 3 + 5
    costs = Costs(step=np.linspace(0.5, 1.5, 100), to_hub=0.25, to_server=np.linspace(1.0, 2.0, 100))
    for name in ("pipecycle", "fedseq", "fedavg", "cycp"):
        schedule = plan(build(name), 0.6, slots=600, session=lengths, costs=costs, samples=np.arange(1, 101))
        assert schedule.ancestry.events > 10
        sessions = schedule.sessions
        done = sessions.end >= 0
        assert (sessions.end - sessions.start + 1)[done].tolist() == lengths[sessions.client[done]].tolist()
        assert schedule.energy.stored[-1] == schedule.energy.level.sum()
        assert sessions.spent.sum() == schedule.energy.spent[-1]


def test_a_run_can_be_watched_slot_by_slot() -> None:
    run = Planning(PipeCycle(), 0.5, 20, 300, session=4, capacity=9.0)
    for slot in run.steps():
        assert run.fleet.slot == slot
        assert run.fleet.ledger.stored == int(run.fleet.level.sum())
        assert 0 <= run.fleet.level.min() <= run.fleet.level.max() <= 9 * UNIT
    assert run.schedule() == plan(PipeCycle(), 0.5, 20, 300, session=4, capacity=9.0)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"clients": 0}, "clients = 0: needs at least 1 client"),
        ({"slots": 0}, "slots = 0"),
        ({"trial": -1}, "trial = -1"),
        ({"budget": 0.0}, "budget = 0.0: needs a number above 0"),
        ({"session": 0}, "session = 0"),
        ({"capacity": 19.0}, "capacity = 19: a session needs 20 units in the battery"),
        ({"harvest": -0.5}, "rate = -0.5"),
    ],
)
def test_impossible_runs_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        plan(PipeCycle(), **arguments)
