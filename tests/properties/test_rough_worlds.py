"""Every policy where batteries leak, links fail and sessions break off: energy to the quantum, and no crash."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecycle import build
from pipecycle.policies import REGISTRY
from pipecycle.schedule.plan import Planning
from pipecycle.schedule.schedule import Status
from pipecycle.world.energy import Costs
from pipecycle.world.links import Links, Passes, Windows
from pipecycle.world.streams import Ints
from tests.properties.worlds import holds, rough


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_energy_is_conserved_to_the_quantum(data: st.DataObject) -> None:
    holds(*rough(lambda values: data.draw(st.sampled_from(values))))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_ten_thousand_random_worlds(block: int) -> None:
    for number in range(500 * block, 500 * block + 500):
        holds(*rough(random.Random(number).choice))


@pytest.mark.parametrize("number", range(4))
def test_every_policy_meets_the_same_weather_and_losses(number: int) -> None:
    """The k-th session and the k-th transmission of a client fare the same whoever asked for them."""
    world = rough(random.Random(number).choice, ("fedavg",))[2] | {"budget": None}
    fates: dict[tuple[int, int], set[int]] = {}
    for name in REGISTRY:
        schedule = holds(name, {}, world)
        count: dict[int, int] = {}
        sessions = schedule.sessions
        full = np.broadcast_to(schedule.length, (schedule.clients,))
        rows = zip(sessions.client.tolist(), sessions.start.tolist(), sessions.end.tolist(), strict=True)
        for client, start, end in rows:
            number_of = count[client] = count.get(client, -1) + 1
            if end >= 0:
                fates.setdefault((client, number_of), set()).add(min(end - start + 1, int(full[client])))
    assert all(len(steps) == 1 for steps in fates.values())


def transmissions(name: str, to: str, losses: Links) -> list[tuple[int, int, bool]]:
    """Client, how many it has sent to that receiver before, and whether it arrived."""
    world: dict[str, Any] = {"harvest": 1.0, "clients": 12, "slots": 900, "session": 5, "initial": 100.0}
    run = Planning(build(name), **world, links=losses)
    send, seen, count = run.fleet.send, [], [0] * 12

    def watched(clients: Ints, receiver: Any, **how: Any) -> Ints:
        asked = clients.tolist()
        arrived = send(clients, receiver, **how)
        through = run.fleet.client_of(arrived).tolist()
        for client in asked if receiver == to else []:
            seen.append((client, count[client], client in through))
            count[client] += 1
        return arrived

    run.fleet.send = watched  # type: ignore[method-assign]
    for _ in run.steps():
        pass
    return seen


@pytest.mark.parametrize(("to", "policies"), [("hub", 6), ("server", 14)])
def test_every_policy_loses_the_same_transmissions(to: str, policies: int) -> None:
    """One try each: the k-th transmission of a client to a receiver arrives for every policy or for none."""
    losses = Links(tries=1, loss=0.4) if to == "server" else Links(tries=1, loss_to_hub=0.4)
    fates: dict[tuple[int, int], set[bool]] = {}
    senders = 0
    for name in REGISTRY:
        seen = transmissions(name, to, losses)
        senders += bool(seen)
        for client, number, arrived in seen:
            fates.setdefault((client, number), set()).add(arrived)
    assert senders == policies
    assert all(len(fate) == 1 for fate in fates.values())
    lost = sum(fate == {False} for fate in fates.values())
    assert 0.3 * len(fates) < lost < 0.5 * len(fates)


def test_the_same_trial_gives_the_same_schedule() -> None:
    for number in range(12):
        world = rough(random.Random(number).choice)
        assert holds(*world).digest() == holds(*world).digest()


HARD: dict[str, Any] = {"harvest": 0.7, "clients": 30, "slots": 900, "session": 6, "trial": 0, "initial": 0.0}


@pytest.mark.parametrize("name", REGISTRY)
def test_no_policy_stands_still(name: str) -> None:
    """Half of all transmissions are lost, one session in five fails, one channel, rare contact: still, models are
    published to the end."""
    links = Links(channels=1, loss=0.5, loss_to_hub=0.5, tries=2, failure=0.2, passes=Passes(17, 0.3))
    options = {"mode": "chain"} if name == "fedseq" else {}
    for settings_ in ({}, options) if options else ({},):
        world = HARD | {"links": links, "leak": 0.01, "costs": Costs(download=0.2, idle=0.02)}
        schedule = holds(name, settings_, world)
        counts = schedule.status_counts()
        assert counts["lost"] > 0
        late = schedule.sessions.start >= 700
        assert late.any()
        if name != "isolated":
            assert (schedule.publications.slot >= 700).any()
            assert counts["used"] > 15


@pytest.mark.parametrize("name", [name for name in REGISTRY if name != "isolated"])
@pytest.mark.parametrize("rough_", ["contact", "the same contact", "one channel"])
def test_nobody_is_starved(name: str, rough_: str) -> None:
    """Contact comes again with the epoch, so that for most clients it never falls on its last slot, or for all it never
    falls on the end of a turn; or one update at a time can be sent.  Everybody is heard all the same."""
    first = np.full(12, 2)
    links = {
        "contact": Links(passes=Passes(30, 0.2)),
        "the same contact": Links(windows=Windows(np.arange(12), first, first + 3, 30)),
        "one channel": Links(channels=1),
    }[rough_]
    world = HARD | {"harvest": 1.0, "clients": 12, "session": 20, "links": links}
    for settings_ in ({}, {"mode": "chain"}) if name == "fedseq" else ({},):
        sessions = holds(name, settings_, world).sessions
        heard = np.bincount(sessions.client[sessions.status == Status.USED], minlength=12)
        assert heard.min() >= 1, heard
        if rough_ == "one channel":
            assert heard.sum() >= 60, heard
