from __future__ import annotations

from pathlib import Path

from pipecycle.report import load, prose
from pipecycle.report.tables import summary_rows, tables


def tell(paths, target: float | None = None) -> list[str]:
    groups = load(paths)
    return prose.outcome(groups, summary_rows(groups, target))


def test_what_was_compared(make) -> None:
    groups = load([make("a"), make("b", "fedavg"), make("c", "fedavg", world__trial=1)])
    assert prose.compared(groups) == (
        "2 schedulers in 3 runs (2 trials), on 10 clients, the digits data split at random, batteries that gain a "
        "unit of energy in 50 % of slots and at most 400 slots."
    )


def test_a_clear_winner(make) -> None:
    paths = [make(f"a{t}", accuracy=(50, 90 + t), world__trial=t) for t in range(3)]
    paths += [make(f"b{t}", "fedavg", accuracy=(50, 80 + t + 0.1 * (t == 1)), world__trial=t) for t in range(3)]
    said = tell(paths, 85.0)
    assert said[0] == "pipecycle came out highest: 91.0 % of test samples right at the end on average over 3 trials."
    # Differences 10, 9.9 and 10: mean 9.967, deviation 0.0577, half-width 4.303 * 0.0577 / sqrt(3) = 0.143.
    assert said[1] == "fedavg is next, 10.0 points behind (95 % interval 9.8 to 10.1, 3 paired trials)."
    assert said[2].startswith("pipecycle needed the least energy to reach 85 %: ")
    assert said[2].endswith("; fedavg never got there.")


def test_no_clear_winner_is_said(make) -> None:
    paths = [make(f"a{t}", accuracy=(50, (80, 90)[t]), world__trial=t) for t in range(2)]
    paths += [make(f"b{t}", "fedavg", accuracy=(50, (84, 85)[t]), world__trial=t) for t in range(2)]
    assert tell(paths)[1].startswith("fedavg is not clearly behind: over 2 paired trials")


def test_one_trial_proves_little(make) -> None:
    paths = [make("a", accuracy=(50, 90)), make("b", "fedavg", accuracy=(50, 80))]
    assert tell(paths)[1] == "fedavg is next, 10.0 points behind; one trial cannot tell them apart."
    assert any(note.startswith("One trial each") for note in prose.notes(load(paths)))


def test_several_worlds_are_told_apart(make) -> None:
    said = tell([make("a"), make("b", world__harvest="always")])
    assert said[0].startswith("The runs met 2 different worlds")
    assert sum("of test samples right" in text for text in said) == 2
    assert not any("came out highest" in text for text in said)  # each was alone


def test_unfinished_runs_are_mentioned(make) -> None:
    groups = load([make("a"), make("b", world__trial=1, ended=None, accuracy=(40.0,))])
    assert prose.notes(groups)[0] == (
        "pipecycle, trial 1: unfinished, evaluated up to slot 100. It is left out of means and tables."
    )


def test_equal_differences_are_no_proof(make) -> None:
    """Two trials that differ by the same amount give an interval of no width: that is chance, not certainty."""
    paths = [make(f"a{t}", accuracy=(50, 90 + t), world__trial=t) for t in range(2)]
    paths += [make(f"b{t}", "fedavg", accuracy=(50, 89.7 + t), world__trial=t) for t in range(2)]
    paths += [make(f"c{t}", "mifa", accuracy=(50, (70, 73)[t]), world__trial=t) for t in range(2)]
    assert tell(paths)[1] == (
        "fedavg is next, 0.3 points behind in each of 2 trials; equal differences give no interval, so this does not "
        "tell them apart."
    )
    (row,) = (row for row in summary_rows(load(paths)) if row["policy"] == "fedavg")
    assert (row["difference_low"], row["difference_high"], row["pairs"]) == (None, None, 2)


def test_who_got_there_in_some_trials_is_not_ranked(make) -> None:
    paths = [make(f"a{t}", accuracy=(50, 60, 90), world__trial=t) for t in range(3)]
    paths += [make(f"b{t}", "fedavg", accuracy=(95 if t == 0 else 20, 30, 40), world__trial=t) for t in range(3)]
    said = next(text for text in tell(paths, 85.0) if "least energy" in text)
    assert said.startswith("pipecycle needed the least energy to reach 85 %")
    assert said.endswith("; fedavg (1 of 3) got there in some trials only.")


def test_what_is_worth_knowing_is_about_all_trials(make) -> None:
    """Here trial 0 has nothing to note; with less energy, it would be noted for all that nothing was aggregated."""
    (group,) = load([make(f"a{t}", world__trial=t, world__harvest="bernoulli:0.35") for t in range(2)])
    assert [record.figures["chains"]["coverage_min"] for record in group.records] == [10, 9]
    (note,) = prose.notes([group])
    assert note.startswith("pipecycle: in 1 of 2 trials a chain has met only 9 of the 10 clients that took part: ")
    (group,) = load([make(f"b{t}", world__trial=t, world__harvest="bernoulli:0.04") for t in range(4)])
    assert [record.figures["aggregations"] for record in group.records] == [0, 2, 0, 1]
    (idle,) = prose.notes([group])  # in trial 1 a third client is still training: no chain can have met it
    assert idle.startswith("pipecycle: in 2 of 4 trials nothing was aggregated: ")
    (group,) = load([make(f"c{t}", world__trial=t, world__harvest="bernoulli:0.1") for t in range(3)])
    (note,) = prose.notes([group])
    assert note.startswith(
        "pipecycle: in all 3 trials a chain has met only 4 of the 10 clients that took part (at worst)"
    )


def test_accuracy_before_the_budget_is_not_called_accuracy_at_the_budget(make) -> None:
    """400 slots of ten clients spend about 1,900 units."""
    spent = [make("a", world__budget=800.0), make("b", "fedavg", world__budget=800.0)]
    assert tell(spent)[0].startswith("pipecycle came out highest: 80.0 % of test samples right at the budget")
    assert not any("did not spend" in note for note in prose.notes(load(spent)))
    short = load([make("c", world__budget=10_000.0), make("d", "fedavg", world__budget=10_000.0)])
    assert tables(short)[0].title == "Accuracy at the end"
    (note,) = prose.unspent(short)
    assert note.startswith("Accuracy is that at the end of runs that did not spend 10,000 units: pipecycle (1,")
    assert tables([*load(spent), *short])[0].title == (
        "Accuracy at the budget, or at the end of runs that did not spend it"
    )


def test_a_fleet_is_named_with_joules_and_hours(make, tmp_path: Path) -> None:
    """A unit is 2 J and a slot 90 s: 200 slots are five hours."""
    (tmp_path / "own.toml").write_text("joules = 2\nslot = 90\n[[device]]\ncount = 10\nsession = 5\nstep = 2\n")
    paths = [make("a", "fedavg", world__fleet=str(tmp_path / "own.toml"))]
    groups = load(paths)
    assert "the devices of own.toml (a unit is 2 J, a slot 1.5 minutes) and at most 400" in prose.compared(groups)
    assert "50 %" not in prose.compared(groups)  # the run's harvest is for devices that have none
    (row,) = summary_rows(groups, 80.0)
    assert row["hours_to_target"] == 5
    assert row["joules_to_target"] == 2 * row["energy_to_target"]
    said = next(text for text in tell(paths, 80.0) if text.startswith("It reached 80 % with "))
    assert said.endswith(" kJ, after 200 slots (5 hours).")
    target = next(table for table in tables(groups, 80.0) if table.name == "target")
    assert target.head[-2:] == ("Energy, physically", "Hours")
    assert target.cells[0][-1] == "5"


def test_what_models_are_judged_by_is_said(make) -> None:
    options = {"data__validation": 60, "world__budget": None}
    chosen = [make(name, name, look__on="validation", **options) for name in ("fedavg", "mifa")]
    assert tell(chosen)[0].startswith("fedavg came out highest: 80.0 % of validation samples right")
    assert tables(load(chosen))[0].title == "Accuracy on validation samples at the end"
    # Accuracy on other samples is no rival.
    (tested, *_), both = load([make("t", "fedavg", **options)]), load([*chosen, make("u", "flda", **options)])
    assert tested.judge == "test"
    assert tell([*chosen, make("v", "flda", **options)])[0].startswith("The runs met 2 different worlds")
    assert len({group.scenario for group in both}) == 2
