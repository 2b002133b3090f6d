"""Data: sets in a cache or from a user's arrays, their splits over clients, and the batches of sessions."""

from __future__ import annotations

from pipecycle.data.batches import Batches, session_indices
from pipecycle.data.cache import root as cache_root
from pipecycle.data.catalogue import CATALOGUE, Entry
from pipecycle.data.exchange import load as load_split
from pipecycle.data.exchange import save as save_split
from pipecycle.data.fetcher import fetch
from pipecycle.data.partition import dirichlet, held_out, iid
from pipecycle.data.sets import load
from pipecycle.data.split import Split
from pipecycle.data.task import Task

__all__ = [
    "CATALOGUE",
    "Batches",
    "Entry",
    "Split",
    "Task",
    "cache_root",
    "dirichlet",
    "fetch",
    "held_out",
    "iid",
    "load",
    "load_split",
    "save_split",
    "session_indices",
]
