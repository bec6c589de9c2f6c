"""The state of a partition from its table: footers of segments, for a log that begins where the table ends."""

import structlog

from logstore.errors import CorruptionError, storage_error
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.segments.footer import SegmentFooter
from logstore.segments.inherited_state import inherited_footer
from logstore.segments.reader import read_footer
from logstore.table_files import TableFiles

log = structlog.stdlib.get_logger(__name__)


def newest_footers(topic: Topic, partition_log: PartitionLog) -> list[SegmentFooter]:
    """Return footers, newest first: that of the last segment, and earlier ones that may have idempotency keys within
    their window. If another writer rewrote or removed segments, those on disk are read.
    """
    footers: list[SegmentFooter] = []
    files, segments = topic.table.files, partition_log.segments.files
    sealed = topic.snapshot.partitions[partition_log.partition].sealed
    end = segments[-1].end_offset if segments else partition_log.log_start_offset
    if end < sealed and (last := _footer_at(files, partition_log.partition, end, sealed)) is not None:
        footers.append(last)
    for segment in reversed(segments):
        footer = _footer_of(files, segment.path, partition_log.partition)
        if footer is None:
            break
        footers.append(footer)
        if partition_log.state.idempotency_keys.are_over(footer.append_time_ms):
            break
    return footers


def _footer_at(files: TableFiles, partition: int, start: int, sealed: int) -> SegmentFooter | None:
    """Return the state at ``sealed`` after removed records of [start, sealed); None if no segment on disk has it."""
    try:
        footer = inherited_footer(files, partition, start, sealed)
    except OSError as error:
        raise storage_error(f"reading the segments of {files}", error) from error
    return footer if footer.leader_epochs else None


def _footer_of(files: TableFiles, name: str, partition: int) -> SegmentFooter | None:
    try:
        return read_footer(files, name, partition)
    except (CorruptionError, FileNotFoundError) as error:
        # The file is another writer's, damaged or missing; other topics are still served. A disk that cannot be read
        # says nothing about the file: taking the file for missing would mean forgotten producers.
        log.error("recovery.no_footer", file=files.where(name), error=str(error))
        return None
    except OSError as error:
        raise storage_error(f"reading {files.where(name)}", error) from error


def newest_epoch(topic: Topic, partition_log: PartitionLog) -> int | None:
    """Return the leader epoch of the record before the sealed offset of the topic's snapshot; None if no segment has
    it. Blocking. Raises StorageError.
    """
    footers = newest_footers(topic, partition_log)
    return footers[0].leader_epochs[-1][0] if footers and footers[0].leader_epochs else None
