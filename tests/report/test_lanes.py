from __future__ import annotations

from itertools import pairwise

import pytest

from pipecycle import build, plan
from pipecycle.policies import REGISTRY
from pipecycle.report.lanes import letter, pipeline


def test_letters() -> None:
    assert [letter(chain) for chain in (0, 1, 26, 27, 52, 53)] == ["·", "A", "Z", "AA", "AZ", "BA"]


def test_two_groups_hand_their_models_on() -> None:
    """10 clients, always charging: groups of 2 every 10 slots from slot 20 on, each chain on its own lane."""
    found = pipeline(plan(build("pipecycle", {"groups": 2}), 1.0, 10, 200))
    assert found.by == "group"
    assert found.lanes == ("lane 1", "lane 2")
    by_lane = [[bar for bar in found.bars if bar.lane == lane] for lane in (0, 1)]
    assert [letter(bar.chain) for bar in by_lane[0][:3]] == ["A", "A", "A"]
    assert [letter(bar.chain) for bar in by_lane[1][:3]] == ["B", "B", "B"]
    assert all(bar.end - bar.start == 19 for bar in found.bars if bar.state == "used")
    starts = [bar.start for bar in found.bars]
    assert [b - a for a, b in pairwise(starts)] == [10] * (len(starts) - 1)
    # Every group but the two that begin the chains was handed a model by the one before it on its lane.
    assert len(found.handovers) == len(found.bars) - 2
    assert all(one.main and one.lane == one.to and one.start == one.end for one in found.handovers)


@pytest.mark.parametrize("policy", sorted(REGISTRY))
def test_bars_never_overlap_and_everybody_is_there(policy: str) -> None:
    schedule = plan(build(policy, {}), 0.4, 20, 600)
    found = pipeline(schedule, most=10_000)
    lanes: dict[int, list[tuple[int, int]]] = {}
    for bar in found.bars:
        assert 0 <= bar.lane < len(found.lanes)
        lanes.setdefault(bar.lane, []).append((bar.start, bar.end))
    for spans in lanes.values():
        assert all(a[1] < b[0] for a, b in pairwise(sorted(spans)))
    assert found.whole
    if found.by == "client":
        assert len(found.bars) == len(schedule.sessions)
        assert not found.handovers
    assert all(one.start <= one.end for one in found.handovers)


def test_a_long_schedule_is_cut_to_a_window() -> None:
    schedule = plan(build("pipecycle", {"groups": 5}), 1.0, 20, 2000)
    found = pipeline(schedule, most=50)
    assert not found.whole
    assert len(found.bars) == 50
    assert found.last == max(bar.start for bar in found.bars)
    many = pipeline(plan(build("fedavg", {}), 0.5, 300, 200), clients=40)
    assert len(many.lanes) == 40
    assert many.lanes[0] == "client 0"
    assert many.lanes[-1] == "client 299"


def test_nobody_ever_trains() -> None:
    for policy in sorted(REGISTRY):
        found = pipeline(plan(build(policy, {}), 0.0, 5, 50))
        assert found.bars == ()
        assert found.handovers == ()


def test_hand_overs_from_client_to_client() -> None:
    found = pipeline(plan(build("fedseq", {"mode": "chain", "groups": 2}), 1.0, 6, 300))
    assert found.handovers
    ends = {(bar.lane, bar.end + 1) for bar in found.bars}
    starts = {(bar.lane, bar.start) for bar in found.bars}
    assert all((one.lane, one.start) in ends and (one.to, one.end) in starts for one in found.handovers)
