"""A fleet in the field, slot by slot, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipecycle import BusyError, Costs, InputError, Schedule, build, plan
from pipecycle.schedule.plan import Planning
from pipecycle.schedule.schedule import Status
from pipecycle.world.energy import UNIT
from pipecycle.world.field import FieldFleet
from pipecycle.world.links import Links, Passes


def fleet(clients: int = 1, level: float = 10.0, **given: Any) -> FieldFleet:
    made = FieldFleet(clients, session=given.pop("session", 2), initial=level, **given)
    slot(made)
    return made


def slot(made: FieldFleet, gain: float = 0.0) -> None:
    gains = np.full(made.clients, int(gain * UNIT))
    made.harvest(made.slot + 1, gains, int(gains.sum()), int(gain * UNIT))


def held(made: FieldFleet) -> list[float]:
    return (made.level / UNIT).tolist()


def test_leaks_idling_and_downloads_by_hand() -> None:
    made = fleet(2, leak=0.25, costs=Costs(download=0.5, idle=0.125))
    assert made.to_train == (2 + 0.5 + 2 * 0.25) * UNIT  # steps, download, and what leaks meanwhile
    made.start(np.array([0]), 0)
    assert held(made) == [9.5, 10.0]
    made.train()
    assert held(made) == [8.25, 9.625]  # a leak and a step, a leak and an idle slot
    made.record()
    slot(made)
    made.train()
    assert held(made) == [7.0, 9.25]
    slot(made)
    made.send(np.array([0]), "server")
    made.train()
    assert held(made) == [5.75, 8.875]  # transmitting is not idling
    ledger = made.ledger
    assert [ledger.training, ledger.to_server, ledger.download, ledger.lost] == [2 * UNIT, UNIT, UNIT // 2, 0]
    assert [ledger.idle, ledger.leaked] == [3 * UNIT // 8, 6 * UNIT // 4]
    assert ledger.stored == int(made.level.sum())
    assert made.totals[-1] == (20 * UNIT, 0, UNIT, 0, 0, UNIT // 2, 0, UNIT // 8, UNIT // 2)


def test_an_empty_battery_drains_no_further() -> None:
    made = fleet(1, level=0.3, leak=0.2, costs=Costs(idle=0.2))
    made.train()
    assert held(made) == [0.0]
    assert made.ledger.leaked + made.ledger.idle == made.ledger.harvested


def needing(tries: list[int], **links: Any) -> FieldFleet:
    """A fleet that has finished its sessions and whose next transmissions need so many tries each."""
    made = fleet(len(tries), session=1, links=Links(loss=0.5, loss_to_hub=0.5, tries=3, **links))
    made.start(np.arange(len(tries)), 0)
    made.train()
    slot(made)
    made.air.tries = lambda clients, to: np.array(tries)[clients]  # type: ignore[method-assign]
    return made


def test_a_lost_transmission_is_paid_tried_again_and_given_up() -> None:
    made = needing([1, 3, 4])
    assert made.send(np.arange(3), "server").tolist() == [0, 1]
    assert held(made) == [8.0, 6.0, 6.0]  # one try, three, three
    assert made.ledger.to_server == 2 * UNIT
    assert made.ledger.lost == (2 + 3) * UNIT
    assert made.unsent(0).tolist() == []
    slot(made)
    assert made.free(0).tolist() == [0, 1, 2]


def test_a_battery_gives_up_when_it_cannot_pay() -> None:
    made = needing([3])
    made.level[0] = 2 * UNIT
    made.ledger.harvested -= 7 * UNIT
    assert made.send_one(0, "hub") == -1
    assert held(made) == [0.0]
    assert made.ledger.lost == 2 * UNIT


def test_an_empty_battery_can_send_what_costs_nothing() -> None:
    made = fleet(2, level=3.0, session=2, costs=Costs(to_server=[0.0, 1.0], idle=1.0), links=Links(channels=2))
    made.start(np.arange(2), 0)
    for _ in range(2):
        made.train()
        slot(made)
    made.level[0] = 0
    assert made.send(np.arange(2), "server").tolist() == [0, 1]
    assert made.given_up == []


def test_channels_go_to_those_who_started_first() -> None:
    made = fleet(3, session=1, links=Links(channels=2))
    made.start(np.array([2]), 0)
    made.train()
    slot(made)
    made.start(np.array([0, 1]), 0)
    made.train()
    slot(made)
    assert made.send(np.array([0, 1, 2]), "server").tolist() == [1, 0]  # the sessions of clients 0 and 2
    assert made.unsent(0).tolist() == [1]
    assert held(made)[1] == 9.0  # nothing was tried, nothing paid
    assert made.reaching(np.array([1]), "server").tolist() == []
    assert made.reaches(1, "hub")
    with pytest.raises(BusyError, match="client 1 cannot send to the server in slot 2: it is out of reach"):
        made.send_one(1, "server")
    slot(made)
    assert made.send_one(1, "server") == 2


def test_out_of_contact_nothing_is_tried() -> None:
    made = fleet(2, session=1, links=Links(passes=Passes(1, [0.0, 1.0])))
    made.start(np.arange(2), 0)
    made.train()
    slot(made)
    assert made.reaching(np.arange(2), "server").tolist() == [1]
    assert made.send(np.arange(2), "server").tolist() == [1]
    assert made.unsent(0).tolist() == [0]


def test_a_failed_session_is_lost_from_its_first_quantum() -> None:
    made = fleet(2, session=4, costs=Costs(download=0.5), links=Links(failure=0.5))
    made.air.failures = lambda clients, length: np.where(clients == 0, 1, -1)  # type: ignore[method-assign]
    made.start(np.arange(2), 0)
    for _ in range(2):
        assert made.train().tolist() == []
        fell = made.failed.tolist()
        slot(made)
    assert fell == [0]
    assert made.free(0).tolist() == [0]
    assert made.ledger.lost == 2.5 * UNIT
    assert (made.ledger.training, made.ledger.download) == (2 * UNIT, UNIT // 2)


@pytest.fixture(scope="module")
def rough() -> Schedule:
    links = Links(channels=2, loss=0.3, loss_to_hub=0.2, failure=0.1)
    costs = Costs(download=0.25, idle=0.01)
    return plan(build("pipecycle"), 0.5, 20, 600, session=5, costs=costs, leak=0.01, links=links)


def test_a_schedule_of_the_field_has_its_own_format(rough: Schedule, tmp_path: Path) -> None:
    rough.save(tmp_path / "rough.npz")
    again = Schedule.load(tmp_path / "rough.npz")
    assert again == rough
    assert again.digest() == rough.digest()
    with np.load(tmp_path / "rough.npz") as file:
        assert b'"format": 2' in file["meta"].tobytes()
        assert "energy.lost" in file
        columns = dict(file)
    usual = plan(build("pipecycle"), 0.5, 20, 600, session=5)
    usual.save(tmp_path / "usual.npz")
    with np.load(tmp_path / "usual.npz") as file:
        assert b'"format": 1' in file["meta"].tobytes()
        assert "energy.lost" not in file
    assert "energy.lost" in rough.differences(usual)

    for change in ({"energy.lost": columns["energy.lost"] + 1}, {"energy.drained": columns["energy.drained"] + 1}):
        np.savez(tmp_path / "wrong.npz", **{**columns, **change})
        with pytest.raises(InputError, match=r"wrong\.npz: is not a schedule, or is damaged"):
            Schedule.load(tmp_path / "wrong.npz")
    del columns["energy.leaked"]
    np.savez(tmp_path / "wrong.npz", **columns)
    with pytest.raises(InputError, match="damaged"):
        Schedule.load(tmp_path / "wrong.npz")


def test_lost_sessions_are_never_in_a_recipe(rough: Schedule) -> None:
    lost = np.flatnonzero(rough.sessions.status == Status.LOST)
    assert len(lost)
    assert not np.isin(lost, rough.versions.update).any()
    assert (rough.sessions.end[lost] >= rough.sessions.start[lost]).all()


def test_the_ideal_fleet_is_taken_where_nothing_can_happen() -> None:
    run = Planning(build("fedavg"), 0.5, 4, 10, links=Links(tries=7), leak=0.0, costs=Costs())
    assert not isinstance(run.fleet, FieldFleet)
    assert isinstance(Planning(build("fedavg"), 0.5, 4, 10, costs=Costs(download=1)).fleet, FieldFleet)
    assert not isinstance(Planning(build("isolated"), 0.5, 4, 10, costs=Costs(download=1)).fleet, FieldFleet)


def test_failed_sessions_are_not_trained() -> None:
    """A run whose sessions fail trains to the end, and clients' own models are those of their last whole session."""
    from pipecycle.train.engine import train_many
    from pipecycle.train.history import current_sessions
    from pipecycle.train.job import Job, Watch
    from pipecycle.train.problems import problem

    learnt = problem("digits", clients=6, samples=30)
    links = Links(failure=0.4, loss=0.2)
    schedule = plan(build("isolated"), 1.0, 6, 60, session=3, links=links)
    failed = np.flatnonzero(schedule.sessions.status == Status.LOST)
    assert len(failed)
    assert not np.isin(current_sessions(schedule, 60), failed).any()
    jobs = [
        Job(schedule, learnt, Watch(every=60, clients_every=60)),
        Job(plan(build("pipecycle"), 1.0, 6, 60, session=3, links=links), learnt, Watch(every=60)),
    ]
    train_many(jobs, device="cpu")
    assert jobs[0].steps_done < 3 * len(schedule.sessions)
    alone = jobs[0].history.final.clients_accuracy
    assert alone is not None
    assert alone > 15
    assert jobs[1].history.final.accuracy > 15
