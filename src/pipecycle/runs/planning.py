"""The schedule of a configuration.  What planning needs (the size of the model, samples per client) is data, so that a
run is planned before torch is imported, and `plan` and `run` give the same schedule."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve

from pipecycle.data import CATALOGUE, Split, Task, drawn, load, load_split
from pipecycle.data.augment import augmentation
from pipecycle.data.partition import per_client
from pipecycle.errors import InputError
from pipecycle.policies.registry import build, parameters, policy_class
from pipecycle.runs.config import Config
from pipecycle.runs.contents import digest
from pipecycle.schedule.plan import Planning
from pipecycle.schedule.schedule import Schedule
from pipecycle.stopping import die_with_parent
from pipecycle.train import presets
from pipecycle.world.devices import Devices
from pipecycle.world.devices_file import load as load_fleet
from pipecycle.world.specs import parse_harvest
from pipecycle.world.streams import Ints, streams


@cache
def _task(name: str, scale: str | None, contents: str | None) -> Task:
    return load(name, scale)


def task_of(config: Config) -> Task:
    """The data of a configuration, loaded once: runs that share their data can be stacked.  A file that was written
    since is loaded again."""
    return _task(*_which(config))


def _which(config: Config) -> tuple[str, str | None, str | None]:
    """The name of the data, their scale, and the digest of a file."""
    name = config.data.name
    own = name not in CATALOGUE and Path(name).is_file()
    return name, config.data.scale, digest(Path(name)) if own else None


def split_of(config: Config) -> Split | None:
    """The saved split that a configuration names, if it names one."""
    data, trial = config.data, config.world.trial
    if data.split is None:
        return None
    split = load_split(Path(data.split), task_of(config), trial=trial)
    return split if data.validation is None else split.hold_back(data.validation, task_of(config), trial)


def shares_of(config: Config) -> Split:
    """Who holds what, which samples test, and which are held back: saved, or drawn by the trial."""
    saved = split_of(config)
    if saved is not None:
        return saved
    world, data, sizes = config.world, config.data, _own_samples(config)
    with _at_its_line(config, sizes):
        samples = data.samples if sizes is None else int(sizes.max())
        split = drawn(task_of(config), world.clients, samples, data.alpha, world.trial, data.validation or 0)
    return split if sizes is None else split.trimmed(sizes, world.trial)


@contextmanager
def _at_its_line(config: Config, sizes: Ints | None) -> Iterator[None]:
    """Samples that a fleet asks for and the data do not have are told with the fleet's line."""
    try:
        yield
    except InputError as error:
        if config.world.fleet is None or sizes is None or not str(error).startswith("samples"):
            raise
        place = load_fleet(config.world.fleet).place("samples", config.world.clients, int(sizes.argmax()))
        raise InputError(f"{place}: {error}") from None


def _own_samples(config: Config) -> Ints | None:
    """Samples of every client, where a fleet says so."""
    world = config.world
    return None if world.fleet is None else load_fleet(world.fleet).samples(world.clients)


def check_learning(config: Config) -> None:
    """Refuse data, shares, views and a model that do not fit each other, before anything is planned.  A set that is
    known by name is not read for that."""
    data, entry, sizes = config.data, CATALOGUE.get(config.data.name), _own_samples(config)
    if data.split is not None:
        shares_of(config)
    else:
        name, total = (data.name, entry.samples) if entry else (task_of(config).name, len(task_of(config).y_train))
        samples = data.samples if sizes is None else int(sizes.max())
        with _at_its_line(config, sizes):
            per_client(name, total, config.world.clients, samples, data.validation or 0)
    views = augmentation(config.train.augment)
    if views is not None:
        views.check(entry.shape if entry else task_of(config).shape)
    model_of(config)


@cache
def _judged(name: str, scale: str | None, contents: str | None) -> Task:
    task = _task(name, scale, contents)
    return evolve(task, x_test=task.x_train, y_test=task.y_train)


def judged_of(config: Config) -> tuple[Task, Split]:
    """The data and who holds what.  Where models are judged by validation samples, those stand for the test samples,
    and the training samples, which they are among, for the pool of these."""
    split = shares_of(config)
    if config.look.on != "validation":
        return task_of(config), split
    return _judged(*_which(config)), evolve(split, test=split.validation)


def used_of(config: Config, split: Split | None, fleet: Devices | None) -> Ints | None:
    """Samples that sessions use, by client, in proportion: a factor that all have in common decides nothing."""
    world, batch = config.world, config.train.batch
    if fleet is None:
        return None if split is None else split.used(world.session, batch)
    clients = fleet.clients(world.clients if split is None else len(split))
    lengths = np.broadcast_to(fleet.lengths(clients, world.session), (clients,))
    if split is not None:
        return split.used(lengths, batch)
    held = fleet.samples(clients)
    return lengths * np.minimum(batch, (config.data.samples or batch) if held is None else held)


def planning(config: Config) -> Planning:
    """The planning of a configuration, to be watched step by step.  Data is read only if the policy needs the model's
    size and the name of the set does not tell it, or if a file says who holds what."""
    world, split = config.world, split_of(config)
    fleet = None if world.fleet is None else load_fleet(world.fleet)
    settings = with_upload_ratio(config, *model_of(config)) if priced_by_model(config) else config.settings
    used = used_of(config, split, fleet)
    return Planning(
        build(config.policy, settings),
        parse_harvest(world.harvest),
        world.clients if split is None else len(split),
        world.slots,
        session=world.session,
        budget=world.budget,
        trial=world.trial,
        capacity=world.capacity,
        initial=world.initial,
        samples=None if used is None or (used == used[0]).all() else used,  # updates that count alike need no samples
        fleet=fleet,
    )


def plan_of(config: Config) -> Schedule:
    """The schedule of a configuration."""
    plan = planning(config)
    for _ in plan.steps():
        pass
    return plan.schedule()


def mean_rate(config: Config) -> float:
    """Units that a client harvests per slot; harvests that do not say so count as one."""
    return float(np.mean(getattr(parse_harvest(config.world.harvest), "rate", 1.0)))


def expected_units(config: Config) -> float:
    """About how much energy a run spends: what its clients harvest, or its budget if that is less."""
    world = config.world
    income = world.clients * world.slots * mean_rate(config)
    return min(income, world.budget or income)


def priced_by_model(config: Config) -> bool:
    """Whether the model decides what the policy pays: it sends logit tables, and no ratio is given."""
    return "upload_ratio" in parameters(policy_class(config.policy)) and config.settings.get("upload_ratio") is None


def with_upload_ratio(config: Config, classes: int, size: int) -> dict[str, Any]:
    """The policy's settings, where it sends logit tables with their price: a table has a row and a column per class, a
    model of `size` parameters costs 1."""
    if not priced_by_model(config):
        return dict(config.settings)
    return {**config.settings, "upload_ratio": min(1.0, max(1, classes) ** 2 / size)}


def model_of(config: Config) -> tuple[int, int]:
    """Classes of the data and parameters of the model; torch is imported for a user's own model only."""
    name, entry = config.train.model, CATALOGUE.get(config.data.name)
    about: Any = task_of(config) if entry is None else entry
    if name in presets.PRESETS:
        return about.classes, presets.size(name, about.shape, about.classes)
    from pipecycle.train import models

    module = models.build(name, about.shape, about.classes, streams(config.world.trial)("model").words(2))
    return about.classes, models.size(module)


@contextmanager
def planned_ahead(configs: Sequence[Config], processes: int) -> Iterator[list[Callable[[], Schedule]]]:
    """`plan_of` for each of many configurations, done on several cores at once."""
    processes = min(processes, len(configs) // 4)
    if processes < 2:
        yield [partial(plan_of, config) for config in configs]
        return

    def ready(config: Config, schedule: Future[Schedule]) -> Schedule:
        try:
            return schedule.result()
        except BrokenExecutor:  # one plan has killed the processes that make them all
            return plan_of(config)

    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=_planner) as pool:
        yield [partial(ready, config, pool.submit(plan_of, config)) for config in configs]


def _planner() -> None:
    """A planner leaves Ctrl-C to the process that asked for the plans, and ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
