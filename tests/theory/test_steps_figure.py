"""Accuracy over steps, from rows made up by hand."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from pipecycle import InputError
from pipecycle.report.figures import figure_style, save
from pipecycle.runs.parquet import Results
from pipecycle.theory import stability_limit
from pipecycle.theory.steps_figure import curves, draw, read


def run(groups: int, step: Any, accuracy: float, trial: int = 0, **changes: Any) -> list[dict[str, Any]]:
    """Two checkpoints on the way, the budget's, and one after it."""
    name = f"{groups}-{step}-{trial}"
    facts = {"run": name, "identity": name, "policy.groups": groups, "policy.step": step, **changes}
    points = [(150, 5.0, 0), (300, 6.0, 0), (310, accuracy, 1), (450, 99.0, 0)]
    return [{**facts, "slot": slot, "accuracy": value, "budget": budget} for slot, value, budget in points]


def rows() -> pandas.DataFrame:
    some = [run(5, "0.3", 70.0), run(5, "0.4", 30.0), run(5, None, 10.0), run(5, "lag-stable", 71.0)]
    some += [run(2, "0.85", 72.0), run(2, "0.85", 68.0, trial=1), run(2, None, 65.0)]
    return pandas.DataFrame([row for one in some for row in one])


def test_accuracy_at_the_budget_by_groups_and_step() -> None:
    assert curves(Results(rows(), [])) == {2: {0.85: 70.0, 1.0: 65.0}, 5: {0.3: 70.0, 0.4: 30.0, 1.0: 10.0}}
    unspent = rows()
    unspent["budget"] = 0
    assert curves(Results(unspent, []))[5][0.3] == 99.0  # the end of the run


def test_the_figure_draws_lines_and_limits(tmp_path: Path) -> None:
    rows().to_parquet(tmp_path / "results.parquet")
    with figure_style():
        figure = draw(read(tmp_path / "results.parquet"))
        assert save(figure, "png").startswith(b"\x89PNG")
    (pane,) = figure.axes
    drawn = [np.asarray(line.get_xdata(), float).tolist() for line in pane.lines]
    assert drawn[::2] == [[0.85, 1.0], [0.3, 0.4, 1.0]]
    assert drawn[1::2] == [[stability_limit(1)] * 2, [stability_limit(4)] * 2]
    assert [text.get_text() for text in pane.get_legend().get_texts()] == ["G = 2, limit 1", "G = 5, limit 0.347"]


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("accuracy")
    with pytest.raises(InputError, match="is not a Parquet file"):
        read(tmp_path / "text.parquet")
    rows().drop(columns="policy.step").to_parquet(tmp_path / "other.parquet")
    with pytest.raises(InputError, match=r"the column policy\.step is missing"):
        read(tmp_path / "other.parquet")
    with pytest.raises(InputError, match="no run with a fixed step"):
        curves(Results(pandas.DataFrame(run(5, "lag-stable", 70.0)), []))


def test_the_sweep_brackets_the_limits() -> None:
    file = Path(__file__).parents[2] / "experiments" / "steps.toml"
    cells = [part["matrix"] for part in tomllib.loads(file.read_text())["parts"]]
    assert [(cell["policy"], cell["groups"], len(cell["step"])) for cell in cells] == [
        (["fedseq"], [groups], 10) for groups in (2, 5, 10)
    ]
    for cell in cells:
        limit = stability_limit(cell["groups"][0] - 1)
        assert 0.9 * limit <= max(step for step in cell["step"] if step < limit) < limit
        assert limit <= min(step for step in cell["step"] if step >= limit) <= 1.1 * limit
        assert cell["step"][-1] == 1.0
