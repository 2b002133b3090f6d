"""Every code block in the documents runs."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from tests.commands import pipecycle, working_in

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("**/*.md")])
TRAINING = ("tutorial.md", "theory.md", "links.md", "fleets.md", "training.md")
"""Pages that train for longer than all others together."""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if page.name in TRAINING else []) for page in PAGES],
    ids=lambda page: page.name,
)
def test_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python blocks run one after the other; a block announced as `name.py` is that file; then the commands run."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # the other cores have tests to run, and a worker imports torch
    text = page.read_text()
    for block in blocks(page, "python"):
        before = text[: text.index(block)]
        if named := re.search(r"`(\w+\.py)`:\n\n```python\n$", before):
            (tmp_path / named[1]).write_text(block)
        else:
            with working_in(tmp_path):
                exec(compile(block, page.name, "exec"), {"__name__": "__main__"})
    for block in blocks(page, "console"):
        for line in block.splitlines():
            command = shlex.split(line, comments=True)
            if command[:1] == ["pipecycle"]:
                done = pipecycle(*command[1:], cwd=tmp_path)
                assert done.returncode == 0, done.stderr
            else:
                assert command[:1] == ["make"], line


def test_the_readme_shows_what_the_command_prints() -> None:
    page = ROOT / "README.md"
    (shown,) = [block for block in blocks(page, "text") if block.startswith("pipecycle (groups 10")]
    printed = pipecycle("plan", "pipecycle", "--groups", "10").stdout
    assert [line.rstrip() for line in printed.splitlines()] == shown.splitlines()


def test_the_readme_table_is_what_the_commands_print() -> None:
    rows = re.findall(
        r"^\| `pipecycle (plan [^`]*)` \| ([\d,]+) \| ([\d,]+) \| (\d+) \|$", (ROOT / "README.md").read_text(), re.M
    )
    assert len(rows) == 3
    for command, aggregations, spent, coverage in rows:
        printed = pipecycle(*shlex.split(command)).stdout
        assert f"{aggregations} of" in printed
        assert f"{spent} spent" in printed
        assert f"they have met {coverage} (fewest)" in " ".join(printed.split())
