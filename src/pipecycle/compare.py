"""Several policies on the same trials, side by side, with lines to measure them against."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipecycle.config import Config
from pipecycle.data import Split
from pipecycle.files import write
from pipecycle.plan import plan
from pipecycle.policies import FedAvg
from pipecycle.runs import prepare
from pipecycle.specs import parse_harvest
from pipecycle.sweep import Sweep, expand

POLICIES = ("pipecycle", "pipecycle+", "fedavg", "cycp", "mifa", "flda", "fedseq", "fedbacys")
"""All schedulers of the paper and ours; fedbacys-odd is a variant."""

DEMO = Config().changed(
    {
        "world.clients": 40,
        "world.slots": 3000,
        "world.harvest": "bernoulli:0.1",
        "world.budget": 10_000.0,
        "data.alpha": 0.1,
    }
)
"""Scarce energy and skewed labels: forty clients that charge in one slot out of ten and hold few classes each."""


def comparison(base: Config, policies: Sequence[str] = POLICIES, trials: int = 3, groups: int = 5) -> Sweep:
    """Every policy on every trial; those that have groups with the same number of them."""
    return expand(base, {"policy": list(policies), "groups": [groups]}, trials)


def references(base: Config, trials: Sequence[int], home: Path | None = None) -> dict[str, list[float]]:
    """Accuracy (percent, per trial) that the comparison lies between, by the end of the horizon:

    `centralised`: one learner with all the data that never runs out of energy, a step in nearly every slot;
    `isolated`: a client alone with its own data and energy, the mean over five clients;
    `unlimited`: FedAvg with energy in every slot.

    With `home` they are kept there, and read instead of computed the next time."""
    kept = None if home is None else home / f"references-{base.identity()[:12]}-{len(trials)}.json"
    if kept is not None and kept.exists():
        stored: dict[str, list[float]] = json.loads(kept.read_text())
        return stored
    found: dict[str, list[float]] = {"centralised": [], "isolated": [], "unlimited": []}
    for trial in trials:
        for name, value in _lines(base.changed({"world.trial": trial})).items():
            found[name].append(value)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write(kept, json.dumps(found))
    return found


def _lines(config: Config) -> dict[str, float]:
    from attrs import evolve

    from pipecycle.train.engine import train_many
    from pipecycle.train.job import Job, Watch

    world = config.world
    plain = Config("fedavg", {}, world, config.data, config.train, config.look)
    _, learnt = prepare(plain.changed({"world.slots": 1, "world.budget": None}))
    watch = Watch(every=world.slots)

    def job(clients: Sequence[np.ndarray[tuple[int, ...], np.dtype[np.int64]]], harvest: str) -> Job:
        split = Split.of(clients, learnt.split.test)
        schedule = plan(
            FedAvg(),
            parse_harvest(harvest),
            len(split),
            world.slots,
            session=world.session,
            trial=world.trial,
            capacity=world.capacity,
            initial=world.initial,
        )
        return Job(schedule, evolve(learnt, split=split), watch)

    everybody = [*learnt.split]
    alone = np.linspace(0, len(everybody) - 1, min(5, len(everybody))).astype(int).tolist()
    jobs = [job([np.unique(learnt.split.indices)], "always"), job(everybody, "always")]
    jobs += [job([everybody[client]], world.harvest) for client in alone]
    accuracy = [history.final.accuracy for history in train_many(jobs)]
    return {"centralised": accuracy[0], "unlimited": accuracy[1], "isolated": float(np.mean(accuracy[2:]))}
