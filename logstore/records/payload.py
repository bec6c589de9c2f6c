"""The payload of a journal frame: one encapsulated Arrow IPC record batch message of WIRE_SCHEMA, and no more.

The schema is fixed, so no schema message is stored. A payload that a producer sent in exactly this form is stored as it
was sent; its buffers may be compressed (lz4, zstd). The store itself compresses none.
"""

import pyarrow as pa

from logstore.errors import CorruptionError
from logstore.records.schema import WIRE_SCHEMA

_ALIGNMENT_BYTES = 8


def encode_payload(batch: pa.RecordBatch) -> pa.Buffer:
    """``batch`` (WIRE_SCHEMA, may be a slice) as one message; only the rows of the slice are written."""
    return batch.serialize()


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
