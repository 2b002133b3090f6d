"""results.parquet: every checkpoint of every run in one file, and which commands and machines they came from."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from pipecycle.errors import InputError
from pipecycle.files import reading, write
from pipecycle.results.metrics import COLUMNS
from pipecycle.runs.run import RunFolder
from pipecycle.runs.sweep import flat
from pipecycle.schedule.summary import flattened
from pipecycle.words import plural
from pipecycle.world.streams import Floats

if TYPE_CHECKING:
    import pandas

NOTE, SEAL = b"pipecycle", b"pipecycle-sha256"
CONFIGURED = ("settings", "policy", "harvest", "clients", "trial", "budget")
"""Figures of a schedule that its configuration says already."""
METRICS = ["slot", "energy", "accuracy", "loss", "version", "budget"]
"""What two results of the same run must agree in; a run that diverged at once has no loss at all."""


@frozen(eq=False)
class Results:
    """A tidy table, one row per checkpoint, and how it was made."""

    frame: pandas.DataFrame
    pieces: list[dict[str, Any]]
    """One entry per command that trained: runs, steps, seconds, device, versions, source."""

    @property
    def identities(self) -> set[str]:
        return set(self.frame["identity"]) if len(self.frame) else set()

    @property
    def runs(self) -> int:
        return len(self.identities)

    @property
    def first(self) -> pandas.DataFrame:
        """One row for each run: what does not change from checkpoint to checkpoint."""
        return self.frame.drop_duplicates("identity") if len(self.frame) else self.frame

    def histories(self) -> dict[str, dict[str, Floats]]:
        """The checkpoints of every run by its identity, as `Metrics.of` takes them: in the order of slots, the row at
        the budget after the regular one; NaN for what the file does not have."""
        if not len(self.frame):
            return {}
        names = [*COLUMNS, "clients_accuracy", "diverged"]
        rows = self.frame.reindex(columns=["identity", *names]).sort_values(["slot", "budget"], kind="stable")
        return {
            str(run): {name: part[name].to_numpy(np.float64, na_value=np.nan) for name in names}
            for run, part in rows.groupby("identity", sort=False)
        }

    @property
    def sources(self) -> dict[str, int]:
        """Runs by the source of the code that trained them; those of which it was not recorded under no name."""
        if not len(self.frame):
            return {}
        first = self.first
        names = first["source"] if "source" in first else first["identity"].map(lambda _: None)
        counts = names.fillna("").value_counts()
        return {str(name): int(count) for name, count in sorted(counts.items())}

    def whole(self) -> tuple[Results, list[str]]:
        """Without the runs that lack rows (older versions could write such), and the names of those."""
        if not {"slot", "budget", "ended", "look.every", "plan.slots"} <= set(self.frame.columns):
            return self, []
        cut = {str(run): name for run, rows in self.frame.groupby("identity") if (name := _cut_short(rows))}
        return Results(self.frame[~self.frame["identity"].isin(list(cut))], self.pieces), sorted(cut.values())

    def save(self, path: Path) -> None:
        """One Parquet file; the pieces are in its metadata."""
        import pyarrow
        from pyarrow import parquet

        table = pyarrow.Table.from_pandas(self.frame, preserve_index=False)
        note = json.dumps(self.pieces).encode()
        metadata = {**(table.schema.metadata or {}), NOTE: note, SEAL: _seal(table.to_pandas(), note)}
        table = table.replace_schema_metadata(metadata)
        data = io.BytesIO()
        parquet.write_table(table, data, compression="zstd")
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, data.getvalue())


def code(sources: Mapping[str, int]) -> str:
    """Which code made some results, as a sentence."""
    words = [f"{name or 'code that was not recorded'} ({plural(count, 'run')})" for name, count in sources.items()]
    if len(words) == 1:
        return f"One version of the code made all runs: {words[0]}." if "" not in sources else f"Made by {words[0]}."
    return f"A mixture of {len(words)} versions of the code: {', '.join(words)}."


def load(path: Path) -> Results:
    """Results that were saved."""
    from pyarrow import parquet

    with reading(path):
        data = path.read_bytes()
    try:
        table = parquet.read_table(io.BytesIO(data))
        metadata = table.schema.metadata or {}
        note = metadata.get(NOTE, b"[]")
        frame, pieces = table.to_pandas(), json.loads(note)
        whole = metadata.get(SEAL) in (None, _seal(frame, note))  # files from before there was a seal have none
        whole = whole and metadata.keys() <= {NOTE, SEAL, b"pandas"}  # or its name is damaged
    except Exception:  # Arrow has many kinds of errors for damaged files
        raise InputError(f"{path}: cannot be read (it is not a Parquet file, or is damaged)") from None
    if not {"run", "identity"} <= set(frame.columns):
        raise InputError(f"{path}: holds no results of runs")
    if not whole or not isinstance(pieces, list):
        raise InputError(f"{path}: is damaged, its digest is of other results")
    return Results(frame, pieces)


def _seal(frame: pandas.DataFrame, note: bytes) -> bytes:
    """A digest of names and values, which Parquet itself does not have."""
    import pandas

    whole = hashlib.sha256(note)
    for name, column in frame.items():
        values = column.to_numpy()
        whole.update(f"\0{name}\0".encode())
        if values.dtype.kind in "iub":
            whole.update(values.astype("<i8").tobytes())
        elif values.dtype.kind == "f":
            whole.update(np.where(np.isnan(values), np.nan, values).astype("<f8").tobytes())
        else:
            missing = pandas.isna(values)
            words = ("" if gone else str(value) for value, gone in zip(values, missing, strict=True))
            whole.update("\0".join(words).encode() + missing.tobytes())
    return whole.hexdigest().encode()


def collect(folders: Sequence[RunFolder]) -> pandas.DataFrame:
    """All checkpoints of all finished runs, tidy: one row each, with the run's configuration and plan beside it."""
    import pandas

    frames = []
    for folder in folders:
        if folder.finished:
            frame = pandas.read_csv(folder.path / "metrics.csv")
            result, config = folder.result(), folder.config
            about: dict[str, Any] = {"run": folder.path.name, "identity": config.identity()}
            about |= {key: result.get(key) for key in ("source", "ended", "steps", "test_samples")} | flat(config)
            plan = {key: value for key, value in result.get("plan", {}).items() if key not in CONFIGURED}
            about |= flattened(plan, "plan.")
            head = pandas.DataFrame({key: [value] * len(frame) for key, value in about.items()})
            frames.append(pandas.concat([head, frame], axis=1).dropna(axis=1, how="all"))
    return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()


def merge(parts: Iterable[Results]) -> Results:
    """All runs of all parts, in an order that does not depend on theirs; a run that two of them hold must be equal."""
    import pandas

    frames: dict[str, pandas.DataFrame] = {}
    pieces: list[dict[str, Any]] = []
    for part in parts:
        pieces += [piece for piece in part.pieces if piece not in pieces]
        if not len(part.frame):
            continue
        for identity, frame in part.frame.groupby("identity", sort=False):
            mine = frame.dropna(axis=1, how="all").reset_index(drop=True)
            known = frames.setdefault(str(identity), mine)
            if known is not mine and not known.reindex(columns=METRICS).equals(mine.reindex(columns=METRICS)):
                raise InputError(f"run {mine['run'].iloc[0]}: two of the results disagree about it")
    if not frames:
        return Results(pandas.DataFrame({"run": [], "identity": []}), pieces)
    ordered = sorted(frames.values(), key=lambda frame: str(frame["run"].iloc[0]))
    whole = pandas.concat(ordered, ignore_index=True)
    columns: list[str] = sorted([str(column) for column in whole.columns], key=_place)
    return Results(whole[columns], pieces)


def _cut_short(rows: pandas.DataFrame) -> str | None:
    """The name of a run whose regular evaluations are not all there."""
    first = rows.iloc[0]
    every, slots = int(first["look.every"]), int(first["plan.slots"])
    there = sorted(rows.loc[rows["budget"] == 0, "slot"].astype(int))
    last = slots if first["ended"] == "finished" else max(there, default=0)
    whole = there == sorted({*range(every, last + 1, every), last})
    return None if whole else str(first["run"])


def _place(column: str) -> tuple[int, str]:
    """Columns in an order that does not depend on which run came first: run, configuration, plan, metrics."""
    kinds = ("policy", "world.", "data.", "train.", "look.", "plan.")
    for index, kind in enumerate(kinds, 1):
        if column.startswith(kind):
            return index, column
    return (0 if column in ("run", "identity", "source", "ended", "steps", "test_samples") else 9), column
