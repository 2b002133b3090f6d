"""One question to the theory: a configuration at several G, planned, and measured where there are runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from pipecycle.errors import InputError
from pipecycle.policies.registry import parameters, policy_class
from pipecycle.runs.config import Config
from pipecycle.runs.records import Record, load
from pipecycle.theory import bounds, rates
from pipecycle.theory.plans import SUBJECT, Advice, Planned, figures, recommend, recommend_measured
from pipecycle.theory.rates import KINDS
from pipecycle.theory.system import Constants, System

if TYPE_CHECKING:
    from pipecycle.theory.measure import Measured


@frozen
class Family:
    """Finished runs that differ by nothing but their groups and the trial."""

    config: Config
    runs: Mapping[str, Record]
    """By what they are called beside each other."""

    @property
    def grouped(self) -> bool:
        return "groups" in parameters(policy_class(self.config.policy))

    @property
    def groups(self) -> list[int]:
        """The numbers of groups that were run."""
        return sorted({groups for run in self.runs.values() if (groups := _groups(run)) is not None})


@frozen
class Study:
    """What the command shows."""

    config: Config
    constants: Constants
    assumed: bool
    """Whether the constants were given or taken for granted, and not measured."""
    plans: tuple[Planned, ...]
    measured: tuple[Measured, ...]

    @property
    def about(self) -> bool:
        """Whether the paper's theory is about this policy."""
        return self.config.policy in SUBJECT

    @property
    def system(self) -> System:
        return self.plans[0].system if self.plans else self.measured[0].system

    @property
    def curvature(self) -> float | None:
        """The largest along runs that did not blow up, if there are any; else that of x_0, which all runs share."""
        calm = [max(run.curvatures) for run in self.measured if not run.blew_up]
        return max(calm or [run.curvatures[0] for run in self.measured], default=None)

    @property
    def advice(self) -> Advice | None:
        if not self.plans:
            return None
        accuracy: dict[int, dict[int, tuple[float, float]]] = {}
        for run in self.measured:
            accuracy.setdefault(run.system.G, {})[run.trial] = (run.accuracy, run.accuracy_error)
        if len(accuracy) > 1:
            return recommend_measured(accuracy, self.plans, self.curvature)
        return recommend(self.plans, self.curvature)

    def bound_row(self, plan: Planned) -> dict[str, Any]:
        """The paper's bound at one G."""
        system, known = plan.system, self.constants
        row: dict[str, Any] = {
            "groups": system.G,
            "step_limit": bounds.step_limit(system, known.L),
            "step_limit_theorem": bounds.step_limit(system, known.L, "theorem"),
            "step_limit_proof": bounds.step_limit(system, known.L, "proof"),
            "largest_L": bounds.step_limit(system, 1.0) / system.gamma,
            "zeta": bounds.zeta(system, known.L),
            "least_ratio": bounds.least_ratio(system),
        }
        if known.f0_gap == 0:
            silent = {"value": inf, "vacuous": bounds.UNLEARNT}
            return row | {"as_printed": silent, "consistent": silent, "best_step": None, "at_best_step": None}
        for reading in ("as_printed", "consistent"):
            bound = bounds.corollary(system, known, reading)
            row[reading] = {"value": bound.value, "vacuous": bound.vacuous}
        row["best_step"] = bounds.best_step(system, known)
        row["at_best_step"] = bounds.corollary(attrs.evolve(system, gamma=row["best_step"]), known).value
        return row

    def _expected(self, plan: Planned) -> dict[str, Any]:
        return {
            "members": plan.system.n_G,
            "rate": {kind: rates.event_rate(plan.system, kind) for kind in KINDS},
            "expected": {kind: rates.expected_events(plan.system, kind) for kind in KINDS},
        }

    def figures(self) -> dict[str, Any]:
        """For `--json`; what is infinite or no number becomes null."""
        system = self.system
        star = bounds.optimal_groups(system, self.constants.L)
        out: dict[str, Any] = {
            "policy": self.config.policy,
            "system": attrs.asdict(system) | {"d_max": system.d_max},
            "constants": attrs.asdict(self.constants) | {"assumed": self.assumed},
            "smoothness_alone": bounds.smoothness_alone(self.constants),
        }
        if self.about:
            out["optimal_groups"] = {"value": star, "whole": bounds.best_whole_groups(system, self.constants.L)}
            out["bounds"] = [self.bound_row(plan) for plan in self.plans]
        out["plans"] = [figures(plan) | (self._expected(plan) if self.about else {}) for plan in self.plans]
        out["measured"] = [run.figures() for run in self.measured]
        out["recommendation"] = None if self.advice is None else attrs.asdict(self.advice)
        return out


def families(paths: Iterable[Path]) -> list[Family]:
    """Finished runs below some folders, by everything that decides them but their groups and the trial."""
    by_facts: dict[str, list[Record]] = {}
    configs: dict[str, Config] = {}
    for group in load(paths):
        for record in group.trained:
            assert record.config is not None  # it has ended
            facts = {key: value for key, value in record.facts.items() if key != "policy.groups"}
            key = json.dumps(facts, sort_keys=True, default=str)
            by_facts.setdefault(key, []).append(record)
            configs.setdefault(key, record.config.changed({"world.clients": record.schedule.clients}))
    if not by_facts:
        raise InputError("--measure: needs finished runs, and there are only unfinished ones or lone schedules")
    return [Family(configs[key], _labelled(runs)) for key, runs in by_facts.items()]


def _labelled(runs: list[Record]) -> dict[str, Record]:
    """By what tells them apart, fewest groups first."""
    several = len({run.trial for run in runs}) > 1
    out = {}
    for run in sorted(runs, key=lambda run: (_groups(run) or 0, run.trial)):
        words = [] if _groups(run) is None else [f"G = {_groups(run)}"]
        words += [f"trial {run.trial}"] if several or not words else []
        out[", ".join(words)] = run
    return out


def _groups(run: Record) -> int | None:
    groups = run.schedule.meta["settings"].get("groups")
    return None if groups is None else int(groups)


def largest(runs: Sequence[Measured]) -> Constants:
    """Constants that hold for all of some runs."""
    names = [field.name for field in attrs.fields(Constants)]
    return Constants(**{name: max(run.constants[name].value for run in runs) for name in names})


def finite(value: Any) -> Any:
    """The same with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not isfinite(value) else value
