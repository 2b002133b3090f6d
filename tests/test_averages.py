"""The mean of the live chains, by hand and on real weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pipecycle import InputError, Schedule, build, plan
from pipecycle.runs.config import Config
from pipecycle.schedule.averages import last_published, serve
from pipecycle.train.analysis import evaluate, version_recipe
from pipecycle.train.job import Job, Watch
from pipecycle.train.problems import problem


def paper(groups: int = 2, **settings: object) -> Schedule:
    return plan(build("pipecycle", {"groups": groups, **settings}), 1.0, clients=20, slots=300)


def test_two_groups_are_two_chains() -> None:
    schedule = paper()
    # Groups form at 20, 30, ...: the first ends with slot 39 and is version 1, the second with 49 and is version 2.
    assert schedule.ancestry.live(20) == [0]
    assert schedule.ancestry.live(40) == [1]  # the second group still trains from x_0, which is in version 1 already
    assert schedule.ancestry.live(50) == [1, 2]  # version 1 is the third group's reference, version 2 waits
    assert schedule.ancestry.live(60) == [2, 3]
    assert schedule.ancestry.live(61) == [2, 3]  # now version 3 is served


def test_a_model_that_is_discarded_in_the_end_is_no_chain() -> None:
    schedule = plan(build("pipecycle", {"groups": 4, "queue_threshold": 1}), 0.2, clients=20, slots=400, session=5)
    gone = schedule.versions.discarded
    assert gone.any()
    for slot in range(1, 401):
        assert not gone[schedule.ancestry.live(slot)].any()


def test_mixed_relays_leave_one_server_model_and_those_that_wait() -> None:
    schedule = paper(5, relay_mix=0.5)
    published = schedule.publications
    for slot in range(60, 300, 7):
        tips = schedule.ancestry.live(slot)
        served = int(published.version[np.searchsorted(published.slot, slot - 1, side="right") - 1])
        assert served in tips
        assert all(schedule.versions.kind[tip] == 1 for tip in tips if tip != served)


@pytest.mark.parametrize("name", ["fedavg", "cycp", "mifa", "fedseq", "fedbacys"])
def test_one_shared_model_is_its_own_mean(name: str) -> None:
    schedule = plan(build(name), 0.5, clients=20, slots=300)
    same, versions = serve(schedule, "chains", [150, 300])
    assert same is schedule
    assert versions == [Job(schedule, problem(clients=20)).history.points[index].version for index in (0, 1)]


def test_the_mean_is_evaluated() -> None:
    schedule, learnt = paper(5), problem("digits", "mlp", clients=20)
    job = Job(schedule, learnt, Watch(every=100, served="chains"))
    versions = [point.version for point in job.history.points]
    values = evaluate(job.schedule, learnt, [version_recipe(version) for version in versions], device="cpu")
    for slot, value in zip((100, 200, 300), values, strict=True):
        tips = schedule.ancestry.live(slot)
        assert len(tips) > 1
        parts = evaluate(schedule, learnt, [version_recipe(tip) for tip in tips], device="cpu")
        torch.testing.assert_close(value, parts.mean(0), rtol=0, atol=1e-6)


def test_the_last_published_by_hand() -> None:
    schedule = paper()
    # Version 1 is relayed at the start of slot 40, version 2 of 50, version 3 of 60, ...
    assert last_published(schedule, 40, 3) == [0]
    assert last_published(schedule, 41, 3) == [1]
    assert last_published(schedule, 60, 3) == [1, 2]
    assert last_published(schedule, 81, 3) == [3, 4, 5]
    longer, versions = serve(schedule, "mean:3", [41, 60, 81])
    assert versions == [1, len(schedule.versions), len(schedule.versions) + 1]
    for version, models in zip(versions[1:], ([1, 2], [3, 4, 5]), strict=True):
        recipe = longer.ancestry.recipe(version)
        assert (recipe.versions.tolist(), recipe.coefficients.tolist()) == (models, [1 / len(models)] * len(models))
    assert longer.energy is schedule.energy
    assert longer.sessions is schedule.sessions


@pytest.mark.parametrize("name", ["fedavg", "cycp", "fedseq", "fedbacys", "pipecycle+", "mifa"])
def test_the_mean_of_the_last_is_evaluated_for_every_scheduler(name: str) -> None:
    schedule, learnt = plan(build(name), 0.5, clients=20, slots=300), problem("digits", "mlp", clients=20)
    job = Job(schedule, learnt, Watch(every=150, served="mean:3"))
    values = evaluate(
        job.schedule, learnt, [version_recipe(point.version) for point in job.history.points], device="cpu"
    )
    for slot, value in zip((150, 300), values, strict=True):
        parts = evaluate(schedule, learnt, [version_recipe(v) for v in last_published(schedule, slot, 3)], device="cpu")
        assert len(parts) == 3
        torch.testing.assert_close(value, parts.mean(0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("way", ["mean", "mean:", "mean:0", "mean:-1", "mean:2.5", "mean:two", "mean:³", "chain", ""])
def test_other_ways_of_serving_are_refused(way: str) -> None:
    with pytest.raises(InputError, match=f"served = {way}: needs chains, or mean:K"):
        Config().changed({"look.served": way})
    with pytest.raises(InputError, match="needs chains, or mean:K"):
        Watch(served=way)


def test_the_way_of_serving_is_part_of_the_identity() -> None:
    usual = Config()
    assert usual.changed({"look.served": "mean:5"}).identity() != usual.identity()
    assert usual.changed({"look.served": "none"}).identity() == usual.identity()
