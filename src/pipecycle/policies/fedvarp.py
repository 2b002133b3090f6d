"""FedVARP (Jhunjhunwala et al., *Tackling the Variance Due to Partial Client Participation*, 2022).

The server remembers the last update y_i of every client, and what has just arrived corrects the mean of what it
remembers: x <- x + (1 / |S|) sum over S of (update_i - beta y_i) + (beta / N) sum over all of y_j, and then y_i becomes
update_i.  FedVARP has beta = 1; below it memories count for less, as in FedStale (Rodio and Neglia 2024), down to beta
= 0, which would be FedAvg with this timing (`mifa` with `use_memory = false`).

Ours: rounds are MIFA's epochs (`rounds.py`), and S is whoever had the energy, where its paper draws a fixed number;
memories start at zero; the server's learning rate is 1; in a round without updates nothing happens; clients count alike
whatever their samples, as in its paper.  Where the learning rate decays, memories count at the present rate, as MIFA's.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from attrs import define, field

from pipecycle.checks import share
from pipecycle.policies.rounds import Remembering
from pipecycle.world.streams import Ints


@define(slots=False, eq=False)
class FedVARP(Remembering):
    """All train at the same time in every epoch; new updates correct the mean of all clients' last ones."""

    name: ClassVar[str] = "fedvarp"

    beta: float = field(default=1.0, validator=share)
    """Weight of the remembered updates; 1 is FedVARP, less is FedStale."""

    def aggregate(self, clients: Ints, sessions: Ints) -> None:
        if not len(sessions):
            return
        new = self.lineage.each(sessions)
        part = np.full(self.clients, self.beta / self.clients)
        np.subtract.at(part, clients, self.beta / len(clients))  # a client that was late may be there twice
        used = (self.memory >= 0) & (part != 0.0)
        versions = np.concatenate([[self.lineage.published], self.memory[used], new])
        coefficients = np.concatenate([[1.0], part[used], np.full(len(new), 1.0 / len(new))])
        self.lineage.publish(self.lineage.combine(versions, coefficients))
        self.memory[clients] = new
