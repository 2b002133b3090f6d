"""What the server expects batteries to gain between their reports."""

from __future__ import annotations

import numpy as np

from pipecycle.world.energy import UNIT
from pipecycle.world.harvest import Always, Bernoulli, Markov
from pipecycle.world.specs import parse_harvest
from pipecycle.world.streams import Ints

BLOCK = 1024


class Forecast:
    """Expected quanta per slot: the long-run rate of a random harvest, or the recorded one as it stands."""

    def __init__(self, harvest: str, clients: int, trial: int) -> None:
        source = parse_harvest(harvest)
        self._rate: Ints | None = None
        if isinstance(source, Always | Bernoulli | Markov):
            rate = np.asarray(1.0 if isinstance(source, Always) else source.rate)
            self._rate = np.floor(np.broadcast_to(rate, (clients,)) * UNIT).astype(np.int64)
        else:
            self._weather = source.weather(clients, trial)
            self._sums: Ints = np.zeros((1, clients), np.int64)

    def through(self, slot: int) -> Ints:
        """What every client is expected to have gained by the end of a slot, from slot 0."""
        if self._rate is not None:
            return self._rate * (slot + 1)
        while len(self._sums) <= slot + 1:
            more = self._sums[-1] + np.cumsum(self._weather.block(BLOCK), axis=0)
            self._sums = np.concatenate([self._sums, more])
        row: Ints = self._sums[slot + 1]
        return row

    def gains(self, slot: int) -> Ints:
        return self.through(slot) - self.through(slot - 1)
