"""Runs of key compaction beside other writers, killed and in pairs, and the files that they leave alone."""

import pytest
from deltalake import DeltaTable

from compaction_jobs import key_compaction, latest_rows
from compaction_jobs.jobs import run_job
from compaction_jobs.topics import JobTopic
from logstore.delta.clean_files import clean_digest
from logstore.delta.topic_table import RewritePart, TopicTable
from logstore.table_files import TableFiles, open_table
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.job_context import job_context
from tests.support.keyed_topics import KeyedTopic, Record
from tests.support.local_jobs import compact, compact_by_tasks, merge
from tests.support.table_paths import path_of
from tests.support.topics import HookedFileSystem, rewrite_files

NOW_MS = 1_700_000_000_000


def test_nothing_is_left_of_a_partition_of_old_tombstones(tmp_path):
    topic = KeyedTopic.create(tmp_path, "users", cleanup_policy="compact", delete_retention_ms=0)
    topic.roll({0: [Record(b"a", b"1", NOW_MS), Record(b"a", None, NOW_MS)]})
    report = compact(topic, NOW_MS)
    assert (report.after.segments, report.after.records, topic.contents()) == (1, 0, {})
    snapshot = topic.table.snapshot()
    state = snapshot.partitions[0]
    assert (state.log_start, state.sealed, state.cleaned) == (0, 2, 2)
    (left,) = snapshot.segments(0)
    assert (left.base_offset, left.end_offset, left.num_records) == (0, 2, 0)
    topic.roll({0: [Record(b"b", b"2", NOW_MS)]})
    assert list(topic.contents()) == [2]


def test_segments_of_which_nothing_is_left_go_with_a_neighbour(tmp_path):
    """Compact records without keys, aborted ranges and whole segments of old values. Those with a last value stay."""
    topic = KeyedTopic.create(tmp_path, "users", 2, cleanup_policy="compact", segment_bytes=1)
    keyless = [Record(None, bytes(500), NOW_MS)] * 5
    for first, second in (
        ([None] * 4, keyless),
        ([Record(b"a", b"1", NOW_MS)] * 3, [None] * 2),
        (keyless, keyless),
        ([Record(b"b", b"2", NOW_MS), None, Record(b"a", b"3", NOW_MS)], [None] * 5),
    ):
        topic.roll({0: first, 1: second})
    last = topic.table.snapshot().segments(0)[-1]
    report = compact(topic, NOW_MS)
    snapshot = topic.table.snapshot()
    assert {p: list(topic.contents(p)) for p in (0, 1)} == {0: [12, 14], 1: []}
    assert [(f.base_offset, f.end_offset) for f in snapshot.segments(0)] == [(0, 12), (12, 15)]
    assert snapshot.segments(0)[1] == last
    assert [(f.base_offset, f.end_offset) for f in snapshot.segments(1)] == [(0, 17)]
    assert report.after.records == 2
    assert [state.cleaned for state in snapshot.partitions.values()] == [15, 17]


def test_a_job_plans_again_when_another_job_was_faster(tmp_path):
    """Remove a planned file while Spark works, as retention does, and roll in between."""
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


def test_a_job_that_ends_before_its_commit_leaves_files_that_nobody_reads(tmp_path):
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
    compact(topic, NOW_MS)
    assert {o: r.value for o, r in topic.contents().items()} == {1: b"2"}


def test_a_job_that_dies_in_its_commit_leaves_the_table_as_before_or_as_after(tmp_path):
    """Kill a job in its commit; ``python -m tests.faults.fail_points --jobs`` does it with real processes at every
    step.
    """
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


def put(*keys: bytes, value: bytes | None = b"v") -> list[Record]:
    return [Record(key, value, NOW_MS) for key in keys]


def paths(topic: KeyedTopic) -> list[str]:
    return [file.path for file in topic.table.snapshot().segments(0)]


def test_a_file_that_loses_no_record_stays_as_it_is(tmp_path):
    """Compact twice: the clean point moves even if nothing else changes."""
    topic = KeyedTopic.create(tmp_path, "users", cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    for keys in ((b"a", b"b"), (b"c", b"d"), (b"e", b"f")):
        topic.roll({0: put(*keys)})
    before = paths(topic)
    report = compact(topic, NOW_MS)
    assert (paths(topic), report.partitions, len(report.versions)) == (before, (0,), 1)
    assert topic.table.snapshot().partitions[0].cleaned == 6
    topic.roll({0: put(b"c", b"g")})
    compact(topic, NOW_MS)
    first, second, third, fourth = paths(topic)
    assert ([first, third], list(topic.contents())) == ([before[0], before[2]], [0, 1, 3, 4, 5, 6, 7])
    topic.roll({0: put(b"h")})
    compact(topic, NOW_MS)
    assert paths(topic)[:4] == [first, second, third, fourth]


def test_the_time_of_a_tombstone_is_noted_once_and_kept_by_files_that_stay(tmp_path):
    """Rewrite the file when compaction first meets the tombstone and when its time is over, but not in between."""
    topic = KeyedTopic.create(
        tmp_path, "users", cleanup_policy="compact", min_cleanable_dirty_ratio=0, delete_retention_ms=100
    )
    topic.roll({0: put(b"a", b"b")})
    topic.roll({0: [*put(b"x", value=None), *put(b"y")]})
    compact(topic, NOW_MS)
    values, tombstones = paths(topic)
    topic.roll({0: put(b"c")})
    compact(topic, NOW_MS + 99)
    assert paths(topic)[:2] == [values, tombstones]
    assert topic.contents()[2].value is None
    topic.roll({0: put(b"d")})
    compact(topic, NOW_MS + 100)
    assert paths(topic)[0] == values
    assert paths(topic)[1] != tombstones
    assert list(topic.contents()) == [0, 1, 3, 4, 5]


def test_the_dirtiest_partitions_come_first(tmp_path, monkeypatch):
    monkeypatch.setattr(key_compaction, "_COMMIT_BYTES", 1)
    topic = KeyedTopic.create(tmp_path, "users", 3, cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    topic.roll({0: put(*[b"%d" % n for n in range(50)]), 1: put(b"a")})
    compact(topic, NOW_MS)
    topic.roll({0: put(b"1", b"2"), 1: put(b"b", b"b"), 2: put(b"c", b"c")})
    report = compact(topic, NOW_MS)
    order = []
    for version in report.versions:
        (cleaned,) = [line for line in topic.log_entry(version) if "/cleaned" in line]
        order.append(int(cleaned.split("logstore/")[1][0]))
    assert order == [2, 1, 0]


def test_the_loser_of_two_runs_says_so_and_does_nothing(tmp_path):
    topic = KeyedTopic.create(tmp_path, "users", cleanup_policy="compact")
    topic.roll({0: put(b"a", b"a")})
    version = topic.table.snapshot().version
    with topic.table.files.try_lock(".compact.lock") as held:
        assert held
        assert compact(topic, NOW_MS).busy
        assert topic.table.snapshot().version == version
        assert not compact(topic, NOW_MS, dry_run=True).busy
    report = compact(topic, NOW_MS)
    assert (report.busy, report.after.records) == (False, 1)


def test_a_run_without_the_space_that_it_needs_at_most_writes_nothing(tmp_path, monkeypatch):
    topic = KeyedTopic.create(tmp_path, "users", cleanup_policy="compact")
    topic.roll({0: put(b"a", b"a")})
    size = topic.table.snapshot().segments(0)[0].size
    assert compact(topic, NOW_MS, dry_run=True).bytes_needed_max == size
    monkeypatch.setattr(TableFiles, "free_bytes", lambda _: size + (16 << 20) - 1)
    with job_context(NOW_MS) as context:
        job = JobTopic("users", topic.table, {}, named=True)
        (report,) = run_job("compact", [job], context).topics
    assert f"up to {size:,} bytes are needed, and {size + (16 << 20) - 1:,} are free" in report.error
    assert len(list(path_of(topic.table).glob("*/*.parquet"))) == 1
    monkeypatch.setattr(TableFiles, "free_bytes", lambda _: size + (16 << 20))
    assert compact(topic, NOW_MS).after.records == 1


def test_keys_that_do_not_fit_are_left_to_spark(tmp_path, monkeypatch):
    topic = KeyedTopic.create(tmp_path, "users", 2, cleanup_policy="compact")
    topic.roll({0: put(b"a", b"a"), 1: put(*[b"%d" % n for n in range(100)])})
    monkeypatch.setattr(latest_rows, "KEY_BYTES_MAX", 1000)
    by_spark = []

    def compact_by_spark(context, job, plans, config, now_ms):
        by_spark.extend(plan.partition for plan in plans)
        return [], []

    monkeypatch.setattr(key_compaction, "compact_by_spark", compact_by_spark)
    compact(topic, NOW_MS)
    assert by_spark == [1]


def test_files_of_other_writers_are_compacted_whatever_was_clean_before(tmp_path):
    """Let an OPTIMIZE join clean and dirty segments to a file without a footer."""
    topic = KeyedTopic.create(tmp_path, "users", cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    topic.roll({0: put(b"a", b"b", b"a")})
    topic.roll({0: put(b"b", b"c")})
    compact(topic, NOW_MS)
    topic.roll({0: put(b"c", b"d", value=b"new")})
    DeltaTable(str(path_of(topic.table))).optimize.compact()
    topic.roll({0: put(b"a", value=b"new")})
    assert [file.foreign for file in topic.table.snapshot().segments(0)] == [True, False]
    before = topic.contents()
    compact(topic, NOW_MS)
    latest = {record.key: offset for offset, record in before.items()}
    assert topic.contents() == {offset: before[offset] for offset in sorted(latest.values())}
    files = topic.table.snapshot().segments(0)
    assert not any(file.foreign for file in files)
    assert (files[0].base_offset, files[-1].end_offset) == (0, 8)


@pytest.mark.parametrize("run", [compact, compact_by_tasks])
def test_older_values_go_again_that_a_restore_brought_back(tmp_path, run):
    """Restore old values below the clean point, where compaction had left each key once; both engines remove them."""
    topic = KeyedTopic.create(tmp_path, "users", cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    topic.roll({0: put(b"a", b"b")})
    topic.roll({0: put(b"a", b"c")})
    version = topic.table.snapshot().version
    run(topic, NOW_MS)
    assert list(topic.contents()) == [1, 2, 3]
    DeltaTable(str(path_of(topic.table))).restore(version)
    assert list(topic.contents()) == [0, 1, 2, 3]
    # No segment was rolled since: the restored files make the partition dirty.
    run(topic, NOW_MS)
    assert list(topic.contents()) == [1, 2, 3]
    left = paths(topic)
    merge(topic, NOW_MS)
    assert paths(topic) != left
    assert compact(topic, NOW_MS).waiting[0].reason == "clean"


def test_files_that_came_while_a_compaction_ran_are_not_clean(tmp_path):
    """Leave the clean file as it is, while a RESTORE puts older ones in its place."""
    topic = KeyedTopic.create(tmp_path, "users", cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    topic.roll({0: put(b"a", b"a")})
    topic.roll({0: put(b"x", b"x")})
    table = DeltaTable(str(path_of(topic.table)))
    older = topic.table.snapshot()
    compact(topic, NOW_MS)
    plan = topic.table.snapshot()
    part = RewritePart(0, (), cleaned=4, clean_digest=clean_digest(plan.segments(0), 4))
    table.update_incremental()
    table.restore(older.version)
    assert topic.table.commit_rewrites([part], data_change=False, operation="key-compaction").committed == (0,)
    assert list(topic.contents()) == [0, 1, 2, 3]
    compact(topic, NOW_MS)
    assert list(topic.contents()) == [1, 3]


def test_no_deleted_key_comes_back_after_a_restore(tmp_path):
    """Restore an old value and its tombstone below the clean point. The value must go first."""
    topic = KeyedTopic.create(
        tmp_path, "users", cleanup_policy="compact", min_cleanable_dirty_ratio=0, delete_retention_ms=100
    )
    topic.roll({0: put(b"x", b"y")})
    topic.roll({0: [*put(b"x", value=None), *put(b"k")]})
    table = DeltaTable(str(path_of(topic.table)))
    compact(topic, NOW_MS)
    table.update_incremental()
    table.restore(table.version() - 1)
    assert list(topic.contents()) == [0, 1, 2, 3]
    for passed in (0, 100):
        topic.roll({0: put(b"k")})
        compact(topic, NOW_MS + passed)
    assert [record.key for record in topic.contents().values()] == [b"y", b"k"]


def test_no_deleted_key_comes_back_after_a_restore_and_a_merge(tmp_path):
    """Merge compacted records with restored ones.

    No compaction has seen the restored tombstone, although one has seen other tombstones of the file.
    """
    topic = KeyedTopic.create(
        tmp_path, "users", cleanup_policy="compact", min_cleanable_dirty_ratio=0, delete_retention_ms=100
    )
    topic.roll({0: [*put(b"z", value=None), *put(b"x")]})
    compact(topic, NOW_MS)
    topic.roll({0: [*put(b"x", value=None), *put(b"y")]})
    table = DeltaTable(str(path_of(topic.table)))
    compact(topic, NOW_MS)
    table.update_incremental()
    table.restore(table.version() - 1)
    merge(topic, NOW_MS)
    assert len(topic.table.snapshot().segments(0)) == 1
    assert list(topic.contents()) == [0, 1, 2, 3]
    for passed in (200, 400, 600):
        topic.roll({0: put(b"k")})
        compact(topic, NOW_MS + passed)
    assert [record.key for record in topic.contents().values()] == [b"y", b"k"]
