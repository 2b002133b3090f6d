"""A job's state in one file, whole or not at all, so that a killed run resumes and ends with the same bits."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from pipecycle.errors import InputError
from pipecycle.files import write
from pipecycle.train.history import Row, Score
from pipecycle.train.job import Job
from pipecycle.train.teachers import LogitTable

FORMAT = 1
FLAGS = {"versions": "version_done", "sessions": "session_done", "tables": "table_done", "unseen": "unseen"}
"""What a checkpoint calls the flags of a graph."""
KEYED = ("versions", "updates", "snapshots", "tables", "logits")


def save_job(job: Job, path: Path, identity: str) -> None:
    """Write everything that the rest of the run depends on; `identity` says whose state it is."""
    keys = {name: sorted(getattr(job, name).keys()) for name in KEYED}
    tensors = {name: getattr(job, name).gather(keys[name]) for name in ("versions", "updates") if keys[name]}
    tensors |= {f"snapshot.{version}": row for version, row in job.snapshots.items()}
    for number, table in job.tables.items():
        tensors |= {f"table.{number}.{name}": part for name, part in attrs.asdict(table, recurse=False).items()}
    for session, (sums, counts) in job.logits.items():
        tensors |= {f"logits.{session}.sums": sums, f"logits.{session}.counts": counts}
    if job.model is not None:
        tensors["model"] = job.model
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    state = {
        "format": FORMAT,
        "identity": identity,
        "device": job.versions.device.type,
        "keys": keys,
        "flags": {name: _pack(getattr(job.graph, flags)) for name, flags in FLAGS.items()},
        "rows": [attrs.asdict(row) for row in job.history.rows],
        "ended": job.history.ended,
        "scores": {str(version): attrs.asdict(score) for version, score in sorted(job.scores.items())},
        "client_scores": {str(session): value for session, value in sorted(job.client_scores.items())},
        "steps_done": job.steps_done,
        "digest": _digest(tensors),
    }
    text = json.dumps(state, sort_keys=True)
    seal = hashlib.sha256(text.encode()).hexdigest()
    write(path, save(tensors, {"state": text, "seal": seal}))


def load_job(job: Job, path: Path, identity: str, like: Tensor) -> None:
    """Bring a new job to the saved state; a damaged or foreign file is refused and leaves the job as it was."""
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = metadata["state"]
        whole = hashlib.sha256(text.encode()).hexdigest() == metadata["seal"]
        state: dict[str, Any] = json.loads(text) if whole else {}
        whole = whole and _digest(tensors) == state["digest"]
    except (SafetensorError, KeyError, ValueError, OSError, TypeError):
        whole = False
    if not whole:
        raise InputError(f"{path}: the checkpoint is damaged; remove it, or start again with --fresh")
    if state["format"] != FORMAT:
        raise InputError(f"{path}: is a checkpoint of format {state['format']}, this version reads format {FORMAT}")
    if state["identity"] != identity:
        raise InputError(f"{path}: is the checkpoint of another run; choose another folder, or --fresh")
    if state["device"] != like.device.type:
        raise InputError(f"{path}: was made on {state['device']}, whose bits differ; resume there, or --fresh")
    keys, tensors = state["keys"], {name: value.to(like.device) for name, value in tensors.items()}
    graph = job.graph
    graph.resume(*(_unpack(state["flags"][name], len(getattr(graph, flags))) for name, flags in FLAGS.items()))
    job.begin(like)
    job.versions.drop([0])
    for name, pool in (("versions", job.versions), ("updates", job.updates)):
        if keys[name]:
            pool.put(keys[name], tensors[name])
    job.snapshots = {version: tensors[f"snapshot.{version}"] for version in keys["snapshots"]}
    fields = [field.name for field in attrs.fields(LogitTable)]
    for table in keys["tables"]:
        job.tables[table] = LogitTable(*(tensors[f"table.{table}.{name}"] for name in fields))
    for session in keys["logits"]:
        job.logits[session] = (tensors[f"logits.{session}.sums"], tensors[f"logits.{session}.counts"])
    job.scores = {int(version): _score(score) for version, score in state["scores"].items()}
    job.client_scores = {int(session): value for session, value in state["client_scores"].items()}
    job.steps_done = state["steps_done"]
    job.model = tensors.get("model")
    job.recall([Row(**{**row, "by_class": tuple(row["by_class"])}) for row in state["rows"]], state["ended"])


def _score(values: dict[str, Any]) -> Score:
    return Score(**{**values, "by_class": tuple(values["by_class"])})


def _pack(flags: np.ndarray[Any, np.dtype[np.bool_]]) -> str:
    return base64.b64encode(np.packbits(flags).tobytes()).decode()


def _unpack(text: str, size: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8), count=size).astype(bool)


def _digest(tensors: dict[str, Tensor]) -> str:
    whole = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        whole.update(f"{name}:{value.dtype}:{tuple(value.shape)}".encode())
        whole.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()
