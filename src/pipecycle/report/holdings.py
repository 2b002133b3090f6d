"""Who holds which classes, and what that makes of the accuracy by class."""

from __future__ import annotations

import numpy as np

from pipecycle.errors import InputError
from pipecycle.runs.planning import shares_of, task_of
from pipecycle.runs.records import Group, Record
from pipecycle.world.streams import Floats


def holdings(record: Record) -> Floats:
    """The part of each client's samples that each class is, clients x classes, from the data and the trial; refused
    where they are not known here."""
    config = record.config
    if config is None:
        raise InputError("a schedule does not say which data its clients hold")
    if record.path is not None and (record.path / "levels.npz").exists():
        raise InputError("this was a live run: only its nodes know which data they hold")
    task, split = task_of(config), shares_of(config)
    counts = split.counts(task).astype(np.float64)
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def class_accuracy(group: Group) -> Floats | None:
    """Percent by class at the budget (or at the end), the mean over trials; None where it was not recorded."""
    rows = [shown.by_class[shown.at_budget] for shown in group.metrics.values() if shown.by_class is not None]
    if not rows or len({len(row) for row in rows}) > 1:
        return None
    known = np.isfinite(rows)
    counts = known.sum(axis=0)
    sums = np.where(known, rows, 0.0).sum(axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def client_accuracy(record: Record, share: Floats) -> Floats | None:
    """The accuracy of the server's model on every client's mix of classes: that of each class, weighted by how much of
    it the client holds.  No client's own samples are looked at."""
    shown = record.metrics
    if shown is None or shown.by_class is None or record.ended is None:
        return None
    accuracy = shown.by_class[shown.at_budget]
    if len(accuracy) != share.shape[1] or np.isnan(accuracy).all():
        return None
    weight = np.where(np.isfinite(accuracy), share, 0.0)
    total = weight.sum(axis=1)
    return np.where(total > 0, weight @ np.nan_to_num(accuracy) / np.where(total > 0, total, 1.0), np.nan)
