"""The payload of a journal frame: only one encapsulated Arrow IPC record batch message of WIRE_SCHEMA.

The schema is fixed, so no schema message is stored. A payload that a producer sent in exactly this form is stored as it
was sent; its buffers may be compressed (lz4, zstd). The store itself does not compress.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from logstore.errors import CorruptionError
from logstore.filesystem import Buffer
from logstore.records.schema import WIRE_SCHEMA

#: The bytes that a message has beside its columns, approximately.
MESSAGE_BYTES: Final = 532
_ALIGNMENT_BYTES = 8
_SCHEMA_MESSAGE = WIRE_SCHEMA.serialize().to_pybytes()


def encode_payload(batch: pa.RecordBatch) -> pa.Buffer:
    """Encode ``batch`` (WIRE_SCHEMA, may be a slice) as one message; only the rows of the slice are written."""
    return batch.serialize()


def decode_payload(payload: Buffer | pa.Buffer) -> pa.RecordBatch:
    """Decode the batch (WIRE_SCHEMA), without a copy if the payload is aligned and not compressed.

    It is for bytes that were validated when they came in and are CRC-checked since: only the structure is checked
    again. Raises CorruptionError if they still do not parse.
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


def decode_payloads(payloads: Sequence[Buffer]) -> pa.RecordBatch:
    """Decode the records of all ``payloads``, at least one, as one batch; those of several are copied. Raises the
    errors of ``decode_payload``.
    """
    if len(payloads) == 1:
        return decode_payload(payloads[0])
    joined = _decode_stream(payloads)
    return pa.concat_batches([decode_payload(payload) for payload in payloads]) if joined is None else joined


def _decode_stream(payloads: Sequence[Buffer]) -> pa.RecordBatch | None:
    """Decode messages after a schema as a stream: Arrow does it in one call, which releases the interpreter lock.
    Return None if it cannot: one of the payloads may not be a message, or would move the next ones to unaligned places.
    """
    if any(len(payload) % _ALIGNMENT_BYTES for payload in payloads):
        return None
    try:
        table = pa.ipc.open_stream(pa.py_buffer(b"".join((_SCHEMA_MESSAGE, *payloads)))).read_all()
        table.validate()
    except (pa.ArrowException, EOFError, OSError, ValueError):
        return None
    if table.column(0).num_chunks != len(payloads) or not table.num_rows:
        return None
    (batch,) = table.combine_chunks().to_batches()
    return batch
