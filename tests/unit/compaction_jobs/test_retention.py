"""Retention of whole segments, on real tables and without Spark."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from compaction_jobs import retention
from compaction_jobs.jobs import run_job, topics_of
from compaction_jobs.report import Totals
from compaction_jobs.rewriting import PlanOvertakenError
from compaction_jobs.topics import JobTopic
from logstore.delta.topic_table import TopicTable
from logstore.filesystem import FileSystem
from logstore.table_files import open_table
from logstore.table_root import open_root
from tests.support.job_context import job_context
from tests.support.keyed_topics import KeyedTopic, Record
from tests.support.server_process import ROOT
from tests.support.table_paths import path_of, read_footer
from tests.support.topics import HookedFileSystem, rewrite_files

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def aged(hours: float, count: int = 10) -> list[Record]:
    return [Record(b"k", bytes(100), NOW_MS - round(hours * HOUR_MS))] * count


def retained(topic: KeyedTopic, *, dry_run: bool = False):
    with job_context(NOW_MS, dry_run=dry_run) as context:
        (report,) = run_job("retention", topics_of("retention", open_root(topic.data), [], {}), context).topics
        assert context.spark._session is None, "whole files go without Spark"
    return report


def test_segments_that_go_whole_are_not_opened(tmp_path):
    class Opened(FileSystem):
        def __init__(self):
            super().__init__()
            self.paths = []

        def open_read(self, path):
            self.paths.append(str(path))
            return super().open_read(path)

    topic = KeyedTopic.create(tmp_path, "events", retention_bytes=1)
    for _ in range(5):
        topic.roll({0: aged(1)})
    filesystem = Opened()
    job = JobTopic("events", TopicTable(open_table(path_of(topic.table), filesystem)), {}, named=True)
    with job_context(NOW_MS) as context:
        report = retention.run(context, job)
    assert (report.before.segments, report.after.segments) == (5, 1)
    assert filesystem.paths
    assert not [path for path in filesystem.paths if "partition=" in path]


def test_old_segments_go_with_the_log_start_in_one_commit(tmp_path):
    topic = KeyedTopic.create(tmp_path, "events", 2, retention_ms=2 * HOUR_MS)
    for hours in (5, 3, 1):
        topic.roll({0: aged(hours)})
    topic.roll({1: aged(1)})
    sizes = [f.size for p in (0, 1) for f in topic.table.snapshot().segments(p)]
    report = retained(topic)
    assert (report.error, report.partitions) == (None, (0,))
    assert report.before == Totals(4, 40, sum(sizes))
    assert report.after == Totals(2, 20, sum(sizes[2:]))
    snapshot = topic.table.snapshot()
    assert report.versions == (snapshot.version,)
    assert [(s.log_start, s.sealed, s.rewrite) for s in snapshot.partitions.values()] == [(20, 30, 1), (0, 10, 0)]
    assert list(topic.contents(0)) == list(range(20, 30))
    actions = [json.loads(line) for line in topic.log_entry(snapshot.version)]
    assert [a["remove"]["dataChange"] for a in actions if "remove" in a] == [True] * 2
    assert not any("add" in action for action in actions)
    (info,) = [action["commitInfo"] for action in actions if "commitInfo" in action]
    assert json.loads(info["userMetadata"]) == {
        "operation": "retention",
        "removed_segments": 2,
        "removed_records": 20,
        "removed_bytes": sum(sizes[:2]),
        "added_segments": 0,
        "added_records": 0,
        "added_bytes": 0,
    }
    again = retained(topic)
    assert (again.versions, again.partitions, topic.table.snapshot().version) == ((), (), snapshot.version)


def test_the_last_segment_stays_without_its_records(tmp_path):
    """Keep the footer, which has the state at the end of history: the loss of a journal must not take that away."""
    topic = KeyedTopic.create(tmp_path, "events", 2, retention_ms=2 * HOUR_MS)
    topic.roll({0: aged(5)})
    topic.roll({0: aged(5), 1: aged(3)})
    last = [read_footer(path_of(topic.table) / topic.table.snapshot().segments(p)[-1].path) for p in (0, 1)]
    report = retained(topic)
    assert (report.error, report.partitions, len(report.versions)) == (None, (0, 1), 2)
    assert (report.after.segments, report.after.records) == (2, 0)
    snapshot = topic.table.snapshot()
    assert [(s.log_start, s.sealed) for s in snapshot.partitions.values()] == [(20, 20), (10, 10)]
    for partition in (0, 1):
        assert not topic.contents(partition), "all of it was old: the log starts where it is sealed"
        (left,) = snapshot.segments(partition)
        sealed = snapshot.partitions[partition].sealed
        assert (left.base_offset, left.end_offset, left.num_records) == (sealed - 10, sealed, 0)
        footer = read_footer(path_of(topic.table) / left.path)
        assert footer == replace(last[partition], operation="retention-boundary")
    again = retained(topic)
    assert (again.versions, again.partitions) == ((), ())
    # The file goes when another one has the state.
    topic.roll({0: aged(1)})
    retained(topic)
    assert [file.num_records for file in topic.table.snapshot().segments(0)] == [10]
    assert topic.table.snapshot().partitions[0].log_start == 20


def test_the_oldest_segments_go_while_enough_bytes_stay(tmp_path):
    topic = KeyedTopic.create(tmp_path, "events", retention_bytes=0)
    for _ in range(5):
        topic.roll({0: aged(1)})
    files = topic.table.snapshot().segments(0)
    topic.table.alter_config({"retention.bytes": str(sum(f.size for f in files[3:]))})
    retained(topic)
    assert topic.table.snapshot().segments(0) == files[3:]
    assert topic.table.snapshot().partitions[0].log_start == 30


def test_files_stay_on_disk_for_readers_of_older_snapshots(tmp_path):
    topic = KeyedTopic.create(tmp_path, "events", retention_ms=1)
    topic.roll({0: aged(1)})
    topic.roll({0: aged(1)})
    retained(topic)
    assert len(list(path_of(topic.table).glob("*/*.parquet"))) == 3


def test_a_dry_run_says_it_and_changes_nothing(tmp_path):
    topic = KeyedTopic.create(tmp_path, "events", retention_ms=1)
    topic.roll({0: aged(1)})
    before = sorted(tmp_path.rglob("*"))
    report = retained(topic, dry_run=True)
    assert (report.partitions, report.versions, report.after) == ((0,), (), None)
    assert sorted(tmp_path.rglob("*")) == before


def hooked(topic: KeyedTopic) -> tuple[JobTopic, HookedFileSystem]:
    filesystem = HookedFileSystem()
    return JobTopic(topic.name, TopicTable(open_table(path_of(topic.table), filesystem)), {}, named=True), filesystem


def test_a_roll_between_plan_and_commit_is_no_obstacle(tmp_path):
    topic = KeyedTopic.create(tmp_path, "events", retention_ms=2 * HOUR_MS)
    topic.roll({0: aged(5)})
    topic.roll({0: aged(1)})
    job, filesystem = hooked(topic)
    filesystem.at("delta.checked", lambda: topic.roll({0: aged(5)}), lambda: None)
    with job_context(NOW_MS) as context:
        report = retention.run(context, job)
    assert list(topic.contents()) == list(range(10, 30)), "what came later is another run's"
    assert filesystem.points.count("delta.checked") == 2, "the first commit lost its race"
    assert (report.after.segments, report.after.records) == (1, 10)


def test_another_job_on_the_same_files_makes_it_plan_again(tmp_path):
    topic = KeyedTopic.create(tmp_path, "events", 2, retention_ms=2 * HOUR_MS)
    topic.roll({0: aged(5), 1: aged(5)})
    job, filesystem = hooked(topic)

    def remove_first() -> None:
        (file,) = topic.table.snapshot().segments(0)
        rewrite_files(topic.table, 0, [file.path], [], data_change=True, log_start=10)

    filesystem.at("delta.opened", remove_first, *[lambda: None] * 9)
    with job_context(NOW_MS) as context:
        report = retention.run(context, job)
    assert report.partitions == (1,)
    assert [s.log_start for s in topic.table.snapshot().partitions.values()] == [10, 10]


def test_a_topic_deleted_meanwhile_is_passed_over(tmp_path):
    topic = KeyedTopic.create(tmp_path, "events", retention_ms=1)
    topic.roll({0: aged(5)})
    job, filesystem = hooked(topic)
    filesystem.at("delta.opened", lambda: path_of(topic.table).rename(tmp_path / "trash"))
    with job_context(NOW_MS) as context:
        report = run_job("retention", [job], context)
    assert (report.topics, report.failed) == ((), False)
    assert not path_of(topic.table).exists()


def test_a_topic_that_fails_does_not_stop_the_others(tmp_path):
    topics = [KeyedTopic.create(tmp_path, name, retention_ms=1) for name in ("a", "b", "c")]
    for topic in topics:
        topic.roll({0: aged(5)})
    topics[1].table.alter_config({"retention.ms": "soon"})
    (path_of(topics[0].table) / "_delta_log" / f"{1:020d}.json").write_text("{")
    with job_context(NOW_MS) as context:
        report = run_job("retention", topics_of("retention", open_root(tmp_path), [], {}), context)
    assert report.failed
    first, second, third = report.topics
    assert first.error
    assert "retention.ms" in second.error
    assert all("\n" not in error for error in (first.error, second.error))
    assert (third.error, third.partitions) == (None, (0,))


def test_a_plan_overtaken_for_ever_is_an_error(tmp_path):
    topic = KeyedTopic.create(tmp_path, "events", retention_ms=1)
    topic.roll({0: aged(5)})
    job, _ = hooked(topic)
    overtaken = replace(job, table=_AlwaysOvertaken(topic))
    with job_context(NOW_MS) as context, pytest.raises(PlanOvertakenError, match="run the job again"):
        retention.run(context, overtaken)


@pytest.mark.system
@pytest.mark.parametrize("point", ["delta.opened", "delta.checked", "delta.committed", "delta.synced"])
def test_killed_at_any_point_the_next_run_continues(tmp_path, point):
    topic = KeyedTopic.create(tmp_path / "data", "events", retention_ms=1)
    topic.roll({0: aged(5)})
    topic.roll({0: aged(-1_000_000)})
    command = [sys.executable, "-m", "tests.support.faulty_server", "job", "retention", "--data", str(topic.data)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LOGSTORE_FAULTS": f"point {point} kill"}
    killed = subprocess.run(command, env=environment, cwd=tmp_path, check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    committed = point in ("delta.committed", "delta.synced")
    assert list(topic.contents()) == list(range(10 if committed else 0, 20))
    assert bool(retained(topic).versions) != committed
    assert list(topic.contents()) == list(range(10, 20))


class _AlwaysOvertaken:
    """A table whose planned files another job always removes first."""

    def __init__(self, topic: KeyedTopic) -> None:
        self._topic = topic
        self.files = topic.table.files

    def snapshot(self):
        self._seen = self._topic.table.snapshot()
        return self._seen

    def commit_rewrites(self, parts, **how):
        (file,) = self._seen.segments(0)
        log_start = self._seen.partitions[0].sealed
        rewrite_files(self._topic.table, 0, [file.path], [], data_change=True, log_start=log_start)
        self._topic.roll({0: aged(5)})
        return self._topic.table.commit_rewrites(parts, **how)
