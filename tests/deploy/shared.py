"""What the tests with real processes have in common."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict
from safetensors.numpy import load_file

from pipecycle.deploy import RunSettings, client_app, server_app

from .local_grid import LocalGrid

BITS = {"model": "lenet", "harvest": "always", "session": 4, "slots": 7, "initial": 5.0, "evaluate-every": 7}
"""Clients that charge in every slot, on a logical clock; lenet is trained alike wherever there is no GPU."""


def in_process(out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The weights of the same run within this process."""
    flat = RunSettings.of({**settings, "out": str(out), "resume": False}).flat()
    grid = LocalGrid(client_app(), [{"partition-id": client} for client in range(int(flat["clients"]))], flat)
    server_app()(grid=grid, context=Context(1, 1, {}, RecordDict(), flat))
    return load_file(out / "model.safetensors")


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(a[key].tobytes() == b[key].tobytes() for key in a)


def until(condition: Callable[[], object], seconds: float, said: Callable[[], str] = str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, said()
        time.sleep(0.3)
