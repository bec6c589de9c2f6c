"""Key compaction by Spark: against a model, beside other writers, under streams, and of the store's own topic."""

import json
import random
from uuid import UUID

import pytest

from compaction_jobs import key_compaction
from compaction_jobs.jobs import run_job, topics_of
from compaction_jobs.topics import JobTopic
from logstore.delta.topic_table import TopicTable
from logstore.records.offset_record import OFFSETS_TOPIC, OffsetCommit, OffsetKey, encode_offset_records
from logstore.table_files import open_table
from logstore.table_root import open_root
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.job_context import job_context
from tests.support.keyed_topics import KeyedTopic, Record
from tests.support.table_paths import path_of
from tests.support.topics import HookedFileSystem, rewrite_files

pytestmark = pytest.mark.spark

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
LAG_MS = 3_600_000


def compacted(topic: KeyedTopic, now_ms: int = NOW_MS):
    with job_context(now_ms) as context:
        (report,) = run_job("compact", topics_of("compact", open_root(topic.data), [topic.name], {}), context).topics
    assert report.error is None
    return report


class Model:
    """One partition: offset to record, and when each was compacted first."""

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
    """Three partitions, two rounds a day apart; in the last the newest segment is too young to be compacted."""
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


def test_nothing_is_left_of_a_partition_of_old_tombstones(spark, tmp_path):
    topic = KeyedTopic.create(tmp_path, "users", cleanup_policy="compact", delete_retention_ms=0)
    topic.roll({0: [Record(b"a", b"1", NOW_MS), Record(b"a", None, NOW_MS)]})
    report = compacted(topic)
    assert (report.after.segments, report.after.records, topic.contents()) == (1, 0, {})
    snapshot = topic.table.snapshot()
    state = snapshot.partitions[0]
    assert (state.log_start, state.sealed, state.cleaned) == (0, 2, 2)
    (left,) = snapshot.segments(0)
    assert (left.base_offset, left.end_offset, left.num_records) == (0, 2, 0)
    topic.roll({0: [Record(b"b", b"2", NOW_MS)]})
    assert list(topic.contents()) == [2]


def test_segments_of_which_nothing_is_left_go_with_a_neighbour(spark, tmp_path):
    """Records without a key, aborted ranges and whole segments of old values; a partition of such alone keeps one."""
    topic = KeyedTopic.create(tmp_path, "users", 2, cleanup_policy="compact", segment_bytes=1)
    keyless = [Record(None, bytes(500), NOW_MS)] * 5
    for first, second in (
        ([None] * 4, keyless),
        ([Record(b"a", b"1", NOW_MS)] * 3, [None] * 2),
        (keyless, keyless),
        ([Record(b"b", b"2", NOW_MS), None, Record(b"a", b"3", NOW_MS)], [None] * 5),
    ):
        topic.roll({0: first, 1: second})
    report = compacted(topic)
    snapshot = topic.table.snapshot()
    assert {p: list(topic.contents(p)) for p in (0, 1)} == {0: [12, 14], 1: []}
    assert [(f.base_offset, f.end_offset) for f in snapshot.segments(0)] == [(0, 15)]
    assert [(f.base_offset, f.end_offset) for f in snapshot.segments(1)] == [(0, 17)]
    assert report.after.records == 2
    assert [state.cleaned for state in snapshot.partitions.values()] == [15, 17]


def test_a_job_plans_again_when_another_job_was_faster(spark, tmp_path):
    """Retention takes a planned file away while Spark works; a roll comes in between, too."""
    topic = KeyedTopic.create(tmp_path, "users", 2, cleanup_policy="compact,delete")
    for value in (b"1", b"2", b"3"):
        records = [Record(b"a", value, NOW_MS), Record(value, value, NOW_MS)]
        topic.roll({0: records, 1: records})
    filesystem = HookedFileSystem()
    job = JobTopic(topic.name, TopicTable(open_table(path_of(topic.table), filesystem)), {}, named=True)

    def overtake() -> None:
        topic.roll({0: [Record(b"a", b"4", NOW_MS)]})
        first = topic.table.snapshot().segments(0)[0]
        rewrite_files(topic.table, 0, [first.path], [], data_change=True, log_start=2)

    filesystem.at("delta.opened", overtake, *[lambda: None] * 9)
    with job_context(NOW_MS) as context:
        report = key_compaction.run(context, job)
    assert (report.partitions, len(report.versions)) == ((0, 1), 2)
    assert {o: r.value for o, r in topic.contents(0).items()} == {3: b"2", 5: b"3", 6: b"4"}
    assert {o: r.value for o, r in topic.contents(1).items()} == {1: b"1", 3: b"2", 4: b"3", 5: b"3"}


def test_a_job_that_ends_before_its_commit_leaves_files_that_nobody_reads(spark, tmp_path):
    topic = KeyedTopic.create(tmp_path, "users", cleanup_policy="compact")
    topic.roll({0: [Record(b"a", b"1", NOW_MS), Record(b"a", b"2", NOW_MS)]})
    before, version = topic.contents(), topic.table.snapshot().version
    filesystem = HookedFileSystem()
    filesystem.at("delta.opened", lambda: 1 / 0)
    with job_context(NOW_MS) as context, pytest.raises(ZeroDivisionError):
        key_compaction.run(
            context, JobTopic(topic.name, TopicTable(open_table(path_of(topic.table), filesystem)), {}, named=True)
        )
    assert (topic.contents(), topic.table.snapshot().version) == (before, version)
    assert len(list(path_of(topic.table).glob("*/*.parquet"))) == 2
    compacted(topic)
    assert {o: r.value for o, r in topic.contents().items()} == {1: b"2"}


def test_a_job_that_dies_in_its_commit_leaves_the_table_as_before_or_as_after(spark, tmp_path):
    """``python -m tests.faults.fail_points --jobs`` does this with real processes, at every step."""
    topic = KeyedTopic.create(tmp_path, "users", cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    for point in ("job.written", "delta.committed"):
        topic.roll({0: [Record(b"%d" % (n % 3), b"%d" % n, NOW_MS) for n in range(10)]})
        before = topic.contents()
        filesystem = FaultyFileSystem()
        filesystem.crash_at(point)
        job = JobTopic("users", TopicTable(open_table(path_of(topic.table), filesystem)), {}, named=True)
        with job_context(NOW_MS) as context:
            (report,) = run_job("compact", [job], context).topics
        assert "the process died" in report.error
        offset_of = {record.key: offset for offset, record in before.items()}
        latest = {offset: before[offset] for offset in sorted(offset_of.values())}
        assert topic.contents() == (latest if point == "delta.committed" else before)


def test_a_stream_notices_no_compaction(spark, tmp_path):
    """Each record once, whatever happens to the files; retention asks for ignoreDeletes."""
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
                OffsetCommit(offset + partition, 1, "", -1, UUID(int=7), NOW_MS)
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
