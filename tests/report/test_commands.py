from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from pipecycle import InputError
from pipecycle.commands.reporting import figures, report, tables


@pytest.fixture
def call():
    app = typer.Typer()
    for command in (report, figures, tables):
        app.command()(command)

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(one) for one in arguments])

    return run


def test_report(call, make, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    out = tmp_path / "r.html"
    done = call("report", make("a"), "--out", out, "--target", 75)
    assert done.exit_code == 0, done.output
    assert "r.html: 1 run," in done.output
    assert out.read_text().startswith("<!doctype html>")
    done = call("report", tmp_path / "a", "--out", out, "--json")
    told = json.loads(done.stdout)
    assert told["runs"] == 1
    assert told["bytes"] == out.stat().st_size
    assert told["rows"][0]["label"] == "pipecycle"


def test_figures(call, make, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = make("a", world__capacity=25.0, world__harvest="always") / "schedule.npz"
    done = call("figures", run, "--out", tmp_path / "deep" / "figures", "--format", "svg", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert all(Path(file).exists() for file in told["files"])
    assert list(told["left_out"]) == ["battery_pipecycle"]


def test_tables(call, make) -> None:
    run = make("a")
    assert call("tables", run).stdout.startswith("**Accuracy at the end**")
    assert call("tables", run, "--format", "latex").stdout.startswith("% Accuracy")
    for option in (("--format", "json"), ("--json",)):
        assert json.loads(call("tables", run, *option).stdout)["rows"][0]["accuracy"] == 80.0


def test_choosing_naming_and_sizing(call, make, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = make("a", "pipecycle+")
    table = call("tables", run, "--only", "acc*", "--label", "pipecycle+=Ours", "--format", "latex", "--width", 3.5)
    assert table.exit_code == 0, table.output
    assert table.stdout.count("\\toprule") == 1
    assert "\\begin{tabular*}{3.5in}" in table.stdout
    assert "Ours & " in table.stdout
    assert "PipeCycle+ " in call("tables", run, "--only", "energy").stdout
    narrow = call("tables", run, "--only", "sessions", "--format", "latex", "--width", 2)
    assert re.fullmatch(r"Sessions, fairness, lag and coverage: needs \d\.\d in, more than 2 in\.\n", narrow.stderr)
    assert table.stderr == ""
    done = call("figures", run, "--out", tmp_path, "--only", "lag", "--width", 2, "--format", "png", "--json")
    assert json.loads(done.stdout)["files"] == [str(tmp_path / "lag.png")]
    assert int.from_bytes((tmp_path / "lag.png").read_bytes()[16:20], "big") == 600


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("tables", "{run}", "--only", "words"), "--only words: needs any of accuracy, target, energy, sessions"),
        (("tables", "{run}", "--label", "fedavg=X"), "--label fedavg=X: needs NAME=TEXT, the name any of pipecycle"),
        (("tables", "{run}", "--width", "3"), "--width 3: is for --format latex, not markdown"),
        (("report", "{run}", "--out", "page.pdf"), "page.pdf: is for an HTML page, needs a name that ends with .html"),
        (("report", "{run}", "--target", "0.8"), "target = 0.8: needs an accuracy in percent, from 1 to 100"),
        (("figures", "{run}", "--width", "0"), "--width 0: needs inches, 1 to 40"),
        (("tables", "nowhere"), "nowhere: there is no such run"),
        (("tables", "{run}", "--format", "word"), "--format word: needs one of markdown, latex, json"),
        (("tables", "{run}", "--target", "101"), "target = 101: needs an accuracy in percent"),
        (("figures", "{run}", "--format", "png,gif"), "--format gif: needs any of png, pdf, svg"),
        (("figures", "{run}", "--out", "{run}/config.toml"), "cannot be written"),
        (("report", "{run}", "--out", "{run}/none/r.html"), "cannot be written"),
    ],
)
def test_mistakes_get_one_sentence(call, make, arguments: tuple[str, ...], sentence: str) -> None:
    run = make("a")
    done = call(*(one.replace("{run}", str(run)) for one in arguments))
    assert isinstance(done.exception, InputError)
    assert sentence in str(done.exception)
    assert not list(run.glob(".*partial"))
