from __future__ import annotations

import math

from pipecycle_paper import prose
from pipecycle_paper.energy import cheapest, cost, least, ratios
from pipecycle_paper.paper import BASELINES
from pipecycle_paper.tables import MISSING

from .test_claims_curves import only, world


def cell(make, gather, *histories, **options):
    frames = [make("fedavg", None, 0.5, accuracy=values, trial=k, **options) for k, values in enumerate(histories)]
    return gather(*frames).cell("iid", "fedavg", None, 0.5)


def test_cost_of_a_target_and_its_error(make, gather) -> None:
    early, late = [60, 61, 62, 63], [10, 20, 60, 61]
    alone, both = (cost(cell(make, gather, *some), 60.0) for some in ([early], [early, late]))
    assert (alone.mean, both.mean) == (1000, 2000)  # a checkpoint is 1,000 units
    assert both.error >= 2 * math.sqrt(2) * 1000 / math.sqrt(2)  # the spread over two trials
    assert alone.error >= 2 * 1000


def test_who_never_gets_there_counts_with_what_it_spent(make, gather) -> None:
    some = cell(make, gather, [60, 61, 62, 63], [10, 20, 30, 40])
    assert cost(some, 60.0).mean == (1000 + 4000) / 2
    assert some.gets_to(60.0)  # half of the trials
    most = cell(make, gather, [60, 61, 62, 63], [10, 20, 30, 40], [10, 20, 30, 40])
    assert cost(most, 60.0).mean == (1000 + 4000 + 4000) / 3
    assert not most.gets_to(60.0)


def test_a_run_that_diverged_early_has_not_saved_energy(make, gather) -> None:
    fallen = make("fedavg", None, 0.5, accuracy=[30, 10], plan={"energy.spent": 5e5}).assign(diverged=[0, 1, 1])
    assert cost(gather(fallen).cell("iid", "fedavg", None, 0.5), 60.0).mean == 5e5


def test_ratios_to_the_best_baseline(make, gather) -> None:
    slow, fast = [10, 20, 40, 56], [10, 56, 57, 66]
    found = gather(
        make("fedavg", None, 0.5, accuracy=slow),
        make("fedseq", 2, 0.5, accuracy=fast),
        make("pipecycle+", 2, 0.5, accuracy=[56, 57, 61, 62]),
        make("fedseq", 5, 0.5, accuracy=[10, 66, 67, 68], policy__step="lag-stable"),
    )
    assert cheapest(found, "iid", BASELINES, 0.5, 55.0)[1][0] == "FedSeq G = 2"
    table = ratios(found, "iid")
    place = table.head.index("δ = 0.5: 50 %")
    lines = {cells[0]: cells[place : place + 4] for cells in table.cells}
    assert lines["the best baseline"] == (
        "FedSeq G = 2: 2 k",
        "FedSeq G = 2: 2 k",
        "FedSeq G = 2: 4 k",
        "FedSeq G = 2: 4 k",
    )
    assert lines["FedAvg"] == ("2.00", "2.00", "never", "never")
    assert lines["PipeCycle+ (ours), G = 2"] == ("0.50", "0.50", "0.75", "never")
    assert lines["FedSeq, lag-stable (ours), G = 5"] == ("1.00", "1.00", "0.50", "0.50")
    assert lines["FedSeq, G = 5"] == (MISSING,) * 4  # the paper's, which was not run
    few = gather(make("pipecycle+", 2, 0.5, accuracy=[56]), make("fedavg", None, 0.5, accuracy=[20]))
    lines = {cells[0]: cells[place : place + 2] for cells in ratios(few, "iid").cells}
    assert lines["PipeCycle+ (ours), G = 2"] == ("alone", "alone")


def test_in_how_many_cases_pipecycle_spends_the_least() -> None:
    """All end at 70 %: four targets, four charging probabilities, two distributions."""
    beaten = world(only(2000, 3000, fedseq=1000))
    assert least(beaten, BASELINES) == (0, 32)
    assert least(beaten, [name for name in BASELINES if name != "fedseq"]) == (32, 32)
    (said,) = [text for text in prose.outcome(beaten, []) if "less than every baseline" in text]
    assert said.endswith("in 0 of 32 cases; with FedSeq left aside, in 32 of 32.")
    (said,) = [text for text in prose.outcome(world(only(1000, 3000)), []) if "less than every baseline" in text]
    assert said.endswith("in 32 of 32 cases.")
    part = world(lambda where, policy, groups, delta: None if policy == "mifa" else 1000)
    assert least(part, BASELINES) is None
    assert not any("every baseline" in text for text in prose.outcome(part, []))
