"""The answer to a fetch, read: sections of partitions, blocks of stored batches (``logstore.records.fetch_sections``,
``stored_batch``), and out of these batches of LOG_SCHEMA.

Large batches stay where the answer was received, small ones are put together: what follows costs by the batch. Nothing
here is validated beyond its shape: the store has checked what it took, and checks what it reads from disk.
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
from logstore.records.schema import LOG_SCHEMA, WIRE_SCHEMA
from logstore.records.stored_batch import ALIGNMENT, BLOCK_HEADER, HAS_OFFSETS, LOG_APPEND_TIME, PARQUET

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
        if self.error_code or self.content.size < BLOCK_HEADER.size:
            return False
        _, _, _, flags, _ = BLOCK_HEADER.unpack_from(self.content)
        return bool(flags & PARQUET)


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
        for kind, blocks in groupby(_blocks(content), lambda block: block.flags & (HAS_OFFSETS | PARQUET)):
            for batch in _READ[kind](blocks):
                yield from _from(batch, first_offset)
    except (pa.ArrowException, EOFError, OSError, ValueError, OverflowError, KeyError) as error:
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


def _log_messages(blocks: Iterable[_Block]) -> Iterator[pa.RecordBatch]:
    return (pa.ipc.read_record_batch(block.payload, LOG_SCHEMA) for block in blocks)


def _parquet_files(blocks: Iterable[_Block]) -> Iterator[pa.RecordBatch]:
    # Many programs never read history.
    import pyarrow.parquet as pq

    for block in blocks:
        with pq.ParquetFile(pa.BufferReader(block.payload)) as file:
            if file.metadata.num_rows != block.record_count:
                raise _malformed(f"{file.metadata.num_rows} records in a block of {block.record_count}")
            num_bytes = sum(file.metadata.row_group(at).total_byte_size for at in range(file.num_row_groups))
            rows = max(1, file.metadata.num_rows * _BATCH_BYTES // max(num_bytes, 1))
            for batch in file.iter_batches(rows, columns=LOG_SCHEMA.names, use_threads=False):
                yield batch.cast(LOG_SCHEMA)


def _wire_messages(blocks: Iterable[_Block]) -> Iterator[pa.RecordBatch]:
    return log_batches(map(_wire_batch, blocks))


def _wire_batch(block: _Block) -> WireBatch:
    records = pa.ipc.read_record_batch(block.payload, WIRE_SCHEMA)
    if records.num_rows != block.record_count:
        raise _malformed(f"{records.num_rows} records in a block of {block.record_count}")
    return WireBatch(records, block.base_offset, block.append_time_ms, bool(block.flags & LOG_APPEND_TIME))


_READ: Final[dict[int, Callable[[Iterable[_Block]], Iterator[pa.RecordBatch]]]] = {
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
