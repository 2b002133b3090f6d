"""Where a node's battery level comes from: an emulated harvest, a gauge file, or the machine's own battery."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Protocol

import numpy as np

from pipecycle.deploy.node.ledger import Account
from pipecycle.deploy.timing import RealTime, Timer
from pipecycle.deploy.wire.settings import NodeSettings, RunSettings
from pipecycle.errors import InputError
from pipecycle.files import reason
from pipecycle.world.energy import quanta
from pipecycle.world.specs import parse_harvest
from pipecycle.world.streams import Ints

BLOCK = 1024
PATIENCE, AGAIN = 1.0, 0.1
"""Seconds for which a gauge that cannot be read may be in mid-write, and between two looks at it."""


class Battery(Protocol):
    """Keeps an account up to date."""

    emulated: bool

    def advance(self, account: Account, slot: int) -> None:
        """Through the harvest of `slot`; earlier slots are in already."""


class Emulated:
    """The weather of the simulator: this client's column of it, every slot once."""

    emulated = True

    def __init__(self, harvest: str, clients: int, client: int, trial: int) -> None:
        if client >= clients:
            raise InputError(f"partition-id = {client}: the run has clients 0 to {clients - 1}")
        self.weather = parse_harvest(harvest).weather(clients, trial)
        self.client = client
        self.column: Ints = np.empty(0, np.int64)

    def advance(self, account: Account, slot: int) -> None:
        while len(self.column) <= slot:
            self.column = np.concatenate([self.column, self.weather.block(BLOCK)[:, self.client]])
        page = account.page
        for gained in self.column[page.slot + 1 : slot + 1].tolist():
            account.gain(gained)
        page.slot = max(page.slot, slot)


class Gauge:
    """A file that holds the level in units as text, kept up to date by whoever knows it."""

    emulated = False

    def __init__(self, path: Path, timer: Timer | None = None) -> None:
        self.path, self.timer = path, timer or RealTime()

    def advance(self, account: Account, slot: int) -> None:
        account.page.slot = max(account.page.slot, slot)
        account.measure(int(quanta(self.read(), "gauge")))

    def read(self) -> float:
        """Tries again for a while: the file may be being written."""
        until = self.timer.now() + PATIENCE
        while True:
            try:
                return self._look()
            except InputError:
                if self.timer.now() >= until:
                    raise
            self.timer.sleep(AGAIN)

    def _look(self) -> float:
        try:
            text = self.path.read_text(errors="replace").strip()
            level = float(text)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({reason(error)})") from None
        except ValueError:
            raise InputError(f"{self.path}: holds {text[:40]!r}, needs the battery's level in units") from None
        if not isfinite(level) or level < 0:
            raise InputError(f"{self.path}: holds {level}, needs a level of at least 0 units")
        return level


class Machine(Gauge):
    """The computer's own battery; full is the node's capacity."""

    def __init__(self, capacity: float, timer: Timer | None = None) -> None:
        super().__init__(Path("battery"), timer)
        self.capacity = capacity

    def _look(self) -> float:
        import psutil

        sensor = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
        if sensor is None:
            raise InputError("battery = machine: this machine has no battery that can be read")
        return self.capacity * min(100.0, max(0.0, float(sensor.percent))) / 100.0


def battery(run: RunSettings, node: NodeSettings, timer: Timer) -> Battery:
    """The battery that a node names."""
    kind, _, path = node.battery.partition(":")
    if kind == "gauge":
        return Gauge(Path(path), timer)
    if kind == "machine":
        return Machine(node.capacity or run.capacity, timer)
    return Emulated(node.harvest or run.harvest, run.clients, node.partition_id, run.trial)
