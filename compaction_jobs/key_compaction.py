"""Key compaction: the latest record of each key below the clean point stays, at its offset and in its order.

It is Kafka's log cleaner on segments. A small topic is compacted in this process, a large one by Spark, with the same
plans, tasks and segment writer; files that lose no record stay as they are. The dirtiest partitions come first. A
commit (``dataChange=false``: streams are not affected) replaces files and moves ``cleaned``. Files at or above the
clean point are not opened.
"""

from collections.abc import Collection, Sequence

from compaction_jobs.compaction_tasks import OPERATION
from compaction_jobs.context import JobContext
from compaction_jobs.local_compaction import compact_here
from compaction_jobs.planning import CompactionPlan, plan_compaction
from compaction_jobs.report import TopicReport, totals
from compaction_jobs.rewriting import AttemptResult, commit, disk_errors, refused_as_overtaken, require_whole, rewrite
from compaction_jobs.spark_compaction import compact_by_spark
from compaction_jobs.topics import JobTopic
from compaction_jobs.waiting import compaction_waits
from logstore.delta.clean_files import changed_digest, clean_digest
from logstore.delta.snapshot import TopicSnapshot
from logstore.delta.topic_table import RewritePart
from logstore.errors import CorruptionError, StorageError
from logstore.limits import MIB
from logstore.segments.merge import WriteTask, Written
from logstore.topic_config import TopicConfig

#: After this many planned bytes a commit secures the work.
_COMMIT_BYTES = 1024 * MIB


def run(context: JobContext, topic: JobTopic) -> TopicReport:
    return rewrite(context, topic, "compact", _attempt, compaction_waits)


def is_compacted(config: TopicConfig) -> bool:
    return "compact" in config.cleanup_policy


def _attempt(
    context: JobContext, topic: JobTopic, snapshot: TopicSnapshot, partitions: Collection[int]
) -> AttemptResult:
    config, now_ms = topic.config(snapshot), context.clock.now_ms()
    if not is_compacted(config):
        return AttemptResult()
    found = (plan_compaction(p, snapshot.partitions[p], snapshot.segments(p), config, now_ms) for p in partitions)
    plans = sorted((plan for plan in found if plan), key=lambda plan: -plan.dirty_ratio)
    if not plans:
        return AttemptResult()
    require_whole(topic, snapshot, {plan.partition: plan.clean_point for plan in plans})
    needed = sum(plan.size for plan in plans)
    if context.dry_run:
        # The number of records that stay is known only after reading the keys.
        files = [file for plan in plans for file in plan.files]
        return AttemptResult(frozenset(plan.partition for plan in plans), totals(files), None, bytes_needed_max=needed)
    outcome = AttemptResult(bytes_needed_max=needed)
    for batch in _batches(plans, here=needed <= context.here_bytes_max):
        outcome = outcome.and_then(_compact(context, topic, snapshot, batch, config, now_ms))
    return outcome


def _batches(plans: Sequence[CompactionPlan], *, here: bool) -> list[list[CompactionPlan]]:
    """Return the plans of each commit: a job that is killed loses the work on one batch. Spark takes all at once."""
    if not here:
        return [list(plans)]
    batches: list[list[CompactionPlan]] = []
    size = _COMMIT_BYTES
    for plan in plans:
        if size >= _COMMIT_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(plan)
        size += plan.size
    return batches


def _compact(
    context: JobContext,
    topic: JobTopic,
    snapshot: TopicSnapshot,
    plans: Sequence[CompactionPlan],
    config: TopicConfig,
    now_ms: int,
) -> AttemptResult:
    """Write the records that stay in the plans' partitions, and commit them."""
    try:
        with disk_errors(f"compacting topic {topic.name!r}"):
            tasks, written = _write(context, topic, plans, config, now_ms)
    except (StorageError, CorruptionError) as error:
        paths = [file.path for plan in plans for file in plan.files]
        return refused_as_overtaken(topic, [plan.partition for plan in plans], paths, error)
    segments = sorted((w.segment for w in written), key=lambda segment: segment.base_offset)
    parts = []
    for plan in plans:
        removes = tuple(source.path for task in tasks if task.partition == plan.partition for source in task.sources)
        adds = tuple(segment for segment in segments if segment.partition == plan.partition)
        before = snapshot.segments(plan.partition)
        digest = changed_digest(
            clean_digest(before, plan.clean_point),
            (file for file in before if file.path in set(removes)),
            adds,
            plan.clean_point,
        )
        parts.append(RewritePart(plan.partition, removes, adds, cleaned=plan.clean_point, clean_digest=digest))
    return commit(topic, snapshot, parts, data_change=False, operation=OPERATION)


def _write(
    context: JobContext, topic: JobTopic, plans: Sequence[CompactionPlan], config: TopicConfig, now_ms: int
) -> tuple[list[WriteTask], list[Written]]:
    """Return the tasks of all plans and the segments of all tasks."""
    if sum(plan.size for plan in plans) > context.here_bytes_max:
        return compact_by_spark(context, topic, plans, config, now_ms)
    segments, size = sum(len(plan.files) for plan in plans), sum(plan.size for plan in plans)
    with context.progress.step(f"{topic.name}: compacting {segments:,} segments of {size:,} bytes"):
        done = compact_here(context, topic, plans, config, now_ms)
    if done.too_large:
        tasks, written = compact_by_spark(context, topic, done.too_large, config, now_ms)
        return done.tasks + tasks, done.written + written
    return done.tasks, done.written
