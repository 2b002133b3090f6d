"""Several policies on the same trials, side by side, with lines to measure them against."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from attrs import evolve

from pipecycle import files
from pipecycle.data import Split
from pipecycle.errors import InputError, shown
from pipecycle.policies import FedAvg, Isolated
from pipecycle.policies.registry import parameters, policy_class
from pipecycle.policies.spec import Spec
from pipecycle.runs.comparison import Comparison, trained
from pipecycle.runs.config import Config, counted
from pipecycle.runs.contents import sealed
from pipecycle.runs.planning import plan_of
from pipecycle.runs.run import problem_of
from pipecycle.runs.sweep import Sweep, check_effects, expand
from pipecycle.schedule.plan import plan
from pipecycle.world.contract import Policy
from pipecycle.world.devices_file import load as load_fleet
from pipecycle.world.harvest import Always

if TYPE_CHECKING:
    from pipecycle.train.engine import Engine
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
"""Skewed labels and a budget: forty clients that charge in half of all slots and hold few classes each."""


GROUPS = 5
"""For policies that have groups and are not given a number of them."""


def comparison(
    base: Config,
    policies: Sequence[str | Spec | Policy] = POLICIES,
    trials: int = 3,
    groups: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Sweep:
    """Every policy on every trial.  Policies are names, specs such as `pipecycle(groups=2){train.lr=0.02}` or objects.

    `groups` and `settings` are for all policies that have such a setting and do not say it themselves; one that no
    policy takes is refused."""
    specs = [Spec.of(policy) for policy in ([policies] if isinstance(policies, str) else policies)]
    if not specs:
        raise InputError("policies = []: needs at least one scheduler")
    shared = dict(settings or {})
    if groups is not None:
        if "groups" in shared:
            raise InputError(f"--groups {groups} and --set groups={shared['groups']}: give one of them, not both")
        shared["groups"] = groups
    if any("groups" in parameters(policy_class(spec.policy)) and "groups" not in spec.settings for spec in specs):
        shared.setdefault("groups", GROUPS)
    if base.settings and base.policy not in [spec.policy for spec in specs]:
        key = next(iter(base.settings))
        raise InputError(f"{key} = {shown(base.settings[key])} of {base.policy}: has no effect, it is not compared")
    sweep = expand(base, {"policy": specs, **{key: [value] for key, value in shared.items()}}, trials)
    check_effects(sweep.runs.values())
    if len(sweep) < len(specs) * trials:
        raise InputError(f"{', '.join(map(str, specs))}: two of them are the same")
    return sweep


def compare(
    policies: Sequence[str | Spec | Policy] = POLICIES,
    trials: int = 3,
    groups: int | None = None,
    *,
    harvest: str | float | None = None,
    fleet: str | None = None,
    clients: int | None = None,
    slots: int | None = None,
    budget: float | None = None,
    data: str | None = None,
    model: str | None = None,
    alpha: float | Literal["iid"] | None = None,
    base: Config = DEMO,
    device: str = "auto",
) -> Comparison:
    """The same as `pipecycle compare`, in this process and without files: everything stacked on one device.

    Policies are names, specs or objects: `compare(["pipecycle(groups=2)", "fedavg{train.lr=0.02}", MIFA(epoch=60)])`.
    What is not given is that of `base`, by default the demo's configuration; `base.changed({...})` reaches all fields.

    >>> from pipecycle import compare
    >>> result = compare(["fedavg", "pipecycle+(groups=2)"], trials=2, clients=8, slots=200, budget=800)
    >>> result.table().columns.tolist()
    ['mean', 'std', 'energy']
    >>> result.plot("accuracy_energy")
    """
    given = {
        "harvest": harvest,
        "world.fleet": fleet,
        "world.clients": clients,
        "slots": slots,
        "budget": budget,
        "data": data,
        "model": model,
        "alpha": alpha,
    }
    base = base.changed(counted({key: value for key, value in given.items() if value is not None}))
    return trained(comparison(base, policies, trials, groups).runs.values(), device)


def captions(clients: int, slots: Mapping[int, int]) -> dict[str, str]:
    """What the lines of `references` are, by name."""
    fewest, most = min(slots.values()), max(slots.values())
    span = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
    return {
        "centralised": f"SGD on all clients' samples, one step per slot, for as many slots as the trial's longest run "
        f"({span})",
        "isolated": f"each client trains alone for the same slots; mean over {clients:,} clients",
        "unlimited": "FedAvg with energy in every slot, for the same slots",
    }


def references(
    base: Config,
    slots: Mapping[int, int],
    home: Path | None = None,
    device: str = "auto",
    tell: Callable[[float, float], None] | None = None,
) -> dict[str, list[float]]:
    """Accuracy (percent, per trial) that a comparison lies between; `slots` says how long each trial takes.

    `centralised`: SGD on all clients' samples at once, with a step in every slot.  Model, batch, learning rate and
    sessions are the clients' (a session that has begun is finished), energy plays no part;
    `isolated`: clients alone with their own samples and energy, the mean over all of them;
    `unlimited`: FedAvg with energy in every slot.

    With `home` they are kept there, and read instead of computed the next time.  `tell` hears how many trials are done,
    of how many."""
    from pipecycle.train.engine import train_many

    asked = hashlib.sha256(f"{sealed(base).identity()} {sorted(slots.items())}".encode()).hexdigest()[:12]
    kept = None if home is None else home / f"lines-{asked}.json"
    if kept is not None:
        with suppress(OSError, ValueError):  # it is not there, or is damaged
            return files.unsealed(kept.read_bytes())
    accuracies: dict[str, list[float]] = {"centralised": [], "isolated": [], "unlimited": []}
    for done, (trial, length) in enumerate(slots.items()):

        def tick(engine: Engine, done: int = done) -> None:
            if tell is not None:
                tell(done + engine.steps_done / max(1, engine.steps_total), len(slots))

        jobs = lines(base.changed({"world.trial": trial, "world.slots": length, "world.budget": None}))
        train_many(list(jobs.values()), device=device, precision=base.train.precision, tick=tick)  # type: ignore[arg-type]
        for name, job in jobs.items():
            last = job.history.final
            accuracies[name].append(last.accuracy if last.clients_accuracy is None else last.clients_accuracy)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        files.write(kept, files.sealed(accuracies))
    return accuracies


def lines(config: Config) -> dict[str, Job]:
    """The runs behind `references`, for one trial; where clients keep their models, their mean is looked at."""
    from pipecycle.train.job import Job, Watch

    world = config.world
    isolated = Config("isolated", {}, world, config.data, config.train, config.look)
    learnt = problem_of(isolated)
    fleet = None if world.fleet is None else load_fleet(world.fleet)
    session = world.session if fleet is None else fleet.lengths(len(learnt.split), world.session)
    used = learnt.samples(session)
    unlimited = plan(
        FedAvg(),
        Always(),
        len(learnt.split),
        world.slots,
        session=session,
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
        "isolated": Job(plan_of(isolated), learnt, Watch(every=world.slots, clients_every=world.slots)),
        "unlimited": Job(unlimited, learnt, Watch(every=world.slots)),
    }
