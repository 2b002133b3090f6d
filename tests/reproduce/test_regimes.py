from __future__ import annotations

from pathlib import Path

import pandas
import pytest
from rich.console import Console

from pipecycle.runs.parquet import Results, code
from pipecycle.runs.run import source
from pipecycle_paper import paper, selection
from pipecycle_paper.regimes import choose, readings, rms, summary, verdict, write_regimes

FIRST, SECOND = "cnn64/unit/crop:4+flip", "wide/unit/crop:4+flip"


@pytest.fixture
def tried(make):
    """Results in which every cell of a reading is off by so many points, and a piece says how fast it was."""

    def results(**gaps: float) -> Results:
        sweep = selection.read(selection.experiment(selection.REGIMES), None)
        frames, pieces = [], []
        for name, gap in zip((FIRST, SECOND), gaps.values(), strict=False):
            for run in sweep.parts[name]:
                where, policy, groups, delta = selection.place(sweep.runs[run])
                printed = paper.value(where, policy, groups, delta)
                config = sweep.runs[run]
                regime = {"train__model": config.train.model, "data__scale": config.data.scale}
                regime |= {"train__augment": config.train.augment, "train__precision": "bf16"}
                frames.append(make(policy, groups, delta, accuracy=printed + gap, **regime))
            steps = 1000 if name == FIRST else 2000
            pieces.append({"parts": [name], "steps": steps, "seconds": 10.0})
        return Results(pandas.concat(frames, ignore_index=True), pieces)

    return results


def test_root_mean_square() -> None:
    assert rms([3.0, -4.0]) == pytest.approx((12.5) ** 0.5)


def test_the_smallest_is_taken(tried) -> None:
    found = readings(tried(first=-2.0, second=3.0))
    assert [(one.name, round(one.rms, 6), one.complete, one.pace) for one in found] == [
        (FIRST, 2.0, True, 100.0),
        (SECOND, 3.0, True, 200.0),
    ]
    assert choose(found).name == FIRST
    assert verdict(found) == f"Taken: {FIRST}, 2.0 points from the paper (root mean square over 21 cells)."
    assert summary(found).cells[0][:3] == (f"{FIRST} (taken)", "2.0", "-2.0")


def test_within_half_a_point_the_faster_is_taken(tried) -> None:
    found = readings(tried(first=2.0, second=2.4))
    assert choose(found).name == SECOND
    assert "less than 0.5 points fewer, and takes longer to compute" in verdict(found)


def test_what_is_not_complete_is_not_taken(tried) -> None:
    whole = tried(first=2.0, second=1.0)
    kept = whole.frame[~((whole.frame["train.model"] == "wide") & (whole.frame["policy"] == "mifa"))]
    found = readings(Results(kept, whole.pieces))
    assert [one.complete for one in found] == [True, False]
    assert choose(found).name == FIRST
    assert choose(found[1:]) is None
    assert verdict([]) == "No reading is complete yet: none is taken."


def test_a_table_beside_the_results(tried, tmp_path: Path) -> None:
    tried(first=-2.0, second=3.0).save(tmp_path / "results.parquet")
    console = Console(record=True, width=200)
    (path,) = write_regimes(tmp_path, console)
    assert f"| {FIRST} (taken) | 2.0 | -2.0 |" in " ".join(path.read_text().split())
    assert f"Taken: {FIRST}" in console.export_text()
    assert "code that was not recorded" in path.read_text()


def test_code_is_named_and_a_mixture_said(make) -> None:
    one, other = make("fedavg", None, 0.1), make("mifa", None, 0.1)
    same = Results(pandas.concat([one, other]).assign(source="abc"), [])
    assert code(same.sources) == "One version of the code made all runs: abc (2 runs)."
    mixed = Results(pandas.concat([one.assign(source="abc"), other]), [])
    assert (
        code(mixed.sources) == "A mixture of 2 versions of the code: code that was not recorded (1 run), abc (1 run)."
    )
    assert len(source()) == 12
