from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipecycle import build, plan
from pipecycle.runs.config import Config
from pipecycle.world.energy import UNIT
from pipecycle.world.specs import parse_harvest

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a run folder as `pipecycle run` does, with accuracies that the test chooses instead of training."""

    def write(
        name: str,
        policy: str = "pipecycle",
        accuracy: Sequence[float] = (50.0, 80.0),
        *,
        ended: str | None = "finished",
        every: int = 100,
        metrics: bool = True,
        **options: Any,
    ) -> Path:
        given = {"world.clients": 10, "world.slots": 400, "world.harvest": "bernoulli:0.5"}
        given |= {key.replace("__", "."): value for key, value in options.items()}
        config = Config(policy).changed(given)
        world = config.world
        schedule = plan(
            build(policy, dict(config.settings)),
            parse_harvest(world.harvest),
            world.clients,
            world.slots,
            session=world.session,
            budget=world.budget,
            trial=world.trial,
            capacity=world.capacity,
            initial=world.initial,
            fleet=world.fleet,
        )
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(config.text())
        schedule.save(folder / "schedule.npz")
        lines = ["slot,energy,accuracy,loss,version,best,budget,diverged"]
        for k, value in enumerate(accuracy):
            slot = min((k + 1) * every, schedule.slots)
            energy = int(schedule.energy.spent[slot - 1]) / UNIT
            lines.append(f"{slot},{energy},{value},1.0,{k},{max(accuracy[: k + 1])},0,0")
        if metrics:
            (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
        if ended is not None:
            (folder / "result.json").write_text(json.dumps({"policy": policy, "ended": ended}) + "\n")
        return folder

    return write
