"""PipeCycle+: PipeCycle's groups and relays around one model, with steps that their lag allows (ours, not the paper's).

The paper's server replaces its model by the hub's, so that G chains live side by side and each learns from its own
groups.  Here it adds the group's update to the one model that everybody starts from.  Such an update is G - 1 versions
old, and a whole step would be unstable from G = 3 on; `steps.py` has the rule that is not, docs/stability.md the
reason.  Nothing is transmitted that PipeCycle does not transmit.

Chosen by us: everything about the step, and that groups are formed by the paper's longest-idle rule, because one model
meets everybody and there is no resonance to break.
"""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import define, field

from pipecycle.checks import share
from pipecycle.policies.pipecycle import Hub, Pipeline
from pipecycle.policies.steps import KAPPA, LagStable
from pipecycle.world.contract import World
from pipecycle.world.lineage import Kind


@define(slots=False, eq=False)
class PipeCyclePlus(Pipeline):
    """PipeCycle with one model, which every hub's update moves by a step that its lag allows, for the same energy."""

    name: ClassVar[str] = "pipecycle+"
    revision: ClassVar[int] = 2
    former: ClassVar[tuple[str, dict[str, Any]]] = ("pipecycle", {"rotation": "spread", "relay_mix": 0.5})
    """What revision 1 was."""

    kappa: float = field(default=KAPPA, validator=share)
    """The step, as a part of the largest stable one."""

    def setup(self, world: World) -> None:
        super().setup(world)
        self.steps = LagStable(self.groups, self.kappa)

    def adopt(self, hub: Hub) -> int:
        """published + s * (hub's model - its reference)."""
        step = self.steps.of(self.lineage.lag(hub.reference), hub.size)
        versions = (self.lineage.published, hub.model, hub.reference)
        return self.lineage.combine(versions, (1.0, step, -step), kind=Kind.MIXTURE)

    def references(self) -> list[int]:
        return super().references() + [hub.reference for hub in self.hubs]
