"""Where a node's battery level comes from: an emulated harvest, a device of a fleet file, a gauge file, or the battery
of the machine.

To add a source: a class with `advance` (a `Measured` one needs only `measure`), and its line in `SOURCES`."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pipecycle.deploy.timing import Timer
from pipecycle.errors import InputError, shown
from pipecycle.files import using
from pipecycle.world.devices_file import load as load_fleet
from pipecycle.world.energy import quanta
from pipecycle.world.specs import parse_harvest
from pipecycle.world.streams import Ints

if TYPE_CHECKING:
    from pipecycle.deploy.node.ledger import Account
    from pipecycle.deploy.node.settings import NodeSettings
    from pipecycle.deploy.wire.settings import RunSettings

BLOCK = 1024
PATIENCE, AGAIN = 1.0, 0.1
"""Seconds for which a level that cannot be read is tried again, and between two tries."""


class Battery(Protocol):
    """Keeps an account up to date."""

    emulated: bool
    """Whether it is charged slot by slot, rather than measured."""

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
            self.column = np.concatenate([self.column, self.gains(self.weather.block(BLOCK)[:, self.client])])
        page = account.page
        for gained in self.column[page.slot + 1 : slot + 1].tolist():
            account.gain(gained)
        page.slot = max(page.slot, slot)

    def gains(self, column: Ints) -> Ints:
        """Quanta that the weather gives, in the node's own units."""
        return column


class Measured:
    """A battery whose level in units something else knows."""

    emulated = False

    def __init__(self, timer: Timer) -> None:
        self.timer = timer

    def measure(self) -> float:
        """The level now, or an InputError that says why there is none."""
        raise NotImplementedError

    def advance(self, account: Account, slot: int) -> None:
        account.page.slot = max(account.page.slot, slot)
        account.measure(int(quanta(self.read(), "battery")))

    def read(self) -> float:
        """Tries again for a while: a file may be in the middle of being written."""
        until = self.timer.monotonic() + PATIENCE
        while True:
            try:
                return self.measure()
            except InputError:
                if self.timer.monotonic() >= until:
                    raise
            self.timer.sleep(AGAIN)


class Gauge(Measured):
    """A file that holds the level as text, kept up to date by a program of the user's: in units, or in joules if the
    node says how many a unit has."""

    def __init__(self, path: Path, timer: Timer, joules: float = 0.0) -> None:
        super().__init__(timer)
        self.path, self.scale, self.name = path, joules or 1.0, "joules" if joules else "units"

    def measure(self) -> float:
        with using(self.path, "read"):
            text = self.path.read_text(errors="replace").strip()
        try:
            level = float(text)
        except ValueError:
            raise InputError(f"{self.path}: holds {text[:40]!r}, needs the battery's level in {self.name}") from None
        if not isfinite(level) or level < 0:
            raise InputError(f"{self.path}: holds {level}, needs a level of at least 0 {self.name}")
        return level / self.scale


class Machine(Measured):
    """The computer's own battery; full is the node's capacity."""

    def __init__(self, capacity: float, timer: Timer) -> None:
        super().__init__(timer)
        self.capacity = capacity

    def measure(self) -> float:
        import psutil

        sensor = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
        if sensor is None:
            raise InputError("battery = machine: this machine has no battery that can be read")
        return self.capacity * min(100.0, max(0.0, float(sensor.percent))) / 100.0


class OfFleet(Emulated):
    """A device of a fleet file: its harvest, capacity and initial charge, counted in its own training steps."""

    def __init__(self, file: str, run: RunSettings, client: int) -> None:
        super().__init__(run.harvest, run.clients, client, run.trial)
        devices = load_fleet(file)
        if devices.clients(run.clients) != run.clients:
            raise InputError(f"clients = {run.clients}: {devices.name} has {devices.clients(run.clients)} devices")
        given = devices.world(
            run.clients,
            session=run.session,
            capacity=run.capacity,
            initial=run.initial,
            harvest=parse_harvest(run.harvest),
        )
        self.weather = given["harvest"].weather(run.clients, run.trial)
        self.step = self._own(given["costs"].step)
        if not self.step:
            raise InputError(f"battery = fleet:{file}: a step of client {client} costs nothing, and it counts in steps")
        self.capacity = self._own(given["capacity"]) / self.step
        self.initial = self._own(given["initial"]) / self.step

    def gains(self, column: Ints) -> Ints:
        return np.floor(column / self.step).astype(np.int64)

    def _own(self, value: Any) -> float:
        return float(value if np.ndim(value) == 0 else value[self.client])


Source = Callable[[str, "RunSettings", "NodeSettings", Timer], Battery]
SOURCES: dict[str, Source] = {
    "emulated": lambda _, run, node, timer: Emulated(
        node.harvest or run.harvest, run.clients, node.partition_id, run.trial
    ),
    "fleet:FILE": lambda file, run, node, timer: OfFleet(file, run, node.partition_id),
    "gauge:FILE": lambda file, run, node, timer: Gauge(Path(file), timer, node.joules),
    "machine": lambda _, run, node, timer: Machine(node.capacity or run.capacity, timer),
}
"""What makes a battery, by the form of the setting `battery`; what stands after its colon comes first."""


def check_source(text: Any) -> tuple[Source, str]:
    """What makes the battery that a setting names, and what stands after its colon."""
    word, colon, rest = str(text).partition(":")
    for form, source in SOURCES.items():
        known, needs_rest, _ = form.partition(":")
        if word == known and bool(colon) == bool(needs_rest) == bool(rest):
            if word == "gauge" and not Path(rest).is_absolute():
                raise InputError(f"battery = {text}: needs an absolute path, since Flower starts apps anywhere")
            return source, rest
    raise InputError(f"battery = {shown(text)}: needs {', '.join(SOURCES)}")


def battery(run: RunSettings, node: NodeSettings, timer: Timer) -> Battery:
    """The battery of a node."""
    source, rest = check_source(node.battery)
    made = source(rest, run, node, timer)
    if run.clock == "logical" and not made.emulated:  # hundreds of slots pass in a second, and nothing is charged
        raise InputError(f"battery = {node.battery}: needs a run with clock = wall, this one has clock = logical")
    return made
