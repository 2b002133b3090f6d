"""Records as bytes in Flower's own format, so that an answer can wait in a file."""

from __future__ import annotations

from flwr.app import RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Packed
from google.protobuf.message import DecodeError


def pack(content: RecordDict) -> bytes:
    if any(array.data is None for record in content.array_records.values() for array in record.values()):
        raise ValueError("an array has no data")  # Flower would send an empty one
    data: bytes = recorddict_to_proto(content).SerializeToString()
    return data


def unpack(data: bytes | None) -> RecordDict | None:
    """What was packed; None if there is nothing that can be read, such as what versions before this format stored."""
    try:
        return None if data is None else recorddict_from_proto(Packed.FromString(data))
    except DecodeError:
        return None
