"""The answer to a fetch, read: sections of partitions, blocks of stored batches (``logstore.records.fetch_sections``,
``stored_batch``), and out of these batches of LOG_SCHEMA.

Large batches stay where the answer was received, small ones are put together: what follows costs by the batch. Nothing
here is validated beyond its shape: the store has checked what it took, and checks what it reads from disk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from logstore.client.fetched import int64_values
from logstore.errors import LogStoreError
from logstore.records.fetch_sections import SECTION_HEADER
from logstore.records.schema import LOG_SCHEMA, WIRE_SCHEMA
from logstore.records.stored_batch import ALIGNMENT, BLOCK_HEADER, HAS_OFFSETS, LOG_APPEND_TIME

# Copying this much costs about as much as the fixed price of a batch further on.
_GATHER_BYTES = 128 * 1024


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


def read_sections(body: pa.Buffer) -> Iterator[FetchedSection]:
    """LogStoreError for what is no answer to a fetch."""
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


def read_blocks(content: pa.Buffer, first_offset: int) -> Iterator[pa.RecordBatch]:
    """Batches of LOG_SCHEMA with the records from ``first_offset`` on, by rising offset; buffers inflated.

    LogStoreError for anything else than blocks.
    """
    gathered: list[_WireBatch] = []
    gathered_bytes = 0
    try:
        for block in _blocks(content):
            if block.flags & HAS_OFFSETS:
                yield from _combined(gathered, first_offset)
                gathered, gathered_bytes = [], 0
                yield from _from(pa.ipc.read_record_batch(block.payload, LOG_SCHEMA), first_offset)
                continue
            batch = pa.ipc.read_record_batch(block.payload, WIRE_SCHEMA)
            if batch.num_rows != block.record_count:
                raise _malformed(f"{batch.num_rows} records in a block of {block.record_count}")
            gathered.append(_WireBatch(batch, block.base_offset, block.append_time_ms, block.flags))
            gathered_bytes += block.payload.size
            if gathered_bytes >= _GATHER_BYTES:
                yield from _combined(gathered, first_offset)
                gathered, gathered_bytes = [], 0
    except (pa.ArrowException, EOFError, OSError) as error:
        raise _malformed(str(error)) from error
    yield from _combined(gathered, first_offset)


@dataclass(frozen=True, slots=True)
class _Block:
    base_offset: int
    append_time_ms: int
    record_count: int
    flags: int
    payload: pa.Buffer


@dataclass(frozen=True, slots=True)
class _WireBatch:
    records: pa.RecordBatch
    base_offset: int
    append_time_ms: int
    flags: int


def _blocks(content: pa.Buffer) -> Iterator[_Block]:
    at = 0
    while at < content.size:
        if content.size - at < BLOCK_HEADER.size:
            raise _malformed(f"{content.size - at} bytes where a block begins")
        base_offset, append_time_ms, record_count, flags, length = BLOCK_HEADER.unpack_from(content, at)
        at += BLOCK_HEADER.size
        if not 0 <= length <= content.size - at:
            raise _malformed(f"a block of {length} bytes where {content.size - at} are left")
        yield _Block(base_offset, append_time_ms, record_count, flags, content.slice(at, length))
        at += length + -length % ALIGNMENT


def _combined(batches: Sequence[_WireBatch], first_offset: int) -> Iterator[pa.RecordBatch]:
    """``batches`` with offsets and timestamps, as one."""
    if not batches:
        return
    records = batches[0].records if len(batches) == 1 else pa.concat_batches([batch.records for batch in batches])
    offsets = np.concatenate([np.arange(b.base_offset, b.base_offset + b.records.num_rows) for b in batches])
    timestamps, *others = records.columns
    overruled = [bool(batch.flags & LOG_APPEND_TIME) for batch in batches]
    if timestamps.null_count or any(overruled):
        counts = [batch.records.num_rows for batch in batches]
        append_times = np.repeat([batch.append_time_ms for batch in batches], counts)
        if timestamps.null_count < len(timestamps):
            stands = np.array(timestamps.is_valid().to_pylist()) & ~np.repeat(overruled, counts)
            append_times = np.where(stands, int64_values(timestamps), append_times)
        timestamps = _column(LOG_SCHEMA.field("timestamp").type, append_times)
    columns = [_column(pa.int64(), offsets), timestamps, *others]
    yield from _from(pa.RecordBatch.from_arrays(columns, schema=LOG_SCHEMA), first_offset)


def _column(kind: pa.DataType, numbers: np.ndarray) -> pa.Array:
    """int64 numbers as they are."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _from(records: pa.RecordBatch, first_offset: int) -> Iterator[pa.RecordBatch]:
    """The rows from ``first_offset`` on, if there are any."""
    offsets = int64_values(records.column("offset"))
    if len(offsets) and offsets[0] < first_offset:
        records = records.slice(int(np.searchsorted(offsets, first_offset)))
    if records.num_rows:
        yield records


def _malformed(what: str) -> LogStoreError:
    return LogStoreError(f"What answered is not a log store, or of another version: {what}")
