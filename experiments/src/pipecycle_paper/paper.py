"""What the paper printed: its two tables, with the lines of the manuscript that they stand on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import frozen

from pipecycle.policies import TITLES

DELTAS = (0.1, 0.3, 0.5, 1.0)
GROUPS = (2, 5, 10)
DISTRIBUTIONS = {"iid": "IID", "non-iid": "non-IID"}
"""Of the samples, and what to call them."""
COLUMNS = tuple((where, delta) for where in DISTRIBUTIONS for delta in DELTAS)
"""Of the two tables."""
BUDGET = 500_000.0
TRIALS = 10
"""Trials per configuration (App. C); the paper gives means and no spread."""
CHANCE = 10.0

NAMES = {
    **{policy: TITLES[policy] for policy in ("fedavg", "mifa", "flda", "cycp", "fedseq", "fedbacys", "pipecycle")},
    "pipecycle+": f"{TITLES['pipecycle+']} (ours)",
    "fedseq lag-stable": "FedSeq, lag-stable (ours)",
    "pipecycle mixed": "PipeCycle, mixed (ours)",
    "isolated": TITLES["isolated"],
}
"""Schemes as the paper's tables call them, in their order; ours last."""
UNGROUPED = ("fedavg", "mifa", "flda")
CYCLIC = ("cycp", "fedseq", "fedbacys")
BASELINES = (*UNGROUPED, *CYCLIC)
HARVESTING = ("fedseq", "flda", "fedbacys")
"""Baselines that were designed for harvested energy (Section VI-B)."""


@frozen
class Printed:
    """A row of a table: where it stands, and its accuracies (%) for the four charging probabilities."""

    policy: str
    groups: int | None
    line: int
    values: tuple[float, float, float, float]
    bold: tuple[float, ...] = ()
    """The charging probabilities whose cell is printed in bold."""


TABLE_I = (
    Printed("fedavg", None, 400, (65.4, 64.8, 61.4, 50.4)),
    Printed("mifa", None, 402, (62.2, 62.7, 60.5, 55.9)),
    Printed("flda", None, 404, (64.6, 64.4, 63.2, 56.6)),
    Printed("cycp", 2, 407, (65.3, 65.5, 63.4, 57.2)),
    Printed("cycp", 5, 409, (62.7, 65.0, 67.1, 63.9)),
    Printed("cycp", 10, 411, (43.4, 50.3, 46.3, 40.5)),
    Printed("fedseq", 2, 414, (64.9, 63.9, 64.1, 64.5)),
    Printed("fedseq", 5, 416, (59.9, 65.3, 52.5, 51.6)),
    Printed("fedseq", 10, 418, (36.7, 44.1, 27.6, 25.5)),
    Printed("fedbacys", 2, 421, (38.4, 45.0, 57.6, 61.8)),
    Printed("fedbacys", 5, 423, (17.2, 14.8, 19.6, 58.8)),
    Printed("fedbacys", 10, 425, (18.3, 12.5, 19.0, 17.4)),
    Printed("pipecycle", 2, 428, (68.5, 69.0, 69.4, 69.2)),
    Printed("pipecycle", 5, 430, (67.3, 70.2, 69.9, 69.6), (0.3,)),
    Printed("pipecycle", 10, 432, (66.5, 69.1, 72.0, 71.9), (0.1, 0.5, 1.0)),
)
"""IID."""

TABLE_II = (
    Printed("fedavg", None, 452, (62.7, 58.7, 51.1, 41.9)),
    Printed("mifa", None, 454, (39.1, 43.0, 19.6, 46.7)),
    Printed("flda", None, 456, (63.4, 59.9, 51.6, 43.5)),
    Printed("cycp", 2, 459, (60.0, 55.4, 44.8, 31.1)),
    Printed("cycp", 5, 461, (10.3, 12.6, 16.2, 50.3)),
    Printed("cycp", 10, 463, (10.3, 10.1, 10.0, 10.8)),
    Printed("fedseq", 2, 466, (65.6, 63.2, 60.4, 60.1), (0.1,)),
    Printed("fedseq", 5, 468, (10.2, 12.2, 12.2, 12.2)),
    Printed("fedseq", 10, 470, (10.3, 10.3, 10.3, 10.3)),
    Printed("fedbacys", 2, 473, (10.0, 10.0, 10.6, 10.2)),
    Printed("fedbacys", 5, 475, (10.2, 10.1, 10.0, 10.5)),
    Printed("fedbacys", 10, 477, (10.2, 10.1, 10.0, 10.1)),
    Printed("pipecycle", 2, 480, (65.0, 66.1, 63.7, 64.5), (0.3, 0.5, 1.0)),
    Printed("pipecycle", 5, 482, (61.1, 62.3, 61.8, 61.5)),
    Printed("pipecycle", 10, 484, (65.3, 55.7, 52.7, 45.8), (0.1,)),
)
"""Dirichlet(0.1)."""

TABLES = {"iid": TABLE_I, "non-iid": TABLE_II}


def column(distribution: str, delta: float) -> str:
    return f"{DISTRIBUTIONS[distribution]}, δ = {delta:g}"


def label(policy: str, groups: int | None) -> str:
    return NAMES.get(policy, policy) + ("" if groups is None else f", G = {groups}")


def choices(policies: Iterable[str]) -> list[tuple[str, int | None]]:
    """Some of the paper's schedulers with every number of groups that they have."""
    return [(policy, groups) for policy in policies for groups in ((None,) if policy in UNGROUPED else GROUPS)]


def two_groups(policy: str) -> int | None:
    """G = 2 for a scheduler that has groups."""
    return None if policy in UNGROUPED else 2


def cells(distribution: str) -> Iterator[tuple[str, int | None, float, float]]:
    """Policy, groups, charging probability and accuracy of every cell of Table I or II."""
    for row in TABLES[distribution]:
        for delta, accuracy in zip(DELTAS, row.values, strict=True):
            yield row.policy, row.groups, delta, accuracy


def value(distribution: str, policy: str, groups: int | None, delta: float) -> float | None:
    """A cell of Table I or II."""
    wanted = policy, groups, delta
    return next((accuracy for *place, accuracy in cells(distribution) if tuple(place) == wanted), None)
