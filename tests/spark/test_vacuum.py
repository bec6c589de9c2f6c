"""Vacuum deletes files that left the table, and no file that may still come into it."""

import os
import time

import pytest
from deltalake import DeltaTable

from compaction_jobs.jobs import run_job, topics_of
from logstore.segments.writer import SegmentWriter
from logstore.table_files import open_table
from logstore.table_root import open_root
from tests.support.job_context import job_context
from tests.support.keyed_topics import KeyedTopic, Record, batch
from tests.support.table_paths import path_of
from tests.support.topics import rewrite_files

pytestmark = pytest.mark.spark

DAY_S = 86_400


def vacuumed(topic: KeyedTopic, *, dry_run: bool = False, full: bool = False, needs_spark: bool = True):
    with job_context(time.time_ns() // 1_000_000 + 1_000, dry_run=dry_run, full=full) as context:
        (report,) = run_job("vacuum", topics_of("vacuum", open_root(topic.data), [], {}), context).topics
        assert (context.spark._session is not None) == needs_spark
    assert report.error is None
    return report


def removed_file(topic: KeyedTopic) -> str:
    """The file of the first of two rolled segments, which has left the table."""
    for _ in range(2):
        topic.roll({0: [Record(b"k", b"v", 0)] * 3})
    path = topic.table.snapshot().segments(0)[0].path
    end = topic.table.snapshot().segments(0)[0].max_offset + 1
    rewrite_files(topic.table, 0, [path], [], data_change=True, log_start=end)
    return path


def orphan(topic: KeyedTopic, age_s: float = 0) -> str:
    """A finished file that no commit has named: of an open roll, or of a job that was killed."""
    with SegmentWriter(open_table(topic.table.files.uri), 0, 50, 51, 1) as writer:
        writer.write(batch(50, [Record(b"k", b"v", 0)]))
        path = writer.finish().path
    modified = time.time() - age_s
    os.utime(path_of(topic.table) / path, (modified, modified))
    return path


def on_disk(topic: KeyedTopic) -> set[str]:
    return {path.relative_to(path_of(topic.table)).as_posix() for path in path_of(topic.table).glob("*/*.parquet")}


def test_files_that_left_the_table_long_enough_ago_are_deleted(spark, tmp_path):
    topic = KeyedTopic.create(tmp_path, "events")
    removed, unnamed = removed_file(topic), orphan(topic)
    everything, version = on_disk(topic), topic.table.snapshot().version
    assert vacuumed(topic, needs_spark=False).deleted_files == 0, "readers of older snapshots have 7 days"
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


def test_orphans_go_after_seven_days_also_where_the_log_no_longer_tells(spark, tmp_path):
    """Log entries are kept for a day: with none of the removals left, LITE refuses, and a full one must do."""
    topic = KeyedTopic.create(tmp_path, "events", file_delete_delay_ms=0)
    removed = removed_file(topic)
    young, old = orphan(topic, age_s=6 * DAY_S), orphan(topic, age_s=8 * DAY_S)
    version = topic.table.snapshot().version
    DeltaTable(str(path_of(topic.table))).create_checkpoint()
    for number in range(version):
        (path_of(topic.table) / "_delta_log" / f"{number:020d}.json").unlink()
    everything = on_disk(topic)
    assert vacuumed(topic).deleted_files == 1
    assert on_disk(topic) == everything - {old}, "the removal is younger than 7 days"
    assert {removed, young} <= on_disk(topic)
    oldest = orphan(topic, age_s=9 * DAY_S)
    assert vacuumed(topic, full=True).deleted_files == 1
    assert on_disk(topic) == everything - {old, oldest}
    assert spark.conf.get("spark.databricks.delta.retentionDurationCheck.enabled", None) is None
