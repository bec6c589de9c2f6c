"""What a broker finds when it starts: journal frames and Delta tables become partition logs again.

History is Delta's to tell, the tail the journal's. Where Delta shows less than was sealed before (a foreign commit has
overwritten ours, rule R7), the partition keeps what was sealed, and the roller commits the same files again.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from uuid import UUID

import structlog

from logstore.errors import CorruptionError
from logstore.journal.frame import FrameType, PartitionSnapshot
from logstore.journal.journal import Journal
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.segments.footer import SegmentFooter
from logstore.segments.reader import read_footer

log = structlog.stdlib.get_logger(__name__)


def recover_partitions(journal: Journal, topics: Mapping[UUID, Topic], deleted: Collection[UUID]) -> set[UUID]:
    """Read the whole journal once and bring every partition log to its state before the stop.

    Frames of ``deleted`` topics are forgotten; returned are those of them that have any. Raises CorruptionError,
    naming topic and partition, where offsets are missing, and where the table is of un-sealed records.
    """
    logs = {(t.topic_id, p.partition): p for t in topics.values() for p in t.partitions}
    snapshots: dict[tuple[UUID, int], PartitionSnapshot] = {}
    gone: set[UUID] = set()
    missing: dict[UUID, int] = {}
    for frame in journal.recover():
        header = frame.header
        key = header.topic_id, header.partition
        partition_log = logs.get(key)
        if header.type == FrameType.SNAPSHOT:
            assert frame.payload is not None
            snapshots[key] = PartitionSnapshot.decode(frame.payload)
            if partition_log is not None:
                partition_log.recover_append_time(header.append_time_ms)
                partition_log.recover_snapshot(snapshots[key])
        if partition_log is None:
            gone.add(header.topic_id)
            sealed = snapshots[key].sealed_offset if key in snapshots else 0
            if header.topic_id not in deleted and header.type == FrameType.DATA and header.end_offset > sealed:
                missing[header.topic_id] = missing.get(header.topic_id, 0) + header.record_count
        elif header.type == FrameType.DATA:
            partition_log.recover_frame(header, frame.location)
    for topic_id, count in missing.items():
        raise CorruptionError(
            f"The journal holds {count} records of the topic with id {topic_id}, whose table is not among the topics: "
            f"bring its directory back. To give the records up, make an empty directory deleted/{topic_id} in the data "
            "directory."
        )
    for topic_id in gone:
        journal.forget(topic_id)
    for topic in topics.values():
        for partition_log in topic.partitions:
            _finish(topic, partition_log, snapshots.get((topic.topic_id, partition_log.partition)))
    return gone


def _newest_footers(topic: Topic, partition_log: PartitionLog) -> list[SegmentFooter]:
    """Newest first: that of the last segment, and of those before it which may tell of keys in their window."""
    footers: list[SegmentFooter] = []
    for segment in reversed(partition_log.segments):
        footer = _footer_of(topic.table.path / segment.path)
        if footer is None:
            break
        footers.append(footer)
        if footer.append_time_ms + topic.config.idempotency_window_ms <= footers[0].append_time_ms:
            break
    return footers


def _footer_of(path: Path) -> SegmentFooter | None:
    try:
        return read_footer(path)
    except (CorruptionError, OSError) as error:
        # A foreign writer's, or one that is damaged or gone: no reason to keep all other topics from being served.
        log.error("recovery.no_footer", file=str(path), error=str(error))
        return None


def _finish(topic: Topic, partition_log: PartitionLog, snapshot: PartitionSnapshot | None) -> None:
    in_table = topic.snapshot.partitions[partition_log.partition].sealed
    # Frames are freed only once they are sealed: where the journal begins above the table's sealed offset, what is
    # missing was sealed.
    journal_start = partition_log.index.lowest_above(in_table)
    sealed = max(in_table, snapshot.sealed_offset if snapshot else 0, journal_start or 0)
    epochs: tuple[tuple[int, int], ...] = () if snapshot is None else snapshot.leader_epochs
    if snapshot is None or partition_log.remembered_end < in_table:
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
        raise CorruptionError(f"{partition_log.topic}-{partition_log.partition}: {error}") from error
