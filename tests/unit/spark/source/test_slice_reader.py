"""A slice is read from its planned files, however the table has changed."""

import shutil
from dataclasses import replace

import pyarrow as pa
import pytest

from logstore.errors import UnknownTopicError
from logstore.segments import reader
from logstore.segments.reader import row_group_batches
from logstore.spark.source.columns import ALL_COLUMNS, arrow_schema
from logstore.spark.source.data_loss import DataLossError
from logstore.spark.source.options import ReadOptions, Subscription
from logstore.spark.source.planning import Planner
from logstore.spark.source.slice_reader import read_slice
from logstore.spark.source.slices import TimeRange, TopicRange
from logstore.spark.topic_view import view_of_storage
from tests.support import foreign_writers as others
from tests.support.table_paths import create_table, path_of
from tests.support.topics import TIMESTAMP_MS, empty_segment, joined, rewrite_files, roll

TOPIC = "flights"


@pytest.fixture
def table(tmp_path):
    """Create two partitions of three segments with ten records each."""
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
    assert all(batch.schema == arrow_schema(options.columns) for batch in batches)
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
    (first, *_), *_ = (list(read_slice(part, replace(options, columns=ALL_COLUMNS))) for part in plan(options, 4, 5))
    (row,) = first.to_pylist()
    assert list(row) == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    assert (row["topic"], row["partition"], row["offset"], row["timestampType"]) == (TOPIC, 0, 4, 0)
    assert round(row["timestamp"].timestamp() * 1000) >= TIMESTAMP_MS


def test_only_the_columns_of_the_options_are_read_from_files(options, table, monkeypatch):
    asked = []

    def reading(files, name, group, columns):
        asked.append(list(columns))
        return row_group_batches(files, name, group, columns)

    monkeypatch.setattr(reader, "row_group_batches", reading)
    few = replace(options, columns=("timestamp", "partition", "key"))
    batches = [batch for part in plan(few, 7, 23) for batch in read_slice(part, few)]
    assert {tuple(columns) for columns in asked} == {("offset", "timestamp", "key")}
    whole = [batch for part in plan(options, 7, 23) for batch in read_slice(part, options)]
    names = list(few.columns)
    assert all(batch.schema == arrow_schema(few.columns) for batch in batches)
    assert pa.Table.from_batches(batches) == pa.Table.from_batches(whole).select(names)
    # The constant columns need only the number of records.
    asked.clear()
    number = replace(options, columns=("topic",))
    assert sum(batch.num_rows for part in plan(number) for batch in read_slice(part, number)) == 60
    assert {tuple(columns) for columns in asked} == {("offset",)}


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
        # The log starts within a file, whose older records can still be read.
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


def test_records_that_another_writer_took_out_are_data_loss(options, table, caplog):
    others.update(path_of(table), '"offset" = 5 AND partition = 0', "new")
    slices = plan(options, 3, 25)
    others.overwrite(path_of(table), others.rows_of([]))
    with pytest.raises(
        DataLossError, match=r"flights-0: offsets 0 to 29 are missing: WRITE in version 8\..*delete-rec"
    ):
        plan(options, 0, 30)
    with pytest.raises(DataLossError, match="flights-0: offsets 3 to 24 are missing"):
        plan(options, 3, 25)
    # The files of an earlier plan may be gone.
    remove_files(table, slices)
    with pytest.raises(DataLossError, match=r"flights-0: offsets 3 to 24 are missing"):
        read(options, slices)
    options = replace(options, fail_on_data_loss=False)
    assert read(options, slices) == []
    assert plan(options, 0, 30) == []
    assert "flights-1: offsets 0 to 29 are missing: WRITE in version 8" in caplog.text


def test_records_that_a_delete_removed_are_no_data_loss(options, table):
    others.delete(path_of(table), '"offset" >= 10 AND "offset" < 20')
    assert read(options, plan(options)) == [row for row in both(0, 30) if not 10 <= row[1] < 20]


def test_a_topic_that_goes_between_the_choice_of_ranges_and_their_plan(options, table, caplog):
    ranges = ranges_of(options, 0, 30)
    shutil.rmtree(path_of(table))
    create_table(path_of(table).with_name("other"), num_partitions=1, config_overrides={})
    with pytest.raises(UnknownTopicError):
        Planner(options).slices(ranges)
    options = replace(options, fail_on_data_loss=False)
    assert Planner(options).slices(ranges) == []
    create_table(path_of(table), num_partitions=2, config_overrides={})
    assert Planner(options).slices(ranges) == []
    for told in ("there is no topic flights", "flights was deleted and made again"):
        assert told in caplog.text


def test_a_range_beyond_the_table_is_data_loss_without_a_store(options, caplog):
    """Plan past the table, as after another writer overwrote a roll's commit that a streaming batch needs."""
    with pytest.raises(DataLossError, match=r"partition 0: offsets 30 to 34 are no longer in the table, .* at 30"):
        plan(options, 25, 35)
    options = replace(options, fail_on_data_loss=False)
    assert read(options, plan(options, 25, 35)) == both(25, 30)
    assert plan(options, 32, 35) == []
    assert "partition 1: offsets 32 to 34 are no longer in the table" in caplog.text


def test_a_file_that_the_table_has_and_nobody_finds_is_an_error(options, table):
    slices = plan(options, 5, 25)
    remove_files(table, slices[:1])
    with pytest.raises(FileNotFoundError):
        read(options, slices)
