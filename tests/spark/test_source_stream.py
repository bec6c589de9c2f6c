"""Streaming queries of format("logstore") on a real store: each record once, restarts, new and deleted topics, lag."""

import json

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from logstore.client.admin import Admin
from logstore.errors import InvalidRequestError, UnknownGroupError
from logstore.spark.lag import records_behind
from logstore.spark.source.data_source import LogStoreSource
from logstore.spark.source.options import parse_read_options
from logstore.spark.source.stream_reader import StreamReader
from tests.spark.store import EPOCH_MS
from tests.support import foreign_writers as others
from tests.support.eventually import eventually

pytestmark = pytest.mark.spark

NOW = {"availableNow": True}


@pytest.fixture(scope="module", autouse=True)
def registered(spark):
    spark.dataSource.register(LogStoreSource)


@pytest.fixture
def admin(store):
    with Admin(store.url) as admin:
        yield admin


class Query:
    """A streaming query that keeps the places of its records by batch, and can be run again."""

    def __init__(self, spark, store, checkpoint, **options):
        self.spark = spark
        self.checkpoint = str(checkpoint)
        self.options = {"bootstrap.servers": store.url, "startingOffsets": "earliest", **options}
        self.batches: dict[int, list[tuple[str, int, int]]] = {}

    def start(self, **trigger):
        def keep(frame, batch_id):
            rows = frame.select("topic", "partition", "offset", "value").collect()
            assert all(row.value is None or int(bytes(row.value)) == row.offset for row in rows)
            self.batches[batch_id] = sorted((row.topic, row.partition, row.offset) for row in rows)

        source = self.spark.readStream.format("logstore").options(**self.options).load()
        write = source.writeStream.foreachBatch(keep).option("checkpointLocation", self.checkpoint)
        return write.trigger(**trigger).start()

    def run(self, **trigger):
        """Run to the end; return the query, and the places that it has read in this run."""
        self.batches = {}
        query = self.start(**(trigger or NOW))
        query.awaitTermination()
        return query, self.places()

    def places(self):
        return sorted(place for batch in list(self.batches.values()) for place in batch)


def places(topic, *partitions: range):
    return [(topic, number, offset) for number, part in enumerate(partitions) for offset in part]


def committed(admin, group):
    try:
        return {(o.topic, o.partition): o.offset for o in admin.group_offsets(group)}
    except UnknownGroupError:
        return {}


def test_a_query_reads_each_record_once_and_shows_its_progress_and_its_lag(spark, store, admin, tmp_path):
    topic = store.create("stream-once", 2)
    store.produce(topic, 0, 0, 60)
    store.roll(topic)
    store.produce(topic, 0, 60, 80)
    store.produce(topic, 1, 0, 40)
    query = Query(
        spark, store, tmp_path, subscribe=topic, group="spark", maxOffsetsPerTrigger=60, minOffsetsPerTrigger=50
    )
    run, read = query.run()
    assert read == places(topic, range(80), range(40))
    # The limit is shared in proportion, and the rest is read although it is less than the minimum.
    assert [len(batch) for batch in query.batches.values()] == [60, 60]
    assert query.batches[0] == places(topic, range(40), range(20))
    ids = {"topic_ids": {topic: admin.describe_topic(topic).topic_id}}
    [source] = run.lastProgress.sources
    start, end, latest = (json.loads(text) for text in (source.startOffset, source.endOffset, source.latestOffset))
    assert start == {topic: {"0": 40, "1": 20}, **ids, "initial offset": {topic: {"0": 0, "1": 0}, **ids}}
    assert end == latest == {topic: {"0": 80, "1": 40}, **ids}
    first, last = run.recentProgress[0], run.lastProgress
    assert records_behind(first).by_topic == {topic: {0: 40, 1: 20}}
    assert records_behind(run).total == records_behind(last).total == records_behind(last.json).total == 0
    # The last batch is committed as well.
    assert committed(admin, "spark") == {(topic, 0): 80, (topic, 1): 40}
    assert admin.group_lag("spark").total_lag == 0

    # A restart continues where the query was, takes the new partition, and with Trigger.Once reads everything.
    admin.add_partitions(topic, 3)
    store.produce(topic, 0, 80, 150)
    store.produce(topic, 2, 0, 5)
    admin.delete_group("spark")
    run, read = query.run(once=True)
    assert read == places(topic, range(80, 150), range(0), range(5))
    assert list(query.batches) == [2]
    # There are no new records, so there is no batch.
    assert query.run()[1] == []
    assert not query.batches
    assert committed(admin, "spark") == {(topic, 0): 150, (topic, 1): 40, (topic, 2): 5}


def test_a_running_query_takes_new_topics_of_its_pattern_and_outlives_the_store(spark, store, admin, tmp_path):
    store.create("stream-pattern-1")
    store.produce("stream-pattern-1", 0, 0, 5)
    query = Query(
        spark, store, tmp_path, subscribePattern="stream-pattern-.", startingOffsets="latest", group="pattern"
    )
    run = query.start(processingTime="200 milliseconds")
    # Before its first batch a query has no records to be behind.
    eventually(lambda: run.lastProgress)
    store.produce("stream-pattern-1", 0, 5, 9)
    store.create("stream-pattern-2")
    store.produce("stream-pattern-2", 0, 0, 7)
    expected = [("stream-pattern-1", 0, n) for n in range(5, 9)] + places("stream-pattern-2", range(7))
    eventually(lambda: query.places() == expected, "the new records")
    store.server.kill()
    store.server.start()
    store.produce("stream-pattern-1", 0, 9, 12)
    expected = [("stream-pattern-1", 0, n) for n in range(5, 12)] + places("stream-pattern-2", range(7))
    eventually(lambda: query.places() == expected, "the records after the restart of the store")
    eventually(lambda: committed(admin, "pattern").get(("stream-pattern-1", 0)) == 12)
    run.stop()
    assert run.exception() is None


@pytest.mark.long
def test_a_first_batch_that_failed_is_repeated_as_it_was(spark, store, tmp_path):
    topic = store.create("stream-first")
    store.produce(topic, 0, 0, 5)
    query = Query(spark, store, tmp_path, subscribe=topic, startingOffsets="latest")
    failing = query.start(processingTime="1 hour")
    eventually(lambda: failing.lastProgress)
    failing.stop()
    # The checkpoint is now as if the driver had been killed before Spark noted that batch 0 was complete.
    (tmp_path / "commits" / "0").unlink()
    (tmp_path / "commits" / ".0.crc").unlink()
    store.produce(topic, 0, 5, 9)
    assert query.run()[1] == [(topic, 0, n) for n in range(5, 9)]
    assert list(query.batches) == [0, 1]


def test_a_repeated_first_batch_begins_where_latest_was(store):
    topic = store.create("stream-latest")
    store.produce(topic, 0, 0, 5)
    options = parse_read_options({"bootstrap.servers": store.url, "subscribe": topic})
    first, restarted = StreamReader(options), StreamReader(options)
    start = first.initialOffset()
    store.produce(topic, 0, 5, 9)
    # Spark asks for the initial offset again, and logs only the end.
    assert first.initialOffset() == start
    end = json.loads(json.dumps(first.latestOffset(start, ReadAllAvailable())))
    store.produce(topic, 0, 9, 12)
    [part] = restarted.partitions(restarted.initialOffset(), end)
    assert (part.start, part.end) == (5, 9)
    after = restarted.latestOffset(end, ReadAllAvailable())
    assert after == {topic: {"0": 12}, "topic_ids": end["topic_ids"]}
    assert restarted.latestOffset(after, ReadAllAvailable()) == after
    first.stop()
    restarted.stop()


def test_a_query_that_is_behind_sees_what_another_writer_changed_meanwhile(store):
    topic = store.create("stream-behind")
    for start in range(0, 60, 20):
        store.produce(topic, 0, start, start + 20)
        store.roll(topic)
    table = store.server.data / "topics" / topic
    reader = StreamReader(
        parse_read_options({"bootstrap.servers": store.url, "subscribe": topic, "startingOffsets": "earliest"})
    )

    def batch(start):
        end = json.loads(json.dumps(reader.latestOffset(start, ReadMaxRows(10))))
        read = [b for part in reader.partitions(start, end) for b in reader.read(part)]
        return end, {r["offset"]: r["value"] for b in read for r in b.to_pylist()}

    position, found = batch(reader.initialOffset())
    assert list(found) == list(range(10))
    others.update(table, '"offset" < 20', "new")
    position, found = batch(position)
    assert found == dict.fromkeys(range(10, 20), b"new")
    others.delete(table, '"offset" >= 23')
    position, found = batch(position)
    assert list(found) == [20, 21, 22]
    for _ in range(3):
        position, found = batch(position)
        assert found == {}
    assert position[topic] == {"0": 60}
    reader.stop()


@pytest.mark.long
def test_a_first_batch_that_failed_is_repeated_although_the_topic_has_another_partition(spark, store, admin, tmp_path):
    """Repeat the batch, whether or not Spark had logged its offsets before."""
    for offsets_are_logged in (True, False):
        topic = store.create(f"stream-first-{offsets_are_logged}")
        store.produce(topic, 0, 0, 9)
        starting = json.dumps({topic: {"0": 2}})
        checkpoint = tmp_path / topic
        query = Query(spark, store, checkpoint, subscribe=topic, startingOffsets=starting)
        assert query.run()[1] == places(topic, range(2, 9))
        # The checkpoint is now as if the driver had been killed in that batch.
        for log in ("commits", "offsets")[: 1 if offsets_are_logged else 2]:
            for file in (checkpoint / log).iterdir():
                file.unlink()
        admin.add_partitions(topic, 2)
        store.produce(topic, 1, 0, 4)
        store.produce(topic, 0, 9, 12)
        assert query.run()[1] == places(topic, range(2, 12), range(4))
        repeated = places(topic, range(2, 9)) if offsets_are_logged else places(topic, range(2, 12), range(4))
        assert query.batches[0] == repeated


def test_a_wrong_start_is_reported_by_a_new_query_and_not_by_a_repeated_batch(store, admin):
    topic = store.create("stream-wrong-start")
    store.produce(topic, 0, 0, 5)
    named = {"bootstrap.servers": store.url, "subscribe": topic, "startingTimestamp": str(EPOCH_MS)}
    first = StreamReader(parse_read_options(named))
    start = first.initialOffset()
    end = json.loads(json.dumps(first.latestOffset(start, ReadAllAvailable())))
    admin.add_partitions(topic, 2)
    # The new partition has no record of that time.
    restarted = StreamReader(parse_read_options(named))
    start = restarted.initialOffset()
    [part] = restarted.partitions(start, end)
    assert (part.partition, part.start, part.end) == (0, 0, 5)
    assert restarted.latestOffset(end, ReadAllAvailable())[topic] == {"0": 5, "1": 0}
    new = StreamReader(parse_read_options(named))
    with pytest.raises(InvalidRequestError, match=f"topic-partition {topic}-1 and timestamp"):
        new.latestOffset(new.initialOffset(), ReadAllAvailable())
    for reader in (first, restarted, new):
        reader.stop()


@pytest.mark.long
def test_records_that_retention_took_and_topics_that_were_deleted_obey_fail_on_data_loss(spark, store, admin, tmp_path):
    one, other = store.create("stream-loss"), store.create("stream-loss-other")
    store.produce(one, 0, 0, 10)
    store.produce(other, 0, 0, 4)
    query = Query(spark, store, tmp_path, subscribe=f"{one},{other}")
    query.run()
    store.produce(one, 0, 10, 30)
    admin.delete_records(one, 0, 20)
    with pytest.raises(
        StreamingQueryException,
        match=rf"topic {one}, partition 0: the query is at offset 10, and the log starts at 20: offsets 10 to 19 were",
    ):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert query.run()[1] == [(one, 0, n) for n in range(20, 30)]

    query.options["failOnDataLoss"] = "true"
    store.delete(other)
    with pytest.raises(StreamingQueryException, match=f"topic {other} is gone"):
        query.run()
    store.create(other)
    store.produce(other, 0, 0, 6)
    with pytest.raises(StreamingQueryException, match=rf"topic {other} was deleted and made again .*failOnDataLoss"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert query.run()[1] == places(other, range(6))
    store.delete(other)
    store.produce(one, 0, 30, 33)
    assert query.run()[1] == [(one, 0, n) for n in range(30, 33)]
