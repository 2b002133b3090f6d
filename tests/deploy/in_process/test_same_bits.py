"""On the logical clock, with batteries that are full of certainty, a live run is the planned one to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import attrs
import numpy as np
import pytest

pytest.importorskip("flwr")

import torch
from sklearn.datasets import load_digits

from pipecycle import Always, InputError, build, plan
from pipecycle.policies import REGISTRY
from pipecycle.schedule.schedule import Schedule
from pipecycle.train import Watch, evaluate, train
from pipecycle.train.analysis import version_recipe
from pipecycle.world.energy import UNIT

pytestmark = pytest.mark.flower
Federation = Callable[..., SimpleNamespace]


def planned(live: SimpleNamespace) -> Schedule:
    run = live.run
    return plan(
        live.driver.policy.__class__(**live.schedule.meta["settings"]),
        Always(),
        run.clients,
        run.slots,
        session=run.session,
        trial=run.trial,
        initial=run.initial,
    )


def weights(live: SimpleNamespace, schedule: Schedule) -> torch.Tensor:
    recipes = [version_recipe(version) for version in range(len(schedule.versions))]
    return evaluate(schedule, live.run.problem(), recipes, device="cpu", trainer="loop")


@pytest.mark.parametrize("policy", sorted(REGISTRY.keys() - {"isolated"}))
def test_the_live_schedule_is_the_planned_one_and_the_trainer_has_the_same_weights(
    federation: Federation, policy: str
) -> None:
    live = federation(policy=policy, slots=100)
    plan_ = planned(live)
    differing = plan_.differences(live.schedule)
    waiting = np.flatnonzero((plan_.sessions.sent < 0) & (plan_.sessions.end >= 0))
    if len(waiting):
        # Their uploads were paid as their answers left, though the policy has not asked for them yet.
        assert set(differing) <= {"sessions.sent", "sessions.receiver", "sessions.spent", "energy.to_server",
                                  "energy.level"}  # fmt: skip
        extra = live.schedule.sessions.spent - plan_.sessions.spent
        assert np.flatnonzero(extra).tolist() == waiting.tolist()
        assert set(extra[waiting].tolist()) == {1 << 20}
    else:
        assert differing == []
    found = weights(live, plan_)
    for version in range(len(plan_.versions)):
        assert torch.equal(found[version], live.made[version])


@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_augmented_and_scaled_sessions_are_the_planned_ones(federation: Federation, model: str) -> None:
    live = federation(policy="pipecycle", model=model, scale="half", augment="crop:2+flip", slots=60)
    found, plain = weights(live, planned(live)), federation(policy="pipecycle", model=model, slots=60)
    assert len(live.made) > 5
    for version in live.made:
        assert torch.equal(found[version], live.made[version])
    assert not torch.equal(live.made[max(live.made)], plain.made[max(plain.made)])


def test_a_nodes_own_bytes_are_scaled_and_framed_as_the_runs_data_are(federation: Federation, tmp_path: Path) -> None:
    digits = load_digits()
    whole = federation(policy="fedavg", clients=2, slots=30, scale="half", augment="crop:1")
    nodes = []
    for client, mine in enumerate(whole.run.problem().split):
        path = tmp_path / f"{client}.npz"
        np.savez(path, x=digits.images[mine].astype(np.uint8)[:, None], y=digits.target[mine])
        nodes.append({"partition-id": client, "data": str(path)})
    own = federation(policy="fedavg", clients=2, slots=30, scale="half", augment="crop:1", nodes=nodes)
    assert own.made.keys() == whole.made.keys()
    assert all(torch.equal(own.made[version], whole.made[version]) for version in own.made)


def test_augmentation_is_refused_before_a_live_run_begins(federation: Federation) -> None:
    with pytest.raises(InputError, match="augment = crop:8: images have 8 x 8 pixels, needs a crop below 8"):
        federation(augment="crop:8")
    with pytest.raises(InputError, match="augment = blur: needs none, flip"):
        federation(augment="blur")
    with pytest.raises(InputError, match="scale = log: needs one of standard, unit, half, centre"):
        federation(scale="log")
    live = federation(slots=1, augment="none", scale="none")
    assert live.driver.identity == federation(slots=1).driver.identity
    assert live.driver.identity != federation(slots=1, augment="flip").driver.identity


def test_evaluations_are_the_trainers(federation: Federation) -> None:
    live = federation(policy="pipecycle", evaluate_every=30)
    history = train(live.schedule, live.run.problem(), Watch(every=30), device="cpu", trainer="loop")
    *before, last = live.driver.model.history.rows
    assert history.rows[:-1] == before
    # The plan counts what was spent by the last slot, the live run also what sessions under way have spent since.
    assert history.rows[-1] == attrs.evolve(last, energy=history.rows[-1].energy)
    spent = sum(report.spent for report in live.driver.fleet.reports.values()) / UNIT
    assert last.energy == spent > history.rows[-1].energy


@pytest.mark.parametrize("options", ['{"phase": "global"}', '{"phase": "own"}'])
def test_logit_tables_travel_both_ways(federation: Federation, options: str) -> None:
    live = federation(policy="flda", policy_settings=options, slots=160, clients=4)
    assert len(live.schedule.tables.slot) >= 2
    found = weights(live, live.schedule)
    for _, version in live.driver.lineage.publications:
        assert torch.allclose(found[version], live.made[version], atol=1e-5)


def test_kinds_of_policies_with_relays_and_chains(federation: Federation) -> None:
    for policy, options in (("pipecycle", '{"queue_threshold": 1, "groups": 3}'), ("fedseq", '{"mode": "chain"}')):
        live = federation(policy=policy, policy_settings=options)
        found = weights(live, live.schedule)
        for version in range(len(live.schedule.versions)):
            assert torch.equal(found[version], live.made[version]), policy


def test_unequal_shares_weigh_by_the_samples_used(federation: Federation, tmp_path: Path) -> None:
    task = federation(slots=1).run.problem().task
    nodes = []
    for client, size in enumerate((7, 40, 90)):
        first = 100 * client
        np.savez(tmp_path / f"{client}.npz", x=task.x_train[first : first + size], y=task.y_train[first : first + size])
        nodes.append({"partition-id": client, "data": str(tmp_path / f"{client}.npz")})
    live = federation(policy="fedavg", clients=3, nodes=nodes, slots=60)
    assert live.schedule.samples.tolist() == [35, 75, 75]
    weight = live.schedule.versions.weight[: live.schedule.versions.update_at[2]]
    clients = live.schedule.sessions.client[live.schedule.versions.update[: len(weight)]]
    told = np.array([35, 75, 75])[clients]
    assert np.allclose(weight, told / told.sum())


def test_a_lived_run_with_losses_is_what_the_trainer_makes_of_its_schedule(federation: Federation) -> None:
    """Recipes, batches and references survive declines and losses: the record says all of it."""

    def fault(client: int, message: object, now: float) -> str | None:
        order = message.content["pipecycle"]  # type: ignore[attr-defined]
        return ("lose", "late", "raise", None)[(order["k"] + client) % 4] if order["k"] >= 0 else None

    live = federation(policy="pipecycle", harvest="bernoulli:0.5", initial=10.0, slots=250, fault=fault)
    counts = live.schedule.status_counts()
    assert counts["lost"] > 5
    assert counts["used"] > 5
    found = weights(live, live.schedule)
    for version in range(len(live.schedule.versions)):
        assert torch.equal(found[version], live.made[version])


def test_build_is_the_planning_class(federation: Federation) -> None:
    live = federation(policy="fedavg", slots=5)
    assert type(live.driver.policy) is type(build("fedavg"))
