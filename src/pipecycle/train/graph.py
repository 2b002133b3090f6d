"""What a schedule needs to be computed, what is ready, and what is still in use: a dependency graph in numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipecycle.schedule.ancestry import owners
from pipecycle.schedule.schedule import Schedule
from pipecycle.world.streams import Ints

Flags = NDArray[np.bool_]


class Index:
    """The items that belong to each owner: `index[owner]` is a list."""

    def __init__(self, owner: Ints, item: Ints, owners: int) -> None:
        order = np.argsort(owner, kind="stable")
        self._items: list[int] = item[order].tolist()
        self._at: list[int] = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=owners))]).tolist()

    def __getitem__(self, owner: int) -> list[int]:
        return self._items[self._at[owner] : self._at[owner + 1]]


class Graph:
    """The part of a schedule that `wanted` versions depend on, and how far it has been computed.

    An input is kept until everything that needs it is done; the methods that record progress return what is no longer
    needed, so that memory grows with what is in use and not with the length of the run."""

    def __init__(
        self, schedule: Schedule, wanted: Ints, observed: Ints | None = None, made: Ints | None = None
    ) -> None:
        """`observed` sessions are trained and `made` versions are made even if nothing else needs them."""
        self.schedule = schedule
        sessions, versions, tables = schedule.sessions, schedule.versions, schedule.tables
        self.reference = sessions.reference.astype(np.int64)
        self.teacher = np.ascontiguousarray(sessions.teacher).astype(np.int64)
        self.maker = np.full(len(sessions), -1)
        self.maker[versions.update] = owners(versions.update_at)
        self.table = np.full(len(sessions), -1)
        self.table[tables.session] = owners(tables.session_at)
        self.wanted = np.zeros(len(versions), bool)
        self.wanted[wanted] = True
        self.version_needed, self.session_needed, self.table_needed = self._needed(observed, made)
        self._indices()
        self.resume(
            np.arange(len(versions)) == 0, np.zeros(len(sessions), bool), np.zeros(len(tables.slot), bool), self.wanted
        )

    def _needed(self, observed: Ints | None, made: Ints | None) -> tuple[Flags, Flags, Flags]:
        versions, tables = self.schedule.versions, self.schedule.tables
        need = self.wanted.copy()
        need[0] = True
        if made is not None:
            need[made] = True
        session_need = np.zeros(len(self.reference), bool)
        if observed is not None:
            session_need[observed] = True
            need[self.reference[observed]] = True
        base_at, update_at = versions.base_at.tolist(), versions.update_at.tolist()
        table_need = np.zeros(len(tables.slot), bool)
        while True:
            # References are older than what is made of them, so that one pass downwards is enough ...
            for version in range(len(versions) - 1, -1, -1):
                if need[version]:
                    need[versions.base[base_at[version] : base_at[version + 1]]] = True
                    mine = versions.update[update_at[version] : update_at[version + 1]]
                    session_need[mine] = True
                    need[self.reference[mine]] = True
            # ... unless a teacher comes in, which rests on all tables before it.
            last = int(self.teacher[session_need].max(initial=-1))
            if last < 0 or table_need[: last + 1].all():
                return need, session_need, table_need
            table_need[: last + 1] = True
            taught = tables.session[: tables.session_at[last + 1]]
            session_need[taught] = True
            need[self.reference[taught]] = True

    def _indices(self) -> None:
        versions, tables = self.schedule.versions, self.schedule.tables
        count, makers = len(versions), owners(versions.base_at)
        kept = self.version_needed[makers]
        self.children = Index(versions.base[kept], makers[kept], count)
        needed = np.flatnonzero(self.session_needed)
        self.by_reference = Index(self.reference[needed], needed, count)
        taught = needed[self.teacher[needed] >= 0]
        self.by_teacher = Index(self.teacher[taught], taught, len(tables.slot))
        self.bases = Index(makers[kept], versions.base[kept].astype(np.int64), count)

    def resume(self, versions: Flags, sessions: Flags, tables: Flags, unseen: Flags) -> None:
        """Set what is done, and which of the wanted versions have not been looked at yet; count the rest again."""
        record = self.schedule.versions
        self.version_done, self.session_done, self.table_done = versions.copy(), sessions.copy(), tables.copy()
        self.unseen = unseen.copy()
        count, makers = len(record), owners(record.base_at)
        open_bases = np.bincount(makers[~versions[record.base]], minlength=count)
        open_updates = np.bincount(owners(record.update_at)[~sessions[record.update]], minlength=count)
        self.version_waits: list[int] = (open_bases + open_updates).tolist()
        waiting = self.session_needed & ~sessions
        taught = np.where(self.teacher >= 0, ~tables[self.teacher] if len(tables) else False, False)
        self.session_waits: list[int] = ((~versions[self.reference]).astype(np.int64) + taught).tolist()
        open_logits = np.bincount(self.table[(self.table >= 0) & ~sessions], minlength=len(tables))
        self.table_waits: list[int] = (open_logits + np.append(0, ~tables[:-1])[: len(tables)]).tolist()
        # Who still uses a version: sessions to start from it, recipes to be made of it, and those who want to see it.
        users = np.bincount(self.reference[waiting], minlength=count)
        unmade = self.version_needed[makers] & ~versions[makers]
        users += np.bincount(record.base[unmade], minlength=count)
        self.version_users: list[int] = (users + unseen).tolist()
        self.ready: list[int] = np.flatnonzero(waiting & (np.array(self.session_waits, np.int64) == 0)).tolist()
        self.remaining = int(waiting.sum())

    def makeable(self) -> list[int]:
        """Needed versions that only wait to be made: those that rest on the initial model alone."""
        open_ones = np.flatnonzero(self.version_needed & ~self.version_done)
        return [version for version in open_ones.tolist() if not self.version_waits[version]]

    # Progress.  Each returns what can now be done, and what is no longer in use.

    def session_trained(self, session: int) -> tuple[int | None, int | None, bool]:
        """The version and the table that can now be made, and whether the reference is still in use."""
        self.session_done[session] = True
        self.remaining -= 1
        version = self._count_down(int(self.maker[session]), self.version_waits, self.version_needed)
        table = self._count_down(int(self.table[session]), self.table_waits, self.table_needed)
        return version, table, self._release(int(self.reference[session]))

    def version_made(self, version: int) -> tuple[list[int], list[int]]:
        """Versions that can now be made, and older versions that are no longer in use; sessions become ready."""
        self.version_done[version] = True
        self.ready += self._wake(self.by_reference[version])
        free = [base for base in self.bases[version] if not self._release(base)]
        followers = []
        for child in self.children[version]:
            self.version_waits[child] -= 1
            if not self.version_waits[child]:
                followers.append(child)
        return followers, free

    def table_made(self, table: int) -> int | None:
        """The next table, if it only waited for this one; sessions become ready."""
        self.table_done[table] = True
        self.ready += self._wake(self.by_teacher[table])
        follower = table + 1
        if follower < len(self.table_waits):
            self.table_waits[follower] -= 1
            if not self.table_waits[follower] and self.table_needed[follower]:
                return follower
        return None

    def seen(self, version: int) -> bool:
        """A wanted version was looked at; whether it is still in use."""
        self.unseen[version] = False
        return self._release(version)

    def _wake(self, sessions: list[int]) -> list[int]:
        awake = []
        for session in sessions:
            self.session_waits[session] -= 1
            if not self.session_waits[session] and not self.session_done[session]:
                awake.append(session)
        return awake

    def _count_down(self, owner: int, waits: list[int], needed: Flags) -> int | None:
        if owner < 0 or not needed[owner]:
            return None
        waits[owner] -= 1
        return None if waits[owner] else owner

    def _release(self, version: int) -> bool:
        self.version_users[version] -= 1
        return self.version_users[version] > 0
