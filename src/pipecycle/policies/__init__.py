"""The schedulers, one file each; `REGISTRY` names them, `TITLES` says how papers call them."""

from __future__ import annotations

from pipecycle.policies.cycp import CyCP
from pipecycle.policies.f3ast import F3AST
from pipecycle.policies.fedasync import FedAsync
from pipecycle.policies.fedau import FedAU
from pipecycle.policies.fedavg import FedAvg
from pipecycle.policies.fedbacys import FedBacys, FedBacysOdd
from pipecycle.policies.fedbuff import FedBuff
from pipecycle.policies.fedseq import FedSeq
from pipecycle.policies.fedvarp import FedVARP
from pipecycle.policies.flda import FLDA
from pipecycle.policies.isolated import Isolated
from pipecycle.policies.mifa import MIFA
from pipecycle.policies.pipecycle import PipeCycle
from pipecycle.policies.pipecycle_plus import PipeCyclePlus
from pipecycle.world.contract import Policy

REGISTRY: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        *(PipeCycle, PipeCyclePlus, FedAvg, CyCP, MIFA, FLDA, FedSeq, FedBacys, FedBacysOdd),
        *(FedAsync, FedBuff, FedAU, FedVARP, F3AST, Isolated),
    )
}

TITLES = {
    "pipecycle": "PipeCycle", "fedavg": "FedAvg", "flda": "FLDA", "fedseq": "FedSeq", "cycp": "CyCP+SGD",
    "mifa": "MIFA", "pipecycle+": "PipeCycle+", "fedbacys": "FedBacys", "isolated": "isolated clients",
    "fedbacys-odd": "FedBacys-Odd", "fedbuff": "FedBuff", "fedasync": "FedAsync", "fedvarp": "FedVARP",
    "fedau": "FedAU", "f3ast": "F3AST",
}  # fmt: skip
"""Schedulers as papers call them. Their looks in reports go by this order, so a new one is added at the end."""

__all__ = [
    "F3AST",
    "FLDA",
    "MIFA",
    "REGISTRY",
    "TITLES",
    "CyCP",
    "FedAU",
    "FedAsync",
    "FedAvg",
    "FedBacys",
    "FedBacysOdd",
    "FedBuff",
    "FedSeq",
    "FedVARP",
    "Isolated",
    "PipeCycle",
    "PipeCyclePlus",
]
