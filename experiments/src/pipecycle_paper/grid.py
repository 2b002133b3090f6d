"""Results by cell: which run is which cell of the paper's tables, and what its trials say together."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from attrs import evolve, field, frozen

from pipecycle.errors import InputError
from pipecycle.policies.registry import convert, defaults, parameters, policy_class
from pipecycle.results import Measure, Metrics, Value
from pipecycle.runs.config import BY_THE_MODEL, Config
from pipecycle.runs.parquet import Results
from pipecycle.train.history import saturated
from pipecycle.world.streams import Floats
from pipecycle_paper import paper, selection

if TYPE_CHECKING:
    import pandas

Kind = Literal["budget", "best", "literal", "late"]
"""Which number of a run: at the budget, the best until then, or where the paper's early stopping ends it."""
TEST_SAMPLES = 1_000
"""Test samples of a trial (Section VI-A of the paper), where the results do not say."""
LEARNT = 50.0
"""A model of this accuracy (%) has learnt something."""


@frozen(eq=False, slots=False)
class Trial(Metrics):
    """What one trial of a cell has shown, and its plan in figures."""

    number: int = field(kw_only=True)
    horizon: int = field(kw_only=True)
    plan: Mapping[str, Any] = field(kw_only=True)
    test_samples: int = field(default=TEST_SAMPLES, kw_only=True)

    def stop(self, rule: Literal["literal", "late"]) -> int | None:
        """The row at which the paper's early stopping would have ended the run, if it would have."""
        seen: list[float] = []
        for row in self.regular:
            seen.append(float(self.accuracy[row]))
            if self.slot[row] < self.slot[self.at_budget] and saturated(seen, int(self.slot[row]), self.horizon, rule):
                return int(row)
        return None

    def value(self, kind: Kind = "budget") -> float:
        if kind == "best":
            return float(self.best[self.at_budget])
        if kind != "budget" and (row := self.stop(kind)) is not None:
            return float(self.accuracy[row])
        return float(self.accuracy[self.at_budget])

    @property
    def fell_apart(self) -> bool:
        """Whether it had learnt before it diverged."""
        return self.diverged and self.reaches(LEARNT) is not None

    def slots_to(self, target: float, measure: Measure = "clients_accuracy") -> float | None:
        """Slots until an accuracy, linear between checkpoints."""
        x, y = self.line("slot", measure)
        above = np.flatnonzero(y >= target)
        if not len(above):
            return None
        k = int(above[0])
        if k == 0:
            return float(x[0])
        return float(x[k - 1] + (x[k] - x[k - 1]) * (target - y[k - 1]) / (y[k] - y[k - 1]))

    @property
    def lasted(self) -> float:
        """Slots of the run; one that diverged would have lasted as long as its schedule."""
        return float(self.slot[-1]) if self.end is None else self.end[0]

    @property
    def clients_at_end(self) -> float | None:
        """The mean over the clients' own models at the last look."""
        _, y = self.line("slot", "clients_accuracy")
        return float(y[-1]) if len(y) else None


@frozen(eq=False)
class Cell:
    """The trials of one configuration, by number."""

    trials: Mapping[int, Trial]

    def __iter__(self) -> Iterator[Trial]:
        return iter(self.trials.values())

    def __len__(self) -> int:
        return len(self.trials)

    def among(self, numbers: Container[int]) -> Cell:
        """Some of its trials."""
        return Cell({number: trial for number, trial in self.trials.items() if number in numbers})

    def by_trial(self) -> dict[int, float]:
        """Accuracy at the budget."""
        return {number: trial.value() for number, trial in self.trials.items()}

    def accuracy(self, kind: Kind = "budget") -> Value:
        return self._average([trial.value(kind) for trial in self])

    @property
    def clients(self) -> Value | None:
        """The mean over all clients' own models at the end."""
        means = [mean for mean in (trial.clients_at_end for trial in self) if mean is not None]
        return self._average(means) if means else None

    def plan(self, name: str) -> float | None:
        """A figure of the plan, averaged."""
        figures = [float(trial.plan[name]) for trial in self if trial.plan.get(name) is not None]
        return float(np.mean(figures)) if figures else None

    def _average(self, values: Sequence[float]) -> Value:
        return Value.of(values, float(np.mean([trial.noise(trial.test_samples) for trial in self])))

    def reached(self, target: float) -> int:
        """Trials that get to an accuracy within the budget."""
        return sum(trial.reaches(target) is not None for trial in self)

    def gets_to(self, target: float) -> bool:
        """Whether at least half of the trials do."""
        return 2 * self.reached(target) >= len(self)


Key = tuple[Any, ...]


@frozen(eq=False)
class Grid:
    """The paper's cells and the parts of the sensitivity study, as far as there are results."""

    cells: Mapping[Key, Cell]
    places: Mapping[tuple[str, str, int | None, float], Key]
    """Where distribution, scheme, groups and charging probability of the tables lead."""
    parts: Mapping[str, Sequence[Config]]
    world: Mapping[str, Any]
    """What all runs have in common, by column."""
    left_out: int
    """Runs in the file that belong to another world."""
    pieces: Sequence[Mapping[str, Any]] = field(factory=list)
    precisions: Mapping[str, Mapping[Key, Cell]] = field(factory=dict)
    """The same cells from runs that differ in the precision of their products only."""
    sources: Mapping[str, int] = field(factory=dict)
    """Runs by the code that made them."""

    def cell(self, distribution: str, policy: str, groups: int | None, delta: float) -> Cell | None:
        key = self.places.get((distribution, policy, groups, delta))
        return None if key is None else self.cells.get(key)

    def among(self, numbers: Container[int]) -> Grid:
        """The same with some of its trials."""
        some = {key: cell.among(numbers) for key, cell in self.cells.items()}
        return evolve(self, cells={key: cell for key, cell in some.items() if len(cell)})

    def value(self, distribution: str, policy: str, groups: int | None, delta: float) -> Value | None:
        """The accuracy at the budget, if the cell was run."""
        cell = self.cell(distribution, policy, groups, delta)
        return None if cell is None else cell.accuracy()

    @property
    def trials(self) -> tuple[int, int]:
        """The fewest and the most trials of a cell of the tables that was run at all."""
        counts = [len(self.cells[key]) for key in self.places.values() if key in self.cells]
        return (min(counts), max(counts)) if counts else (0, 0)

    @property
    def strangers(self) -> int:
        """Runs of this world that are in none of the tables."""
        known = {*self.places.values(), *(key_of_config(config) for part in self.parts.values() for config in part)}
        return sum(len(cell) for key, cell in self.cells.items() if key not in known)

    @property
    def rows(self) -> list[tuple[str, int | None]]:
        """Schemes and groups as tables list them: the paper's in its order, then those of ours that were run."""
        printed = [(row.policy, row.groups) for row in paper.TABLE_I]
        run = [(scheme, groups) for (_, scheme, groups, _), key in self.places.items() if key in self.cells]
        return list(dict.fromkeys([*printed, *run]))

    @property
    def filled(self) -> int:
        """Cells of the grid with at least one trial."""
        return sum(key in self.cells for key in self.places.values())


SAME = ("world.", "data.", "train.", "look.every", "look.early_stop")
VARIED = ("world.trial", "world.slots", "world.harvest", "data.alpha", "train.distillation")


def grid_of(results: Results) -> Grid:
    """Results sorted into cells.  A run belongs to a cell by its policy, settings, harvest and distribution; where the
    file holds runs of several worlds (data, model, precision, horizon ...), the one with most runs counts."""
    first = results.first
    kept, world = _one_world(first)
    histories = results.histories() if len(kept) else {}
    others = {precision: _cells(some, histories) for precision, some in _other_precisions(first, kept).items()}
    compared = sum(len(cell) for cells in others.values() for cell in cells.values())
    wanted = selection.read(selection.experiment(selection.PAPER), "1").runs.values()
    mixed = [
        config.changed({"rotation": "spread", "relay_mix": 0.5}) for config in wanted if config.policy == "pipecycle"
    ]
    places = {selection.place(config): key_of_config(config) for config in wanted}
    extra = {selection.place(config): key_of_config(config) for config in mixed}
    sweep = selection.read(selection.experiment(selection.SENSITIVITY), "1")
    parts = {name: [sweep.runs[run] for run in runs] for name, runs in sweep.parts.items()}
    left_out = len(first) - len(kept) - compared
    cells = _cells(kept, histories)
    if all(key in cells for key in extra.values()):  # a scheme of the tables, not a few cells of the sensitivity study
        places |= extra
    return Grid(cells, places, parts, world, left_out, results.pieces, others, results.sources)


def cells_of(results: Results, world: Mapping[str, Any]) -> dict[Key, Cell]:
    """The cells of the runs whose columns say what `world` does."""
    runs = results.first
    for name, value in world.items():
        column = runs[name] if name in runs else runs["identity"].map(lambda _: None)
        runs = runs[column.isna() if value is None else column == value]
    return _cells(runs, results.histories() if len(runs) else {})


def _cells(runs: pandas.DataFrame, histories: Mapping[str, Mapping[str, Floats]]) -> dict[Key, Cell]:
    """Runs as trials of their cells."""
    cells: dict[Key, dict[int, Trial]] = {}
    for values in runs.to_dict("records"):
        about = {str(name): value for name, value in values.items()}
        trial = _trial(histories[str(about["identity"])], about)
        cells.setdefault(key_of(about), {})[trial.number] = trial
    return {key: Cell(dict(sorted(trials.items()))) for key, trials in cells.items()}


def _trial(history: Mapping[str, Floats], about: Mapping[str, Any]) -> Trial:
    plan = {name[5:]: _known(about, name) for name in about if name.startswith("plan.")}
    diverged = bool((history["diverged"] == 1).any())
    end = plan.get("slots") or history["slot"][-1], plan.get("energy.spent") or history["energy"][-1]
    return Trial.of(
        history,
        diverged=diverged,
        end=end if diverged else None,
        number=int(about["world.trial"]),
        horizon=int(about["world.slots"]),
        plan=plan,
        test_samples=int(_known(about, "test_samples") or TEST_SAMPLES),
    )


def key_of_config(config: Config) -> Key:
    """What makes two runs trials of the same cell, whatever the data and the size of the world."""
    settings = {key: value for key, value in config.stated().items() if key not in BY_THE_MODEL}
    distillation = config.train.distillation if config.policy == "flda" else None
    return _key(config.policy, settings, config.world.harvest, config.data.alpha, distillation, config.look.served)


def key_of(record: Mapping[str, Any]) -> Key:
    """The same of a row of results.  A setting that the results do not mention has its default."""
    policy = str(record["policy"])
    try:
        kind = policy_class(policy)
        usual, kinds = defaults(kind), parameters(kind)
    except InputError:  # a policy of somebody's own, which is not here
        usual, kinds = {}, {}
    settings = {name[7:]: _known(record, name) for name in record if name.startswith("policy.")}
    for name, value in settings.items():
        if isinstance(value, str) and name in kinds:  # a column that holds numbers and words is text
            settings[name] = convert(name, value, kinds[name])
    stated = {
        name: value
        for name, value in settings.items()
        if value is not None and name not in BY_THE_MODEL and value != usual.get(name)
    }
    distillation = _known(record, "train.distillation") if policy == "flda" else None
    place = _known(record, "world.harvest"), _known(record, "data.alpha")
    return _key(policy, stated, *place, distillation, _known(record, "look.served"))


def _key(policy: str, settings: Mapping[str, Any], *rest: Any) -> Key:
    return (policy, tuple(sorted(settings.items())), *rest)


def _known(record: Mapping[str, Any], name: str) -> Any:
    value = record.get(name)
    value = value.item() if isinstance(value, np.generic) else value
    return None if value is None or (isinstance(value, float) and math.isnan(value)) else value


def _one_world(first: pandas.DataFrame) -> tuple[pandas.DataFrame, dict[str, Any]]:
    """The runs of the world that most of them share, and what that world is."""
    import pandas

    if not len(first):
        return first, {}
    columns = [str(name) for name in first.columns if str(name).startswith(SAME) and name not in VARIED]
    kept = _most(first, columns)
    # The horizon belongs to the world too, but each distribution has its own.
    alpha = kept["data.alpha"] if "data.alpha" in kept else pandas.Series(np.nan, kept.index)
    halves = [_most(half, ["world.slots"]) for half in (kept[alpha.isna()], kept[alpha.notna()]) if len(half)]
    slots = {str(int(half["world.slots"].iloc[0])): None for half in halves}
    kept = kept[kept.index.isin([at for half in halves for at in half.index])]
    about = {name: _known(dict(kept.iloc[0]), name) for name in columns}
    return kept, {**about, "world.slots": " / ".join(slots)}


def _other_precisions(first: pandas.DataFrame, kept: pandas.DataFrame) -> dict[str, pandas.DataFrame]:
    """Runs that would be in the same world but for the precision of their products."""
    if not len(kept):
        return {}
    columns = [str(name) for name in first.columns if str(name).startswith(SAME)]
    same = [name for name in columns if name not in VARIED and name != "train.precision"]
    marks = first[same].astype(str).agg("|".join, axis=1)
    near = first[(marks == marks[kept.index[0]]) & ~first.index.isin(kept.index)]
    near = near[near["world.slots"].isin(kept["world.slots"])]
    return {str(name): some for name, some in near.groupby("train.precision") if len(some)}


def _most(frame: pandas.DataFrame, columns: Sequence[str]) -> pandas.DataFrame:
    """The rows that agree in some columns with most others; the first such where two are equally common."""
    marks = frame[list(columns)].astype(str).agg("|".join, axis=1)
    counts = marks.value_counts(sort=False)
    return frame[marks == counts.idxmax()]
