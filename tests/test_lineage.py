from __future__ import annotations

import numpy as np
import pytest

from pipecycle.errors import ActionError
from pipecycle.policies import MIFA, FedAvg, PipeCycle
from pipecycle.schedule.plan import plan
from pipecycle.world.lineage import Lineage
from pipecycle.world.streams import Ints


def equal(sessions: Ints) -> None:
    return None


def test_weights_follow_the_samples() -> None:
    samples = np.array([100, 300, 600])
    lineage = Lineage(lambda sessions: samples[sessions])
    assert lineage.mean(0, np.arange(3)) == 1
    assert lineage.weight.values().tolist() == [0.1, 0.3, 0.6]
    lineage = Lineage(equal)
    lineage.mean(0, np.arange(4))
    assert lineage.weight.values().tolist() == [0.25] * 4


def test_an_update_is_used_once() -> None:
    lineage = Lineage(equal)
    lineage.mean(0, np.array([3, 5000]))
    with pytest.raises(ActionError, match="session 5000 is used a second time"):
        lineage.mean(0, np.array([4, 5000]))
    with pytest.raises(ActionError, match="session 3 is used a second time"):
        lineage.each(np.array([3]))


def test_a_version_exists_before_it_is_used() -> None:
    lineage = Lineage(equal)
    for versions in ((1,), (-1,), np.array([0, 1])):
        with pytest.raises(ActionError, match="does not exist yet"):
            lineage.combine(versions, (1.0,) * len(versions))
    with pytest.raises(ActionError, match="version 1 cannot be published"):
        lineage.publish(1)
    with pytest.raises(ActionError, match="one coefficient per version"):
        lineage.combine((0,), ())


def test_lag_counts_from_the_first_time_that_a_version_was_published() -> None:
    lineage = Lineage(equal)
    for version in (lineage.mean(0, np.array([0])), lineage.mean(0, np.array([1])), 1):
        lineage.publish(version)
    assert [lineage.lag(version) for version in (0, 1, 2)] == [3, 2, 1]


def test_the_papers_example() -> None:
    """G = 3, always charged: pi(tau) = tau - 3 for tau > 3 (paper, Fig. 3)."""
    ancestry = plan(PipeCycle(groups=3), 1.0, slots=600).ancestry
    assert ancestry.events > 20
    assert ancestry.parents[1:4].tolist() == [0, 0, 0]
    assert (ancestry.parents[4:] == np.arange(1, ancestry.events - 2)).all()
    assert ancestry.chain_of_event[1:10].tolist() == [1, 2, 3] * 3


def test_a_chain_is_the_sum_of_its_updates() -> None:
    """x_tau = x_0 + the updates of its ancestry, z_tau = x_0 + all updates so far, e_tau = z_tau - x_tau."""
    schedule = plan(PipeCycle(groups=3), 1.0, slots=400, samples=np.arange(1, 101))
    ancestry = schedule.ancestry
    updates = np.linspace(-1.0, 1.0, len(schedule.sessions))  # a one-parameter model
    model = np.zeros(len(schedule.versions))
    model[0] = 5.0
    group = np.zeros(ancestry.events + 1)
    for version in range(1, len(schedule.versions)):
        recipe = ancestry.recipe(version)
        model[version] = recipe.coefficients @ model[recipe.versions] + recipe.weights @ updates[recipe.sessions]
    for event in range(1, ancestry.events + 1):
        recipe = ancestry.recipe(int(ancestry.event_versions[event]))
        assert recipe.weights.sum() == pytest.approx(1.0)
        group[event] = recipe.weights @ updates[recipe.sessions]
    for event in (1, 4, 9, ancestry.events):
        line, walk = [], event
        while walk:
            line.append(walk)
            walk = int(ancestry.parents[walk])
        x = model[ancestry.event_versions[event]]
        assert x == pytest.approx(5.0 + group[line].sum())
        z, e = ancestry.virtual(event), ancestry.perturbation(event)
        value = z.coefficients @ model[z.versions] + z.weights @ updates[z.sessions]
        assert value == pytest.approx(5.0 + group[1 : event + 1].sum())
        assert e.coefficients @ model[e.versions] + e.weights @ updates[e.sessions] == pytest.approx(value - x)


def test_memories_are_displacements() -> None:
    schedule = plan(MIFA(), 1.0, clients=3, slots=120, session=5)
    ancestry = schedule.ancestry
    last = ancestry.recipe(int(ancestry.event_versions[-1]))
    assert last.coefficients.tolist() == [1.0, 1 / 3, 1 / 3, 1 / 3]
    assert len(last.sessions) == 0
    memory = ancestry.recipe(int(last.versions[1]))
    assert len(memory.versions) == 0
    assert memory.weights.tolist() == [1.0]
    assert ancestry.group_sizes.tolist() == [3] * ancestry.events


def test_coverage_and_depth_of_a_single_model() -> None:
    ancestry = plan(FedAvg(), 1.0, slots=300).ancestry
    (chain,) = ancestry.chains
    assert (chain.coverage, chain.depth) == (100, ancestry.events)
    assert ancestry.coverage(0) == 0
    assert ancestry.ancestors(chain.version).all()
