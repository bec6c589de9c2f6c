"""Jobs on real tables without a Spark: its shuffle is a dict here, its executors are this process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pyarrow as pa

from compaction_jobs import retention
from compaction_jobs.jobs import run_job, topics_of
from compaction_jobs.key_compaction import sources_of, write_tasks, write_what_is_empty
from compaction_jobs.planning import plan_compaction
from compaction_jobs.report import TopicReport
from compaction_jobs.segment_tasks import (
    WriteTask,
    Written,
    assign_tasks,
    count_by_source,
    scan_keys,
    write_kept,
    write_whole,
)
from compaction_jobs.topics import JobTopic
from logstore.delta.topic_table import RewritePart
from logstore.table_root import open_root
from tests.support.job_context import job_context
from tests.support.keyed_topics import KeyedTopic
from tests.support.table_paths import path_of


def numbers(values: Sequence[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": pa.array(values, pa.int64())})


def compact(topic: KeyedTopic, now_ms: int, chunk: int = 100, partition: int = 0) -> bool:
    """One round as ``key_compaction`` does it; rows come in ``chunk`` at a time. Whether there was something to do."""
    job = JobTopic(topic.name, topic.table, {}, named=True)
    snapshot = topic.table.snapshot()
    config = job.config(snapshot)
    plan = plan_compaction(partition, snapshot.partitions[partition], snapshot.segments(partition), config, now_ms)
    if plan is None:
        return False
    sources = sources_of([plan])
    last: dict[bytes, int] = {}
    for keys in scan_keys(str(path_of(topic.table)), sources, {partition: plan.log_start})(
        iter([numbers([n]) for n in range(len(sources))])
    ):
        for row, key in zip(keys.column("row").to_pylist(), keys.column("key").to_pylist(), strict=True):
            last[key] = max(row, last.get(key, -1))
    rows = pa.RecordBatch.from_pydict({"row": pa.array(sorted(last.values()), pa.int64())})
    kept = np.zeros(len(sources), dtype=np.int64)
    for counts in count_by_source(np.array([s.first_row for s in sources]))(iter([rows])):
        kept[counts.column("source").to_numpy()] += counts.column("records").to_numpy()
    assert kept.sum() == len(last)
    tasks = write_tasks(job, [plan], sources, kept.tolist(), config, now_ms)
    chunks = [rows.slice(at, chunk) for at in range(0, rows.num_rows, chunk)]
    assigned = assign_tasks(np.array([task.sources[0].first_row for task in tasks]))(iter(chunks))
    written = [_written(answer) for answer in write_kept(tasks)(assigned)]
    written += write_what_is_empty(tasks, written)
    segments = sorted((w.segment for w in written), key=lambda segment: segment.base_offset)
    assert [(s.base_offset, s.end_offset) for s in segments] == [(t.base_offset, t.end_offset) for t in tasks]
    assert sum(w.expired for w in written) + sum(s.num_records for s in segments) == len(last)
    part = RewritePart(partition, tuple(f.path for f in plan.files), tuple(segments), cleaned=plan.clean_point)
    done = topic.table.commit_rewrites([part], data_change=False, operation="key-compaction")
    assert done.committed == (partition,), done.refused
    return True


def retain(topic: KeyedTopic, now_ms: int) -> TopicReport:
    """A run of retention."""
    with cutting_here(), job_context(now_ms) as context:
        (report,) = run_job(
            "retention", topics_of("retention", open_root(topic.data), [topic.name], {}), context
        ).topics
    assert report.error is None, report.error
    return report


@contextmanager
def cutting_here() -> Iterator[None]:
    """Retention cuts segments in this process."""

    def write(_: object, tasks: Sequence[WriteTask]) -> list[Written]:
        return [_written(answer) for answer in write_whole(tasks)(iter([numbers(range(len(tasks)))]))]

    with mock.patch.object(retention, "_write", write):
        yield


def _written(answer: pa.RecordBatch) -> Written:
    return Written.from_row(*answer.to_pylist()[0].values())
