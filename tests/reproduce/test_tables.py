from __future__ import annotations

from pipecycle.report.markup import latex
from pipecycle_paper.prose import differences
from pipecycle_paper.tables import MISSING, tables


def row(table, name: str) -> dict[str, str]:
    (cells,) = [cells for cells in table.cells if cells[0] == name]
    return dict(enumerate(cells))


def test_ours_the_papers_and_the_difference(make, gather) -> None:
    found = gather(
        make("pipecycle", 2, 0.1, accuracy=67.5),
        make("pipecycle", 2, 0.1, accuracy=69.5, trial=1),
        make("pipecycle", 2, 0.3, accuracy=[60, 71, 70]),
        make("pipecycle+", 2, 0.1, accuracy=66),
    )
    out = tables(found)
    ours = row(out["accuracy_iid"], "PipeCycle, G = 2")
    assert [ours[k] for k in (1, 2, 3)] == ["68.5 ± 1.4", "68.5", "+0.0"]
    assert [ours[k] for k in (4, 5, 6)] == ["70.0 (n = 1)", "69.0", "+1.0"]
    assert [ours[k] for k in (7, 8, 9)] == [MISSING, "69.4", MISSING]
    assert row(out["best_iid"], "PipeCycle, G = 2")[4] == "71.0 (n = 1)"
    plus = row(out["accuracy_iid"], "PipeCycle+ (ours), G = 2")
    assert [plus[k] for k in (1, 2, 3)] == ["66.0 (n = 1)", "-", "-"]
    assert len(out["accuracy_iid"].cells) == len(out["accuracy_noniid"].cells) == 15 + 1
    assert all(len(cells) == len(table.head) for table in out.values() for cells in table.cells)
    assert "1 to 2 trials" in out["accuracy_iid"].title


def test_early_stopping_says_how_many_runs_stopped(make, gather) -> None:
    flat = [11.0] * 12
    found = gather(make("cycp", 2, 0.5, accuracy=flat), make("cycp", 2, 0.5, accuracy=[10, 60, 65], trial=1))
    out = tables(found)
    assert row(out["stopped_literal_iid"], "CyCP+SGD, G = 2")[13] == "1 of 2"
    assert row(out["stopped_late_iid"], "CyCP+SGD, G = 2")[13] == "0 of 2"


def test_energy_to_targets_in_thousands(make, gather) -> None:
    found = gather(
        make("fedavg", None, 0.1, accuracy=[50, 56, 61], energy=[90_000, 120_000, 130_000]),
        make("fedavg", None, 0.1, accuracy=[40, 52, 54], energy=[1000, 3000, 9000], trial=1),
    )
    ours = row(tables(found)["energy_to_target_iid"], "FedAvg")
    assert [ours[k] for k in (1, 2, 3, 4)] == [
        "46",
        "64 (1 of 2)",
        "70 (1 of 2)",
        "never",
    ]  # (90 + 3) / 2, (120 + 9) / 2
    assert ours[5] == MISSING


def test_coverage_beside_the_rule(make, gather) -> None:
    plan = {"chains.coverage_min": 21, "lag.mean": 9.04, "chains.depth_max": 595}
    found = gather(make("pipecycle", 10, 0.5, accuracy=53.3, plan=plan))
    ours = row(tables(found)["coverage_iid"], "PipeCycle, G = 10")
    assert [ours[k] for k in (1, 10, 11, 12, 13)] == ["20", "21", "9.0", "595", "53.3"]


def test_sensitivity_differs_from_its_cell_trial_by_trial(make, gather) -> None:
    found = gather(
        make("pipecycle", 5, 0.1, "non-iid", accuracy=61),
        make("pipecycle", 5, 0.1, "non-iid", accuracy=65, trial=1),
        make("pipecycle", 5, 0.1, "non-iid", accuracy=58.5, policy__queue_threshold=None),
        make("pipecycle", 5, 0.1, "non-iid", accuracy=62, policy__queue_threshold=3),
    )
    table = tables(found)["sensitivity_queue_threshold"]
    assert table.head == ("G", "queue threshold", "non-IID, δ = 0.1")
    assert table.cells[:4] == (
        ("5", "1", MISSING),
        ("5", "2", "61.0 [the cell; 63.0 ± 2.8 (n = 2)]"),
        ("5", "3", "62.0 [+1.0]"),
        ("5", "none", "58.5 [-2.5]"),
    )


def test_isolated_clients(make, gather) -> None:
    plan = {"sessions": 5000, "energy.spent": 1e5}
    found = gather(make("isolated", None, 0.5, accuracy=10, clients=[20, 30, 36], plan=plan))
    assert tables(found)["isolated"].cells == (("IID, δ = 0.5", "36.0", "about 10", "+26.0", "50", "100,000", "1"),)
    assert tables(gather())["isolated"].cells[0][0] == "not run"


def test_the_reference_of_a_part_that_does_not_hold_it(make, gather) -> None:
    found = gather(
        make("pipecycle", 10, 0.5, accuracy=53), make("pipecycle", 10, 0.5, accuracy=58.5, look__served="chains")
    )
    table = tables(found)["sensitivity_serving_the_mean_of_the_chains"]
    lines = {cells[:2]: dict(zip(table.head, cells, strict=True)) for cells in table.cells}
    assert lines["10", "chains"]["IID, δ = 0.5"] == "58.5 [+5.5]"
    assert lines["10", "as in the tables"]["IID, δ = 0.5"] == "53.0 [the cell]"


def test_a_part_with_several_schemes_names_them(make, gather) -> None:
    found = gather(
        make("fedavg", None, 0.1, "non-iid", accuracy=60),
        make("fedavg", None, 0.1, "non-iid", accuracy=62, look__served="mean:10"),
        make("mifa", None, 0.1, "non-iid", accuracy=50),
    )
    table = tables(found)["sensitivity_serving_a_mean_of_the_last_ten_models"]
    assert table.head == ("policy", "served", "non-IID, δ = 0.1")
    assert table.cells[:4] == (
        ("FedAvg", "none", "60.0 [the cell]"),
        ("FedAvg", "mean:10", "62.0 [+2.0]"),
        ("MIFA", "none", "50.0 [the cell]"),
        ("MIFA", "mean:10", MISSING),
    )


def test_latex_needs_no_greek_letters(make, gather) -> None:
    text = latex(list(tables(gather(make("fedavg", None, 0.1))).values()))
    assert "$\\delta$ = 0.1" in text
    assert text.isascii()


def test_runs_that_learnt_and_then_diverged_are_told_apart(make, gather) -> None:
    late = make("pipecycle", 2, 0.5, accuracy=[40, 66, 64, 9], trial=1).assign(diverged=[0, 0, 0, 1, 1])
    never = make("fedseq", 10, 0.1, accuracy=[20, 10, 10]).assign(diverged=[0, 0, 1, 1])
    assert "fell_apart" not in tables(gather(never))
    found = gather(late, never, make("fedavg", None, 0.5))
    (line,) = tables(found)["fell_apart"].cells
    assert line == ("PipeCycle, G = 2, IID, δ = 0.5, trial 1", "66.0", "64.0", "450", "600", "3", "never")
    said = next(one for one in differences(found) if "diverged" in one)
    assert said.startswith("2 runs diverged (1 after passing 50 %) and count with")


def test_diverged_cells_are_marked(make, gather) -> None:
    table = tables(gather(make("fedseq", 10, 0.1, accuracy=10).assign(diverged=1)))["accuracy_iid"]
    assert row(table, "FedSeq, G = 10")[1] == "10.0 †"
    assert table.title.endswith("† diverged")


def test_a_few_runs_of_the_former_pipecycle_plus_are_no_rows_of_the_tables(make, gather) -> None:
    mixed = {"policy__rotation": "spread", "policy__relay_mix": 0.5}
    few = gather(make("pipecycle", 10, 0.5, accuracy=53), make("pipecycle", 10, 0.5, accuracy=70, **mixed))
    columns = [(kind, delta) for kind in ("iid", "non-iid") for delta in (0.1, 0.3, 0.5, 1.0)]
    runs = [
        make("pipecycle", groups, delta, kind, accuracy=70, **mixed) for kind, delta in columns for groups in (2, 5, 10)
    ]
    whole = gather(make("pipecycle", 10, 0.5, accuracy=53), *runs)
    assert len(few.rows) + 3 == len(whole.rows)
