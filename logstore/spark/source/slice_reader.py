"""Reads a slice of a partition in a task of Spark: history from the table's files, everything else from the leader.

Invariant: each record of ``[start, end)`` comes once, by rising offset, whatever is committed to the table meanwhile. A
file that is gone (a merge or a compaction replaced it, and vacuum deleted it) is no loss: the rest of the slice comes
from the leader, or without a store from the current table. Records that retention or another writer removed are a loss:
an error, or with ``failOnDataLoss`` false a warning. Memory: the compressed bytes of a row group, or a response of the
leader, and a few MiB.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from logstore.records.schema import LOG_SCHEMA
from logstore.spark.source.columns import arrow_schema
from logstore.spark.source.data_loss import beyond_history, report_data_loss
from logstore.spark.source.options import ReadOptions
from logstore.spark.source.slices import Slice
from logstore.spark.worker import one_line_errors

if TYPE_CHECKING:
    from logstore.delta.snapshot import TopicSnapshot


def read_slice(part: Slice, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the records of a slice, by rising offset, in the ``columns.arrow_schema`` of the options.

    Raises DataLossError, TailReadError, CorruptionError, OSError.
    """
    rows = _Rows(part, options.columns)
    with one_line_errors():
        for batch in _history(part, options) if part.files else _tail(part, part.start, options):
            if batch.num_rows:
                yield rows.of(batch)


def _history(part: Slice, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    offset, names = part.start, list(part.files)
    while names:
        try:
            for batch in _file(part, names[0], offset, options):
                yield batch
                offset = int(batch.column("offset")[-1].as_py()) + 1
            names.pop(0)
        except FileNotFoundError:
            if part.urls:
                yield from _tail(part, offset, options)
                return
            snapshot = _snapshot(part, options)
            if snapshot is None:
                return
            log_start = snapshot.partitions[part.partition].log_start
            offset = _after_loss(part, offset, log_start, options) if log_start > offset else offset
            _report_missing(part, snapshot, offset, options)
            missing = names[0]
            names = [
                file.path
                for file in snapshot.segments(part.partition)
                if file.num_records and file.max_offset >= offset and file.min_offset < part.end
            ]
            if missing in names:
                # The table names a file that does not exist.
                raise


def _file(part: Slice, name: str, offset: int, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file from ``offset`` to the end of the slice, about 1 MiB at a time."""
    from logstore.segments.reader import row_group_batches, row_groups
    from logstore.table_files import open_table

    columns = [name for name in LOG_SCHEMA.names if name == "offset" or name in options.columns]
    files = open_table(part.table)
    for group in row_groups(files, name):
        if group.last_offset >= offset and group.first_offset < part.end:
            for batch in row_group_batches(files, name, group, columns):
                offsets = batch.column("offset").to_numpy()
                low, high = np.searchsorted(offsets, (offset, part.end))
                if low < high:
                    yield batch.slice(low, high - low)
                if high < len(offsets):
                    return


def _tail(part: Slice, offset: int, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    from logstore.spark.tail_reader import Leader, OvertakenError, TopicGoneError

    leader = Leader(part.urls, part.topic, part.topic_id, options.client_id, options.poll_timeout_ms / 1000)
    try:
        while offset < part.end:
            try:
                for batch in leader.records(part.partition, offset, part.end):
                    yield batch
                    offset = int(batch.column("offset")[-1].as_py()) + 1
                return
            except OvertakenError as error:
                offset = _after_loss(part, offset, error.log_start_offset, options)
            except TopicGoneError as error:
                _report_gone(part, str(error), options)
                return
    finally:
        leader.close()


def _after_loss(part: Slice, offset: int, log_start: int, options: ReadOptions) -> int:
    """Report the loss, and return the offset at which to continue. Raises DataLossError."""
    lost = (
        f"topic {part.topic}, partition {part.partition}: offsets {offset} to {min(log_start, part.end) - 1} were "
        f"removed, by retention or delete-records, before they were read (the log starts at {log_start})"
    )
    report_data_loss(lost, fail=options.fail_on_data_loss or log_start <= offset)
    return log_start


def _report_missing(part: Slice, snapshot: "TopicSnapshot", offset: int, options: ReadOptions) -> None:
    from logstore.log.history import missing_records
    from logstore.table_files import open_table

    for missing in missing_records(open_table(part.table), snapshot, {part.partition: (offset, part.end)}).values():
        for gap in missing:
            report_data_loss(gap.told(part.topic, part.partition), fail=options.fail_on_data_loss)
    sealed = snapshot.partitions[part.partition].sealed
    if sealed < part.end:
        report_data_loss(
            beyond_history(part.topic, part.partition, offset, part.end, sealed), fail=options.fail_on_data_loss
        )


def _report_gone(part: Slice, why: str, options: ReadOptions) -> None:
    lost = (
        f"topic {part.topic}, partition {part.partition}: a read up to offset {part.end} is gone with its topic ({why})"
    )
    report_data_loss(lost, fail=options.fail_on_data_loss)


def _snapshot(part: Slice, options: ReadOptions) -> "TopicSnapshot | None":
    """Return the current table, without a store; None if its topic is gone.

    Raises DataLossError, DataDirectoryError.
    """
    from logstore.delta.topic_table import TopicTable
    from logstore.spark.topic_view import storage_root
    from logstore.table_files import open_table

    storage_root(options.storage)
    files = open_table(part.table)
    snapshot = TopicTable(files).snapshot() if files.exists() else None
    if snapshot is None or str(snapshot.topic_id) != part.topic_id:
        _report_gone(part, "it was deleted and made again" if snapshot else "it was deleted", options)
        return None
    return snapshot


class _Rows:
    """Turns records into rows of the source. Columns with one value are built once, and cut to length."""

    def __init__(self, part: Slice, columns: Sequence[str]) -> None:
        self._part = part
        self._schema = arrow_schema(columns)
        self._constants: dict[str, pa.Array] = {}
        self._length = 0

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of ``batch``, which has the log's columns."""
        rows = batch.num_rows
        if rows > self._length:
            self._length = rows
            values = {
                "topic": self._part.topic,
                "partition": self._part.partition,
                "timestampType": self._part.timestamp_type,
            }
            self._constants = {
                field.name: pa.repeat(pa.scalar(values[field.name], field.type), rows)
                for field in self._schema
                if field.name in values
            }
        columns = [
            self._constants[field.name].slice(0, rows)
            if field.name in self._constants
            else _cast(batch.column(field.name), field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    return column if column.type == wanted else column.cast(wanted)
