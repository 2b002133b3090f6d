"""Group formation of PipeCycle, shared with FedSeq's paper mode (paper, Section IV-A)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from pipecycle.world.contract import World
from pipecycle.world.energy import Quanta
from pipecycle.world.fleet import Fleet
from pipecycle.world.streams import Ints, merged

_NOBODY: Ints = np.empty(0, np.int64)


def group_cap(clients: int, groups: int) -> int:
    """n_G = floor(N / 2.5 G), at least one."""
    return max(1, 2 * clients // (5 * groups))


class Rotation:
    """Longest-idle-first: idleness counts from the last *joining* (Section IV-A), those who never joined come first,
    ties are broken at random.  With `spread`, the group is drawn from twice as many of the longest idle (ours, against
    chain resonance, docs/schedulers/pipecycle.md).

    The clients wait in line in the order of joining, so that only the head of the line is looked at."""

    def __init__(self, world: World, size: int) -> None:
        self._fleet, self._draw = world.fleet, world.draw
        self._joined = np.full(world.clients, -1, np.int32)
        self._line = np.empty(2 * world.clients + size, np.int64)
        self._line[: world.clients] = np.arange(world.clients)
        self._head, self._tail = 0, world.clients
        self.size, self.spread = size, False

    def pick(self, slot: int, need: Quanta) -> Ints:
        """At most `size` of the free clients with enough energy, in client order; they join in this slot."""
        wanted = 2 * self.size if self.spread else self.size
        places = self._first(wanted, self._fleet.eligible(need))
        if len(places) > wanted:
            # Places are in order of joining: those before the last slot that fits are in, its own are drawn from.
            joined = self._joined[self._line[places]]
            cut = joined[wanted - 1]
            first, last = int(joined.searchsorted(cut)), int(joined.searchsorted(cut, "right"))
            if last > wanted:
                tied = self._draw("tie", slot).sample(places[first:last], wanted - first)
                places = np.concatenate([places[:first], tied])
            else:
                places = places[:wanted]
        if len(places) > self.size:
            places = self._draw("spread", slot).sample(places, self.size)
        members = self._line[places]
        members.sort(kind="stable")
        if len(members):
            self._joined[members] = slot
            self._to_the_end(places, members)
        return members

    def _first(self, wanted: int, eligible: NDArray[np.bool_]) -> Ints:
        """Places in line of the first `wanted` eligible clients and of all who joined with the last of them."""
        places = _NOBODY
        place, stride = self._head, max(256, wanted + wanted // 2)
        while place < self._tail:
            if len(places) >= wanted and self._joined_at(place) > self._joined_at(places[wanted - 1]):
                break
            end = min(place + stride, self._tail)
            more = eligible[self._line[place:end]].nonzero()[0]
            more += place
            places = np.concatenate([places, more]) if len(places) else more
            place, stride = end, max(256, wanted)
        return places

    def _joined_at(self, place: int) -> int:
        return int(self._joined[self._line[place]])

    def _to_the_end(self, places: Ints, members: Ints) -> None:
        """Move the members behind everybody else; the line closes up towards the head."""
        end = int(places[-1]) + 1
        leaving = np.zeros(end - self._head, bool)
        leaving[places - self._head] = True
        staying = self._line[self._head : end][~leaving]
        self._head = end - len(staying)
        self._line[self._head : end] = staying
        if self._tail + len(members) > len(self._line):
            self._line[: self._tail - self._head] = self._line[self._head : self._tail].copy()
            self._head, self._tail = 0, self._tail - self._head
        self._line[self._tail : self._tail + len(members)] = members
        self._tail += len(members)


@define(eq=False)
class Group:
    """Clients that train together from one reference."""

    members: Ints
    sessions: Ints
    reference: int
    finished: list[Ints] = field(factory=list)
    open: int = 0
    first: int = 0
    last: int = 0

    def __attrs_post_init__(self) -> None:
        self.open = len(self.sessions)
        self.first, self.last = int(self.sessions[0]), int(self.sessions[-1])

    def gather(self, fleet: Fleet, hub: int) -> Ints:
        """The others send to the hub in the slot of their last step; the sessions that it then has."""
        arrived = fleet.send(self.members[self.members != hub], "hub", last_step=True)
        if len(arrived) == len(self.sessions) - 1:
            return self.sessions
        return merged(arrived, self.sessions[self.members == hub])


class Groups:
    """The groups in training, oldest first: at most `most`, of at most `size` members, formed at intervals."""

    def __init__(self, world: World, most: int, size: int | None = None, interval: int | None = None) -> None:
        self._fleet, self._most = world.fleet, most
        self._need = world.fleet.to_train + world.fleet.to_report
        self._interval = interval or max(1, -(-world.session // most))
        self.queue = Rotation(world, size or group_cap(world.clients, most))
        self._formed = -self._interval
        self._active: list[Group] = []

    def __len__(self) -> int:
        return len(self._active)

    def form(self, slot: int, reference: Callable[[], int]) -> None:
        """A new group, if it is time, there is room and anybody can train; the reference is asked for only then."""
        if slot - self._formed >= self._interval and len(self) < self._most:
            members = self.queue.pick(slot, self._need)
            if len(members):
                version = reference()
                self._active.append(Group(members, self._fleet.start(members, version, self._need), version))
                self._formed = slot

    def references(self) -> list[int]:
        return [group.reference for group in self._active]

    def closed_by(self, done: Ints, lost: Ints) -> list[Group]:
        """Groups in which everybody has now reported or was lost; they keep only those who finished."""
        if not len(done) and not len(lost):
            return []
        closed: list[Group] = []
        for sessions, finished in ((done, True), (lost, False)):
            if len(sessions):
                closed += self._report(sessions, finished)
        for group in closed:
            self._active.remove(group)
            if len(group.finished) != 1 or len(group.finished[0]) < len(group.sessions):
                back = merged(_NOBODY, *group.finished)
                group.members = group.members[back - group.first]
                group.sessions = back
        return [group for group in closed if len(group.sessions)]

    def _report(self, sessions: Ints, finished: bool) -> list[Group]:
        """Deal sorted session ids out to their groups, whose ids are consecutive and ascend from group to group;
        returns those that nobody is missing from any more."""
        index = 0
        if sessions[0] > self._active[0].last:
            index = bisect_right(self._active, int(sessions[0]), key=lambda group: group.first) - 1
        closed = []
        while len(sessions):
            group = self._active[index]
            mine = len(sessions) if sessions[-1] <= group.last else int(np.searchsorted(sessions, group.last, "right"))
            if mine:
                group.open -= mine
                if finished:
                    group.finished.append(sessions[:mine])
                if not group.open:
                    closed.append(group)
            sessions = sessions[mine:]
            index += 1
        return closed
