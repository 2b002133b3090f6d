"""A schedule in figures: what `--json` prints and what people read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipecycle.schedule.ancestry import mean
from pipecycle.schedule.schedule import Schedule
from pipecycle.words import number
from pipecycle.world.energy import units

PURPOSES = {
    "training": "training",
    "to_hub": "to hubs",
    "to_server": "to the server",
    "download": "downloads",
    "lost": "lost",
}
"""What energy is spent on, as people read it."""
DRAINS = {"idle": "idled away", "leaked": "leaked"}


def summarise(schedule: Schedule, budget: float | None = None) -> dict[str, Any]:
    """Figures of a schedule; `budget` (units) asks when it was reached, by default the one it was planned with."""
    ancestry, energy = schedule.ancestry, schedule.energy
    budget = schedule.meta["budget"] if budget is None else budget
    concurrency = schedule.concurrency()
    sizes, lags, chains = ancestry.group_sizes, ancestry.lags, ancestry.chains
    coverage = np.array([chain.coverage for chain in chains])
    status = schedule.status_counts()
    ledger = {
        "harvested": units(int(energy.harvested[-1])),
        "spent": units(int(energy.spent[-1])),
        "stored": units(int(energy.level.sum())),
        "overflowed": units(int(energy.overflowed[-1])),
        **{name: units(int(total[-1])) for name, total in energy.drains_by_cause.items()},
    }
    purposes = {name: units(int(total[-1])) for name, total in energy.purposes.items()}
    return {
        "policy": schedule.policy,
        "settings": schedule.meta["settings"],
        "harvest": schedule.meta["harvest"],
        "clients": schedule.clients,
        "slots": schedule.slots,
        "trial": schedule.trial,
        "sessions": len(schedule.sessions),
        "sessions_by_status": status,
        "wasted": schedule.wasted(),
        "aggregations": ancestry.events,
        "published": len(schedule.publications.version),
        "discarded": int(schedule.versions.discarded.sum()),
        "energy": ledger,
        "spent_on": purposes,
        **_physical(schedule, ledger | purposes),
        "budget": budget,
        "budget_slot": None if budget is None else schedule.budget_slot(budget),
        "group_size": {"mean": mean(sizes), "max": int(sizes.max()) if len(sizes) else None},
        "max_concurrent_groups": None if concurrency is None else int(concurrency.max(initial=0)),
        "lag": {"mean": mean(lags), "max": int(lags.max()) if len(lags) else None},
        "ancestry_max": ancestry.ancestry_max,
        "chains": {
            "count": len(chains),
            "coverage_min": int(coverage.min()),
            "coverage_mean": float(coverage.mean()),
            "depth_max": max(chain.depth for chain in chains),
        },
        "participants": int((schedule.participation() > 0).sum()),
        "contributors": len(np.unique(schedule.sessions.client[ancestry.event_of_session > 0])),
        "fairness": schedule.fairness(),
        "digest": schedule.digest(),
    }


def flattened(figures: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested figures by one name each, `lag.mean` and so on."""
    flat: dict[str, Any] = {}
    for key, value in figures.items():
        flat |= flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _physical(schedule: Schedule, in_units: Mapping[str, float]) -> dict[str, Any]:
    """In joules and hours, where the fleet says what a unit and a slot are."""
    meta = schedule.meta
    joules, seconds = meta.get("joules"), meta.get("slot_seconds")
    figures: dict[str, Any] = {"fleet": meta["fleet"]} if "fleet" in meta else {}
    if joules is not None:
        figures["joules"] = {"unit": joules} | {part: count * joules for part, count in in_units.items()}
    if seconds is not None:
        figures["hours"] = schedule.slots * seconds / 3600
    return figures


def sentences(figures: dict[str, Any]) -> dict[str, str]:
    """The same figures as a person reads them."""
    energy, spent_on, status = figures["energy"], figures["spent_on"], figures["sessions_by_status"]
    size, lag, chains = figures["group_size"], figures["lag"], figures["chains"]
    lines = {
        "run": f"{number(figures['clients'])} clients, {number(figures['slots'])} slots, {figures['harvest']}, "
        f"trial {figures['trial']}",
        "energy": f"{number(energy['harvested'])} harvested = {number(energy['spent'])} spent + "
        f"{number(energy['stored'])} stored + {number(energy['overflowed'])} overflowed"
        + "".join(f" + {number(energy[key])} {word}" for key, word in DRAINS.items() if key in energy),
        "spent on": ", ".join(f"{word} {number(spent_on[key])}" for key, word in PURPOSES.items() if key in spent_on),
        "sessions": f"{number(figures['sessions'])}: "
        + ", ".join(f"{number(count)} {name.replace('_', ' ')}" for name, count in status.items() if count)
        if figures["sessions"]
        else "none",
        "aggregations": f"{number(figures['aggregations'])} of {number(size['mean'])} updates on average, "
        f"{number(size['max'])} at most"
        if figures["aggregations"]
        else "none",
    }
    if "joules" in figures or "hours" in figures:
        words = [f"{joules(figures['joules']['spent'])} spent"] if "joules" in figures else []
        words += [f"{number(figures['hours'])} hours"] if "hours" in figures else []
        unit = f" (a unit is {joules(figures['joules']['unit'])})" if "joules" in figures else ""
        lines["physically"] = f"{' in '.join(words)}{unit}"
    if figures["max_concurrent_groups"] is not None:
        lines["groups"] = f"at most {number(figures['max_concurrent_groups'])} in training at once"
    if figures["aggregations"]:
        lines["lag"] = f"{number(lag['mean'])} on average, {number(lag['max'])} at most"
        fewest, average = number(chains["coverage_min"]), number(chains["coverage_mean"])
        met = (
            f"it has met {fewest}" if chains["count"] == 1 else f"they have met {fewest} (fewest) and {average} (mean)"
        )
        lines["chains"] = (
            f"{chains['count']}, {number(chains['depth_max'])} aggregations deep; {met} of "
            f"{number(figures['participants'])} participants"
        )
    if figures["fairness"] is not None:
        lines["fairness"] = f"{number(figures['fairness'])} (Jain's index of sessions per client)"
    if figures["discarded"]:
        lines["discarded"] = f"{number(figures['discarded'])} hub models"
    if figures["budget"] is not None:
        slot = figures["budget_slot"]
        reached = "not reached" if slot is None else f"reached in slot {number(slot)}"
        lines["budget"] = f"{number(figures['budget'])} units, {reached}"
    return lines


def joules(value: float) -> str:
    """Energy with a prefix that leaves one to three digits before the point."""
    for prefix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)):
        if abs(value) >= size:
            return f"{value / size:.3g} {prefix}J"
    return f"{value * 1e3:.3g} mJ"


def duration(seconds: float) -> str:
    """Time in the largest unit of which there is at least one."""
    for word, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            return f"{number(seconds / size)} {word}{'s' * (seconds != size)}"
    return f"{number(seconds)} second{'s' * (seconds != 1)}"


def measures(meta: Mapping[str, Any]) -> str:
    """What a unit and a slot are, where the fleet says so: `a unit is 1 J, a slot 5 minutes`."""
    unit, slot = meta.get("joules"), meta.get("slot_seconds")
    words = [] if unit is None else [f"a unit is {joules(unit)}"]
    if slot is not None:
        words.append(f"a slot {'' if words else 'is '}{duration(slot)}")
    return ", ".join(words)


def warnings(*trials: dict[str, Any]) -> list[str]:
    """What a person should know before training on a schedule, or on those of several trials of one policy."""
    texts: list[str] = []
    narrow = [plan for plan in trials if plan["chains"]["coverage_min"] < plan["contributors"]]
    if narrow:
        worst = min(narrow, key=lambda plan: float(plan["chains"]["coverage_min"] / plan["contributors"]))
        texts.append(
            f"{_trials(narrow, trials)} a chain has met only {worst['chains']['coverage_min']} of the "
            f"{worst['contributors']} clients that took part{' (at worst)' * (len(narrow) > 1)}: chains that "
            f"never mix learn from a part of the data{_remedy(worst)}."
        )
    idle = [plan for plan in trials if not plan["aggregations"] and not plan["sessions_by_status"]["used"]]
    if idle:
        texts.append(
            f"{_trials(idle, trials)} nothing was aggregated: too few slots or too little energy for a session and its "
            "report."
        )
    return [text.strip()[0].upper() + text.strip()[1:] for text in texts]


def _remedy(figures: dict[str, Any]) -> str:
    """What would help, of the settings that the policy has."""
    settings = figures["settings"]
    better = {"rotation": "spread", "relay_mix": 0.5}
    words = [f"{key}={value}" for key, value in better.items() if settings.get(key, value) != value]
    if "relay_mix" not in settings:  # not PipeCycle's chains
        return ""
    return f" (try {' and '.join(words)}{', or ' * bool(words)}pipecycle+)"


def _trials(some: Sequence[Any], trials: Sequence[Any]) -> str:
    if len(trials) == 1:
        return ""
    if len(some) < len(trials):
        return f"In {len(some)} of {len(trials)} trials"
    return "In both trials" if len(trials) == 2 else f"In all {len(trials)} trials"
