"""Vacuum: files that left the table ``file.delete.delay.ms`` ago are deleted from storage, by Delta's own VACUUM.

``VACUUM LITE`` deletes files that the Delta log says were removed, never a file that no commit has named yet (a roll
between its file and its commit would lose it). A full VACUUM goes by a file's age alone, so it takes at least 7 days.
It runs when it is asked for, and when LITE refuses because the log entries with the removals are gone. Spark starts
only if a file is on disk that could be deleted.
"""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING

from compaction_jobs.applications import require_delta, spark_errors
from compaction_jobs.context import JobContext
from compaction_jobs.report import TopicReport
from compaction_jobs.topics import JobTopic
from compaction_jobs.waiting import vacuum_waits
from logstore.delta.log_entries import list_log, read_actions, read_checkpoint_actions
from logstore.errors import StorageError
from logstore.table_files import TableFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FULL_DELAY_MS_MIN = 7 * 24 * 3_600_000

#: The error of LITE if the log entries since the last vacuum, or since the table's first version, are cleaned away.
_LITE_REFUSES = "DELTA_CANNOT_VACUUM_LITE"


def run(context: JobContext, topic: JobTopic) -> TopicReport:
    """StorageError, SparkStartError."""
    snapshot = topic.table.snapshot()
    delay_ms = topic.config(snapshot).file_delete_delay_ms
    full = context.full
    files = topic.table.files
    before = _files(files)
    inactive = {name: file for name, file in before.items() if name not in snapshot.paths}

    def due(delay_ms: int) -> set[str]:
        """The files that could be deleted. A file is written before it is removed, so its age bounds its removal."""
        oldest = context.clock.now_ms() - delay_ms
        return {name for name, (_, modified_ms) in inactive.items() if modified_ms <= oldest}

    def report(gone: Collection[str]) -> TopicReport:
        left = {name: file for name, file in inactive.items() if name not in gone}
        full_delay_ms = max(delay_ms, FULL_DELAY_MS_MIN)
        waiting = vacuum_waits(_removal_times(files) if left else {}, left, delay_ms, full_delay_ms, full=full)
        size = sum(before[name][0] for name in gone)
        return TopicReport(topic.name, deleted_files=len(gone), deleted_bytes=size, waiting=tuple(waiting))

    if full:
        delay_ms = max(delay_ms, FULL_DELAY_MS_MIN)
    if not due(delay_ms):
        return report(())
    spark = context.spark.session
    require_delta(spark)
    with context.progress.step(f"{topic.name}: vacuum of {len(due(delay_ms)):,} files at most"):
        named = _vacuum(spark, files, delay_ms, full=full, dry_run=context.dry_run)
        if named is None:
            delay_ms = max(delay_ms, FULL_DELAY_MS_MIN)
            if not due(delay_ms):
                return report(())
            named = _vacuum(spark, files, delay_ms, full=True, dry_run=context.dry_run)
    gone = (named or set()) & set(before) if context.dry_run else set(before) - set(_files(files))
    return report(gone)


def _removal_times(files: TableFiles) -> dict[str, int]:
    """When (ms) a commit took a file out of the table, as far as the log still tells. CorruptionError, OSError."""
    found = list_log(files)
    base = max(found.checkpoints, default=-1)
    entries = (read_actions(files, version) for version in sorted(found.entries) if version > base)
    times: dict[str, int] = {}
    for action in chain(read_checkpoint_actions(files, found.checkpoints.get(base, ())), *entries):
        if action.remove is not None and action.remove.deletion_timestamp is not None:
            times[action.remove.path] = action.remove.deletion_timestamp
    return times


def _files(files: TableFiles) -> dict[str, tuple[int, int]]:
    """Size and modification time (ms) of the Parquet files in storage, by path in the table."""
    return {
        entry.name: (entry.size, entry.modified_ms)
        for entry in files.list("")
        if re.fullmatch(r"partition=[^/]*/[^/]*\.parquet", entry.name)
    }


def _vacuum(spark: "SparkSession", files: TableFiles, delay_ms: int, *, full: bool, dry_run: bool) -> set[str] | None:
    """Run the VACUUM; with ``dry_run`` return the files (1,000 at most) that it would delete. None if LITE refuses."""
    table = files.spark_uri.replace("`", "``")
    statement = f"VACUUM delta.`{table}` {'FULL' if full else 'LITE'} RETAIN {delay_ms / 3_600_000:.6f} HOURS"
    try:
        with spark_errors("VACUUM"), _configured(spark):
            rows = spark.sql(f"{statement} DRY RUN" if dry_run else statement).collect()
    except StorageError as error:
        if not full and _LITE_REFUSES in str(error.__cause__):
            return None
        raise
    return {match[0] for row in rows if (match := re.search(r"partition=\d+/[^/]+\.parquet$", row[0]))}


@contextmanager
def _configured(spark: "SparkSession") -> Iterator[None]:
    """A session that is not ours alone gets its settings back."""
    settings = {
        # Otherwise a vacuum makes two commits of its own, and rolls would lose races against them.
        "spark.databricks.delta.vacuum.logging.enabled": "false",
        # The delay comes from the topic's configuration; Spark's check is for delays that are typed.
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        # Tasks of a full listing. Spark's default is 10,000: minutes, however few the files are.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(4 * spark.sparkContext.defaultParallelism),
    }
    before = {key: spark.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)
