"""MIFA (Gu et al. 2021) with the paper's clock (Section VI-B).

The server remembers the last update of every client and moves by the mean over all of them, heard from in this
epoch or not.  Ours: memories start at zero rather than waiting for everybody, and are kept although the paper's
sentence leaves them out (`use_memory = false` is that reading).  Where the learning rate decays, the trainer uses
memories at the present rate, as MIFA's authors do.  Where links fail (`rounds.py`), a lost update leaves the client's
memory as it was.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from attrs import define, field

from pipecycle.checks import flag
from pipecycle.policies.rounds import Remembering
from pipecycle.world.streams import Ints, merged


@define(slots=False, eq=False)
class MIFA(Remembering):
    """All train at the same time in every epoch; the server also reuses the last update of absent clients."""

    name: ClassVar[str] = "mifa"

    use_memory: bool = field(default=True, validator=flag)
    """Average over the last updates of all clients instead of those just received."""

    def aggregate(self, clients: Ints, sessions: Ints) -> None:
        server = self.lineage.published
        if not self.use_memory:
            if len(sessions):
                self.lineage.publish(self.lineage.mean(server, merged(sessions)))
            return
        self.memory[clients] = self.lineage.each(sessions)
        known = self.memory[self.memory >= 0]
        if len(known):
            coefficients = np.full(len(known) + 1, 1.0 / self.clients)
            coefficients[0] = 1.0
            self.lineage.publish(self.lineage.combine(np.concatenate([[server], known]), coefficients))
