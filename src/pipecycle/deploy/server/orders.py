"""What a session is sent out with."""

from __future__ import annotations

import numpy as np
from attrs import define, field
from flwr.app import ConfigRecord, RecordDict

from pipecycle.deploy.server.fleet import LiveFleet
from pipecycle.deploy.server.model import Model
from pipecycle.deploy.server.weights import Weights
from pipecycle.deploy.wire.arrays import write_arrays
from pipecycle.deploy.wire.protocol import OURS, Order
from pipecycle.deploy.wire.settings import RunSettings
from pipecycle.world.energy import UNIT
from pipecycle.world.streams import Ints


@define
class Orders:
    """Makes orders from the server's book."""

    run: RunSettings
    model: Model
    fleet: LiveFleet
    weights: Weights
    ratio: float
    """Size of a logit table relative to the model."""
    settled: Ints = field(init=False)
    """The last session of each client (its k) whose end is on disk."""

    def __attrs_post_init__(self) -> None:
        self.settled = np.full(self.run.clients, -1)

    def make(self, word: str, number: int) -> tuple[Order, RecordDict]:
        """The order of a session, and the message that holds it; `word` is the run's."""
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
            settled=int(self.settled[session.client]),
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
