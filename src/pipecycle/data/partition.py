"""Splits that are drawn: equal shares at random, or shares skewed by class.  Both depend on the trial alone."""

from __future__ import annotations

import numpy as np

from pipecycle.checks import at_least, number
from pipecycle.data.shares import labels, log_gammas, weights
from pipecycle.data.split import Split
from pipecycle.data.task import Task
from pipecycle.errors import InputError
from pipecycle.world.streams import Floats, Ints, Words, raw, streams

SAMPLES, TEST = 300, 1000
ALPHA = number(least=1e-6, most=1e9)
"""Which concentrations the sampler knows."""
_IID, _SHARES, _LABELS, _POOL, _TEST, _VALIDATION = range(6)


def iid(task: Task, clients: int, samples: int | None = None, trial: int = 0, validation: int = 0) -> Split:
    """Disjoint random shares of `samples` each, by default min(300, train // clients).

    `validation` training samples are held back first; no client gets them."""
    samples = per_client(task.name, len(task.y_train), clients, samples, validation)
    held = _held_back(task, validation, trial)
    order = streams(trial)("split", _IID).permutation(len(task.y_train))
    order = order[~np.isin(order, held)]
    return _split(order[: clients * samples].reshape(clients, samples), task, trial, held)


def dirichlet(
    task: Task, clients: int, samples: int | None = None, alpha: float = 0.1, trial: int = 0, validation: int = 0
) -> Split:
    """Disjoint shares of exactly `samples` each, whose labels are drawn from Dirichlet(alpha), client by client.

    Samples of a class are taken without replacement; once it has run out, a client's shares are renormalised
    over the classes that are left.  They always can be: as logarithms no share is ever 0.  `validation` training
    samples are held back first; no client gets them."""
    samples = per_client(task.name, len(task.y_train), clients, samples, validation)
    held = _held_back(task, validation, trial)
    ALPHA.of("alpha", alpha)
    draw = streams(trial)
    logs = log_gammas(draw, "split", _SHARES, clients * task.classes, alpha).reshape(clients, task.classes)
    words = raw(draw("split", _LABELS).bits(), clients * samples).reshape(clients, samples)
    rest = np.setdiff1d(np.arange(len(task.y_train)), held)
    stock = np.bincount(task.y_train[rest], minlength=task.classes).astype(np.int64)
    counts, notes = _fill(logs, words, stock)

    pools = rest[np.argsort(task.y_train[rest], kind="stable")]
    offsets = np.cumsum(stock) - stock
    for label in np.flatnonzero(counts.sum(axis=0)):
        pool = pools[offsets[label] : offsets[label] + stock[label]]
        pool[:] = pool[draw("split", _POOL, int(label)).permutation(len(pool))]
    begins = offsets + np.cumsum(counts, axis=0) - counts
    return _split(pools[_ranges(begins.ravel(), counts.ravel())].reshape(clients, samples), task, trial, held, notes)


def drawn(
    task: Task, clients: int, samples: int | None, alpha: float | None, trial: int = 0, validation: int = 0
) -> Split:
    """`iid` without an alpha, `dirichlet` with one."""
    if alpha is None:
        return iid(task, clients, samples, trial, validation)
    return dirichlet(task, clients, samples, alpha, trial, validation)


def _fill(logs: Floats, words: Words, stock: Ints) -> tuple[Ints, tuple[str, ...]]:
    """How many of each class every client takes: draw by draw, and renormalised whenever a class is empty."""
    clients, classes = logs.shape
    counts = np.zeros((clients, classes), np.int64)
    left, notes = stock.copy(), []
    for client, row in enumerate(words):
        done = 0
        while done < len(row):
            usable = left > 0
            drawn = labels(weights(logs[client : client + 1], usable), row[None, done:])[0]
            taken, count = np.bincount(drawn, minlength=classes), len(drawn)
            if (taken >= left)[usable].any():  # only the draws up to the first that empties a class count
                so_far = (drawn[:, None] == np.flatnonzero(usable)).cumsum(axis=0)
                count = int(np.argmax((so_far >= left[usable]).any(axis=1))) + 1
                taken = np.bincount(drawn[:count], minlength=classes)
                notes.append(f"class {drawn[count - 1]} ran out at client {client} of {clients}")
            counts[client] += taken
            left -= taken
            done += count
    if not left.any():
        notes.pop()  # nobody has missed it
    return counts, tuple(notes)


def _ranges(begins: Ints, lengths: Ints) -> Ints:
    """begin, begin + 1, ... of every range, one after another."""
    ends = np.cumsum(lengths)
    return np.repeat(begins - ends + lengths, lengths) + np.arange(ends[-1])


def _split(rows: Ints, task: Task, trial: int, held: Ints, notes: tuple[str, ...] = ()) -> Split:
    clients, samples = rows.shape
    starts = np.arange(clients + 1) * samples
    return Split(np.sort(rows, axis=1).ravel(), starts, held_out(task, trial), notes, held)


def _held_back(task: Task, count: int, trial: int) -> Ints:
    """The trial's validation samples."""
    at_least(0).of("trial", trial)
    return streams(trial)("split", _VALIDATION).sample(np.arange(len(task.y_train)), count)


def held_out(task: Task, trial: int = 0) -> Ints:
    """The trial's test samples: min(1000, test) of them, every subset equally likely."""
    return streams(trial)("split", _TEST).sample(np.arange(len(task.y_test)), TEST)


def per_client(name: str, total: int, clients: int, samples: int | None, held: int = 0) -> int:
    """How many of a set's `total` training samples each client gets, `held` of which are held back."""
    at_least(0).of("validation", held)
    if held >= total:
        raise InputError(f"validation = {held}: {name} has {total} training samples, and clients need some")
    total -= held
    at_least(1).of("clients", clients)
    if clients > total:
        raise InputError(f"clients = {clients}: {name} has samples for 1 to {total} clients")
    if samples is None:
        return min(SAMPLES, total // clients)
    at_least(1).of("samples", samples)
    if samples > total // clients:
        raise InputError(f"samples = {samples}: {name} has 1 to {total // clients} for each of {clients} clients")
    return samples
