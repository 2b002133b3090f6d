"""Epochs and group-rounds of the baselines (paper, Section VI-B)."""

from __future__ import annotations

from pipecycle.errors import InputError


def epoch_length(epoch: int | None, session: int) -> int:
    """S: 30 slots for the paper's session of 20, and never too short for a session and its report."""
    length = max(30, -(-3 * session // 2)) if epoch is None else epoch
    if length < session + 1:
        raise InputError(f"epoch = {length}: needs at least {session + 1} slots for a session and its report")
    return length


def round_length(epoch: int, groups: int) -> int:
    """R = floor(S / G): how long each group's turn lasts."""
    return max(1, epoch // groups)
