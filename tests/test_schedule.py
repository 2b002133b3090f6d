from __future__ import annotations

from math import ceil
from pathlib import Path

import numpy as np
import pytest

from pipecycle import InputError, Markov, Schedule, build, plan
from pipecycle.policies import REGISTRY
from pipecycle.schedule.ancestry import busy_groups
from pipecycle.schedule.schedule import Sent, Status
from pipecycle.schedule.summary import summarise
from pipecycle.world.energy import UNIT
from pipecycle.world.streams import Ints


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return plan(build("pipecycle", {"groups": 3}), 0.3, clients=30, slots=800, session=6)


@pytest.mark.parametrize("name", REGISTRY)
def test_a_file_brings_back_the_same_schedule(name: str, tmp_path: Path) -> None:
    made = plan(build(name), 0.4, clients=12, slots=300, session=6, capacity=40.0, samples=np.arange(1, 13))
    for file in ("a.npz", "b.npz"):
        made.save(tmp_path / file)
    loaded = Schedule.load(tmp_path / "a.npz")
    assert loaded == made
    assert loaded.digest() == made.digest()
    assert summarise(loaded) == summarise(made)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "b.npz"]
    with np.load(tmp_path / "a.npz", allow_pickle=False) as archive:
        assert archive["sessions.client"].tolist() == made.sessions.client.tolist()


def test_damaged_and_foreign_files_are_refused(schedule: Schedule, tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    schedule.save(path)
    whole = path.read_bytes()
    for name, data in {
        "cut": whole[: len(whole) // 2],
        "flipped": whole[:3000] + bytes(64) + whole[3064:],
        "text": b"not a schedule",
        "empty": b"",
    }.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=r"is not (a schedule|an npz file of named arrays), or"):
            Schedule.load(tmp_path / name)
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    with pytest.raises(InputError, match="is not a schedule"):
        Schedule.load(tmp_path / "other.npz")
    with pytest.raises(InputError, match="cannot be read"):
        Schedule.load(tmp_path / "none.npz")
    with pytest.raises(InputError, match="cannot be written"):
        schedule.save(tmp_path / "no" / "such" / "folder.npz")


def test_nothing_can_be_changed(schedule: Schedule) -> None:
    with pytest.raises(ValueError, match="read-only"):
        schedule.sessions.client[0] = 1
    with pytest.raises(AttributeError):
        schedule.meta = {}  # type: ignore[misc]


def test_differences_are_named(schedule: Schedule) -> None:
    other = plan(build("pipecycle", {"groups": 3}), 0.3, clients=30, slots=800, session=6, trial=1)
    assert schedule != other
    found = schedule.differences(other)
    assert "meta.trial" in found
    assert "sessions.client" in found
    assert schedule.differences(schedule) == []


def batteries(schedule: Schedule, gains: Ints, capacity: int, initial: int) -> tuple[Ints, Ints, Ints]:
    """Every battery once more, from the weather and the record of sessions alone: what each of them holds at the end
    of every slot, what it could not store in it, and what it paid in it for training, to a hub and to the server."""
    sessions = schedule.sessions
    table = ceil(UNIT * schedule.meta["settings"].get("upload_ratio", 0))
    paid = np.zeros((3, *gains.shape), np.int64)
    for row, client in enumerate(sessions.client):
        last = sessions.end[row] if sessions.end[row] >= 0 else schedule.slots - 1
        paid[0, sessions.start[row] : last + 1, client] += UNIT
        if sessions.sent[row] >= 0:
            purpose = {Sent.TO_HUB: 1, Sent.TO_SERVER: 2}[sessions.receiver[row]]
            paid[purpose, sessions.sent[row], client] += table if sessions.payload[row] else UNIT
    held, lost = np.zeros_like(gains), np.zeros_like(gains)
    level = np.full(schedule.clients, initial)
    for slot in range(schedule.slots):
        level = level + gains[slot]
        lost[slot] = np.maximum(level - capacity, 0)
        level = level - lost[slot] - paid[:, slot].sum(axis=0)
        assert (level >= 0).all()
        held[slot] = level
    return held, lost, paid


@pytest.mark.parametrize("name", REGISTRY)
def test_the_books_are_those_of_every_battery(name: str) -> None:
    harvest = Markov(0.5, 9.0)
    made = plan(build(name), harvest, clients=12, slots=300, session=6, capacity=15.0, initial=2.0)
    gains = harvest.weather(12, 0).block(300)
    held, lost, purposes = batteries(made, gains, 15 * UNIT, 2 * UNIT)
    paid = purposes.sum(axis=0)
    energy = made.energy
    assert lost.any() or name in ("fedavg", "isolated")  # who may always train never fills a battery
    assert paid.any()
    assert (energy.harvested == 12 * 2 * UNIT + gains.sum(axis=1).cumsum()).all()
    assert (energy.stored == held.sum(axis=1)).all()
    assert (energy.overflowed == lost.sum(axis=1).cumsum()).all()
    for total, part in zip((energy.training, energy.to_hub, energy.to_server), purposes, strict=True):
        assert (total == part.sum(axis=1).cumsum()).all()
    assert (energy.level == held[-1]).all()
    assert (energy.overflow == lost.sum(axis=0)).all()
    spent = np.bincount(made.sessions.client, made.sessions.spent, made.clients)
    assert (spent == paid.sum(axis=0)).all()
    assert (spent + made.energy.level + made.energy.overflow == 2 * UNIT + gains.sum(axis=0)).all()
    assert (np.diff(made.energy.spent, prepend=0) == paid.sum(axis=1)).all()


def test_budget_slot_is_the_first_at_or_above(schedule: Schedule) -> None:
    spent = schedule.energy.spent / UNIT
    slot = schedule.budget_slot(500.0)
    assert slot is not None
    assert spent[slot] >= 500 > spent[slot - 1]
    assert schedule.budget_slot(spent[slot]) == slot
    assert schedule.budget_slot(1e9) is None


@pytest.mark.parametrize("exactly", [False, True])
def test_planning_stops_at_the_budget(schedule: Schedule, exactly: bool) -> None:
    slot = schedule.budget_slot(500.0)
    assert slot is not None
    budget = float(schedule.energy.spent[slot] / UNIT) if exactly else 500.0
    short = plan(build("pipecycle", {"groups": 3}), 0.3, clients=30, slots=800, session=6, budget=budget)
    assert short.slots == slot + 1
    assert short.budget_slot(budget) == slot
    assert (short.energy.spent == schedule.energy.spent[: slot + 1]).all()


def test_participation_and_fairness(schedule: Schedule) -> None:
    counts = schedule.participation()
    assert counts.sum() == len(schedule.sessions)
    assert schedule.fairness() == pytest.approx(counts.sum() ** 2 / (30 * (counts**2).sum()))
    nothing = plan(build("fedavg"), 0.0, clients=3, slots=50)
    assert nothing.fairness() is None
    figures = summarise(nothing)
    assert figures["group_size"] == {"mean": None, "max": None}
    assert figures["lag"] == {"mean": None, "max": None}
    assert figures["ancestry_max"] is None


def test_sessions_in_flight_and_unused() -> None:
    made = plan(build("cycp", {"groups": 2}), 1.0, clients=4, slots=44)
    # Everybody trains in slots 19..38; two are picked in slot 44 (s = 14 mod 15), so they still wait.
    assert made.sessions.start.tolist() == [19] * 4
    assert made.sessions.end.tolist() == [38] * 4
    assert made.sessions.status.tolist() == [Status.UNUSED] * 4
    made = plan(build("cycp", {"groups": 2}), 1.0, clients=4, slots=30)
    assert made.sessions.status.tolist() == [Status.IN_FLIGHT] * 4
    assert made.sessions.end.tolist() == [-1] * 4
    assert (made.sessions.spent / UNIT).tolist() == [11.0] * 4


def test_busy_groups_by_hand() -> None:
    group, start, end = np.array([1, 1, 2, 1]), np.array([0, 2, 1, 7]), np.array([3, 4, 2, 8])
    assert busy_groups(group, start, end, 10).tolist() == [1, 2, 2, 1, 1, 0, 0, 1, 1, 0]
    assert busy_groups(group[:0], start[:0], end[:0], 3).tolist() == [0, 0, 0]


def test_repr_says_what_it_is(schedule: Schedule) -> None:
    assert repr(schedule).startswith("Schedule(pipecycle, 30 clients, 800 slots, trial 0:")
