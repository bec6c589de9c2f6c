"""Merge: many small segments of a partition become few of ``merge.target.bytes``, by the rule of
``logstore.log.merge``. A store merges continuously by itself; the job is for a backlog.

Every commit replaces adjacent segments by one with the same records and the same range (``dataChange=false``). A small
backlog is joined in this process, a large one by Spark, with the same function to write a segment. A killed job leaves
the commits that it has made, and at worst files that no commit names.
"""

from collections.abc import Collection, Iterator, Sequence

from compaction_jobs.applications import spark_errors
from compaction_jobs.context import JobContext
from compaction_jobs.report import TopicReport, totals
from compaction_jobs.rewriting import AttemptResult, commit, disk_errors, refused_as_overtaken, rewrite
from compaction_jobs.segment_tasks import WRITTEN_COLUMNS, write_whole, written_from_row
from compaction_jobs.space import require_space
from compaction_jobs.topics import JobTopic
from compaction_jobs.waiting import merge_waits
from logstore.delta.snapshot import TopicSnapshot
from logstore.errors import CorruptionError, StorageError
from logstore.limits import GIB, MIB
from logstore.log.merge import MERGE, MergeGroup, merge_parts, merge_task, plan_merge
from logstore.segments.merge import WriteTask, Written, write_here
from logstore.table_files import TableFiles
from logstore.threads import threads

#: Up to this size joining in this process takes less time than starting Spark.
LOCAL_BYTES_MAX = 1 * GIB
#: Each thread works on one segment and holds a row group or two; encoding leaves the interpreter to the others.
_THREADS = 4
#: Bytes of the sources in one commit, which a killed job has to process again.
_LOCAL_COMMIT_BYTES, _SPARK_COMMIT_BYTES = 256 * MIB, 8 * GIB


def run(context: JobContext, topic: JobTopic) -> TopicReport:
    return rewrite(context, topic, "merge", _attempt, merge_waits, removes_records=False)


def _attempt(
    context: JobContext, topic: JobTopic, snapshot: TopicSnapshot, partitions: Collection[int]
) -> AttemptResult:
    whole = AttemptResult()
    left = partitions
    # Joined files may be joined again; each plan has fewer files than the one before.
    while groups := _plan(topic, snapshot, left):
        if context.dry_run:
            files = [file for group in groups for file in group.files]
            needed = sum(group.size for group in groups)
            touched = frozenset(group.partition for group in groups)
            return AttemptResult(touched, totals(files), None, bytes_needed_max=needed)
        whole = whole.and_then(write_groups(context, topic, snapshot, groups, MERGE))
        left = {group.partition for group in groups} - whole.refused.keys()
        snapshot = topic.table.snapshot()
    return whole


def _plan(topic: JobTopic, snapshot: TopicSnapshot, partitions: Collection[int]) -> list[MergeGroup]:
    config = topic.config(snapshot)
    return [
        group
        for partition in partitions
        for group in plan_merge(partition, snapshot.partitions[partition], snapshot.segments(partition), config)
    ]


def write_groups(
    context: JobContext, topic: JobTopic, snapshot: TopicSnapshot, groups: Sequence[MergeGroup], operation: str
) -> AttemptResult:
    """Replace groups of files by a segment each, in the order of the groups, in commits of a bounded size."""
    whole = AttemptResult()
    uses_spark = sum(group.size for group in groups) > LOCAL_BYTES_MAX
    for batch in _batches(groups, uses_spark):
        what = f"{sum(len(group.files) for group in batch):,} segments to {len(batch):,}"
        with context.progress.step(f"{topic.name}: writing {what}"):
            whole = whole.and_then(_write(context, topic, snapshot, batch, operation, uses_spark=uses_spark))
    return whole


def _batches(groups: Sequence[MergeGroup], uses_spark: bool) -> Iterator[list[MergeGroup]]:
    """Yield the groups of each commit."""
    batch: list[MergeGroup] = []
    size, size_max = 0, _SPARK_COMMIT_BYTES if uses_spark else _LOCAL_COMMIT_BYTES
    for group in groups:
        batch.append(group)
        size += group.size
        if size >= size_max:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _write(
    context: JobContext,
    topic: JobTopic,
    snapshot: TopicSnapshot,
    groups: Sequence[MergeGroup],
    operation: str,
    *,
    uses_spark: bool,
) -> AttemptResult:
    config, now_ms = topic.config(snapshot), context.clock.now_ms()
    files = topic.table.files
    tasks = [merge_task(group, topic.name, files.uri, snapshot, config, now_ms, operation) for group in groups]
    planned = {group.partition for group in groups}
    try:
        with disk_errors(f"writing segments of topic {topic.name!r}"):
            require_space(context, topic, (file for group in groups for file in group.files))
        done = _by_spark(context, tasks) if uses_spark else _here(context.paced(files), tasks)
        written = sorted(done, key=lambda one: one.task)
    except (StorageError, CorruptionError) as error:
        paths = [file.path for group in groups for file in group.files]
        return refused_as_overtaken(topic, planned, paths, error)
    parts = merge_parts([(group, one.segment) for group, one in zip(groups, written, strict=True)])
    return commit(topic, snapshot, parts, data_change=False, operation=operation)


def _here(files: TableFiles, tasks: Sequence[WriteTask]) -> list[Written]:
    with threads().pool(_THREADS, "merge") as pool:
        return list(pool.map(lambda task: write_here(task[0], task[1], files=files), enumerate(tasks)))


def _by_spark(context: JobContext, tasks: Sequence[WriteTask]) -> list[Written]:
    spark = context.spark.session
    with spark_errors("writing segments"):
        numbers = spark.range(0, len(tasks), 1, len(tasks))
        rows = numbers.mapInArrow(write_whole(tasks, context.pace_of_tasks), WRITTEN_COLUMNS).collect()
        return [written_from_row(*row) for row in rows]
