"""History and live tail of a real store, read by Spark: every record once, whatever the store does meanwhile."""

import datetime as dt
import random
import threading

import httpx
import pytest
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from benchmarks.free_port import free_port
from logstore.errors import (
    DataDirectoryError,
    OffsetOutOfRangeError,
    StoreUnreachableError,
    UnknownTopicError,
)
from logstore.spark import read_offsets, read_plan, tail_reader
from tests.spark.conftest import EPOCH_MS, files_opened, offsets
from tests.spark.store import Store
from tests.support.produce_load import ProduceLoad
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.spark


@pytest.fixture
def history_is_scanned(monkeypatch):
    """Scan history files however small they are, as if they exceeded ``FETCHED_BYTES_MAX``."""
    monkeypatch.setattr(read_plan, "FETCHED_BYTES_MAX", -1)


def rows_of(frame):
    rows = frame.selectExpr("partition", "offset", "unix_micros(timestamp) us", "key", "value", "headers").collect()
    return sorted(
        (
            r.partition,
            r.offset,
            r.us,
            r.key and bytes(r.key),
            r.value and bytes(r.value),
            r.headers and [(h.key, h.value and bytes(h.value)) for h in r.headers],
        )
        for r in rows
    )


def expected(partition, start, end):
    return [
        (
            partition,
            n,
            (EPOCH_MS + n) * 1000,
            None if n % 7 == 0 else f"k{n}".encode(),
            None if n % 11 == 0 else str(n).encode(),
            [("h", str(n).encode()), ("n", None)] if n % 5 == 0 else None,
        )
        for n in range(start, end)
    ]


@pytest.mark.usefixtures("history_is_scanned")
def test_history_and_tail_join_and_stay_joined_when_the_store_rolls_and_restarts(spark, store):
    topic = store.create("joined", 3)
    store.produce(topic, 0, 0, 60)
    store.produce(topic, 1, 0, 30)
    store.roll(topic)
    store.produce(topic, 0, 60, 100)
    store.produce(topic, 2, 0, 20)
    frame = read_offsets(spark, topic, bootstrap=store.url.removeprefix("http://"))
    all_of_it = expected(0, 0, 100) + expected(1, 0, 30) + expected(2, 0, 20)
    assert rows_of(frame) == all_of_it
    assert {r.topic for r in frame.select("topic").distinct().collect()} == {topic}
    part = read_offsets(
        spark, topic, {0: 50, 1: "latest", 2: 5}, {0: 70, 1: -1, 2: 6}, bootstrap=f"127.0.0.1:{free_port()},{store.url}"
    )
    assert rows_of(part) == expected(0, 50, 70) + expected(2, 5, 6)
    assert files_opened(part) == 1
    # Ranges by time give the same (offset n has the time EPOCH_MS + n).
    times = [dt.datetime.fromtimestamp((EPOCH_MS + n) / 1000, dt.UTC) for n in (15, 65)]
    part = read_offsets(spark, topic, *times, bootstrap=store.url)
    assert rows_of(part) == expected(0, 15, 65) + expected(1, 15, 30) + expected(2, 15, 20)
    # The border between history and tail stays where it was, although the tail is history now.
    store.roll(topic)
    store.produce(topic, 1, 30, 40)
    assert rows_of(frame) == all_of_it
    store.server.stop()
    store.server.start()
    assert rows_of(frame) == all_of_it
    assert offsets(read_offsets(spark, topic, bootstrap=store.url), 1) == list(range(40))


def test_little_history_comes_from_the_store_with_the_tail(spark, store):
    """Read across files, a roll and retention: the frame returns its whole range or raises an error."""
    topic = store.create("little", 2)
    for start in (0, 40):
        store.produce(topic, 0, start, start + 40)
        store.produce(topic, 1, start, start + 40)
        store.roll(topic)
    store.produce(topic, 0, 80, 100)
    frame = read_offsets(spark, topic, {0: 35, 1: 10}, {0: 90, 1: 30}, bootstrap=store.url)
    wanted = expected(0, 35, 90) + expected(1, 10, 30)
    assert files_opened(frame) == 0
    assert frame.schema == read_offsets(spark, topic, storage=store.server.data).schema
    assert rows_of(frame) == wanted
    store.roll(topic)
    assert rows_of(frame) == wanted
    store.post(f"/topics/{topic}/partitions/1/delete-records", before_offset=20)
    with pytest.raises(Exception, match=r"out of range.*Retention or delete-records overtook this read"):
        frame.collect()


def test_a_tail_of_many_answers_comes_whole(spark, store, monkeypatch):
    topic = store.create("bounded")
    store.produce(topic, 0, 0, 2000)
    monkeypatch.setattr(tail_reader, "FETCH_BYTES", 4096)
    assert rows_of(read_offsets(spark, topic, {0: 7}, {0: 1990}, bootstrap=store.url)) == expected(0, 7, 1990)


@pytest.mark.long
@pytest.mark.usefixtures("history_is_scanned")
def test_no_offset_is_missing_or_twice_under_load_with_rolls(spark, store):
    topic = store.create("loaded", 3)
    stop = threading.Event()

    def roll_often():
        with httpx.Client(timeout=30) as http:
            while not stop.wait(random.uniform(0.1, 0.6)):
                assert http.post(f"{store.url}/topics/{topic}/roll").status_code == 200

    roller = threading.Thread(target=roll_often)
    frames = []
    with ProduceLoad(store.url, topic, producers=1, partitions=3, pause_s=0.02) as load:
        roller.start()
        try:
            for _ in range(2):
                load.wait_for_acknowledged(100)
                acknowledged = load.history.acknowledged_records
                frame = read_offsets(spark, topic, bootstrap=store.url)
                seen = check_dense(frame)
                assert sum(seen.values()) >= acknowledged
                frames.append((frame, seen))
        finally:
            stop.set()
            roller.join(60)
    for frame, seen in frames[:1]:
        assert check_dense(frame) == seen, "a frame changed between two evaluations"
    final = (
        read_offsets(spark, topic, bootstrap=store.url).selectExpr("partition", "offset", "string(value) v").collect()
    )
    by_partition = {p: sorted((r.offset, r.v.strip('"')) for r in final if r.partition == p) for p in range(3)}
    load.history.check(by_partition)


def check_dense(frame) -> dict[int, int]:
    """Check that each partition has all offsets from 0 once; return the number of records by partition."""
    rows = frame.groupBy("partition").agg(
        F.max("offset").alias("last"), F.count("offset").alias("records"), F.count_distinct("offset").alias("distinct")
    )
    counts = {}
    for row in rows.collect():
        assert row.last + 1 == row.records == row.distinct, row
        counts[row.partition] = row.records
    return counts


def test_a_reader_gets_an_error_when_the_log_start_overtakes_its_tail(spark, store):
    topic = store.create("overtaken")
    store.produce(topic, 0, 0, 50)
    frame = read_offsets(spark, topic, bootstrap=store.url)
    store.post(f"/topics/{topic}/partitions/0/delete-records", before_offset=20)
    with pytest.raises(Exception, match=r"out of range.*Retention or delete-records overtook this read"):
        frame.collect()
    assert rows_of(read_offsets(spark, topic, bootstrap=store.url)) == expected(0, 20, 50)
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 19 .*valid are 20 to 49, and 50 is the end"):
        read_offsets(spark, topic, {0: 19}, bootstrap=store.url)


def test_several_topics_are_their_union(spark, store):
    one, other = store.create("one-of-two", 2), store.create("other-of-two")
    store.produce(one, 0, 0, 10)
    store.produce(one, 1, 0, 5)
    store.produce(other, 0, 0, 20)
    store.roll(other)
    frame = read_offsets(spark, [one, other], bootstrap=store.url)
    assert rows_of(frame.where(F.col("topic") == one)) == expected(0, 0, 10) + expected(1, 0, 5)
    assert rows_of(frame.where(F.col("topic") == other)) == expected(0, 0, 20)
    starts = {other: {0: 15}, one: {0: 8, 1: "latest"}}
    counts = read_offsets(spark, (one, other), starts, bootstrap=store.url).groupBy("topic").count().collect()
    assert {row["topic"]: row["count"] for row in counts} == {one: 2, other: 5}


def test_a_topic_made_again_is_not_the_one_that_the_frame_was_made_from(spark, store):
    topic = store.create("reborn")
    store.produce(topic, 0, 0, 10)
    frame = read_offsets(spark, topic, bootstrap=store.url)
    store.delete(topic)
    store.create(topic)
    store.produce(topic, 0, 0, 10)
    with pytest.raises(Exception, match="deleted and made again") as told:
        frame.collect()
    assert "Traceback" not in str(told.value)


def test_errors_of_a_store_name_what_to_do(spark, store, tmp_path, monkeypatch):
    with pytest.raises(UnknownTopicError, match="nowhere"):
        read_offsets(spark, "nowhere", bootstrap=store.url)
    monkeypatch.setattr("logstore.spark.topic_view.RETRY_SECONDS", 0.2)
    with pytest.raises(StoreUnreachableError, match="No store answers"):
        read_offsets(spark, "nowhere", bootstrap=f"127.0.0.1:{free_port()}")
    store.create("from-the-environment")
    monkeypatch.setenv("LOGSTORE_URL", store.url)
    assert read_offsets(spark, "from-the-environment").count() == 0
    away = {"LOGSTORE_DATA_LOCATION": (tmp_path / "not-mounted").as_uri()}
    with ServerProcess(tmp_path / "data", environment=away) as server:
        elsewhere = Store(server)
        topic = elsewhere.create("elsewhere")
        where = "not-mounted/topics/elsewhere, which is not visible from here: .* the store's setting data_location"
        with pytest.raises(DataDirectoryError, match=where):
            read_offsets(spark, topic, bootstrap=elsewhere.url)
        elsewhere.http.close()
