"""The sink writes to a real store: what it accepts and refuses, and what a retry stores.

Tasks of these tests fail for real, in a function that Spark runs before the writer; ``test_sink_killed`` has retries by
Spark itself.
"""

import time
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException

from benchmarks.free_port import free_port
from logstore.spark.sink.batch_writer import BatchWriter
from logstore.spark.sink.stream_writer import StreamWriter
from logstore.spark.source.data_source import LogStoreSource
from tests.support.eventually import eventually
from tests.support.server_process import ServerProcess
from tests.support.stored_records import stored_records

pytestmark = pytest.mark.spark

#: Requests are this small so that a task of few rows makes several of them.
SMALL = {"kafka.max.request.size": "20000"}


class UncommittedSource(LogStoreSource):
    """Ends a query between the writes of its tasks and the commit of their batch."""

    @classmethod
    def name(cls):
        return "uncommitted"

    def streamWriter(self, schema, overwrite):  # noqa: N802
        class Writer(StreamWriter):
            def commit(self, messages, batchId):  # noqa: N803
                raise RuntimeError(f"ended before the commit of batch {batchId}")

        return Writer(schema, self.options, overwrite=overwrite)


@pytest.fixture(autouse=True)
def registered(spark):
    spark.dataSource.register(LogStoreSource)
    spark.dataSource.register(UncommittedSource)


def write(frame, store, topic=None, **options):
    writer = frame.write.format("logstore").mode("append").option("bootstrap.servers", store.url).options(**options)
    (writer if topic is None else writer.option("topic", topic)).save()


def values(store, topic) -> list[bytes | None]:
    return sorted(record.value for records in stored_records(store.url, topic).values() for record in records)


@pytest.mark.long
def test_a_batch_has_all_fields_of_records_in_the_partitions_that_they_name(spark, store):
    one, other = store.create("sink-one", 3), store.create("sink-other", 2)
    rows = spark.createDataFrame(
        [
            (one, "k", b"a", 2, [("h", b"1"), ("n", None)], 1_700_000_000, 5),
            (one, None, None, None, None, None, 6),
            (one, "", b"", 0, [], None, 7),
            (other, "alice", b"b", None, None, None, 8),
        ],
        "topic string, key string, value binary, partition int, headers array<struct<key: string, value: binary>>, "
        "seconds bigint, offset bigint",
    ).selectExpr("*", "timestamp_seconds(seconds) AS timestamp")
    before_ms = int(time.time() * 1000)
    write(rows.coalesce(1), store, includeHeaders="true")
    found = stored_records(store.url, one)
    (named,) = [record for record in found[2] if record.key]
    assert named[2:] == (1_700_000_000_000, b"k", b"a", [("h", b"1"), ("n", None)])
    assert [record[3:] for record in found[0] if record.key == b""] == [(b"", b"", [])]
    (empty,) = [record for records in found.values() for record in records if record.key is None]
    assert empty[3:] == (None, None, None)
    assert empty.timestamp_ms >= before_ms
    # Kafka's murmur2 gives alice the same partition as the store does over HTTP.
    place = store.post(
        f"/topics/{other}",
        headers={"Content-Type": "application/vnd.kafka.binary.v2+json"},
        records=[{"key": "YWxpY2U=", "value": None}],
    )["offsets"][0]["partition"]
    assert [record.key for record in stored_records(store.url, other)[place]] == [b"alice", b"alice"]


@pytest.mark.long
def test_a_try_that_failed_in_the_middle_adds_nothing_twice_and_other_rows_under_its_keys_fail(spark, store):
    topic, url = store.create("sink-again", 2), store.url
    again = {**SMALL, "txnAppId": "report", "txnVersion": "7"}

    def rows(text="id", *, failing=False):
        def pass_on(batches):
            for batch in batches:
                if failing and batch.column(0)[0].as_py() >= 700:
                    eventually(lambda: stored_records(url, topic), "nothing was stored before the failure")
                    raise ValueError("in the middle")
                yield batch

        # The values are long: Spark forwards them in buffers of 64 KiB.
        numbered = spark.range(0, 1000, 1, 2).mapInArrow(pass_on, "id bigint")
        return numbered.selectExpr(f"rpad(concat({text}), 1000, '.') AS value")

    everything = sorted(f"{n}".ljust(1000, ".").encode() for n in range(1000))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    try:
        with pytest.raises(PySparkException, match="in the middle"):
            write(rows(failing=True), store, topic, **again)
        first = values(store, topic)
        assert 0 < len(first) < 1000
        assert set(first) < set(everything)
        # A task that ended early has sent only full requests, of 19 of these rows, and so will a retry.
        of_failed = [value for value in first if 500 <= int(value.rstrip(b".")) < 1000]
        assert len(of_failed) % 19 == 0
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    # The same rows come in batches of another size.
    write(rows(), store, topic, **again)
    assert values(store, topic) == everything
    write(rows(), store, topic, **again)
    with pytest.raises(PySparkException, match="An earlier try of this task wrote other rows to topic 'sink-again'"):
        write(rows("'x', id"), store, topic, **again)
    assert values(store, topic) == everything
    # Another write has other ids, and without idempotence the same write is stored again.
    write(rows(), store, topic, **(again | {"txnVersion": "8"}))
    write(rows(), store, topic, **again, **{"kafka.enable.idempotence": "false"})
    assert Counter(values(store, topic)) == dict.fromkeys(everything, 3)


@pytest.mark.long
def test_a_stream_that_ends_before_a_commit_repeats_the_batch_and_adds_nothing_twice(spark, store, tmp_path):
    topic = store.create("sink-stream", 2)
    source = tmp_path / "in"
    source.mkdir()

    def add(file, start, end):
        (source / f"{file}.txt").write_text("".join(f"{n}\n" for n in range(start, end)))

    def run(form):
        frame = spark.readStream.format("text").load(str(source))
        options = {"bootstrap.servers": store.url, "topic": topic, "checkpointLocation": str(tmp_path / "cp"), **SMALL}
        query = frame.writeStream.format(form).options(**options).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    add("a", 0, 300)
    run("logstore")
    add("b", 300, 700)
    for _ in range(2):
        with pytest.raises(PySparkException, match="ended before the commit of batch 1"):
            run("uncommitted")
        assert values(store, topic) == sorted(b"%d" % n for n in range(700))
    add("c", 700, 800)
    run("logstore")
    assert values(store, topic) == sorted(b"%d" % n for n in range(800))
    commits = sorted(int(path.name) for path in (tmp_path / "cp" / "commits").iterdir() if path.name.isdecimal())
    assert commits == [0, 1, 2]


def test_mistakes_are_reported_at_once_and_by_name(spark, store):
    frame = spark.range(3).selectExpr("cast(id as string) AS value", "id AS key")
    for change, line in [
        (lambda writer: writer.mode("append"), "key attribute unsupported type bigint: it must be string or binary"),
        (
            lambda writer: writer.mode("append").option("kafka.acks", "2"),
            "kafka.acks is all or -1 or 1, got '2'",
        ),
        (lambda writer: writer.mode("overwrite"), "Save mode Overwrite not allowed for logstore"),
        # Spark refuses these for every Python data source.
        (lambda writer: writer.mode("ignore"), 'cannot be written in the "Ignore" mode'),
        (lambda writer: writer, 'cannot be written in the "ErrorIfExists" mode'),
    ]:
        writer = frame.write.format("logstore").option("bootstrap.servers", store.url).option("topic", "sink-wrong")
        with pytest.raises(AnalysisException) as raised:
            change(writer).save()
        assert line in str(raised.value)
    good = frame.select("value")
    with pytest.raises(PySparkException, match=r"UnknownTopicError: .*sink-missing"):
        write(good, store, "sink-missing")
    with pytest.raises(PySparkException, match="null topic present in the data"):
        write(good.selectExpr("value", "cast(null as string) AS topic"), store)
    nowhere = {"topic": "t", "kafka.bootstrap.servers": f"127.0.0.1:{free_port()}", "kafka.delivery.timeout.ms": "500"}
    began = time.monotonic()
    with pytest.raises(
        PySparkException, match=r"No store answers at .*bootstrap.servers names the HTTP port of a store"
    ):
        good.write.format("logstore").mode("append").options(**nowhere).save()
    assert time.monotonic() - began < 60


def test_a_store_that_creates_topics_creates_them_and_one_that_goes_away_is_reported_in_time(spark, tmp_path):
    with ServerProcess(
        tmp_path / "data", port=free_port(), environment={"LOGSTORE_AUTO_CREATE_TOPICS_ENABLE": "true"}
    ) as server:
        frame = spark.range(0, 4, 1, 1).selectExpr("cast(id as string) AS value")
        write(frame, server, "made")
        assert values(server, "made") == [b"0", b"1", b"2", b"3"]
        options = {"bootstrap.servers": server.url, "topic": "made", "kafka.delivery.timeout.ms": "1000"}
        planned = BatchWriter(frame.schema, options, overwrite=False)
        server.stop()

        def tried(_batches):
            rows = pa.record_batch({"value": ["late"]})
            try:
                planned.write(iter([rows]))
            except Exception as error:  # noqa: BLE001 - the test shows whatever it is
                yield pa.record_batch({"line": [f"{type(error).__name__}: {error}"]})

        began = time.monotonic()
        (told,) = spark.range(0, 1, 1, 1).mapInArrow(tried, "line string").collect()
        assert told.line.startswith("StoreUnreachableError: No store answers at")
        assert time.monotonic() - began < 60
