"""The jobs by name, and a run of one: topic after topic, each on its own, to a report.

Invariants: what is asked for is checked before anything is done; a topic that fails does not keep the others from being
worked on; one that is deleted meanwhile is passed over.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from compaction_jobs import key_compaction, retention, vacuum
from compaction_jobs.context import JobContext
from compaction_jobs.report import JobReport, TopicReport
from compaction_jobs.topics import JobTopic, select_topics
from logstore.errors import InvalidRequestError, LogStoreError
from logstore.filesystem import local_filesystem

JOBS: dict[str, Callable[[JobContext, JobTopic], TopicReport]] = {
    "retention": retention.run,
    "compact": key_compaction.run,
    "vacuum": vacuum.run,
}


def topics_of(job: str, data: Path, patterns: Sequence[str], defaults: Mapping[str, str]) -> list[JobTopic]:
    """What ``job`` is to work on: names and globs, all topics without one. ``defaults`` are the store's topic keys.

    Raises DataDirectoryError, UnknownTopicError; InvalidRequestError for a topic that is named and not compacted.
    """
    topics = select_topics(data, patterns, defaults, local_filesystem())
    if job == "compact":
        for topic in topics:
            if topic.named and not _may_be_compacted(topic):
                raise InvalidRequestError(f"Topic {topic.name!r} is not compacted: its cleanup.policy is delete")
    return topics


def _may_be_compacted(topic: JobTopic) -> bool:
    try:
        return key_compaction.is_compacted(topic.config(topic.table.snapshot()))
    except (LogStoreError, OSError):
        return True  # the run says what is wrong with it, and goes on with the others


def run_job(job: str, topics: Sequence[JobTopic], context: JobContext, url: str | None = None) -> JobReport:
    """Raises nothing that happens to a topic: it is in the report.

    ``url`` is a running store's: it is told of a new log start at once, else it finds it in the table within seconds.
    """
    began = context.clock.monotonic()
    reports = [report for topic in topics if (report := _run(job, topic, context, url))]
    return JobReport(job, context.dry_run, tuple(reports), context.clock.monotonic() - began)


def _run(job: str, topic: JobTopic, context: JobContext, url: str | None) -> TopicReport | None:
    began = context.clock.monotonic()
    try:
        report = JOBS[job](context, topic)
        if url and job == "retention" and report.versions:
            _have_it_look(url, topic, context)
    except (LogStoreError, OSError) as error:
        if topic.is_deleted():
            context.progress.note(f"{topic.name}: deleted meanwhile, passed over")
            return None
        report = TopicReport(topic.name, error=" ".join(str(error).split()))
    return replace(report, seconds=round(context.clock.monotonic() - began, 3))


def _have_it_look(url: str, topic: JobTopic, context: JobContext) -> None:
    """A roll makes a store read its table, and does no harm where the store is of another data directory."""
    from logstore.client.admin import Admin

    try:
        with Admin(url, client_id="logstore-job", default_api_timeout_ms=0) as admin:
            admin.roll(topic.name)
    except LogStoreError as error:
        context.progress.note(f"{topic.name}: the store was not told, it will see by itself: {error.message}")
