"""Topic tables for tests: records, segments and rolls in a line each, and a hook at any point of a commit."""

import datetime as dt
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.transaction import AddAction, PostCommitHookProperties, RemoveAction, Transaction

from logstore.delta.actions import Add, Remove
from logstore.delta.columns import layout_of
from logstore.delta.snapshot import SegmentFile
from logstore.delta.topic_table import RewritePart, RollPart, TopicTable
from logstore.filesystem import FileSystem
from logstore.records.schema import HEADERS_TYPE, LOG_SCHEMA, TABLE_SCHEMA
from logstore.segments.merge import Source, WriteTask
from logstore.segments.merge import write_segment as write_joined
from logstore.segments.writer import Segment, SegmentWriter
from logstore.table_files import open_table
from tests.support.table_paths import create_table, path_of

TIMESTAMP_MS = 1_700_000_000_000


class HookedFileSystem(FileSystem):
    """Runs a function once when a named point of a protocol is reached."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[str] = []
        self._hooks: dict[str, list[Callable[[], object]]] = {}

    def at(self, point: str, *functions: Callable[[], object]) -> None:
        """Run the first function when the point is reached the first time, the second one the second time."""
        self._hooks[point] = list(functions)

    def reached(self, point: str) -> None:
        self.points.append(point)
        if hooks := self._hooks.get(point):
            hooks.pop(0)()


def log_batch(offsets: Sequence[int], *, timestamp_ms: int = TIMESTAMP_MS, value_bytes: int = 8) -> pa.RecordBatch:
    """Return records: o has key ``k<o mod 7>`` (null at 0), a value (a tombstone at multiples of 5), headers if odd."""
    return pa.record_batch(
        [
            pa.array(offsets, pa.int64()),
            pa.array([timestamp_ms + o for o in offsets], pa.int64()).cast(pa.timestamp("ms", "UTC")),
            pa.array([f"k{o % 7}".encode() if o % 7 else None for o in offsets], pa.binary()),
            pa.array([f"{o}".encode().ljust(value_bytes, b".") if o % 5 else None for o in offsets], pa.binary()),
            pa.array(
                [[{"key": "h", "value": b"1"}, {"key": "n", "value": None}] if o % 2 else None for o in offsets],
                HEADERS_TYPE,
            ),
        ],
        schema=LOG_SCHEMA,
    )


def expected_row(offset: int, partition: int = 0, timestamp_ms: int = TIMESTAMP_MS) -> dict[str, object]:
    """Return the row that a plain reader of the table must see for a record of ``log_batch``."""
    row = log_batch([offset], timestamp_ms=timestamp_ms).to_pylist()[0]
    moment = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=timestamp_ms + offset)
    return {**row, "timestamp": moment, "partition": partition}


def create_topic(tmp_path: Path, *, partitions: int = 1, filesystem: FileSystem | None = None) -> TopicTable:
    return create_table(
        tmp_path / "topics" / "events", num_partitions=partitions, config_overrides={}, filesystem=filesystem
    )


def write_segment(table: TopicTable, partition: int, base: int, end: int, epoch: int = 0, step: int = 1) -> Segment:
    with SegmentWriter(open_table(table.files.uri), partition, base, end, epoch) as writer:
        writer.write(log_batch(range(base, end, step)))
        return writer.finish(leader_epochs=((epoch, 0),))


def empty_segment(table: TopicTable, partition: int, base: int, end: int, epoch: int = 0) -> Segment:
    """Write the segment of a range of which no record is left."""
    with SegmentWriter(open_table(table.files.uri), partition, base, end, epoch) as writer:
        return writer.finish(leader_epochs=((epoch, 0),))


def as_earlier_release(segment: Segment) -> str:
    """Return the segment's name in the releases before names had an end offset."""
    return segment.path.replace(f"-{segment.end_offset:020d}-", "-")


def rename_as_earlier_release(table: TopicTable, segment: Segment) -> Segment:
    """Rename the segment as an earlier release would have named it: without its end offset."""
    old = as_earlier_release(segment)
    (path_of(table) / segment.path).rename(path_of(table) / old)
    return replace(segment, path=old)


def roll_part(table: TopicTable, partition: int, base: int, end: int, epoch: int = 0) -> RollPart:
    return RollPart(partition, base, end, epoch, (write_segment(table, partition, base, end, epoch),))


def roll(table: TopicTable, partition: int, base: int, end: int, epoch: int = 0) -> RollPart:
    """Roll one range and return the committed part. Raises the error if it is refused."""
    part = roll_part(table, partition, base, end, epoch)
    for error in table.commit_roll([part]).refused.values():
        raise error
    return part


def log_entry(table: TopicTable, version: int) -> Path:
    return path_of(table) / "_delta_log" / f"{version:020d}.json"


def overwrite_entry(table: TopicTable, version: int) -> None:
    """Rename another writer's entry over ours, as a Spark commit that lost the race does on a local file system."""
    info = {"commitInfo": {"timestamp": 1, "operation": "SET TBLPROPERTIES", "operationParameters": {}}}
    foreign = log_entry(table, version).with_name(".foreign.tmp")
    foreign.write_text(json.dumps(info) + "\n")
    foreign.rename(log_entry(table, version))


def foreign_commit(
    path: Path, actions: Sequence[Add | Remove | AddAction | RemoveAction], transactions: Sequence[tuple[str, int]] = ()
) -> None:
    """Commit as a writer that follows none of the store's rules."""
    DeltaTable(str(path)).create_write_transaction(
        [_of_delta_rs(action) for action in actions],
        "append",
        Schema.from_arrow(TABLE_SCHEMA),
        ["partition"],
        commit_properties=CommitProperties(app_transactions=[Transaction(*t) for t in transactions]),
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
    )


def _of_delta_rs(action: Add | Remove | AddAction | RemoveAction) -> AddAction | RemoveAction:
    if isinstance(action, Add):
        return AddAction(
            action.path,
            action.size,
            action.partition_values,
            action.modification_time,
            action.data_change,
            action.stats,
        )
    if not isinstance(action, Remove):
        return action
    return RemoveAction(
        action.path, action.data_change, action.deletion_timestamp, action.size, action.partition_values
    )


def offsets_in_table(table: TopicTable, partition: int = 0) -> list[int]:
    """Return the offsets that a plain reader sees."""
    rows = DeltaTable(str(path_of(table))).to_pyarrow_table(columns=["partition", "offset"]).to_pylist()
    return sorted(row["offset"] for row in rows if row["partition"] == partition)


def rewrite_files(
    table: TopicTable,
    partition: int,
    removes: Sequence[str],
    adds: Sequence[Segment],
    *,
    data_change: bool,
    log_start: int | None = None,
    cleaned: int | None = None,
    operation: str = "rewrite",
) -> int:
    """Replace files of one partition, as a job does; return the version. Raises the error if it is refused."""
    part = RewritePart(partition, tuple(removes), tuple(adds), log_start, cleaned)
    done = table.commit_rewrites([part], data_change=data_change, operation=operation)
    for error in done.refused.values():
        raise error
    return done.version


def joined(table: TopicTable, files: Sequence[SegmentFile], operation: str = "merge") -> Segment:
    """Return the segment that neighbouring files are merged into; nothing is committed."""
    (partition,) = {int(file.path.split("/")[0].removeprefix("partition=")) for file in files}
    task = WriteTask(
        topic=table.files.name,
        table=table.files.uri,
        partition=partition,
        sources=tuple(Source(partition, file.path, file.num_records, 0) for file in files),
        base_offset=files[0].base_offset,
        end_offset=files[-1].end_offset,
        log_start=0,
        codec="zstd",
        operation=operation,
        idempotency_window_ms=600_000,
        layout=layout_of(table.files.name, table.snapshot()),
    )
    return write_joined(0, task, None).segment
