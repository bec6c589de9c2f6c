"""Topics that a job skips, and those that it does not; the order of key compaction."""

import os
from pathlib import Path

from compaction_jobs.due_topics import RETRY_MAX_MS, RETRY_MS, DueTopics, OpenTopics, dirtiest_first
from compaction_jobs.jobs import run_job
from logstore.table_root import open_root
from tests.support.job_context import job_context
from tests.support.keyed_topics import KeyedTopic, Record
from tests.support.local_jobs import compact
from tests.support.table_paths import path_of

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def record(timestamp_ms: int = NOW_MS, key: bytes = b"k") -> Record:
    return Record(key, b"v", timestamp_ms)


def settle(topic: KeyedTopic) -> None:
    """Set the log's last change so far back that another one would change its mark."""
    log = path_of(topic.table) / "_delta_log"
    os.utime(log, ns=(log.stat().st_mtime_ns - 10**10,) * 2)


class Retention:
    """Runs of the retention job on the topics that are due."""

    def __init__(self, data: Path) -> None:
        self.due = DueTopics(OpenTopics(open_root(data), {}))

    def run(self, now_ms: int) -> dict[str, str | None]:
        """Run it, and return the topics that it ran on, with their errors."""
        ran = {}
        for topic, mark in self.due.take(now_ms):
            with job_context(now_ms) as context:
                reports = run_job("retention", [topic], context).topics
            self.due.ran(topic, mark, reports[0] if reports else None, now_ms)
            ran[topic.name] = reports[0].error
        return ran


def test_a_topic_is_looked_at_when_it_changes_and_when_its_time_has_come(tmp_path):
    kept = KeyedTopic.create(tmp_path, "kept")
    young = KeyedTopic.create(tmp_path, "young", retention_ms=HOUR_MS)
    young.roll({0: [record()]})
    for topic in (kept, young):
        settle(topic)
    job = Retention(tmp_path)
    assert job.run(NOW_MS) == {"kept": None, "young": None}
    assert job.run(NOW_MS + HOUR_MS) == {}
    assert job.run(NOW_MS + HOUR_MS + 1) == {"young": None}
    assert young.contents() == {}
    settle(young)
    assert job.run(NOW_MS + HOUR_MS + 2) == {"young": None}, "its own commit has changed the log"
    assert job.run(NOW_MS + 10**9) == {}

    kept.roll({0: [record()]})
    assert job.run(NOW_MS + 10**9) == {"kept": None}
    KeyedTopic.create(tmp_path, "new")
    assert "new" in job.run(NOW_MS + 10**9)


def test_a_topic_that_fails_is_tried_again_later_and_later(tmp_path):
    topic = KeyedTopic.create(tmp_path, "events")
    topic.table.alter_config({"retention.ms": "soon"})
    job, now = Retention(tmp_path), NOW_MS
    for n in range(8):
        assert "retention.ms" in str(job.run(now)["events"])
        topic.roll({0: [record()]})  # a change does not make it due sooner
        pause = min(RETRY_MAX_MS, RETRY_MS << n)
        assert job.run(now + pause - 1) == {}
        now += pause
    topic.table.alter_config({"retention.ms": "1"})
    assert job.run(now) == {"events": None}


def test_the_dirtiest_topics_are_compacted_first(tmp_path):
    sizes = {"clean": 0, "half": 2, "most": 8, "not-compacted": 8}
    for name, dirty in sizes.items():
        policy = "delete" if name == "not-compacted" else "compact"
        topic = KeyedTopic.create(tmp_path, name, cleanup_policy=policy, min_cleanable_dirty_ratio=0.3)
        topic.roll({0: [record(key=bytes([n])) for n in range(4)]})
        assert policy == "delete" or compact(topic, NOW_MS)
        for _ in range(dirty):
            topic.roll({0: [record()]})
    dirty, clean = dirtiest_first(DueTopics(OpenTopics(open_root(tmp_path), {})).take(NOW_MS), NOW_MS)
    assert [topic.name for topic, _ in dirty] == ["most", "half"]
    assert [topic.name for topic, _ in clean] == ["clean", "not-compacted"]


def test_a_topic_that_was_made_again_under_its_name_is_another_one(tmp_path):
    job = Retention(tmp_path)
    first = KeyedTopic.create(tmp_path, "events", retention_ms=HOUR_MS)
    first.roll({0: [record()]})
    assert job.run(NOW_MS) == {"events": None}
    path_of(first.table).rename(tmp_path / "deleted")
    second = KeyedTopic.create(tmp_path, "events", retention_ms=1)
    second.roll({0: [record(NOW_MS - HOUR_MS)]})
    assert job.run(NOW_MS) == {"events": None}
    assert second.contents() == {}
    path_of(second.table).rename(tmp_path / "deleted-too")
    assert job.run(NOW_MS) == {}
