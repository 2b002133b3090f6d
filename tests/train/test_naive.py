"""The trainer against a naive one that follows every policy's written rule by itself, in float64."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from attrs import frozen
from torch import Tensor, nn

from pipecycle import Schedule, build, plan
from pipecycle.data import Split, Task
from pipecycle.train import problems
from pipecycle.train.engine import train_many
from pipecycle.train.job import Job, Watch
from pipecycle.train.problems import Problem, problem
from pipecycle.train.sessions import LocalSGD

from .naive import RULES, Training, vector
from .naive_rivals import RIVALS

RULES |= RIVALS
CLIENTS, CLASSES, TRIAL = 10, 4, 2
LENGTHS = (3, 5, 4, 3, 5, 2, 4, 3, 1, 5)
UNLIKE = (12, 1, 12, 1, 1, 12, 1, 1, 12, 1)
TOLERANCE = 1e-9
WATCH = Watch(every=20, clients_every=60)
PLAIN = problems.Training(LocalSGD(0.3), batch=6)
FULL = problems.Training(
    LocalSGD(0.1, momentum=0.7, weight_decay=0.02, proximal=0.2),
    batch=5,
    replacement=True,
    lr_decay=0.1,
    distillation=0.7,
)


@frozen
class Case:
    """A policy in a world of its own, and the rarer paths of its rule that this is to lead through."""

    policy: str
    options: dict[str, Any]
    delta: float = 0.6
    slots: int = 160
    session: int | tuple[int, ...] = 4
    weighted: bool = False
    """Whether clients count by their samples."""
    reaches: tuple[str, ...] = ()

    def plan(self, slots: int | None = None, trial: int = TRIAL) -> Schedule:
        return plan(
            build(self.policy, self.options),
            self.delta,
            CLIENTS,
            slots or self.slots,
            session=self.session,
            samples=data()[1].sizes if self.weighted else np.ones(CLIENTS, np.int64),
            trial=trial,
        )


CASES = {
    "pipecycle-1": Case("pipecycle", {"groups": 1}),
    "pipecycle-2": Case("pipecycle", {"groups": 2}, weighted=True),
    "pipecycle-3": Case("pipecycle", {"groups": 3, "group_size": 2}, session=5, weighted=True, reaches=("waiting",)),
    "pipecycle-lengths": Case(
        "pipecycle", {"groups": 3, "group_size": 3}, session=LENGTHS, weighted=True, reaches=("waiting", "flush")
    ),
    "pipecycle-scarce": Case("pipecycle", {"groups": 2}, delta=0.05, slots=300, reaches=("waiting", "flush")),
    "pipecycle-threshold": Case(
        "pipecycle", {"groups": 3, "queue_threshold": 1}, delta=0.12, slots=300, reaches=("discard", "flush")
    ),
    "pipecycle-mix": Case("pipecycle", {"groups": 3, "relay_mix": 0.3}, weighted=True),
    "pipecycle-mix-scarce": Case("pipecycle", {"groups": 2, "relay_mix": 0.3}, delta=0.1, reaches=("flush",)),
    "pipecycle+": Case("pipecycle+", {"groups": 3}),
    "pipecycle+-scarce": Case(
        "pipecycle+", {"groups": 2}, delta=0.2, slots=300, weighted=True, reaches=("weighted", "flush")
    ),
    "pipecycle+-lengths": Case(
        "pipecycle+", {"groups": 4, "group_size": 1}, session=UNLIKE, reaches=("waiting", "older than G - 1")
    ),
    "pipecycle+-threshold": Case(
        "pipecycle+",
        {"groups": 3, "queue_threshold": 1},
        delta=0.12,
        slots=300,
        reaches=("discard", "flush"),
    ),
    "fedavg": Case("fedavg", {"epoch": 9}, weighted=True, reaches=("stale", "twice in an epoch")),
    "fedavg-lengths": Case("fedavg", {}, delta=1.0, session=LENGTHS, reaches=("twice in an epoch",)),
    "cycp": Case("cycp", {"groups": 3, "epoch": 12}, weighted=True, reaches=("stale",)),
    "cycp-cap": Case("cycp", {"groups": 4, "group_cap": 1}, session=LENGTHS, reaches=("stale",)),
    "cycp-step": Case(
        "cycp",
        {"groups": 3, "epoch": 12, "step": "lag-stable"},
        weighted=True,
        reaches=("weighted", "older than G - 1"),
    ),
    "mifa": Case("mifa", {"epoch": 8}, weighted=True, reaches=("absent remembered",)),
    "mifa-scarce": Case("mifa", {"epoch": 8}, delta=0.1, slots=300, reaches=("absent remembered", "late report")),
    "mifa-no-memory": Case(
        "mifa", {"epoch": 8, "use_memory": False}, delta=0.15, session=LENGTHS, weighted=True, reaches=("late report",)
    ),
    "flda": Case("flda", {"epoch": 8}, weighted=True, reaches=("own share taken out", "nobody else's row")),
    "flda-scarce": Case(
        "flda",
        {"epoch": 7, "upload_ratio": 0.5},
        delta=0.15,
        slots=300,
        session=LENGTHS,
        reaches=("row kept", "late report"),
    ),
    "flda-global": Case(
        "flda", {"epoch": 8, "phase": "global"}, weighted=True, reaches=("own share taken out", "kept model continued")
    ),
    "flda-global-scarce": Case(
        "flda",
        {"epoch": 8, "phase": "global"},
        delta=0.15,
        slots=300,
        reaches=("kept model continued", "kept model dropped", "late report", "row kept"),
    ),
    "fedseq": Case("fedseq", {"groups": 2}, weighted=True),
    "fedseq-lengths": Case("fedseq", {"groups": 2}, session=LENGTHS, weighted=True),
    "fedseq-step": Case("fedseq", {"groups": 2, "step": "lag-stable"}, delta=0.2, slots=300, reaches=("weighted",)),
    "fedseq-part": Case("fedseq", {"groups": 3, "step": 0.4}),
    "fedseq-chain": Case("fedseq", {"groups": 3, "mode": "chain"}, weighted=True),
    "fedseq-chain-scarce": Case(
        "fedseq",
        {"groups": 4, "mode": "chain", "patience": 3},
        delta=0.2,
        slots=300,
        session=LENGTHS,
        reaches=("member skipped", "cluster in vain"),
    ),
    "fedbacys": Case("fedbacys", {"groups": 3, "epoch": 9}, weighted=True),
    "fedbacys-scarce": Case(
        "fedbacys",
        {"groups": 4, "epoch": 13},
        delta=0.15,
        slots=300,
        session=LENGTHS,
        reaches=("group without members",),
    ),
    "fedbacys-step": Case(
        "fedbacys", {"groups": 3, "epoch": 9, "step": "lag-stable"}, delta=0.3, reaches=("weighted", "older than G - 1")
    ),
    "fedbacys-next": Case(
        "fedbacys",
        {"groups": 3, "epoch": 9, "reference_refresh": "next_group"},
        delta=0.3,
        reaches=("others refreshed",),
    ),
    "fedbacys-broadcast": Case(
        "fedbacys",
        {"groups": 3, "epoch": 9, "reference_refresh": "broadcast"},
        session=LENGTHS,
        reaches=("others refreshed",),
    ),
    "fedbacys-odd": Case("fedbacys-odd", {"groups": 2, "epoch": 10}, weighted=True, reaches=("group without members",)),
    "fedasync": Case("fedasync", {}, session=LENGTHS, reaches=("stale", "several in a slot")),
    "fedasync-all": Case("fedasync", {"concurrency": 10, "mixing": 0.9}, delta=0.3, weighted=True, reaches=("stale",)),
    "fedbuff": Case("fedbuff", {"buffer": 2, "concurrency": 6}, weighted=True, session=LENGTHS, reaches=("stale",)),
    "fedau": Case("fedau", {"epoch": 8}, weighted=True),
    "fedau-scarce": Case(
        "fedau", {"epoch": 8, "cutoff": 4}, delta=0.1, slots=300, reaches=("late report", "cut off", "empty round")
    ),
    "fedvarp": Case("fedvarp", {"epoch": 8}, weighted=True, reaches=("absent remembered",)),
    "fedvarp-half": Case(
        "fedvarp", {"epoch": 8, "beta": 0.5}, delta=0.1, slots=300, reaches=("absent remembered", "late report")
    ),
    "f3ast": Case("f3ast", {"epoch": 8, "picked": 3, "beta": 0.2}, weighted=True),
    "f3ast-scarce": Case("f3ast", {"epoch": 8, "beta": 0.2}, delta=0.1, slots=300, session=LENGTHS, weighted=True),
}


class Residual(nn.Module):
    """A user's module that is no chain of layers, with a buffer and a parameter that is a single number."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(inputs, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)
        self.norm = nn.GroupNorm(2, 8)
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("shift", torch.linspace(-1, 1, 8))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x.flatten(1)))
        return self.last(self.gain * h + self.norm(self.inner(h + self.shift)))


@cache
def data(shape: tuple[int, ...] = (6,)) -> tuple[Task, Split]:
    """Classes around centres.  Clients hold 3 to 35 samples, the first ones of few classes: some have less than a
    batch, and not everybody has something to say about every label."""
    random = np.random.default_rng(5)
    centres = random.normal(size=(CLASSES, prod(shape)))
    y, y_test = np.sort(random.integers(CLASSES, size=180)), random.integers(CLASSES, size=70)
    y[90:] = random.permutation(y[90:])
    x, x_test = ((centres[labels] + random.normal(size=(len(labels), prod(shape)))) for labels in (y, y_test))
    task = Task(x.reshape(-1, *shape), y, x_test.reshape(-1, *shape), y_test, CLASSES)
    parts = np.split(np.arange(180), np.cumsum([3, 21, 4, 16, 7, 19, 12, 30, 33]))
    return task, Split.of(parts, np.arange(5, 70))


def learnt(model: str = "mlp", training: problems.Training = PLAIN, trial: int = TRIAL) -> Problem:
    task, split = data((1, 8, 8) if model == "lenet" else (6,))
    module: str | nn.Module = model
    if model == "residual":
        torch.manual_seed(3)
        module = Residual(6)
    return problem(task, module, split=split, trial=trial, training=training)


@cache
def expected(name: str) -> tuple[Schedule, Training]:
    schedule = CASES[name].plan()
    return schedule, Training(schedule, learnt())


def trained(schedule: Schedule, given: Problem, trainer: str, watch: Watch = WATCH) -> Job:
    job = Job(schedule, given, watch)
    train_many([job], device="cpu", trainer=trainer, dtype=torch.float64)  # type: ignore[arg-type]
    return job


def near(value: float | list[float]) -> Any:
    return pytest.approx(value, rel=0.0, abs=TOLERANCE)


def distance(one: Tensor, other: Tensor) -> float:
    assert one.dtype == other.dtype == torch.float64
    return float((one - other).abs().max())


def compare(job: Job, naive: Training) -> None:
    """Every checkpoint and the final model."""
    rows, watch, slots = job.history.rows, job.watch, job.schedule.slots
    ends = sorted({*range(watch.every, slots + 1, watch.every), slots})
    assert [row.slot for row in rows if not row.budget] == ends
    best = 0.0
    for row in rows:
        accuracy, loss, by_class = naive.score(naive.server[row.slot - 1])
        best = max(best, accuracy)
        assert (row.accuracy, row.loss, row.best) == (near(accuracy), near(loss), near(best))
        assert list(row.by_class) == near(by_class)
        assert row.energy == pytest.approx(naive.energy[row.slot - 1], abs=1e-3)  # a logit table costs whole quanta
        if watch.clients_every and (row.slot % watch.clients_every == 0 or row.slot == slots):
            own = [naive.score(model)[0] for model in naive.own[row.slot - 1]]
            assert row.clients_accuracy == near(sum(own) / len(own))
        else:
            assert row.clients_accuracy is None
    assert job.model is not None
    assert distance(job.model, vector(naive.server[-1])) < TOLERANCE


@pytest.mark.parametrize("trainer", ["loop", "stacked"])
@pytest.mark.parametrize("name", list(CASES))
def test_every_policy(name: str, trainer: str) -> None:
    schedule, naive = expected(name)
    assert len(naive.published) > 3
    assert distance(vector(naive.server[-1]), vector(naive.server[0])) > 0.1
    assert not [path for path in CASES[name].reaches if not naive.seen[path]]
    compare(trained(schedule, learnt(), trainer), naive)


@pytest.mark.parametrize("name", list(CASES))
def test_the_record_of_every_policy(name: str) -> None:
    """The recipes, fed with the naive run's updates, give its references and what its server held at any time."""
    schedule, naive = expected(name)
    sessions, tables = schedule.sessions, schedule.tables
    values = [vector(naive.server[0])]  # no policy publishes anything in slot 0
    for version in range(1, len(schedule.versions)):
        recipe = schedule.ancestry.recipe(version)
        value = torch.zeros_like(values[0])
        for base, coefficient in zip(recipe.versions, recipe.coefficients, strict=True):
            value = value + coefficient * values[base]
        for session, weight in zip(recipe.sessions, recipe.weights, strict=True):
            value = value + weight * naive.updates[session]
        values.append(value)
    for session, reference in enumerate(sessions.reference):
        assert distance(values[reference], naive.references[session]) < TOLERANCE

    assert schedule.publications.slot.tolist() == naive.published
    served = dict(zip(naive.published, schedule.publications.version.tolist(), strict=True))
    version = 0
    for slot, model in enumerate(naive.server):
        version = served.get(slot, version)
        assert distance(values[version], vector(model)) < TOLERANCE

    assert int(schedule.versions.discarded.sum()) == naive.seen["discard"]
    assert set(np.flatnonzero(sessions.payload).tolist()) == naive.distilled
    assert tables.slot.tolist() == [slot for slot, _ in naive.tables]
    assert tables.keep.tolist() == list(range(-1, len(naive.tables) - 1))
    for table, (_, contributors) in enumerate(naive.tables):
        assert tables.session[tables.session_at[table] : tables.session_at[table + 1]].tolist() == contributors
    assert sessions.teacher.tolist() == [naive.taught_by.get(session, 0) - 1 for session in range(len(sessions))]


@pytest.mark.slow
def test_all_policies_stacked_together() -> None:
    """Narrow stacks in which sessions of all cases and of another trial are side by side."""
    schedules = [case.plan(80) for case in CASES.values()]
    jobs = [Job(schedule, learnt(), WATCH) for schedule in schedules]
    other = Case("flda", {"epoch": 8}).plan(slots=80, trial=5)
    stranger = Job(other, learnt(trial=5), WATCH)
    train_many([*jobs, stranger], device="cpu", trainer="stacked", dtype=torch.float64, width=24)
    for job, schedule in zip(jobs, schedules, strict=True):
        compare(job, Training(schedule, learnt()))
    compare(stranger, Training(other, learnt(trial=5)))


@pytest.mark.parametrize("name", ["pipecycle-3", "mifa", "flda-global", "fedseq-chain", "fedvarp"])
@pytest.mark.parametrize(
    ("model", "training"), [("lenet", PLAIN), ("residual", PLAIN), ("residual", FULL), ("mlp", FULL)]
)
def test_other_models_and_recipes(model: str, training: problems.Training, name: str) -> None:
    schedule, given = CASES[name].plan(40), learnt(model, training)
    naive = Training(schedule, given)
    assert naive.published
    for trainer in ("loop", "stacked"):
        compare(trained(schedule, given, trainer, Watch(every=9, clients_every=18)), naive)


@pytest.mark.parametrize("name", ["pipecycle-scarce", "flda", "fedbacys"])
def test_the_checkpoint_at_the_budget(name: str) -> None:
    schedule, naive = expected(name)
    budget = naive.energy[-1] / 2 + 0.25
    job = trained(schedule, learnt(), "auto", Watch(every=70, budget=budget))
    compare(job, naive)
    within = [slot for slot, units in enumerate(naive.energy, 1) if units <= budget]
    assert [row.slot for row in job.history.rows if row.budget] == within[-1:]
