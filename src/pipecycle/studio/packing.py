"""Figures as JSON and columns as plain bytes, in one message that a browser reads without copying."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNED = 8
TYPES = {
    "i4": "Int32Array",
    "i2": "Int16Array",
    "u2": "Uint16Array",
    "i1": "Int8Array",
    "u1": "Uint8Array",
    "f4": "Float32Array",
}


def pack(facts: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]) -> bytes:
    """The length of a JSON header (four bytes, the lowest first), the header, then the columns it lists."""
    listed: dict[str, tuple[str, int, int]] = {}
    parts: list[bytes] = []
    offset = 0
    for name, column in columns.items():
        kind = TYPES[column.dtype.str[1:]]
        data = np.ascontiguousarray(column, column.dtype.newbyteorder("<")).tobytes()
        listed[name] = (kind, offset, len(column))
        fill = -len(data) % ALIGNED
        parts += [data, bytes(fill)]
        offset += len(data) + fill
    header = json.dumps({**facts, "columns": listed}, separators=(",", ":"), allow_nan=False).encode()
    header += b" " * (-(len(header) + 4) % ALIGNED)
    return b"".join([len(header).to_bytes(4, "little"), header, *parts])


def unpack(message: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """What was packed."""
    size = int.from_bytes(message[:4], "little")
    facts = json.loads(message[4 : 4 + size])
    kinds = {name: f"<{kind}" for kind, name in TYPES.items()}
    columns = {
        name: np.frombuffer(message, kinds[kind], length, 4 + size + offset)
        for name, (kind, offset, length) in facts.pop("columns").items()
    }
    return facts, columns
