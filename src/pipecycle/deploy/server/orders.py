"""The message that orders a session."""

from __future__ import annotations

import numpy as np
from attrs import frozen
from flwr.app import ConfigRecord, RecordDict

from pipecycle.deploy.server.fleet import LiveFleet
from pipecycle.deploy.server.model import Model
from pipecycle.deploy.server.weights import Weights
from pipecycle.deploy.wire.arrays import write_arrays
from pipecycle.deploy.wire.protocol import OURS, Order
from pipecycle.deploy.wire.settings import RunSettings
from pipecycle.world.energy import UNIT


@frozen
class Orders:
    """Makes orders from the server's book."""

    run: RunSettings
    model: Model
    fleet: LiveFleet
    weights: Weights
    ratio: float
    """The policy's `upload_ratio`."""

    def make(self, word: str, number: int) -> tuple[Order, RecordDict]:
        """The order of a session, and the content of its message; `word` is the run's."""
        run, session = self.run, self.fleet.sessions[number]
        kept = self.weights.kept.get(session.reference)
        order = Order(
            word,
            session.client,
            session.number,
            session.slot,
            run.session,
            need=session.need,
            step=UNIT,
            fee=int(np.min(self.fleet.price("server", self.ratio if session.payload == "logits" else 1.0))),
            payload=session.payload,
            kept=-1 if kept is None else self.fleet.sessions[kept].number,
            settled=int(self.fleet.settled[session.client]),
            seconds=run.seconds,
            slot_seconds=run.slot_seconds if run.clock == "wall" else 0.0,
            life=session.life,
        )
        config = {
            "classes": self.model.classes,
            "lr": run.lr,
            "batch-size": run.batch,
            "local-steps": run.session,
            "server-round": order.k + 1,
        }
        arrays = write_arrays(self.model.named(self.weights.version(session.reference)))
        content = RecordDict({OURS: order.record(), "config": ConfigRecord(config), "arrays": arrays})
        if session.teacher >= 0:
            logits, valid = self.weights.teacher(session.teacher, session.client)
            content["teacher"] = write_arrays({"logits": logits.numpy(), "valid": valid.numpy()})
        return order, content
