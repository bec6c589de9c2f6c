"""A slice is read from files as they were planned, however the table was changed since."""

from dataclasses import replace

import pytest

from logstore.spark.source.columns import arrow_schema
from logstore.spark.source.options import ReadOptions, Subscription
from logstore.spark.source.planning import Planner, TimeRange, TopicRange
from logstore.spark.source.slice_reader import DataLossError, read_slice
from logstore.spark.topic_view import view_of_storage
from tests.support.table_paths import create_table, path_of
from tests.support.topics import TIMESTAMP_MS, empty_segment, joined, rewrite_files, roll

TOPIC = "flights"


@pytest.fixture
def table(tmp_path):
    """Two partitions of three segments with ten records each."""
    made = create_table(tmp_path / "topics" / TOPIC, num_partitions=2, config_overrides={})
    for partition in (0, 1):
        for base in (0, 10, 20):
            roll(made, partition, base, base + 10)
    return made


@pytest.fixture
def options(tmp_path, table):
    return ReadOptions(Subscription(topics=(TOPIC,)), storage=str(tmp_path))


def ranges_of(options: ReadOptions, start: int, end: int) -> list[TopicRange]:
    topic_id = view_of_storage(options.storage, TOPIC).topic_id
    return [TopicRange(TOPIC, topic_id, partition, start, end) for partition in (0, 1)]


def plan(options: ReadOptions, start: int = 0, end: int = 30, times: TimeRange | None = None):
    return Planner(options).slices(ranges_of(options, start, end), times)


def read(options: ReadOptions, slices) -> list[tuple[int, int]]:
    batches = [batch for part in slices for batch in read_slice(part, options)]
    assert all(batch.schema == arrow_schema(include_headers=options.include_headers) for batch in batches)
    return [(row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist()]


def both(start: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in (0, 1) for offset in range(start, end)]


def paths(files) -> list[str]:
    return [file.path for file in files]


def remove_files(table, slices) -> None:
    for name in {name for part in slices for name in part.files}:
        (path_of(table) / name).unlink()


def test_a_range_comes_whole_and_in_order(options):
    assert read(options, plan(options, 7, 23)) == both(7, 23)
    assert read(options, plan(replace(options, max_records_per_partition=3), 7, 23)) == both(7, 23)
    assert plan(options, 5, 5) == []


def test_the_columns_are_those_of_the_kafka_source(options):
    (first, *_), *_ = (list(read_slice(part, replace(options, include_headers=True))) for part in plan(options, 4, 5))
    (row,) = first.to_pylist()
    assert list(row) == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    assert (row["topic"], row["partition"], row["offset"], row["timestampType"]) == (TOPIC, 0, 4, 0)
    assert round(row["timestamp"].timestamp() * 1000) >= TIMESTAMP_MS


def test_files_of_other_times_are_not_opened(options, table):
    slices = plan(options, times=TimeRange(first_ms=TIMESTAMP_MS + 10**9))
    assert slices == []
    assert read(options, plan(options, times=TimeRange(last_ms=TIMESTAMP_MS + 10**9))) == both(0, 30)


def test_a_merge_between_plan_and_read_loses_and_doubles_nothing(options, table):
    slices = plan(options, 5, 25)
    snapshot = table.snapshot()
    for partition in (0, 1):
        files = snapshot.segments(partition)[:2]
        rewrite_files(table, partition, paths(files), (joined(table, files),), data_change=False)
    remove_files(table, [replace(part, files=part.files[:2]) for part in slices[:1]])
    assert read(options, slices) == both(5, 25)


def test_retention_between_plan_and_read_is_data_loss(options, table):
    slices = plan(options, 5, 25)
    for partition in (0, 1):
        files = table.snapshot().segments(partition)[:2]
        rewrite_files(table, partition, paths(files), (), data_change=True, log_start=20)
    remove_files(table, [replace(part, files=part.files[:2]) for part in slices])
    with pytest.raises(DataLossError, match=r"partition 0: offsets 5 to 19 were removed.*failOnDataLoss"):
        read(options, slices)
    assert read(replace(options, fail_on_data_loss=False), slices) == both(20, 25)


def test_retention_before_the_plan_is_data_loss_where_files_are_gone(options, table):
    for partition in (0, 1):
        # The log starts within a file, and what retention left of a compacted partition is no gap.
        files = table.snapshot().segments(partition)[:1]
        rewrite_files(table, partition, paths(files), (), data_change=True, log_start=15)
    with pytest.raises(DataLossError, match=r"partition 0: offsets 5 to 9 were removed by retention .*starts at 15"):
        plan(options, 5, 25)
    with pytest.raises(DataLossError, match="offsets 5 to 7 were removed"):
        plan(options, 5, 8)
    assert read(options, plan(options, 10, 25)) == both(10, 25)
    options = replace(options, fail_on_data_loss=False)
    assert read(options, plan(options, 5, 25)) == both(10, 25)


def test_a_gap_of_compaction_is_no_data_loss(options, table):
    snapshot = table.snapshot()
    for partition in (0, 1):
        empty = empty_segment(table, partition, 10, 20)
        rewrite_files(table, partition, paths(snapshot.segments(partition)[1:2]), (empty,), data_change=False)
    assert read(options, plan(options, 5, 25)) == [row for row in both(5, 25) if not 10 <= row[1] < 20]


def test_a_file_that_the_table_has_and_nobody_finds_is_an_error(options, table):
    slices = plan(options, 5, 25)
    remove_files(table, slices[:1])
    with pytest.raises(FileNotFoundError):
        read(options, slices)
