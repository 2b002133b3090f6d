"""The committed results of the other rivals, beside a grid that is made up."""

from __future__ import annotations

from pathlib import Path

import pandas
import pytest

from pipecycle.runs.parquet import load
from pipecycle_paper import rivals

from .test_goals import as_printed, world

RESULTS = Path(__file__).parents[2] / "experiments" / "results" / "rivals" / "results.parquet"


def test_rivals_stand_beside_the_schemes_of_the_tables() -> None:
    table = rivals.table(world(as_printed(70.0)), load(RESULTS))
    assert table is not None
    rows = {line[0]: line[1:] for line in table.cells}
    assert {"FedAsync", "FedBuff", "FedAU", "FedVARP", "F3AST", "FedProx"} <= set(rows)
    assert rows["PipeCycle, G = 2"][0] == "69.4 ± 0.0"  # the best over both distributions, not of IID data alone
    accuracies = [float(line[1].split()[0]) for line in table.cells]
    assert accuracies == sorted(accuracies, reverse=True)

    runs = pandas.read_parquet(RESULTS)
    at_budget = runs[(runs["policy"] == "fedasync") & runs["data.alpha"].isna() & (runs["budget"] == 1)]
    assert len(at_budget) == 3
    assert float(rows["FedAsync"][0].split()[0]) == pytest.approx(at_budget["accuracy"].mean(), abs=0.06)
    assert table.title.endswith("3 trials")


def test_only_the_trials_that_both_have_are_compared() -> None:
    table = rivals.table(world(as_printed(70.0), trials=1), load(RESULTS))
    assert table is not None
    assert table.title.endswith("1 trial")
    assert all("±" not in line[1] for line in table.cells)


def test_results_of_another_world_are_left_out() -> None:
    grid = world(as_printed(70.0))
    grid.world["world.clients"] = 50  # type: ignore[index]
    assert rivals.table(grid, load(RESULTS)) is None
