"""From comparisons to a verdict: what holds, what does not, and what lies within the error."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import NormalDist
from typing import Literal

from attrs import evolve, frozen

from pipecycle.results import Value

FEW = 4
"""So many comparisons are all shown; of more, the worst."""
Verdict = Literal["holds", "does not hold", "cannot be tested"]


@frozen
class Check:
    """One comparison that a claim rests on."""

    what: str
    """Where: a charging probability, a scheduler ..."""
    margin: float
    """By how much it holds; negative where it does not."""
    error: float
    """A margin that is smaller than this could be chance."""
    text: str
    """The figures that were compared."""


@frozen
class Finding:
    """What the results say about a claim."""

    verdict: Verdict
    figure: str
    why: str
    close: bool = False
    """Whether the verdict lies within the error."""

    @property
    def words(self) -> str:
        return f"{self.verdict}, but within the error" if self.close else self.verdict


def untestable(why: str, figure: str = "-") -> Finding:
    return Finding("cannot be tested", figure, why)


def judge(checks: Iterable[Check | None], unit: str = " points", *, widen: bool = True) -> Finding:
    """A claim holds if every comparison does; None is a comparison that the results do not allow.

    One that clearly fails settles the matter, even where others are missing.  Among many comparisons one goes astray
    by chance, so that their errors are widened together (Bonferroni), unless an error is not one of chance but how
    closely somebody looked."""
    every = list(checks)
    known = [check for check in every if check is not None]
    if not known:
        return untestable("nothing of it was run")
    wider = NormalDist().inv_cdf(1 - 0.025 / len(known)) / NormalDist().inv_cdf(0.975) if widen else 1.0
    known = [evolve(check, error=wider * check.error) for check in known]
    failed = [check for check in known if check.margin < -1e-9]
    clear = [check for check in failed if check.margin < -check.error - 1e-9]
    worst = min(clear or known, key=lambda check: check.margin)
    figure = _figure(known, worst)
    close = [check for check in known if abs(check.margin) < check.error]
    missing = len(every) - len(known)
    gap = f"{worst.what}: {_amount(worst.margin, unit)}"
    gap += f", error {_amount(worst.error, unit).lstrip('+')}" if worst.error else ""
    if clear:
        several = f"{len(clear)} of {len(known)} comparisons clearly fail; worst"
        return Finding("does not hold", figure, f"{several if len(known) > 1 else 'it clearly fails;'} {gap}")
    if missing:
        why = f"{missing} of {len(every)} comparisons were not run; none of the others clearly fails"
        return untestable(why, figure)
    if failed:
        return Finding("does not hold", figure, f"{len(failed)} of {len(known)} fail, none clearly; worst {gap}", True)
    if close:
        return Finding("holds", figure, f"{len(close)} of {len(known)} margins are small; smallest {gap}", True)
    return Finding("holds", figure, f"smallest margin {gap}")


def _figure(known: list[Check], worst: Check) -> str:
    if len(known) <= FEW:
        return "; ".join(f"{check.what}: {check.text}" for check in known)
    good = sum(check.margin >= -1e-9 for check in known)
    word = "closest" if good == len(known) else "worst"
    return f"{good} of {len(known)} hold; {word} {worst.what}: {worst.text}"


def _amount(margin: float, unit: str) -> str:
    if not math.isfinite(margin):
        return "without bound"
    digits = 0 if abs(margin) >= 100 else 1 if abs(margin) >= 1 else 2
    return f"{round(margin, digits) + 0.0:+,.{digits}f}{unit}"


def above(what: str, ours: Value | None, theirs: Value | None, names: tuple[str, str] = ("", "")) -> Check | None:
    """`ours` is at least `theirs`."""
    if ours is None or theirs is None:
        return None
    first, second = (f" ({name})" if name else "" for name in names)
    text = f"{ours.mean:.1f}{first} against {theirs.mean:.1f}{second}"
    return Check(what, ours.mean - theirs.mean, math.hypot(ours.error, theirs.error), text)


def at_least(what: str, value: Value | None, limit: float) -> Check | None:
    return None if value is None else Check(what, value.mean - limit, value.error, f"{value.mean:.1f}")


def at_most(what: str, value: Value | None, limit: float) -> Check | None:
    return None if value is None else Check(what, limit - value.mean, value.error, f"{value.mean:.1f}")
