"""Retention: old segments leave the topic, by time, by size, or because their records were deleted.

Two commits a topic at most. First the files that lie wholly below the new log start are removed, together with the new
log start (``dataChange=true``, no adds); then files that hold the log start inside are replaced by ones that begin at
it (``dataChange=false``), so that plain Delta readers agree with the log start. A killed job is continued by the next
run from the last commit. Only prefixes are removed; nothing at or above ``sealed`` is touched. Only the second commit
needs Spark.
"""

from collections.abc import Collection, Mapping

from compaction_jobs.applications import spark_errors
from compaction_jobs.context import JobContext
from compaction_jobs.planning import plan_retention
from compaction_jobs.report import NOTHING, TopicReport, totals
from compaction_jobs.rewriting import AttemptResult, commit, refused_as_overtaken, require_whole, rewrite
from compaction_jobs.segment_tasks import WRITTEN_COLUMNS, Source, WriteTask, Written, write_whole
from compaction_jobs.topics import JobTopic
from compaction_jobs.waiting import retention_waits
from logstore.delta.snapshot import SegmentFile, TopicSnapshot
from logstore.delta.topic_table import RewritePart
from logstore.errors import StorageError

OPERATION = "retention"
BOUNDARY_OPERATION = "retention-boundary"


def run(context: JobContext, topic: JobTopic) -> TopicReport:
    return rewrite(context, topic, _attempt, retention_waits)


def _attempt(
    context: JobContext, topic: JobTopic, snapshot: TopicSnapshot, partitions: Collection[int]
) -> AttemptResult:
    config, now_ms = topic.config(snapshot), context.clock.now_ms()
    found = (plan_retention(p, snapshot.partitions[p], snapshot.segments(p), config, now_ms) for p in partitions)
    plans = [plan for plan in found if plan]
    boundaries = {plan.partition: plan.boundary for plan in plans if plan.boundary}
    removed = totals(file for plan in plans for file in plan.expired)
    require_whole(topic, snapshot, {plan.partition: plan.log_start for plan in plans})
    if context.dry_run:
        # Only reading a boundary file tells how much of it stays.
        return AttemptResult(frozenset(plan.partition for plan in plans), removed, None if boundaries else NOTHING)
    outcome = AttemptResult()
    parts = [RewritePart(p.partition, tuple(f.path for f in p.expired), (), p.log_start) for p in plans if p.expired]
    if parts:
        with context.progress.step(f"{topic.name}: removing {removed.segments:,} segments"):
            outcome = commit(topic, snapshot, parts, data_change=True, operation=OPERATION)
        topic.table.files.reached("retention.start_moved")
    boundaries = {p: file for p, file in boundaries.items() if p not in outcome.refused}
    if boundaries:
        with context.progress.step(f"{topic.name}: cutting {len(boundaries):,} segments at the log start"):
            outcome = outcome.and_then(_cut(context, topic, snapshot, boundaries))
    return outcome


def _cut(
    context: JobContext, topic: JobTopic, snapshot: TopicSnapshot, boundaries: Mapping[int, SegmentFile]
) -> AttemptResult:
    """Replace each partition's file by its records from the log start on."""
    config = topic.config(snapshot)
    tasks = [
        WriteTask(
            topic=topic.name,
            table=topic.table.files.uri,
            partition=partition,
            sources=(Source(partition, file.path, file.num_records, 0),),
            base_offset=snapshot.partitions[partition].log_start,
            log_start=snapshot.partitions[partition].log_start,
            codec=config.segment_codec,
            operation=BOUNDARY_OPERATION,
            idempotency_window_ms=config.idempotency_window_ms,
        )
        for partition, file in boundaries.items()
    ]
    spark = context.spark.session
    try:
        with spark_errors("cutting segments"):
            numbers = spark.range(0, len(tasks), 1, len(tasks))
            rows = numbers.mapInArrow(write_whole(tasks), WRITTEN_COLUMNS).collect()
    except StorageError as error:
        return refused_as_overtaken(topic, boundaries, [file.path for file in boundaries.values()], error)
    written = {row.task: Written.from_row(*row).segment for row in rows}
    parts = [
        RewritePart(task.partition, (task.sources[0].path,), (segment,) if (segment := written[number]) else ())
        for number, task in enumerate(tasks)
    ]
    return commit(topic, snapshot, parts, data_change=False, operation=BOUNDARY_OPERATION)
