"""What the bounds are about: the problem's constants, and the pipeline with its energy."""

from __future__ import annotations

from attrs import field, frozen

from pipecycle.checks import at_least, number, share
from pipecycle.policies.rotation import group_cap

HUGE = 1e100
"""The squares of larger numbers overflow."""
POSITIVE, AMOUNT = number(above=0, below=HUGE), number(least=0, below=HUGE)


@frozen
class Constants:
    """What the bounds take for granted about the problem; what a run has shown may be infinite."""

    L: float
    """Smoothness of the clients' losses."""
    sigma2: float = 1.0
    """Variance of a stochastic gradient."""
    alpha: float = 0.1
    """Distance of a client's gradient from its group's mean."""
    beta: float = 0.1
    """Distance of a group's mean gradient from everybody's."""
    omega2: float = 1.0
    """Largest sum of squared weights in a group: 1 / the smallest group for equal samples."""
    f0_gap: float = 2.3
    """f(x_0) - f*."""


@frozen
class System:
    """The pipeline and its energy."""

    B: int = field(default=20, validator=at_least(1))
    G: int = field(default=2, validator=at_least(1))
    gamma: float = field(default=0.05, validator=POSITIVE)
    slots: int = field(default=15_000, validator=at_least(1))
    clients: int = field(default=100, validator=at_least(1))
    delta: float = field(default=0.5, validator=share)
    group_size: int | None = field(default=None, validator=at_least(1))
    """Members per group, at most; floor(N / 2.5 G) if not given."""

    @property
    def d_max(self) -> int:
        """Longest ancestry that fits the horizon."""
        return self.slots // self.B

    @property
    def n_G(self) -> int:
        """Members per group, at most."""
        return self.group_size or group_cap(self.clients, self.G)
