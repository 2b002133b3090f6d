"""Which numbers a policy still has in mind, so that versions that nobody can name any more need not be kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pipecycle.fleet import Fleet
from pipecycle.lineage import Lineage
from pipecycle.policies import REGISTRY
from pipecycle.world import Policy


def held(policy: Policy) -> set[int] | None:
    """Every whole number in the policy's attributes, whatever it stands for: a version among them is in use.

    None for a user's own policy, which may keep versions in ways that cannot be seen."""
    if REGISTRY.get(policy.name) is not type(policy):
        return None
    found: set[int] = set()
    _gather(vars(policy), found, set())
    return found


def _gather(value: Any, found: set[int], seen: set[int]) -> None:
    if isinstance(value, bool | str | bytes | float | Fleet | Lineage) or value is None or callable(value):
        return
    if isinstance(value, int | np.integer):
        found.add(int(value))
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "iu":
            found.update(np.unique(value).tolist())
    elif isinstance(value, Mapping):
        for key, one in value.items():
            _gather(key, found, seen)
            _gather(one, found, seen)
    elif isinstance(value, Iterable):
        for one in value:
            _gather(one, found, seen)
    else:
        for name in [*getattr(value, "__dict__", ()), *getattr(value, "__slots__", ())]:
            _gather(getattr(value, name, None), found, seen)
