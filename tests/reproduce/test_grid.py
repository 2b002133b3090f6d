from __future__ import annotations

import math

import pandas
import pytest

from pipecycle.runs.parquet import Results
from pipecycle.runs.sweep import flat
from pipecycle.train.history import saturated
from pipecycle_paper import selection
from pipecycle_paper.grid import grid_of, key_of, key_of_config


def test_value_at_the_budget_best_and_error(make, gather) -> None:
    found = gather(make("fedavg", None, 0.5, accuracy=[50, 70, 60]), make("fedavg", None, 0.5, accuracy=64, trial=1))
    cell = found.cell("iid", "fedavg", None, 0.5)
    value = cell.accuracy()
    assert (value.mean, value.trials) == (62.0, 2)
    assert value.sd == pytest.approx(math.sqrt(8))
    assert cell.accuracy("best").mean == (70 + 64) / 2
    assert value.error >= 2 * math.sqrt(8) / math.sqrt(2)
    single = gather(make("fedavg", None, 0.5, accuracy=65)).value("iid", "fedavg", None, 0.5)
    assert single.sd is None
    assert single.error == pytest.approx(2 * 100 * math.sqrt(0.65 * 0.35 / 1000))
    assert single.text() == "65.0"
    assert value.text() == "62.0 ± 2.8"


def test_without_a_budget_row_the_last_one_counts(make, gather) -> None:
    frame = make("fedavg", None, 0.5, accuracy=[50, 70, 60])
    found = gather(frame[frame["budget"] == 0])
    assert found.value("iid", "fedavg", None, 0.5).mean == 60


def test_rows_after_the_budget_do_not_count(make, gather) -> None:
    frame = make("fedavg", None, 0.5, accuracy=[50, 55])
    over = frame.iloc[[0]].assign(slot=450, energy=9e5, accuracy=99.0, best=99.0)
    cell = gather(pandas.concat([frame, over], ignore_index=True)).cell("iid", "fedavg", None, 0.5)
    assert (cell.accuracy().mean, cell.accuracy("best").mean) == (55, 55)
    (run,) = cell
    assert run.energy_to(60) is None


def test_energy_and_slots_to_a_target(make, gather) -> None:
    rows = {"accuracy": [20, 50, 40, 60], "clients": [10, math.nan, 30, 50]}
    (run,) = gather(make("fedavg", None, 0.5, **rows)).cell("iid", "fedavg", None, 0.5)
    assert run.energy_to(50) == 2000
    assert run.energy_to(55) == 4000
    assert run.energy_to(61) is None
    assert run.slots_to(50, "accuracy") == 300
    assert run.slots_to(35, "accuracy") == 225  # half-way between 20 and 50
    assert run.slots_to(40) == 525  # clients: half-way between 30 at slot 450 and 50 at 600
    assert run.slots_to(51) is None
    assert run.clients_at_end == 50


PLATEAU = [10.0] * 12 + [30.0, 40.0, 50.0, 60.0] + [65.0, 65.5] * 6 + [80.0]


def test_early_stopping_of_a_stored_history(make, gather) -> None:
    cell = gather(make("fedavg", None, 0.5, accuracy=PLATEAU)).cell("iid", "fedavg", None, 0.5)
    (run,) = cell
    assert run.stop("literal") == 9  # the tenth checkpoint, still guessing
    assert cell.accuracy("literal").mean == 10.0
    assert run.stop("late") == 25  # ten checkpoints from the seventeenth on
    assert cell.accuracy("late").mean == 65.5
    assert cell.accuracy().mean == 80.0


def test_a_stop_at_or_after_the_budget_changes_nothing(make, gather) -> None:
    cell = gather(make("fedavg", None, 0.5, accuracy=[65.0] * 10)).cell("iid", "fedavg", None, 0.5)
    (run,) = cell
    assert run.stop("literal") is None  # the tenth checkpoint is the end anyway
    assert cell.accuracy("literal").mean == 65.0


def test_the_rule_itself() -> None:
    flat_line = [12.0] * 10
    assert saturated(flat_line, 1500, 15_000, "literal")
    assert not saturated(flat_line, 1500, 15_000, "late")
    assert saturated(flat_line, 3000, 15_000, "late")  # a fifth of the horizon
    assert saturated([16.0, *flat_line], 1650, 15_000, "late")  # once above 15 %
    assert not saturated(flat_line[:9], 1350, 15_000, "literal")
    assert not saturated([64.3, *[65.0] * 8, 65.3], 1500, 15_000, "literal")  # exactly one point, but for rounding
    assert not saturated(flat_line, 1500, 15_000, "off")


def test_variants_do_not_land_in_the_tables(make, gather) -> None:
    found = gather(
        make("pipecycle", 5, 0.1, "non-iid", accuracy=61),
        make("pipecycle", 5, 0.1, "non-iid", accuracy=40, policy__queue_threshold=3),
        make("pipecycle", 5, 0.1, "non-iid", accuracy=41, look__served="chains"),
        make("flda", None, 0.1, accuracy=50),
        make("flda", None, 0.1, accuracy=30, train__distillation=1.0),
    )
    assert found.value("non-iid", "pipecycle", 5, 0.1).mean == 61
    assert found.value("iid", "flda", None, 0.1).mean == 50
    assert len(found.cells) == 5


def test_most_runs_decide_the_world(make, gather) -> None:
    small = [make("fedavg", None, delta, accuracy=20, data__name="digits") for delta in (0.1, 0.5)]
    found = gather(make("fedavg", None, 0.1, accuracy=60), make("mifa", None, 0.1), make("flda", None, 0.1), *small)
    assert (found.world["data.name"], found.left_out) == ("cifar10", 2)
    assert found.value("iid", "fedavg", None, 0.1).mean == 60
    assert found.value("iid", "fedavg", None, 0.5) is None


def test_every_run_of_both_files_is_recognised_in_its_columns() -> None:
    for name in (selection.PAPER, selection.SENSITIVITY):
        for config in selection.read(selection.experiment(name), "1").runs.values():
            assert key_of(flat(config)) == key_of_config(config)


def test_nothing_at_all() -> None:
    found = grid_of(Results(pandas.DataFrame(), []))
    assert (found.filled, found.trials, len(found.places)) == (0, (0, 0), 160)


def test_a_run_that_diverged_guesses_to_the_end(make, gather) -> None:
    frame = make(
        "fedavg", None, 0.5, accuracy=[30, 10], clients=[25, math.nan], plan={"slots": 900, "energy.spent": 7e3}
    )
    cell = gather(frame.assign(diverged=[0, 1, 1])).cell("iid", "fedavg", None, 0.5)
    (run,) = cell
    assert [column.tolist() for column in run.line("slot")] == [[150, 300, 900], [30, 10, 10]]
    assert [column.tolist() for column in run.line("energy", "clients_accuracy")] == [[1000, 2000, 7000], [25, 10, 10]]
    assert cell.clients.mean == 10
    assert run.noise(1000) == pytest.approx(100 * math.sqrt(0.1 * 0.9 / 1000))
