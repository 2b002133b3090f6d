from __future__ import annotations

import pytest

LONG = ("test_chaos", "test_up", "test_processes", "test_simulation", "test_own_app")
"""Modules with processes of their own: they begin first, so that two workers end together."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Minutes of killing are for those who ask for them: `make flower-chaos`."""
    items.sort(key=lambda item: item.path.stem not in LONG)
    if "chaos" in (config.getoption("markexpr") or ""):
        return
    for item in items:
        if item.get_closest_marker("chaos"):
            item.add_marker(pytest.mark.skip(reason="only with -m chaos"))
