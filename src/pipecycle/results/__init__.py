"""What runs have shown: one run's checkpoints, the mean curve of several, and the statistics of their trials."""

from __future__ import annotations

from pipecycle.results.curve import Curve, evenly, mean_curve
from pipecycle.results.metrics import Axis, Measure, Metrics
from pipecycle.results.statistics import Difference, Value, gaps, paired, sampling_error, standard_error

__all__ = [
    "Axis",
    "Curve",
    "Difference",
    "Measure",
    "Metrics",
    "Value",
    "evenly",
    "gaps",
    "mean_curve",
    "paired",
    "sampling_error",
    "standard_error",
]
