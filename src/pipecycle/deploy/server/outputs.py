"""A live run's folder: the files of a simulated run, so that the same reports open it."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np

from pipecycle.deploy.server.model import Model
from pipecycle.deploy.wire.settings import RunSettings
from pipecycle.files import write
from pipecycle.schedule.schedule import Schedule
from pipecycle.world.streams import Ints

LEVELS = "levels.npz"


class Outputs:
    """Writes the results; without a path, nothing."""

    def __init__(self, path: Path | None, run: RunSettings, model: Model) -> None:
        self.path, self.run, self.model = path, run, model

    def begin(self) -> None:
        """The run is under way, also one that had ended and is extended."""
        if self.path is not None:
            (self.path / "result.json").unlink(missing_ok=True)
            write(self.path / "config.toml", self.run.config().text())

    def save(self, schedule: Schedule, levels: Sequence[Ints]) -> None:
        """The results so far."""
        if self.path is None:
            return
        schedule.save(self.path / "schedule.npz")
        data = io.BytesIO()
        np.savez_compressed(data, level=np.array(levels, np.int64).reshape(-1, self.run.clients))
        write(self.path / LEVELS, data.getvalue())

    def save_metrics(self) -> None:
        if self.path is not None:
            write(self.path / "metrics.csv", self.model.history.csv())

    def finish(
        self,
        schedule: Schedule,
        levels: Sequence[Ints],
        counts: Mapping[str, int],
        refused: Mapping[str, int],
    ) -> None:
        """The final files; a folder with `result.json` is finished."""
        if self.path is None:
            return
        self.save(schedule, levels)
        final = attrs.asdict(self.model.history.final)
        final.pop("by_class")
        figures = {
            "policy": schedule.policy,
            "trial": schedule.trial,
            "ended": "diverged" if final["diverged"] else "finished",
            "parameters": self.model.size,
            "aggregations": schedule.ancestry.events,
            "final": final,
            "at_budget": final,
            "live": {"clock": self.run.clock, "heard": counts, "refused": refused},
        }
        write(self.path / "result.json", json.dumps(figures, indent=1) + "\n")
