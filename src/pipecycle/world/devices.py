"""Fleets of different devices, from a TOML file of classes or a CSV file with a row per device.

`pipecycle.world.devices_file.load` reads one; `Devices.world` says what a planning run is given.  The digest is of what
the file means: comments, order of keys and the writing of numbers are no part of it, and files that it names are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import ArrayLike, NDArray

from pipecycle.errors import InputError
from pipecycle.world.energy import UNIT, Costs
from pipecycle.world.harvest import Bernoulli, Harvest, Mixed, Placed
from pipecycle.world.links import Links, Passes, Windows
from pipecycle.world.streams import Floats, Ints

ENERGIES = ("step", "to_hub", "to_server", "download", "idle", "capacity", "initial", "leak", "gain")
"""In units, or in joules if the file says how many joules a unit has."""
USUAL = {"step": 1.0, "to_hub": 1.0, "to_server": 1.0, "download": 0.0, "idle": 0.0, "leak": 0.0, "gain": 1.0,
         "loss": 0.0, "loss_to_hub": 0.0, "failure": 0.0, "contact_period": 1.0, "contact_share": 1.0}  # fmt: skip
"""What a class has that does not say otherwise; session, capacity, initial charge and harvest are the run's."""
MOST_GAIN = 2.0**22
"""Units in a slot."""
DIGITS = 12
USUAL_CLIENTS = 100
"""What a run has if nobody says how many: a file's count may be another."""


@frozen(eq=False, slots=False)
class Devices:
    """A fleet: what its classes have, one entry per class; nan is not given."""

    name: str
    labels: tuple[str, ...]
    places: tuple[str, ...]
    """File and line of every class."""
    keys: tuple[Mapping[str, str], ...]
    """File and line of what a class says on other lines, by the keys of a file."""
    columns: dict[str, Floats]
    """Units, slots, samples and probabilities, by the keys of a file."""
    harvests: tuple[Placed | None, ...]
    counts: Ints | None
    shares: Floats | None
    channels: int | None = None
    tries: int = 3
    windows: Windows | None = None
    joules: float | None = None
    """In a unit."""
    seconds: float | None = None
    """Of a slot."""
    sources: tuple[str, ...] = ()
    last_window: str = ""
    """File and line of a window of the client with the highest number."""

    def clients(self, asked: int) -> int:
        """How many there are: the file's count, or as many as are asked for where it has shares."""
        if self.counts is None:
            return asked
        total = int(self.counts.sum())
        if asked not in (total, USUAL_CLIENTS):
            raise InputError(f"clients = {asked}: {self.name} has {total} devices")
        return total

    @cached_property
    def digest(self) -> str:
        """Twelve letters that tell fleets of different meaning apart."""
        windows = self.windows
        meaning = {
            "columns": {key: _figures(column) for key, column in sorted(self.columns.items()) if _given(column)},
            "harvests": [None if harvest is None else str(harvest) for harvest in self.harvests],
            "counts": None if self.counts is None else self.counts.tolist(),
            "shares": None if self.shares is None else _figures(self.shares),
            "links": [self.channels, self.tries],
            "windows": None if windows is None else [*map(np.ndarray.tolist, windows.rows), windows.period],
            "units": [self.joules, self.seconds],
        }
        return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:DIGITS]

    def __str__(self) -> str:
        return f"{self.name}#{self.digest}"

    def kinds(self, clients: int) -> Ints:
        """The class of every client: the first class comes first."""
        return np.repeat(np.arange(len(self.labels)), self.sizes(clients))

    def sizes(self, clients: int) -> Ints:
        """Clients of every class."""
        if self.counts is not None:
            return self.counts
        assert self.shares is not None
        exact = self.shares / self.shares.sum() * clients
        sizes: Ints = np.floor(exact + 1e-9).astype(np.int64)
        rest = np.argsort(sizes - exact, kind="stable")[: clients - int(sizes.sum())]
        sizes[rest] += 1
        return sizes

    def lengths(self, clients: int, usual: ArrayLike) -> Ints:
        """Session lengths in slots: one for all, or one per client."""
        if not _given(self.columns["session"]):
            return np.asarray(usual)
        return self._spread("session", clients, usual).astype(np.int64)

    def samples(self, clients: int) -> Ints | None:
        """What every client holds; None if the file does not say."""
        samples = self._spread("samples", clients, np.nan)
        return None if np.isnan(samples).any() else samples.astype(np.int64)

    def world(
        self, clients: int, *, session: ArrayLike, capacity: ArrayLike, initial: ArrayLike, harvest: Harvest
    ) -> dict[str, Any]:
        """The arguments of `plan` that this fleet decides; what is given here is for classes that do not say."""
        column = {key: self._spread(key, clients, usual) for key, usual in USUAL.items()}
        costs = Costs(**{key: column[key] for key in ("step", "to_hub", "to_server", "download", "idle")})
        passes = None
        if _given(self.columns["contact_share"]):
            passes = Passes(np.asarray(column["contact_period"]).astype(np.int64), column["contact_share"])
        links = Links(
            self.channels, column["loss"], column["loss_to_hub"], self.tries, column["failure"], passes, self.windows
        )
        length = self.lengths(clients, session)
        holds, charge = (
            self._spread(key, clients, usual) for key, usual in (("capacity", capacity), ("initial", initial))
        )
        self._refuse(clients, charge > holds, "initial", charge, "at most the battery's capacity", holds)
        needs = column["download"] + (column["step"] + column["leak"]) * length
        self._refuse(clients, needs > holds, "capacity", holds, "a session's energy", needs)
        self._refuse(
            clients, column["gain"] > MOST_GAIN, "gain", column["gain"], "at most 2^22 units", np.asarray(MOST_GAIN)
        )
        if self.windows is not None and int(self.windows.client.max(initial=0)) >= clients:
            last = int(self.windows.client.max())
            raise InputError(f"{self.last_window}: client = {last}: needs less than {clients}, the number of clients")
        return {
            "session": length,
            "capacity": holds,
            "initial": charge,
            "costs": costs,
            "leak": column["leak"],
            "links": links,
            "harvest": self._harvest(clients, harvest, column["gain"]),
        }

    def place(self, key: str, clients: int, client: int) -> str:
        """File and line of what a client has."""
        kind = int(self.kinds(clients)[client])
        return self.keys[kind].get(key, self.places[kind])

    def states(self, key: str) -> bool:
        """Whether every device has a figure (or harvest) of its own."""
        if key == "harvest":
            return all(harvest is not None for harvest in self.harvests)
        return not np.isnan(self.columns[key]).any()

    def _refuse(
        self, clients: int, wrong: NDArray[np.bool_], key: str, value: Floats, needs: str, limit: Floats
    ) -> None:
        """If any client is wrong, say where its class is written, in the file's own measure."""
        if not wrong.any():
            return
        client = int(np.argmax(wrong))
        place = self.place(key, clients, client)
        given, least = (float(part.flat[client if part.ndim else 0]) * (self.joules or 1) for part in (value, limit))
        raise InputError(f"{place}: {key} = {given:g}: needs {needs}, {least:g}")

    def _harvest(self, clients: int, usual: Harvest, gain: Floats) -> Harvest:
        if all(harvest is None for harvest in self.harvests) and np.ndim(gain) == 0:
            return usual
        kinds = self.kinds(clients)
        parts: dict[str, tuple[Placed, list[int]]] = {}
        rates = np.zeros(len(self.labels))
        for kind, given in enumerate(self.harvests):
            harvest: Any = usual if given is None else given
            same = str(harvest)
            if isinstance(harvest, Bernoulli) and harvest.rate.ndim == 0:  # of any rate, all together
                rates[kind], same = float(harvest.rate), "bernoulli"
            parts.setdefault(same, (harvest, []))[1].append(kind)
        mixed = []
        for same, (harvest, members) in parts.items():
            mine = np.flatnonzero(np.isin(kinds, members))
            if len(mine):
                mixed.append((Bernoulli(rates[kinds[mine]]) if same == "bernoulli" else harvest, mine))
        worth = np.floor(np.broadcast_to(gain, (clients,)) * UNIT).astype(np.int64)
        return Mixed(tuple(mixed), worth, f"fleet:{self}")

    def _spread(self, key: str, clients: int, usual: ArrayLike) -> Floats:
        """One figure for all, or one per client."""
        column = self.columns[key]
        if not _given(column):
            return np.asarray(usual, np.float64)
        if np.ndim(usual):
            each = column[self.kinds(clients)]
            return np.where(np.isnan(each), usual, each)
        return np.repeat(np.where(np.isnan(column), usual, column), self.sizes(clients))


def _given(column: Floats) -> bool:
    return not np.isnan(column).all()


def _figures(column: Floats) -> list[float | None]:
    return [None if np.isnan(value) else value for value in column.tolist()]
