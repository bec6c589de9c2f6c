"""Columns: files from before a column was declared, and files of other writers, get the columns of the table's schema.

Every file is replaced by one with the same records and the same range (``dataChange=false``), newest first, by the ways
of a merge. The Delta log says which files are not filled; no file is opened to find them. Left alone are files that
retention cuts, and files of other writers that can only be replaced together: a merge fills these.
"""

from collections.abc import Collection

from compaction_jobs.context import JobContext
from compaction_jobs.merge import write_groups
from compaction_jobs.report import TopicReport, totals
from compaction_jobs.rewriting import AttemptResult, rewrite
from compaction_jobs.topics import JobTopic
from compaction_jobs.waiting import columns_waits
from logstore.delta.columns import column_fill
from logstore.delta.snapshot import TopicSnapshot
from logstore.log.merge import MergeGroup, base_offset

OPERATION = "columns"


def run(context: JobContext, topic: JobTopic) -> TopicReport:
    return rewrite(context, topic, OPERATION, _attempt, columns_waits, removes_records=False)


def _attempt(
    context: JobContext, topic: JobTopic, snapshot: TopicSnapshot, partitions: Collection[int]
) -> AttemptResult:
    groups = _plan(topic, snapshot, partitions)
    if context.dry_run:
        files = [file for group in groups for file in group.files]
        touched = frozenset(group.partition for group in groups)
        return AttemptResult(touched, totals(files), None, bytes_needed_max=sum(group.size for group in groups))
    return write_groups(context, topic, snapshot, groups, OPERATION)


def _plan(topic: JobTopic, snapshot: TopicSnapshot, partitions: Collection[int]) -> list[MergeGroup]:
    unfilled = {file.path for file in column_fill(topic.name, snapshot).unfilled}
    found = [
        MergeGroup(partition, (file,), base_offset(file))
        for partition in partitions
        for file in snapshot.segments(partition)
        if not unfilled.isdisjoint(file.paths)
        and file.num_records
        and not file.shared
        and base_offset(file) >= snapshot.partitions[partition].log_start
    ]
    return sorted(found, key=lambda group: -group.files[0].max_timestamp_ms)
