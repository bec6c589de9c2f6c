"""The answer to a fetch, read: sections of partitions, blocks of stored batches (``logstore.records.fetch_sections``,
``stored_batch``), and out of these batches of LOG_SCHEMA.

Large batches stay where the answer was received, small ones are put together: what follows costs by the batch. Nothing
here is validated beyond its shape: the store has checked what it took, and checks what it reads from disk.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa

from logstore.errors import LogStoreError
from logstore.records.fetch_sections import SECTION_HEADER
from logstore.records.log_batches import WireBatch, int64_values, log_batches
from logstore.records.schema import LOG_SCHEMA, WIRE_SCHEMA
from logstore.records.stored_batch import ALIGNMENT, BLOCK_HEADER, HAS_OFFSETS, LOG_APPEND_TIME


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
    try:
        for have_offsets, blocks in groupby(_blocks(content), lambda block: bool(block.flags & HAS_OFFSETS)):
            for batch in map(_log_batch, blocks) if have_offsets else log_batches(map(_wire_batch, blocks)):
                yield from _from(batch, first_offset)
    except (pa.ArrowException, EOFError, OSError) as error:
        raise _malformed(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Block:
    base_offset: int
    append_time_ms: int
    record_count: int
    flags: int
    payload: pa.Buffer


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


def _log_batch(block: _Block) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(block.payload, LOG_SCHEMA)


def _wire_batch(block: _Block) -> WireBatch:
    records = pa.ipc.read_record_batch(block.payload, WIRE_SCHEMA)
    if records.num_rows != block.record_count:
        raise _malformed(f"{records.num_rows} records in a block of {block.record_count}")
    return WireBatch(records, block.base_offset, block.append_time_ms, bool(block.flags & LOG_APPEND_TIME))


def _from(records: pa.RecordBatch, first_offset: int) -> Iterator[pa.RecordBatch]:
    """The rows from ``first_offset`` on, if there are any."""
    offsets = int64_values(records.column("offset"))
    if len(offsets) and offsets[0] < first_offset:
        records = records.slice(int(np.searchsorted(offsets, first_offset)))
    if records.num_rows:
        yield records


def _malformed(what: str) -> LogStoreError:
    return LogStoreError(f"What answered is not a log store, or of another version: {what}")
