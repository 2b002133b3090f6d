"""What keeps a long run going: versions that nobody needs are dropped, nodes may lose everything and come back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from pipecycle.errors import ActionError
from pipecycle.policies import REGISTRY, FedAvg
from pipecycle.schedule.schedule import Status
from pipecycle.world.energy import UNIT

from ..shared import audit

pytestmark = pytest.mark.flower
Federation = Callable[..., SimpleNamespace]


@pytest.mark.parametrize("policy", sorted(REGISTRY.keys() - {"isolated"}))
def test_only_versions_in_use_are_kept(federation: Federation, tmp_path: Path, policy: str) -> None:
    live = federation(policy=policy, clients=4, slots=130, session=3, out=str(tmp_path), evaluate_every=130)
    driver = live.driver
    kept = {int(path.stem.partition("-")[2]) for path in tmp_path.glob("checkpoint/version-*")}
    under_way = live.schedule.sessions.reference[driver.fleet.training()].tolist()
    assert kept == {0, driver.lineage.published, *driver.policy.references(), *under_way}
    assert len(live.schedule.versions) > len(kept)


class Silent:
    """FedAvg that does not say which versions it may still name."""

    name, grouping, epoch = "silent", None, None
    setup, decide, collect = FedAvg.setup, FedAvg.decide, FedAvg.collect


class Forgetful(FedAvg):
    """Starts sessions from a version that it did not name."""

    name: ClassVar[str] = "forgetful"

    def decide(self, slot: int) -> None:
        if slot > 60:
            self.fleet.start(self.fleet.free(self.fleet.to_train), 1)
        else:
            super().decide(slot)


def test_a_policy_that_does_not_say_keeps_all_versions(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REGISTRY, "silent", Silent)
    live = federation(policy="silent", slots=120, out=str(tmp_path))
    kept = {int(path.stem.partition("-")[2]) for path in tmp_path.glob("checkpoint/version-*")}
    assert kept == set(range(len(live.schedule.versions)))
    assert len(kept) > 3


def test_a_policy_that_forgets_a_version_is_stopped(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "forgetful", Forgetful)
    with pytest.raises(ActionError, match="slot 61: version 1 was given up"):
        federation(policy="forgetful", slots=120, policy_settings='{"epoch": 10}')


def test_a_node_without_a_ledger_comes_back_with_another(federation: Federation) -> None:
    live = federation(policy="fedavg", clients=3, slots=120, initial=9.0, run_it=False)
    grid, seen = live.grid, list[int]()

    def fault(client: int, message: Message, now: float) -> str | None:
        slot = message.content["pipecycle"]["slot"]
        if slot > 40 and not seen:
            seen.append(slot)
            grid.stop(2)
            return "refuse" if client == 2 else None
        if slot > 60 and 2 not in grid.ids:
            grid.start(2)
        return None

    grid.fault = fault
    schedule = live.driver.run()
    late = (schedule.sessions.client == 2) & (schedule.sessions.start > 60)
    assert (schedule.sessions.status[late] == Status.USED).any()
    assert not live.driver.refused
    energy = schedule.energy
    assert energy.stored[-1] == energy.level.sum()
    assert (energy.level >= 0).all()
    spent = schedule.sessions.spent[schedule.sessions.client == 2]
    assert set((spent // UNIT).tolist()) <= {0, 1, 2, 3, 4, 5, 6}


def test_nodes_that_hold_less_than_the_run_allows(federation: Federation) -> None:
    """Client 0 can never hold a session: it is asked now and then, declines, and holds nobody up."""
    nodes: list[dict[str, Any]] = [{"partition-id": client} for client in range(3)]
    nodes[0]["capacity"] = 3.0
    live = federation(nodes=nodes, clients=3, policy="fedavg", slots=100, capacity=50.0)
    assert live.driver.fleet.capacity.tolist() == [3 * UNIT, 50 * UNIT, 50 * UNIT]
    assert live.schedule.participation()[0] == 0
    assert live.schedule.participation()[1] > 10
    assert max(row[0] for row in live.driver.levels) <= 3 * UNIT


def test_keys_that_are_not_ours_are_the_users_own() -> None:
    from flwr.app import Context, RecordDict

    from pipecycle.deploy import RunSettings
    from pipecycle.deploy.node.session import settings_of
    from pipecycle.errors import InputError

    context = Context(1, 1, {}, RecordDict(), {"local-epochs": 3, "slots": 7})
    assert settings_of(context, strict=False).slots == 7
    with pytest.raises(InputError, match="local-epochs"):
        settings_of(context)
    assert settings_of(Context(1, 1, {}, RecordDict(), {}), RunSettings(slots=9)).slots == 9
    own = Context(1, 1, {}, RecordDict(), {"device": "cuda:7", "lr": "warm-up", "clients": 10, "policy": "greedy"})
    assert settings_of(own, RunSettings(slots=9), strict=False) == RunSettings(slots=9)


def test_levels_never_below_zero_with_a_forecast_that_is_far_off(federation: Federation) -> None:
    for forecast, truth in (
        ("always", "bernoulli:0.1"),
        ("bernoulli:0.1", "always"),
        ("markov:0.5,9", "bernoulli:0.3"),
    ):
        nodes = [{"partition-id": client, "harvest": truth} for client in range(4)]
        live = federation(
            nodes=nodes, clients=4, policy="fedbacys", harvest=forecast, slots=150, initial=6.0, run_it=False
        )
        audit(live.driver)
        energy = live.driver.run().energy
        assert np.array(live.driver.levels).min() >= 0
        assert energy.harvested[-1] == energy.spent[-1] + energy.level.sum() + energy.overflowed[-1]
        # What was only expected and taken back later was never in the record, and nothing else is missing there.
        known = np.array(live.driver.fleet.totals)
        assert (np.diff(known, axis=0) < 0).any() == (forecast != "bernoulli:0.1")
        parts = (energy.harvested, energy.overflowed, energy.training, energy.to_hub, energy.to_server)
        record = np.stack(parts, axis=1)
        for slot in range(len(record) - 1):
            assert record[slot].tolist() == np.minimum(known[slot], record[slot + 1]).tolist()


@pytest.mark.parametrize("seconds", [1.0, 60.0])
def test_a_node_that_restarts_within_a_slot_is_let_in_again(federation: Any, seconds: float) -> None:
    """Its loss and its return are heard of in the same slot; the return is what counts."""
    live = federation(
        policy="fedavg", clients=4, slots=60, session=4, slack=2, initial=400.0, clock="wall", slot_seconds=seconds,
        run_it=False,
    )  # fmt: skip
    grid, driver = live.grid, live.driver
    grid.latency = 0.5 * seconds
    pull, moments = grid.pull_messages, {}

    def restarting(ids: Any) -> Any:
        now = grid.timer.monotonic()
        under_way = any(flight.client == 1 and flight.session >= 0 for flight in driver.roster.flights.values())
        if not moments and driver.fleet.slot >= 10 and under_way:
            moments["stop"] = now
            grid.stop(1)
        elif "stop" in moments and "start" not in moments and now >= moments["stop"] + 3:
            moments["start"] = now
            grid.start(1)
        return pull(ids)

    grid.pull_messages = restarting
    schedule = driver.run()
    assert "start" in moments
    mine = schedule.sessions.client == 1
    assert (schedule.sessions.status[mine] == 2).sum() == 1  # the session that was lost
    assert (schedule.sessions.start[mine] > 30).any()
