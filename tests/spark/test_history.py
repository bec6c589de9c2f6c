"""Sealed history, read by Spark without a running store: exact records, and no file is opened in vain."""

import datetime as dt
import shutil
import uuid
from functools import partial

import deltalake
import pytest

from logstore.errors import (
    DataDirectoryError,
    InvalidRequestError,
    InvalidTopicError,
    MissingRecordsError,
    OffsetOutOfRangeError,
    UnknownPartitionError,
    UnknownTopicError,
    UnsupportedTableError,
)
from logstore.segments.writer import SegmentWriter
from logstore.spark import group_read, read_offsets
from logstore.table_files import open_table
from tests.spark.conftest import EPOCH_MS, files_opened, log_batch, offsets
from tests.support import foreign_writers as others
from tests.support.table_paths import path_of

pytestmark = pytest.mark.spark

COLUMNS = (
    "struct<topic:string,partition:int,offset:bigint,timestamp:timestamp,key:binary,value:binary,"
    "headers:array<struct<key:string,value:binary>>>"
)


def test_every_column_is_exactly_what_was_written(spark, topic):
    t = topic(2)
    t.roll(0, 0, 40)
    t.roll(1, 0, 25)
    frame = read_offsets(spark, t.name, storage=t.data)
    assert frame.schema.simpleString() == COLUMNS
    rows = sorted(frame.collect(), key=lambda r: (r.partition, r.offset))
    expected = [(p, row) for p, n in ((0, 40), (1, 25)) for row in log_batch(0, n, marker=f"{p}-").to_pylist()]
    assert len(rows) == len(expected)
    for row, (partition, written) in zip(rows, expected, strict=True):
        assert (row.topic, row.partition, row.offset) == (t.name, partition, written["offset"])
        assert (row.key, row.value) == (written["key"], written["value"])
        headers = None if row.headers is None else [{"key": h.key, "value": h.value} for h in row.headers]
        assert headers == written["headers"]
    micros = {
        r.offset: r.us for r in frame.where("partition = 0").selectExpr("offset", "unix_micros(timestamp) us").collect()
    }
    assert micros == {o: (EPOCH_MS + 1000 * o) * 1000 for o in range(40)}


@pytest.mark.long
def test_spark_sql_sees_the_table_without_any_of_this(spark, topic):
    t = topic(2)
    for p, end in ((0, 250), (1, 130)):
        t.roll(p, 0, 100)
        t.roll(p, 100, end)
    rows = spark.sql(
        f"SELECT partition, count(*) n, count(DISTINCT offset) d, min(offset) lo, max(offset) hi, max(timestamp) t "
        f"FROM delta.`{path_of(t.table)}` GROUP BY partition ORDER BY partition"
    ).collect()
    assert [tuple(r)[:5] for r in rows] == [(0, 250, 250, 0, 249), (1, 130, 130, 0, 129)]
    assert rows[1].t.astimezone(dt.UTC).timestamp() == EPOCH_MS / 1000 + 129


@pytest.mark.long
@pytest.mark.parametrize("checkpoint", [pytest.param(False, marks=pytest.mark.long), True])
def test_segments_without_records_are_read_as_nothing_and_not_opened(spark, topic, checkpoint):
    t = topic(3)
    t.roll_empty(0, 0, 50)
    t.roll(0, 50, 150)
    t.roll_empty(0, 150, 300)
    t.roll_empty(0, 300, 310)
    t.roll(0, 310, 360)
    t.roll_empty(1, 0, 100)
    t.roll(2, 0, 100)
    t.roll_empty(2, 100, 400)
    if checkpoint:
        deltalake.DeltaTable(str(path_of(t.table))).create_checkpoint()
    records = {(0, o) for o in (*range(50, 150), *range(310, 360))} | {(2, o) for o in range(100)}
    plain = spark.read.format("delta").load(str(path_of(t.table)))
    assert {(r.partition, r.offset) for r in plain.select("partition", "offset").collect()} == records
    assert plain.where("offset < 0 OR offset IS NULL").count() == 0
    assert plain.selectExpr("min(offset)", "max(offset)", "count(*)").first()[:] == (0, 359, 250)
    frame = read_offsets(spark, t.name, storage=t.data)
    assert files_opened(frame) == 3, "Delta skips what it knows to be empty"
    assert {(r.partition, r.offset) for r in frame.collect()} == records
    inside = read_offsets(spark, t.name, {0: 160, 1: 10, 2: 150}, {0: 305, 1: 90, 2: 380}, storage=t.data)
    assert inside.count() == 0
    # The first offset at or after this time lies behind segments without records.
    at = dt.datetime.fromtimestamp(EPOCH_MS / 1000 + 149.5, dt.UTC)
    later = read_offsets(spark, t.name, at, "latest", storage=t.data)
    assert sorted((r.partition, r.offset) for r in later.collect()) == [(0, o) for o in range(310, 360)]


@pytest.mark.long
def test_filters_on_offset_timestamp_and_partition_open_only_the_files_that_can_match(spark, topic):
    t = topic(4)
    for p in range(4):
        t.roll(p, 0, 1000 + 100 * p)
    frame = read_offsets(spark, t.name, storage=t.data)
    assert files_opened(frame) == 10 + 11 + 12 + 13
    assert files_opened(frame.where("partition = 2")) == 12
    assert files_opened(frame.where("offset >= 450 AND offset < 550")) == 4 * 2
    assert files_opened(frame.where("partition = 1 AND offset = 1050")) == 1
    at = f"timestamp_millis({EPOCH_MS + 1000 * 720})"
    assert files_opened(frame.where(f"partition = 3 AND timestamp = {at}")) == 1
    assert frame.where(f"timestamp = {at}").count() == 4
    assert files_opened(frame.where("partition IN (0, 3) AND offset > 1150").select("value")) == 2


@pytest.mark.long
def test_a_range_may_be_one_of_times(spark, topic):
    t = topic(2)
    t.roll(0, 0, 250)
    t.roll(1, 0, 50)
    second = [dt.datetime.fromtimestamp(EPOCH_MS / 1000 + n, dt.UTC) for n in range(300)]
    frame = read_offsets(spark, t.name, second[40], second[120].isoformat(), storage=t.data)
    assert offsets(frame, 0) == list(range(40, 120))
    assert offsets(frame, 1) == list(range(40, 50))
    assert files_opened(frame) == 3
    t.table.advance_log_start({0: 130}, {0: 0})
    frame = read_offsets(spark, t.name, {0: second[40], 1: 0}, {0: "latest", 1: second[1]}, storage=t.data)
    assert (offsets(frame, 0), offsets(frame, 1)) == (list(range(130, 250)), [0])
    assert offsets(read_offsets(spark, t.name, "-1h", storage=t.data), 0) == []
    with pytest.raises(InvalidRequestError, match="'soon' is not an offset"):
        read_offsets(spark, t.name, "soon", storage=t.data)


@pytest.mark.long
def test_a_read_of_different_ranges_opens_only_their_files(spark, topic):
    """Give each partition its own filter: a disjunction would open every range's files in every partition."""
    t = topic(3)
    for p in range(3):
        t.roll(p, 0, 1000)
    frame = read_offsets(spark, t.name, {0: 0, 1: 900, 2: 420}, {0: 100, 1: 1000, 2: 480}, storage=t.data)
    assert offsets(frame, 0) == list(range(100))
    assert offsets(frame, 1) == list(range(900, 1000))
    assert offsets(frame, 2) == list(range(420, 480))
    assert files_opened(frame) == 3
    assert files_opened(frame.where("partition = 1 AND offset < 950")) == 1


def test_a_hundred_partitions_each_with_its_own_end(spark, topic):
    t = topic(100)
    for p in range(0, 100, 9):
        t.roll(p, 0, 10 + p, file_offsets=1000)
    starts = {p: min(3, 10 + p) if p % 9 == 0 else 0 for p in range(100)}
    frame = read_offsets(spark, t.name, starts, storage=t.data)
    counted = {r.partition: r["count"] for r in frame.groupBy("partition").count().collect()}
    assert counted == {p: 7 + p for p in range(0, 100, 9)}
    assert files_opened(frame) == 12


def test_records_rolled_later_are_not_in_a_frame_made_before(spark, topic):
    t = topic(2)
    t.roll(0, 0, 50)
    t.roll(1, 0, 20)
    frame = read_offsets(spark, t.name, storage=t.data)
    assert offsets(frame, 0) == list(range(50))
    t.roll(0, 50, 120)
    t.roll(1, 20, 70)
    assert (offsets(frame, 0), offsets(frame, 1)) == (list(range(50)), list(range(20)))
    assert offsets(read_offsets(spark, t.name, storage=t.data), 1) == list(range(70))


def test_the_log_start_may_be_inside_a_file(spark, topic):
    t = topic(1)
    t.roll(0, 0, 200)
    t.table.advance_log_start({0: 130}, {0: 0})
    assert offsets(read_offsets(spark, t.name, storage=t.data), 0) == list(range(130, 200))
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 129 .*valid are 130 to 199, and 200 is the end"):
        read_offsets(spark, t.name, {0: 129}, storage=t.data)


def test_nothing_to_read_is_an_empty_frame_of_the_same_columns(spark, topic):
    t = topic(2)
    frame = read_offsets(spark, t.name, storage=t.data)
    assert frame.schema.simpleString() == COLUMNS
    assert frame.collect() == []
    t.roll(0, 0, 10)
    assert read_offsets(spark, t.name, "latest", storage=t.data).collect() == []


@pytest.mark.long
@pytest.mark.parametrize("commits", [1, pytest.param(4, marks=pytest.mark.long)])
def test_a_topic_made_again_is_not_the_one_that_the_frame_was_made_from(spark, topic, commits):
    """Make the topic again with fewer commits than the first one had, and with more."""
    t = topic(1)
    for start in range(0, 60, 20):
        t.roll(0, start, start + 20)
    frame = read_offsets(spark, t.name, storage=t.data)
    evaluated, lazy = frame.where("offset >= 5"), frame.select("offset")
    assert evaluated.count() == 55
    shutil.rmtree(path_of(t.table))
    anew = topic(1, t.name)
    for start in range(0, 10 * commits, 10):
        anew.roll(0, start, start + 10)
    for gone in (evaluated, lazy, frame.limit(3)):
        with pytest.raises(
            Exception, match="deleted and made again since this DataFrame was made; make the DataFrame again"
        ):
            gone.collect()
    assert offsets(read_offsets(spark, t.name, storage=t.data), 0) == list(range(10 * commits))


def test_the_first_commit_may_have_been_cleaned_up(spark, topic):
    """Read the id of the table, which is then only in checkpoints."""
    t = topic(1)
    t.roll(0, 0, 20)
    deltalake.DeltaTable(path_of(t.table)).create_checkpoint()
    (path_of(t.table) / "_delta_log" / f"{0:020}.json").unlink()
    assert offsets(read_offsets(spark, t.name, storage=t.data), 0) == list(range(20))


@pytest.mark.long
def test_topics_are_told_apart(spark, topic):
    a, b = topic(1), topic(1)
    a.roll(0, 0, 30)
    b.roll(0, 0, 20)
    both = read_offsets(spark, a.name, storage=a.data).union(read_offsets(spark, b.name, storage=b.data))
    assert {r.topic: r["count"] for r in both.groupBy("topic").count().collect()} == {a.name: 30, b.name: 20}


def test_a_data_root_with_blanks_and_umlauts(spark, tmp_path):
    from tests.spark.conftest import WrittenTopic

    t = WrittenTopic.create(tmp_path / "my data é", "a.b_c-D", 1)
    t.roll(0, 0, 10)
    assert offsets(read_offsets(spark, t.name, storage=t.data), 0) == list(range(10))
    assert offsets(read_offsets(spark, t.name, storage=t.data.as_uri()), 0) == list(range(10))


def test_records_that_another_writer_took_out_are_missing_for_readers_and_groups(spark, topic):
    made = topic()
    made.roll(0, 0, 200)
    others.overwrite(path_of(made.table), others.rows_of([]))
    for read in (read_offsets, partial(group_read, group="g")):
        with pytest.raises(MissingRecordsError, match="offsets 0 to 199 are missing: WRITE in version 2"):
            read(spark, made.name, storage=made.data)


@pytest.mark.long
def test_rows_that_another_writer_appends_are_in_no_frame(spark, topic):
    made = topic()
    made.roll(0, 0, 100)
    frame = read_offsets(spark, made.name, storage=made.data)
    assert frame.count() == 100
    others.append(path_of(made.table), [3, 4])
    with pytest.raises(Exception, match=r"changed the table \(WRITE in version 2\) since this Data") as told:
        frame.count()
    assert "Traceback" not in str(told.value)
    assert read_offsets(spark, made.name, storage=made.data).count() == 100


@pytest.mark.long
def test_a_shallow_clone_is_refused_as_one(spark, topic):
    made = topic()
    made.roll(0, 0, 20)
    clone = path_of(made.table).with_name("clone")
    spark.sql(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE delta.`{path_of(made.table)}`")
    with pytest.raises(UnsupportedTableError, match="clone is a shallow clone: its files are those of another table"):
        read_offsets(spark, "clone", storage=made.data)


def test_errors_name_what_to_do(spark, topic, tmp_path, monkeypatch):
    t = topic(2)
    t.roll(0, 0, 10)

    def read(*arguments, **keywords):
        return read_offsets(spark, *arguments, **({"storage": t.data} | keywords))

    with pytest.raises(UnknownTopicError, match="there is no topic nowhere in"):
        read("nowhere")
    with pytest.raises(InvalidTopicError, match="cannot be a topic's name"):
        read("../escape")
    with pytest.raises(UnknownPartitionError, match="no partition 2"):
        read(t.name, {0: 0, 1: 0, 2: 0})
    with pytest.raises(InvalidRequestError, match="leaves out partition 1"):
        read(t.name, {0: 0})
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 11 .*valid are 0 to 9, and 10 is the end"):
        read(t.name, "earliest", {0: 11, 1: 0})
    with pytest.raises(InvalidRequestError, match="starting offset 5 is above ending offset 4"):
        read(t.name, {0: 5, 1: 0}, {0: 4, 1: 0})
    with pytest.raises(InvalidRequestError, match="not both"):
        read(t.name, bootstrap="127.0.0.1:1")
    with pytest.raises(InvalidRequestError, match="LOGSTORE_URL"):
        read(t.name, storage=None)
    with pytest.raises(DataDirectoryError, match="s3:// is not served"):
        read(t.name, storage="s3://bucket/data")
    assert uuid.UUID(str(t.table.snapshot().topic_id))


def test_a_flipped_bit_in_a_page_is_an_error(spark, tmp_path):
    """Turn on Parquet's page checksums, as our sessions do; without them the read returns another value."""
    with SegmentWriter(open_table(tmp_path), 0, 0, 40, 0, "uncompressed") as writer:
        writer.write(log_batch(0, 40, marker="text-"))
        file = tmp_path / writer.finish().path
    good = spark.read.parquet(str(file)).agg({"value": "max"}).collect()
    content = file.read_bytes()
    value = bytes(good[0][0])
    assert content.count(value) == 1
    file.write_bytes(content.replace(value, bytes([value[0] ^ 1]) + value[1:]))
    # Spark keeps its own checksums beside files that it wrote; this file has none.
    with pytest.raises(Exception, match="could not verify page integrity"):
        spark.read.parquet(str(file)).agg({"value": "max"}).collect()
