import json
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from logstore.delta.log_entries import LogEntry, LogState
from logstore.delta.snapshot import SegmentFile, TopicSnapshot, read_snapshot
from logstore.errors import CorruptionError
from logstore.records.schema import TABLE_SCHEMA
from tests.support.table_paths import path_of
from tests.support.topics import (
    TIMESTAMP_MS,
    create_topic,
    foreign_commit,
    log_batch,
    overwrite_entry,
    rewrite_files,
    roll,
    write_segment,
)


def foreign_append(path: Path, offsets: list[int], partition: int = 0) -> None:
    rows = pa.Table.from_batches([log_batch(offsets)])
    rows = rows.append_column("partition", pa.array([partition] * len(offsets), pa.int32())).cast(TABLE_SCHEMA)
    write_deltalake(str(path), rows, mode="append")


def test_what_a_new_topic_shows(tmp_path: Path) -> None:
    table = create_topic(tmp_path, partitions=2)
    snapshot = table.snapshot()
    assert snapshot.version == 0
    assert snapshot.num_partitions == 2
    assert snapshot.topic_id == uuid.UUID(str(DeltaTable(str(path_of(table))).metadata().id))
    assert snapshot.segments(0) == snapshot.segments(1) == ()
    assert {(s.sealed, s.leader_epoch, s.log_start, s.rewrite, s.cleaned) for s in snapshot.partitions.values()} == {
        (0, 0, 0, 0, 0)
    }
    assert snapshot.foreign_files() == ()


def test_segments_are_given_by_partition_and_offset(tmp_path: Path) -> None:
    table = create_topic(tmp_path, partitions=2)
    segments = [roll(table, p, base, base + 10).segments[0] for base in (0, 10) for p in (1, 0)]
    snapshot = table.snapshot()
    expected = [s for s in segments if s.partition == 1]
    assert snapshot.segments(1) == tuple(
        SegmentFile(
            s.path,
            s.size,
            10,
            s.base_offset,
            s.end_offset,
            s.base_offset,
            s.end_offset - 1,
            TIMESTAMP_MS + s.min_offset,
            TIMESTAMP_MS + s.max_offset,
        )
        for s in expected
    )
    assert snapshot.segments(7) == ()


def test_ten_thousand_files(tmp_path: Path) -> None:
    """Columns throughout: the answer is the same whatever order the log has them in."""
    table = create_topic(tmp_path, partitions=2)
    stamp = "2020-01-01T00:00:00.00000"
    adds = [
        AddAction(
            f"partition={p}/{i}.parquet",
            i + 1,
            {"partition": str(p)},
            1,
            True,
            json.dumps(
                {
                    "numRecords": 10,
                    "minValues": {"offset": i * 10, "timestamp": f"{stamp}0Z"},
                    "maxValues": {"offset": i * 10 + 9, "timestamp": f"{stamp}1Z"},
                }
            ),
        )
        for i in reversed(range(5_000))
        for p in (0, 1)
    ]
    foreign_commit(path_of(table), adds, [("logstore/0/sealed", 50_000), ("logstore/1/sealed", 50_000)])
    files = table.snapshot().segments(1)
    assert [f.min_offset for f in files] == list(range(0, 50_000, 10))
    assert [f.size for f in files] == list(range(1, 5_001))
    assert {f.path.split("/")[0] for f in files} == {"partition=1"}
    assert (files[0].min_timestamp_ms + 1, files[0].max_timestamp_ms) == (1_577_836_800_001, 1_577_836_800_001)


def test_a_table_that_is_not_a_topic(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"a": [1]}))
    with pytest.raises(CorruptionError, match="not a topic"):
        read_snapshot(DeltaTable(str(tmp_path / "t")), LogState(0, []))


def test_a_missing_sealed_is_corruption(tmp_path: Path) -> None:
    table = create_topic(tmp_path, partitions=2)
    with pytest.raises(CorruptionError, match="logstore/1/sealed"):
        read_snapshot(
            DeltaTable(str(path_of(table))), LogState(0, [LogEntry({"logstore/0/sealed": 0}, frozenset(), frozenset())])
        )


@pytest.mark.parametrize("offsets", [[5, 6], [0, 1], [9], [3, 25]])
def test_a_foreign_append_over_our_offsets_is_never_served(tmp_path: Path, offsets: list[int]) -> None:
    table = create_topic(tmp_path, partitions=2)
    roll(table, 0, 0, 10)
    roll(table, 1, 0, 10)
    roll(table, 0, 10, 30)
    foreign_append(path_of(table), offsets)
    snapshot = table.snapshot()
    with pytest.raises(CorruptionError, match="overlap"):
        snapshot.segments(0)
    assert len(snapshot.segments(1)) == 1
    assert [name.split("/")[0] for name in snapshot.foreign_files()] == ["partition=0"]


def test_a_foreign_append_beyond_sealed_is_never_served(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    foreign_append(path_of(table), [10])
    with pytest.raises(CorruptionError, match="sealed up to 10"):
        table.snapshot().segments(0)


def test_a_foreign_file_without_statistics_is_never_served(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    foreign_commit(path_of(table), [AddAction("partition=0/x.parquet", 1, {"partition": "0"}, 1, True, "{}")])
    with pytest.raises(CorruptionError, match=r"x\.parquet has no statistics"):
        table.snapshot().segments(0)


def test_a_foreign_file_of_a_partition_that_is_not_there_is_named(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    foreign_append(path_of(table), [0], partition=9)
    snapshot: TopicSnapshot = table.snapshot()
    assert snapshot.segments(0) == ()
    assert len(snapshot.foreign_files()) == 1


def test_a_lost_file_is_told_from_a_rewritten_one(tmp_path: Path) -> None:
    table = create_topic(tmp_path, partitions=2)
    first = roll(table, 0, 0, 10).segments[0]
    lost = roll(table, 1, 0, 10).segments[0]
    before = table.snapshot()
    assert before.lost_since(before) == ()
    overwrite_entry(table, 2)
    rewrite_files(table, 0, [first.path], [write_segment(table, 0, 0, 10)], data_change=False)
    assert table.snapshot().lost_since(before) == (lost.path,)
