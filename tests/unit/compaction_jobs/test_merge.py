"""Merge keeps the same records in fewer files on real tables, also beside other commits."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import nullcontext

import pytest

from compaction_jobs import merge
from compaction_jobs.jobs import run_job, topics_of
from compaction_jobs.report import _why_nothing
from compaction_jobs.topics import JobTopic
from logstore.delta.topic_table import TopicTable
from logstore.errors import CommitRefusedError
from logstore.log.history import history_gaps
from logstore.log.merge import NEWEST_KEPT
from logstore.segments.names import parse_segment_name
from logstore.table_files import TableFiles, open_table
from logstore.table_root import open_root
from tests.support import foreign_writers as others
from tests.support.job_context import job_context
from tests.support.keyed_topics import KeyedTopic, Record
from tests.support.server_process import ROOT
from tests.support.table_paths import path_of, read_footer
from tests.support.topics import HookedFileSystem, joined, rewrite_files, write_segment

NOW_MS = 1_700_000_000_000


def rolled(tmp_path, rolls: int = 12, partitions: int = 1, **config: object) -> KeyedTopic:
    topic = KeyedTopic.create(tmp_path, "events", partitions, **config)
    for at in range(rolls):
        topic.roll({p: [Record(b"%d" % at, b"v", NOW_MS + at)] * 3 for p in range(partitions)})
    return topic


def merged(topic: KeyedTopic, *, dry_run: bool = False):
    with job_context(NOW_MS, dry_run=dry_run) as context:
        (report,) = run_job("merge", topics_of("merge", open_root(topic.data), [], {}), context).topics
        assert context.spark._session is None, "a small backlog needs no Spark"
    return report


def on_disk(topic: KeyedTopic) -> set[str]:
    return {path.relative_to(path_of(topic.table)).as_posix() for path in path_of(topic.table).glob("*/*.parquet")}


def test_small_segments_become_one_in_one_commit(tmp_path):
    topic = rolled(tmp_path, 12, partitions=2)
    before, files = [topic.contents(p) for p in (0, 1)], topic.table.snapshot().segments(0)
    report = merged(topic)
    assert (report.error, report.partitions, len(report.versions)) == (None, (0, 1), 1)
    assert (report.before.segments, report.after.segments) == (24, 2 * (1 + NEWEST_KEPT))
    assert report.before.records == report.after.records == 72
    assert [topic.contents(p) for p in (0, 1)] == before
    snapshot = topic.table.snapshot()
    first, *newest = snapshot.segments(0)
    assert (first.base_offset, first.end_offset, first.num_records) == (0, 24, 24)
    assert newest == list(files[-NEWEST_KEPT:])
    assert history_gaps(snapshot, 0) == []
    footer = read_footer(path_of(topic.table) / first.path)
    assert (footer.operation, footer.base_offset, footer.end_offset) == ("merge", 0, 24)
    actions = [json.loads(line) for line in topic.log_entry(snapshot.version)]
    assert {a[kind]["dataChange"] for a in actions for kind in ("add", "remove") if kind in a} == {False}
    (info,) = [action["commitInfo"] for action in actions if "commitInfo" in action]
    assert info["logstore.operation"] == "merge"
    assert json.loads(info["userMetadata"])["removed_segments"] == 16
    assert all(file.path in on_disk(topic) for file in files), "readers of older versions still have them"
    again = merged(topic)
    assert (again.versions, {w.reason for w in again.waiting}) == ((), {"few"})


def test_a_dry_run_says_it_and_changes_nothing(tmp_path):
    topic = rolled(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    report = merged(topic, dry_run=True)
    assert (report.partitions, report.versions, report.after) == ((0,), (), None)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("config", "rolls", "reason"), [({"merge_target_bytes": 0}, 12, "policy"), ({}, 0, "empty"), ({}, 5, "few")]
)
def test_why_nothing_is_joined(tmp_path, config, rolls, reason):
    report = merged(rolled(tmp_path, rolls, **config))
    assert [(w.partition, w.reason, w.due_ms) for w in report.waiting] == [(0, reason, None)]


def test_partitions_that_wait_for_the_same_reason_share_a_line(tmp_path):
    """Report one line, however many segments each has; a partition without segments says the least."""
    topic = KeyedTopic.create(tmp_path, "events", partitions=3)
    for partition, rolls in ((1, 2), (2, 5)):
        for _ in range(rolls):
            topic.roll({partition: [Record(b"k", b"v", NOW_MS)]})
    report = merged(topic)
    (line,) = _why_nothing([report])
    assert line.startswith("partition 1 of events: segments of less than ")
    whole = dataclasses.replace(report, waiting=report.waiting[1:])
    (line,) = _why_nothing([whole])
    assert re.match("events: segments of less than .* too few in one partition", line)


def test_files_reach_the_target_and_no_more(tmp_path):
    topic = KeyedTopic.create(tmp_path, "events", merge_target_bytes=50_000)
    for at in range(60):
        topic.roll({0: [Record(os.urandom(8), os.urandom(100), NOW_MS + at) for _ in range(50)]})
    before = topic.contents()
    merged(topic)
    assert topic.contents() == before
    full, rest = [], []
    for file in topic.table.snapshot().segments(0)[:-NEWEST_KEPT]:
        (full if file.size >= 50_000 else rest).append(file.size)
    assert full, rest
    assert max(full) < 2 * 50_000
    assert len(rest) <= 6


def hooked(topic: KeyedTopic) -> tuple[JobTopic, HookedFileSystem]:
    filesystem = HookedFileSystem()
    return JobTopic(topic.name, TopicTable(open_table(path_of(topic.table), filesystem)), {}, named=True), filesystem


def test_a_roll_and_a_retention_between_plan_and_commit(tmp_path):
    topic = rolled(tmp_path, 12, partitions=2)
    job, filesystem = hooked(topic)
    kept = topic.contents(1)

    def others() -> None:
        topic.roll({0: [Record(b"new", b"v", NOW_MS)]})
        first = topic.table.snapshot().segments(0)[0]
        rewrite_files(topic.table, 0, [first.path], [], data_change=True, log_start=first.end_offset)

    filesystem.at("job.written", others, lambda: None, lambda: None)
    with job_context(NOW_MS) as context:
        report = merge.run(context, job)
    assert report.partitions == (0, 1)
    assert list(topic.contents(0)) == list(range(3, 37))
    assert topic.contents(1) == kept
    snapshot = topic.table.snapshot()
    assert history_gaps(snapshot, 0) == []
    assert snapshot.segments(0)[0].base_offset == 3


def test_a_second_run_of_the_job_leaves_the_topic_to_the_first(tmp_path):
    topic = rolled(tmp_path, 12)
    job, filesystem = hooked(topic)
    others = []
    filesystem.at("job.written", lambda: others.append(merged(topic)), lambda: None)
    with job_context(NOW_MS) as context:
        report = merge.run(context, job)
    assert report.partitions == (0,)
    assert [(other.busy, other.partitions) for other in others] == [(True, ())]


def test_one_of_two_concurrent_merges_wins(tmp_path, monkeypatch):
    """Merge as the store and the job do at once: the store takes no lock."""
    monkeypatch.setattr(TableFiles, "try_lock", lambda *_: nullcontext(True))
    topic = rolled(tmp_path, 12)
    before = topic.contents()
    job, filesystem = hooked(topic)
    filesystem.at("job.written", lambda: merged(topic), lambda: None)
    with job_context(NOW_MS) as context:
        report = merge.run(context, job)
    assert (report.partitions, report.versions) == ((), ())
    assert topic.contents() == before
    assert len(topic.table.snapshot().segments(0)) == 1 + NEWEST_KEPT


def test_the_log_start_and_the_clean_point_keep_files_apart(tmp_path):
    topic = rolled(tmp_path, 24)
    topic.table.advance_log_start({0: 4}, {0: 1})
    clean = topic.table.snapshot().segments(0)[9]
    rewrite_files(
        topic.table,
        0,
        [clean.path],
        [joined(topic.table, [clean], "key-compaction")],
        data_change=False,
        cleaned=clean.end_offset,
    )
    merged(topic)
    names = [parse_segment_name(file.path) for file in topic.table.snapshot().segments(0)]
    assert [(n.base_offset, n.end_offset) for n in names][:4] == [(0, 3), (3, 6), (6, 30), (30, 60)]


@pytest.mark.system
@pytest.mark.parametrize(
    "point", ["segment.opened", "segment.half", "segment.finished", "job.written", "delta.checked", "delta.committed"]
)
def test_killed_at_any_point_the_table_is_as_before_or_after(tmp_path, point):
    topic = rolled(tmp_path / "data", 12)
    before, files = topic.contents(), topic.table.snapshot().segments(0)
    command = [sys.executable, "-m", "tests.support.faulty_server", "job", "merge", "--data", str(topic.data)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LOGSTORE_FAULTS": f"point {point} kill"}
    killed = subprocess.run(command, env=environment, cwd=tmp_path, check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert topic.contents() == before
    active = topic.table.snapshot().segments(0)
    assert (active == files) == (point != "delta.committed")
    assert len(on_disk(topic) - {file.path for file in files}) <= 1
    merged(topic)
    assert topic.contents() == before
    assert len(topic.table.snapshot().segments(0)) == 1 + NEWEST_KEPT


@pytest.mark.parametrize(
    "statement",
    [
        others.optimize,
        others.z_order,
        lambda table: others.z_order(table, target_size=1_500),
        lambda table: others.delete(table, '"offset" % 4 = 2'),
        lambda table: others.delete(table, '"offset" IN (0, 1, 35)'),
    ],
    ids=["optimize", "z-order", "z-order into many", "delete rows", "delete rows of the first and the last"],
)
def test_files_of_other_writers_become_segments(tmp_path, statement):
    topic = rolled(tmp_path, 12)
    statement(path_of(topic.table))
    for at in range(NEWEST_KEPT):
        topic.roll({0: [Record(b"%d" % at, b"v", NOW_MS)]})
    before = topic.contents(0)
    assert any(file.foreign for file in topic.table.snapshot().segments(0))
    report = merged(topic)
    assert report.error is None
    assert topic.contents(0) == before
    after = topic.table.snapshot().segments(0)
    # A file with records on both sides of a segment stays as it is.
    assert {file.shared for file in after if file.foreign} <= {True}
    assert sum(file.num_records for file in after) == len(before)


def test_a_file_with_records_elsewhere_is_not_replaced_in_part(tmp_path):
    topic = rolled(tmp_path, 12)
    others.delete(path_of(topic.table), '"offset" IN (0, 1, 35)')
    pieces = [file for file in topic.table.snapshot().segments(0) if file.foreign]
    assert [file.shared for file in pieces] == [True, True]
    with pytest.raises(CommitRefusedError, match="can only be replaced together"):
        rewrite_files(topic.table, 0, [pieces[0].path], [], data_change=False)
    base, end = 0, pieces[-1].end_offset
    between = [file.path for file in topic.table.snapshot().segments(0)]
    rewrite_files(topic.table, 0, between, [write_segment(topic.table, 0, base, end, step=20)], data_change=False)
    assert [file.foreign for file in topic.table.snapshot().segments(0)] == [False]
