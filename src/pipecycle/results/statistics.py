"""Means over trials, their errors, and differences trial by trial."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
from attrs import frozen

from pipecycle.world.streams import Floats


@frozen
class Value:
    """The mean of some trials."""

    mean: float
    sd: float | None
    """Over trials; None for one."""
    trials: int
    error: float = 0.0
    """Twice the standard error of the mean."""

    @classmethod
    def of(cls, values: Sequence[float], noise: float = 0.0) -> Self:
        """Its error is that of the spread over trials, or of the `noise` of a single trial if that is more."""
        sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(float(np.mean(values)), sd, len(values), 2 * max(noise, sd or 0.0) / math.sqrt(len(values)))

    def text(self, digits: int = 1) -> str:
        return f"{self.mean:.{digits}f}" + ("" if self.sd is None else f" ± {self.sd:.{digits}f}")


@frozen
class Difference:
    """The mean of paired differences, its standard error and its 95 % interval by Student's t.

    Error and interval are None for a single pair, and where all pairs differ by the same: accuracies are counts out of
    a few hundred samples, so that two or three equal differences are a coincidence and no proof of a spread of zero."""

    mean: float
    low: float | None
    high: float | None
    pairs: int
    error: float | None = None

    @classmethod
    def of(cls, gaps: Sequence[float]) -> Self:
        mean, pairs, error = float(np.mean(gaps)), len(gaps), standard_error(gaps)
        if error is None or np.ptp(gaps) < 1e-9:
            return cls(mean, None, None, pairs)
        from scipy.special import stdtrit  # type: ignore[import-untyped]

        half = float(stdtrit(pairs - 1, 0.975)) * error
        return cls(mean, mean - half, mean + half, pairs, error)


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """`ours - theirs` over the trials that both have; None if there is none."""
    both = gaps(ours, theirs)
    return Difference.of(both) if both else None


def gaps(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """`ours - theirs` for every trial that both have."""
    return [ours[trial] - theirs[trial] for trial in sorted(set(ours) & set(theirs))]


def standard_error(values: Sequence[float] | Floats) -> float | None:
    """Of the mean of some values; None for fewer than two."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None


def sampling_error(percent: float, samples: int) -> float:
    """Standard error of an accuracy in percent that was measured on a number of samples."""
    share = min(max(percent / 100, 0.0), 1.0)
    return 100 * math.sqrt(share * (1 - share) / samples)
