"""Topics that may need work by a job, found without reading the logs of the others.

Invariant: a topic is passed over only while its log has not changed since the job's last run on it, and the time has
not come at which that run expected work; or for a while after a failure.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compaction_jobs.planning import plan_compaction
from compaction_jobs.report import TopicReport
from compaction_jobs.topics import JobTopic, open_topic
from logstore.errors import LogStoreError
from logstore.table_root import TableRoot

#: The pause after a failure of a topic: the first value, doubled each time, up to the second.
RETRY_MS, RETRY_MAX_MS = 60_000, 3_600_000


@dataclass(slots=True)
class _Seen:
    """The state of a topic. ``mark`` is its log's before the last run, None if the next run must look again. ``due_ms``
    is None if only a change of the log makes it due. ``retry_ms`` is 0 without a failure.
    """

    mark: int | None = None
    due_ms: int | None = None
    retry_ms: int = 0
    not_before_ms: int = 0


class OpenTopics:
    """The topics of a store, for all its jobs. Their tables stay open, and read only new entries of their logs.

    ``defaults`` are the store's topic keys. Safe from any thread.
    """

    def __init__(self, root: TableRoot, defaults: Mapping[str, str]) -> None:
        self._root = root
        self._defaults = defaults
        self._lock = threading.Lock()
        self._topics: dict[str, JobTopic] = {}

    def all(self) -> dict[str, JobTopic]:
        """Return the current topics by name. Raises OSError."""
        root = self._root
        with self._lock:
            opened = {name: self._topics.get(name) or open_topic(root, name, self._defaults) for name in root.tables()}
            self._topics = {name: topic for name, topic in opened.items() if topic}
            return self._topics


class DueTopics:
    """The due topics of one job. Times are the job's clock, in ms."""

    def __init__(self, topics: OpenTopics) -> None:
        self._topics = topics
        self._seen: dict[str, _Seen] = {}

    def take(self, now_ms: int) -> list[tuple[JobTopic, int | None]]:
        """Return the due topics, by name, with the marks of their logs for ``ran``. Raises OSError."""
        topics = self._topics.all()
        self._seen = {name: self._seen.get(name, _Seen()) for name in topics}
        marked = [(topic, topic.table.log_mark()) for topic in topics.values()]
        return [(topic, mark) for topic, mark in marked if _is_due(self._seen[topic.name], mark, now_ms)]

    def ran(self, topic: JobTopic, mark: int | None, report: TopicReport | None, now_ms: int) -> None:
        """Note that the job has run on a topic; without a report the topic was deleted meanwhile."""
        if report is None:
            self._seen.pop(topic.name, None)
            return
        seen = self._seen.setdefault(topic.name, _Seen())
        if report.error is not None:
            seen.retry_ms = min(RETRY_MAX_MS, 2 * seen.retry_ms or RETRY_MS)
            seen.mark, seen.not_before_ms = None, now_ms + seen.retry_ms
            return
        times = [waiting.due_ms for waiting in report.waiting if waiting.due_ms is not None]
        self._seen[topic.name] = _Seen(None if report.versions else mark, min(times, default=None))


def _is_due(seen: _Seen, mark: int | None, now_ms: int) -> bool:
    if now_ms < seen.not_before_ms:
        return False
    unchanged = mark is not None and seen.mark == mark
    return not unchanged or (seen.due_ms is not None and now_ms >= seen.due_ms)


def dirtiest_first(
    topics: Sequence[tuple[JobTopic, int | None]], now_ms: int
) -> tuple[list[tuple[JobTopic, int | None]], list[tuple[JobTopic, int | None]]]:
    """Return the topics to compact, by the dirty ratio of their dirtiest partition, and the other topics."""
    ratios = {topic.name: _dirty_ratio(topic, now_ms) for topic, _ in topics}
    dirty = [found for found in topics if ratios[found[0].name] is not None]
    clean = [found for found in topics if ratios[found[0].name] is None]
    return sorted(dirty, key=lambda found: -(ratios[found[0].name] or 0.0)), clean


def _dirty_ratio(topic: JobTopic, now_ms: int) -> float | None:
    """Return the highest dirty ratio of a topic's due partitions, or None if none is due."""
    try:
        snapshot = topic.table.snapshot()
        config = topic.config(snapshot)
    except (LogStoreError, OSError):
        return None  # the run reports the problem
    if not config.compacted:
        return None
    found = (plan_compaction(p, s, snapshot.segments(p), config, now_ms) for p, s in snapshot.partitions.items())
    return max((plan.dirty_ratio for plan in found if plan), default=None)
