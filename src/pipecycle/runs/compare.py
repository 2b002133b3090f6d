"""Several policies on the same trials, side by side, with lines to measure them against."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve, frozen

from pipecycle.data import Split
from pipecycle.files import write
from pipecycle.policies import FedAvg, Isolated
from pipecycle.policies.registry import parameters, policy_class
from pipecycle.runs.config import Config
from pipecycle.runs.run import prepare, watch
from pipecycle.runs.sweep import Sweep, expand
from pipecycle.schedule.plan import plan
from pipecycle.world.harvest import Always

if TYPE_CHECKING:
    import pandas

    from pipecycle.train.job import Job

POLICIES = ("pipecycle", "pipecycle+", "fedavg", "cycp", "mifa", "flda", "fedseq", "fedbacys")
"""All schedulers of the paper and ours; fedbacys-odd is a variant, and others are compared by name."""

DEMO = Config().changed(
    {
        "world.clients": 40,
        "world.slots": 1000,
        "world.harvest": "bernoulli:0.5",
        "world.budget": 10_000.0,
        "data.alpha": 0.1,
        "train.lr": 0.02,
        "look.every": 15,
    }
)
"""Skewed labels and a budget: forty clients that charge in every other slot and hold few classes each."""


def comparison(base: Config, policies: Sequence[str] = POLICIES, trials: int = 3, groups: int = 5) -> Sweep:
    """Every policy on every trial; those that have groups with the same number of them."""
    grouped = any("groups" in parameters(policy_class(name)) for name in policies)
    return expand(base, {"policy": list(policies), **({"groups": [groups]} if grouped else {})}, trials)


@frozen(eq=False)
class Comparison:
    """Runs of several policies on the same trials."""

    jobs: Mapping[tuple[str, int], Job]
    """By policy and trial."""

    def frame(self) -> pandas.DataFrame:
        """All checkpoints: policy, trial, slot, energy, accuracy, ..."""
        import pandas

        frames = []
        for (policy, trial), job in self.jobs.items():
            frame = job.history.frame()
            frame.insert(0, "policy", policy)
            frame.insert(1, "trial", trial)
            frames.append(frame)
        return pandas.concat(frames, ignore_index=True)

    def table(self) -> pandas.DataFrame:
        """Accuracy at the budget by policy, mean and deviation over the trials, and what was spent."""
        import pandas

        rows = [
            {"policy": policy, "accuracy": job.history.at_budget.accuracy, "energy": job.history.at_budget.energy}
            for (policy, _), job in self.jobs.items()
        ]
        grouped = pandas.DataFrame(rows).groupby("policy")
        summary = grouped["accuracy"].agg(["mean", "std"]).join(grouped["energy"].mean())
        return summary.sort_values("mean", ascending=False)

    def __repr__(self) -> str:
        return f"Comparison({len({policy for policy, _ in self.jobs})} policies)\n{self.table().round(2)}"


def compare(
    policies: Sequence[str] = POLICIES, trials: int = 3, groups: int = 5, base: Config = DEMO, device: str = "auto"
) -> Comparison:
    """The same as `pipecycle compare`, in this process and without files: everything stacked on one device."""
    from pipecycle.train.engine import train_many
    from pipecycle.train.job import Job

    jobs = {}
    for config in comparison(base, policies, trials, groups).runs.values():
        jobs[config.policy, config.world.trial] = Job(*prepare(config), watch(config), name=config.policy)
    train_many(list(jobs.values()), device=device, precision=base.train.precision)  # type: ignore[arg-type]
    return Comparison(jobs)


def captions(clients: int, slots: Mapping[int, int]) -> dict[str, str]:
    """What the lines of `references` are, by name."""
    fewest, most = min(slots.values()), max(slots.values())
    span = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
    return {
        "centralised": f"SGD on all clients' samples, a step in each of the {span} slots of a trial's longest run",
        "isolated": f"a client alone with its own samples and energy, for as long; mean over all {clients:,}",
        "unlimited": "FedAvg with energy in every slot, for as long",
    }


def references(
    base: Config, slots: Mapping[int, int], home: Path | None = None, device: str = "auto"
) -> dict[str, list[float]]:
    """Accuracy (percent, per trial) that a comparison lies between; `slots` says how long each trial takes.

    `centralised`: SGD on all clients' samples at once, with a step in every slot.  Model, batch, learning rate and
    sessions are the clients' (a session that has begun is finished), energy plays no part;
    `isolated`: clients alone with their own samples and energy, the mean over all of them;
    `unlimited`: FedAvg with energy in every slot.

    With `home` they are kept there, and read instead of computed the next time."""
    from pipecycle.train.engine import train_many

    asked = hashlib.sha256(f"{base.identity()} {sorted(slots.items())}".encode()).hexdigest()[:12]
    kept = None if home is None else home / f"lines-{asked}.json"
    if kept is not None and kept.exists():
        stored: dict[str, list[float]] = json.loads(kept.read_text())
        return stored
    accuracies: dict[str, list[float]] = {"centralised": [], "isolated": [], "unlimited": []}
    for trial, length in slots.items():
        jobs = lines(base.changed({"world.trial": trial, "world.slots": length, "world.budget": None}))
        train_many(list(jobs.values()), device=device, precision=base.train.precision)  # type: ignore[arg-type]
        for name, job in jobs.items():
            last = job.history.final
            accuracies[name].append(last.accuracy if last.clients_accuracy is None else last.clients_accuracy)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write(kept, json.dumps(accuracies))
    return accuracies


def lines(config: Config) -> dict[str, Job]:
    """The runs behind `references`, for one trial; where clients keep their models, their mean is looked at."""
    from pipecycle.train.job import Job, Watch

    world = config.world

    alone, learnt = prepare(Config("isolated", {}, world, config.data, config.train, config.look))
    used = learnt.samples(world.session)
    unlimited = plan(
        FedAvg(),
        Always(),
        len(learnt.split),
        world.slots,
        session=world.session,
        capacity=world.capacity,
        initial=world.initial,
        trial=world.trial,
        samples=None if (used == used[0]).all() else used,
    )
    whole = -(-world.slots // world.session) * world.session
    # A first session in the battery and a unit in every slot: the next one starts in the slot after the last.
    steady = plan(Isolated(), Always(), 1, whole, session=world.session, initial=world.session, trial=world.trial)
    together = evolve(learnt, split=Split.of([np.unique(learnt.split.indices)], learnt.split.test))
    return {
        "centralised": Job(steady, together, Watch(every=whole, clients_every=whole)),
        "isolated": Job(alone, learnt, Watch(every=world.slots, clients_every=world.slots)),
        "unlimited": Job(unlimited, learnt, Watch(every=world.slots)),
    }
