"""What was compared and what came out, in sentences for somebody who was not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipecycle.report.tables import Summary, always, best_of, rivals, when
from pipecycle.results import Difference, paired
from pipecycle.runs.records import Group
from pipecycle.schedule.summary import joules, measures, warnings
from pipecycle.words import listed, number, plural
from pipecycle.world.devices_file import parted


def compared(groups: Sequence[Group]) -> str:
    """One sentence about the runs."""
    trials = sorted({record.trial for group in groups for record in group.records})
    runs = sum(len(group.records) for group in groups)
    noun = "scheduler" if len({group.policy for group in groups}) == len(groups) else "configuration"
    counts = f" ({plural(len(trials), 'trial')})" if runs > len(groups) else ""
    what = f"{plural(len(groups), noun)} in {plural(runs, 'run')}{counts}"
    same = common(groups)
    where = []
    if "world.clients" in same:
        where.append(plural(int(same["world.clients"]), "client"))
    if "data.name" in same:
        alpha = same.get("data.alpha", "varied")
        how = "" if alpha == "varied" else " split at random" if alpha is None else f" split unevenly (alpha {alpha:g})"
        where.append(f"the {same['data.name']} data{how}")
    if same.get("world.fleet") is not None:
        where.append(_fleet(str(same["world.fleet"]), groups[0].records[0].schedule.meta))
    elif "world.harvest" in same:
        where.append(_harvest(str(same["world.harvest"])))
    if "world.slots" in same:
        where.append(f"at most {number(same['world.slots'])} slots")
    if same.get("world.budget") is not None:
        where.append(f"an energy budget of {number(same['world.budget'])} units for the whole fleet")
    return f"{what}, on {listed(where)}." if where else f"{what}."


def outcome(groups: Sequence[Group], rows: Sequence[Summary]) -> list[str]:
    """What came out, most important first."""
    scenarios = list(dict.fromkeys(group.scenario for group in groups))
    said = []
    if len(scenarios) > 1 and any(group.trained for group in groups):
        said.append(
            f"The runs met {len(scenarios)} different worlds (weather, data, horizon or judge); schedulers are "
            "compared within each."
        )
    for scenario in scenarios[:6]:
        said += _winner(groups, scenario)
    return [*said, *_target(rows), _waste(rows)]


def notes(groups: Sequence[Group]) -> list[str]:
    """What a reader must know to judge the numbers."""
    said = []
    for group in groups:
        for record in group.records:
            if record.is_run and record.ended != "finished":
                kept = "" if record.ended else " It is left out of means and tables." if group.trained else ""
                said.append(f"{group.label}, trial {record.trial}: {record.state}.{kept}")
    said += unspent(groups)
    if groups and all(len(group.trained) == 1 for group in groups if group.trained) and any(g.trained for g in groups):
        said.append(
            "One trial: no spread can be given."
            if len(groups) == 1
            else "One trial each: no spread and no interval can be given, and small differences mean nothing."
        )
    for group in groups:
        for text in warnings(*(record.figures for record in group.planned)):
            said.append(f"{group.label}: {text[0].lower()}{text[1:]}")
    return said


def unspent(groups: Sequence[Group]) -> list[str]:
    """Whose accuracy is not the one at the budget."""
    short = [group for group in groups if group.unspent]
    if not short:
        return []
    budgets = " or ".join(dict.fromkeys(number(group.facts["world.budget"]) for group in short))
    return [
        f"Accuracy is that at the end of runs that did not spend {budgets} units: {listed(list(map(_left, short)))}."
    ]


def _left(group: Group) -> str:
    spent, runs = group.unspent, len(group.trained)
    least, most = (number(round(end)) for end in (min(spent), max(spent)))
    which = "" if len(spent) == runs else f" in {len(spent)} of {runs} trials"
    return f"{group.label} ({least}{'' if least == most else f' to {most}'}{which})"


def common(groups: Sequence[Group]) -> dict[str, Any]:
    """The facts that are the same for all groups."""
    every = [group.facts for group in groups]
    return {key: value for key, value in every[0].items() if all((key, value) in facts.items() for facts in every)}


def _winner(groups: Sequence[Group], scenario: str) -> list[str]:
    best = best_of(groups, scenario)
    if best is None:
        return []
    ours = best.accuracies
    place = when([best])
    average = sum(ours.values()) / len(ours)
    over = f" on average over {plural(len(ours), 'trial')}" if len(ours) > 1 else ""
    others = rivals(groups, best)
    if not others:
        return [f"{best.label} got {average:.1f} % of {best.judge} samples right {place}{over}."]
    said = [f"{best.label} came out highest: {average:.1f} % of {best.judge} samples right {place}{over}."]
    second = best_of(others, scenario)
    assert second is not None
    gap = paired(ours, second.accuracies)
    if gap is None:
        said.append(f"{second.label} is next, but they share no trial, so they cannot be compared in pairs.")
    elif gap.low is None or gap.high is None:
        said.append(_undecided(second.label, gap))
    elif gap.low <= 0:
        undecided = [
            rival.label
            for rival in others
            if (behind := paired(ours, rival.accuracies)) is not None and (behind.low is None or behind.low <= 0)
        ]
        verb = "is" if len(undecided) == 1 else "are"
        said.append(
            f"{listed(undecided)} {verb} not clearly behind: over {gap.pairs} paired trials the 95 % interval of the "
            "difference includes zero."
        )
    else:
        said.append(
            f"{second.label} is next, {gap.mean:.1f} points behind (95 % interval {gap.low:.1f} to {gap.high:.1f}, "
            f"{gap.pairs} paired trials)."
        )
    return said


def _undecided(label: str, gap: Difference) -> str:
    """Two schedulers between which there is a difference but no interval."""
    if gap.pairs == 1:
        return f"{label} is next, {gap.mean:.1f} points behind; one trial cannot tell them apart."
    if gap.mean == 0:
        return f"{label} got exactly as many right in each of {gap.pairs} trials."
    return (
        f"{label} is next, {gap.mean:.1f} points behind in each of {gap.pairs} trials; equal differences give no "
        "interval, so this does not tell them apart."
    )


def _target(rows: Sequence[Summary]) -> list[str]:
    asked = [row for row in rows if row["reached"] is not None]
    if not asked or asked[0]["target"] is None:
        return []
    target = f"{asked[0]['target']:g} %"
    ranked = sorted((row for row in asked if always(row)), key=lambda row: row["energy_to_target"])
    if len(rows) == 1:
        if not ranked:
            return [f"It did not reach {target} in every trial."]
        slots, hours = number(round(ranked[0]["slots_to_target"])), ranked[0]["hours_to_target"]
        after = f"{slots} slots{'' if hours is None else f' ({number(hours)} hours)'}"
        return [f"It reached {target} with {_energy(ranked[0], ' units of energy')}, after {after}."]
    if not ranked:
        return [f"No scheduler reached {target} in every trial."]
    first = ranked[0]
    said = f"{first['label']} needed the least energy to reach {target}: {_energy(first)}"
    if len(ranked) > 1:
        said += f" (the most was {_energy(ranked[-1], '')}, {ranked[-1]['label']})"
    some = [
        f"{row['label']} ({row['reached']} of {row['trials']})" for row in asked if 0 < row["reached"] < row["trials"]
    ]
    if some:
        said += f"; {listed(some)} got there in some trials only"
    never = [str(row["label"]) for row in asked if not row["reached"]]
    if never:
        said += f"; {listed(never)} never got there"
    return [said + "."]


def _energy(row: Summary, word: str = " units") -> str:
    """Up to the target, in joules as well where the fleet says what a unit is."""
    physically = "" if row["joules_to_target"] is None else f", {joules(row['joules_to_target'])}"
    return f"{number(round(row['energy_to_target']))}{word}{physically}"


def _waste(rows: Sequence[Summary]) -> str:
    shares = [(row["wasted"] or 0) / max(1, row["sessions"] or 0) for row in rows]
    worst, share = rows[shares.index(max(shares))], max(shares)
    if len(rows) == 1:
        return f"{100 * share:.0f} % of its sessions were never used." if share else "No session was wasted."
    if share < 0.02:
        return "Hardly any training was wasted: at least 98 % of the sessions of every scheduler were used."
    return f"{worst['label']} wasted most: {100 * share:.0f} % of its sessions were never used."


def _fleet(spec: str, meta: Mapping[str, Any]) -> str:
    about = measures(meta)
    return f"the devices of {Path(parted(spec)[0]).name}{f' ({about})' if about else ''}"


def _harvest(spec: str) -> str:
    kind, _, rest = spec.partition(":")
    if kind == "bernoulli":
        try:
            return f"batteries that gain a unit of energy in {100 * float(rest):g} % of slots"
        except ValueError:
            pass
    return f"harvest {spec}"
