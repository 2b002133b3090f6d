"""The scripts in examples/ and the examples in docstrings run, and print what they say."""

from __future__ import annotations

import doctest
import runpy
from pathlib import Path
from typing import Any

import pytest

import pipecycle
from tests.commands import working_in

HOME = Path(__file__).parents[1] / "examples"
SCRIPTS = {path.stem: path for path in sorted(HOME.glob("*.py"))}
WRITES = {
    "compare": {"accuracy.pdf", "compare.html"},
    "own_data_and_devices": {"devices.html"},
    "own_scheduler": {"own_scheduler.html"},
    "read_a_schedule": {"battery.png", "participation.png", "pipeline.png", "plan.npz"},
}
DOCUMENTED = ("Comparison", "History", "Schedule", "build", "compare", "plan", "problem", "sweep", "train")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with working_in(tmp_path):
        runpy.run_path(str(SCRIPTS[name]), run_name="__main__")
    assert {path.name for path in tmp_path.iterdir()} == WRITES[name]
    assert capsys.readouterr().out


class Lenient(doctest.OutputChecker):
    """An example that says nothing about its output may print what it likes."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return not want or super().check_output(want, got, optionflags)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_docstring_has_an_example_that_runs(name: str, tmp_path: Path) -> None:
    thing: Any = getattr(pipecycle, name)
    thing = thing.train if name == "train" else thing
    finder = doctest.DocTestFinder(recurse=False)
    (test,) = finder.find(
        thing, name, globs={"build": pipecycle.build, "plan": pipecycle.plan, "problem": pipecycle.problem}
    )
    assert test.examples
    said: list[str] = []
    runner = doctest.DocTestRunner(Lenient(), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    with working_in(tmp_path):
        runner.run(test, out=said.append)
    assert runner.failures == 0, "".join(said)


def test_the_package_called_trains_as_the_function_does() -> None:
    """Its parameters are those of the function."""
    import inspect

    assert inspect.signature(pipecycle.train) == inspect.signature(pipecycle.train.train)
