"""Recipes on real weights: versions as they are made, updates until they are used, FLDA's tables."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
import torch
from torch import Tensor

from pipecycle.deploy.server.tensors import Vault
from pipecycle.lineage import Kind, Lineage
from pipecycle.streams import Ints
from pipecycle.train.pool import weighted
from pipecycle.train.teachers import Table

Made = tuple[int, Kind, list[int]]
"""A version, what it is for, and the sessions whose updates are in it."""
ClientOf = Callable[[Ints], Ints]


class Weights:
    """The values behind a lineage; `catch_up` makes what the policy has asked for since."""

    def __init__(self, lineage: Lineage, client_of: ClientOf, clients: int, initial: Tensor, vault: Vault) -> None:
        self.lineage, self.client_of, self.clients, self.vault = lineage, client_of, clients, vault
        self.versions = self.tables = 0
        self._row = self._base = self._update = 0  # how far the lineage's columns have been read
        self._left = 0  # versions still to come from the last row
        self.used: list[int] = []  # sessions whose update is in a version now
        self.kept: dict[int, int] = {}  # a client's own model to the session it came from: its weights never travelled
        self.initial = initial
        self._alive: dict[str, set[int]] = {}
        self._pruned: dict[str, int] = {}

    def received(self, session: int, update: Tensor) -> None:
        self.vault.put(f"update-{session}", {"update": update})

    def received_logits(self, session: int, sums: Tensor, counts: Tensor) -> None:
        self.vault.put(f"logits-{session}", {"sums": sums, "counts": counts})

    def version(self, version: int) -> Tensor:
        return self.vault.get(f"version-{version}")["version"]

    def teacher(self, table: int, client: int) -> tuple[Tensor, Tensor]:
        """What a client learns from, and which rows there are."""
        found = Table(**self.vault.get(f"table-{table}"))
        logits, valid = found.without(torch.tensor([client]))
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
            self.tables += 1
        return made

    def forget(self) -> None:
        """Drop what has been used up; called once what was made of it is safe."""
        for session in self.used:
            self.vault.drop(f"update-{session}")
            self.vault.drop(f"logits-{session}")
        self.used.clear()

    def prune(self, held: set[int]) -> None:
        """Drop versions and tables that nobody can name any more; `held` are the numbers that somebody has."""
        for kind, count, newest in (("version", self.versions, 0), ("table", self.tables, self.tables - 1)):
            alive = self._alive.setdefault(kind, set())
            alive |= set(range(self._pruned.get(kind, 0), count))
            self._pruned[kind] = count
            for number in alive - held - {newest, self.lineage.published}:
                self.vault.drop(f"{kind}-{number}")
                alive.discard(number)

    def _next(self) -> tuple[slice, slice, Kind]:
        """Where the next version's terms are."""
        while not self._left:  # a row may stand for no version at all
            self._left = self.lineage.rows[self._row][0]
            self._row += 1
        _, kind, _, _, bases, updates = self.lineage.rows[self._row - 1]
        self._left -= 1
        found = slice(self._base, self._base + bases), slice(self._update, self._update + updates), kind
        self._base += bases
        self._update += updates
        return found

    def _make(self, version: int, bases: slice, updates: slice, kind: Kind) -> None:
        if kind == Kind.INITIAL:
            self.vault.put(f"version-{version}", {"version": self.initial})
            return
        lineage = self.lineage
        if kind == Kind.LOCAL:
            # The client goes on from it and reports how far it has come from the base, so the base stands for it.
            self.vault.put(f"version-{version}", self.vault.get(f"version-{lineage.base.values()[bases][0]}"))
            return
        total: Tensor | None = None
        for keys, factors, name in (
            (lineage.base.values()[bases], lineage.coefficient.values()[bases], "version"),
            (lineage.update.values()[updates], lineage.weight.values()[updates], "update"),
        ):
            if len(keys):
                rows = torch.stack([self.vault.get(f"{name}-{key}")[name] for key in keys.tolist()])
                part = weighted(rows, torch.from_numpy(np.array(factors)).to(rows))
                total = part if total is None else total + part
        assert total is not None
        self.vault.put(f"version-{version}", {"version": total})

    def _tabulate(self, table: int) -> None:
        _, _, sessions = self.lineage.tables[table]
        parts = [self.vault.get(f"logits-{session}") for session in sessions.tolist()]
        sums, counts = (torch.stack([part[name] for part in parts]) for name in ("sums", "counts"))
        before = Table.empty(self.clients, sums.shape[1], sums)
        if table:
            before = Table(**self.vault.get(f"table-{table - 1}"))
        renewed = before.renewed(torch.from_numpy(self.client_of(sessions)), sums, counts)
        self.vault.put(f"table-{table}", {one.name: getattr(renewed, one.name) for one in attrs.fields(Table)})
