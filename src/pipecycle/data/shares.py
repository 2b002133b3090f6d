"""Dirichlet shares, from raw words and in logarithms.

Our own sampler, because numpy's may change between versions; in logarithms, because at a concentration of 0.01
most shares are far below the smallest double, and yet decide once the larger classes have run out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipecycle.world.streams import Draw, Floats, Ints, Words, raw

ONE = 1 << 31
"""What the integer weights of a client add up to, but for rounding."""


def uniform(words: Words) -> Floats:
    """In (0, 1), never 0 or 1: the middle of one of 2^52 equal steps."""
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def log_gammas(draw: Draw, purpose: str, key: int, count: int, alpha: float) -> Floats:
    """Logarithms of `count` Gamma(alpha) variates; the first ones do not depend on the count.

    Marsaglia and Tsang (2000) at alpha + 1, then Gamma(alpha) = Gamma(alpha + 1) * U^(1 / alpha) for any alpha.
    Round r of the rejection has a stream of its own, for those that are still without an accepted value."""
    d = alpha + 1.0 - 1.0 / 3.0
    c = 1.0 / np.sqrt(9.0 * d)
    out: Floats = np.log(uniform(raw(draw(purpose, key, 0).bits(), count))) / alpha + np.log(d)
    left = np.arange(count)
    attempt = 1
    while len(left):
        u = uniform(raw(draw(purpose, key, attempt).bits(), 3 * len(left))).reshape(-1, 3)
        normal = np.sqrt(-2.0 * np.log(u[:, 0])) * np.cos(2.0 * np.pi * u[:, 1])
        cube = np.maximum(1.0 + c * normal, 2.0**-52) ** 3
        bound = 0.5 * normal**2 + d * (1.0 - cube + np.log(cube))
        taken = (np.log(u[:, 2]) < bound) & (1.0 + c * normal > 0.0)
        out[left[taken]] += np.log(cube[taken])
        left = left[~taken]
        attempt += 1
    return out


def weights(logs: Floats, usable: NDArray[np.bool_]) -> Ints:
    """Each row's shares over the usable classes as integers that add up to about 2^31.

    Whatever comes after is integer arithmetic, so that machines whose logarithms differ in the last bit still
    draw the same labels."""
    masked = np.where(usable, logs, -np.inf)
    with np.errstate(under="ignore"):
        shares = np.exp(masked - masked.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
    rows: Ints = np.rint(shares * ONE).astype(np.int64)
    return rows


def labels(rows: Ints, words: Words) -> Ints:
    """A class for every word: row i of the words by the weights of row i."""
    edges = np.cumsum(rows, axis=1)
    total = edges[:, -1:]
    points = ((words >> np.uint64(33)).astype(np.int64) * total) >> 31
    # One search for all rows: each row's edges are shifted beyond those of the rows before it.
    shift = np.arange(len(rows))[:, None] << 33
    places = np.searchsorted((edges + shift).ravel(), (points + shift).ravel(), side="right")
    classes: Ints = places.reshape(words.shape) - np.arange(len(rows))[:, None] * rows.shape[1]
    return classes
