"""Batch reads of ``format("logstore")`` on a real store: by Spark, and planned and read as Spark's tasks do it."""

import contextlib
import json
import logging
import re
import socket
import threading
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, InputPartition, LessThan

from benchmarks.free_port import free_port
from logstore.errors import (
    DataDirectoryError,
    InvalidRequestError,
    LogStoreError,
    NetworkError,
    StoreUnreachableError,
    UnknownPartitionError,
    UnknownTopicError,
)
from logstore.spark.source.batch_reader import FilteredBatchReader
from logstore.spark.source.data_loss import DataLossError
from logstore.spark.source.data_source import LogStoreSource
from logstore.spark.source.options import parse_read_options
from logstore.spark.source.topics import SourceTopics
from logstore.spark.tail_reader import TailReadError
from tests.spark.conftest import EPOCH_MS
from tests.spark.store import Store
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.spark

TIME = datetime.fromtimestamp(EPOCH_MS / 1000, UTC)


def reader(store, **options) -> FilteredBatchReader:
    options = {name.replace("__", "."): value for name, value in options.items()}
    where = {} if "storage" in options else {"bootstrap.servers": store.url}
    return FilteredBatchReader(parse_read_options(where | options))


def read(read_by: FilteredBatchReader, *filters) -> list[tuple[str, int, int]]:
    """Return topic, partition and offset of all rows, in the order of tasks; each task returns exactly its slice."""
    read_by.pushFilters(list(filters))
    rows = []
    for part in read_by.partitions():
        for batch in read_by.read(part):
            rows += zip(*(batch.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True)
    assert len(set(rows)) == len(rows)
    return rows


def rows_of(topic, **offsets):
    return [(topic, int(p[1:]), o) for p, (start, end) in offsets.items() for o in range(start, end)]


def by_partition(topic, *numbers):
    return json.dumps({topic: dict(enumerate(numbers))})


@pytest.fixture(scope="module")
def filled(store):
    """Seal 60 of the 100 offsets of partition 0 in two files, and all 30 of partition 1."""
    topic = "source-batch"
    configs = [{"name": "segment.ms", "value": "3600000"}]
    store.post(store.clusters(), topic_name=topic, partitions_count=3, configs=configs)
    store.produce(topic, 0, 0, 40)
    store.roll(topic)
    store.produce(topic, 0, 40, 60)
    store.produce(topic, 1, 0, 30)
    store.roll(topic)
    store.produce(topic, 0, 60, 100)
    return topic


def test_offsets_and_times_choose_the_records(store, filled):
    def chosen(**options):
        return read(reader(store, subscribe=filled, **options))

    assert chosen() == rows_of(filled, p0=(0, 100), p1=(0, 30))
    assert chosen(startingOffsets=by_partition(filled, 50, -2, 0), endingOffsets=by_partition(filled, 70, 3, -1)) == (
        rows_of(filled, p0=(50, 70), p1=(0, 3))
    )
    # Offset n has the time EPOCH_MS + n. An ending time after the last record means the end of the log, a starting time
    # only with the strategy "latest".
    times = {"startingTimestamp": str(EPOCH_MS + 15), "startingOffsetsByTimestampStrategy": "latest"}
    assert chosen(**times, startingOffsets="earliest") == rows_of(filled, p0=(15, 100), p1=(15, 30))
    assert chosen(**times, endingTimestamp=str(EPOCH_MS + 65)) == rows_of(filled, p0=(15, 65), p1=(15, 30))
    with pytest.raises(InvalidRequestError, match=f"topic-partition {filled}-2 and timestamp {EPOCH_MS + 15}"):
        chosen(startingTimestamp=str(EPOCH_MS + 15))
    assert chosen(
        startingOffsetsByTimestamp=by_partition(filled, EPOCH_MS + 98, EPOCH_MS + 1, 0),
        startingOffsetsByTimestampStrategy="latest",
        endingOffsetsByTimestamp=by_partition(filled, EPOCH_MS + 99, EPOCH_MS + 2, EPOCH_MS),
    ) == rows_of(filled, p0=(98, 99), p1=(1, 2))
    with pytest.raises(
        InvalidRequestError, match="resolved start offset 101 is greater than the resolved end offset 100"
    ):
        chosen(startingOffsets=by_partition(filled, 101, 0, 0))
    with pytest.raises(
        InvalidRequestError, match=f"startingOffsets don't match .*left out: {filled}-2; not assigned: none"
    ):
        chosen(startingOffsets=by_partition(filled, 1, 0))


def test_topics_are_named_assigned_or_matched_and_may_be_sealed_history_alone(store, filled):
    other = store.create("source-other", 2)
    store.produce(other, 1, 0, 3)
    assigned = json.dumps({filled: [1], other: [1, 0]})
    assert read(reader(store, assign=assigned)) == rows_of(filled, p1=(0, 30)) + rows_of(other, p1=(0, 3))
    assert read(reader(store, subscribePattern="source-(batch|other)", endingOffsets="latest")) == (
        rows_of(filled, p0=(0, 100), p1=(0, 30)) + rows_of(other, p1=(0, 3))
    )
    assert read(reader(store, subscribePattern="source")) == []
    assert read(reader(store, subscribePattern=".*_offsets")) == []
    for isolation in ("read_committed", "read_uncommitted"):
        assert len(read(reader(store, subscribe=other, isolation=isolation))) == 3
    data = str(store.server.data)
    assert read(reader(store, storage=data, subscribe=filled)) == rows_of(filled, p0=(0, 60), p1=(0, 30))
    sealed = reader(
        store,
        storage=data,
        subscribePattern="source-(batch|other)",
        startingTimestamp=str(EPOCH_MS + 20),
        startingOffsetsByTimestampStrategy="latest",
    )
    assert read(sealed) == rows_of(filled, p0=(20, 60), p1=(20, 30))

    with pytest.raises(UnknownTopicError, match="source-none"):
        read(reader(store, subscribe=f"{filled},source-none"))
    named = {"bootstrap.servers": store.url, "subscribe": f"{filled},source-none"}
    with contextlib.closing(SourceTopics(parse_read_options(named))) as topics:
        assert [found.topic for found in topics.look(missing_ok=True)] == [filled]
    with pytest.raises(UnknownPartitionError, match=f"option assign: topic {filled} has no partition 3, 7; it has 3"):
        read(reader(store, assign=json.dumps({filled: [0, 3, 7]})))
    with pytest.raises(UnknownTopicError, match=r"there is no topic source-none in .*data"):
        read(reader(store, storage=data, subscribe="source-none"))
    with pytest.raises(DataDirectoryError, match="option storage: there is no data root of a store at /nowhere"):
        read(reader(store, storage="/nowhere", subscribePattern=".*"))


def test_filters_leave_out_partitions_files_and_tails(store, filled):
    def planned(*filters):
        pushed = reader(store, subscribe=filled)
        left = pushed.pushFilters(list(filters))
        return [(s.partition, s.start, s.end, len(s.files)) for s in pushed.partitions()], left

    at = lambda n: TIME + timedelta(milliseconds=n)  # noqa: E731 - the time of an offset
    partition, offset, timestamp = ("partition",), ("offset",), ("timestamp",)
    assert planned() == ([(0, 0, 60, 2), (0, 60, 100, 0), (1, 0, 30, 1)], [])
    assert planned(EqualTo(partition, 1)) == ([(1, 0, 30, 1)], [])
    assert planned(In(partition, (1, 2)), EqualTo(("topic",), filled)) == ([(1, 0, 30, 1)], [])
    assert planned(GreaterThanOrEqual(offset, 50), LessThan(offset, 55)) == ([(0, 50, 55, 1)], [])
    assert planned(GreaterThanOrEqual(offset, 60)) == ([(0, 60, 100, 0)], [])
    assert planned(EqualTo(("topic",), "another")) == ([], [])
    for first, last, slices in [
        (45, None, [(0, 45, 60, 1), (0, 60, 100, 0)]),
        (70, None, [(0, 70, 100, 0)]),
        (200, None, []),
        (25, 28, [(0, 25, 40, 1), (0, 60, 100, 0), (1, 25, 30, 1)]),
    ]:
        filters = [GreaterThanOrEqual(timestamp, at(first))] + ([LessThan(timestamp, at(last))] if last else [])
        assert planned(*filters) == (slices, filters)
    # The last time of a file is known, that of the tail is not.
    until = LessThan(timestamp, at(10))
    assert planned(until) == ([(0, 0, 40, 1), (0, 60, 100, 0), (1, 0, 30, 1)], [until])
    nothing = reader(store, subscribe=filled)
    # Spark makes a task even if there is no partition.
    assert list(nothing.read(InputPartition(None))) == []


def test_records_that_are_gone_fail_the_read_or_are_left_out(store, caplog):
    topic = store.create("source-lost")
    store.produce(topic, 0, 0, 50)
    store.roll(topic)
    store.produce(topic, 0, 50, 60)
    ends = [{}, {"startingOffsets": by_partition(topic, 10)}, {"endingOffsets": by_partition(topic, 10)}]
    kept = reader(store, subscribe=topic, failOnDataLoss="false")
    early = kept.partitions()
    store.post(f"/topics/{topic}/partitions/0/delete-records", before_offset=20)
    assert read(reader(store, subscribe=topic)) == rows_of(topic, p0=(20, 60))
    lost = f"offset 10 of topic-partition {topic}-0 is out of range; it has offsets 20 to 59, and 60 is the end"
    for end in ends[1:]:
        with pytest.raises(DataLossError, match=lost):
            read(reader(store, subscribe=topic, **end))
    with caplog.at_level(logging.WARNING):
        assert read(reader(store, subscribe=topic, failOnDataLoss="false", **ends[1])) == rows_of(topic, p0=(20, 60))
        assert read(reader(store, subscribe=topic, failOnDataLoss="false", **ends[2])) == []
    assert len([r for r in caplog.records if lost in r.message]) == 2
    # Files stay until vacuum, and slices that were planned before are read whole.
    assert sum(batch.num_rows for part in early for batch in kept.read(part)) == 60


def test_a_tail_that_is_removed_before_its_read_is_a_loss_and_no_record_comes_twice(store, caplog):
    for fail in ("true", "false"):
        # Each round needs another topic: removed records are rolled, and files stay readable for slices that name them.
        topic = store.create(f"source-overtaken-{fail}")
        for start in range(0, 60, 20):
            store.produce(topic, 0, start, start + 20)
        read_by = reader(store, subscribe=topic, failOnDataLoss=fail)
        [part] = read_by.partitions()
        store.post(f"/topics/{topic}/partitions/0/delete-records", before_offset=45)
        lost = "offsets 0 to 44 were removed, .*the log starts at 45"
        if fail == "true":
            with pytest.raises(DataLossError, match=lost):
                list(read_by.read(part))
            continue
        with caplog.at_level(logging.WARNING):
            assert [o for batch in read_by.read(part) for o in batch.column("offset").to_pylist()] == [*range(45, 60)]
        assert [bool(re.search(lost, r.message)) for r in caplog.records] == [True]


def test_a_topic_that_is_deleted_before_its_read_is_a_loss(store, caplog):
    for fail in ("true", "false"):
        topic = store.create(f"source-deleted-{fail}")
        store.produce(topic, 0, 0, 20)
        store.roll(topic)
        store.produce(topic, 0, 20, 30)
        read_by = reader(store, subscribe=topic, failOnDataLoss=fail)
        parts = read_by.partitions()
        store.delete(topic)
        for part in parts:
            lost = f"topic {topic}, partition 0: a read up to offset {part.end} is gone with its topic"
            if fail == "true":
                with pytest.raises(DataLossError, match=lost):
                    list(read_by.read(part))
            else:
                assert list(read_by.read(part)) == []
                assert lost in caplog.text
        assert [bool(part.files) for part in parts] == [True, False]


def test_a_task_asks_a_missing_store_until_its_timeout(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("gone") / "data", port=free_port()) as server:
        gone = Store(server)
        gone.produce(gone.create("source-gone"), 0, 0, 5)
        hurried = reader(gone, subscribe="source-gone", kafkaConsumer__pollTimeoutMs="1000")
        (part,) = hurried.partitions()
        gone.http.close()
    with pytest.raises(TailReadError, match="gave no answer in 1 s"):
        list(hurried.read(part))


def test_the_port_of_another_program_gets_a_clear_error(store, filled):
    hurried = {"subscribe": filled, "fetchOffset__numRetries": "2", "fetchOffset__retryIntervalMs": "100"}
    port = "names the HTTP port of a store .*not a listener of Kafka"
    with pytest.raises(StoreUnreachableError, match=rf"No store answers at http://127.0.0.1:\d+ .*{port}"):
        read(reader(store, **hurried, bootstrap__servers=f"127.0.0.1:{free_port()}"))
    # A Kafka broker reads "GET " as a length that is too large, and closes the connection.
    answers = {b"": NetworkError, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]": LogStoreError}
    for answer, error in answers.items():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=_answer, args=(listener, answer), daemon=True).start()
            with pytest.raises(error, match=port):
                read(reader(store, **hurried, bootstrap__servers=f"127.0.0.1:{listener.getsockname()[1]}"))


def _answer(listener: socket.socket, answer: bytes) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.recv(65536)
            connection.sendall(answer)


@pytest.mark.long
def test_spark_reads_the_columns_of_its_kafka_source(spark, store, filled):
    spark.dataSource.register(LogStoreSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")

    def load(**options):
        needed = {"kafka.bootstrap.servers": store.url, "subscribe": filled}
        return spark.read.format("logstore").options(**(needed | options)).load()

    assert load().schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    appended = "source-append-time"
    configs = [{"name": "message.timestamp.type", "value": "LogAppendTime"}]
    store.post(store.clusters(), topic_name=appended, partitions_count=1, configs=configs)
    store.produce(appended, 0, 0, 12)
    frame = load(subscribe=f"{filled},{appended}", INCLUDEHEADERS="true")
    rows = frame.selectExpr("*", "unix_micros(timestamp) us").collect()
    assert sorted((r.topic, r.partition, r.offset) for r in rows) == sorted(
        rows_of(appended, p0=(0, 12)) + rows_of(filled, p0=(0, 100), p1=(0, 30))
    )
    for r in rows:
        n = r.offset
        assert r.key == (None if n % 7 == 0 else f"k{n}".encode())
        assert r.value == (None if n % 11 == 0 else str(n).encode())
        assert r.headers == ([("h", str(n).encode()), ("n", None)] if n % 5 == 0 else None)
        assert r.timestampType == (1 if r.topic == appended else 0)
        assert (r.us == (EPOCH_MS + n) * 1000) == (r.topic == filled)
    # Reads of fewer columns and records include sealed records and those of the tail.
    few = load(columns="headers,OFFSET", startingOffsets=by_partition(filled, 50, 30, 0))
    assert few.columns == ["headers", "offset"]
    assert sorted(r.offset for r in few.where("headers IS NOT NULL").collect()) == [*range(50, 100, 5)]
    assert load(columns="partition").groupBy("partition").count().sort("partition").collect() == [(0, 100), (1, 30)]
    # Filters are pushed down: there is one task, for the tail, and Spark filters the rest afterwards.
    one = load(pushFilters="true").where(
        f"partition = 0 and offset >= 70 and timestamp < timestamp_millis({EPOCH_MS + 75})"
    )
    assert one.rdd.getNumPartitions() == 1
    assert sorted(r.offset for r in one.collect()) == list(range(70, 75))
    # Without the option a DataFrame may be used in any number of queries.
    whole = load()
    assert whole.where("offset < 10").count() == 20
    assert whole.count() == 130
    # Errors that do not depend on the topic are raised when the frame is made.
    with pytest.raises(AnalysisException, match=r"InvalidRequestError: minPartitions must be positive: .*got '0'"):
        load(minPartitions="0")
    with pytest.raises(
        AnalysisException, match="The source has no option 'startingoffset': did you mean startingOffsets"
    ):
        load(startingOffset="latest")
    custom = spark.read.format("logstore").schema("offset bigint, value string").option("subscribe", filled)
    with pytest.raises(AnalysisException, match="The source has a fixed schema and cannot be set with a custom one"):
        custom.option("bootstrap.servers", store.url).load().collect()
    latest = load(startingOffsets="latest")
    with pytest.raises(AnalysisException, match="starting offset can't be latest for batch queries"):
        latest.collect()
