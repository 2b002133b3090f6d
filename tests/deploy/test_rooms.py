"""Rooms of `deploy/`: node and server meet only in what travels."""

from __future__ import annotations

import ast
from pathlib import Path

import pipecycle.deploy

ROOT = Path(pipecycle.deploy.__file__).parent
ALLOWED = {
    "wire": {"wire"},
    "node": {"node", "wire", "timing"},
    "server": {"server", "wire", "timing"},
    "local": {"local", "wire", "server.trace", "node.settings"},
    "timing": set(),
}
"""What each room may import of `deploy/`; apps and commands may import all."""


def imported(path: Path) -> set[str]:
    """Modules of `deploy/` that a file imports, wherever in it."""
    found = set()
    for line in ast.walk(ast.parse(path.read_text())):
        if isinstance(line, ast.ImportFrom) and line.module:
            found |= {line.module} | {f"{line.module}.{name.name}" for name in line.names}
        elif isinstance(line, ast.Import):
            found |= {name.name for name in line.names}
    inside = {name.removeprefix("pipecycle.deploy.") for name in found if name.startswith("pipecycle.deploy.")}
    return {name for name in inside if (ROOT / f"{name.replace('.', '/')}.py").exists()}


def test_nobody_looks_into_another_room() -> None:
    seen = 0
    for room, allowed in ALLOWED.items():
        for path in [ROOT / f"{room}.py"] if room == "timing" else sorted((ROOT / room).glob("*.py")):
            for name in imported(path):
                seen += 1
                assert name in allowed or name.partition(".")[0] in allowed, f"{path.name} imports {name}"
    assert seen > 50


def test_the_core_does_not_import_the_live_side() -> None:
    for path in ROOT.parent.rglob("*.py"):
        if ROOT not in path.parents and path.name != "cli.py" and not path.name.startswith(("deploying", "live_")):
            assert not imported(path), path
