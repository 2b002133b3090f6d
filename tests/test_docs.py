"""Every code block in the documents runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("**/*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_runs(page: Path, tmp_path: Path) -> None:
    """Python blocks run one after the other; a block announced as `name.py` is that file; then the commands run."""
    text = page.read_text()
    for block in blocks(page, "python"):
        before = text[: text.index(block)]
        if named := re.search(r"`(\w+\.py)`:\n\n```python\n$", before):
            (tmp_path / named[1]).write_text(block)
        else:
            code = f"import os; os.chdir({str(tmp_path)!r})\n{block}"
            subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, capture_output=True)
    for block in blocks(page, "console"):
        for line in block.splitlines():
            command = shlex.split(line, comments=True)
            if command[:1] == ["pipecycle"]:
                subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True, cwd=tmp_path)
            else:
                assert command[:1] == ["make"], line


def test_the_readme_shows_what_the_command_prints() -> None:
    page = ROOT / "README.md"
    (shown,) = [block for block in blocks(page, "text") if block.startswith("pipecycle (groups 10")]
    printed = subprocess.run(
        [sys.executable, "-m", "pipecycle", "plan", "pipecycle", "--groups", "10"],
        check=True, capture_output=True, text=True, env={"COLUMNS": "80", "PATH": ""},
    ).stdout  # fmt: skip
    assert [line.rstrip() for line in printed.splitlines()] == shown.splitlines()


def test_the_readme_table_is_what_the_commands_print() -> None:
    rows = re.findall(
        r"^\| `pipecycle (plan [^`]*)` \| ([\d,]+) \| ([\d,]+) \| (\d+) \|$", (ROOT / "README.md").read_text(), re.M
    )
    assert len(rows) == 3
    for command, aggregations, spent, coverage in rows:
        printed = subprocess.run(
            [sys.executable, "-m", "pipecycle", *shlex.split(command)], check=True, capture_output=True, text=True
        ).stdout
        assert f"{aggregations} of" in printed
        assert f"{spent} spent" in printed
        assert f"they have met {coverage} (fewest)" in " ".join(printed.split())
