"""Local SGD on a node's own data, by the trainer's own code: the same bits as in a simulated run."""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import evolve
from flwr.app import Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn

from pipecycle.arrays import read_arrays as read_npz
from pipecycle.data import Scale, Task, Views, session_indices
from pipecycle.data.augment import augmentation
from pipecycle.data.scale import UNIT, named_scale
from pipecycle.data.sets import USUAL
from pipecycle.deploy.node.session import Late, settings_of
from pipecycle.deploy.node.settings import NodeSettings
from pipecycle.deploy.wire.arrays import form, joined, named, read_arrays, write_arrays
from pipecycle.deploy.wire.protocol import Order
from pipecycle.deploy.wire.settings import RunSettings, ours
from pipecycle.errors import InputError
from pipecycle.files import reason
from pipecycle.train import models
from pipecycle.train.loop import Loop
from pipecycle.train.sessions import Teachers
from pipecycle.train.views import Frame
from pipecycle.world.streams import streams


@lru_cache(4)
def blank(model: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model to be filled."""
    return models.build(model, shape, classes, streams(0)("model").words(2))


def own_data(run: RunSettings, node: NodeSettings, classes: int) -> Task:
    """The node's samples and labels to train on: its own files, or its share of the run's data."""
    if not node.data:
        whole = run.problem()
        share = whole.split[node.partition_id]
        x, y = whole.task.x_train[share], whole.task.y_train[share]
        return evolve(whole.task, x_train=x, y_train=y, x_test=x[:1], y_test=y[:1])
    path = Path(node.data)
    if path.is_dir():
        try:
            arrays = {name: np.load(path / f"{name}.npy", allow_pickle=False) for name in ("x", "y")}
        except (OSError, ValueError) as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            raise InputError(f"{path}: needs x.npy and y.npy ({why})") from None
    else:
        arrays = read_npz(path)
    images, labels = arrays.get("x_train", arrays.get("x")), arrays.get("y_train", arrays.get("y"))
    if images is None or labels is None:
        raise InputError(f"{path}: needs x_train and y_train, or x and y")
    scale = _own_scale(run, images)
    return Task(images, labels, images[:1], labels[:1], classes=classes, name=path.stem, scale=scale)


def _own_scale(run: RunSettings, x: np.ndarray[Any, Any]) -> str | Scale | None:
    """A node's own bytes are scaled as the run's data are, by numbers that all nodes have in common."""
    if run.scale == "standard" and run.data not in USUAL:
        raise InputError("scale = standard: nodes with data of their own need common numbers: unit, half or centre")
    if not run.scale or x.dtype != np.uint8:
        return run.scale or None  # which is refused for anything but bytes
    return named_scale(run.scale, USUAL.get(run.data, UNIT))


def train(message: Message, context: Context, defaults: RunSettings | None = None) -> Message:
    """One session: from the reference in the message to the weights in the reply."""
    began = time.monotonic()
    order = Order.of(message.content)
    if order is None:
        raise InputError("the message holds no order")
    run, node = settings_of(context, defaults), NodeSettings.of(ours(context.node_config))
    classes = int(message.content["config"]["classes"])
    task = own_data(run, node, classes)
    x, y = torch.from_numpy(task.x_train), torch.from_numpy(task.y_train)
    training = run.training()
    augment = augmentation(training.augment)
    if augment is not None:
        augment.check(task.shape)
    module = blank(run.model, task.shape, classes)
    loop = Paced(module, x, y, classes, training.sgd, frame=Frame(augment.crop if augment else 0, task.black))
    loop.pace, loop.until = node.pace, began + order.seconds
    start = message.content.get("kept", message.content.get("arrays"))
    reference = joined(read_arrays(start, form(module), "arrays"))
    places = session_indices(np.arange(len(y)), run.trial, order.client, order.k, order.steps, run.batch)
    teacher = _teacher(message, classes, run.distillation)
    views = None
    if augment is not None:
        drawn = Views(augment, run.trial, order.steps, run.batch)(order.client, order.k)
        views = torch.from_numpy(drawn[:, :, : places.shape[1]])
    done = loop.run(
        reference[None],
        torch.from_numpy(places)[None],
        teachers=teacher,
        collect=order.payload == "logits",
        views=views,
    )
    # A session that reports logits keeps its weights on the node; the ledger sees to that.
    content = RecordDict({"metrics": MetricRecord({"num-examples": int(places.size)})})
    if order.payload == "logits":
        assert done.sums is not None
        assert done.counts is not None
        content["logits"] = write_arrays({"sums": done.sums[0].numpy(), "counts": done.counts[0].numpy()})
    content["arrays"] = write_arrays(named(form(module), done.parameters[0]))
    return Message(content, reply_to=message)


def _teacher(message: Message, classes: int, weight: float) -> Teachers | None:
    record = message.content.get("teacher")
    if record is None or weight == 0.0:
        return None
    like = {
        "logits": ((classes, classes), np.dtype(np.float32)),
        "valid": ((classes,), np.dtype(np.bool_)),
    }
    arrays = read_arrays(record, like, "teacher")
    logits, valid = (torch.from_numpy(np.array(arrays[name])) for name in ("logits", "valid"))
    return Teachers(logits[None], valid[None], weight)


class Paced(Loop):
    """A session that keeps a pace and knows its deadline."""

    pace = 0.0
    until = float("inf")
    steps = 0

    def _gradients(self, x: Tensor, y: Tensor, table: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        if time.monotonic() >= self.until:
            raise Late(self.steps)
        if self.pace:
            time.sleep(self.pace)
        self.steps += 1
        return super()._gradients(x, y, table)
