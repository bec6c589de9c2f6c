import json
import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from logstore.delta.log_entries import LogReplay, LogState
from logstore.delta.snapshot import SegmentFile, TopicSnapshot, read_snapshot
from logstore.delta.topic_table import RollPart, TopicTable
from logstore.errors import CorruptionError, NewerFormatError, UnsupportedTableError
from logstore.records.schema import TABLE_SCHEMA
from logstore.segments.names import segment_name
from logstore.table_files import open_table
from tests.support.table_paths import path_of
from tests.support.topics import (
    TIMESTAMP_MS,
    create_topic,
    empty_segment,
    foreign_commit,
    log_batch,
    overwrite_entry,
    rename_as_earlier_release,
    rewrite_files,
    roll,
    write_segment,
)


def foreign_append(path: Path, offsets: list[int], partition: int = 0) -> None:
    rows = pa.Table.from_batches([log_batch(offsets)])
    rows = rows.append_column("partition", pa.array([partition] * len(offsets), pa.int32())).cast(TABLE_SCHEMA)
    write_deltalake(str(path), rows, mode="append")


def test_the_snapshot_of_a_new_topic(tmp_path: Path) -> None:
    table = create_topic(tmp_path, partitions=2)
    snapshot = table.snapshot()
    assert snapshot.version == 0
    assert snapshot.num_partitions == 2
    assert snapshot.topic_id == uuid.UUID(str(DeltaTable(str(path_of(table))).metadata().id))
    assert snapshot.segments(0) == snapshot.segments(1) == ()
    assert {(s.sealed, s.leader_epoch, s.log_start, s.rewrite, s.cleaned) for s in snapshot.partitions.values()} == {
        (0, 0, 0, 0, 0)
    }
    assert snapshot.foreign_removals() == ()


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
    """Read a log in another order: the columns give the same answer."""
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
        read_snapshot(LogReplay(open_table(str(tmp_path / "t"))).state(), "t")


def test_a_shallow_clone_is_distinguished_from_a_damaged_table(tmp_path: Path) -> None:
    """Write the log as CLONE does: it has the topic's properties and files, but none of its transactions."""
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    clone = tmp_path / "topics" / "clone" / "_delta_log"
    clone.mkdir(parents=True)
    entries = [path_of(table) / "_delta_log" / f"{version:020}.json" for version in (0, 1)]
    actions = [json.loads(line) for entry in entries for line in entry.read_text().splitlines()]
    kept = [action for action in actions if action.keys() & {"protocol", "metaData", "add"}]
    for action in kept:
        if "add" in action:
            action["add"]["path"] = f"file:{path_of(table)}/{action['add']['path']}"
    (clone / entries[0].name).write_text("\n".join(json.dumps(action) for action in kept))
    with pytest.raises(UnsupportedTableError, match=r"clone is a shallow clone: .*read it as a Delta table"):
        TopicTable(open_table(clone.parent)).snapshot()


def test_a_missing_sealed_is_corruption(tmp_path: Path) -> None:
    table = create_topic(tmp_path, partitions=2)
    (entry,) = LogReplay(table.files).state()._entries
    with pytest.raises(CorruptionError, match="logstore/1/sealed"):
        read_snapshot(LogState(0, [replace(entry, transactions={"logstore/0/sealed": 0})]), table.files.uri)


@pytest.mark.parametrize("offsets", [[5, 6], [0, 1], [9], [3, 25]])
def test_a_foreign_append_over_our_offsets_is_never_served(tmp_path: Path, offsets: list[int]) -> None:
    table = create_topic(tmp_path, partitions=2)
    roll(table, 0, 0, 10)
    roll(table, 1, 0, 10)
    roll(table, 0, 10, 30)
    foreign_append(path_of(table), offsets)
    snapshot = table.snapshot()
    assert [(s.base_offset, s.end_offset, s.foreign) for s in snapshot.segments(0)] == [(0, 10, False), (10, 30, False)]
    (refused,) = snapshot.refused(0)
    assert f"offset {offsets[0]}, which is taken" in refused.reason
    assert len(snapshot.segments(1)) == 1
    assert snapshot.refused(1) == ()
    assert [removal.path for removal in snapshot.foreign_removals()] == [refused.path]


def test_a_foreign_append_beyond_sealed_is_never_served(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    foreign_append(path_of(table), [10])
    snapshot = table.snapshot()
    assert [segment.end_offset for segment in snapshot.segments(0)] == [10]
    assert "offset 10, which was never given out" in snapshot.refused(0)[0].reason
    assert len(snapshot.foreign_removals()) == 1


def test_a_foreign_file_without_statistics_that_is_not_there_is_refused(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    foreign_commit(path_of(table), [AddAction("partition=0/x.parquet", 1, {"partition": "0"}, 1, True, "{}")])
    snapshot = table.snapshot()
    assert [segment.end_offset for segment in snapshot.segments(0)] == [10]
    (refused,) = snapshot.refused(0)
    assert refused.path == "partition=0/x.parquet"
    assert "it cannot be read" in refused.reason


def test_a_foreign_file_of_a_partition_that_is_not_there_is_named(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    foreign_append(path_of(table), [0], partition=9)
    snapshot: TopicSnapshot = table.snapshot()
    assert snapshot.segments(0) == ()
    assert len(snapshot.foreign_removals()) == 1


def test_a_lost_file_is_distinguished_from_a_rewritten_one(tmp_path: Path) -> None:
    table = create_topic(tmp_path, partitions=2)
    first = roll(table, 0, 0, 10).segments[0]
    lost = roll(table, 1, 0, 10).segments[0]
    before = table.snapshot()
    assert before.lost_since(before) == ()
    overwrite_entry(table, 2)
    rewrite_files(table, 0, [first.path], [write_segment(table, 0, 0, 10)], data_change=False)
    assert table.snapshot().lost_since(before) == (lost.path,)


# ---- ranges ----------------------------------------------------------------------------------------------------------


def later_name(base: int, end: int, partition: int = 0) -> str:
    return f"partition={partition}/{base:020d}-v3-{end:020d}-0-{'a' * 32}.parquet"


def stats(first: int, last: int) -> str:
    bounds = [{"offset": offset, "timestamp": "2020-01-01T00:00:00.000000Z"} for offset in (first, last)]
    return json.dumps({"numRecords": last + 1 - first, "minValues": bounds[0], "maxValues": bounds[1]})


def test_a_range_without_records_is_one_like_any_other(tmp_path: Path) -> None:
    table = create_topic(tmp_path, partitions=2)
    parts = [
        RollPart(0, 0, 10, 0, (empty_segment(table, 0, 0, 10),)),
        RollPart(1, 0, 20, 0, (write_segment(table, 1, 0, 10), empty_segment(table, 1, 10, 20))),
    ]
    table.commit_roll(parts)
    snapshot = table.snapshot()
    assert [snapshot.uncovered(p, 0) for p in (0, 1)] == [[], []]
    assert [(f.base_offset, f.end_offset, f.num_records) for f in snapshot.segments(0)] == [(0, 10, 0)]
    (_, empty) = snapshot.segments(1)
    assert (empty.base_offset, empty.end_offset) == (10, 20)
    assert {empty.min_offset, empty.max_offset, empty.min_timestamp_ms, empty.max_timestamp_ms} == {-1}
    assert snapshot.ranges() == {s.path: (s.partition, s.base_offset, s.end_offset) for p in parts for s in p.segments}
    # It overlaps like any other file, although it has no record.
    foreign_append(path_of(table), [5])
    assert len(table.snapshot().segments(0)) == 1
    assert "offset 5, which is taken" in table.snapshot().refused(0)[0].reason


def test_a_gap_is_a_range_that_no_file_stands_for(tmp_path: Path) -> None:
    """Leave gaps: records missing inside a range are none.

    A file of which an earlier release wrote only the base ends with its records.
    """
    table = create_topic(tmp_path)
    new = [write_segment(table, 0, base, base + 20, step=15) for base in (0, 20, 40)]
    table.commit_roll([RollPart(0, 0, 60, 0, tuple(new))])
    assert table.snapshot().uncovered(0, 0) == []
    old = rename_as_earlier_release(table, write_segment(table, 0, 20, 40, step=15))
    rewrite_files(table, 0, [new[1].path], [old], data_change=False)
    snapshot = table.snapshot()
    assert snapshot.uncovered(0, 0) == [(36, 40)]
    assert snapshot.uncovered(0, 38) == [(38, 40)]
    assert snapshot.touches_unnamed(0, 36, 40)
    rewrite_files(table, 0, [new[2].path], [], data_change=True)
    assert table.snapshot().uncovered(0, 0) == [(36, 60)]
    rewrite_files(table, 0, [new[0].path], [], data_change=True)
    gaps = table.snapshot().uncovered(0, 0)
    assert gaps == [(0, 20), (36, 60)]
    rewrite_files(table, 0, [old.path], [write_segment(table, 0, 20, 40, step=15)], data_change=False)
    snapshot = table.snapshot()
    assert snapshot.uncovered(0, 0) == [(0, 20), (40, 60)]
    assert not snapshot.touches_unnamed(0, 0, 20)


def test_a_later_releases_file_is_refused_by_name_and_no_foreign_one(tmp_path: Path) -> None:
    table = create_topic(tmp_path, partitions=2)
    roll(table, 1, 0, 10)
    paths = [later_name(0, 10), later_name(0, 10, partition=7)]
    adds = [AddAction(p, 1, {"partition": p[10]}, 1, True, stats(0, 9)) for p in paths]
    foreign_commit(path_of(table), adds, [("logstore/0/sealed", 5)])
    snapshot = table.snapshot()
    with pytest.raises(NewerFormatError, match="use the release that wrote it") as refused:
        snapshot.segments(0)
    assert paths[0] in str(refused.value)
    assert len(snapshot.segments(1)) == 1
    # The report must not offer to drop it, although it reaches beyond sealed or its partition does not exist.
    assert snapshot.foreign_removals() == ()
    foreign_append(path_of(table), [7])
    assert len(table.snapshot().foreign_removals()) == 1
    assert paths[0] in table.snapshot().paths


@pytest.mark.parametrize(("first", "last"), [(9, 15), (10, 20), (5, 25)])
def test_statistics_outside_the_range_of_the_name_are_corruption(tmp_path: Path, first: int, last: int) -> None:
    table = create_topic(tmp_path)
    path = segment_name(0, 10, 20, 0, "a" * 32)
    foreign_commit(
        path_of(table),
        [AddAction(path, 1, {"partition": "0"}, 1, True, stats(first, last))],
        [("logstore/0/sealed", 30)],
    )
    with pytest.raises(CorruptionError, match="not in the range of its name") as refused:
        table.snapshot().segments(0)
    assert path in str(refused.value)


def test_only_a_name_with_a_range_does_without_statistics(tmp_path: Path) -> None:
    table, name = create_topic(tmp_path), f"partition=0/{0:020d}-0-{'a' * 32}.parquet"
    empty = json.dumps({"numRecords": 0, "nullCount": {"offset": 0, "timestamp": 0}})
    foreign_commit(
        path_of(table), [AddAction(name, 1, {"partition": "0"}, 1, True, empty)], [("logstore/0/sealed", 10)]
    )
    with pytest.raises(CorruptionError, match="has no statistics"):
        table.snapshot().segments(0)


def test_many_files_are_ordered_by_their_ranges(tmp_path: Path) -> None:
    """Use all three kinds of names, in any order of the log."""
    table = create_topic(tmp_path)
    names = [
        (segment_name(0, 0, 10, 1, "b" * 32), 4, 6),
        (f"partition=0/{10:020d}-1-{'c' * 32}.parquet", 12, 19),
        ("partition=0/part-0.parquet", 20, 25),
        (segment_name(0, 30, 41, 0, "d" * 32), 30, 40),
    ]
    adds = [AddAction(path, 1, {"partition": "0"}, 1, True, stats(*of)) for path, *of in reversed(names)]
    adds.insert(1, AddAction(segment_name(0, 26, 30, 0, "e" * 32), 1, {"partition": "0"}, 1, True, '{"numRecords":0}'))
    foreign_commit(path_of(table), adds, [("logstore/0/sealed", 50)])
    snapshot = table.snapshot()
    assert [(f.base_offset, f.end_offset) for f in snapshot.segments(0)] == [
        (0, 10),
        (12, 20),
        (20, 26),
        (26, 30),
        (30, 41),
    ]
    assert snapshot.uncovered(0, 0) == [(10, 12), (41, 50)]
    assert [segment.foreign for segment in snapshot.segments(0)] == [False, False, True, False, False]
    assert snapshot.foreign_removals() == ()


@pytest.mark.parametrize("name", ["partition=0/x.parquet", f"partition=0/{0:020d}-0-{'a' * 32}.parquet"])
def test_a_file_with_the_largest_offset_reaches_beyond_sealed(tmp_path: Path, name: str) -> None:
    """Use the largest offset: the exclusive end would not fit an int64."""
    table = create_topic(tmp_path)
    largest = 2**63 - 1
    action = AddAction(name, 1, {"partition": "0"}, 1, True, stats(largest - 1, largest))
    foreign_commit(path_of(table), [action], [("logstore/0/sealed", 10)])
    if name.endswith("x.parquet"):
        assert "which was never given out" in table.snapshot().refused(0)[0].reason
    else:
        with pytest.raises(CorruptionError, match="sealed up to 10"):
            table.snapshot().segments(0)
    assert [removal.path for removal in table.snapshot().foreign_removals()] == [name]
