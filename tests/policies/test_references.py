"""What a policy says that it may still name is all that it names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipecycle import Bernoulli, build, plan
from pipecycle.errors import ActionError
from pipecycle.policies import REGISTRY
from pipecycle.schedule.plan import Planning
from pipecycle.world.contract import Frugal
from pipecycle.world.lineage import Lineage

CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in REGISTRY),
    ("pipecycle", {"groups": 3, "queue_threshold": 1}),
    ("pipecycle+", {"groups": 4}),
    ("fedseq", {"mode": "chain", "patience": 30}),
    ("flda", {"phase": "global"}),
    ("fedbacys", {"reference_refresh": "next_group", "groups": 3}),
]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_giving_up_everything_else_changes_nothing(name: str, settings: dict[str, Any]) -> None:
    world: dict[str, Any] = {"session": 4, "initial": 3.0}
    policy = build(name, settings)
    assert isinstance(policy, Frugal)
    run = Planning(policy, Bernoulli(0.5), 12, 400, **world)
    start = run.fleet.start

    def checked(clients: Any, reference: Any, *rest: Any, **options: Any) -> Any:
        run.lineage.check(np.atleast_1d(reference))
        return start(clients, reference, *rest, **options)

    run.fleet.start = checked  # type: ignore[method-assign]
    given_up: list[int] = []
    for slot in run.steps():
        if slot % 7 == 0:
            given_up += run.lineage.give_up(policy.references())
    made = len(run.lineage)
    assert len(given_up) == len(set(given_up))
    alive = {0, run.lineage.published, *policy.references()}
    assert set(run.lineage.give_up(policy.references())) | set(given_up) == set(range(made)) - alive
    assert len(given_up) > made // 2 or made < 40
    assert run.schedule().digest() == plan(build(name, settings), Bernoulli(0.5), 12, 400, **world).digest()


def test_a_version_that_was_given_up_is_refused_by_name() -> None:
    lineage = Lineage(lambda sessions: None)
    first, second = lineage.mean(0, np.array([0])), lineage.mean(0, np.array([1]))
    lineage.publish(lineage.mean(second, np.array([2])))
    assert lineage.give_up([second]) == [first]
    lineage.combine((0, second, lineage.published), (0.5, 0.25, 0.25))
    for name in (
        lambda: lineage.combine((first,), (1.0,)),
        lambda: lineage.publish(first),
        lambda: lineage.each(np.array([3]), np.array([first])),
    ):
        with pytest.raises(ActionError, match=f"version {first} was given up: references"):
            name()
    lineage.slot = 9
    assert lineage.give_up([]) == [second, 4]
