from __future__ import annotations

import numpy as np
import pytest

from pipecycle.errors import BusyError, EnergyError, InputError
from pipecycle.world.energy import UNIT, Costs
from pipecycle.world.fleet import Fleet
from pipecycle.world.streams import Ints


def ids(*clients: int) -> Ints:
    return np.array(clients, np.int64)


def slot(fleet: Fleet, number: int, units: float = 1.0) -> None:
    gains = np.full(fleet.clients, int(units * UNIT))
    fleet.harvest(number, gains, int(gains.sum()), int(units * UNIT))


def check(fleet: Fleet) -> None:
    assert fleet.ledger.stored == int(fleet.level.sum())
    assert (fleet.level >= 0).all()
    assert (fleet.level <= fleet.capacity).all()


def test_a_session_and_its_report_by_hand() -> None:
    fleet = Fleet(2, session=3, initial=3.0)
    slot(fleet, 0)
    assert fleet.free(3 * UNIT).tolist() == [0, 1]
    assert fleet.start(ids(0), 0).tolist() == [0]
    assert fleet.free(0).tolist() == [1]
    assert len(fleet.train()) == 0
    slot(fleet, 1)
    assert len(fleet.train()) == 0
    slot(fleet, 2)
    assert fleet.train().tolist() == [0]
    assert (fleet.level / UNIT).tolist() == [3.0, 6.0]
    assert fleet.unsent(UNIT).tolist() == []  # the last step was this slot's action
    slot(fleet, 3)
    assert fleet.unsent(UNIT).tolist() == [0]
    assert fleet.send(ids(0), "server").tolist() == [0]
    assert fleet.free(0).tolist() == [1]  # sending was this slot's action
    slot(fleet, 4)
    assert fleet.free(0).tolist() == [0, 1]
    ledger = fleet.ledger
    assert (ledger.training, ledger.to_hub, ledger.to_server) == (3 * UNIT, 0, UNIT)
    assert ledger.harvested == 16 * UNIT  # 2 x (3 initial + 5)
    check(fleet)


def test_last_step_and_send_share_a_slot_only_when_asked() -> None:
    fleet = Fleet(2, session=1, initial=5.0)
    slot(fleet, 0)
    fleet.start(ids(0, 1), 0)
    fleet.train()
    with pytest.raises(BusyError, match=r"client 0 cannot send in slot 0: .*done with its one action of the slot"):
        fleet.send(ids(0), "server")
    fleet.send(ids(0), "hub", last_step=True)
    fleet.hold(1)
    slot(fleet, 1)
    assert fleet.free(0).tolist() == [0]
    assert fleet.send_one(1, "server") == 1
    check(fleet)


def test_overspending_names_client_slot_level_and_need() -> None:
    fleet = Fleet(3, session=20, initial=np.array([20.0, 4.5, 30.0]))
    slot(fleet, 7, 0.0)
    with pytest.raises(EnergyError, match=r"client 1 cannot train in slot 7: battery 4.5 units, needs 20"):
        fleet.start(ids(0, 1, 2), 0)
    assert not fleet.launches  # nothing happened
    assert fleet.ledger.spent == 0
    fleet.start(ids(0), 0)
    for number in range(8, 28):
        fleet.train()
        slot(fleet, number, 0.0)
    with pytest.raises(EnergyError, match=r"client 0 cannot send to the hub in slot 27: battery 0 units, needs 1"):
        fleet.send(ids(0), "hub")
    with pytest.raises(EnergyError, match=r"client 0 cannot send to the server in slot 27"):
        fleet.send_one(0, "server")
    check(fleet)


def test_a_busy_client_is_refused_by_name() -> None:
    fleet = Fleet(2, session=2, initial=9.0)
    slot(fleet, 0)
    fleet.start(ids(1), 0)
    with pytest.raises(BusyError, match=r"client 1 cannot start training in slot 0: it is training, battery 10 units"):
        fleet.start(ids(0, 1), 0)
    with pytest.raises(BusyError, match=r"client 1 cannot send in slot 0: it is training"):
        fleet.send(ids(1), "server")
    with pytest.raises(BusyError, match=r"client 0 cannot send in slot 0: it is idle"):
        fleet.send_one(0, "server")
    with pytest.raises(BusyError, match=r"client 0 cannot hold a model in slot 0: it is idle"):
        fleet.hold(0)
    with pytest.raises(BusyError, match=r"client 0 cannot release a model in slot 0: it is idle"):
        fleet.release(0)
    with pytest.raises(BusyError, match="started twice in one call"):
        fleet.start(ids(0, 0), 0)


def test_a_released_hub_is_free_and_has_paid_nothing() -> None:
    fleet = Fleet(1, session=1, initial=3.0)
    slot(fleet, 0, 0.0)
    fleet.start(ids(0), 0)
    fleet.train()
    fleet.hold(0)
    slot(fleet, 1, 0.0)
    assert fleet.free(0).tolist() == []
    fleet.release(0)
    assert fleet.free(0).tolist() == [0]
    assert fleet.ledger.to_server == 0


def test_a_full_battery_overflows() -> None:
    fleet = Fleet(2, session=1, capacity=np.array([2.0, 10.0]), initial=1.0)
    for number in range(4):
        slot(fleet, number, 0.75)
        check(fleet)
    assert (fleet.level / UNIT).tolist() == [2.0, 4.0]
    assert (fleet.overflow / UNIT).tolist() == [2.0, 0.0]
    assert fleet.ledger.overflowed == 2 * UNIT


def test_costs_and_lengths_per_client() -> None:
    costs = Costs(step=[1.0, 2.0], to_hub=[0.5, 1.0], to_server=3.0)
    fleet = Fleet(2, session=[2, 3], initial=20.0, costs=costs)
    assert np.asarray(fleet.to_train).tolist() == [2 * UNIT, 6 * UNIT]
    assert np.asarray(fleet.to_report).tolist() == 3 * UNIT
    slot(fleet, 0, 0.0)
    fleet.start(ids(0, 1), 0)
    assert fleet.train().tolist() == []
    slot(fleet, 1, 0.0)
    assert fleet.train().tolist() == [0]
    slot(fleet, 2, 0.0)
    assert fleet.train().tolist() == [1]
    slot(fleet, 3, 0.0)
    fleet.send(ids(0, 1), "hub")
    assert (fleet.level / UNIT).tolist() == [17.5, 13.0]
    check(fleet)


def test_a_part_of_a_model_costs_that_part() -> None:
    fleet = Fleet(1, session=1, initial=2.0)
    slot(fleet, 0, 0.0)
    fleet.start(ids(0), 0)
    fleet.train()
    slot(fleet, 1, 0.0)
    fleet.send(ids(0), "server", ratio=100 / 307_842)
    assert fleet.ledger.to_server == 341
    check(fleet)


def test_need_below_a_session_is_refused() -> None:
    fleet = Fleet(1, session=5, initial=9.0)
    slot(fleet, 0)
    with pytest.raises(InputError, match="need = 4: a session costs 5"):
        fleet.start(ids(0), 0, 4 * UNIT)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"session": 0}, "session = 0"),
        ({"session": 1.5}, "session = 1.5"),
        ({"capacity": -1.0}, "capacity = -1"),
        ({"initial": 5.0, "capacity": 4.0}, "initial = .*: needs at most"),
        ({"capacity": [1.0, 2.0]}, "capacity: has 2 values for 3 clients"),
        ({"samples": 0}, "samples = 0"),
    ],
)
def test_impossible_fleets_are_refused(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Fleet(3, **settings)  # type: ignore[arg-type]
