"""A stream over a compacted topic while jobs replace and delete the files that it reads."""

import time
from itertools import pairwise

import pytest

from compaction_jobs.jobs import run_job, topics_of
from logstore.client.admin import Admin
from logstore.client.producer import Producer
from logstore.errors import UnknownGroupError
from logstore.spark.source.data_source import LogStoreSource
from logstore.table_root import open_root
from tests.support.background_load import BackgroundLoad
from tests.support.job_context import job_context

pytestmark = pytest.mark.long

PARTITIONS, KEYS, SEGMENTS, RECORDS, GROUP = 2, 200, 20, 400, "beside-jobs"
CONFIGS = {
    "cleanup.policy": "compact,delete",
    "segment.ms": 86_400_000,
    "min.cleanable.dirty.ratio": 0.01,
    "delete.retention.ms": 86_400_000,
    "merge.target.bytes": 100_000,
    "file.delete.delay.ms": 1,
}


class Load(BackgroundLoad):
    """Produces records of few keys all the time, rolls now and then, and runs one job after the other."""

    def __init__(self, store, topic: str) -> None:
        super().__init__([self._produce, self._work])
        self._store, self._topic = store, topic
        self.sent: dict[int, list[tuple[bytes, bytes | None]]] = {p: [] for p in range(PARTITIONS)}
        self.removed_records = self.deleted_files = 0

    def produce(self, producer: Producer, count: int) -> None:
        for partition, sent in self.sent.items():
            for number in range(len(sent), len(sent) + count):
                record = f"k{number * 7 % KEYS}".encode(), f"{number}".encode() if number % 9 else None
                producer.send(self._topic, record[1], key=record[0], partition=partition)
                sent.append(record)
        producer.flush()

    def _produce(self) -> None:
        with Producer(self._store.url) as producer:
            while not self._stop.wait(0.2):
                self.produce(producer, 5)

    def _work(self) -> None:
        root = open_root(self._store.server.data)
        with Admin(self._store.url) as admin:
            while not self._stop.wait(0.1):
                admin.roll(self._topic)
                for at in _committed(admin):
                    # Only records that the stream has read are deleted.
                    admin.delete_records(at.topic, at.partition, at.offset)
                for job in ("compact", "merge", "retention", "vacuum"):
                    with job_context(round(time.time() * 1000)) as context:
                        topics = topics_of(job, root, [self._topic], {})
                        [report] = run_job(job, topics, context, self._store.url).topics
                    assert report.error is None, report.error
                    self.deleted_files += report.deleted_files or 0
                    if job == "compact" and report.before and report.after:
                        self.removed_records += report.before.records - report.after.records


def _committed(admin: Admin):
    try:
        return admin.group_offsets(GROUP)
    except UnknownGroupError:
        return ()


def test_a_stream_sees_every_record_that_survives_once_and_in_order(spark, store, tmp_path):
    spark.dataSource.register(LogStoreSource)
    topic = "stream-beside-jobs"
    # Records are kept by batch, because Spark repeats a batch that was interrupted.
    batches: dict[int, list[tuple[int, int, bytes, bytes | None]]] = {}
    source = spark.readStream.format("logstore").option("bootstrap.servers", store.url).option("subscribe", topic)
    source = source.option("startingOffsets", "earliest").option("group", GROUP).option("maxOffsetsPerTrigger", 1_500)

    def keep(frame, batch_id: int) -> None:
        rows = frame.select("partition", "offset", "key", "value").sort("partition", "offset").collect()
        batches[batch_id] = [
            (row.partition, row.offset, bytes(row.key), None if row.value is None else bytes(row.value)) for row in rows
        ]

    def run(**trigger) -> None:
        stream = source.load().writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path))
        query = stream.trigger(**trigger).start()
        try:
            if trigger.get("availableNow"):
                query.awaitTermination()
                return
            # The stream reads what there was, and then continues through some more rounds of jobs.
            end = SEGMENTS * RECORDS
            until = time.monotonic() + 200
            while time.monotonic() < until and query.isActive:
                newest = max(batches, default=0)
                if min((row[1] for row in batches.get(newest, ())), default=0) > end and load.deleted_files > SEGMENTS:
                    break
                time.sleep(0.2)
        finally:
            query.stop()
        assert query.exception() is None

    load = Load(store, topic)
    with Admin(store.url) as admin, Producer(store.url) as producer:
        admin.create_topic(topic, partitions=PARTITIONS, configs=CONFIGS)
        for _ in range(SEGMENTS):
            load.produce(producer, RECORDS)
            admin.roll(topic)
    with load:
        run(processingTime="100 milliseconds")
    run(availableNow=True)

    assert load.removed_records > 0
    assert load.deleted_files > SEGMENTS
    survivors = spark.read.format("logstore").option("bootstrap.servers", store.url).option("subscribe", topic).load()
    left = {(row.partition, row.offset) for row in survivors.select("partition", "offset").collect()}
    rows = [row for batch_id in sorted(batches) for row in batches[batch_id]]
    for partition, sent in load.sent.items():
        seen = [row[1:] for row in rows if row[0] == partition]
        offsets = [offset for offset, _, _ in seen]
        assert all(before < after for before, after in pairwise(offsets)), "each once, and rising"
        assert [(key, value) for _, key, value in seen] == [sent[offset] for offset in offsets]
        assert {offset for at, offset in left if at == partition} <= set(offsets)
        last = dict(sent)
        assert {key: value for _, key, value in seen} == last
    assert len(rows) < sum(map(len, load.sent.values())), "compaction was ahead of the stream"
