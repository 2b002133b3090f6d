from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipecycle import screen
from pipecycle.errors import InputError
from pipecycle.runs.parquet import Results
from pipecycle_paper.drawing import figures
from pipecycle_paper.report import write_report
from tests.commands import pipecycle

MINI = """
trials = 2
[base.world]
clients = 10
slots = 300
budget = 1000.0
[matrix]
policy = ["fedavg", "pipecycle"]
groups = [2, 10]
delta = [0.5]
alpha = ["iid", 0.1]
[[when]]
alpha = 0.1
set = { slots = 450 }
[[when]]
alpha = 0.1
policy = "pipecycle"
set = { queue_threshold = 2 }
[[when]]
groups = 2
set = { "look.clients_every" = 150 }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A small run of the real command, and its report."""
    home = tmp_path_factory.mktemp("reproduce")
    (home / "mini.toml").write_text(MINI)
    out = home / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(screen, "FIRST", 0.05)
        patch.setattr(screen, "NEXT", 0.05)
        for more in (["--file", str(home / "mini.toml"), "--workers", "1"], ["--report"]):
            done = pipecycle("reproduce", "--out", str(out), *more)
            assert done.returncode == 0, done.stderr + done.stdout
    assert "report.html and" in done.stdout
    assert "writing the report: tables, claims and figures\n" in done.stderr  # it takes seconds, so it says so
    return out


def files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and "runs" not in path.relative_to(folder).parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_everything_is_there(folder: Path) -> None:
    made = files(folder)
    assert {"report.html", "report.md", "claims.md", "tables/accuracy_iid.tex", "tables/claims.csv"} <= set(made)
    figures = {"accuracy_slots_iid", "accuracy_slots_noniid", "accuracy_energy", "ours_and_paper", "coverage_lag"}
    assert {Path(name).stem for name in made if name.startswith("figures/")} == figures
    assert all(made[f"figures/{name}.png"].startswith(b"\x89PNG") for name in figures)
    assert all(made[f"figures/{name}.pdf"].startswith(b"%PDF") for name in figures)
    tex = [line for name, data in made.items() if name.endswith(".tex") for line in data.decode().splitlines()]
    assert all(line.isascii() for line in tex if not line.startswith("%"))  # no package needed


def test_claims_in_the_repository_are_cited_by_section() -> None:
    """Lines of the paper's source are in nobody's hands."""
    pages = sorted((Path(__file__).parents[2] / "experiments" / "results").rglob("claims.md"))
    assert len(pages) == 2
    for page in pages:
        assert "| Claim | Section | Our figure |" in page.read_text()
        assert not re.search(r"\bL\d{2,}", page.read_text())


def test_the_page_is_complete_in_itself(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert "<script" not in page
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", page)
    assert "http://" not in page
    assert "https://" not in page
    assert page.count("<img ") == 5
    assert "The data are digits, the paper&#x27;s CIFAR-10." in page
    assert "2 trials, the paper has 10 and gives no spread." in page
    assert "$" not in re.sub(r"base64,[^\"]*", "", page)


def test_what_markdown_names_exists(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    links = re.findall(r"\]\((figures/[^)]*)\)", text)
    assert len(links) == 5
    assert all((folder / link).exists() for link in links)
    assert "| cannot be tested" in text
    assert "pipecycle reproduce --file" in text  # the command that made it


def test_same_bytes_again_and_no_heavy_import(folder: Path) -> None:
    before = files(folder)
    code = (
        "import sys; from pathlib import Path; from pipecycle_paper.report import write_report\n"
        f"made = write_report(Path({str(folder)!r})); heavy = {{'torch', 'plotly', 'sklearn', 'scipy'}}\n"
        "print(len(made), sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert files(folder) == before
    assert done.stdout.strip() == f"{len(before) - 1} []"


def test_the_best_groups_have_panes_of_their_own_only_where_they_are_not_two(make, gather) -> None:
    two, ten = make("pipecycle", 2, 0.5, accuracy=[50, 60]), make("pipecycle", 10, 0.5, accuracy=[50, 70])
    for frames, panes, words in (([two], 2, "which is the best G of each"), ([two, ten], 4, "below, every scheme")):
        caption, draw = figures(gather(*frames))["accuracy_energy"]
        assert words in caption
        assert "Bands" not in caption  # of one trial
        assert len(draw().axes) == panes
    again = make("pipecycle", 2, 0.5, accuracy=[50, 60], trial=1)
    assert figures(gather(two, again))["accuracy_energy"][0].endswith("the standard deviation over 2 trials.")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paper", "paper-standardised"])
def test_what_the_repository_holds_is_what_its_results_say(name: str, tmp_path: Path) -> None:
    """Text only: a picture may differ with the version of matplotlib."""
    home = Path(__file__).parents[2] / "experiments" / "results"
    for beside in ("regimes", "rivals", name):
        (tmp_path / beside).mkdir()
        shutil.copy(home / beside / "results.parquet", tmp_path / beside)
    write_report(tmp_path / name)
    held = [path for path in (home / name).rglob("*") if path.suffix in (".md", ".csv", ".tex")]
    made = {path for path in held if path.name != "README.md"}
    assert len(made) > 20
    stale = [
        path.name
        for path in made
        if path.read_bytes() != (tmp_path / name / path.relative_to(home / name)).read_bytes()
    ]
    assert not stale, f"pipecycle reproduce --report --out experiments/results/{name}"


@pytest.mark.slow
def test_a_single_run_or_none(make, tmp_path: Path) -> None:
    """Columns and checkpoints may be missing as well."""
    lone = make("mifa", None, 1.0, accuracy=[55])
    path = tmp_path / "results.parquet"
    Results(lone[lone["budget"] == 1].drop(columns=["best", "diverged"]), []).save(path)
    write_report(tmp_path)
    assert "MIFA" in (tmp_path / "report.md").read_text()
    assert "55.0" in (tmp_path / "tables/accuracy_iid.csv").read_text()
    assert "not recorded" in (tmp_path / "report.md").read_text()
    Results(make("fedbacys-odd", 3, 0.7, accuracy=55), []).save(path)
    write_report(tmp_path)
    assert "No run of the paper's grid is in these results." in (tmp_path / "report.md").read_text()
    with pytest.raises(InputError, match=r"nowhere/results\.parquet: cannot be read"):
        write_report(tmp_path / "nowhere")
