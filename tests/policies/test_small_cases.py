"""Each scheduler on a case small enough to follow with a pencil."""

from __future__ import annotations

import numpy as np

from pipecycle import Schedule, plan
from pipecycle.policies import FLDA, MIFA, CyCP, FedAvg, FedBacys, FedBacysOdd, FedSeq, PipeCycle
from pipecycle.policies.rotation import Groups
from pipecycle.schedule.schedule import Sent
from pipecycle.world import World
from pipecycle.world.energy import UNIT
from pipecycle.world.fleet import Fleet
from pipecycle.world.lineage import Kind, Lineage
from pipecycle.world.streams import streams


def rows(schedule: Schedule, *names: str) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(schedule.sessions, name).tolist() for name in names), strict=True))


def test_pipecycle_relays_from_group_to_group() -> None:
    """Two groups of one, sessions of 4, a formation every 2 slots; batteries are full at slot 4 (5 units)."""
    schedule = plan(PipeCycle(groups=2, group_size=1), 1.0, clients=4, slots=14, session=4)
    assert schedule.sessions.start.tolist() == [4, 6, 8, 10, 12]
    assert schedule.sessions.end.tolist() == [7, 9, 11, 13, -1]
    # The first two start from x_0; then each takes what the group two before it made.
    assert schedule.sessions.reference.tolist() == [0, 0, 1, 2, 3]
    assert schedule.publications.slot.tolist() == [8, 10, 12]
    assert schedule.publications.version.tolist() == [1, 2, 3]
    # Nobody comes twice before everybody came once, and every hub paid its upload when it was relayed.
    assert len(set(schedule.sessions.client.tolist()[:4])) == 4
    assert schedule.sessions.receiver.tolist() == [Sent.TO_SERVER] * 3 + [Sent.NOT] * 2
    assert schedule.energy.spent[-1] == (4 * 4 + 2 + 3) * UNIT


def test_relay_mixing_blends_server_and_hub() -> None:
    schedule = plan(PipeCycle(groups=1, group_size=2, relay_mix=0.25), 1.0, clients=2, slots=10, session=3)
    ancestry = schedule.ancestry
    # Slot 3: group from x_0; slot 5: aggregation (version 1); slot 6: the pop makes 0.75 x_0 + 0.25 x_1.
    recipe = ancestry.recipe(2)
    assert schedule.versions.kind[2] == Kind.MIXTURE
    assert (recipe.versions.tolist(), recipe.coefficients.tolist()) == ([0, 1], [0.75, 0.25])
    assert schedule.publications.version.tolist()[0] == 2
    assert schedule.sessions.reference.tolist()[2:4] == [2, 2]


def test_fedavg_adds_displacements_once_per_epoch() -> None:
    """One client, epoch 5, session 2: trains 1-2, sends 3, trains 4-5, sends 6, ..."""
    schedule = plan(FedAvg(epoch=5), 1.0, clients=1, slots=10, session=2)
    assert rows(schedule, "start", "end", "sent") == [(1, 2, 3), (4, 5, 6), (7, 8, 9)]
    assert schedule.publications.slot.tolist() == [4, 9]
    assert schedule.sessions.reference.tolist() == [0, 0, 1]  # slot 4 starts before that epoch's server step
    assert schedule.ancestry.group_sizes.tolist() == [1, 2]


def test_cycp_lets_those_passed_over_go_first() -> None:
    """Three clients finish together and two fit: the third is in the next group whatever the draw."""
    for trial in range(5):
        schedule = plan(CyCP(groups=1, epoch=4, group_cap=2), 1.0, clients=3, slots=12, session=2, trial=trial)
        ancestry = schedule.ancestry
        first = schedule.sessions.client[ancestry.event_of_session == 1].tolist()
        second = schedule.sessions.client[ancestry.event_of_session == 2].tolist()
        assert len(first) == 2
        assert ({0, 1, 2} - set(first)) <= set(second)
        assert ancestry.event_slots[1:3].tolist() == [3, 7]


def test_mifa_without_memory_is_a_clocked_fedavg() -> None:
    schedule = plan(MIFA(epoch=6, use_memory=False), 1.0, clients=2, slots=18, session=3)
    # Starts at s = 2 (mod 6) with 3 units, reports at s = 5.
    assert sorted(set(rows(schedule, "start", "end", "sent"))) == [(2, 4, 5), (8, 10, 11), (14, 16, 17)]
    assert (schedule.versions.kind != Kind.MEMORY).all()
    assert schedule.ancestry.group_sizes.tolist() == [2, 2, 2]


def test_mifa_reuses_the_last_update_of_the_absent() -> None:
    """Client 1 has energy for one session only; its update still counts in every later step."""
    schedule = plan(MIFA(epoch=4), 0.0, clients=2, slots=16, session=3, initial=np.array([16.0, 4.0]))
    assert schedule.participation().tolist() == [4, 1]
    last = schedule.ancestry.recipe(int(schedule.ancestry.event_versions[-1]))
    assert last.coefficients.tolist() == [1.0, 0.5, 0.5]
    remembered = [int(schedule.ancestry.recipe(int(memory)).sessions[0]) for memory in last.versions[1:]]
    assert schedule.sessions.client[remembered].tolist() == [0, 1]
    assert schedule.sessions.start[remembered].tolist() == [12, 0]
    assert schedule.ancestry.group_sizes.tolist() == [2, 1, 1, 1]


def test_flda_alternates_by_client() -> None:
    schedule = plan(FLDA(epoch=4, upload_ratio=0.25), 1.0, clients=2, slots=16, session=3)
    # Epoch 0 starts at s = 0 without energy; from epoch 1 on both train, client 0 beginning with logits.
    assert rows(schedule, "client", "start", "payload", "teacher") == [
        (0, 4, 1, -1), (1, 4, 0, -1),
        (1, 8, 1, 0), (0, 8, 0, 0),
        (0, 12, 1, 1), (1, 12, 0, 1),
    ]  # fmt: skip
    assert schedule.ancestry.group_sizes.tolist() == [1, 1, 1]
    assert schedule.tables.slot.tolist() == [7, 11, 15]
    assert schedule.tables.keep.tolist() == [-1, 0, 1]
    assert schedule.sessions.spent.tolist() == [int(3.25 * UNIT), 4 * UNIT] * 3


def test_flda_in_global_phase_continues_the_kept_model() -> None:
    schedule = plan(FLDA(epoch=4, phase="global", upload_ratio=0.25), 0.0, clients=1, slots=12, session=3, initial=12.0)
    # Epoch 0 distils, epoch 1 learns from the kept model, epoch 2 distils again.
    assert schedule.sessions.payload.tolist() == [1, 0, 1]
    kept, server = schedule.sessions.reference[1], schedule.publications.version[0]
    recipe = schedule.ancestry.recipe(int(kept))
    assert schedule.versions.kind[kept] == Kind.LOCAL
    assert (recipe.versions.tolist(), recipe.sessions.tolist()) == ([0], [0])
    step = schedule.ancestry.recipe(int(server))
    # x + (kept - x_0) + update: the whole way from x_0 is reported.
    assert step.versions.tolist() == [0, kept, 0]
    assert step.coefficients.tolist() == [1.0, 1.0, -1.0]
    assert step.sessions.tolist() == [1]
    assert schedule.ancestry.group_sizes.tolist() == [1]


def test_fedseq_chain_hands_on_in_a_slot_of_its_own() -> None:
    schedule = plan(FedSeq(groups=1, mode="chain"), 0.0, clients=3, slots=12, session=2, initial=3.0)
    assert rows(schedule, "start", "end", "sent", "reference") == [(0, 1, 2, 0), (3, 4, 5, 1), (6, 7, 8, 2)]
    assert schedule.sessions.receiver.tolist() == [Sent.TO_HUB, Sent.TO_HUB, Sent.TO_SERVER]
    assert schedule.publications.slot.tolist() == [8]
    assert (schedule.ancestry.events, schedule.ancestry.group_sizes.tolist()) == (1, [3])
    assert schedule.energy.level.tolist() == [0, 0, 0]


def test_fedseq_chain_skips_a_client_without_energy() -> None:
    initial = np.array([3.0, 0.0, 3.0, 3.0])
    for trial in range(8):
        schedule = plan(
            FedSeq(groups=2, mode="chain", patience=4),
            0.0,
            clients=4,
            slots=40,
            session=2,
            initial=initial,
            trial=trial,
        )
        assert schedule.participation().tolist() == [1, 0, 1, 1]
        assert schedule.ancestry.events == 1
        weights = schedule.ancestry.recipe(int(schedule.publications.version[0])).coefficients
        assert sorted(weights.tolist()) in ([1 / 3, 2 / 3], [0.5, 0.5])
        assert weights.sum() == 1.0


def test_fedbacys_charges_first_reports_first() -> None:
    """Two groups by battery, epoch 6, turns of 3, session 3: reports at 5 and 8, starts at 2 and 5."""
    initial = np.array([9.0, 20.0, 8.0, 10.0])
    schedule = plan(FedBacys(groups=2, epoch=6), 0.0, clients=4, slots=9, session=3, initial=initial)
    assert rows(schedule, "client", "start", "sent")[:4] == [(1, 2, 5), (3, 2, 5), (0, 5, 8), (2, 5, 8)]
    assert schedule.publications.slot.tolist() == [5, 8]
    assert schedule.sessions.reference.tolist()[:4] == [
        0,
        0,
        0,
        0,
    ]  # the second group was not told of the first's model


def test_fedbacys_odd_takes_every_other_chance() -> None:
    usual = plan(FedBacys(groups=1, epoch=6), 1.0, clients=2, slots=120, session=3)
    odd = plan(FedBacysOdd(groups=1, epoch=6), 1.0, clients=2, slots=120, session=3)
    assert (np.diff(np.unique(usual.sessions.start)) == 6).all()
    assert (np.diff(np.unique(odd.sessions.start)) == 12).all()


def test_rotation_takes_the_longest_idle_and_breaks_ties_at_random() -> None:
    seen = set()
    for trial in range(30):
        schedule = plan(PipeCycle(groups=1, group_size=2), 1.0, clients=4, slots=40, session=2, trial=trial)
        first, second = schedule.sessions.client[:2].tolist(), schedule.sessions.client[2:4].tolist()
        assert sorted(first + second) == [0, 1, 2, 3]
        seen.add(tuple(first))
    assert len(seen) == 6  # every pair came first in some trial


def test_a_group_that_loses_members_keeps_the_rest() -> None:
    fleet = Fleet(10, session=5, initial=20.0)
    groups = Groups(World(fleet, Lineage(lambda _: None), streams(0), 10, 5), most=2, size=3, interval=1)
    for slot in range(2):
        fleet.harvest(slot, np.zeros(10, np.int64), 0, 0)
        groups.form(slot, lambda: 0)
    started = fleet.client_of(np.arange(6)).tolist()
    nobody = np.empty(0, np.int64)
    assert groups.closed_by(np.array([1]), nobody) == []
    (closed,) = groups.closed_by(np.array([2]), np.array([0]))
    assert (closed.members.tolist(), closed.sessions.tolist()) == (started[1:3], [1, 2])
    assert groups.closed_by(nobody, np.array([3, 4, 5])) == []  # nobody left: dissolved
    assert len(groups) == 0


def test_the_line_wraps_without_losing_anybody() -> None:
    """Many more turns than the line has room for."""
    schedule = plan(PipeCycle(groups=3, group_size=3), 1.0, clients=7, slots=2000, session=3)
    counts = schedule.participation()
    assert counts.max() - counts.min() <= 1
