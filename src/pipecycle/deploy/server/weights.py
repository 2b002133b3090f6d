"""Recipes on real weights: versions as they are made, updates until they are used, FLDA's tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import torch
from torch import Tensor

from pipecycle.deploy.server.tensors import TensorStore
from pipecycle.train.recipes import evaluate, tabulate
from pipecycle.train.teachers import LogitTable
from pipecycle.world.fleet import Fleet
from pipecycle.world.lineage import Kind, Lineage

Made = tuple[int, Kind, list[int]]
"""A version, what it is for, and the sessions whose updates are in it."""


class Weights:
    """The values of a lineage's versions; `catch_up` evaluates those that are new."""

    def __init__(self, lineage: Lineage, fleet: Fleet, initial: Tensor, store: TensorStore) -> None:
        self.lineage, self.fleet, self.store = lineage, fleet, store
        self.versions = self.tables = 0
        self._row = self._base = self._update = 0  # how far the lineage's columns have been read
        self._left = 0  # versions still to come from the last row
        self.used: list[int] = []  # sessions whose update is in a version now
        self.kept: dict[int, int] = {}  # a client's own model to the session it came from: its weights never travelled
        self.initial = initial
        self._rows = {kind: Stored(store, kind) for kind in ("version", "update")}
        self._alive: set[int] = set()  # tables

    def received(self, session: int, update: Tensor) -> None:
        self.store.put(f"update-{session}", {"update": update})

    def received_logits(self, session: int, sums: Tensor, counts: Tensor) -> None:
        self.store.put(f"logits-{session}", {"sums": sums, "counts": counts})

    def version(self, version: int) -> Tensor:
        return self.store.get(f"version-{version}")["version"]

    def teacher(self, table: int, client: int) -> tuple[Tensor, Tensor]:
        """The logits that a client learns from, and which of their rows are valid."""
        logits, valid = LogitTable(**self.store.get(f"table-{table}")).without(torch.tensor([client]))
        return logits[0], valid[0]

    def catch_up(self, *, values: bool = True) -> list[Made]:
        """Evaluate new recipes in their order; without `values` they are only counted, since they exist already."""
        made: list[Made] = []
        while self.versions < len(self.lineage):
            bases, updates, kind = self._next()
            if values:
                self._make(self.versions, bases, updates, kind)
            sessions = self.lineage.update.values()[updates].tolist()
            self.used += sessions
            if kind == Kind.LOCAL:
                self.kept[self.versions] = sessions[0]
            if kind != Kind.INITIAL:
                made.append((self.versions, kind, sessions))
            self.versions += 1
        while self.tables < len(self.lineage.tables):
            if values:
                self._tabulate(self.tables)
            self.used += self.lineage.tables[self.tables][2].tolist()
            self._alive.add(self.tables)
            self.tables += 1
        return made

    def forget(self) -> None:
        """Drop updates that are in a version; called once that version is on disk."""
        for session in self.used:
            self.store.drop(f"update-{session}")
            self.store.drop(f"logits-{session}")
        self.used.clear()

    def prune(self, versions: Iterable[int], tables: Iterable[int]) -> None:
        """Drop versions and tables that are not needed; the next table builds on the newest one, which stays."""
        for version in self.lineage.give_up(versions):
            self.store.drop(f"version-{version}")
        gone = self._alive - {self.tables - 1, *tables}
        for table in gone:
            self.store.drop(f"table-{table}")
        self._alive -= gone

    def _next(self) -> tuple[slice, slice, Kind]:
        """Where the next version's terms are."""
        while not self._left:  # a row may stand for no version at all
            self._left = self.lineage.rows[self._row][0]
            self._row += 1
        _, kind, _, _, bases, updates = self.lineage.rows[self._row - 1]
        self._left -= 1
        terms = slice(self._base, self._base + bases), slice(self._update, self._update + updates), kind
        self._base += bases
        self._update += updates
        return terms

    def _make(self, version: int, bases: slice, updates: slice, kind: Kind) -> None:
        if kind == Kind.INITIAL:
            self.store.put(f"version-{version}", {"version": self.initial})
            return
        lineage = self.lineage
        if kind == Kind.LOCAL:
            # The client continues from it and reports how far it is from the base, so the base stands for it.
            self.store.put(f"version-{version}", self.store.get(f"version-{lineage.base.values()[bases][0]}"))
            return
        coefficients, weights = lineage.coefficient.values()[bases], lineage.weight.values()[updates]
        made = evaluate(
            self._rows["version"],
            lineage.base.values()[bases].tolist(),
            torch.from_numpy(coefficients.copy()).to(self.initial),
            self._rows["update"],
            lineage.update.values()[updates].tolist(),
            torch.from_numpy(weights.copy()).to(self.initial),
            plain=len(coefficients) == 1 and coefficients[0] == 1.0,
        )
        self.store.put(f"version-{version}", {"version": made})

    def _tabulate(self, table: int) -> None:
        _, _, sessions = self.lineage.tables[table]
        parts = [self.store.get(f"logits-{session}") for session in sessions.tolist()]
        before = LogitTable(**self.store.get(f"table-{table - 1}")) if table else None
        clients = torch.from_numpy(self.fleet.client_of(sessions))
        made = tabulate(before, self.fleet.clients, clients, [(part["sums"], part["counts"]) for part in parts])
        self.store.put(f"table-{table}", attrs.asdict(made, recurse=False))


class Stored:
    """The vectors of one kind in a store."""

    def __init__(self, store: TensorStore, kind: str) -> None:
        self.store, self.kind = store, kind

    def __getitem__(self, key: int) -> Tensor:
        return self.store.get(f"{self.kind}-{key}")[self.kind]

    def gather(self, keys: Sequence[int]) -> Tensor:
        return torch.stack([self[key] for key in keys])
