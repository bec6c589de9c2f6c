"""Recovery at the broker's start: journal frames and Delta tables become partition logs again.

The Delta table gives the history, the journal the tail. Where Delta shows less than was sealed before (a foreign commit
has overwritten ours, rule R7), the partition keeps what was sealed, and the roller commits the same files again.

One topic never keeps the others from being served: damage of its table or of its part of the journal quarantines it, or
its partition, and the journal keeps its records.
"""

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

import structlog

from logstore.errors import CorruptionError, storage_error
from logstore.journal.frame import Frame, FrameType
from logstore.journal.journal import Journal
from logstore.journal.journal_file import PartitionKey
from logstore.journal.partition_snapshot import PartitionSnapshot
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.segments.footer import SegmentFooter
from logstore.segments.reader import read_footer
from logstore.table_files import TableFiles

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Unserved:
    """Records in the journal of topics that are not served; the journal must keep them."""

    #: By topic id: records that are in no table.
    unsealed_records: dict[UUID, int]
    #: The newest snapshot frame of each partition: of those topics, and of those of others that are not recovered.
    snapshots: dict[PartitionKey, Frame]
    #: By topic id, of topics that are served: how many partitions the journal has frames of, if the table has fewer.
    lost_partitions: dict[UUID, int]
    #: Topics that were deleted, of which the journal has frames.
    deleted: set[UUID]


def recover_partitions(journal: Journal, topics: Mapping[UUID, Topic], deleted: Collection[UUID]) -> Unserved:
    """Read the whole journal once and bring every partition log to its state before the stop.

    Frames of ``deleted`` topics are forgotten; those of others that are not among ``topics`` are kept, because their
    tables may come back. A partition of which offsets are missing is quarantined. Raises CorruptionError where the
    journal itself is not what was written.
    """
    logs = {(t.topic_id, p.partition): p for t in topics.values() for p in t.partitions}
    snapshots: dict[PartitionKey, PartitionSnapshot] = {}
    frames: dict[PartitionKey, Frame] = {}
    unserved: set[UUID] = set()
    lost: dict[UUID, int] = {}
    unsealed: dict[UUID, int] = {}
    for frame in journal.recover():
        header = frame.header
        key = header.topic_id, header.partition
        partition_log = logs.get(key)
        if header.type == FrameType.SNAPSHOT:
            assert frame.payload is not None
            snapshots[key] = PartitionSnapshot.decode(frame.payload)
            frames[key] = Frame(header, frame.payload)
            if partition_log is not None:
                partition_log.recover_append_time(header.append_time_ms)
                partition_log.recover_snapshot(snapshots[key])
        if partition_log is None and header.topic_id in topics:
            lost[header.topic_id] = max(lost.get(header.topic_id, 0), header.partition + 1)
        elif partition_log is None:
            unserved.add(header.topic_id)
            sealed = snapshots[key].sealed_offset if key in snapshots else 0
            if header.type == FrameType.DATA and header.end_offset > sealed:
                unsealed[header.topic_id] = unsealed.get(header.topic_id, 0) + header.record_count
        elif header.type == FrameType.DATA:
            partition_log.recover_frame(header, frame.location)
    gone = unserved.intersection(deleted)
    for topic_id in gone:
        journal.forget(topic_id)
        unsealed.pop(topic_id, None)
    for topic in topics.values():
        for partition_log in topic.partitions:
            _finish(topic, partition_log, snapshots.get((topic.topic_id, partition_log.partition)))
    kept = [key for key in frames if key not in logs and key[0] not in gone]
    for topic_id, partition in kept:
        journal.release(topic_id, partition, snapshots[topic_id, partition].sealed_offset)
    kept += [key for key, partition_log in logs.items() if not partition_log.recovered and key in frames]
    return Unserved(unsealed, {key: frames[key] for key in kept}, lost, gone)


def _newest_footers(topic: Topic, partition_log: PartitionLog) -> list[SegmentFooter]:
    """Footers, newest first: of the last segment, and of earlier ones that may have idempotency keys within their
    window.
    """
    footers: list[SegmentFooter] = []
    for segment in reversed(partition_log.segments):
        footer = _footer_of(topic.table.files, segment.path)
        if footer is None:
            break
        footers.append(footer)
        if footer.append_time_ms + topic.config.idempotency_window_ms <= footers[0].append_time_ms:
            break
    return footers


def _footer_of(files: TableFiles, name: str) -> SegmentFooter | None:
    try:
        return read_footer(files, name)
    except (CorruptionError, FileNotFoundError) as error:
        # The file is a foreign writer's, damaged or gone: other topics are served all the same. A disk that cannot be
        # read says nothing of the file: whoever took it for gone would forget producers.
        log.error("recovery.no_footer", file=files.where(name), error=str(error))
        return None
    except OSError as error:
        raise storage_error(f"reading {files.where(name)}", error) from error


def _finish(topic: Topic, partition_log: PartitionLog, snapshot: PartitionSnapshot | None) -> None:
    in_table = topic.snapshot.partitions[partition_log.partition].sealed
    # Frames are freed only once they are sealed: where the journal begins above the table's sealed offset, the records
    # between the two were sealed.
    journal_start = partition_log.index.lowest_above(in_table)
    sealed = max(in_table, snapshot.sealed_offset if snapshot else 0, journal_start or 0)
    epochs: tuple[tuple[int, int], ...] = () if snapshot is None else snapshot.leader_epochs
    if snapshot is None or partition_log.remembered_end < in_table:
        if partition_log.quarantined is not None:  # which files are its own is not known yet
            partition_log.postpone_recovery(functools.partial(_finish, topic, partition_log, snapshot))
            return
        footers = _newest_footers(topic, partition_log)
        if footers and snapshot is None:
            epochs = footers[0].leader_epochs
            partition_log.recover_append_time(footers[0].append_time_ms)
        if partition_log.remembered_end < in_table:
            keys = [batch for footer in reversed(footers) for batch in footer.idempotency_keys]
            partition_log.recover_from_footers(in_table, footers[0].producers if footers else (), keys)
    partition_log.recover_history(sealed_offset=sealed, leader_epochs=epochs)
    try:
        partition_log.finish_recovery()
    except CorruptionError as error:
        log.error("partition.quarantined", topic=topic.name, partition=partition_log.partition, why=str(error))
        partition_log.quarantine(str(error), "Restore the journal or the table from a backup, then restart the store")
        partition_log.postpone_recovery(None)
