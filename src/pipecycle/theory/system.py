"""What the bounds are about: the problem's constants, and the pipeline with its energy."""

from __future__ import annotations

from attrs import frozen

from pipecycle.errors import InputError
from pipecycle.policies.rotation import group_cap

HUGE = 1e100
"""Beyond this squares are no numbers any more."""


@frozen
class Constants:
    """What the bounds take for granted about the problem."""

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

    B: int = 20
    G: int = 2
    gamma: float = 0.05
    slots: int = 15_000
    clients: int = 100
    delta: float = 0.5
    group_size: int | None = None
    """Members per group, at most; floor(N / 2.5 G) if not given."""

    def __attrs_post_init__(self) -> None:
        for name, least in (("B", 1), ("G", 1), ("slots", 1), ("clients", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} = {getattr(self, name)}: needs at least {least}")
        if not 0 < self.gamma < HUGE:
            raise InputError(f"gamma = {self.gamma}: needs a positive number below {HUGE:g}")
        if not 0 < self.delta <= 1:
            raise InputError(f"delta = {self.delta}: needs a charging probability above 0 and at most 1")

    @property
    def d_max(self) -> int:
        """Longest ancestry that fits the horizon."""
        return self.slots // self.B

    @property
    def n_G(self) -> int:
        """Members per group, at most."""
        return self.group_size or group_cap(self.clients, self.G)

    @property
    def interval(self) -> int:
        """R: slots between two formations."""
        return max(1, -(-self.B // self.G))
