"""Reads the answer to a fetch: sections of partitions (``logstore.records.fetch_sections``), the record batches in them
(``record_batch``), and out of these Arrow batches of LOG_SCHEMA.

Large batches stay where the answer was received, small ones are put together: every later step costs by the batch.
Nothing here is validated beyond its shape: the store has checked what it took, and checks what it reads from disk.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
import pyarrow as pa

from logstore.errors import LogStoreError
from logstore.limits import MIB
from logstore.records.fetch_sections import SECTION_HEADER
from logstore.records.log_batches import WireBatch, int64_values, log_batches
from logstore.records.record_batch import ALIGNMENT, BATCH_HEADER, HAS_OFFSETS, LOG_APPEND_TIME, PARQUET
from logstore.records.schema import LOG_SCHEMA, WIRE_SCHEMA

# Of a row group so much is decoded at a time.
_BATCH_BYTES = MIB


@dataclass(frozen=True, slots=True)
class FetchedSection:
    """News of the partition at ``index`` of the request. With ``error_code`` the content is its message."""

    index: int
    error_code: int
    log_start_offset: int
    high_watermark: int
    next_offset: int
    content: pa.Buffer

    @property
    def message(self) -> str:
        return str(memoryview(self.content), "utf-8", "replace")

    @property
    def has_parquet(self) -> bool:
        """Whether it begins with a row group of history."""
        if self.error_code or self.content.size < BATCH_HEADER.size:
            return False
        _, _, _, flags, _ = BATCH_HEADER.unpack_from(self.content)
        return bool(flags & PARQUET)


def read_sections(body: pa.Buffer) -> Iterator[FetchedSection]:
    """The sections of a whole answer. LogStoreError if ``body`` is no answer to a fetch."""
    at = 0
    while at < body.size:
        if body.size - at < SECTION_HEADER.size:
            raise _malformed(f"{body.size - at} bytes where a section begins")
        index, error_code, log_start_offset, high_watermark, next_offset, length = SECTION_HEADER.unpack_from(body, at)
        at += SECTION_HEADER.size
        if not 0 <= length <= body.size - at:
            raise _malformed(f"a section of {length} bytes where {body.size - at} are left")
        content = body.slice(at, length)
        yield FetchedSection(index, error_code, log_start_offset, high_watermark, next_offset, content)
        at += length + -length % ALIGNMENT


def read_batches(content: pa.Buffer, first_offset: int) -> Iterator[pa.RecordBatch]:
    """Batches of LOG_SCHEMA with the records from ``first_offset`` on, by rising offset; buffers inflated.

    LogStoreError if ``content`` is anything else than record batches.
    """
    try:
        for kind, batches in groupby(_batches(content), lambda batch: batch.flags & (HAS_OFFSETS | PARQUET)):
            for batch in _READ[kind](batches):
                yield from _from(batch, first_offset)
    except (pa.ArrowException, EOFError, OSError, ValueError, OverflowError, KeyError) as error:
        raise _malformed(str(error)) from error


@dataclass(frozen=True, slots=True)
class _RecordBatch:
    base_offset: int
    append_time_ms: int
    record_count: int
    flags: int
    payload: pa.Buffer


def _batches(content: pa.Buffer) -> Iterator[_RecordBatch]:
    at = 0
    while at < content.size:
        if content.size - at < BATCH_HEADER.size:
            raise _malformed(f"{content.size - at} bytes where a batch begins")
        base_offset, append_time_ms, record_count, flags, length = BATCH_HEADER.unpack_from(content, at)
        at += BATCH_HEADER.size
        if not 0 <= length <= content.size - at:
            raise _malformed(f"a batch of {length} bytes where {content.size - at} are left")
        yield _RecordBatch(base_offset, append_time_ms, record_count, flags, content.slice(at, length))
        at += length + -length % ALIGNMENT


def _log_messages(batches: Iterable[_RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (pa.ipc.read_record_batch(batch.payload, LOG_SCHEMA) for batch in batches)


def _parquet_files(batches: Iterable[_RecordBatch]) -> Iterator[pa.RecordBatch]:
    # Many programs never read history.
    import pyarrow.parquet as pq

    for batch in batches:
        with pq.ParquetFile(pa.BufferReader(batch.payload)) as file:
            if file.metadata.num_rows != batch.record_count:
                raise _malformed(f"{file.metadata.num_rows} records in a batch of {batch.record_count}")
            num_bytes = sum(file.metadata.row_group(at).total_byte_size for at in range(file.num_row_groups))
            rows = max(1, file.metadata.num_rows * _BATCH_BYTES // max(num_bytes, 1))
            for part in file.iter_batches(rows, columns=LOG_SCHEMA.names, use_threads=False):
                yield part.cast(LOG_SCHEMA)


def _wire_messages(batches: Iterable[_RecordBatch]) -> Iterator[pa.RecordBatch]:
    return log_batches(map(_wire_batch, batches))


def _wire_batch(batch: _RecordBatch) -> WireBatch:
    records = pa.ipc.read_record_batch(batch.payload, WIRE_SCHEMA)
    if records.num_rows != batch.record_count:
        raise _malformed(f"{records.num_rows} records in a batch of {batch.record_count}")
    return WireBatch(records, batch.base_offset, batch.append_time_ms, bool(batch.flags & LOG_APPEND_TIME))


_READ: Final[dict[int, Callable[[Iterable[_RecordBatch]], Iterator[pa.RecordBatch]]]] = {
    0: _wire_messages,
    HAS_OFFSETS: _log_messages,
    PARQUET: _parquet_files,
}


def _from(records: pa.RecordBatch, first_offset: int) -> Iterator[pa.RecordBatch]:
    """The rows from ``first_offset`` on, if there are any."""
    offsets = int64_values(records.column("offset"))
    if len(offsets) and offsets[0] < first_offset:
        records = records.slice(int(np.searchsorted(offsets, first_offset)))
    if records.num_rows:
        yield records


def _malformed(what: str) -> LogStoreError:
    return LogStoreError(f"What answered is not a log store, or of another version: {what}")
