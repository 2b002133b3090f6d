"""Benchmarks find what they import, and compare equal work: two rivals plan what the library plans."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from pipecycle import build, plan
from pipecycle.world.energy import units

FOLDER = Path(__file__).parents[1] / "benchmarks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_there(module: str, name: str) -> bool:
    try:
        return (
            hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}") is not None
        )
    except ModuleNotFoundError as error:  # of what is not installed here: Triton, Flower
        return not str(error.name).startswith("pipecycle")


def test_benchmarks_find_what_they_import() -> None:
    """They run seldom, and on machines that tests do not have: a name that has moved would be met there."""
    names = [
        (str(node.module), alias.name)
        for path in FOLDER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pipecycle")
        for alias in node.names
    ]
    assert len(names) > 50
    assert not [name for name in names if not is_there(*name)]


def test_the_grids_clock_finds_what_it_watches(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    watched = load("gpu_grid").WATCHED
    assert len(watched) > 5
    assert not [(owner, name) for owner, name, *_ in watched if not callable(getattr(owner, name, None))]


@pytest.fixture(scope="module", params=["naive_world", "simpy_world"])
def rival(request):
    return load(request.param)


def ours(policy, clients, slots, delta, *, session, capacity=1_000_000, **options):
    schedule = plan(build(policy, options), delta, clients, slots, session=session, capacity=capacity)
    return schedule.ancestry.events, units(int(schedule.energy.spent[-1]))


@pytest.mark.parametrize(
    ("policy", "clients", "slots", "options", "expected"),
    [
        ("pipecycle", 41, 1500, {"groups": 3, "session": 8}, (495, 22_335)),
        ("pipecycle", 30, 400, {"groups": 1, "session": 5}, (79, 5_687)),
        ("pipecycle", 30, 400, {"groups": 1, "session": 5, "capacity": 6}, (79, 5_687)),
        ("pipecycle", 3, 200, {"groups": 7, "session": 1}, (199, 397)),
        ("pipecycle", 1, 200, {"groups": 1, "session": 4}, (39, 196)),
        ("fedavg", 41, 1500, {"session": 8}, (50, 61_213)),
        ("fedavg", 30, 400, {"session": 5}, (13, 11_880)),
        ("fedavg", 7, 400, {"session": 1}, (13, 2_800)),
        ("fedavg", 7, 400, {"session": 5, "capacity": 5}, (13, 2_772)),
    ],
)
def test_the_same_where_nothing_is_random(rival, policy, clients, slots, options, expected):
    assert ours(policy, clients, slots, 1.0, **options) == expected
    assert getattr(rival, policy)(clients, slots, 1.0, **options) == expected


@pytest.mark.parametrize("delta", [0.1, 0.3, 0.5])
@pytest.mark.parametrize(("policy", "options"), [("pipecycle", {"groups": 10}), ("fedavg", {})])
def test_as_much_work_under_random_weather(rival, policy, options, delta):
    found = getattr(rival, policy)(100, 2000, delta, session=20, **options)
    assert found == pytest.approx(ours(policy, 100, 2000, delta, session=20, **options), rel=0.05)
