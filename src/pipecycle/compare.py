"""Several policies on the same trials, side by side, with lines to measure them against."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from pipecycle.config import Config
from pipecycle.data import Split
from pipecycle.files import write
from pipecycle.harvest import Always, Harvest, Weather
from pipecycle.plan import plan
from pipecycle.policies import FedAvg
from pipecycle.registry import parameters, policy_class
from pipecycle.runs import prepare, watch
from pipecycle.specs import parse_harvest
from pipecycle.streams import Ints
from pipecycle.sweep import Sweep, expand

if TYPE_CHECKING:
    import pandas

    from pipecycle.train.job import Job

POLICIES = ("pipecycle", "pipecycle+", "fedavg", "cycp", "mifa", "flda", "fedseq", "fedbacys")
"""All schedulers of the paper and ours; fedbacys-odd is a variant."""

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


def references(
    base: Config, trials: Sequence[int], home: Path | None = None, device: str = "auto"
) -> dict[str, list[float]]:
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
        for name, value in _lines(base.changed({"world.trial": trial}), device).items():
            found[name].append(value)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write(kept, json.dumps(found))
    return found


@frozen(eq=False)
class Alone:
    """The weather of one client of a fleet."""

    harvest: Harvest
    fleet: int
    client: int

    def weather(self, clients: int, trial: int) -> Weather:
        return _Column(self.harvest.weather(self.fleet, trial), self.client)


class _Column:
    def __init__(self, weather: Weather, client: int) -> None:
        self.peak = weather.peak
        self._weather, self._client = weather, client

    def block(self, slots: int) -> Ints:
        return self._weather.block(slots)[:, self._client : self._client + 1]


def _lines(config: Config, device: str) -> dict[str, float]:
    from attrs import evolve

    from pipecycle.train.engine import train_many
    from pipecycle.train.job import Job, Watch

    world = config.world
    plain = Config("fedavg", {}, world, config.data, config.train, config.look)
    _, learnt = prepare(plain.changed({"world.slots": 1, "world.budget": None}))
    once = Watch(every=world.slots)

    def job(clients: Sequence[Ints], harvest: Harvest) -> Job:
        split = Split.of(clients, learnt.split.test)
        schedule = plan(
            FedAvg(),
            harvest,
            len(split),
            world.slots,
            session=world.session,
            trial=world.trial,
            capacity=world.capacity,
            initial=world.initial,
        )
        return Job(schedule, evolve(learnt, split=split), once)

    everybody = [*learnt.split]
    alone = np.linspace(0, len(everybody) - 1, min(5, len(everybody))).astype(int).tolist()
    weather = parse_harvest(world.harvest)
    jobs = [job([np.unique(learnt.split.indices)], Always()), job(everybody, Always())]
    jobs += [job([everybody[client]], Alone(weather, len(everybody), client)) for client in alone]
    histories = train_many(jobs, device=device, precision=config.train.precision)  # type: ignore[arg-type]
    accuracy = [history.final.accuracy for history in histories]
    return {"centralised": accuracy[0], "unlimited": accuracy[1], "isolated": float(np.mean(accuracy[2:]))}
