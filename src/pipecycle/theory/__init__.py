"""The paper's theory: its bounds, what they are worth, and the same quantities measured on real runs.

What is here needs no tensor; `estimate` and `measure` do, and are imported by name."""

from pipecycle.policies.steps import stability_limit
from pipecycle.theory.bounds import (
    Bound,
    best_step,
    best_whole_groups,
    corollary,
    gamma_squared,
    lambda_squared,
    least_ratio,
    lemma_1,
    lemma_2,
    optimal_groups,
    smoothness_alone,
    step_limit,
    theorem,
    zeta,
)
from pipecycle.theory.rates import chain_coverage, energy_rate, event_rate, expected_events, saturation
from pipecycle.theory.stability import Steps, memory_limit, stable_curvature, stable_share, steps
from pipecycle.theory.system import Constants, System

__all__ = [
    "Bound",
    "Constants",
    "Steps",
    "System",
    "best_step",
    "best_whole_groups",
    "chain_coverage",
    "corollary",
    "energy_rate",
    "event_rate",
    "expected_events",
    "gamma_squared",
    "lambda_squared",
    "least_ratio",
    "lemma_1",
    "lemma_2",
    "memory_limit",
    "optimal_groups",
    "saturation",
    "smoothness_alone",
    "stability_limit",
    "stable_curvature",
    "stable_share",
    "step_limit",
    "steps",
    "theorem",
    "zeta",
]
