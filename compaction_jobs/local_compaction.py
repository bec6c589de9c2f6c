"""Key compaction of a partition in this process, by threads: pyarrow and numpy work without Python's lock."""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from compaction_jobs.compaction_tasks import sources_of, write_tasks
from compaction_jobs.context import JobContext
from compaction_jobs.latest_rows import KeysDoNotFitError, find_kept
from compaction_jobs.planning import CompactionPlan
from compaction_jobs.space import replaced, require_space
from compaction_jobs.topics import JobTopic
from logstore.segments.joining import Rows, WriteTask, Written, has_unmet_tombstone, write_segment
from logstore.table_files import TableFiles
from logstore.threads import threads
from logstore.topic_config import TopicConfig

#: Each thread that writes holds two row groups.
_THREADS_MAX = 8
#: Each holds a map of its dirty keys.
_PARTITIONS_AT_ONCE = 2


@dataclass(slots=True)
class LocalResult:
    """Tasks and their segments; plans whose keys do not fit, which Spark has to do."""

    tasks: list[WriteTask] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    too_large: list[CompactionPlan] = field(default_factory=list)


def compact_here(
    context: JobContext, topic: JobTopic, plans: Sequence[CompactionPlan], config: TopicConfig, now_ms: int
) -> LocalResult:
    """Write the segments of partitions, several partitions at a time.

    Raises StorageFullError, OSError, CorruptionError.
    """
    result = LocalResult()
    with (
        threads().pool(thread_count(), "compaction") as pool,
        threads().pool(_PARTITIONS_AT_ONCE, "partition") as partitions,
    ):
        futures = [partitions.submit(_compact, context, topic, plan, config, now_ms, pool) for plan in plans]
        try:
            for plan, future in zip(plans, futures, strict=True):
                try:
                    tasks, written = future.result()
                except KeysDoNotFitError:
                    result.too_large.append(plan)
                else:
                    result.tasks += tasks
                    result.written += written
        finally:
            for future in futures:
                future.cancel()
    return result


def _compact(
    context: JobContext,
    topic: JobTopic,
    plan: CompactionPlan,
    config: TopicConfig,
    now_ms: int,
    pool: Executor,
) -> tuple[list[WriteTask], list[Written]]:
    """Compact one partition. Raises KeysDoNotFitError, StorageFullError, OSError, CorruptionError."""
    files = context.paced(topic.table.files)
    sources = sources_of([plan])
    clean = len(plan.clean)
    found = find_kept(files, sources[:clean], sources[clean:], plan.log_start, pool)
    tasks = write_tasks(files, topic, plan, sources, found.counts, config, now_ms)
    rewritten = {source.path for task in tasks for source in task.sources}
    if any(source.path in rewritten and has_unmet_tombstone(files, source) for source in sources[:clean]):
        found = find_kept(files, [], sources, plan.log_start, pool)
        tasks = write_tasks(files, topic, plan, sources, found.counts, config, now_ms)
    require_space(context, topic, replaced(plan.files, tasks))
    by_path = {source.path: rows for source, rows in zip(sources, found.of_source, strict=True)}
    return tasks, write_all(files, tasks, pool, [[by_path[s.path] for s in task.sources] for task in tasks])


def thread_count() -> int:
    return min(int(pa.cpu_count()), _THREADS_MAX)


def write_all(
    files: TableFiles,
    tasks: Sequence[WriteTask],
    pool: Executor,
    kept: Sequence[Sequence[Rows] | None],
) -> list[Written]:
    """Write the segments of ``tasks``, with the ``kept`` rows of each source; None keeps all from the log start offset
    on.

    A failure stops the tasks that have not begun. Raises OSError, CorruptionError.
    """

    def write(number: int) -> Written:
        rows = kept[number]
        return write_segment(number, tasks[number], None if rows is None else _InOrder(rows), files=files)

    futures = [pool.submit(write, number) for number in range(len(tasks))]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


class _InOrder:
    """Rows of adjacent sources, as ``logstore.segments.joining`` takes them."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self._rows = np.concatenate([np.empty(0, dtype=np.int64), *parts])
        self._taken = 0

    def take(self, end: int) -> Rows:
        begin, self._taken = self._taken, int(np.searchsorted(self._rows, end))
        taken: Rows = self._rows[begin : self._taken]
        return taken
