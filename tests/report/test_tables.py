from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import matplotlib
import pytest
from matplotlib.ft2font import FT2Font

from pipecycle.report import load
from pipecycle.report.markup import html_table, latex, markdown
from pipecycle.report.tables import TextTable, _share, default_target, summary_rows, tables, to_target


def test_accuracy_and_the_difference_to_the_best(make) -> None:
    ours, theirs = (70.0, 74.0, 78.0), (71.0, 78.0, 82.0)
    paths = [make(f"a{t}", "pipecycle", (50.0, ours[t]), world__trial=t) for t in range(3)]
    paths += [make(f"b{t}", "fedavg", (50.0, theirs[t]), world__trial=t) for t in range(3)]
    first, second = summary_rows(load(paths))
    assert first["accuracy"] == 74.0
    assert first["accuracy_sd"] == 4.0
    assert first["difference"] == pytest.approx(-3.0)
    half = 4.302652729749464 * math.sqrt(3.0 / 3)  # differences -1, -4, -4: variance 3
    assert first["difference_low"] == pytest.approx(-3.0 - half)
    assert first["difference_high"] == pytest.approx(-3.0 + half)
    assert first["best"] == "fedavg"
    assert second["is_best"]
    assert second["difference"] is None


def test_runs_that_met_different_weather_are_not_paired(make) -> None:
    paths = [make("a", "pipecycle"), make("b", "fedavg", world__harvest="always")]
    rows = summary_rows(load(paths))
    assert [row["is_best"] for row in rows] == [False, False]  # nobody to compare with
    assert [row["difference"] for row in rows] == [None, None]


def test_energy_and_slots_to_a_target(make) -> None:
    paths = [make("a", accuracy=(50, 79.9, 80.0, 90)), make("b", accuracy=(10, 81, 80, 82), world__trial=1)]
    paths.append(make("c", accuracy=(10, 20, 30, 40), world__trial=2))
    (group,) = load(paths)
    (row,) = summary_rows([group], 80.0)
    spent = [record.schedule.energy.spent / 2**20 for record in group.records]
    assert row["reached"] == 2
    assert row["slots_to_target"] == (300 + 200) / 2
    assert row["energy_to_target"] == (spent[0][299] + spent[1][199]) / 2
    (never,) = summary_rows([group], 99.0)
    assert never["energy_to_target"] is None
    assert never["reached"] == 0
    assert "0 of 3" in markdown(tables([group], 99.0))
    assert to_target(row) == f"{row['energy_to_target']:,.0f} (2 of 3)"
    assert to_target(row, "slots_to_target") == "250 (2 of 3)"
    assert to_target(never) == "-"


def test_nobody_is_ranked_by_some_of_the_trials(make) -> None:
    """fedavg is quick in the only trial that gets there; it stands below who always does."""
    paths = [make(f"a{t}", "fedavg", (90 if t == 0 else 10, 20, 30), world__trial=t) for t in range(3)]
    paths += [make(f"b{t}", "pipecycle", (50, 60, 85), world__trial=t) for t in range(3)]
    groups = load(paths)
    (table,) = (table for table in tables(groups, 80.0) if table.title.startswith("To reach"))
    assert [cells[:2] for cells in table.cells] == [("pipecycle", "3 of 3"), ("fedavg", "1 of 3")]
    assert table.cells[1][3] == "100 (1 of 3)"
    rows = {row["policy"]: row for row in summary_rows(groups, 80.0)}
    assert rows["fedavg"]["energy_to_target"] < rows["pipecycle"]["energy_to_target"]


def test_small_shares_are_not_nothing(make) -> None:
    """A session wasted in one of three trials is 0.333 of them, not `0 (1 %)`."""
    text = _share("wasted", "sessions")
    assert text({"wasted": 1 / 3, "sessions": 36.0}) == "0.333 (1 %)"
    assert text({"wasted": 1 / 3, "sessions": 500.0}) == "0.333 (<1 %)"
    assert text({"wasted": 0.0, "sessions": 500.0}) == "0 (0 %)"
    assert text({"wasted": 1234.4, "sessions": 2000.0}) == "1,234 (62 %)"
    assert text({"wasted": 0.0, "sessions": 0.0}) == "0"


def test_the_value_at_the_budget_is_the_marked_row(make) -> None:
    run = make("a", accuracy=(50, 60, 70))
    text = (run / "metrics.csv").read_text().splitlines()
    text.insert(3, text[2].replace(",60,", ",63.5,").removesuffix(",0,0") + ",1,0")
    (run / "metrics.csv").write_text("\n".join(text) + "\n")
    (row,) = summary_rows(load([run]))
    assert row["accuracy"] == 63.5


def test_the_rest_comes_from_the_schedules(make) -> None:
    (group,) = load([make("a", "fedavg"), make("b", "fedavg", world__trial=1)])
    (row,) = summary_rows([group])
    first, second = (record.figures for record in group.records)
    assert row["training"] + row["to_hub"] + row["to_server"] == row["spent"]
    assert row["spent"] == (first["energy"]["spent"] + second["energy"]["spent"]) / 2
    assert row["wasted"] == (first["wasted"] + second["wasted"]) / 2
    assert row["coverage_min"] == min(first["chains"]["coverage_min"], second["chains"]["coverage_min"])
    assert row["lag_max"] == max(first["lag"]["max"], second["lag"]["max"])
    json.dumps(row, allow_nan=False)


def test_the_default_target_is_nine_tenths_of_the_best(make) -> None:
    groups = load([make("a", accuracy=(50, 80)), make("b", "fedavg", accuracy=(50, 91.5))])
    assert default_target(groups) == 82.0
    assert default_target([]) is None


def test_markdown(make) -> None:
    groups = load([make("a", accuracy=(50, 80)), make("b", "fedavg", accuracy=(50, 91.5))])
    first = markdown(tables(groups)).split("\n\n")[1].splitlines()
    assert [cell.strip() for cell in first[2].split("|")[1:-1]] == ["fedavg", "91.5", "best", "-", "91.5", "1"]
    assert [cell.strip() for cell in first[3].split("|")[1:-1]] == ["pipecycle", "80.0", "-11.5", "-", "80.0", "1"]
    assert len({len(line) for line in first}) == 1


def test_latex_compiles(make, tmp_path: Path) -> None:
    groups = load([make("a", accuracy=(50, 80)), make("b", groups=3, accuracy=(50, 91.5), rotation="spread")])
    text = latex(tables(groups))
    assert "\\usepackage" not in text
    assert "rotation=longest-idle" in text
    blocks = text.split("\\begin{tabular}")[1:]
    assert len(blocks) == 4
    for block in blocks:
        columns = len(block.split("}")[0].removeprefix("{"))
        rows = [line for line in block.splitlines() if line.endswith(r"\\")]
        assert all(line.count(" & ") == columns - 1 for line in rows)
        assert not any(symbol in line.replace(f"\\{symbol}", "") for line in rows for symbol in "%#_")
    if shutil.which("pdflatex"):
        document = f"\\documentclass{{article}}\\usepackage{{booktabs}}\\begin{{document}}\n{text}\n\\end{{document}}\n"
        (tmp_path / "t.tex").write_text(document)
        done = subprocess.run(
            ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"],
            cwd=tmp_path, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:]


SIXTH = (
    ("Scheduler", "Accuracy (%), mean ± sd", "Difference to the best (points)", "95 % interval (points)",
     "Best so far (%)", "Trials"),
    (("PipeCycle+", "83.1 ± 3.5", "best", "-", "84.2", "2"),
     ("FedBacys", "41.8 ± 12.0", "-41.2", "-117.1 to +34.6", "60.1", "2")),
)  # fmt: skip
DIGIT = {"normalsize": 5.0, "small": 4.625, "footnotesize": 4.25, "scriptsize": 3.985, "tiny": 3.405}
"""Points of a digit in Computer Modern at 10, 9, 8, 7 and 5 points."""


def points(text: str) -> float:
    """The width of a word in Computer Modern at 10 points; signs are as in mathematics."""
    font = FT2Font(f"{matplotlib.get_data_path()}/fonts/ttf/cmr10.ttf")
    font.set_size(10, 72.27)
    signs = {" ": 3.33, "±": 7.78, "-": 7.78, "+": 7.78}
    advance = (signs.get(letter) or font.load_char(ord(letter)).linearHoriAdvance / 65536 for letter in text)
    return sum(advance)


@pytest.mark.parametrize(("width", "size"), [(3.5, "scriptsize"), (5.0, "normalsize")])
def test_a_table_is_no_wider_than_the_column_it_is_for(width: float, size: str) -> None:
    text = latex([TextTable("Accuracy", *SIXTH)], width)
    assert f"{{\\{size}\\setlength" in text
    assert "more than" not in text
    heads = [re.sub(r"\\begin\S*|\\end\S*", "", head) for head in text.splitlines()[4].split(" & ")]
    lines = [[line.replace("\\%", "%").replace("$\\pm$", "±").strip() for line in head.split(r"\\")] for head in heads]
    columns = zip(lines, *SIXTH[1], strict=True)
    natural = sum(max(map(points, (*head, *cells))) for head, *cells in columns)
    room = width * 72.27 - natural * DIGIT[size] / 5.0
    assert room / 5 > 3  # between two columns
    assert size == "normalsize" or natural > width * 72.27  # it did not fit as it was


def test_a_table_that_fits_in_no_type_says_so_and_overprints_nothing() -> None:
    text = latex([TextTable("Accuracy", *SIXTH)], 2.0)
    assert text.splitlines()[0] == "% Accuracy (needs the package booktabs); needs 3.0 in, more than 2 in"
    # In a tabular* that is too narrow, LaTeX prints columns over one another: 504 and 480 would be 504480.
    assert "tabular*" not in text
    assert "{\\tiny\\setlength{\\tabcolsep}{2pt}%\n\\begin{tabular}{@{}lrrrrr@{}}\n" in text
    assert text.endswith("\\bottomrule\n\\end{tabular}}\n")


def test_a_number_is_not_torn_from_its_deviation() -> None:
    assert ">83.1\u00a0±\u00a03.5</td>" in html_table(TextTable("Accuracy", *SIXTH))


def test_a_plan_has_no_accuracy_tables(make) -> None:
    groups = load([make("a") / "schedule.npz"])
    titles = [table.title for table in tables(groups)]
    assert titles == ["Where the energy went (units)", "Sessions, fairness, lag and coverage"]
