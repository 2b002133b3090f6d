"""The schedulers, one file each; `REGISTRY` names them."""

from __future__ import annotations

from pipecycle.policies.cycp import CyCP
from pipecycle.policies.fedavg import FedAvg
from pipecycle.policies.fedbacys import FedBacys, FedBacysOdd
from pipecycle.policies.fedseq import FedSeq
from pipecycle.policies.flda import FLDA
from pipecycle.policies.isolated import Isolated
from pipecycle.policies.mifa import MIFA
from pipecycle.policies.pipecycle import PipeCycle
from pipecycle.policies.pipecycle_plus import PipeCyclePlus
from pipecycle.world.contract import Policy

REGISTRY: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (PipeCycle, PipeCyclePlus, FedAvg, CyCP, MIFA, FLDA, FedSeq, FedBacys, FedBacysOdd, Isolated)
}

__all__ = [
    "FLDA",
    "MIFA",
    "REGISTRY",
    "CyCP",
    "FedAvg",
    "FedBacys",
    "FedBacysOdd",
    "FedSeq",
    "Isolated",
    "PipeCycle",
    "PipeCyclePlus",
]
