"""What policies do when links fail, in cases small enough to follow by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipecycle import build
from pipecycle.schedule.plan import Planning
from pipecycle.schedule.schedule import Schedule, Sent, Status
from pipecycle.world.links import Links, Windows


def planned(name: str, clients: int, slots: int, options: dict[str, Any] | None = None, **world: Any) -> Schedule:
    """Sessions of two slots, always charged, with a first session and a report in every battery."""
    plan = Planning(build(name, options or {}), 1.0, clients, slots, session=2, initial=10.0, **world)
    for _ in plan.steps():
        pass
    return plan.schedule()


def only_in(*slots: int, clients: int) -> Links:
    """Contact in some slots, for all clients alike."""
    client, slot = np.divmod(np.arange(clients * len(slots)), len(slots))
    when = np.array(slots)[slot]
    return Links(windows=Windows(client, when, when))


def test_pipecycle_starts_from_the_server_while_its_hub_is_out_of_reach() -> None:
    """One group of two at a time: slots 0-1, 2-3, 4-5.  Contact in slot 4 only: the first hub's model goes out then."""
    links = only_in(4, clients=5)
    schedule = planned("pipecycle", 5, 6, {"groups": 1, "group_size": 2}, links=links)
    assert schedule.publications.slot.tolist() == [4]
    assert schedule.publications.version.tolist() == [1]
    assert sorted(set(schedule.sessions.reference[:4].tolist())) == [0]  # nothing was served in slot 2
    assert schedule.sessions.start[4] == 4
    assert schedule.sessions.reference[4] == 1


def test_fedseq_keeps_its_updates_until_the_head_reaches_the_server() -> None:
    schedule = planned("fedseq", 5, 6, {"groups": 1}, links=only_in(3, clients=5))
    assert schedule.publications.slot.tolist() == [3, 3]  # the first group's, which waited, and the second one's own
    uploads = schedule.sessions.receiver == Sent.TO_SERVER
    assert schedule.sessions.sent[uploads].tolist() == [3, 3]


def test_a_star_is_drawn_from_those_in_contact() -> None:
    """Client 2 alone has contact: it is the star of every group, and the others send to it."""
    never = Windows(np.array([0, 1]), np.array([900, 900]), np.array([900, 900]))
    for name, options in (("cycp", {"groups": 1, "epoch": 5}), ("fedbacys", {"groups": 1, "epoch": 5})):
        schedule = planned(name, 3, 20, options, links=Links(windows=never))
        sessions = schedule.sessions
        assert len(schedule.publications.slot) >= 3
        assert set(sessions.client[sessions.receiver == Sent.TO_SERVER].tolist()) == {2}
        assert (sessions.status[(sessions.client == 0) & (sessions.end >= 0)] == Status.USED).sum() >= 3


def test_a_chain_that_never_reaches_the_server_ends_after_its_patience() -> None:
    options = {"mode": "chain", "groups": 1, "patience": 4}
    schedule = planned("fedseq", 2, 60, options, links=only_in(900, clients=2))
    assert len(schedule.publications.slot) == 0
    assert len(schedule.sessions) > 8  # round after round
    assert schedule.versions.discarded.sum() >= 4


def test_a_chain_whose_last_client_fails_uploads_nothing() -> None:
    """Client 3's sessions fail: what the others did before it is gone with it, what they do after it is uploaded."""
    links = Links(failure=np.array([0.0, 0.0, 0.0, 1.0]))
    schedule = planned("fedseq", 4, 300, {"mode": "chain", "groups": 1}, links=links)
    sessions, versions = schedule.sessions, schedule.versions
    uploads = np.sort(sessions.sent[sessions.receiver == Sent.TO_SERVER])
    assert uploads.tolist() == schedule.publications.slot.tolist()
    rounds = np.flatnonzero(sessions.client == 3)  # once in every round
    assert versions.discarded.sum() > 0
    assert 5 < len(uploads) < len(rounds)


@pytest.mark.parametrize("name", ["fedavg", "mifa"])
def test_one_channel_lets_everybody_through_in_turn(name: str) -> None:
    """Five clients finish together; one upload a slot: the sessions in the order of their starts."""
    schedule = planned(name, 5, 60, {"epoch": 12}, links=Links(channels=1))
    sent = schedule.sessions.sent[schedule.sessions.sent >= 0]
    assert len(np.unique(sent)) == len(sent)
    assert len(sent) >= 15
    first = schedule.sessions.sent[:5]
    assert (np.diff(first) == 1).all()


def test_a_lost_update_is_in_no_recipe_and_its_client_trains_again() -> None:
    for name in ("fedavg", "mifa", "flda"):
        schedule = planned(name, 4, 120, links=Links(loss=1.0, tries=2))
        assert len(schedule.publications.slot) == 0
        assert schedule.status_counts()["used"] == 0
        lost = schedule.sessions.status == Status.LOST
        assert lost.sum() >= 8
        assert schedule.energy.to_server[-1] == 0
