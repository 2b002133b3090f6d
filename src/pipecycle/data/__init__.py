"""Data: sets in a cache or from a user's arrays, their splits over clients, and the batches of sessions."""

from __future__ import annotations

from pipecycle.data.augment import Augment
from pipecycle.data.batches import Batches, Views, session_indices
from pipecycle.data.cache import root as cache_root
from pipecycle.data.catalogue import CATALOGUE, Entry
from pipecycle.data.exchange import load as load_split
from pipecycle.data.exchange import save as save_split
from pipecycle.data.fetcher import fetch
from pipecycle.data.partition import dirichlet, drawn, held_out, iid
from pipecycle.data.scale import Scale
from pipecycle.data.sets import load
from pipecycle.data.split import Split
from pipecycle.data.task import Task

__all__ = [
    "CATALOGUE",
    "Augment",
    "Batches",
    "Entry",
    "Scale",
    "Split",
    "Task",
    "Views",
    "cache_root",
    "dirichlet",
    "drawn",
    "fetch",
    "held_out",
    "iid",
    "load",
    "load_split",
    "save_split",
    "session_indices",
]
