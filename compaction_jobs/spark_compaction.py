"""Key compaction by Spark, for data too large for this process.

It makes two passes over the planned partitions: the first reads only offsets and keys and finds each key's last record;
the second reads the files that lose a record and rewrites them. Keys are shuffled after a partial reduction, so that a
key in most of the records causes no delay; the driver gets only counts.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from compaction_jobs.applications import spark_errors
from compaction_jobs.compaction_tasks import sources_of, write_tasks
from compaction_jobs.context import JobContext
from compaction_jobs.planning import CompactionPlan
from compaction_jobs.segment_tasks import (
    COUNT_COLUMNS,
    KEY_COLUMNS,
    TASK_COLUMNS,
    WRITTEN_COLUMNS,
    assign_tasks,
    count_by_source,
    scan_keys,
    tasks_of_sources,
    write_kept,
    written_from_row,
)
from compaction_jobs.space import replaced, require_space
from compaction_jobs.topics import JobTopic
from logstore.segments.merge import Rows, Source, WriteTask, Written, write_empty
from logstore.topic_config import TopicConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def compact_by_spark(
    context: JobContext, topic: JobTopic, plans: Sequence[CompactionPlan], config: TopicConfig, now_ms: int
) -> tuple[list[WriteTask], list[Written]]:
    """Write the segments of all plans. Raises SparkStartError, StorageError, StorageFullError, CorruptionError."""
    sources, log_start = sources_of(plans), {plan.partition: plan.log_start for plan in plans}
    first_rows = np.array([source.first_row for source in sources])
    spark = context.spark.session
    pace = context.pace_of_tasks
    with spark_errors("compaction"):
        latest = _latest_rows(spark, topic.table.files.uri, sources, log_start, pace).persist()
        try:
            what = f"{len(sources):,} segments, {sum(source.num_records for source in sources):,} records"
            with context.progress.step(f"{topic.name}: reading keys of {what}"):
                counted = latest.mapInArrow(count_by_source(first_rows), COUNT_COLUMNS).collect()
            kept = np.zeros(len(sources), dtype=np.int64)
            for row in counted:
                kept[row.source] += row.records
            tasks: list[WriteTask] = []
            at = 0
            for plan in plans:
                its = slice(at, at := at + len(plan.files))
                tasks += write_tasks(topic.table.files, topic, plan, sources[its], kept[its].tolist(), config, now_ms)
            require_space(context, topic, replaced((file for plan in plans for file in plan.files), tasks))
            with context.progress.step(f"{topic.name}: writing {len(tasks):,} segments"):
                written = _write(latest, first_rows, sources, tasks, pace) if tasks else []
        finally:
            latest.unpersist()
    return tasks, written + write_what_is_empty(tasks, written)


def write_what_is_empty(tasks: Sequence[WriteTask], written: Sequence[Written]) -> list[Written]:
    """Write the segments of tasks for which no row came in."""
    done = {w.task for w in written}
    return [write_empty(number, task) for number, task in enumerate(tasks) if number not in done]


def _latest_rows(
    spark: "SparkSession", table: str, sources: Sequence[Source], log_start: dict[int, int], pace: float | None
) -> "DataFrame":
    """Return one column ``row``: the number of each key's last record."""
    numbers = spark.range(0, len(sources), 1, min(len(sources), 4 * spark.sparkContext.defaultParallelism))
    keys = numbers.mapInArrow(scan_keys(table, sources, log_start, pace), KEY_COLUMNS)
    return keys.groupBy("partition", "key").agg({"row": "max"}).toDF("partition", "key", "row").select("row")


def _write(
    latest: "DataFrame",
    first_rows: Rows,
    sources: Sequence[Source],
    tasks: Sequence[WriteTask],
    pace: float | None,
) -> list[Written]:
    assigned = latest.mapInArrow(assign_tasks(first_rows, tasks_of_sources(sources, tasks)), TASK_COLUMNS)
    by_task = assigned.repartition(len(tasks), "task").sortWithinPartitions("row")
    return [written_from_row(*row) for row in by_task.mapInArrow(write_kept(tasks, pace), WRITTEN_COLUMNS).collect()]
