from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas
import pytest

from pipecycle.runs.config import Config
from pipecycle.runs.parquet import Results
from pipecycle.runs.sweep import flat
from pipecycle_paper.grid import Grid, grid_of


def run(
    policy: str,
    groups: int | None,
    delta: float,
    where: str = "iid",
    *,
    accuracy: float | Sequence[float] = 60.0,
    clients: Sequence[float] | None = None,
    energy: Sequence[float] | None = None,
    trial: int = 0,
    plan: dict[str, Any] | None = None,
    **options: Any,
) -> pandas.DataFrame:
    """A run as results hold it, with a history that the test chooses: checkpoints every 150 slots, 1,000 units each,
    the last one at the budget as well."""
    given: dict[str, Any] = {"world.harvest": f"bernoulli:{delta!r}", "world.trial": trial, "world.budget": 5e5}
    given |= {"data.name": "cifar10", "train.model": "cnn64"} | ({} if groups is None else {"policy.groups": groups})
    if where == "non-iid":
        given |= {"data.alpha": 0.1, "world.slots": 30_000}
        given |= {"policy.queue_threshold": 2} if policy == "pipecycle" else {}
    given |= {key.replace("__", "."): value for key, value in options.items()}
    config = Config(policy).changed(given)
    values = [float(accuracy)] * 3 if isinstance(accuracy, int | float) else list(accuracy)
    spent = list(energy) if energy is not None else [1000.0 * k for k in range(1, len(values) + 1)]
    rows = len(values)
    frame = pandas.DataFrame(
        {
            "slot": [150 * k for k in range(1, rows + 1)],
            "energy": spent,
            "accuracy": values,
            "best": np.maximum.accumulate(values),
            "loss": 1.0,
            "version": 0,
            "budget": 0,
            "diverged": 0,
            "clients_accuracy": [np.nan] * rows if clients is None else list(clients),
        }
    )
    last = frame.iloc[[-1]].assign(budget=1, clients_accuracy=np.nan)
    frame = pandas.concat([frame, last], ignore_index=True)
    about = {"run": f"{policy}-{trial}", "identity": config.identity(), "ended": "finished", "steps": 1, **flat(config)}
    about |= {f"plan.{key}": value for key, value in (plan or {}).items()}
    for key, value in about.items():
        frame[key] = [value] * len(frame)
    return frame.dropna(axis=1, how="all")


def gathered(*frames: pandas.DataFrame) -> Grid:
    whole = pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()
    return grid_of(Results(whole, []))


@pytest.fixture(scope="session")
def make() -> Callable[..., pandas.DataFrame]:
    return run


@pytest.fixture(scope="session")
def gather() -> Callable[..., Grid]:
    return gathered
