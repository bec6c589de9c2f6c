"""Writes one segment: a sorted Parquet file whose footer has everything needed to commit it.

Invariants: the file covers [base offset, end offset), which its name contains, and may have no record of it; offsets of
records rise strictly and lie in that range; a row group has at most 128 Ki rows and, unless it is one record, 16 MiB of
Arrow data; every byte is covered by a checksum that was made before the disk saw it; after ``finish`` the file and its
directory entry are durable (rule R7); a writer without ``finish`` leaves no file. The file is written from beginning to
end, and nothing twice: its end waits for the checksums in it.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from logstore.crc32c import crc32c
from logstore.limits import ROW_GROUP_BYTES_MAX, ROW_GROUP_ROWS_MAX
from logstore.records.batch_identity import RememberedBatch
from logstore.records.columns.schema import VALUE_ERROR
from logstore.records.log_batches import int64_values
from logstore.records.schema import LOG_SCHEMA
from logstore.records.transactions import Marker, OpenTransaction
from logstore.segments import checksums
from logstore.segments.column_statistics import ColumnStatistics, column_statistics
from logstore.segments.footer import ROLL, SegmentFooter, encode_footer
from logstore.segments.layout import PLAIN_LAYOUT, TableLayout
from logstore.segments.names import new_unique, segment_name
from logstore.segments.offset_ranges import OffsetRanges
from logstore.table_files import TableFiles, Upload

#: Names of ``compression.type`` that Parquet spells differently.
_PARQUET_CODECS = {"uncompressed": "none"}


@dataclass(frozen=True, slots=True)
class Segment:
    """A finished file. ``path`` is relative to the table; it seals [base_offset, end_offset); timestamps are in µs.
    ``operation`` wrote it: a roll, or a job from other segments. Without a record its smallest and largest offsets are
    -1, and its timestamps -1 ms. ``columns`` are the statistics of its declared columns.
    """

    path: str
    size: int
    partition: int
    base_offset: int
    end_offset: int
    leader_epoch: int
    num_records: int
    min_offset: int
    max_offset: int
    min_timestamp_us: int
    max_timestamp_us: int
    operation: str = ROLL
    columns: tuple[ColumnStatistics, ...] = ()

    @property
    def misfits(self) -> int:
        """The number of records that have a reason in place of their columns."""
        return sum(self.num_records - column.nulls for column in self.columns if column.path == (VALUE_ERROR,))


class _Sink(io.RawIOBase):
    """An upload as a file that pyarrow writes to; every byte goes into a running CRC."""

    def __init__(self, upload: Upload) -> None:
        super().__init__()
        self._upload = upload
        self._crc = 0
        #: The CRC of the file up to the end of every write. A page is one or two writes, so a column chunk ends with a
        #: write.
        self._crc_at: dict[int, int] = {}
        #: The bytes after the last row group, until they are complete.
        self._tail: bytearray | None = None
        #: The footer, once it is written.
        self.metadata: pq.FileMetaData | None = None
        self.discarding = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._upload.size + len(self._tail or b"")

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self.discarding:
            return len(view)
        if self._tail is not None:
            self._tail += view
        else:
            self._upload.write(view)
            self._crc = self._crc_at[self._upload.size] = crc32c(view, self._crc)
        return len(view)

    def hold_tail(self) -> None:
        """Hold the bytes from here on, which come after the last row group."""
        self._tail = bytearray()

    def write_tail(self) -> None:
        """Write the held bytes, with the file's checksums in place of their placeholder."""
        assert self._tail is not None
        tail = bytes(self._tail)
        self._tail = None
        data_end = self._upload.size
        at = len(tail) - checksums.TRAILER_BYTES - int.from_bytes(tail[-8:-4], "little")
        page_index, footer = tail[:at], tail[at:]
        footer_at = data_end + at
        self._crc_at[footer_at] = crc32c(page_index, self._crc_at[data_end])
        self.metadata = pq.read_metadata(pa.BufferReader(footer))
        places = checksums.places(self.metadata, footer_at)
        self.write(page_index + checksums.with_chain([self._crc_at[place] for place in places[1:]], footer))


class SegmentWriter:
    """Use it as ``with SegmentWriter(...) as writer: writer.write(batch) ...; segment = writer.finish(...)``.

    The file seals [base_offset, end_offset). ``codec`` is a value of ``compression.type`` or Parquet's name of it.
    ``layout`` is that of the topic's table, and its extra columns are derived here. ``distinct_keys``: no key occurs
    twice, so a dictionary of keys would cost time and save nothing. ``raw_values``: the codec is known not to make
    values smaller, so they are written without it. Raises ValueError for an empty range, and OSError as the disk does.
    """

    def __init__(
        self,
        files: TableFiles,
        partition: int,
        base_offset: int,
        end_offset: int,
        leader_epoch: int,
        codec: str = "zstd",
        layout: TableLayout = PLAIN_LAYOUT,
        *,
        distinct_keys: bool = False,
        raw_values: bool = False,
    ) -> None:
        if not 0 <= base_offset < end_offset:
            raise ValueError(f"a segment of [{base_offset}, {end_offset})")
        self.path = segment_name(partition, base_offset, end_offset, leader_epoch, new_unique())
        self._files = files
        self._partition, self._leader_epoch = partition, leader_epoch
        self._base_offset, self._end_offset = base_offset, end_offset
        self._layout = layout
        self._leaves = _leaves(layout.segment_schema)
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self._num_records = self._row_groups = 0
        self._null_arrays = {field.name: 0 for field in layout.extra if pa.types.is_list(field.type)}
        self._min_offset = self._max_offset = -1
        self._min_timestamp = self._max_timestamp = -1
        self._upload = files.create(self.path)
        self._sink = _Sink(self._upload)
        try:
            files.reached("segment.opened")
            self._parquet = self._open_parquet(_PARQUET_CODECS.get(codec, codec), distinct_keys, raw_values)
        except BaseException:
            # The writer writes a magic number at once, which fails on a full disk.
            self._sink.discarding = True
            self._upload.abort()
            raise

    def _open_parquet(self, codec: str, distinct_keys: bool, raw_values: bool) -> pq.ParquetWriter:
        codecs = {leaf: "none" if raw_values and leaf == "value" else codec for leaf in self._leaves}
        extra = _leaves(self._layout.extra)
        dictionaries = ["headers.list.element.key", *extra, *_leaves(self._layout.carried)]
        return pq.ParquetWriter(
            self._sink,
            self._layout.segment_schema,
            compression=codecs,
            write_page_index=True,
            write_page_checksum=True,
            # Min and max of large keys and values would only enlarge the footer and the page index.
            write_statistics=["offset", "timestamp", *(extra if self._layout.fingerprint else ())],
            use_dictionary=dictionaries if distinct_keys else ["key", *dictionaries],
            column_encoding={"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a LOG_SCHEMA batch, or one with all columns of the layout (``row_schema``); all batches of a file have
        the same schema. Raises ValueError if its offsets do not rise from those written before, or leave the range.
        """
        if batch.num_rows == 0:
            return
        if not batch.schema.equals(LOG_SCHEMA) and not batch.schema.equals(self._layout.row_schema):
            raise ValueError(f"a segment takes LOG_SCHEMA batches, not {batch.schema}")
        offsets, timestamps = batch.column("offset"), batch.column("timestamp")
        if offsets.null_count or timestamps.null_count:
            raise ValueError("a record of a segment has an offset and a timestamp")
        numbers, times = int64_values(offsets), int64_values(timestamps)
        first, last = int(numbers[0]), int(numbers[-1])
        if first < self._base_offset or first <= self._max_offset or not (numbers[1:] > numbers[:-1]).all():
            raise ValueError(
                f"offsets of {self.path} must rise from {self._base_offset}: [{first}, {last}] after {self._max_offset}"
            )
        if last >= self._end_offset:
            raise ValueError(f"{self.path} ends at {self._end_offset}, and offset {last} is beyond it")
        low, high = int(times.min()), int(times.max())
        if self._num_records == 0:
            self._min_offset, self._min_timestamp, self._max_timestamp = first, low, high
        self._min_timestamp, self._max_timestamp = min(self._min_timestamp, low), max(self._max_timestamp, high)
        self._max_offset = last
        self._num_records += batch.num_rows
        self._buffer(batch)

    def finish(
        self,
        leader_epochs: Sequence[tuple[int, int]] = (),
        producers: Sequence[RememberedBatch] = (),
        idempotency_keys: Sequence[RememberedBatch] = (),
        *,
        operation: str = ROLL,
        cleanings: Sequence[tuple[int, int]] = (),
        append_time_ms: int = 0,
        open_transactions: Sequence[OpenTransaction] = (),
        markers: Sequence[Marker] = (),
        producers_forgotten_up_to: int | None = None,
        log_append_times: OffsetRanges = (),
    ) -> Segment:
        """Write the footer and make the file durable. Without a record it has no row group: its range was sealed, and
        its footer has the state at its end.
        """
        if not self._upload.is_open:
            raise ValueError(f"{self.path} is finished or aborted")
        footer = SegmentFooter(
            self._partition,
            self._base_offset,
            self._end_offset,
            self._leader_epoch,
            tuple(leader_epochs),
            tuple(producers),
            tuple(idempotency_keys),
            operation,
            tuple(cleanings),
            append_time_ms,
            tuple(open_transactions),
            tuple(markers),
            producers_forgotten_up_to,
            log_append_times,
            self._layout.fingerprint,
        )
        self._flush()
        self._files.reached("segment.half")
        chunks = self._row_groups * len(self._leaves)
        self._parquet.add_key_value_metadata({**encode_footer(footer), checksums.KEY: checksums.placeholder(chunks)})
        self._sink.hold_tail()
        self._parquet.close()
        self._sink.write_tail()
        assert self._sink.metadata is not None
        statistics = column_statistics(self._sink.metadata, self._null_arrays) if self._layout.fingerprint else ()
        self._upload.finish()
        self._files.reached("segment.finished")
        return Segment(
            path=self.path,
            size=self._upload.size,
            partition=self._partition,
            base_offset=self._base_offset,
            end_offset=self._end_offset,
            leader_epoch=self._leader_epoch,
            num_records=self._num_records,
            min_offset=self._min_offset,
            max_offset=self._max_offset,
            min_timestamp_us=self._min_timestamp * 1000,
            max_timestamp_us=self._max_timestamp * 1000,
            operation=operation,
            columns=statistics,
        )

    def abort(self) -> None:
        """Remove the unfinished file; does nothing after ``finish``."""
        if not self._upload.is_open:
            return
        # Closing the Parquet writer (garbage collection would also do it) writes a footer, which is discarded.
        self._sink.discarding = True
        try:
            self._parquet.close()
        finally:
            self._upload.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _buffer(self, batch: pa.RecordBatch) -> None:
        while batch.num_rows:
            rows, num_bytes = _rows_that_fit(
                batch, ROW_GROUP_ROWS_MAX - self._pending_rows, ROW_GROUP_BYTES_MAX - self._pending_bytes
            )
            if rows == 0 and self._pending_rows == 0:
                rows, num_bytes = 1, batch.slice(0, 1).nbytes
            if rows:
                self._pending.append(batch.slice(0, rows))
                self._pending_rows += rows
                self._pending_bytes += num_bytes
                batch = batch.slice(rows)
            if batch.num_rows:
                self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        table = self._layout.to_segment(self._pending)
        for name in self._null_arrays:
            self._null_arrays[name] += table[name].null_count
        self._parquet.write_table(table, row_group_size=ROW_GROUP_ROWS_MAX)
        self._row_groups += 1
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0


def _leaves(schema: pa.Schema) -> list[str]:
    """Return the columns that Parquet makes of the fields, by their paths in it."""
    return [path for field in schema for path in _leaves_of(field.name, field.type)]


def _leaves_of(path: str, kind: pa.DataType) -> list[str]:
    if pa.types.is_list(kind):
        return _leaves_of(f"{path}.list.element", kind.value_type)
    if pa.types.is_struct(kind):
        return [leaf for field in kind for leaf in _leaves_of(f"{path}.{field.name}", field.type)]
    return [path]


def _rows_that_fit(batch: pa.RecordBatch, rows_max: int, bytes_max: int) -> tuple[int, int]:
    """Return length and size of the longest prefix of ``batch`` within both bounds: nbytes grows with the prefix."""
    high = min(int(batch.num_rows), rows_max)
    if high <= 0:
        return 0, 0
    if (num_bytes := batch.slice(0, high).nbytes) <= bytes_max:
        return high, num_bytes
    low, size = 0, 0
    while low < high:
        middle = (low + high + 1) // 2
        if (num_bytes := batch.slice(0, middle).nbytes) <= bytes_max:
            low, size = middle, num_bytes
        else:
            high = middle - 1
    return low, size
