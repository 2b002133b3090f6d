"""How good the served model is: by the server's own data, or by those of clients whose app evaluates."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from attrs import define, field
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from pipecycle.deploy.server.clocks import POLL
from pipecycle.deploy.server.model import Model
from pipecycle.deploy.server.outputs import Outputs
from pipecycle.deploy.server.roster import Roster
from pipecycle.deploy.server.trace import Event, Trace
from pipecycle.deploy.wire.arrays import write_arrays
from pipecycle.deploy.wire.settings import RunSettings
from pipecycle.errors import InputError
from pipecycle.train.history import Checkpoint, Score
from pipecycle.world.streams import streams

LOG = logging.getLogger("flwr")
"""Flower's own, which `flwr run --stream` and `flwr log` show."""


@define
class Evaluation:
    """Evaluates, and records what came of it.  Clients' scores come later, as events; `finish` takes their mean."""

    run: RunSettings
    model: Model
    roster: Roster
    trace: Trace
    outputs: Outputs
    asked: Checkpoint | None = None
    """What clients are asked about."""
    last: int = 0
    """The slots that had elapsed at the latest evaluation."""
    scores: list[Event] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        if self.run.evaluate_clients and not self.model.foreign:
            raise InputError(
                f"evaluate-clients = {self.run.evaluate_clients}: needs an app of your own with @app.evaluate; "
                "in ours the server evaluates"
            )

    def due(self, elapsed: int) -> bool:
        """Whether it is time for one: after every so many slots, or later if clients evaluate and none was idle."""
        every, rows = self.run.evaluate_every, self.model.history.rows
        due = elapsed // every * every > max(self.last, rows[-1].slot if rows else 0)
        return due and (not self.run.evaluate_clients or bool(self.roster.idle()))

    def start(self, point: Checkpoint, vector: Tensor) -> None:
        """Evaluate a version, or ask idle clients to: nobody does two things at once."""
        self.last = point.slot
        if not self.run.evaluate_clients:
            self._record(point.slot - 1, point, self.model.score(vector))
            return
        self.finish(point.slot - 1)  # the one before, with the scores that have come
        idle = np.array(self.roster.idle(), np.int64)
        draw = streams(self.run.trial)("evaluate", point.slot)
        for client in draw.sample(idle, self.run.evaluate_clients).tolist():
            config = {"batch-size": self.run.batch, "server-round": len(self.model.history.rows) + 1}
            content = {"arrays": write_arrays(self.model.named(vector)), "config": ConfigRecord(config)}
            self.roster.examine(client, RecordDict(content))
        self.roster.push()
        self.asked = point

    def collect(self, slot: int, *, wait: bool = False) -> None:
        """Finish once all scores have come; `wait` for them."""
        while wait and self.roster.examined:
            self.roster.timer.sleep(POLL)
            for event in self.roster.scores():
                self.trace.write(slot=slot, **event)
                self.scores.append(event)
        if self.asked is not None and not self.roster.examined:
            self.finish(slot, last=self.asked.slot == self.run.slots)

    def finish(self, slot: int, *, last: bool = False) -> None:
        """The mean of the scores so far, weighted by samples; an evaluation without any counts only as the last."""
        point, self.asked = self.asked, None
        scores, self.scores = sorted(self.scores, key=lambda event: int(event["client"])), []
        self.roster.stop_examining()
        if point is None:
            return
        good = [event for event in scores if "why" not in event]
        if not good:
            why = "; ".join(str(event["why"]) for event in scores[:1]) or "none was idle"
            LOG.warning("slot %d: no client has evaluated version %d (%s)", point.slot, point.version, why)
        if good or last:
            self._record(slot, point, Score(_mean(good, "accuracy"), _mean(good, "loss"), ()), clients=len(good))

    def _record(self, slot: int, point: Checkpoint, score: Score, **extra: int) -> None:
        row = self.model.record(point, score)
        of = {"of": point.slot - 1} if point.slot - 1 != slot else {}
        figures = self.model.figures(row)
        self.trace.write("evaluation", slot, **of, version=row.version, energy=row.energy, **figures, **extra)
        self.outputs.save_metrics()
        parts = [f"slot {row.slot} of {self.run.slots}: version {row.version}"]
        parts += [] if figures["accuracy"] is None else [f"accuracy {row.accuracy:.1f} %"]
        parts += [] if figures["loss"] is None else [f"loss {row.loss:.3f}"]
        LOG.info("%s", ", ".join([*parts, f"{row.energy:.0f} units"]))


def _mean(scores: Sequence[Event], name: str) -> float:
    held = [event for event in scores if name in event]
    weights = [event["samples"] for event in held]
    return float(np.average([event[name] for event in held], weights=weights)) if held else float("nan")
