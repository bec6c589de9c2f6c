"""The tasks of a compaction: which files of a partition are rewritten, and as which segments.

A file is rewritten if it holds a record that goes: an older one of its key, one without a key, one below the log start
offset, or an expired tombstone. So is a file with a tombstone that no compaction has met, because the footer of the new
file notes that time, and a file of another writer. Every other file stays as it is. Footers show where tombstones are.
No value is read, except in row groups with a tombstone that may have expired.
"""

from collections.abc import Sequence

from compaction_jobs.planning import CompactionPlan, rewrite_groups
from compaction_jobs.topics import JobTopic
from logstore.delta.columns import layout_of
from logstore.segments.merge import Source, WriteTask, expired_tombstones
from logstore.segments.null_counts import null_values
from logstore.segments.reader import read_footer, read_row_group
from logstore.table_files import TableFiles
from logstore.topic_config import TopicConfig

OPERATION = "key-compaction"


def sources_of(plans: Sequence[CompactionPlan]) -> list[Source]:
    """Return the files of all plans, in order, with their rows numbered consecutively."""
    sources = []
    row = 0
    for plan in plans:
        for file in plan.files:
            sources.append(Source(plan.partition, file.path, file.num_records, row))
            row += file.num_records
    return sources


def write_tasks(
    files: TableFiles,
    topic: JobTopic,
    plan: CompactionPlan,
    sources: Sequence[Source],
    kept: Sequence[int],
    config: TopicConfig,
    now_ms: int,
) -> list[WriteTask]:
    """Return one task for each segment to write, by rising row.

    ``sources`` are the plan's, of which ``kept`` records stay. Raises CorruptionError, OSError.
    """
    dirty_from = len(plan.clean)
    rewritten = [
        file.foreign
        or stay < source.num_records
        or (
            _has_tombstones(files, source)
            if at >= dirty_from
            else _has_expired(files, source, now_ms, config.delete_retention_ms)
        )
        for at, (file, source, stay) in enumerate(zip(plan.files, sources, kept, strict=True))
    ]
    sizes = [file.size * stay / max(1, file.num_records) for file, stay in zip(plan.files, kept, strict=True)]
    by_path = {source.path: source for source in sources}
    return [
        WriteTask(
            topic=topic.name,
            table=files.uri,
            partition=plan.partition,
            sources=tuple(by_path[file.path] for file in group.files),
            base_offset=group.base_offset,
            end_offset=group.end_offset,
            log_start=plan.log_start,
            codec=config.segment_codec,
            operation=OPERATION,
            idempotency_window_ms=config.idempotency_window_ms,
            first_dirty=plan.first_dirty,
            now_ms=now_ms,
            delete_retention_ms=config.delete_retention_ms,
            layout=layout_of(topic.name, topic.table.latest),
        )
        for group in rewrite_groups(plan, rewritten, sizes, config.segment_bytes)
    ]


def _has_tombstones(files: TableFiles, source: Source) -> bool:
    if not source.num_records:
        return False
    found = null_values(files, source.path)
    return any(
        read_row_group(files, source.path, index, ["offset", "value"]).column("value").null_count
        if nulls is None
        else nulls
        for index, nulls in enumerate(found)
    )


def _has_expired(files: TableFiles, source: Source, now_ms: int, delete_retention_ms: int) -> bool:
    """Return True if a file that was compacted before holds an expired tombstone."""
    if not source.num_records:
        return False
    footer = read_footer(files, source.path, source.partition)
    if not any(time_ms <= now_ms - delete_retention_ms for _, time_ms in footer.cleanings):
        return False
    return any(
        nulls != 0
        and expired_tombstones(
            read_row_group(files, source.path, index, ["offset", "value"]), footer, now_ms, delete_retention_ms
        ).any()
        for index, nulls in enumerate(null_values(files, source.path))
    )
