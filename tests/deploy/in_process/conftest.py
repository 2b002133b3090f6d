from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk would take more time than all else here: 75,000 times 5 ms.  File systems also wait when a
    name is given to another file, unless it is free."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    replace = os.replace

    def free_and_take(source: Path, target: Path) -> None:
        with suppress(FileNotFoundError):
            os.unlink(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", free_and_take)


@pytest.fixture(scope="session")
def federation() -> Callable[..., SimpleNamespace]:
    """A federation within this process: `federation(folder, policy=..., slots=..., fault=...)` runs it to its end."""
    pytest.importorskip("flwr")
    from pipecycle.deploy.apps import client_app
    from pipecycle.deploy.server.driver import Driver
    from pipecycle.deploy.server.model import own
    from pipecycle.deploy.wire.settings import RunSettings

    from ..local_grid import LocalGrid, VirtualTime

    def make(
        folder: Path | None = None,
        *,
        fault: Any = None,
        app: Any = None,
        nodes: list[dict[str, Any]] | None = None,
        grid: Any = None,
        learning: Any = None,
        run_it: bool = True,
        **over: Any,
    ) -> SimpleNamespace:
        base: dict[str, Any] = {"clients": 6, "slots": 100, "session": 5, "harvest": "always", "evaluate-every": 50}
        run = RunSettings.of({**base, **{key.replace("_", "-"): value for key, value in over.items()}})
        if nodes is None:
            nodes = [{"partition-id": client} for client in range(run.clients)]
            if folder is not None:
                nodes = [{**node, "ledger": str(folder / f"ledger-{node['partition-id']}.json")} for node in nodes]
        if grid is None:
            faults = {} if fault is None else {"fault": fault}
            grid = LocalGrid(app or client_app(timer=VirtualTime()), nodes, run.flat(), **faults)
        driver = Driver(grid, run, learning or own(run), grid.timer)
        made: dict[int, Any] = {}  # every version, also those that the server has dropped since
        put = driver.weights.store.put

        def remember(name: str, values: Any) -> None:
            if name.startswith("version-"):
                made[int(name.removeprefix("version-"))] = values["version"].clone()
            put(name, values)

        driver.weights.store.put = remember  # type: ignore[method-assign]
        events: list[dict[str, Any]] = []
        write = driver.trace.write

        def note(event: str, slot: int, **fields: Any) -> None:
            events.append({"event": event, "slot": slot, "time": driver.trace.time(), **fields})
            write(event, slot, **fields)

        driver.trace.write = note  # type: ignore[method-assign]
        schedule = driver.run() if run_it else None
        return SimpleNamespace(
            run=run, grid=grid, driver=driver, schedule=schedule, events=events, folder=folder, made=made
        )

    return make


@pytest.fixture(scope="session")
def ledgers() -> Callable[[Path], dict[int, dict[str, Any]]]:
    """The ledger files in a folder, by client, with what they say of the run that they served last."""

    def read(folder: Path) -> dict[int, dict[str, Any]]:
        books = (json.loads(path.read_text()) for path in folder.glob("ledger-*.json"))
        return {ledger["client"]: {**ledger, **ledger["runs"].get(ledger["run"], {})} for ledger in books}

    return read
