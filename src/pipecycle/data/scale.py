"""How raw bytes become numbers to train on: affine maps of the raw image in [0, 1]."""

from __future__ import annotations

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from pipecycle.errors import InputError

Floats32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]


@frozen
class Scale:
    """(raw / peak - mean) / deviation, with one mean and deviation for all channels or one for each."""

    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)
    peak: float = 255.0
    """The raw value of white."""

    def __call__(self, raw: Bytes) -> Floats32:
        tables = self._tables()
        out = np.empty(raw.shape, np.float32)
        if len(tables) == 1:
            np.take(tables[0], raw, out=out)
        else:
            for channel, table in enumerate(tables):
                out[:, channel] = table[raw[:, channel]]
        return out

    @property
    def black(self) -> tuple[float, ...]:
        """What a raw 0 becomes."""
        return tuple(float(table[0]) for table in self._tables())

    def _tables(self) -> list[Floats32]:
        """What each of the 256 bytes becomes, by channel."""
        levels = np.arange(256) / self.peak
        pairs = zip(self.mean, self.deviation, strict=True)
        return [((levels - mean) / deviation).astype(np.float32) for mean, deviation in pairs]


UNIT = Scale()
FIXED = {"unit": UNIT, "half": Scale((0.5,), (0.5,)), "centre": Scale((0.5,), (1.0,))}
SCALES = ("standard", *FIXED)


def named_scale(name: str | None, usual: Scale) -> Scale:
    """The scale of that name for a set whose own is `usual`, which is its `standard` and what None stands for."""
    if name is not None and name not in SCALES:
        raise InputError(f"scale = {name}: needs one of {', '.join(SCALES)}")
    return usual if name is None or name == "standard" else evolve(FIXED[name], peak=usual.peak)


def measured(raw: Bytes) -> Scale:
    """`standard` for bytes of unknown origin: mean 0 and deviation 1, over each channel or over all features.

    From exact counts, so that it is the same on every machine; a constant channel is only centred."""
    parts = [raw] if raw.ndim == 2 else [raw[:, channel] for channel in range(raw.shape[1])]
    levels = np.arange(256)
    means, deviations = [], []
    for part in parts:
        counts = np.bincount(part.reshape(-1), minlength=256)
        total, first, second = int(counts.sum()), int(counts @ levels), int(counts @ levels**2)
        means.append(first / total / 255)
        deviations.append((total * second - first * first) ** 0.5 / total / 255 or 1.0)
    return Scale(tuple(means), tuple(deviations))
