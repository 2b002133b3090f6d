"""FedAsync, FedBuff, FedAU, FedVARP and F3AST on cases small enough to follow with a pencil."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from pipecycle import Costs, Schedule, plan
from pipecycle.policies import F3AST, MIFA, FedAsync, FedAU, FedBuff, FedVARP, PipeCycle
from pipecycle.schedule.plan import Planning
from pipecycle.world.harvest import Always
from pipecycle.world.lineage import Kind

# One unit comes in every slot, a session costs two and its report one; client 0 starts in slot 0, client 1 in slot 2.
STAGGERED = {"clients": 2, "session": 2, "slots": 8, "initial": np.array([2.0, 0.0])}
# Nothing comes in.  Rounds of four slots: sessions in the first three, the report in the last.
ONCE = {"harvest": 0.0, "clients": 2, "session": 3, "slots": 12, "initial": np.array([16.0, 4.0])}


def updates(schedule: Schedule, version: int) -> dict[int, float]:
    recipe = schedule.ancestry.recipe(version)
    return dict(zip(recipe.sessions.tolist(), recipe.weights.tolist(), strict=True))


def bases(schedule: Schedule, version: int) -> dict[int, float]:
    recipe = schedule.ancestry.recipe(version)
    return dict(zip(recipe.versions.tolist(), recipe.coefficients.tolist(), strict=True))


def test_fedasync_mixes_in_what_arrives_the_less_the_staler() -> None:
    schedule = plan(FedAsync(concurrency=2), 1.0, **STAGGERED)
    sessions = schedule.sessions
    assert sessions.client.tolist() == [0, 1, 0, 1, 0]
    assert sessions.start.tolist() == [0, 2, 3, 5, 6]
    assert sessions.sent.tolist() == [2, 4, 5, 7, -1]
    assert sessions.reference.tolist() == [0, 1, 1, 3, 3]  # a model is served in the slot in which it arrives
    assert (bases(schedule, 1), updates(schedule, 1)) == ({0: 1.0}, {0: 0.6})
    assert (bases(schedule, 2), updates(schedule, 2)) == ({1: 1.0}, {1: 0.6})
    stale = 0.6 / sqrt(2)  # version 2 came between
    assert (bases(schedule, 3), updates(schedule, 3)) == ({1: stale, 2: 1 - stale}, {2: stale})


def test_fedasync_mixes_models_of_one_slot_one_after_the_other() -> None:
    """Three arrive together, from x_0: as if they had come singly, each staler by one than the one before."""
    schedule = plan(FedAsync(concurrency=3, mixing=1.0), 1.0, clients=3, session=2, slots=5)
    weight = dict.fromkeys(range(3), 0.0)
    for session in range(3):
        mixing = 1 / sqrt(1 + session)
        weight = {known: value * (1 - mixing) for known, value in weight.items()} | {session: mixing}
    assert schedule.publications.slot.tolist() == [4]
    assert updates(schedule, 1) == pytest.approx(weight)
    assert bases(schedule, 1) == {0: pytest.approx(1.0)}


def test_fedbuff_steps_when_its_buffer_is_full() -> None:
    schedule = plan(FedBuff(concurrency=2, buffer=2), 1.0, **STAGGERED)
    assert schedule.sessions.sent.tolist() == [2, 4, 5, 7, -1]
    assert schedule.sessions.reference.tolist() == [0, 0, 0, 1, 1]
    assert schedule.publications.slot.tolist() == [4, 7]
    assert (bases(schedule, 1), updates(schedule, 1)) == ({0: 1.0}, {0: 0.5, 1: 0.5})
    # Session 2 began before the first step and arrived after it.
    assert (bases(schedule, 2), updates(schedule, 2)) == ({1: 1.0}, {2: 0.5 / sqrt(2), 3: 0.5})


def test_fedbuff_empties_its_buffer_more_than_once_in_a_slot() -> None:
    """Five arrive together, K = 2: two steps, the second with updates that are stale by then, and one left over."""
    schedule = plan(FedBuff(concurrency=5, buffer=2), 1.0, clients=5, session=2, slots=5)
    assert schedule.publications.slot.tolist() == [4, 4]
    assert [updates(schedule, version) for version in (1, 2)] == [
        {0: 0.5, 1: 0.5},
        {2: 0.5 / sqrt(2), 3: 0.5 / sqrt(2)},
    ]
    assert schedule.status_counts()["unused"] == 1


def test_fedbuff_weighs_by_samples() -> None:
    schedule = plan(FedBuff(concurrency=2, buffer=2), 1.0, samples=np.array([300, 100]), **STAGGERED)
    assert updates(schedule, 1) == {0: 0.75, 1: 0.25}
    assert updates(schedule, 2) == {2: 0.75 / sqrt(2), 3: 0.25}


@pytest.mark.parametrize("policy", [FedAsync, FedBuff])
def test_at_most_so_many_train_and_they_can_pay_for_their_report(policy: type[FedAsync] | type[FedBuff]) -> None:
    run = Planning(policy(concurrency=3), Always(), 9, 200, session=4)
    for _ in run.steps():
        pass
    schedule = run.schedule()
    sessions = schedule.sessions
    last = np.where(sessions.end < 0, 199, sessions.end)
    training = [int(((sessions.start <= slot) & (slot <= last)).sum()) for slot in range(5, 200)]
    assert set(training) == {3}
    assert sessions.start[0] == 4  # not before a fifth unit is there
    assert (sessions.sent[sessions.sent >= 0] == sessions.end[sessions.sent >= 0] + 1).all()
    assert len(np.unique(sessions.client)) == 9


def test_asynchronous_schedulers_spend_what_pipecycle_spends() -> None:
    """Two clients in five train at any time, in both."""
    rivals = [plan(policy(), 1.0, slots=3000).energy.spent[-1] for policy in (FedAsync, FedBuff)]
    usual = plan(PipeCycle(groups=10), 1.0, slots=3000).energy.spent[-1]
    assert rivals[0] == rivals[1] == pytest.approx(usual, rel=0.01)


def test_a_lost_session_leaves_its_place_and_its_reference() -> None:
    run = Planning(FedAsync(concurrency=1), Always(), 2, 20, session=2, initial=3.0)
    policy, steps = run.policy, run.steps()
    assert isinstance(policy, FedAsync)
    next(steps)
    assert (int(policy.busy.sum()), policy.references()) == (1, [0])
    nobody, first = np.empty(0, np.int64), np.array([0])
    policy.collect(0, first, nobody)
    assert (int(policy.busy.sum()), policy.references()) == (0, [0])  # trained, not arrived
    policy.collect(0, nobody, first)
    assert (int(policy.busy.sum()), policy.references()) == (0, [])


def test_fedau_weighs_by_the_mean_interval() -> None:
    """Rounds of four slots with a unit in each.  Client 0 pays 4 for a round and misses only the first; client 1
    pays 10 and takes part in the rounds 2 and 5."""
    world = {"clients": 2, "session": 3, "slots": 24, "costs": Costs(step=np.array([1.0, 3.0]))}
    schedule = plan(FedAU(epoch=4), 1.0, **world)
    weights = [updates(schedule, version) for version in range(1, 6)]
    clients = [schedule.sessions.client[list(found)].tolist() for found in weights]
    assert clients == [[0], [0, 1], [0], [0], [0, 1]]
    # Intervals of client 0: 2, 1, 1, ...; of client 1: 3, 3.  An interval counts from the next time on.
    assert [list(found.values()) for found in weights] == [
        [0.5], [1.0, 0.5], [0.75], [pytest.approx(2 / 3)], [pytest.approx(0.625), 1.5],
    ]  # fmt: skip
    cut = plan(FedAU(epoch=4, cutoff=2), 1.0, **world)
    # Client 1 has 2 booked after the rounds 1 and 4, and 1 when it comes: 2 / 1, then (2 + 1 + 2) / 3, over N = 2.
    assert list(updates(cut, 2).values()) == [1.0, 1.0]
    assert list(updates(cut, 5).values()) == [pytest.approx(0.625), pytest.approx(5 / 6)]


def test_fedvarp_corrects_the_mean_of_its_memories() -> None:
    """Both take part in round 0, and client 0 alone after it."""
    schedule = plan(FedVARP(epoch=4), **ONCE)
    assert schedule.versions.kind.tolist()[1:3] == [Kind.MEMORY] * 2
    assert bases(schedule, 3) == {0: 1.0, 1: 0.5, 2: 0.5}
    assert bases(schedule, 5) == {3: 1.0, 1: -0.5, 2: 0.5, 4: 1.0}  # x + (u - y_0) + (y_0 + y_1) / 2
    assert bases(schedule, 7) == {5: 1.0, 4: -0.5, 2: 0.5, 6: 1.0}
    assert schedule.publications.version.tolist() == [3, 5, 7]
    half = plan(FedVARP(epoch=4, beta=0.5), **ONCE)
    assert bases(half, 5) == {3: 1.0, 1: -0.25, 2: 0.25, 4: 1.0}


def test_fedvarp_is_fedavg_and_mifa_when_all_take_part() -> None:
    world = {"clients": 3, "session": 3, "slots": 40}
    varp, mifa = plan(FedVARP(epoch=4), 1.0, **world), plan(MIFA(epoch=4), 1.0, **world)
    assert len(varp.publications.slot) == 9
    assert varp.versions.coefficient.tolist() == pytest.approx(mifa.versions.coefficient.tolist())
    assert varp.versions.base.tolist() == mifa.versions.base.tolist()


def test_f3ast_picks_who_was_picked_least_and_weighs_by_rarity() -> None:
    """One of three in every round; rates begin at a third and forget half of the past in a round."""
    world = {"clients": 3, "session": 3, "slots": 12, "initial": 20.0}
    seen = set()
    for trial in range(12):
        schedule = plan(F3AST(epoch=4, picked=1, beta=0.5), 0.0, trial=trial, **world)
        seen.add(tuple(schedule.sessions.client.tolist()))
        weights = [value for version in (1, 2, 3) for value in updates(schedule, version).values()]
        # Rates when it is a client's turn: 1/6 + 1/2, 1/12 + 1/2, 1/24 + 1/2.
        assert weights == pytest.approx([1 / 2, 4 / 7, 8 / 13])
    assert all(sorted(order) == [0, 1, 2] for order in seen)
    assert len(seen) > 3


def test_f3ast_counts_samples() -> None:
    """Shares 1/2, 1/4, 1/4; K = 3 makes rates of 1, 3/4, 3/4, and all three train."""
    samples = np.array([2, 1, 1])
    schedule = plan(
        F3AST(epoch=4, picked=3, beta=0.5), 0.0, clients=3, session=3, slots=4, initial=4.0, samples=samples
    )
    assert list(updates(schedule, 1).values()) == pytest.approx([0.5 / 1.0, 0.25 / 0.875, 0.25 / 0.875])


def test_f3ast_asks_nobody_who_could_not_report() -> None:
    short = plan(F3AST(epoch=4), 0.0, clients=2, session=3, slots=8, initial=np.array([4.0, 3.0]))
    assert short.sessions.client.tolist() == [0]
    usual = plan(FedAU(epoch=4), 0.0, clients=2, session=3, slots=8, initial=np.array([4.0, 3.0]))
    assert usual.sessions.client.tolist() == [0, 1]
    assert usual.sessions.sent.tolist() == [3, -1]
