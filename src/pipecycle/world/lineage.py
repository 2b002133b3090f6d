"""Models without tensors: every version is an affine recipe over older versions and session updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum

import numpy as np
from attrs import frozen

from pipecycle.errors import ActionError
from pipecycle.world.columns import Column, Flags
from pipecycle.world.streams import Floats, Ints

Samples = Callable[[Ints], Ints | None]
_NONE: Ints = np.empty(0, np.int64)
_NO_WEIGHTS: Floats = np.empty(0)


class Kind(IntEnum):
    """What a version is for.  Only aggregations count as such in reports."""

    INITIAL = 0
    AGGREGATION = 1
    """Made from updates, by a hub or the server."""
    MIXTURE = 2
    """A blend of versions at a relay."""
    HANDOVER = 3
    """One client's model on its way to the next client of a chain."""
    MEMORY = 4
    """A displacement: one update kept by the server, with no base.  Used at the learning rate of its use."""
    LOCAL = 5
    """One client's model kept by itself."""


Row = tuple[int, Kind, int, int, int, int]
"""How many versions, their kind, slot, publications so far, and the number of versions and updates in each."""


@frozen(eq=False)
class Recipe:
    """sum coefficients[k] * version(versions[k]) + sum weights[j] * update(sessions[j])."""

    versions: Ints
    coefficients: Floats
    sessions: Ints
    weights: Floats


class Lineage:
    """The record of all versions; version 0 is the initial model, and the server begins by serving it."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self.slot = -1
        self.published = 0
        self.publications: list[tuple[int, int]] = []  # slot, version
        self.discarded: list[int] = []
        self._published_as = {0: 0}  # the number of each published version

        # One row per version, or one for many alike; their terms are consecutive in the two term tables.
        self.rows: list[Row] = []
        self._count = 0
        self.base, self.coefficient = Column(np.int32), Column(np.float64)
        self.update, self.weight = Column(np.int32), Column(np.float64)

        # FLDA's teachers: per-label logit tables.
        self.tables: list[tuple[int, int, Ints]] = []  # slot, the table whose rows are kept, sessions
        self._used = Flags()
        self._alive: set[int] | None = None  # versions that may still be named; None for all
        self._judged = 0  # newer ones may be, too
        self.combine((), (), kind=Kind.INITIAL)

    def __len__(self) -> int:
        return self._count

    def combine(
        self,
        versions: Sequence[int] | Ints,
        coefficients: Sequence[float] | Floats,
        sessions: Ints = _NONE,
        weights: Floats = _NO_WEIGHTS,
        *,
        kind: Kind = Kind.AGGREGATION,
    ) -> int:
        """A new version; every update may enter one recipe only."""
        if len(versions) != len(coefficients) or len(sessions) != len(weights):
            raise ActionError("a recipe needs one coefficient per version and one weight per update")
        self.check(versions)
        self._use(sessions)
        if isinstance(versions, np.ndarray):
            self.base.extend(versions)
            self.coefficient.extend(np.asarray(coefficients))
        else:
            self.base.extend_few(versions)
            self.coefficient.extend_few(coefficients)  # type: ignore[arg-type]  # arrays are sequences here
        if len(sessions):
            self.update.extend(sessions)
            self.weight.extend(weights)
        return self._add(1, kind, len(versions), len(sessions))

    def mean(self, base: int, sessions: Ints, *, step: float = 1.0, kind: Kind = Kind.AGGREGATION) -> int:
        """base + step * sum n_i update_i / sum n_i, n_i being the samples that each session used."""
        weights = self.shares(sessions)
        if step != 1.0:
            weights = step * weights
        return self.combine((base,), (1.0,), sessions, weights, kind=kind)

    def shares(self, sessions: Ints) -> Floats:
        samples = self._samples(sessions)
        if samples is None:
            equal = np.empty(len(sessions))
            equal.fill(1.0 / max(1, len(sessions)))
            return equal
        return samples / int(samples.sum())

    def each(self, sessions: Ints, references: Ints | None = None) -> Ints:
        """One version per session: its bare update (a memory), or with `references` the client's own model."""
        self._use(sessions)
        self.update.extend(sessions)
        self.weight.extend(np.ones(len(sessions)))
        if references is None:
            last = self._add(len(sessions), Kind.MEMORY, 0, 1)
        else:
            if self._alive is not None:
                self.check(references)
            self.base.extend(references)
            self.coefficient.extend(np.ones(len(sessions)))
            last = self._add(len(sessions), Kind.LOCAL, 1, 1)
        return np.arange(last + 1 - len(sessions), last + 1)

    def publish(self, version: int) -> int:
        """The server adopts the version."""
        if not 0 <= version < len(self):
            raise ActionError(f"slot {self.slot}: version {version} cannot be published, it does not exist yet")
        self.check((version,))
        self.published = version
        self.publications.append((self.slot, version))
        self._published_as.setdefault(version, len(self.publications))
        return version

    def lag(self, version: int) -> int:
        """How many versions were published after this one was."""
        return len(self.publications) - self._published_as[version]

    def discard(self, version: int) -> None:
        """Nobody will build on the version."""
        self.discarded.append(version)

    def give_up(self, needed: Iterable[int]) -> list[int]:
        """The versions that are not `needed` any more; to name one of them afterwards is an error.  The initial model
        and the published version are always kept."""
        alive = set() if self._alive is None else self._alive
        alive.update(range(self._judged, self._count))
        gone = alive - {0, self.published, *needed}
        self._alive, self._judged = alive - gone, self._count
        return sorted(gone)

    def check(self, versions: Sequence[int] | Ints) -> None:
        """Refuse versions that do not exist yet, or were given up."""
        if not len(versions):
            return
        if isinstance(versions, np.ndarray):
            lowest, highest = int(versions.min()), int(versions.max())
        else:
            lowest, highest = min(versions), max(versions)
        if lowest < 0 or highest >= self._count:
            raise ActionError(f"slot {self.slot}: a recipe names a version that does not exist yet")
        if self._alive is not None:
            gone = {int(version) for version in versions if version < self._judged} - self._alive
            if gone:
                raise ActionError(f"slot {self.slot}: version {min(gone)} was given up: references() did not name it")

    def tabulate(self, sessions: Ints, keep: int) -> int:
        """A teacher: mean logits per label over the sessions; rows that nobody sent are kept from table `keep`."""
        self.tables.append((self.slot, keep, sessions))
        return len(self.tables) - 1

    def _add(self, count: int, kind: Kind, bases: int, updates: int) -> int:
        self.rows.append((count, kind, self.slot, len(self.publications), bases, updates))
        self._count += count
        return self._count - 1

    def _use(self, sessions: Ints) -> None:
        if not len(sessions):
            return
        used = self._used[sessions]
        if np.count_nonzero(used):
            twice = int(sessions[np.argmax(used)])
            raise ActionError(f"slot {self.slot}: the update of session {twice} is used a second time")
        self._used.set(sessions)
