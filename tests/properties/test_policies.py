"""What must hold for every policy, whatever the sizes, rates, batteries and horizon."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecycle import Schedule, build
from pipecycle.policies import REGISTRY
from pipecycle.policies.registry import parameters
from pipecycle.schedule.plan import Planning
from pipecycle.schedule.schedule import Sent
from pipecycle.world.energy import UNIT
from pipecycle.world.lineage import Kind
from tests.properties.worlds import VARIANTS


@st.composite
def worlds(draw: st.DrawFn, names: tuple[str, ...] = tuple(REGISTRY)) -> tuple[str, dict[str, Any], dict[str, Any]]:
    name = draw(st.sampled_from(names))
    options = dict(draw(st.sampled_from(VARIANTS.get(name, [{}]))))
    if "groups" in parameters(REGISTRY[name]):
        options["groups"] = draw(st.integers(1, 12))
    session = draw(st.integers(1, 12))
    capacity = draw(st.one_of(st.just(1e6), st.integers(session, 3 * session + 2)))
    run = {
        "harvest": draw(st.one_of(st.sampled_from([0.0, 0.05, 0.3, 0.5, 1.0]), st.floats(0.0, 1.0))),
        "clients": draw(st.integers(1, 25)),
        "slots": draw(st.integers(1, 220)),
        "session": session,
        "capacity": capacity,
        "initial": draw(st.sampled_from([0.0, 0.5, float(min(capacity, session))])),
        "trial": draw(st.integers(0, 5)),
        "budget": draw(st.one_of(st.none(), st.integers(1, 500))),
    }
    return name, options, run


def watched(name: str, options: dict[str, Any], arguments: dict[str, Any]) -> Schedule:
    """Plan, checking the batteries and the books after every slot."""
    run = Planning(build(name, options), **arguments)
    fleet = run.fleet
    for _ in run.steps():
        ledger = fleet.ledger
        assert int(fleet.level.min()) >= 0
        assert int(fleet.level.max()) <= np.min(fleet.capacity)
        assert ledger.harvested == ledger.spent + int(fleet.level.sum()) + ledger.overflowed
    return run.schedule()


@given(worlds())
@settings(max_examples=250, deadline=None)
def test_every_policy_keeps_the_rules(world: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    schedule = watched(*world)
    sessions, versions = schedule.sessions, schedule.versions
    last = np.where(sessions.end < 0, schedule.slots - 1, sessions.end)

    # One action per slot: steps and transmissions of a client never coincide, but for Algorithm 1's last step.
    at_once = sessions.sent == sessions.end
    assert not (at_once & (sessions.sent >= 0)).any() or schedule.policy in ("pipecycle", "pipecycle+", "fedseq")
    assert (sessions.sent[sessions.sent >= 0] >= sessions.end[sessions.sent >= 0]).all()
    for client in range(schedule.clients):
        mine = sessions.client == client
        steps = [slot for a, b in zip(sessions.start[mine], last[mine], strict=True) for slot in range(a, b + 1)]
        sends = sessions.sent[mine & (sessions.sent >= 0) & ~at_once].tolist()
        assert len(set(steps + sends)) == len(steps) + len(sends)

    # A reference exists before it is used; every update is used once, after its session has ended.
    assert (versions.made[sessions.reference] <= sessions.start).all()
    assert len(np.unique(versions.update)) == len(versions.update)
    maker = np.repeat(np.arange(len(versions)), np.diff(versions.update_at))
    assert (versions.made[maker] >= sessions.end[versions.update]).all()
    assert (sessions.end[versions.update] >= 0).all()
    composed = np.repeat(np.arange(len(versions)), np.diff(versions.base_at))
    assert (versions.base < composed).all()

    # Recipes of models are affine: coefficients of models sum to one; memories are displacements and have none.
    model = versions.kind[versions.base] != Kind.MEMORY
    whole = np.bincount(composed[model], versions.coefficient[model], len(versions))
    memory = (versions.kind == Kind.MEMORY) | (versions.kind == Kind.INITIAL)
    assert (whole[memory] == 0).all()
    assert np.allclose(whole[~memory], 1.0)

    # Energy per session is its steps and its transmission.
    sent = np.where(sessions.receiver == Sent.NOT, 0, UNIT)
    if schedule.policy != "flda":
        assert (sessions.spent == (last - sessions.start + 1) * UNIT + sent).all()
    assert int(sessions.spent.sum()) == int(schedule.energy.spent[-1])


@given(worlds(("pipecycle", "pipecycle+")))
@settings(max_examples=120, deadline=None)
def test_pipecycle_keeps_its_promises(world: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    name, options, run = world
    schedule = watched(name, options, run)
    ancestry, groups, session = schedule.ancestry, options["groups"], run["session"]
    assert ancestry.ancestry_max is None or ancestry.ancestry_max <= groups or options.get("queue_threshold")
    concurrency = schedule.concurrency()
    assert concurrency is not None
    assert concurrency.max(initial=0) <= groups
    parents = ancestry.parents[1:]
    slots = ancestry.event_slots
    grown = parents > 0
    assert (slots[1:][grown] - slots[parents[grown]] >= session).all()  # a chain's period
    assert max(chain.depth for chain in ancestry.chains) <= schedule.slots // session
    # A group costs its members' sessions and one transmission each, once its hub has uploaded or been discarded.
    sizes = ancestry.group_sizes
    assert sizes.max(initial=0) <= (options.get("group_size") or max(1, 2 * run["clients"] // (5 * groups)))


@given(worlds(("pipecycle+",)))
@settings(max_examples=120, deadline=None)
def test_pipecycle_plus_is_pipecycle_but_for_the_model(world: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    """The same sessions, transmissions and energy, and steps that are stable for the lag at their publication."""
    name, options, run = world
    plus = watched(name, options, run)
    usual = watched("pipecycle", {key: value for key, value in options.items() if key != "kappa"}, run)
    for column in ("client", "start", "end", "sent", "receiver", "spent"):
        assert (getattr(plus.sessions, column) == getattr(usual.sessions, column)).all()
    assert (plus.energy.spent == usual.energy.spent).all()
    assert (plus.publications.slot == usual.publications.slot).all()

    versions, published = plus.versions, [0, *plus.publications.version.tolist()]
    for number, version in enumerate(published[1:]):
        recipe = plus.ancestry.recipe(version)
        server, model, reference = recipe.versions.tolist()
        assert server == published[number]
        assert plus.ancestry.recipe(model).versions.tolist() == [reference]
        assert recipe.coefficients[0] == 1.0
        step = recipe.coefficients[1]
        assert step == -recipe.coefficients[2]
        lag = number - published.index(reference)
        assert lag <= options["groups"] - 1
        assert 0 < step <= min(1.0, 0.87 * 2 * np.sin(np.pi / (4 * (options["groups"] - 1) + 2)) + 1e-11)
    assert len(published) == 1 or versions.kind[published[1:]].tolist() == [Kind.MIXTURE] * (len(published) - 1)


@given(worlds())
@settings(max_examples=60, deadline=None)
def test_the_same_trial_gives_the_same_schedule(world: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    assert watched(*world).digest() == watched(*world).digest()


@given(worlds(), st.sampled_from(tuple(REGISTRY)))
@settings(max_examples=60, deadline=None)
def test_every_policy_meets_the_same_weather(world: tuple[str, dict[str, Any], dict[str, Any]], other: str) -> None:
    name, options, run = world
    one, two = watched(name, options, run), watched(other, {}, run)
    both = min(one.slots, two.slots)  # a budget stops them at different times
    assert (one.energy.harvested[:both] == two.energy.harvested[:both]).all()
