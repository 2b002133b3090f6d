"""The simulated world: energy, weather, batteries and models, and what a policy is given and must answer."""

from pipecycle.world.contract import Grouping, Policy, World

__all__ = ["Grouping", "Policy", "World"]
