"""What the tests with real processes have in common."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from pipecycle.deploy import RunSettings, client_app
from pipecycle.deploy.server.driver import Driver
from pipecycle.deploy.server.model import own

from .local_grid import LocalGrid

PATIENCE = 600.0
"""Seconds after which a test gives up on an event: long, because a machine under load is no failure."""
BITS = {"model": "lenet", "harvest": "always", "session": 4, "slots": 7, "initial": 5.0, "evaluate-every": 7}
"""Clients that charge in every slot, on a logical clock; lenet is trained alike wherever there is no GPU."""


def in_process(out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The weights of the same run within this process."""
    flat = RunSettings.of({**settings, "out": str(out), "resume": False}).flat()
    grid = LocalGrid(client_app(), [{"partition-id": client} for client in range(int(flat["clients"]))], flat)
    run = RunSettings.of(flat)
    Driver(grid, run, own(run), grid.timer).run()
    return load_file(out / "model.safetensors")


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(a[key].tobytes() == b[key].tobytes() for key in a)


def read_trace(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a trace, also of one that is being written."""
    data = path.read_bytes()
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def until(condition: Callable[[], object], said: Callable[[], str] = str, every: float = 0.1) -> None:
    """Wait for an event; look for it `every` so many seconds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, said()
        time.sleep(every)


def stop_after(driver: Any, last: int, error: type[BaseException]) -> None:
    """Kill the server after a slot; one that resumes later, at once."""
    slots = driver.slots

    def stopping(first: int) -> Iterator[int]:
        if first > last:
            raise error
        for slot in slots(first):
            yield slot
            if slot >= last:
                raise error

    driver.slots = stopping


def audit(driver: Any) -> None:
    """Recompute every battery from what it gained and paid, in every slot, and the totals from the batteries."""
    slots, fleet = driver.slots, driver.fleet

    def audited(first: int) -> Iterator[int]:
        for slot in slots(first):
            levels = fleet.gained - fleet.overflow - fleet.trained - fleet.fees
            assert levels.tolist() == fleet.level.tolist()
            assert (levels - fleet.paid).tolist() == driver.levels[-1].tolist()
            harvested, overflowed, *spent = fleet.totals[-1]
            assert (harvested, overflowed) == (fleet.gained.sum(), fleet.overflow.sum())
            assert sum(spent) == (fleet.trained + fleet.fees).sum()
            assert harvested == sum(spent) + levels.sum() + overflowed
            yield slot

    driver.slots = audited
