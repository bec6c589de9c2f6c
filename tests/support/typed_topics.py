"""Topics with declared columns for tests: JSON values, rolled in a line."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from logstore.delta.columns import ColumnChange, layout_of
from logstore.delta.topic_table import RollPart, TopicTable
from logstore.records.columns.declaration import parse_columns
from logstore.records.schema import LOG_SCHEMA, null_headers
from logstore.segments.writer import Segment, SegmentWriter
from tests.support.table_paths import create_table
from tests.support.topics import TIMESTAMP_MS

#: A column of each kind.
ALL_KINDS = (
    "b BOOLEAN, n BIGINT, x DOUBLE, price DECIMAL(12,2), s STRING, t TIMESTAMP, ms EPOCH_MS, d DATE, "
    "city STRING FROM user.city, who STRUCT<name: STRING, age: BIGINT>, tags ARRAY<STRING>"
)


def typed_topic(directory: Path, columns: str = "", *, partitions: int = 1) -> TopicTable:
    table = create_table(directory / "topics" / "t", num_partitions=partitions, config_overrides={})
    if columns:
        declare(table, columns)
    return table


def declare(table: TopicTable, columns: str) -> None:
    table.change_columns(ColumnChange(parse_columns(columns)))


def batch_of(values: Sequence[Any], base: int = 0) -> pa.RecordBatch:
    """Return records with these values: bytes and None as they are, anything else as JSON."""
    stored = [v if v is None or isinstance(v, bytes) else json.dumps(v, ensure_ascii=False).encode() for v in values]
    offsets = range(base, base + len(values))
    return pa.record_batch(
        [
            pa.array(offsets, pa.int64()),
            pa.array([TIMESTAMP_MS + o for o in offsets], pa.int64()).cast(pa.timestamp("ms", "UTC")),
            pa.array([b"k%d" % (o % 7) for o in offsets], pa.binary()),
            pa.array(stored, pa.binary()),
            null_headers(len(values)),
        ],
        schema=LOG_SCHEMA,
    )


def segment_of(table: TopicTable, values: Sequence[Any], base: int, partition: int = 0) -> Segment:
    layout = layout_of(table.files.name, table.snapshot())
    with SegmentWriter(table.files, partition, base, base + len(values), 1, layout=layout) as writer:
        writer.write(batch_of(values, base))
        return writer.finish()


def roll_values(table: TopicTable, values: Sequence[Any], partition: int = 0) -> Segment:
    """Roll the values behind those that are there."""
    base = table.snapshot().partitions[partition].sealed
    segment = segment_of(table, values, base, partition)
    done = table.commit_roll([RollPart(partition, base, segment.end_offset, 1, (segment,))])
    assert done.committed == (partition,), done.refused
    return segment
