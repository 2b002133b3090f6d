"""Each claim about histories and plans, made true and made false, and with nothing run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from pipecycle_paper import claims_curves as claims
from pipecycle_paper import paper, selection
from pipecycle_paper.claims import CLAIMS, examine
from pipecycle_paper.grid import Cell, Grid, Trial, key_of_config

Pace = Callable[[str, str, int | None, float], float | None]
"""Slots (and thousands of units) that a configuration needs for 60 of its 70 %; None was not run."""


def run(pace: float, end: float = 70.0, plan: dict[str, Any] | None = None, trial: int = 0) -> Trial:
    """Rises straight to `end` within 7/6 of `pace` slots; 100 units a slot, the clients' models five points below."""
    slot = np.arange(50.0, 6001.0, 50.0)
    accuracy = np.minimum(end, end * slot / (pace * 7 / 6))
    marks = np.append(np.zeros(len(slot)), 1.0)
    made = {"slot": slot, "energy": 100 * slot, "accuracy": accuracy, "best": accuracy, "loss": accuracy}
    made["clients_accuracy"] = accuracy - 5
    columns = {name: np.append(column, column[-1]) for name, column in made.items()} | {"budget": marks}
    return Trial(**columns, number=trial, horizon=15_000, plan=plan or {})


def world(
    pace: Pace, end: Pace | None = None, plan: Callable[[int | None, float], dict[str, Any]] | None = None
) -> Grid:
    cells, places = {}, {}
    for where in paper.DISTRIBUTIONS:
        for policy, groups in ((row.policy, row.groups) for row in paper.TABLE_I):
            for delta in paper.DELTAS:
                place = (where, policy, groups, delta)
                needed = pace(*place)
                if needed is not None:
                    top = 70.0 if end is None else end(*place)
                    cells[place] = Cell({0: run(needed, top or 70.0, plan(groups, delta) if plan else None)})
                places[place] = place
    return Grid(cells, places, {}, {"world.budget": 6e5}, 0)  # type: ignore[arg-type]


def only(ours: float, others: float, **special: float) -> Pace:
    return lambda where, policy, groups, delta: special.get(policy, ours if policy == "pipecycle" else others)


def by_data(iid: float, skewed: float) -> Pace:
    return lambda where, policy, groups, delta: 3000 if policy != "pipecycle" else iid if where == "iid" else skewed


def by_groups(two: float, five: float, ten: float) -> Pace:
    return lambda where, policy, groups, delta: {2: two, 5: five, 10: ten}[groups or 2]


def ends(ours: float, others: float) -> Pace:
    return lambda where, policy, groups, delta: ours if policy == "pipecycle" else others


def events(power: float) -> Grid:
    plan = lambda groups, delta: {"aggregations": 100.0 * (groups or 1) ** power, "slots": 1000, "ancestry_max": 0}  # noqa: E731
    return world(only(1000, 2000), plan=plan)


def ancestry(more: int) -> Grid:
    return world(only(1000, 2000), plan=lambda groups, delta: {"ancestry_max": (groups or 0) + more})


def depth(deepest: int) -> Grid:
    return world(only(1000, 2000), plan=lambda groups, delta: {"chains.depth_max": deepest, "slots": 1019})


def isolated(accuracy: float) -> Grid:
    cells = {
        ("isolated", (), "bernoulli:0.5", alpha, None, None): Cell({0: run(100, accuracy + 5)}) for alpha in (None, 0.1)
    }
    return Grid(cells, {}, {}, {}, 0)


def relayless(accuracy: float) -> Grid:
    sweep = selection.read(selection.experiment(selection.SENSITIVITY), "1")
    parts = {name: [sweep.runs[one] for one in runs] for name, runs in sweep.parts.items()}
    cells = {key_of_config(one): Cell({0: run(100, accuracy)}) for one in parts["FedBacys' references"]}
    return Grid(cells, {}, parts, {}, 0)


CASES: list[tuple[str, Grid, Grid]] = [
    ("cheaper to target", world(only(1000, 3000)), world(only(2900, 3000))),
    ("least for any target", world(only(1000, 3000)), world(only(3000, 1000))),
    ("ahead at any budget", world(only(1000, 1500), ends(80, 60)), world(only(1500, 1000), ends(60, 80))),
    ("gap widens", world(by_data(2000, 1000)), world(by_data(1000, 2000))),
    ("half the energy to 65", world(only(1000, 3000)), world(only(2500, 3000))),
    ("better than harvesting", world(only(1000, 1000), ends(80, 60)), world(only(1000, 1000), ends(60, 80))),
    ("isolated guess", isolated(10.0), isolated(36.0)),
    ("clients highest iid", world(only(1000, 1000), ends(80, 60)), world(only(1000, 1000), ends(60, 80))),
    ("clients highest noniid", world(only(1000, 1000), ends(80, 60)), world(only(1000, 1000), ends(60, 80))),
    ("pipecycle first", world(only(1000, 3500)), world(only(3500, 1000))),
    ("fedseq first when scarce", world(only(3500, 1000)), world(only(1000, 3500))),
    ("others lag", world(only(3000, 5500, fedseq=3000)), world(only(3000, 5500, fedseq=3000, mifa=200))),
    ("slower when scarce", world(only(4500, 100)), world(only(100, 4500))),
    ("more groups start faster", world(by_groups(3000, 2000, 1000)), world(by_groups(1000, 2000, 3000))),
    ("lag is bounded", ancestry(0), ancestry(1)),
    ("depth is bounded", depth(50), depth(51)),
    ("events grow with groups", events(1.0), events(0.5)),
    ("events stop growing", events(0.0), events(0.5)),
    ("relay is what helps", relayless(11.0), relayless(40.0)),
]


@pytest.mark.parametrize(("claim", "good", "bad"), CASES, ids=[case[0] for case in CASES])
def test_both_ways_and_with_nothing(claim: str, good: Grid, bad: Grid) -> None:
    assert CLAIMS[claim].ours(good).words == "holds"
    assert CLAIMS[claim].ours(bad).words == "does not hold"
    assert CLAIMS[claim].ours(Grid({}, {}, {}, {}, 0)).verdict == "cannot be tested"


def test_every_claim_about_histories_is_tested_here() -> None:
    used = {name for name, claim in CLAIMS.items() if claim.history is not None}
    fixed = {"optimum ignores delta", "direction of the analysis"}
    assert used == {case[0] for case in CASES} | fixed
    assert claims.optimum_ignores_delta(Grid({}, {}, {}, {}, 0)).words == "holds"
    assert claims.direction_of_the_analysis(Grid({}, {}, {}, {}, 0)).figure == "G* with L = 1: 0.999999"


def test_accuracies_that_nobody_gets_to_are_not_called_not_run() -> None:
    low = world(only(1000, 1000), ends(20, 20))  # the clients' models end at 15 %
    assert CLAIMS["slower when scarce"].ours(low).why == "none of them gets to 20 %"
    some = CLAIMS["slower when scarce"].ours(world(only(1000, 1000), ends(40, 40)))  # 35 %: two accuracies, two rivals
    assert some.figure.count("PipeCycle") == 4


def test_a_missing_cell_leaves_a_claim_open() -> None:
    slow = only(4000, 1000)
    found = world(lambda *place: None if (place[1], place[3]) == ("mifa", 1.0) else slow(*place))
    assert claims.cheaper_to_target(found).verdict == "does not hold"  # others have failed already
    fine = world(lambda where, policy, *rest: 1000 if policy == "pipecycle" else None if policy == "mifa" else 3000)
    assert claims.cheaper_to_target(fine).verdict == "cannot be tested"


def test_nobody_gets_there() -> None:
    low = world(only(1000, 1000), ends(20, 20))
    assert claims.cheaper_to_target(low).verdict == "cannot be tested"
    found = claims.half_the_energy_to_65(low)
    assert (found.words, found.figure) == ("does not hold", "65 %: at most 20.0 (PipeCycle G = 2)")


def test_missing_a_target_by_a_hair_is_within_the_error() -> None:
    for ours, others, verdict in ((64.5, 68.0, "does not hold"), (68.0, 64.5, "holds")):
        found = world(only(1000, 3000), ends(ours, others))
        assert claims.half_the_energy_to_65(found).words == f"{verdict}, but within the error"
    assert claims.half_the_energy_to_65(world(only(1000, 3000), ends(55, 68))).words == "does not hold"
    assert claims.half_the_energy_to_65(world(only(1000, 3000), ends(68, 55))).words == "holds"


def test_a_trial_that_never_gets_there_counts_with_all_its_slots() -> None:
    """Three of five get to 40 % after 4,000 slots or so; the others end after 6,000."""
    fast, slow = [run(6000.0, 70.0, trial=k) for k in range(3)], [run(6000.0, 30.0, trial=k) for k in (3, 4)]
    taken = fast[0].slots_to(40.0, "accuracy")
    assert taken == pytest.approx(4000.0, abs=1)
    cell = Cell({trial.number: trial for trial in fast + slow})
    assert claims._reached(cell, 40.0, "accuracy") == pytest.approx((3 * taken + 2 * 6000) / 5)
    gone = evolve(slow[0], diverged=True, end=(9000.0, 1e6))  # it would have gone on for longer
    cell = Cell({trial.number: trial for trial in [*fast, gone]})
    assert claims._reached(cell, 40.0, "accuracy") == pytest.approx((3 * taken + 9000) / 4)
    few = Cell({trial.number: trial for trial in [fast[0], *slow]})
    assert claims._reached(few, 40.0, "accuracy") == np.inf


def test_a_plan_that_says_nothing_is_not_taken_for_zero() -> None:
    assert claims.lag_is_bounded(world(only(1000, 2000))).verdict == "cannot be tested"


def test_all_claims_survive_a_part_of_the_grid() -> None:
    part = world(lambda where, policy, groups, delta: 1000 if delta == 0.5 and groups in (None, 2) else None)
    for found in (part, Grid({}, {}, {}, {}, 0)):
        assert len(examine(found)) == len(CLAIMS)
