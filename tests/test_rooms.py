"""No room imports from one that is built on it (docs/architecture.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pipecycle

HOME = Path(pipecycle.__file__).parent
SHARED = ["errors", "checks", "files", "arrays", "screen", "showing", "starting", "stopping", "words"]
ROOMS = [
    "world",
    "policies",
    "schedule",
    "data",
    "results",
    "train",
    "runs",
    "report",
    "theory",
    "deploy",
    "studio",
    "commands",
]
FREE = {"__version__"}


def imported(path: Path) -> set[str]:
    """The rooms and shared modules that a file imports from, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "pipecycle":
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pipecycle."):
            found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {name.name.split(".")[1] for name in node.names if name.name.startswith("pipecycle.")}
    return found - FREE


def test_every_folder_and_module_has_its_place() -> None:
    folders = {path.name for path in HOME.iterdir() if path.is_dir() and path.name != "__pycache__"}
    modules = {path.stem for path in HOME.glob("*.py")} - {"__init__", "__main__"}
    assert folders == set(ROOMS)
    assert modules == set(SHARED)
    text = (HOME.parents[1] / "docs" / "architecture.md").read_text()
    assert all(f"`{room}/`" in text for room in ROOMS)
    assert all(f"`{module}`" in text for module in SHARED)


def test_the_library_does_not_need_the_papers_evaluation() -> None:
    """Only the command line looks for it, and does without where it is not installed."""
    users = [path.name for path in HOME.rglob("*.py") if "pipecycle_paper" in path.read_text()]
    assert users == ["cli.py"]


def test_imports_point_one_way() -> None:
    wrong = []
    for path in HOME.rglob("*.py"):
        where = path.relative_to(HOME).parts[0].removesuffix(".py")
        if where in ("__init__", "__main__"):
            continue
        allowed = {*SHARED, *ROOMS[: ROOMS.index(where) + 1]} if where in ROOMS else set(SHARED)
        wrong += [f"{path.relative_to(HOME)} imports {room}" for room in imported(path) - allowed]
    assert wrong == []
