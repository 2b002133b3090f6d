"""The trainer on real data: it learns, agrees with itself, forgets what it may, and stops where it should."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from attrs import evolve

from pipecycle import InputError, Schedule, build, plan
from pipecycle.data import Split, Task
from pipecycle.policies import REGISTRY, PipeCycle
from pipecycle.train import train
from pipecycle.train.analysis import evaluate, version_recipe
from pipecycle.train.engine import Engine, alike, pick_device, train_many
from pipecycle.train.history import checkpoints, current_sessions
from pipecycle.train.job import Job, Watch
from pipecycle.train.loop import Loop
from pipecycle.train.problems import Problem, Training, problem, session_numbers
from pipecycle.train.sessions import LocalSGD


@pytest.fixture(scope="module")
def digits() -> Problem:
    return problem("digits", "mlp", clients=20)


def test_isolated_clients_train_on_what_they_trained_before(digits: Problem) -> None:
    schedule = plan(build("isolated"), 0.5, clients=20, slots=600)
    history = train(schedule, digits, Watch(every=300, clients_every=300), device="cpu")
    assert len({row.accuracy for row in history.rows}) == 1  # the server serves what it began with
    alone = [row.clients_accuracy for row in history.rows]
    assert alone[0] is not None
    assert alone[1] is not None
    assert 40.0 < alone[0] < alone[1]
    # One client's model is its sessions one after the other, each from the last.
    mine = np.flatnonzero(schedule.sessions.client == 7)
    assert len(mine) > 10
    weights, done = digits.initial[None], Loop(digits.module, *_samples(digits), digits.task.classes)
    for number, _ in enumerate(mine[:3].tolist()):
        batches = torch.from_numpy(digits.batches(20)(np.array([7]), np.array([number])))
        weights = done.run(weights, batches).parameters
    recipe = version_recipe(int(schedule.sessions.reference[mine[3]]))
    kept = evaluate(schedule, digits, [recipe], device="cpu", trainer="loop")
    torch.testing.assert_close(kept, weights, rtol=0, atol=1e-5)


def _samples(learnt: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(learnt.task.x_train), torch.from_numpy(learnt.task.y_train)


@pytest.mark.parametrize("name", [name for name in REGISTRY if name != "isolated"])
def test_every_policy_learns_digits(name: str, digits: Problem) -> None:
    history = train(plan(build(name), 0.5, clients=20, slots=1500), digits, device="cpu")
    assert history.ended == "finished"
    assert history.final.accuracy > (50.0 if name == "fedbacys-odd" else 80.0)  # five times chance and more
    frame = history.frame()
    assert frame["slot"].tolist() == list(range(150, 1501, 150))
    assert frame["best"].is_monotonic_increasing
    assert (frame["energy"].diff().dropna() > 0).all()


def test_jobs_do_not_disturb_each_other(digits: Problem) -> None:
    """Alone, or stacked with others of another policy, trial and distribution: the same bytes."""
    other = problem(digits.task, "mlp", clients=20, alpha=0.2, trial=3)
    cases = [("pipecycle", digits, 0), ("fedavg", other, 3), ("flda", digits, 0), ("mifa", other, 3)]

    def jobs() -> list[Job]:
        return [Job(plan(build(name), 0.4, clients=20, slots=400, trial=trial), on) for name, on, trial in cases]

    together = train_many(jobs(), device="cpu")
    alone = [train_many([job], device="cpu", width=7)[0] for job in jobs()]
    assert [history.csv() for history in together] == [history.csv() for history in alone]
    assert len({history.csv() for history in together}) == 4


class Scaled(torch.nn.Module):
    """A user's module whose function depends on more than its parameters."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 10)
        torch.nn.init.constant_(self.linear.weight, 0.01)
        torch.nn.init.zeros_(self.linear.bias)
        self.register_buffer("factor", torch.tensor(factor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x.flatten(1)) * self.factor
        return out


def test_modules_that_differ_in_a_buffer_are_not_stacked(digits: Problem) -> None:
    schedule = plan(build("fedavg"), 0.5, clients=20, slots=200)

    def jobs() -> list[Job]:
        return [Job(schedule, problem(digits.task, Scaled(factor), clients=20)) for factor in (1.0, 3.0)]

    together = train_many(jobs(), device="cpu")
    alone = [train_many([job], device="cpu")[0] for job in jobs()]
    assert [history.csv() for history in together] == [history.csv() for history in alone]


def test_the_callers_module_is_left_alone(digits: Problem) -> None:
    module = Scaled(1.0).double()
    before = module.linear.weight.detach().clone()
    train(plan(build("fedavg"), 0.5, clients=20, slots=100), problem(digits.task, module, clients=20), device="cpu")
    assert module.linear.weight.dtype == torch.float64
    assert torch.equal(module.linear.weight, before)


def test_trials_of_one_model_are_stacked(digits: Problem) -> None:
    schedule = plan(build("fedavg"), 0.5, clients=20, slots=100)
    for model in ("mlp", "lenet"):
        jobs = [Job(schedule, problem(digits.task, model, clients=20, trial=trial)) for trial in range(3)]
        assert [len(group) for group in alike(jobs)] == [3]


def test_memory_grows_with_live_versions_only(digits: Problem) -> None:
    most: dict[int, int] = {}
    for slots in (500, 2000):
        job = Job(plan(PipeCycle(groups=4), 0.5, clients=20, slots=slots, session=5), digits)
        peak = 0

        def look(engine: Engine, job: Job = job) -> None:
            nonlocal peak
            peak = max(peak, len(job.versions) + len(job.updates) + len(job.snapshots))

        train_many([job], device="cpu", tick=look)
        assert len(job.versions) + len(job.updates) + len(job.snapshots) <= 4 + 4  # what is in flight at the end
        most[slots] = peak
    assert most[2000] <= most[500] + 2
    assert most[2000] < 20


def test_the_budget_checkpoint_is_the_last_slot_within(digits: Problem) -> None:
    schedule = plan(build("fedavg"), 0.5, clients=20, slots=600)
    points = checkpoints(schedule, 150, budget=2000.0)
    (extra,) = [point for point in points if point.budget]
    spent = schedule.energy.spent / 2**20
    assert spent[extra.slot - 1] <= 2000 < spent[extra.slot]
    history = train(schedule, digits, Watch(budget=2000.0), device="cpu")
    assert history.at_budget.slot == extra.slot
    never = train(schedule, digits, Watch(budget=1e9), device="cpu")
    assert never.at_budget == never.final


def test_the_mean_over_clients_counts_finished_sessions_only(digits: Problem) -> None:
    schedule = plan(PipeCycle(groups=1), 1.0, clients=20, slots=60)
    # Groups of 8 form at slots 20 and 40: after 40 slots the first has ended, after 39 it has not.
    assert (current_sessions(schedule, 39) < 0).all()
    assert (current_sessions(schedule, 40) >= 0).sum() == 8
    history = train(schedule, digits, Watch(every=20, clients_every=20), device="cpu")
    start = history.rows[0]
    assert start.clients_accuracy == pytest.approx(start.accuracy)  # nobody has finished: everybody holds x_0
    assert history.rows[1].clients_accuracy is not None
    assert history.rows[1].clients_accuracy > start.accuracy
    assert history.rows[1].version == 0  # the first model is still on its way


def test_recipes_on_real_weights(digits: Problem) -> None:
    schedule = plan(PipeCycle(groups=3), 1.0, clients=20, slots=300, session=6)
    ancestry = schedule.ancestry
    last = ancestry.events
    recipes = [ancestry.virtual(last), ancestry.perturbation(last), version_recipe(int(ancestry.event_versions[last]))]
    z, e, x = evaluate(schedule, digits, recipes, device="cpu", dtype=torch.float64)
    assert torch.allclose(e, z - x, atol=1e-12)
    assert float(e.norm()) > 0.1 * float((x - digits.initial.double()).norm())
    # e_tau is what the other chains did: z has all groups' updates, x only its own line's.
    line, walk = [], last
    while walk:
        line.append(walk)
        walk = int(ancestry.parents[walk])
    own = evaluate(schedule, digits, [version_recipe(int(ancestry.event_versions[event])) for event in line],
                   device="cpu", dtype=torch.float64)  # fmt: skip
    assert torch.equal(own[0], x)


def test_recipes_may_need_what_no_checkpoint_does(digits: Problem) -> None:
    """The last group's model is still at its hub when the run ends; its sessions are trained all the same."""
    schedule = plan(PipeCycle(groups=4), 1.0, clients=20, slots=300)
    ancestry = schedule.ancestry
    assert ancestry.event_versions[-1] > schedule.publications.version[-1]
    recipes = [ancestry.virtual(ancestry.events), version_recipe(int(ancestry.event_versions[-1]))]
    narrow = evaluate(schedule, digits, recipes, device="cpu", width=1)
    assert torch.equal(narrow, evaluate(schedule, digits, recipes, device="cpu"))
    assert narrow[1].any()


def test_divergence_is_recorded(digits: Problem) -> None:
    wild = Problem(digits.task, digits.split, digits.module, 0, Training(LocalSGD(lr=1e6)))
    schedule = plan(build("fedavg"), 0.5, clients=20, slots=600)
    job = Job(schedule, wild)
    (history,) = train_many([job], device="cpu")
    assert history.ended == "diverged"
    assert history.final.diverged
    test_labels = digits.task.y_test[digits.split.test]
    assert history.final.accuracy == pytest.approx(100 * (test_labels == 0).mean())
    assert history.final.slot < 600
    assert job.model is not None


def test_the_horizon_of_early_stopping_is_not_the_budget(digits: Problem) -> None:
    schedule = plan(PipeCycle(), 1.0, clients=20, slots=3000, session=6, budget=500.0)
    assert schedule.slots < 300
    assert Job(schedule, digits).history.horizon == 3000


def test_early_stopping_literal_and_late(digits: Problem) -> None:
    """A learning rate too small to learn: as printed the rule fires on the chance plateau, armed late it waits."""
    still = Problem(digits.task, digits.split, digits.module, 0, Training(LocalSGD(lr=1e-12)))
    schedule = plan(build("fedavg"), 0.5, clients=20, slots=3000)
    stops = {}
    for rule in ("off", "literal", "late"):
        history = train(schedule, still, Watch(every=20, early_stop=rule), device="cpu")  # type: ignore[arg-type]
        stops[rule] = (history.ended, history.final.slot)
    assert stops == {"off": ("finished", 3000), "literal": ("early", 200), "late": ("early", 600)}


def test_options_of_the_optimiser_change_the_outcome(digits: Problem) -> None:
    schedule = plan(build("fedavg"), 0.5, clients=20, slots=300)
    seen = set()
    for training in (
        Training(),
        Training(LocalSGD(momentum=0.9)),
        Training(LocalSGD(weight_decay=0.1)),
        Training(LocalSGD(proximal=1.0)),
        Training(lr_decay=0.5),
        Training(replacement=True),
        Training(batch=5),
    ):
        changed = Problem(digits.task, digits.split, digits.module, 0, training)
        seen.add(train(schedule, changed, device="cpu").csv())
    assert len(seen) == 7


def test_session_numbers_count_per_client() -> None:
    schedule = plan(build("fedavg"), 0.6, clients=5, slots=200, session=4)
    numbers = session_numbers(schedule)
    for client in range(5):
        mine = numbers[schedule.sessions.client == client]
        assert mine.tolist() == list(range(len(mine)))


def test_the_same_trial_gives_the_same_problem() -> None:
    one, two, other = (problem("digits", "lenet", clients=10, alpha=0.1, trial=trial) for trial in (4, 4, 5))
    assert torch.equal(one.initial, two.initial)
    assert one.split.digest() == two.split.digest()
    assert not torch.equal(one.initial, other.initial)


@pytest.mark.parametrize("device", ["tpu", "cuda:99", "gpu", "mps"])
def test_devices_that_are_not_there_are_refused(device: str) -> None:
    with pytest.raises(InputError, match=f"device = {device}"):
        pick_device(device)


def test_a_schedule_and_a_split_of_different_sizes_are_refused(digits: Problem) -> None:
    with pytest.raises(InputError, match="the schedule has 7 clients and the split 20"):
        Job(plan(build("fedavg"), 0.5, clients=7, slots=50), digits)


def test_arrays_of_ones_own() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 6)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64) + 2 * (x[:, 1] > 0)
    learnt = problem(Task(x[:300], y[:300], x[300:], y[300:]), "mlp", clients=10)
    history = train(plan(build("fedavg"), 0.5, clients=10, slots=2000), learnt, device="cpu")
    assert history.final.accuracy > 85


class _Kinds(Loop):
    """Notes what each call of the executor is given."""

    calls: ClassVar[list[tuple[int, bool, bool]]] = []

    def run(self, reference: torch.Tensor, batches: torch.Tensor, **options: Any) -> Any:
        self.calls.append((len(reference), options["teachers"] is not None, bool(options["collect"])))
        return super().run(reference, batches, **options)


def test_a_teacher_beside_it_does_not_change_how_a_session_is_computed(
    digits: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    _Kinds.calls.clear()
    monkeypatch.setattr("pipecycle.train.stacked.Loop", _Kinds)
    plans = {name: plan(build(name), 1.0, clients=20, slots=200) for name in ("flda", "pipecycle")}
    jobs = {name: Job(schedule, digits, Watch(every=100)) for name, schedule in plans.items()}
    train_many(list(jobs.values()), device="cpu", trainer="loop")
    needed = {name: job.graph.session_needed for name, job in jobs.items()}
    taught = needed["flda"] & (jobs["flda"].graph.teacher >= 0)
    collected = needed["flda"] & (jobs["flda"].graph.table >= 0)
    calls = np.array(_Kinds.calls)
    assert calls[:, 0].sum() == needed["flda"].sum() + needed["pipecycle"].sum()
    assert calls[calls[:, 1] == 1, 0].sum() == taught.sum() > 0
    assert calls[calls[:, 2] == 1, 0].sum() == collected.sum() > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_a_long_runs_bits_do_not_depend_on_the_company(precision: Any) -> None:
    """Thousands of sessions: a single bit that others could change would grow until the losses differ."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 3, 32, 32)).astype(np.float32)
    task = Task(x[:3000], rng.integers(0, 10, 3000), x[3000:], rng.integers(0, 10, 1000), name="noise")
    learnt = problem(task, "cnn64", samples=30)
    watched = plan(build("pipecycle", {"groups": 5}), 0.5, slots=1800)

    def losses(*company: str, width: int | None = None) -> list[float]:
        others = [plan(build(name), 0.5, slots=1800) for name in company]
        jobs = [Job(schedule, learnt, Watch(every=300)) for schedule in (watched, *others)]
        return [row.loss for row in train_many(jobs, device="cuda", precision=precision, width=width)[0].rows]

    alone = losses()
    assert losses() == alone, "the same run twice"
    assert losses(width=100) == alone, "in stacks of another width"
    assert losses("fedavg", "cycp") == alone, "beside others"
    assert losses("flda") == alone, "beside sessions that have teachers"


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_bits_do_not_depend_on_the_device(model: str, digits: Problem) -> None:
    learnt = problem(digits.task, model, clients=20)

    def outcome(device: str) -> str:
        job = Job(plan(build("pipecycle"), 0.4, clients=20, slots=400), learnt)
        return train_many([job], device=device, precision="bf16")[0].csv()

    assert outcome("cuda:1") == outcome("cuda:0")


def test_updates_of_unequal_sessions_need_samples(digits: Problem, tmp_path: Path) -> None:
    """A plan that does not know them would let a client with 5 samples count as much as one with 60."""
    sizes = (5, 60, 30)
    parts = np.split(np.arange(95), np.cumsum(sizes)[:-1])
    unequal = evolve(digits, split=Split.of(parts, digits.split.test))
    bare = plan(build("fedavg"), 1.0, clients=3, slots=70)
    bare.save(tmp_path / "bare.npz")
    for schedule in (bare, Schedule.load(tmp_path / "bare.npz")):
        with pytest.raises(
            InputError, match=r"planned without samples.* use 100 to 300: .*problem\.samples\(session\)"
        ):
            train(schedule, unequal)
    used = unequal.samples(20)
    assert used.tolist() == [20 * 5, 20 * 15, 20 * 15]
    known = plan(build("fedavg"), 1.0, clients=3, slots=70, samples=used)
    assert known.versions.weight[:3].tolist() == pytest.approx([1 / 7, 3 / 7, 3 / 7])
    assert train(known, unequal).ended == "finished"
    alike = plan(build("fedavg"), 1.0, clients=3, slots=70, samples=np.ones(3, int))
    assert train(alike, unequal).ended == "finished"  # somebody wants it so
    shares = evolve(digits, split=Split.of(np.split(np.arange(90), 3), digits.split.test))
    with pytest.raises(InputError, match="use 60 to 90"):  # sessions of unequal lengths
        train(plan(build("fedavg"), 1.0, clients=3, slots=70, session=[4, 6, 5]), shares)


def test_a_split_of_other_data_is_refused(digits: Problem) -> None:
    beyond = Split.of([[0, 1], [2, len(digits.task.y_train)]], digits.split.test)
    with pytest.raises(InputError, match="client 1 holds index 1437: digits has 0 to 1436"):
        evolve(digits, split=beyond)
