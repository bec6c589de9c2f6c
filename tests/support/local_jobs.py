"""Jobs on real tables without a Spark: directly, or with a dict as shuffle and this process as executor."""

from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from compaction_jobs.compaction_tasks import sources_of, write_tasks
from compaction_jobs.jobs import run_job, topics_of
from compaction_jobs.planning import plan_compaction
from compaction_jobs.report import TopicReport
from compaction_jobs.segment_tasks import (
    assign_tasks,
    count_by_source,
    scan_keys,
    tasks_of_sources,
    write_kept,
    written_from_row,
)
from compaction_jobs.spark_compaction import write_what_is_empty
from compaction_jobs.topics import JobTopic
from logstore.delta.clean_files import clean_digest
from logstore.delta.topic_table import RewritePart
from logstore.log import merging
from logstore.segments.joining import Written
from logstore.table_root import open_root
from tests.support.job_context import job_context
from tests.support.keyed_topics import KeyedTopic
from tests.support.table_paths import path_of


def numbers(values: Sequence[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": pa.array(values, pa.int64())})


def compact_by_tasks(topic: KeyedTopic, now_ms: int, chunk: int = 100, partition: int = 0) -> bool:
    """Run one round as ``spark_compaction`` does, ``chunk`` rows at a time; return whether there was any work."""
    job = JobTopic(topic.name, topic.table, {}, named=True)
    snapshot = topic.table.snapshot()
    config = job.config(snapshot)
    plan = plan_compaction(partition, snapshot.partitions[partition], snapshot.segments(partition), config, now_ms)
    if plan is None:
        return False
    sources = sources_of([plan])
    first_rows = np.array([source.first_row for source in sources])
    last: dict[bytes, int] = {}
    for keys in scan_keys(str(path_of(topic.table)), sources, {partition: plan.log_start})(
        iter([numbers([n]) for n in range(len(sources))])
    ):
        for row, key in zip(keys.column("row").to_pylist(), keys.column("key").to_pylist(), strict=True):
            last[key] = max(row, last.get(key, -1))
    rows = pa.RecordBatch.from_pydict({"row": pa.array(sorted(last.values()), pa.int64())})
    kept = np.zeros(len(sources), dtype=np.int64)
    for counts in count_by_source(first_rows)(iter([rows])):
        kept[counts.column("source").to_numpy()] += counts.column("records").to_numpy()
    assert kept.sum() == len(last)
    tasks = write_tasks(topic.table.files, job, plan, sources, kept.tolist(), config, now_ms)
    chunks = [rows.slice(at, chunk) for at in range(0, rows.num_rows, chunk)]
    assigned = assign_tasks(first_rows, tasks_of_sources(sources, tasks))(iter(chunks))
    written = [_written(answer) for answer in write_kept(tasks)(assigned)]
    written += write_what_is_empty(tasks, written)
    segments = sorted((w.segment for w in written), key=lambda segment: segment.base_offset)
    assert [(s.base_offset, s.end_offset) for s in segments] == [(t.base_offset, t.end_offset) for t in tasks]
    removes = tuple(source.path for task in tasks for source in task.sources)
    left = [file for file in snapshot.segments(partition) if file.path not in removes]
    digest = clean_digest([*left, *segments], plan.clean_point)
    part = RewritePart(partition, removes, tuple(segments), cleaned=plan.clean_point, clean_digest=digest)
    done = topic.table.commit_rewrites([part], data_change=False, operation="key-compaction")
    assert done.committed == (partition,), done.refused
    return True


def compact(topic: KeyedTopic, now_ms: int, **options: Any) -> TopicReport:
    """Run key compaction, with options of the job's context."""
    return _run("compact", topic, now_ms, **options)


def merge(topic: KeyedTopic, now_ms: int) -> TopicReport:
    """Run a merge that spares no file."""
    with mock.patch.object(merging, "NEWEST_KEPT", 0):
        return _run("merge", topic, now_ms)


def retain(topic: KeyedTopic, now_ms: int) -> TopicReport:
    """Run retention."""
    return _run("retention", topic, now_ms)


def _run(job: str, topic: KeyedTopic, now_ms: int, **options: Any) -> TopicReport:
    with job_context(now_ms, **options) as context:
        (report,) = run_job(job, topics_of(job, open_root(topic.data), [topic.name], {}), context).topics
        assert context.spark._session is None
    assert report.error is None, report.error
    return report


def _written(answer: pa.RecordBatch) -> Written:
    return written_from_row(*answer.to_pylist()[0].values())
