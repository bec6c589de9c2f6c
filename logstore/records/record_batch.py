"""The record batch: records as the store has them, sent to a reader that decodes them: what ``POST /fetch`` answers.

A body is a sequence of record batches, each a header of 32 bytes and a payload, little-endian. The payload is one
encapsulated Arrow IPC record batch message. Its buffers are compressed or not, as its producer sent them. Zeros pad it
to a multiple of 8 bytes; the header tells its length without them. The message has WIRE_SCHEMA, its record i has the
offset ``base_offset`` + i, and a null timestamp stands for ``append_time_ms``.

Sealed history comes as whole row groups: the payload is a Parquet file with the columns of LOG_SCHEMA, and others
beside them. Where reading begins within a row group, the payload is a message of LOG_SCHEMA.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from logstore.filesystem import Buffer

#: base offset, append time (ms), number of records, flags, bytes of the payload
BATCH_HEADER: Final = struct.Struct("<qqiiq")
#: Every record's timestamp is the append time.
LOG_APPEND_TIME: Final = 1
#: The payload is a message that has LOG_SCHEMA.
HAS_OFFSETS: Final = 2
#: The payload is a Parquet file.
PARQUET: Final = 4
ALIGNMENT: Final = 8


@dataclass(frozen=True, slots=True)
class RecordBatch:
    base_offset: int
    append_time_ms: int
    record_count: int
    flags: int
    payload: Buffer | pa.Buffer


def encode_batches(batches: Sequence[RecordBatch]) -> list[Buffer]:
    """The body in pieces; payloads are not copied."""
    pieces: list[Buffer] = []
    for batch in batches:
        payload = memoryview(batch.payload)
        pieces.append(
            BATCH_HEADER.pack(batch.base_offset, batch.append_time_ms, batch.record_count, batch.flags, payload.nbytes)
        )
        pieces.append(payload)
        if padding := -payload.nbytes % ALIGNMENT:
            pieces.append(bytes(padding))
    return pieces
