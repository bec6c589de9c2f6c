"""Retention removes old segments from the topic, by time, by size, or because their records were deleted.

It makes at most two commits per topic. First the files wholly below the new log start offset are removed, together with
the new log start offset (``dataChange=true``, no adds). Then files with records below it that stay are replaced by ones
without them (``dataChange=false``), so that plain Delta readers agree with the log start offset: the file that contains
it, or the last one of a partition, which keeps the state at ``sealed``. After a killed job the next run continues from
the last commit. Only prefixes are removed; nothing at or above ``sealed`` is touched. The only data file read is a
partition's file that contains the log start offset.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from compaction_jobs.context import JobContext
from compaction_jobs.local_compaction import thread_count, write_all
from compaction_jobs.planning import RetentionPlan, plan_retention
from compaction_jobs.report import NOTHING, TopicReport, totals
from compaction_jobs.rewriting import AttemptResult, commit, disk_errors, refused_as_overtaken, require_whole, rewrite
from compaction_jobs.space import require_space
from compaction_jobs.topics import JobTopic
from compaction_jobs.waiting import retention_waits
from logstore.delta.columns import layout_of
from logstore.delta.snapshot import TopicSnapshot
from logstore.delta.topic_table import RewritePart
from logstore.errors import CorruptionError, StorageError
from logstore.log.merge import base_offset
from logstore.segments.merge import Rows, Source, WriteTask
from logstore.threads import threads

OPERATION = "retention"
BOUNDARY_OPERATION = "retention-boundary"


def run(context: JobContext, topic: JobTopic) -> TopicReport:
    return rewrite(context, topic, "retention", _attempt, retention_waits)


def _attempt(
    context: JobContext, topic: JobTopic, snapshot: TopicSnapshot, partitions: Collection[int]
) -> AttemptResult:
    config, now_ms = topic.config(snapshot), context.clock.now_ms()
    found = (plan_retention(p, snapshot.partitions[p], snapshot.segments(p), config, now_ms) for p in partitions)
    plans = [plan for plan in found if plan]
    boundaries = [plan for plan in plans if plan.boundary]
    removed = totals(file for plan in plans for file in plan.expired)
    require_whole(topic, snapshot, {plan.partition: plan.log_start for plan in plans})
    if context.dry_run:
        # How much of a boundary file stays is known only after reading it.
        needed = sum(plan.boundary.size for plan in boundaries if plan.boundary)
        touched = frozenset(plan.partition for plan in plans)
        return AttemptResult(touched, removed, None if boundaries else NOTHING, bytes_needed_max=needed)
    outcome = AttemptResult()
    parts = [RewritePart(p.partition, tuple(f.path for f in p.expired), (), p.log_start) for p in plans if p.expired]
    if parts:
        with context.progress.step(f"{topic.name}: removing {removed.segments:,} segments"):
            outcome = commit(topic, snapshot, parts, data_change=True, operation=OPERATION)
        topic.table.files.reached("retention.start_moved")
    boundaries = [plan for plan in boundaries if plan.partition not in outcome.refused]
    if boundaries:
        with context.progress.step(f"{topic.name}: cutting {len(boundaries):,} segments at the log start"):
            outcome = outcome.and_then(_cut(context, topic, snapshot, boundaries))
    return outcome


def _cut(
    context: JobContext, topic: JobTopic, snapshot: TopicSnapshot, plans: Sequence[RetentionPlan]
) -> AttemptResult:
    """Replace each partition's boundary file by its records from the log start offset on."""
    config = topic.config(snapshot)
    tasks: list[WriteTask] = []
    kept: list[list[Rows] | None] = []
    parts: dict[int, RewritePart] = {}
    for plan in plans:
        file = plan.boundary
        assert file is not None
        task = WriteTask(
            topic=topic.name,
            table=topic.table.files.uri,
            partition=plan.partition,
            sources=(Source(plan.partition, file.path, file.num_records, 0),),
            base_offset=plan.log_start if plan.log_start < file.end_offset else base_offset(file),
            end_offset=None,
            log_start=plan.log_start,
            codec=config.segment_codec,
            operation=BOUNDARY_OPERATION,
            idempotency_window_ms=config.idempotency_window_ms,
            now_ms=context.clock.now_ms(),
            layout=layout_of(topic.name, snapshot),
        )
        tasks.append(task)
        # If a file has no record from the log start offset on, only its footer is read.
        kept.append(None if file.max_offset >= plan.log_start else [])
        parts[plan.partition] = RewritePart(plan.partition, (file.path,), log_start=plan.log_start)
    try:
        with (
            disk_errors(f"cutting segments of topic {topic.name!r}"),
            threads().pool(thread_count(), "retention") as pool,
        ):
            require_space(context, topic, [plan.boundary for plan in plans if plan.boundary])
            written = write_all(context.paced(topic.table.files), tasks, pool, kept)
    except (StorageError, CorruptionError) as error:
        planned = [path for part in parts.values() for path in part.removes]
        return refused_as_overtaken(topic, parts.keys(), planned, error)
    whole = [replace(parts[w.segment.partition], adds=(w.segment,)) for w in written]
    return commit(topic, snapshot, whole, data_change=False, operation=BOUNDARY_OPERATION)
