"""Vacuum deletes files that left the table, and no file that may still come into it."""

import json
import os
import time

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from compaction_jobs import vacuum
from compaction_jobs.jobs import run_job, topics_of
from compaction_jobs.topics import JobTopic
from logstore.delta.schema import removals_kept_ms
from logstore.delta.topic_table import TopicTable
from logstore.segments.reader import segment_from_file
from logstore.segments.writer import SegmentWriter
from logstore.table_files import open_table
from logstore.table_root import open_root
from tests.support.job_context import job_context
from tests.support.keyed_topics import KeyedTopic, Record, batch
from tests.support.table_paths import path_of
from tests.support.topics import HookedFileSystem, rewrite_files

DAY_S = 86_400


def vacuumed(topic: KeyedTopic, *, dry_run: bool = False, full: bool = False, later_s: float = 1):
    with job_context(time.time_ns() // 1_000_000 + round(later_s * 1000), dry_run=dry_run, full=full) as context:
        (report,) = run_job("vacuum", topics_of("vacuum", open_root(topic.data), [], {}), context).topics
        assert context.spark._session is None
    assert report.error is None, report.error
    return report


def removed_file(topic: KeyedTopic) -> str:
    """Return the file of the first of two rolled segments, which has left the table."""
    for _ in range(2):
        topic.roll({0: [Record(b"k", b"v", 0)] * 3})
    path = topic.table.snapshot().segments(0)[0].path
    end = topic.table.snapshot().segments(0)[0].max_offset + 1
    rewrite_files(topic.table, 0, [path], [], data_change=True, log_start=end)
    return path


def orphan(topic: KeyedTopic, age_s: float = 0, base: int = 50) -> str:
    """Write a finished file that no commit names, as an open roll or a killed job leaves it."""
    with SegmentWriter(open_table(topic.table.files.uri), 0, base, base + 1, 1) as writer:
        writer.write(batch(base, [Record(b"k", b"v", 0)]))
        path = writer.finish().path
    return aged(topic, path, age_s)


def foreign(topic: KeyedTopic, age_s: float) -> str:
    """Write a file of another writer that no commit names."""
    path = f"partition=0/part-{age_s}.snappy.parquet"
    (path_of(topic.table) / path).write_bytes(b"PAR1")
    return aged(topic, path, age_s)


def aged(topic: KeyedTopic, path: str, age_s: float) -> str:
    modified = time.time() - age_s
    os.utime(path_of(topic.table) / path, (modified, modified))
    return path


def forget_removals(topic: KeyedTopic) -> None:
    """Checkpoint the table without its removals, as if they were old, and clean the log up."""
    log = path_of(topic.table) / "_delta_log"
    version = topic.table.snapshot().version
    DeltaTable(str(path_of(topic.table))).create_checkpoint()
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    rows = pq.read_table(checkpoint)
    pq.write_table(rows.filter(rows.column("remove").is_null()), checkpoint)
    (log / "_last_checkpoint").unlink()
    for number in range(version):
        (log / f"{number:020d}.json").unlink()


def on_disk(topic: KeyedTopic) -> set[str]:
    return {path.relative_to(path_of(topic.table)).as_posix() for path in path_of(topic.table).glob("*/*.parquet")}


def test_files_that_left_the_table_long_enough_ago_are_deleted(tmp_path):
    topic = KeyedTopic.create(tmp_path, "events")
    removed, unnamed = removed_file(topic), orphan(topic)
    everything, version = on_disk(topic), topic.table.snapshot().version
    assert vacuumed(topic).deleted_files == 0, "readers of older snapshots have 7 days"
    topic.table.alter_config({"file.delete.delay.ms": "0"})
    would = vacuumed(topic, dry_run=True)
    assert on_disk(topic) == everything
    size = (path_of(topic.table) / removed).stat().st_size
    report = vacuumed(topic)
    assert (would.deleted_files, would.deleted_bytes) == (report.deleted_files, report.deleted_bytes) == (1, size)
    assert on_disk(topic) == everything - {removed}
    assert unnamed in on_disk(topic)
    assert topic.table.snapshot().version == version + 1, "a vacuum makes no commits"
    assert len(topic.contents()) == 3
    assert vacuumed(topic).deleted_files == 0


def test_the_delay_is_kept_to_the_second(tmp_path):
    topic = KeyedTopic.create(tmp_path, "events", file_delete_delay_ms=DAY_S * 1000)
    removed_file(topic)
    assert vacuumed(topic, later_s=DAY_S - 60).deleted_files == 0
    (waiting,) = vacuumed(topic, later_s=DAY_S - 60).waiting
    assert (waiting.reason, waiting.due_ms) == ("young", pytest.approx((time.time() + DAY_S) * 1000, abs=60_000))
    assert vacuumed(topic, later_s=DAY_S).deleted_files == 1


def test_a_file_that_came_back_into_the_table_stays(tmp_path):
    """Restore the file: the log has its removal and a later add."""
    topic = KeyedTopic.create(tmp_path, "events", file_delete_delay_ms=0)
    removed = removed_file(topic)
    DeltaTable(str(path_of(topic.table))).restore(topic.table.snapshot().version - 1)
    assert removed in topic.table.snapshot().paths
    report = vacuumed(topic)
    assert (report.deleted_files, [w.reason for w in report.waiting]) == (0, ["empty"])
    assert removed in on_disk(topic)


def test_files_whose_removal_the_log_forgot_go_by_their_age(tmp_path):
    topic = KeyedTopic.create(tmp_path, "events", file_delete_delay_ms=0)
    removed = removed_file(topic)
    forget_removals(topic)
    assert not topic.table.snapshot().log.has_removals
    report = vacuumed(topic)
    assert (report.deleted_files, [w.reason for w in report.waiting]) == (0, ["unnamed"])
    assert report.waiting[0].due_ms == pytest.approx((time.time() + 7 * DAY_S) * 1000, abs=60_000)
    aged(topic, removed, 8 * DAY_S)
    assert vacuumed(topic).deleted_files == 1
    assert removed not in on_disk(topic)
    assert len(topic.contents()) == 3


def test_old_orphans_go_unless_the_table_lacks_their_offsets(tmp_path):
    """Delete orphans of jobs always, and those of other writers with ``--full``."""
    topic = KeyedTopic.create(tmp_path, "events", file_delete_delay_ms=0)
    topic.roll({0: [Record(b"k", b"v", 0)] * 3})
    young, old = orphan(topic, 6 * DAY_S, base=1), orphan(topic, 8 * DAY_S, base=1)
    beyond, others = orphan(topic, 900 * DAY_S, base=3), foreign(topic, 8 * DAY_S)
    everything = on_disk(topic)
    report = vacuumed(topic)
    assert (report.deleted_files, on_disk(topic)) == (1, everything - {old})
    assert [(w.segment, w.due_ms is None) for w in report.waiting] == [(young, False), (others, True), (beyond, True)]
    report = vacuumed(topic, full=True)
    assert (report.deleted_files, on_disk(topic)) == (1, everything - {old, others})
    assert [w.segment for w in report.waiting] == [young, beyond]


def test_files_of_the_change_data_feed_go_by_their_age(tmp_path):
    """Delete files that another writer made, and that no version's list of files has."""
    topic = KeyedTopic.create(tmp_path, "events", file_delete_delay_ms=0)
    topic.roll({0: [Record(b"k", b"v", 0)] * 3})
    table = DeltaTable(str(path_of(topic.table)))
    table.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    for offset in (0, 1):
        table.delete(f'"offset" = {offset}')
    young, old = sorted(path_of(topic.table).glob("_change_data/*/*.parquet"))
    aged(topic, old.relative_to(path_of(topic.table)).as_posix(), 8 * DAY_S)
    aged(topic, young.relative_to(path_of(topic.table)).as_posix(), 6 * DAY_S)
    (waiting,) = [one for one in vacuumed(topic).waiting if one.reason == "unnamed"]
    assert waiting.segment == young.relative_to(path_of(topic.table)).as_posix()
    assert (young.exists(), old.exists()) == (True, False)


def test_the_file_of_a_lost_commit_stays_for_the_store_to_commit_it_again(tmp_path):
    """Remove a commit without a trace, as another writer can; ``sealed`` is beyond it because of later commits."""
    topic = KeyedTopic.create(tmp_path, "events", file_delete_delay_ms=0)
    for _ in range(2):
        topic.roll({0: [Record(b"k", b"v", 0)] * 3})
    lost = topic.table.snapshot().segments(0)[0].path
    entry = path_of(topic.table) / "_delta_log" / f"{1:020d}.json"
    kept = [line for line in entry.read_text().splitlines() if "add" not in json.loads(line)]
    entry.write_text("\n".join(line for line in kept if "commitInfo" not in json.loads(line)) + "\n")
    aged(topic, lost, 900 * DAY_S)
    assert lost not in topic.table.snapshot().paths
    report = vacuumed(topic, full=True)
    assert report.deleted_files == 0
    assert report.waiting[0].message.endswith("named by no commit have offsets that the table lacks, and stay")
    assert lost in on_disk(topic)


def test_where_the_delay_is_longer_than_the_log_remembers_it_is_made_to_remember(tmp_path):
    topic = KeyedTopic.create(tmp_path, "events", file_delete_delay_ms=30 * DAY_S * 1000)
    removed_file(topic)
    assert vacuumed(topic, dry_run=True).versions == ()
    (version,) = vacuumed(topic).versions
    snapshot = topic.table.snapshot()
    assert snapshot.properties["delta.deletedFileRetentionDuration"] == "interval 31 days"
    assert (snapshot.version, removals_kept_ms(snapshot.properties)) == (version, 31 * DAY_S * 1000)
    assert vacuumed(topic, later_s=29 * DAY_S).versions == ()
    # delta-rs writes the checkpoints, and follows the property.
    DeltaTable(str(path_of(topic.table))).create_checkpoint()
    assert len(TopicTable(open_table(topic.table.files.uri)).snapshot().log.removals()) == 1
    assert vacuumed(topic, later_s=30 * DAY_S).deleted_files == 1


def test_a_vacuum_that_is_killed_is_continued_by_the_next(tmp_path):
    topic = KeyedTopic.create(tmp_path, "events", file_delete_delay_ms=0)
    for _ in range(3):
        topic.roll({0: [Record(b"k", b"v", 0)] * 3})
    gone = [file.path for file in topic.table.snapshot().segments(0)[:2]]
    rewrite_files(topic.table, 0, gone, [], data_change=True, log_start=6)
    filesystem = HookedFileSystem()
    filesystem.at("vacuum.deleted", lambda: 1 / 0)
    job = JobTopic("events", TopicTable(open_table(path_of(topic.table), filesystem)), {}, named=True)
    with job_context(time.time_ns() // 1_000_000 + 1_000) as context, pytest.raises(ZeroDivisionError):
        vacuum.run(context, job)
    assert len(on_disk(topic)) == 2
    assert vacuumed(topic).deleted_files == 1
    assert on_disk(topic) == topic.table.snapshot().paths


def test_two_vacuums_at_once_delete_a_file_once(tmp_path):
    topic = KeyedTopic.create(tmp_path, "events", file_delete_delay_ms=0)
    for _ in range(3):
        topic.roll({0: [Record(b"k", b"v", 0)] * 3})
    gone = [file.path for file in topic.table.snapshot().segments(0)[:2]]
    rewrite_files(topic.table, 0, gone, [], data_change=True, log_start=6)
    filesystem = HookedFileSystem()
    other: list[int] = []
    filesystem.at("vacuum.deleted", lambda: other.append(vacuumed(topic).deleted_files), lambda: None)
    job = JobTopic("events", TopicTable(open_table(path_of(topic.table), filesystem)), {}, named=True)
    with job_context(time.time_ns() // 1_000_000 + 1_000) as context:
        report = vacuum.run(context, job)
    assert (report.deleted_files, other) == (1, [1])
    assert on_disk(topic) == topic.table.snapshot().paths


def test_segments_that_a_restore_dropped_stay_for_the_store_and_those_of_a_delete_go(tmp_path):
    topic = KeyedTopic.create(tmp_path, "t", file_delete_delay_ms=0)
    for _ in range(3):
        topic.roll({0: [Record(b"k", b"v", 0)] * 3})
    first, *dropped = (file.path for file in topic.table.snapshot().segments(0))
    DeltaTable(path_of(topic.table)).restore(1)
    assert topic.table.snapshot().paths == {first}
    vacuumed(topic)
    assert all((path_of(topic.table) / path).exists() for path in dropped)
    topic.table.recommit([segment_from_file(topic.table.files, path) for path in dropped], removed=True)
    DeltaTable(path_of(topic.table)).delete("offset < 3")
    vacuumed(topic)
    assert not (path_of(topic.table) / first).exists()


def test_names_in_the_log_that_lead_out_of_the_table_are_passed_over(tmp_path):
    topic = KeyedTopic.create(tmp_path, "events", file_delete_delay_ms=0)
    removed_file(topic)
    outside = topic.data / "topics" / "x.parquet"
    outside.write_bytes(b"1")
    log = path_of(topic.table) / "_delta_log"
    removal = {"path": "partition=0/../../x.parquet", "deletionTimestamp": 1, "dataChange": False}
    (log / f"{topic.table.snapshot().version + 1:020d}.json").write_text(json.dumps({"remove": removal}) + "\n")
    assert vacuumed(topic).deleted_files == 1
    assert outside.exists()
