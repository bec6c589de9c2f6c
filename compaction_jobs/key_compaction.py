"""Key compaction: the latest record of each key below the clean point stays, at its offset and in its order. It is
Kafka's log cleaner on segments. Two passes of Spark over a topic's planned partitions: the first reads offsets and keys
only and finds each key's last record; the second reads the segments that hold one and writes them anew; small
neighbours are joined. One commit a topic (``dataChange=false``: a stream notices nothing) replaces the files and moves
``cleaned``. Files at or above the clean point are not opened.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from compaction_jobs.applications import spark_errors
from compaction_jobs.context import JobContext
from compaction_jobs.planning import CompactionPlan, group_files, group_ranges, plan_compaction
from compaction_jobs.report import TopicReport, totals
from compaction_jobs.rewriting import AttemptResult, commit, refused_as_overtaken, require_whole, rewrite
from compaction_jobs.segment_tasks import (
    COUNT_COLUMNS,
    KEY_COLUMNS,
    TASK_COLUMNS,
    WRITTEN_COLUMNS,
    Source,
    WriteTask,
    Written,
    assign_tasks,
    count_by_source,
    scan_keys,
    write_empty,
    write_kept,
)
from compaction_jobs.topics import JobTopic
from compaction_jobs.waiting import compaction_waits
from logstore.delta.snapshot import TopicSnapshot
from logstore.delta.topic_table import RewritePart
from logstore.errors import CorruptionError, StorageError
from logstore.topic_config import TopicConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OPERATION = "key-compaction"


def run(context: JobContext, topic: JobTopic) -> TopicReport:
    return rewrite(context, topic, _attempt, compaction_waits)


def is_compacted(config: TopicConfig) -> bool:
    return "compact" in config.cleanup_policy


def _attempt(
    context: JobContext, topic: JobTopic, snapshot: TopicSnapshot, partitions: Collection[int]
) -> AttemptResult:
    config, now_ms = topic.config(snapshot), context.clock.now_ms()
    if not is_compacted(config):
        return AttemptResult()
    found = (plan_compaction(p, snapshot.partitions[p], snapshot.segments(p), config, now_ms) for p in partitions)
    plans = [plan for plan in found if plan]
    if not plans:
        return AttemptResult()
    require_whole(topic, snapshot, {plan.partition: plan.clean_point for plan in plans})
    planned = frozenset(plan.partition for plan in plans)
    files = [file for plan in plans for file in plan.files]
    if context.dry_run:
        # Only reading the keys tells which records stay.
        return AttemptResult(planned, totals(files), None)
    try:
        written = _compact(context, topic, plans, config, now_ms)
    except (StorageError, CorruptionError) as error:
        return refused_as_overtaken(topic, planned, [file.path for file in files], error)
    segments = sorted((w.segment for w in written), key=lambda segment: segment.base_offset)
    parts = [
        RewritePart(
            plan.partition,
            tuple(file.path for file in plan.files),
            tuple(segment for segment in segments if segment.partition == plan.partition),
            cleaned=plan.clean_point,
        )
        for plan in plans
    ]
    return commit(topic, snapshot, parts, data_change=False, operation=OPERATION)


def _compact(
    context: JobContext, topic: JobTopic, plans: Sequence[CompactionPlan], config: TopicConfig, now_ms: int
) -> list[Written]:
    """Write the records that stay, and all ranges. CorruptionError if they do not agree with the keys that were read;
    StorageError.
    """
    sources, log_start = sources_of(plans), {plan.partition: plan.log_start for plan in plans}
    spark = context.spark.session
    with spark_errors("compaction"):
        latest = _latest_rows(spark, topic.table.files.uri, sources, log_start).persist()
        try:
            what = f"{len(sources):,} segments, {sum(source.num_records for source in sources):,} records"
            with context.progress.step(f"{topic.name}: reading keys of {what}"):
                first_rows = np.array([source.first_row for source in sources])
                counted = latest.mapInArrow(count_by_source(first_rows), COUNT_COLUMNS).collect()
            kept = np.zeros(len(sources), dtype=np.int64)
            for row in counted:
                kept[row.source] += row.records
            tasks = write_tasks(topic, plans, sources, kept.tolist(), config, now_ms)
            with context.progress.step(f"{topic.name}: writing {int(kept.sum()):,} latest records"):
                written = _write(latest, tasks) if kept.any() else []
        finally:
            latest.unpersist()
    written += write_what_is_empty(tasks, written)
    left = sum(w.expired + w.segment.num_records for w in written)
    if left != kept.sum():
        raise CorruptionError(f"{kept.sum()} records were to be kept, {left} were written: nothing is committed")
    return written


def sources_of(plans: Sequence[CompactionPlan]) -> list[Source]:
    sources = []
    row = 0
    for plan in plans:
        for file in plan.files:
            sources.append(Source(plan.partition, file.path, file.num_records, row))
            row += file.num_records
    return sources


def _latest_rows(
    spark: "SparkSession", table: str, sources: Sequence[Source], log_start: dict[int, int]
) -> "DataFrame":
    """One column ``row``: the number of each key's last record."""
    numbers = spark.range(0, len(sources), 1, min(len(sources), 4 * spark.sparkContext.defaultParallelism))
    keys = numbers.mapInArrow(scan_keys(table, sources, log_start), KEY_COLUMNS)
    return keys.groupBy("partition", "key").agg({"row": "max"}).toDF("partition", "key", "row").select("row")


def write_tasks(
    topic: JobTopic,
    plans: Sequence[CompactionPlan],
    sources: Sequence[Source],
    kept: Sequence[int],
    config: TopicConfig,
    now_ms: int,
) -> list[WriteTask]:
    """One task for each segment to write, by rising row."""
    tasks = []
    by_path = {source.path: (source, count) for source, count in zip(sources, kept, strict=True)}
    for plan in plans:
        sizes = [file.size * by_path[file.path][1] / max(1, file.num_records) for file in plan.files]
        groups = group_files(plan.files, sizes, config.segment_bytes)
        for group, (base, end) in zip(groups, group_ranges(plan, groups), strict=True):
            task = WriteTask(
                topic=topic.name,
                table=topic.table.files.uri,
                partition=plan.partition,
                sources=tuple(by_path[file.path][0] for file in group),
                base_offset=base,
                end_offset=end,
                log_start=plan.log_start,
                codec=config.segment_codec,
                operation=OPERATION,
                idempotency_window_ms=config.idempotency_window_ms,
                first_dirty=plan.first_dirty,
                now_ms=now_ms,
                delete_retention_ms=config.delete_retention_ms,
            )
            tasks.append(task)
    return tasks


def write_what_is_empty(tasks: Sequence[WriteTask], written: Sequence[Written]) -> list[Written]:
    """The segments of tasks that no row came in for."""
    done = {w.task for w in written}
    return [write_empty(number, task) for number, task in enumerate(tasks) if number not in done]


def _write(latest: "DataFrame", tasks: Sequence[WriteTask]) -> list[Written]:
    first_rows = np.array([task.sources[0].first_row for task in tasks])
    assigned = latest.mapInArrow(assign_tasks(first_rows), TASK_COLUMNS)
    by_task = assigned.repartition(len(tasks), "task").sortWithinPartitions("row")
    return [Written.from_row(*row) for row in by_task.mapInArrow(write_kept(tasks), WRITTEN_COLUMNS).collect()]
