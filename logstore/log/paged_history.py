"""Row groups of history as Kafka's record batches, with values that are copied once: from the pages of Parquet.

A slice ends where a batch ends, so the next one begins with a whole batch again.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from logstore.filesystem import Buffer
from logstore.kafka_batches.encoding import complete_batch
from logstore.kafka_batches.header import HEADER_BYTES, LOG_APPEND_TIME, bytes_of
from logstore.kafka_batches.native import RecordColumns
from logstore.limits import MIB
from logstore.log.kafka_records import BatchRuns, Epochs
from logstore.log.slices import Slice, Wanted
from logstore.records.log_batches import int64_values
from logstore.segments.chunk_memory import Bytes
from logstore.segments.offset_ranges import OffsetRanges
from logstore.segments.value_pages import PagedRowGroup

_BATCH_BYTES: Final = MIB
# The most bytes of a record beside key, value and headers: attributes, two deltas, three lengths, number of headers.
_NUMBERS_BYTES: Final = 1 + 10 + 5 + 3 * 5 + 5


class PagedHistory:
    """A row group, of which slices are read by rising offset."""

    def __init__(self, group: PagedRowGroup) -> None:
        self._codec = group.values.codec.records
        self._group = group
        self._offsets = int64_values(group.rows.column("offset"))
        self._timestamps = int64_values(group.rows.column("timestamp"))
        self._columns = RecordColumns(group.rows)
        self._decoded_bytes = int(group.rows.nbytes)

    @property
    def chunk(self) -> Bytes:
        """The memory of the pages."""
        return self._group.values.chunk

    @property
    def num_bytes(self) -> int:
        """The bytes that it holds."""
        return self._decoded_bytes + self._group.values.num_bytes

    def read(self, wanted: Wanted, scanned_to: int, epochs: Epochs, append_times: OffsetRanges) -> Slice[Buffer]:
        """Return the wanted records. The next record after the row group has an offset of at least ``scanned_to``; the
        other arguments are those of ``encode_history``. Raises OtherPageError.
        """
        group, offsets = self._group, self._offsets
        runs = BatchRuns(offsets, self._timestamps, epochs, append_times)
        first, end = np.searchsorted(offsets, (wanted.start, wanted.end)).tolist()
        row = group.next_kept(first, end)
        next_offset = max(wanted.start, min(scanned_to, wanted.end))
        batches: list[Buffer] = []
        count = num_bytes = 0
        while row < end:
            run = runs.run_from(row)
            may_be_empty = bool(batches) or wanted.may_be_empty
            found = self._records(row, min(run.end_row, end), wanted.max_bytes - num_bytes, may_be_empty=may_be_empty)
            if found is None:
                return Slice(batches, count, num_bytes, int(offsets[row]), is_full=True)
            batch, stop = found
            kept = slice(row, stop) if group.kept is None else row + np.flatnonzero(group.kept[row:stop])
            times = self._timestamps[kept]
            following = group.next_kept(stop, end)
            # Consumers continue after the last offset of a batch, so it also covers the offsets without records.
            end_offset = int(offsets[following]) if following < end else next_offset
            complete_batch(
                batch,
                base_offset=int(offsets[row]),
                end_offset=min(run.end_offset, end_offset),
                leader_epoch=run.leader_epoch,
                base_timestamp=int(times[0]),
                max_timestamp=int(times.max()),
                record_count=len(times),
                attributes=LOG_APPEND_TIME * run.is_append_time,
            )
            batches.append(batch)
            count += len(times)
            num_bytes += len(batch)
            row = following
        return Slice(batches, count, num_bytes, next_offset)

    def _records(self, row: int, end: int, max_bytes: int, *, may_be_empty: bool) -> tuple[memoryview, int] | None:
        """Return the records of kept rows of [row, end) behind room for the header of a batch, and the row after them;
        None if not even the first one fits, unless it must.
        """
        room = min(max_bytes, _BATCH_BYTES, HEADER_BYTES + self._bytes_from(row, end))
        out = pa.allocate_buffer(max(room, HEADER_BYTES))
        stop, size = self._write(row, end, out)
        if stop == row:
            if may_be_empty:
                return None
            out = pa.allocate_buffer(HEADER_BYTES + self._size_of(row))
            stop, size = self._write(row, row + 1, out)
        return bytes_of(out)[: HEADER_BYTES + size], stop

    def _write(self, row: int, end: int, out: pa.Buffer) -> tuple[int, int]:
        """Write the rows that fit; return the row after them and their bytes."""
        group, codec = self._group, self._codec
        base = int(self._offsets[row]), int(self._timestamps[row])
        size = 0
        while row < end:
            place, page = group.values.page_of(row)
            page_end = min(end, place.end_row)
            kept = None if group.kept is None else group.kept[row:page_end]
            packed = self._columns.packed(row, page_end - row, page.values_from(row - place.first_row), kept, *base)
            done, written = codec.encode_into(out, HEADER_BYTES + size, packed)
            row += done
            size += written
            if row < page_end:
                break
        return row, size

    def _size_of(self, row: int) -> int:
        place, page = self._group.values.page_of(row)
        value = page.values_from(row - place.first_row)
        base = int(self._offsets[row]), int(self._timestamps[row])
        return self._codec.encoded_size(self._columns.packed(row, 1, value, None, *base))

    def _bytes_from(self, row: int, end: int) -> int:
        """Return the most bytes that the rows may take."""
        return self._group.values.inflated_bytes_from(row) + self._decoded_bytes + _NUMBERS_BYTES * (end - row)
