"""How a fleet is written: classes in TOML, or a row per device in CSV.  Mistakes are told with file, line and key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from pipecycle import checks
from pipecycle.checks import MOST_CLIENTS, MOST_SLOTS, Check, at_least, number, some_slots
from pipecycle.errors import InputError, shown
from pipecycle.files import parsed_toml
from pipecycle.world.devices import DIGITS, ENERGIES, Devices
from pipecycle.world.harvest import Placed
from pipecycle.world.links import MOST_TRIES, Windows
from pipecycle.world.source import Source
from pipecycle.world.specs import parse_harvest
from pipecycle.world.streams import Floats, Ints

EXAMPLES = Path(__file__).parent / "fleets"
CHANCE = number(least=0, most=1)
NUMBERS: dict[str, Check] = {
    "session": some_slots,
    "step": checks.units,
    "to_hub": checks.units,
    "to_server": checks.units,
    "download": checks.units,
    "idle": checks.units,
    "capacity": checks.some_units,
    "initial": checks.units,
    "leak": checks.units,
    "gain": number(least=0, most=2.0**20),
    "samples": at_least(1, "sample", most=10**9),
    "loss": CHANCE,
    "loss_to_hub": CHANCE,
    "failure": CHANCE,
    "contact_period": some_slots,
    "contact_share": CHANCE,
}
WORDS = {"name": checks.text, "harvest": checks.text, "source": checks.text}
MOST_UNITS = 2.0**40
SIZES = {"count": at_least(1, "device", most=MOST_CLIENTS), "share": number(above=0, most=1)}
TOP = {"name": checks.text, "joules": number(above=0), "slot": checks.some_seconds, "devices": checks.text}
LINKS = {
    "channels": at_least(1, "channel"),
    "tries": at_least(1, "try", most=MOST_TRIES),
    "windows": checks.text,
    "windows_period": some_slots,
    **dict.fromkeys(("loss", "loss_to_hub", "failure"), CHANCE),
}


def load(spec: str | Path) -> Devices:
    """The fleet in a file, or one of ours by its bare name; `FILE#DIGEST` refuses a file of another meaning."""
    path, digest = parted(str(spec))
    devices = read(Path(path) if Path(path).suffix else EXAMPLES / f"{path}.toml")
    if digest and digest != devices.digest:
        raise InputError(f"{path}: is not the fleet that was meant (its digest is {devices.digest}, not {digest})")
    return devices


def parted(spec: str) -> tuple[str, str]:
    """Path and digest, which may be empty."""
    path, mark, digest = spec.rpartition("#")
    return (path, digest) if mark and len(digest) == DIGITS else (spec, "")


def read(path: Path) -> Devices:
    """A fleet from a file that ends in .toml or .csv."""
    if path.suffix.lower() not in (".toml", ".csv"):
        raise InputError(f"fleet = {path}: needs a .toml or .csv file, or one of {', '.join(examples())}")
    source = _source(path)
    if path.suffix.lower() == ".csv":
        return _assemble(source, {}, {}, _rows(source), path.parent)
    values = parsed_toml(source.text, path)
    links, classes = values.pop("links", {}), values.pop("device", [])
    if not isinstance(links, dict):
        source.refuse("links: needs a table, [links]", source.line("links"))
    if not isinstance(classes, list) or not all(isinstance(given, dict) for given in classes):
        source.refuse("device: needs tables, [[device]]", source.line("device"))
    for key, value in values.items():
        source.known(key, [*TOP, "links", "device"], source.line(key))
        source.check(key, value, TOP[key], source.line(key))
    for key, value in links.items():
        source.known(key, list(LINKS), source.line(key, "links"))
        source.check(key, value, LINKS[key], source.line(key, "links"))
    rows = [
        _row(source, given, [source.line(key, "device", place) for key in given], source.line("", "device", place))
        for place, given in enumerate(classes)
    ]
    if "devices" in values:
        if rows:
            source.refuse("devices: give a CSV file or [[device]], not both", source.line("devices"))
        return _assemble(source, values, links, _rows(_beside(source, "devices", values)), path.parent)
    return _assemble(source, values, links, rows, path.parent)


def examples() -> list[str]:
    """The names of our own fleets."""
    return sorted(path.stem for path in EXAMPLES.glob("*.toml"))


_NOWHERE: Mapping[str, str] = {}  # shared by all rows of a CSV file, which may be a million


@frozen
class DeviceRow:
    """A class, or a device."""

    values: dict[str, Any]
    lines: dict[str, int | None]
    source: Source
    line: int | None = None

    @property
    def place(self) -> str:
        return self.source.at(self.line)

    @property
    def places(self) -> Mapping[str, str]:
        """Of keys that have lines of their own, as those of a TOML file do."""
        return {key: self.source.at(line) for key, line in self.lines.items() if line != self.line} or _NOWHERE


def _source(path: Path) -> Source:
    if not path.exists():
        known = f"; our own are {', '.join(examples())}" if path.parent == EXAMPLES else ""
        raise InputError(f"fleet {path.stem if known else path}: there is no such file{known}")
    return Source.of(path)


def _beside(source: Source, key: str, values: dict[str, Any], table: str = "") -> Source:
    """The file that a key names, which is found from the fleet file's folder."""
    path = source.path.parent / values[key]
    if not path.is_file():
        source.refuse(f"{key} = {shown(values[key])}: there is no such file", source.line(key, table))
    return _source(path)


def _row(source: Source, values: dict[str, Any], lines: Sequence[int | None], place: int | None) -> DeviceRow:
    allowed = {**WORDS, **SIZES, **NUMBERS}
    for (key, value), line in zip(values.items(), lines, strict=True):
        source.known(key, list(allowed), line)
        source.check(key, value, allowed[key], line)
    return DeviceRow(values, dict(zip(values, lines, strict=True)), source, place)


def _rows(source: Source) -> list[DeviceRow]:
    """The rows of a CSV file: its first line names the columns, and an empty cell is not given."""
    lines = source.cells()
    if len(lines) < 2:
        source.refuse("needs a line that names the columns, and a row per device")
    (first, head), *rest = lines
    head = [key.strip() for key in head]
    allowed = [key for key in (*WORDS, *NUMBERS) if key != "source"]
    for key in head:
        source.known(key, allowed, first)
    twice = [key for place, key in enumerate(head) if key in head[:place]]
    if twice:
        source.refuse(f"{twice[0]}: is named twice", first)
    rows = []
    for line, row in rest:
        if len(row) != len(head):
            source.refuse(f"has {len(row)} columns where the first line has {len(head)}", line)
        values = {key: _cell(key, cell.strip()) for key, cell in zip(head, row, strict=True) if cell.strip()}
        rows.append(_row(source, values, [line] * len(values), line))
    return rows


def _cell(key: str, cell: str) -> Any:
    if key in WORDS:
        return cell
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def _assemble(
    source: Source, top: dict[str, Any], links: dict[str, Any], rows: Sequence[DeviceRow], home: Path
) -> Devices:
    counted = source.path.suffix.lower() == ".csv" or "devices" in top
    rows = rows or [DeviceRow({"name": "all", "share": 1.0}, {}, source)]
    counts, shares = (np.ones(len(rows), np.int64), None) if counted else _sizes(source, rows)
    windows, last = None, ""
    if "windows" in links:
        windows, last = _windows(_beside(source, "windows", links, "links"), links.get("windows_period"))
    elif "windows_period" in links:
        source.refuse("windows_period: needs windows, a CSV file", source.line("windows_period", "links"))
    return Devices(
        name=str(top.get("name", source.path.stem)),
        labels=tuple(str(row.values.get("name", f"class {place + 1}")) for place, row in enumerate(rows)),
        places=tuple(row.place for row in rows),
        keys=tuple(row.places for row in rows),
        columns=_columns(rows, links, top.get("joules")),
        harvests=_harvests(rows, home),
        counts=counts,
        shares=shares,
        channels=links.get("channels"),
        tries=links.get("tries", 3),
        windows=windows,
        last_window=last,
        joules=top.get("joules"),
        seconds=top.get("slot"),
        sources=tuple(str(row.values["source"]) for row in rows if "source" in row.values),
    )


def _columns(rows: Sequence[DeviceRow], links: dict[str, Any], joules: float | None) -> dict[str, Floats]:
    columns = {key: np.full(len(rows), np.nan) for key in NUMBERS}
    for key in ("loss", "loss_to_hub", "failure"):
        columns[key][:] = links.get(key, np.nan)
    for place, row in enumerate(rows):
        for key, value in row.values.items():
            if key in NUMBERS:
                columns[key][place] = value
        for key, other in (("contact_period", "contact_share"), ("contact_share", "contact_period")):
            if key in row.values and other not in row.values:
                row.source.refuse(f"{key}: needs {other} beside it", row.lines[key])
    if joules is not None:
        for key in ENERGIES:
            columns[key] /= joules
            large = np.flatnonzero(columns[key] > MOST_UNITS)
            if len(large):
                row = rows[large[0]]
                row.source.refuse(
                    f"{key} = {row.values[key]}: needs at most 2^40 units of {joules:g} J", row.lines[key]
                )
    without = np.flatnonzero(np.isnan(columns["samples"]))
    if 0 < len(without) < len(rows):
        row = rows[without[0]]
        row.source.refuse("samples: give them for all devices or for none", row.line)
    return columns


def _sizes(source: Source, rows: Sequence[DeviceRow]) -> tuple[Ints | None, Floats | None]:
    """Counts, or shares that make a whole."""
    given = [set(row.values) & set(SIZES) for row in rows]
    if all(keys == {"count"} for keys in given):
        counts = np.array([row.values["count"] for row in rows], np.int64)
        if int(counts.sum()) > MOST_CLIENTS:
            source.refuse(f"count: makes {int(counts.sum()):,} devices, needs at most {MOST_CLIENTS:,}")
        return counts, None
    if not all(keys == {"share"} for keys in given):
        wrong = next(
            (row for row, keys in zip(rows, given, strict=True) if keys != given[0] or len(keys) != 1), rows[0]
        )
        source.refuse("count, share: every [[device]] needs one of them, the same in all", wrong.line)
    shares = np.array([row.values["share"] for row in rows], np.float64)
    if abs(float(shares.sum()) - 1.0) > 1e-6:
        source.refuse(f"share: all of them make {shares.sum():g}, and need to make 1", rows[-1].lines.get("share"))
    return None, shares


def _harvests(rows: Sequence[DeviceRow], home: Path) -> tuple[Placed | None, ...]:
    known: dict[str, Placed] = {}
    for row in rows:
        spec = row.values.get("harvest")
        if spec is not None and spec not in known:
            try:
                known[spec] = parse_harvest(spec, home)
            except InputError as error:
                said = str(error)
                key = "" if said.startswith("harvest") else f"harvest = {shown(spec)}: "
                row.source.refuse(f"{key}{said}", row.lines["harvest"])
    return tuple(known[row.values["harvest"]] if "harvest" in row.values else None for row in rows)


def _windows(source: Source, period: int | None) -> tuple[Windows, str]:
    """A CSV file of client, first and last slot, with a line that names the columns; and where its last client is."""
    lines = source.cells()
    if not lines or [cell.strip() for cell in lines[0][1]] != ["client", "first", "last"]:
        source.refuse("client,first,last: needs to be the first line", 1)
    table = np.empty((len(lines) - 1, 3), np.int64)
    for place, (line, row) in enumerate(lines[1:]):
        try:
            client, first, last = (int(cell) for cell in row)
        except ValueError:
            source.refuse(f"{shown(','.join(row))!r}: needs three whole numbers", line)
        if not 0 <= client < MOST_CLIENTS or not 0 <= first <= last < (period or MOST_SLOTS):
            least = "client and first of at least 0, last not before first"
            source.refuse(f"{client},{first},{last}: needs {least}, and below {period or MOST_SLOTS:,}", line)
        table[place] = client, first, last
    order = np.lexsort((table[:, 1], table[:, 0]))
    client, first, last = table[order].T
    overlap = np.flatnonzero((client[1:] == client[:-1]) & (first[1:] <= last[:-1]))
    if len(overlap):
        line = lines[1 + int(order[overlap[0] + 1])][0]
        source.refuse(f"client {client[overlap[0]]}: this window begins before an earlier one ends", line)
    highest = f"{source.path}, line {lines[1 + int(np.argmax(table[:, 0]))][0]}" if len(table) else ""
    return Windows(client.copy(), first.copy(), last.copy(), period), highest
