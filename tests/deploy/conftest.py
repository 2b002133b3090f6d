from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from subprocess import CompletedProcess

import pytest

Command = Callable[..., CompletedProcess[str]]

LONG = ("test_chaos", "test_processes", "test_up", "test_simulation", "test_own_app")
"""Modules with processes of their own: they begin first, so that two workers end together."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Minutes of killing are for those who ask for them: `make flower-chaos`."""
    items.sort(key=lambda item: item.path.stem not in LONG)
    if "chaos" in (config.getoption("markexpr") or ""):
        return
    for item in items:
        if item.get_closest_marker("chaos"):
            item.add_marker(pytest.mark.skip(reason="only with -m chaos"))


@pytest.fixture
def command() -> Command:
    """`pipecycle` within this process."""
    with warnings.catch_warnings():  # the older typer that Flower asks for uses what click is going to remove
        warnings.simplefilter("ignore")
        from ..commands import pipecycle

    return partial(pipecycle, columns=200)


@pytest.fixture
def deploy(command: Command) -> Command:
    """`pipecycle deploy` within this process."""
    return partial(command, "deploy")
