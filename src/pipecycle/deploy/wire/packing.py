"""Records as bytes, so that an answer can wait in a file."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

_KINDS = {"metrics": MetricRecord, "config": ConfigRecord}


def pack(content: RecordDict) -> bytes:
    """Metrics and configuration as JSON, arrays as they are; what Flower could not send cannot be packed either."""
    records: list[dict[str, object]] = []
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, record in content.items():
            if isinstance(record, ArrayRecord):
                arrays: list[list[object]] = []
                for key, array in record.items():
                    place = f"{len(records)}.{len(arrays)}"
                    archive.writestr(place, array.data)
                    arrays.append([key, array.dtype, list(array.shape), array.stype, place])
                records.append({"name": name, "kind": "arrays", "arrays": arrays})
            else:
                kind = "metrics" if isinstance(record, MetricRecord) else "config"
                values = {key: _plain(value) for key, value in record.items()}
                records.append({"name": name, "kind": kind, "values": values})
        archive.writestr("records.json", json.dumps(records, ensure_ascii=False).encode())
    return data.getvalue()


def unpack(data: bytes) -> RecordDict:
    """What `pack` was given."""
    content = RecordDict()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for record in json.loads(archive.read("records.json")):
            if record["kind"] == "arrays":
                content[record["name"]] = ArrayRecord(
                    {
                        key: Array(dtype=kind, shape=tuple(shape), stype=stype, data=archive.read(place))
                        for key, kind, shape, stype, place in record["arrays"]
                    }
                )
            else:
                values = {key: _value(plain) for key, plain in record["values"].items()}
                content[record["name"]] = _KINDS[record["kind"]](values)
    return content


def _plain(value: Any) -> Any:
    """For JSON, which has no bytes."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"{value} does not fit into 64 bits")
    return value


def _value(plain: Any) -> Any:
    if isinstance(plain, dict):
        return bytes.fromhex(plain["hex"])
    return [_value(item) for item in plain] if isinstance(plain, list) else plain
