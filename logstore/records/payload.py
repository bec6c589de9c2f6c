"""The payload of a journal frame: one encapsulated Arrow IPC record batch message of WIRE_SCHEMA, and no more.

The schema is fixed, so no schema message is stored. Buffers inside may be compressed (none, lz4, zstd); what a producer
sent in exactly this form is stored as it was sent.
"""

from typing import Literal

import pyarrow as pa

from logstore.errors import CorruptionError
from logstore.records.schema import WIRE_SCHEMA

_ALIGNMENT_BYTES = 8


def encode_payload(batch: pa.RecordBatch, compression: Literal["none", "lz4", "zstd"] = "none") -> pa.Buffer:
    """``batch`` (WIRE_SCHEMA, may be a slice) as one message; only the rows of the slice are written."""
    if compression == "none":
        return batch.serialize()
    # Only streams take a codec: the record batch is the second message of one.
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, WIRE_SCHEMA, options=pa.ipc.IpcWriteOptions(compression=compression)) as stream:
        stream.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()
    return messages.read_next_message().serialize()


def decode_payload(payload: bytes | bytearray | memoryview | pa.Buffer) -> pa.RecordBatch:
    """The batch (WIRE_SCHEMA), zero copy where the payload is aligned and not compressed.

    For bytes that were validated when they came in and are CRC-checked since: only the structure is checked again.
    CorruptionError when they do not parse all the same.
    """
    buffer = pa.py_buffer(payload)
    if buffer.address % _ALIGNMENT_BYTES:
        buffer = pa.py_buffer(buffer.to_pybytes())
    try:
        batch = pa.ipc.read_record_batch(buffer, WIRE_SCHEMA)
        batch.validate()
    except (pa.ArrowException, EOFError, OSError, ValueError) as error:
        raise CorruptionError(
            f"A journal payload of {len(buffer)} bytes is not an Arrow record batch message: {error}"
        ) from error
    return batch
