"""Recovery at the broker's start: journal frames and Delta tables become partition logs again.

The Delta table gives the history, the journal the tail. Delta may show less than was sealed before, because a foreign
commit has overwritten ours (rule R7). Then the partition keeps its sealed offset, and the table follower commits the
same files again.

One topic never keeps the others from being served: damage of its table or of its part of the journal quarantines it, or
its partition, and the journal keeps its records.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

import structlog

from logstore.errors import CorruptionError
from logstore.journal.frame import Frame
from logstore.journal.journal import Journal
from logstore.journal.journal_file import PartitionKey
from logstore.log.frame_index import FrameIndex, IndexedFrame
from logstore.log.journal_tail import JournalTail
from logstore.log.newest_footers import newest_footers
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.segments.footer import SegmentFooter

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KeptFrames:
    """The journal frames of a partition that is not served. All of them are kept unchanged."""

    tail: JournalTail
    #: The snapshot frame that begins the partition in a new journal file.
    snapshot: Frame | None
    sealed_offset: int

    @property
    def index(self) -> FrameIndex:
        return self.tail.index

    @property
    def is_truncating(self) -> bool:
        return False

    def frames_to_keep(self, start: int, end: int) -> list[IndexedFrame]:
        """Return the frames at the journal positions [start, end)."""
        return [frame for frame in self.index.located_in(start, end) if frame.end_offset > self.sealed_offset]


@dataclass(frozen=True, slots=True)
class Unserved:
    """Records in the journal of topics that are not served; the journal must keep them."""

    #: By topic id, the number of records that are in no table.
    unsealed_records: dict[UUID, int]
    #: Partitions of those topics, and unrecovered partitions of other topics.
    partitions: dict[PartitionKey, KeptFrames]
    #: By id of a served topic, the number of its partitions in the journal, if the table has fewer.
    lost_partitions: dict[UUID, int]
    #: Deleted topics that have frames in the journal.
    deleted: set[UUID]

    def served(self, topic: Topic) -> None:
        """Note that the topic is served now: its recovered partitions have their frames."""
        self.unsealed_records.pop(topic.topic_id, None)
        for partition_log in topic.partitions:
            if partition_log.recovered:
                self.partitions.pop((topic.topic_id, partition_log.partition), None)

    def forget(self, topic_id: UUID) -> None:
        """Forget the topic, which was deleted."""
        self.unsealed_records.pop(topic_id, None)
        for key in [key for key in self.partitions if key[0] == topic_id]:
            del self.partitions[key]


def recover_topic(topic: Topic, unserved: Unserved, *, producer_ids_begin: int) -> int:
    """Bring a topic whose table came after the start to its state, with the frames that were kept for it.

    Blocking. Returns the number of its partitions in the journal.
    """
    kept = {key[1]: frames.tail for key, frames in unserved.partitions.items() if key[0] == topic.topic_id}
    for partition_log in topic.partitions:
        tail = kept.get(partition_log.partition) or _no_frames()
        _finish(topic, partition_log, tail, lambda: producer_ids_begin)
    return max(kept, default=-1) + 1


def end_at_holes(
    tails: Mapping[PartitionKey, JournalTail], topics: Mapping[UUID, Topic], has_copies: Callable[[UUID, int], bool]
) -> list[PartitionLog]:
    """End each partition of a journal that has lost frames at its first hole; return the partitions that were cut.

    This is only for a broker that has left every ISR. In a whole journal the missing frames were freed after they were
    sealed (``sealed_beyond``). In this one they may be lost. A replica that took them for sealed could join the ISR
    without records that the leader has, so the records after a hole are also copied from the leader. A partition with
    one replica has no copy (``has_copies``, by topic id and partition): it is left as it is, and quarantined.
    """
    ended = []
    for topic in topics.values():
        for partition_log in topic.partitions:
            tail = tails.get((topic.topic_id, partition_log.partition))
            if tail is None or partition_log.quarantined is not None:
                continue
            if not has_copies(topic.topic_id, partition_log.partition):
                continue
            sealed, before = topic.snapshot.partitions[partition_log.partition].sealed, tail.end_offset
            if (end := tail.whole_to(sealed)) < before:
                log.warning(
                    "journal.lost_records",
                    partition=f"{topic.name}-{partition_log.partition}",
                    end=end,
                    before=before,
                    reason="the journal is not the expected one: they are copied from the leader",
                )
                tail.end_at(end)
                ended.append(partition_log)
    return ended


def recover_partitions(
    journal: Journal,
    tails: Mapping[PartitionKey, JournalTail],
    topics: Mapping[UUID, Topic],
    is_deleted: Callable[[UUID], bool],
    *,
    producer_ids_begin: Callable[[], int],
) -> Unserved:
    """Bring every partition log to its state before the stop, from its frames in the journal (``JournalTail``).

    Frames of deleted topics are forgotten; those of others that are not among ``topics`` are kept, because their tables
    may come back. A partition that lacks offsets is quarantined. ``producer_ids_begin`` is the cluster state's, which
    may be known later. Raises CorruptionError where the journal itself is not what was written.
    """
    for (topic_id, partition), tail in tails.items():
        if tail.truncations:
            journal.truncate(topic_id, partition, tail.end_offset)
    logs = {(t.topic_id, p.partition): p for t in topics.values() for p in t.partitions}
    gone = {topic_id for topic_id, _ in tails if topic_id not in topics and is_deleted(topic_id)}
    for topic_id in gone:
        journal.forget(topic_id)
    for topic in topics.values():
        for partition_log in topic.partitions:
            tail = tails.get((topic.topic_id, partition_log.partition)) or _no_frames()
            _finish(topic, partition_log, tail, producer_ids_begin)
            if partition_log.has_inferred_sealed:
                journal.keep_from_gap(topic.topic_id, partition_log.partition, partition_log.sealed_offset)
    unserved = {key: tail for key, tail in tails.items() if key not in logs and key[0] not in gone}
    lost: dict[UUID, int] = {}
    unsealed: dict[UUID, int] = {}
    for (topic_id, partition), tail in unserved.items():
        if topic_id in topics:
            lost[topic_id] = max(lost.get(topic_id, 0), partition + 1)
        elif count := tail.index.offsets_from(tail.sealed_offset):
            unsealed[topic_id] = unsealed.get(topic_id, 0) + count
        journal.release(topic_id, partition, tail.sealed_offset)
    kept = {key: _kept(tail) for key, tail in unserved.items()}
    kept |= {key: _kept(tails[key]) for key, log in logs.items() if not log.recovered and key in tails}
    return Unserved(unsealed, kept, lost, gone)


def _no_frames() -> JournalTail:
    tail = JournalTail()
    tail.settle()
    return tail


def _kept(tail: JournalTail) -> KeptFrames:
    return KeptFrames(tail, tail.snapshot_frame(), tail.sealed_offset)


def _finish(
    topic: Topic, partition_log: PartitionLog, tail: JournalTail, producer_ids_begin: Callable[[], int]
) -> None:
    in_table = topic.snapshot.partitions[partition_log.partition].sealed
    sealed = tail.sealed_beyond(in_table)
    epochs: tuple[tuple[int, int], ...] = () if tail.snapshot is None else tail.snapshot.leader_epochs
    footers: list[SegmentFooter] = []
    if tail.snapshot is None or tail.end_offset < in_table:
        if partition_log.quarantined is not None:  # its own files are not known yet
            partition_log.postpone_recovery(functools.partial(_finish, topic, partition_log, tail, producer_ids_begin))
            return
        footers = newest_footers(topic, partition_log)
        if footers:
            partition_log.recover_append_time(footers[0].append_time_ms)
            if tail.snapshot is None:
                epochs = footers[0].leader_epochs
    known = max(in_table, tail.sealed_offset)
    partition_log.recover(tail, known_sealed=known, sealed_offset=sealed, leader_epochs=epochs)
    if tail.end_offset < in_table:
        partition_log.state.recover_from_footers(footers, producer_ids_begin())
    try:
        partition_log.finish_recovery()
    except CorruptionError as error:
        log.error("partition.quarantined", topic=topic.name, partition=partition_log.partition, why=str(error))
        partition_log.quarantine(str(error), "Restore the journal or the table from a backup, then restart the store")
        partition_log.postpone_recovery(None)
