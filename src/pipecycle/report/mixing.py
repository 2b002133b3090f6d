"""Where the models that the server adopts come from: the weight of every chain's updates in them."""

from __future__ import annotations

import numpy as np
from attrs import frozen

from pipecycle.errors import InputError
from pipecycle.schedule.schedule import Schedule
from pipecycle.world.streams import Floats, Ints


@frozen(eq=False)
class Mixing:
    """`share[c, k]` is the percentage of the updates in publication `k`, by weight, that chain `chain[c]` made."""

    slot: Ints
    """Of each publication."""
    chain: Ints
    share: Floats
    whole: bool
    """Whether these are all publications of the schedule, and not only the first."""

    @property
    def sources(self) -> float:
        """How many chains a model draws on, in the mean: 1 / the sum of squared shares, as for equal shares."""
        squares = ((self.share / 100) ** 2).sum(axis=0)
        return float(np.mean(1 / squares[squares > 0])) if squares.any() else 0.0


def mixing(schedule: Schedule, most: int = 90) -> Mixing:
    """The first publications that hold any update, one by one: how a relay works shows from one model to the next."""
    ancestry, publications = schedule.ancestry, schedule.publications
    count = min(
        most, len(publications.slot), 50_000_000 // (len(schedule.versions) + len(schedule.versions.update) + 1)
    )
    chosen = np.asarray(publications.version[:count], np.int64)
    weights = ancestry.weights(chosen)
    chain = ancestry.chain_of_event[ancestry.event_of_session[schedule.versions.update]]
    chains = np.unique(chain[weights.any(axis=1)]) if len(chosen) else np.empty(0, np.int64)
    amount = np.array([np.abs(weights[chain == number].sum(axis=0)) for number in chains])
    total = amount.sum(axis=0) if len(chains) else np.zeros(0)
    if not total.any():
        raise InputError("the server adopted no model that holds an update")
    kept = total > 0
    share = 100 * amount[:, kept] / total[kept]
    whole = count == len(publications.slot)
    return Mixing(np.asarray(publications.slot[:count], np.int64)[kept], chains, share, whole)
