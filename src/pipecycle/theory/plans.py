"""What schedules really do at each G, and which G that speaks for.

The paper's bound cannot choose G: with two groups or more it never says more than smoothness alone (`least_ratio`).
A plan can: it knows how many clients a chain meets, how many rounds of updates the served model has behind it, and
how much of what the fleet has paid for is in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
from attrs import frozen

from pipecycle.errors import InputError
from pipecycle.policies.registry import parameters, policy_class
from pipecycle.policies.steps import stability_limit
from pipecycle.results import paired
from pipecycle.runs.config import Config
from pipecycle.runs.planning import planning
from pipecycle.schedule.ancestry import mean
from pipecycle.schedule.schedule import Schedule, Status
from pipecycle.theory import rates
from pipecycle.theory.stability import stable_curvature, steps
from pipecycle.theory.system import System
from pipecycle.words import listed, plural
from pipecycle.world.energy import units
from pipecycle.world.harvest import Bernoulli
from pipecycle.world.specs import parse_harvest

SUBJECT = ("pipecycle", "pipecycle+")
"""What the paper's rates and chains are about; its bounds are about the first alone."""
ENOUGH = 0.95
"""Rounds count as equal from here on; the horizon alone cuts off about this much."""


@frozen
class Planned:
    """A policy at one G, without training."""

    system: System
    aggregations: int
    group_size: float | None
    rounds: float
    """Whole group updates behind the model that is served at the end."""
    depth: int
    lag: float | None
    staleness: float | None
    """Mean lag of updates that are added to another model than the one they started from, at their publication."""
    step: float
    """How much of them is added, in the mean; 1 where nothing is."""
    coverage: int
    """Clients in the chain that has met the fewest."""
    participants: int
    share: float
    """Of the finished sessions, those that are in the model served at the end."""
    spent: float
    rule: int | None
    """What the coverage rule says, for PipeCycle at saturation; None where it says nothing."""

    @property
    def groups(self) -> int:
        return self.system.G

    @property
    def stable_curvature(self) -> float:
        return stable_curvature(self.staleness or 0.0, self.system.B, self.system.gamma, self.step)


@frozen
class Advice:
    """A number of groups, and why."""

    groups: int | None
    reason: str
    source: str
    """`measured` or `planned`."""


def system_of(schedule: Schedule, config: Config) -> System:
    """The pipeline of a planned run; if the harvest is not a coin flip, delta is what a client got per slot."""
    harvest, settings = parse_harvest(config.world.harvest), schedule.meta["settings"]
    gained = units(int(schedule.energy.harvested[-1])) / (schedule.clients * schedule.slots)
    delta = float(harvest.rate) if isinstance(harvest, Bernoulli) and harvest.rate.ndim == 0 else min(1.0, gained)
    return System(
        B=int(schedule.length.max()),
        G=int(settings.get("groups") or 1),
        gamma=config.train.lr,
        slots=schedule.slots,
        clients=schedule.clients,
        delta=delta,
        group_size=settings.get("group_size"),
    )


def plan_at(config: Config, groups: int, tick: Callable[[], None] = lambda: None) -> Planned:
    """Plan a configuration with that many groups; `tick` is called after every slot."""
    if "groups" not in parameters(policy_class(config.policy)):
        raise InputError(f"{config.policy} has no groups: the theory is about schedulers that have")
    run = planning(config.changed({"groups": groups}))
    for _ in run.steps():
        tick()
    return planned(run.schedule(), config)


def planned(schedule: Schedule, config: Config) -> Planned:
    """The figures of a schedule."""
    ancestry, system = schedule.ancestry, system_of(schedule, config)
    served = int(schedule.publications.version[-1]) if len(schedule.publications.version) else 0
    finished = int(((schedule.sessions.end >= 0) & (schedule.sessions.status != Status.LOST)).sum())
    saturated = schedule.policy == "pipecycle" and system.delta > rates.saturation(system.B, "corrected")
    usual = all(schedule.meta["settings"].get(key) is None for key in ("group_size", "interval"))
    lags, taken = ancestry.lags, steps(schedule)
    return Planned(
        system=system,
        aggregations=ancestry.events,
        group_size=float(ancestry.group_sizes.mean()) if ancestry.events else None,
        rounds=ancestry.rounds(served),
        depth=max(chain.depth for chain in ancestry.chains),
        lag=float(lags.mean()) if len(lags) else None,
        staleness=mean(taken.update_lag),
        step=mean(taken.step) or 1.0,
        coverage=min(chain.coverage for chain in ancestry.chains),
        participants=int((schedule.participation() > 0).sum()),
        share=len(np.unique(ancestry.sessions(served))) / finished if finished else 0.0,
        spent=schedule.end[1],
        rule=rates.chain_coverage(system.clients, system.G, system.B) if saturated and usual else None,
    )


def recommend(plans: Sequence[Planned], curvature: float | None = None) -> Advice:
    """The G that the plans speak for.

    Out are those whose stale updates are not known to be stable (`curvature` is what was measured, if it was), then
    those with a chain that has not met everybody, then those with fewer rounds than the best.  Of the rest, the one
    with most of the paid sessions in the served model, which is also the one with the largest groups."""
    alive = [plan for plan in plans if plan.aggregations]
    if not alive:
        return Advice(None, "Nothing is aggregated at any of these G: too few slots or too little energy.", "planned")
    out: list[str] = []
    pool = _sift(alive, lambda plan: _stable(plan, curvature), _unstable, out)
    pool = _sift(pool, lambda plan: plan.coverage >= ENOUGH * plan.participants, _narrow, out)
    most = max(plan.rounds for plan in pool)
    pool = _sift(pool, lambda plan: plan.rounds >= ENOUGH * most, _slow, out)
    best = max(pool, key=lambda plan: (round(plan.share, 2), plan.group_size or 0.0, -plan.groups))
    out += [f"G = {plan.groups}: {100 * plan.share:.0f} % of the sessions" for plan in pool if plan is not best]
    reason = (
        f"Every chain meets at least {best.coverage} of {best.participants} participants; the served model has "
        f"{best.rounds:,.0f} rounds behind it and holds {100 * best.share:.0f} % of the sessions, "
        f"{best.group_size:.3g} to a group."
    )
    if not _stable(best, curvature):
        reason += f" But none is safe: this one is {_unstable(best).split(': ')[1]}."
    return Advice(best.groups, reason + (f" Against the others: {'; '.join(out)}." if out else ""), "planned")


def recommend_measured(
    accuracy: dict[int, dict[int, tuple[float, float]]], plans: Sequence[Planned], curvature: float | None = None
) -> Advice:
    """The G with the best measured accuracy, `{G: {trial: (percent, standard error)}}`; where that does not tell,
    what the plans say among those that are not told apart.

    With two trials or more in common, differences are paired and their own spread counts; with one, the standard
    error by the number of test samples does."""
    means = {groups: float(np.mean([value for value, _ in runs.values()])) for groups, runs in accuracy.items()}
    best = max(means, key=lambda groups: means[groups])
    close = [groups for groups in means if groups == best or _close(accuracy[best], accuracy[groups])]
    accuracies = ", ".join(f"{means[groups]:.1f} % at G = {groups}" for groups in sorted(means))
    trials = max(len(runs) for runs in accuracy.values())
    said = f"Measured, {plural(trials, 'trial')}: {accuracies}. "
    if len(close) == 1:
        return Advice(best, said + f"G = {best} is ahead by more than the noise.", "measured")
    names = listed([str(groups) for groups in sorted(close)])
    advice = recommend([plan for plan in plans if plan.groups in close], curvature)
    if advice.groups is None:
        return Advice(best, said + f"G = {names} are within the noise of each other.", "measured")
    said += f"G = {names} are within the noise of each other; of these by the plan: "
    return Advice(advice.groups, said + advice.reason[0].lower() + advice.reason[1:], "measured")


def figures(plan: Planned) -> dict[str, Any]:
    """For `--json`."""
    out = attrs.asdict(plan)
    out.pop("system")
    return {"groups": plan.groups} | out


def _close(best: dict[int, tuple[float, float]], other: dict[int, tuple[float, float]]) -> bool:
    values = [{trial: value for trial, (value, _) in runs.items()} for runs in (best, other)]
    gap = paired(*values)
    if gap is not None and gap.low is not None:
        return gap.low <= 0
    ours, theirs = (np.array(list(runs.values())) for runs in (best, other))
    return bool(ours[:, 0].mean() - theirs[:, 0].mean() <= 1.96 * np.hypot(ours[:, 1].mean(), theirs[:, 1].mean()))


def _sift(
    pool: list[Planned], keep: Callable[[Planned], bool], why: Callable[[Planned], str], out: list[str]
) -> list[Planned]:
    """Those that pass, or the best one if none does."""
    kept = [plan for plan in pool if keep(plan)]
    if not kept:
        kept = [min(pool, key=lambda plan: (plan.staleness or 0.0, plan.participants - plan.coverage, plan.groups))]
    out += [why(plan) for plan in pool if plan not in kept]
    return kept


def _stable(plan: Planned, curvature: float | None) -> bool:
    if curvature is None:
        return plan.step <= stability_limit(plan.staleness or 0.0)
    return curvature <= plan.stable_curvature


def _unstable(plan: Planned) -> str:
    return (
        f"G = {plan.groups}: stale by {plan.staleness:.2g} versions, stable below curvature {plan.stable_curvature:.2g}"
    )


def _narrow(plan: Planned) -> str:
    return f"G = {plan.groups}: a chain meets {plan.coverage} of {plan.participants}"


def _slow(plan: Planned) -> str:
    return f"G = {plan.groups}: {plan.rounds:,.0f} rounds"
