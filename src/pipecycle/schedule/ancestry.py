"""Who descends from whom: events, chains, lag, depth, coverage, and the virtual model of the paper's analysis.

An *event* is an aggregation, numbered from 1 in the order of making; the initial model counts as event 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from pipecycle.checks import MOST_SLOTS
from pipecycle.world.lineage import Kind, Recipe
from pipecycle.world.streams import Floats, Ints

if TYPE_CHECKING:
    from pipecycle.schedule.schedule import Publications, Sessions, Versions


@frozen
class Chain:
    """A tip of the lineage: a model that somebody may still build on."""

    version: int
    coverage: int
    """Distinct clients whose updates are in it."""
    depth: int
    """Aggregations on its longest line of descent."""


class Ancestry:
    """Answers about one lineage; each is worked out once, when it is first asked for."""

    def __init__(self, versions: Versions, publications: Publications, sessions: Sessions, clients: int) -> None:
        self._versions, self._publications, self._sessions = versions, publications, sessions
        self._clients = clients
        self._aggregation = versions.kind == Kind.AGGREGATION
        self.events = int(self._aggregation.sum())
        """How many aggregations there were."""

    @cached_property
    def event_versions(self) -> Ints:
        """The version made by each event; entry 0 is the initial model."""
        return np.concatenate([[0], np.flatnonzero(self._aggregation)])

    @cached_property
    def event_slots(self) -> Ints:
        """The slot of each event, -1 for the initial model."""
        return self._versions.made[self.event_versions].astype(np.int64)

    @cached_property
    def event_of_version(self) -> Ints:
        """The latest event that each version descends from, itself included."""
        event = np.where(self._aggregation, np.cumsum(self._aggregation), 0)
        for first, last in self._runs:
            if not self._aggregation[first]:
                bases = event[self._bases(first, last)]
                event[first:last] = bases if last - first > 1 else bases.max()
        return event

    @cached_property
    def _absorbed(self) -> Ints:
        """The first event that takes each version in: its own number for an aggregation, 0 for never."""
        versions = self._versions
        never = self.events + 1
        first = np.where(self._aggregation, np.cumsum(self._aggregation), never)
        held = ~self._aggregation
        if held.sum() > 1:
            makers = np.repeat(np.where(self._aggregation, first, never), np.diff(versions.base_at))
            inside = held[versions.base]
            np.minimum.at(first, versions.base[inside], makers[inside])
            for version in np.flatnonzero(versions.kind == Kind.HANDOVER)[::-1].tolist():
                for base in self._bases(version, version + 1).tolist():
                    if held[base]:
                        first[base] = min(first[base], first[version])
        return np.where(first == never, 0, first)

    @cached_property
    def _maker(self) -> Ints:
        """The version that each update term belongs to."""
        return owners(self._versions.update_at)

    @cached_property
    def event_of_session(self) -> Ints:
        """The event that took in each session's update, 0 for none."""
        event = np.zeros(len(self._sessions), np.int64)
        event[self._versions.update] = self._absorbed[self._maker]
        return event

    @cached_property
    def group_sizes(self) -> Ints:
        """Updates taken in by each event (from event 1 on); a kept model and its continuation are one update."""
        whole = self._versions.kind[self._maker] != Kind.LOCAL
        events = self.event_of_session[self._versions.update[whole]]
        return np.bincount(events, minlength=self.events + 1)[1:]

    @cached_property
    def parents(self) -> Ints:
        """pi(tau): the oldest event whose model a member of event tau started from (entry 0 is event 0's own)."""
        parent = np.arange(self.events + 1)
        taken = self.event_of_session
        used = np.flatnonzero(taken)
        np.minimum.at(parent, taken[used], self.event_of_version[self._sessions.reference[used]])
        return parent

    @cached_property
    def published_as(self) -> Ints:
        """The number of each version's publication; of those never published, how many had been when it was made."""
        number = self._versions.seen.astype(np.int64)
        order = np.arange(1, len(self._publications.version) + 1)
        number[self._publications.version[::-1]] = order[::-1]
        number[0] = 0
        return number

    @cached_property
    def lags(self) -> Ints:
        """For every update used: versions published between its reference's publication and its own use."""
        reference = self._sessions.reference[self._versions.update]
        return np.asarray(self._versions.seen[self._maker] - self.published_as[reference], np.int64)

    @property
    def ancestry_max(self) -> int | None:
        """The largest tau - pi(tau)."""
        return int((np.arange(self.events + 1) - self.parents).max()) if self.events else None

    @cached_property
    def depths(self) -> Ints:
        """Aggregations on the longest line of descent of each version."""
        depth: Ints = self._aggregation.astype(np.int64)
        for first, last in self._runs:
            bases = depth[self._bases(first, last)]
            depth[first:last] += bases if last - first > 1 else bases.max()
        return depth

    @cached_property
    def chains(self) -> list[Chain]:
        """The tips at the end."""
        return [Chain(tip, self.coverage(tip), int(self.depths[tip])) for tip in self.live(MOST_SLOTS)]

    def live(self, slot: int) -> list[int]:
        """The tips once `slot` slots have elapsed, oldest first: the published version, references of sessions in
        flight and models that wait for their turn, less those that are ancestors of another.

        The record does not say when a waiting model was discarded: one that will be never counts."""
        sessions, versions, last, out = self._sessions, self._versions, slot - 1, self._publications.by(slot)
        candidates = {int(self._publications.version[out - 1]) if out else 0}
        in_flight = (sessions.start <= last) & ((sessions.end < 0) | (sessions.end > last))
        references = np.unique(sessions.reference[in_flight])
        candidates.update(references[versions.kind[references] != Kind.LOCAL].tolist())
        kept = np.isin(versions.kind, (Kind.AGGREGATION, Kind.HANDOVER)) & ~versions.discarded & (versions.made <= last)
        kept[self._publications.version[:out]] = False
        kept[versions.base[versions.made[owners(versions.base_at)] <= last]] = False
        candidates.update(np.flatnonzero(kept).tolist())
        inherited = np.zeros(len(self._versions), np.uint8)
        tips = []
        for version in sorted(candidates, reverse=True):
            if not inherited[version]:
                inherited |= self.ancestors(version)
                tips.append(version)
        return tips[::-1]

    @cached_property
    def chain_of_event(self) -> Ints:
        """A number per event, equal along a line of references; an event that branches off begins a new one."""
        chain = np.zeros(self.events + 1, np.int64)
        continued: set[int] = set()
        count = 0
        for event, parent in enumerate(self.parents.tolist()[1:], 1):
            if parent and parent not in continued:
                continued.add(parent)
                chain[event] = chain[parent]
            else:
                count += 1
                chain[event] = count
        return chain

    def coverage(self, version: int) -> int:
        """Distinct clients whose updates are in the version."""
        seen = np.zeros(self._clients, bool)
        seen[self._sessions.client[self.sessions(version)]] = True
        return int(seen.sum())

    def met(self, chosen: Ints) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        """Whether the updates of each client are in each of some versions, chosen x clients.  A bit stands for a
        version, so that one walk serves 64."""
        if len(chosen) > 64:
            return np.concatenate([self.met(chosen[:64]), self.met(chosen[64:])])
        bits = np.zeros(len(self._versions), np.uint64)
        number = np.arange(len(chosen), dtype=np.uint64)
        np.bitwise_or.at(bits, chosen, np.uint64(1) << number)
        for first, last in reversed(self._runs):
            if last - first > 1:
                np.bitwise_or.at(bits, self._bases(first, last), bits[first:last])
            elif bits[first]:
                bits[self._bases(first, last)] |= bits[first]
        seen = np.zeros(self._clients, np.uint64)
        np.bitwise_or.at(seen, self._sessions.client[self._versions.update], bits[self._maker])
        return (seen >> number[:, None] & np.uint64(1)).astype(bool)

    def sessions(self, version: int) -> Ints:
        """The sessions whose updates are in the version."""
        return np.asarray(self._versions.update[self.ancestors(version)[self._maker] > 0], np.int64)

    def ancestors(self, version: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """A flag per version: is it in the ancestry of `version`, itself included?"""
        flags = bytearray(len(self._versions))
        reached = np.frombuffer(flags, np.uint8)
        flags[version] = 1
        for first, last in reversed(self._runs):
            if last - first > 1:
                reached[self._bases(first, last)] |= reached[first:last]
            elif flags[first]:
                reached[self._bases(first, last)] = 1
        return reached

    def rounds(self, version: int) -> float:
        """How many whole group updates the version has behind it: it is x_0 plus weighted updates, and this is the
        sum of the weights.  A chain of FedAvg rounds has its length, a mixture of two equal chains no more than one."""
        return float(self.weights(np.array([version])).sum())

    def weights(self, chosen: Ints) -> Floats:
        """The weight of every update (in the order of `versions.update`) in each of some versions, terms x chosen."""
        part = np.zeros((len(self._versions), len(chosen)))
        part[chosen, np.arange(len(chosen))] = 1.0
        for first, last in reversed(self._runs):
            if last - first > 1 or part[first].any():
                shares = self._versions.coefficient[self._base_at[first] : self._base_at[last], None]
                np.add.at(part, self._bases(first, last), part[first:last] * shares)
        return np.asarray(part[self._maker] * self._versions.weight[:, None])

    def recipe(self, version: int) -> Recipe:
        """How the version is made."""
        versions = self._versions
        bases = slice(versions.base_at[version], versions.base_at[version + 1])
        updates = slice(versions.update_at[version], versions.update_at[version + 1])
        return Recipe(
            versions.base[bases].astype(np.int64),
            versions.coefficient[bases],
            versions.update[updates].astype(np.int64),
            versions.weight[updates],
        )

    def virtual(self, event: int) -> Recipe:
        """z_tau = x_0 + the group updates of events 1..tau, whichever chain they belong to."""
        last = int(self._versions.update_at[self.event_versions[event] + 1])
        mine = np.flatnonzero(self._aggregation[self._maker[:last]])
        sessions = self._versions.update[mine].astype(np.int64)
        return Recipe(np.zeros(1, np.int64), np.ones(1), sessions, self._versions.weight[mine])

    def perturbation(self, event: int) -> Recipe:
        """e_tau = z_tau - x_tau."""
        z = self.virtual(event)
        model = np.array([0, self.event_versions[event]])
        return Recipe(model, np.array([1.0, -1.0]), z.sessions, z.weights)

    # Inside.

    @cached_property
    def _runs(self) -> list[tuple[int, int]]:
        """Versions that are made of others, oldest first, as ranges: one by one, except that clients' own models,
        which have one base each and come in large numbers, go together."""
        composed = np.flatnonzero(np.diff(self._versions.base_at))
        alone = self._versions.kind[composed] != Kind.LOCAL
        begins = alone.copy()
        begins[1:] |= alone[:-1] | (np.diff(composed) > 1)
        begins[:1] = True
        firsts = composed[begins]
        lasts = np.append(composed[np.flatnonzero(begins)[1:] - 1], composed[-1:]) + 1
        return list(zip(firsts.tolist(), lasts.tolist(), strict=True))

    @cached_property
    def _base_at(self) -> list[int]:
        return self._versions.base_at.tolist()  # type: ignore[no-any-return]

    def _bases(self, first: int, last: int) -> Ints:
        return np.asarray(self._versions.base[self._base_at[first] : self._base_at[last]])


def owners(at: Ints) -> Ints:
    """The row that each term belongs to, where row k has the terms at[k] to at[k + 1] - 1."""
    return np.repeat(np.arange(len(at) - 1), np.diff(at))


def mean(values: Ints | Floats | Sequence[float]) -> float | None:
    """A mean of nothing is None."""
    return float(np.mean(values)) if len(values) else None


def busy_groups(group: Ints, start: Ints, end: Ints, slots: int) -> Ints:
    """How many groups have a member in training, slot by slot."""
    order = np.lexsort((start, group))
    group, start, end = group[order], start[order].astype(np.int64), end[order].astype(np.int64)
    # The latest end so far within the group; offsets keep groups apart in one running maximum.
    stride = slots + 2
    rank = np.cumsum(np.diff(group, prepend=group[:1]) != 0)
    reach = np.maximum.accumulate(end + rank * stride) - rank * stride
    begins = np.ones(len(group), bool)
    begins[1:] = (np.diff(rank) > 0) | (start[1:] > reach[:-1] + 1)
    lasts = np.append(begins[1:], True)[: len(group)]
    change = np.bincount(start[begins], minlength=slots + 1) - np.bincount(reach[lasts] + 1, minlength=slots + 1)
    return np.cumsum(change)[:slots]
