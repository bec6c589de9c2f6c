"""Retention with a log start inside a segment: files that executors write, and records that readers see."""

import json

import pytest

from compaction_jobs.jobs import run_job, topics_of
from compaction_jobs.report import Totals
from logstore.table_root import open_root
from tests.support.job_context import job_context
from tests.support.keyed_topics import KeyedTopic, Record
from tests.support.table_paths import path_of

pytestmark = pytest.mark.spark

NOW_MS = 1_700_000_000_000


def records(count: int) -> list[Record]:
    return [Record(f"k{n % 3}".encode(), f"v{n}".encode(), NOW_MS) for n in range(count)]


def retained(topic: KeyedTopic):
    with job_context(NOW_MS) as context:
        (report,) = run_job(
            "retention", topics_of("retention", open_root(topic.data), [topic.name], {}), context
        ).topics
    return report


def test_plain_readers_agree_with_the_log_start(spark, tmp_path):
    topic = KeyedTopic.create(tmp_path, "events", 3)
    for _ in range(3):
        topic.roll(dict.fromkeys(range(3), records(10)))
    whole = {p: topic.contents(p) for p in range(3)}
    topic.table.advance_log_start({0: 13, 1: 30, 2: 29}, {0: 1, 1: 1, 2: 1})
    report = retained(topic)
    assert (report.error, report.partitions, len(report.versions)) == (None, (0, 1, 2), 2)
    plain = spark.read.format("delta").load(str(path_of(topic.table)))
    for partition, start in enumerate((13, 30, 29)):
        offsets = [row.offset for row in plain.where(f"partition = {partition}").orderBy("offset").collect()]
        assert offsets == list(range(start, 30))
        assert topic.contents(partition) == {o: r for o, r in whole[partition].items() if o >= start}
    sizes = [f.size for p in range(3) for f in topic.table.snapshot().segments(p)]
    assert report.after == Totals(4, 18, sum(sizes)), "of a partition without records one segment stays, for its state"
    # One commit removes whole files, and the next one rewrites files: rule R6.
    removed, cut = ([json.loads(line) for line in topic.log_entry(version)] for version in report.versions)
    assert {a["remove"]["dataChange"] for a in removed if "remove" in a} == {True}
    assert not any("add" in action for action in removed)
    assert {a[kind]["dataChange"] for a in cut for kind in ("add", "remove") if kind in a} == {False}
    history = spark.sql(f"DESCRIBE HISTORY delta.`{path_of(topic.table)}` LIMIT 2").collect()
    assert [json.loads(row.userMetadata)["operation"] for row in history] == ["retention-boundary", "retention"]
    assert retained(topic).versions == ()


def test_a_file_that_cannot_be_read_stops_it_in_one_line(spark, tmp_path):
    topic = KeyedTopic.create(tmp_path, "events")
    topic.roll({0: records(10)})
    topic.table.advance_log_start({0: 3}, {0: 1})
    (file,) = topic.table.snapshot().segments(0)
    (path_of(topic.table) / file.path).write_bytes(b"PAR1 nothing PAR1")
    version = topic.table.snapshot().version
    report = retained(topic)
    assert f"{file.path} is damaged" in report.error
    assert "\n" not in report.error
    assert topic.table.snapshot().version == version
    (path_of(topic.table) / file.path).unlink()
    assert "No such file or directory" in retained(topic).error
