"""The jobs by name, and the run of a job: topic after topic, with a report.

Invariants: arguments are checked before anything is done; a topic that fails does not stop the work on others; a topic
that is deleted meanwhile is passed over.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from compaction_jobs import columns, key_compaction, merge, retention, vacuum
from compaction_jobs.context import JobContext
from compaction_jobs.report import JobReport, TopicReport
from compaction_jobs.topics import JobTopic, select_topics
from compaction_jobs.waiting import Reason
from logstore.client.admin import Admin
from logstore.errors import InvalidRequestError, LogStoreError
from logstore.table_root import TableRoot

JOBS: dict[str, Callable[[JobContext, JobTopic], TopicReport]] = {
    "retention": retention.run,
    "compact": key_compaction.run,
    "merge": merge.run,
    "vacuum": vacuum.run,
    "columns": columns.run,
}

# A job works without the store: it only requests a refresh and the number of unrolled records.
_STORE_TIMEOUT_MS = 10_000
#: Reasons that may pass when more records are rolled.
_ROLLS_HELP: frozenset[Reason] = frozenset({"empty", "clean", "ratio", "young", "few"})


def topics_of(job: str, root: TableRoot, patterns: Sequence[str], defaults: Mapping[str, str]) -> list[JobTopic]:
    """Return the topics that ``job`` works on, by names and globs; all topics if there are none.

    ``defaults`` are the store's topic keys. Raises DataDirectoryError, UnknownTopicError; InvalidRequestError for a
    topic that is named and not compacted.
    """
    topics = select_topics(root, patterns, defaults)
    if job == "compact":
        for topic in topics:
            if topic.named and not _may_be_compacted(topic):
                raise InvalidRequestError(f"Topic {topic.name!r} is not compacted: its cleanup.policy is delete")
    return topics


def _may_be_compacted(topic: JobTopic) -> bool:
    try:
        return key_compaction.is_compacted(topic.config(topic.table.snapshot()))
    except (LogStoreError, OSError):
        return True  # the run reports the problem, and continues with the others


def run_job(job: str, topics: Sequence[JobTopic], context: JobContext, url: str | None = None) -> JobReport:
    """Run a job on topics. Errors of a topic are in the report and not raised.

    ``url`` names the store that runs on the data directory. It reads a topic's table again when the job is done with
    it, so that all readers see the result.
    """
    began = context.clock.monotonic()
    with ExitStack() as stack:
        store = stack.enter_context(_admin(url)) if url else None
        reports = [report for topic in topics if (report := _run(job, topic, context, store))]
    return JobReport(job, context.dry_run, tuple(reports), context.clock.monotonic() - began)


def _admin(url: str) -> Admin:
    return Admin(url, client_id="logstore-job", request_timeout_ms=_STORE_TIMEOUT_MS, default_api_timeout_ms=0)


def _run(job: str, topic: JobTopic, context: JobContext, store: Admin | None) -> TopicReport | None:
    began = context.clock.monotonic()
    try:
        report = JOBS[job](context, topic)
        if store:
            report = _with_store(store, topic, context, report)
    except (LogStoreError, OSError) as error:
        if topic.is_deleted():
            context.progress.note(f"{topic.name}: deleted meanwhile, skipped")
            return None
        report = TopicReport(topic.name, error=" ".join(str(error).split()))
    return replace(report, seconds=round(context.clock.monotonic() - began, 3))


def _with_store(store: Admin, topic: JobTopic, context: JobContext, report: TopicReport) -> TopicReport:
    """Refresh the topic in the store if the job changed it, and add the numbers of unrolled records to the report."""
    try:
        if report.versions:
            store.refresh(topic.name)
        if any(w.partition is not None and w.reason in _ROLLS_HELP for w in report.waiting):
            unrolled: dict[int | None, int] = {
                found.partition: found.high_watermark - found.sealed_offset
                for found in store.describe_topic(topic.name).partitions
            }
            waiting = (replace(w, unrolled_records=unrolled.get(w.partition)) for w in report.waiting)
            return replace(report, waiting=tuple(waiting))
    except LogStoreError as error:
        if report.versions:
            context.progress.note(
                f"{topic.name}: the store was not notified and will notice by itself: {error.message}"
            )
    return report
