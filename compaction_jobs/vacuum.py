"""Vacuum deletes files from storage that left the table ``file.delete.delay.ms`` ago.

The removals in the Delta log decide, so that a file that no commit has named yet (a roll between its file and its
commit) is never touched. The log forgets removals after some days. Segments that it forgot, and those of jobs that were
killed before their commit, are unnamed, and the table has their offsets in other files. They are deleted by age, after
at least seven days. ``--full`` does the same with files whose names are not ours. A segment with offsets that the table
lacks always stays. Files of deletion vectors are treated like data files. If the delay is longer than the log
remembers, a run makes the log remember longer; else a vacuum commits nothing.
"""

from compaction_jobs.context import JobContext
from compaction_jobs.report import TopicReport
from compaction_jobs.topics import JobTopic
from compaction_jobs.waiting import vacuum_waits
from logstore.delta.removed_files import (
    ACTIVE,
    UnnamedFiles,
    delete_removed_files,
    delete_unnamed_files,
    may_be_deleted,
    named_files,
    unnamed_files,
)
from logstore.delta.schema import removals_kept_ms
from logstore.errors import storage_error
from logstore.table_files import TableFiles

UNNAMED_AGE_MS_MIN = 7 * 24 * 3_600_000


def run(context: JobContext, topic: JobTopic) -> TopicReport:
    """Vacuum a topic.

    Raises StorageError, CorruptionError; CommitConflictError, CommitStateUnknownError of the commit about removals.
    """
    files = topic.table.files
    try:
        return _run(context, topic, files)
    except OSError as error:
        raise storage_error(f"deleting files of {files}", error) from error


def _run(context: JobContext, topic: JobTopic, files: TableFiles) -> TopicReport:
    versions: tuple[int, ...] = ()
    snapshot, now_ms, dry_run = topic.table.snapshot(), context.clock.now_ms(), context.dry_run
    delay_ms = topic.config(snapshot).file_delete_delay_ms
    kept_ms = removals_kept_ms(snapshot.properties)
    if kept_ms is not None and kept_ms < delay_ms and not dry_run:
        versions = (topic.table.keep_removals(delay_ms),)
        snapshot = topic.table.snapshot()
    # Files are listed after the snapshot, so a file that another commit names meanwhile is young.
    there = {entry.name: entry for entry in files.list("") if may_be_deleted(entry.name)}
    unnamed = unnamed_files(files, snapshot, there.values())
    deletable = {**unnamed.superseded, **(unnamed.others if context.full else {})}
    age_ms = max(delay_ms, UNNAMED_AGE_MS_MIN)
    with context.progress.step(f"{topic.name}: vacuum"):
        removed = delete_removed_files(files, snapshot, delay_ms=delay_ms, now_ms=now_ms, dry_run=dry_run)
        aged = delete_unnamed_files(files, deletable, age_ms=age_ms, now_ms=now_ms, dry_run=dry_run)
    gone = {*removed.names, *aged.names}
    left = {
        name: (entry.size, removed_ms)
        for name, removed_ms in named_files(files, snapshot).items()
        if removed_ms != ACTIVE and name not in gone and (entry := there.get(name)) is not None
    }
    kept = UnnamedFiles(
        *(
            {name: entry for name, entry in group.items() if name not in gone}
            for group in (unnamed.superseded, unnamed.needed, unnamed.others)
        )
    )
    waiting = vacuum_waits(left, kept, delay_ms, age_ms, full=context.full)
    return TopicReport(
        topic.name,
        versions=versions,
        deleted_files=len(gone),
        deleted_bytes=removed.bytes + aged.bytes,
        waiting=tuple(waiting),
    )
