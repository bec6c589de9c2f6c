"""Key compaction by Spark: compared with a model, under streams, and on the store's own topic."""

import json
import random
from uuid import UUID

import pytest

from compaction_jobs.jobs import run_job, topics_of
from logstore.records.offset_record import OFFSETS_TOPIC, OffsetCommit, OffsetKey, encode_offset_records
from logstore.table_root import open_root
from tests.support.job_context import job_context
from tests.support.keyed_topics import KeyedTopic, Record
from tests.support.table_paths import path_of

pytestmark = pytest.mark.spark

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
LAG_MS = 3_600_000


def compacted(topic: KeyedTopic, now_ms: int = NOW_MS):
    with job_context(now_ms, here_bytes_max=0) as context:
        (report,) = run_job("compact", topics_of("compact", open_root(topic.data), [topic.name], {}), context).topics
        assert context.spark._session is not None
    assert report.error is None
    return report


class Model:
    """The expected partition: its records by offset, and when each was first compacted."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        self.end = 0
        self.first_cleaned: dict[int, int] = {}

    def append(self, records: list[Record]) -> None:
        self.records |= dict(enumerate(records, self.end))
        self.end += len(records)

    def compact(self, now_ms: int, clean_point: int) -> None:
        below = {o: record for o, record in self.records.items() if o < clean_point}
        for offset in below:
            self.first_cleaned.setdefault(offset, now_ms)
        latest = {record.key: o for o, record in below.items() if record.key is not None}
        for offset, record in below.items():
            expired = record.value is None and now_ms - self.first_cleaned[offset] >= DAY_MS
            if latest.get(record.key) != offset or expired:
                del self.records[offset]


def test_rounds_of_random_history_are_the_models(spark, tmp_path):
    """Compact three partitions in two rounds a day apart; in the last, the newest segment is too young to compact."""
    rng = random.Random(4)
    topic = KeyedTopic.create(
        tmp_path,
        "users",
        3,
        cleanup_policy="compact",
        delete_retention_ms=DAY_MS,
        min_compaction_lag_ms=LAG_MS,
        min_cleanable_dirty_ratio=0.1,
        segment_bytes=2_000,
    )
    models = {partition: Model() for partition in range(3)}
    now = NOW_MS
    for young in (False, True):
        clean_points = {}
        for segment in range(6):
            age = LAG_MS // 2 if young and segment == 5 else 2 * LAG_MS
            rolled = {}
            for partition, model in models.items():
                rolled[partition] = [
                    Record(
                        rng.choice([None, b"", *(f"{n}".encode() for n in range(30))]),
                        rng.choice([None, rng.randbytes(40)]),
                        now - age,
                    )
                    for _ in range(rng.randint(1, 40))
                ]
                if segment == 5:
                    clean_points[partition] = model.end
                model.append(rolled[partition])
            topic.roll(rolled)
        before = {p: topic.contents(p) for p in models}
        report = compacted(topic, now)
        for partition, model in models.items():
            model.compact(now, clean_points[partition] if young else model.end)
            contents = topic.contents(partition)
            assert contents == model.records
            assert contents.items() <= before[partition].items()
            assert topic.table.snapshot().partitions[partition].cleaned == (
                clean_points[partition] if young else model.end
            )
        assert report.after.records == sum(len(model.records) for model in models.values())
        assert len(report.versions) == 1
        now += 25 * LAG_MS
    actions = [json.loads(line) for line in topic.log_entry(report.versions[0])]
    assert {a[kind]["dataChange"] for a in actions for kind in ("add", "remove") if kind in a} == {False}
    plain = spark.read.format("delta").load(str(path_of(topic.table)))
    assert plain.count() == report.after.records


@pytest.mark.long
def test_a_stream_notices_no_compaction(spark, tmp_path):
    """Read each record once, whatever happens to the files; retention needs ignoreDeletes."""
    topic = KeyedTopic.create(tmp_path, "users", cleanup_policy="compact,delete")
    seen = []

    def read() -> None:
        stream = spark.readStream.format("delta").option("ignoreDeletes", "true").load(str(path_of(topic.table)))
        query = (
            stream.select("offset")
            .writeStream.foreachBatch(lambda frame, _: seen.extend(row.offset for row in frame.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    topic.roll({0: [Record(b"a", b"1", NOW_MS)] * 10})
    topic.roll({0: [Record(b"b", b"1", NOW_MS)] * 10})
    read()
    compacted(topic)
    topic.roll({0: [Record(b"a", b"2", NOW_MS)] * 5})
    topic.table.alter_config({"retention.bytes": "0"})
    with job_context(NOW_MS) as context:
        assert not run_job("retention", topics_of("retention", open_root(tmp_path), [], {}), context).failed
    topic.roll({0: [Record(b"c", b"2", NOW_MS)]})
    read()
    assert seen == [*range(20), *range(20, 25), 25]


def test_the_topic_of_group_offsets_keeps_its_columns(spark, tmp_path):
    topic = KeyedTopic.create(tmp_path, OFFSETS_TOPIC, cleanup_policy="compact")
    for offset in (1, 5, 9):
        commits = [
            (
                OffsetKey("g", "events", partition),
                OffsetCommit(offset + partition, 1, "", -1, str(UUID(int=7)), NOW_MS)
                if (offset, partition) != (9, 2)
                else None,
            )
            for partition in range(3)
        ]
        rows = encode_offset_records(commits).to_pylist()
        topic.roll({0: [Record(row["key"], row["value"], NOW_MS) for row in rows]})
    report = compacted(topic)
    assert (report.before.records, report.after.records) == (9, 3)
    columns = ["group", "topic", "topic_partition", "committed_offset", "generation"]
    rows = spark.read.format("delta").load(str(path_of(topic.table))).orderBy("offset").select(*columns).collect()
    assert [tuple(row) for row in rows] == [
        ("g", "events", 0, 9, -1),
        ("g", "events", 1, 10, -1),
        ("g", "events", 2, None, None),
    ]
