"""Record batches on the wire, in the form in which the store has them: the reader decodes them.

A sequence of batches, each a header of 32 bytes and a payload, little-endian. Zeros pad the payload to a multiple of 8
bytes; the length in the header does not count them. Records have rising offsets; the first of them may be below the
requested one.

The tail of a log gives batches as their producer sent them: the payload is one encapsulated Arrow IPC record batch
message of WIRE_SCHEMA, its buffers compressed or not. Its record i has the offset ``base_offset`` + i, and a null
timestamp means ``append_time_ms``. History gives row groups: the payload is a Parquet file with the columns of
LOG_SCHEMA, and others beside them.

A reader leaves large batches in the memory that received them, and joins small ones, because every later step costs per
batch. The reader checks the shape only: the store checked the records at their append, and again when it read them from
disk.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
import pyarrow as pa

from logstore.filesystem import Buffer
from logstore.limits import MIB
from logstore.protocol.sections import malformed, padding, read_sections
from logstore.records.log_batches import WireBatch, int64_values, log_batches
from logstore.records.schema import LOG_SCHEMA, WIRE_SCHEMA

#: base offset, append time (ms), number of records, flags, bytes of the payload
BATCH_HEADER: Final = struct.Struct("<qqiiq")
#: Every record's timestamp is the append time.
LOG_APPEND_TIME: Final = 1
#: The payload is a Parquet file.
PARQUET: Final = 4
_FLAGS: Final = LOG_APPEND_TIME | PARQUET
# A row group is decoded in parts of this size.
_DECODED_BYTES = MIB


@dataclass(frozen=True, slots=True)
class RecordBatch:
    base_offset: int
    append_time_ms: int
    record_count: int
    flags: int
    payload: Buffer | pa.Buffer


def encode_batches(batches: Sequence[RecordBatch]) -> list[Buffer]:
    """Return the bytes in pieces; payloads are not copied."""
    pieces: list[Buffer] = []
    for batch in batches:
        payload = memoryview(batch.payload)
        header = batch.base_offset, batch.append_time_ms, batch.record_count, batch.flags, payload.nbytes
        pieces += (BATCH_HEADER.pack(*header), payload, *padding(payload.nbytes))
    return pieces


def read_batches(content: pa.Buffer) -> Iterator[RecordBatch]:
    """Yield the batches, in place. Raises LogStoreError if ``content`` is anything else."""
    for (base_offset, append_time_ms, record_count, flags), payload in read_sections(content, BATCH_HEADER, "batch"):
        if flags & ~_FLAGS:
            raise malformed(f"a batch with the flags {flags:b}")
        yield RecordBatch(base_offset, append_time_ms, record_count, flags, payload)


def begins_with_parquet(content: pa.Buffer) -> bool:
    """Return whether the first batch is a row group, which takes a while to inflate."""
    return bool(content.size >= BATCH_HEADER.size and BATCH_HEADER.unpack_from(content)[3] & PARQUET)


def read_records(content: pa.Buffer, first_offset: int) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches of LOG_SCHEMA with the records from ``first_offset`` on, by rising offset; buffers inflated.

    Raises LogStoreError if ``content`` is anything else than record batches.
    """
    try:
        for is_parquet, batches in groupby(read_batches(content), lambda batch: batch.flags & PARQUET):
            for records in _parquet_files(batches) if is_parquet else log_batches(map(_wire_batch, batches)):
                yield from _from(records, first_offset)
    except (pa.ArrowException, EOFError, OSError, ValueError, OverflowError, KeyError) as error:
        raise malformed(str(error)) from error


def _parquet_files(batches: Iterable[RecordBatch]) -> Iterator[pa.RecordBatch]:
    # The import is late, because many programs never read history.
    import pyarrow.parquet as pq

    for batch in batches:
        with pq.ParquetFile(pa.BufferReader(batch.payload)) as file:
            if file.metadata.num_rows != batch.record_count:
                raise malformed(f"{file.metadata.num_rows} records in a batch of {batch.record_count}")
            num_bytes = sum(file.metadata.row_group(at).total_byte_size for at in range(file.num_row_groups))
            rows = max(1, file.metadata.num_rows * _DECODED_BYTES // max(num_bytes, 1))
            for part in file.iter_batches(rows, columns=LOG_SCHEMA.names, use_threads=False):
                yield part.cast(LOG_SCHEMA)


def _wire_batch(batch: RecordBatch) -> WireBatch:
    records = pa.ipc.read_record_batch(batch.payload, WIRE_SCHEMA)
    if records.num_rows != batch.record_count:
        raise malformed(f"{records.num_rows} records in a batch of {batch.record_count}")
    return WireBatch(records, batch.base_offset, batch.append_time_ms, bool(batch.flags & LOG_APPEND_TIME))


def _from(records: pa.RecordBatch, first_offset: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows from ``first_offset`` on; no batch without rows."""
    offsets = int64_values(records.column("offset"))
    if len(offsets) and offsets[0] < first_offset:
        records = records.slice(int(np.searchsorted(offsets, first_offset)))
    if records.num_rows:
        yield records
