"""A topic follows its table: commits of others are taken over, and files of ours that the table has lost are committed
again (rule R7).

If a later snapshot shows less than was sealed, a foreign commit has overwritten ours. If it shows gaps that neither a
DELETE nor a job explains, another writer took records out: readers are told so.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

import structlog

from logstore.clock import Clock
from logstore.delta.log_entries import removals_since
from logstore.delta.schema import TOMBSTONE_RETENTION_PROPERTY, TOMBSTONES_KEPT_MS
from logstore.delta.snapshot import TopicSnapshot
from logstore.delta.topic_table import RollPart
from logstore.errors import CorruptionError, StorageError
from logstore.log.history import (
    MissingSegmentsError,
    RemovedRange,
    history_gaps,
    missing_ranges,
    new_gaps,
    removed_ranges,
    sealed_segments_on_disk,
)
from logstore.log.isolation import Isolation
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.segments.footer import ROLL
from logstore.segments.reader import segment_from_file, verify_segment
from logstore.segments.writer import Segment
from logstore.table_files import TableFiles

log = structlog.stdlib.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Restored:
    """``any``: whether files were committed again; ``failed``: by partition, the reason why that failed."""

    any: bool
    failed: dict[int, str]


class TableFollower:
    """Brings topics to the newest version of their tables. The caller holds the topic's commit lock."""

    def __init__(self, clock: Clock, executor: Executor) -> None:
        self._clock = clock
        self._executor = executor

    async def follow(self, topic: Topic, *, at_start: bool = False) -> None:
        """Bring the topic to the newest version of its table. ``at_start`` also looks for gaps in the history.

        Raises CorruptionError if the table's log cannot be read or a lost file is damaged, StorageError, and as
        ``TopicTable.commit_roll`` if files cannot be committed again.
        """

        def look() -> tuple[TopicSnapshot, _Restored]:
            snapshot = topic.table.snapshot()
            return snapshot, self._restore(topic, snapshot, at_start=at_start)

        snapshot, restored = await self._look(topic, look)
        if restored.any:
            snapshot = await self._look(topic, topic.table.snapshot)
        sound = [p for p in range(snapshot.num_partitions) if _is_sound(snapshot, p)]
        gaps = {partition: history_gaps(snapshot, partition) for partition in sound}
        removed = await self._removed(topic, gaps, None if at_start else topic.snapshot)
        # From here on without an await: no reader may follow the table before the missing records are known.
        topic.follow(snapshot, restored.failed)
        for partition_log in topic.partitions:
            self._adopt(partition_log, snapshot)
        self._note_missing(topic, gaps, removed)

    async def _removed(
        self, topic: Topic, gaps: Mapping[int, list[tuple[int, int]]], before: TopicSnapshot | None
    ) -> dict[int, list[RemovedRange]]:
        """The commits that removed files from the table: since ``before``, or all of them for a first look."""
        looked_at = topic.gaps
        if all(found == looked_at.get(partition, []) for partition, found in gaps.items()):
            return {}
        first = before is None or any(found and p not in looked_at for p, found in gaps.items())
        files, seen = topic.table.files, -1 if first or before is None else before.version
        return await self._look(topic, lambda: removed_ranges(removals_since(files, seen), before, files))

    def _note_missing(
        self, topic: Topic, gaps: Mapping[int, list[tuple[int, int]]], removed: Mapping[int, list[RemovedRange]]
    ) -> None:
        """Find records that another writer took out of the history of served partitions, or put back. A partition that
        was not served is examined from the first entry on: its loss may be older than the last look.
        """
        served = [p for p in topic.partitions if p.quarantined is None and p.partition in gaps]
        for partition_log in served:
            partition, found = partition_log.partition, gaps[partition_log.partition]
            looked_at = topic.gaps.get(partition)
            missing = missing_ranges(
                # A gap that was there before keeps its cause.
                new_gaps(found, looked_at or []),
                removed.get(partition, []),
                # An old DELETE may have removed it; the log no longer has that entry.
                unexplained=None
                if looked_at is None
                else f"a commit that is not in the log of version {topic.version}",
            )
            before = partition_log.missing
            kept = before if looked_at is not None else ()
            known = [left for gap in kept for left in gap.within(found)]
            partition_log.missing = tuple(sorted({*known, *missing}, key=lambda gap: gap.start))
            for gap in partition_log.missing:
                if gap not in before:
                    log.error(
                        "history.records_missing",
                        topic=topic.name,
                        partition=partition,
                        start=gap.start,
                        end=gap.end,
                        cause=gap.cause,
                    )
        topic.gaps = {p.partition: gaps[p.partition] for p in served}

    def _adopt(self, partition_log: PartitionLog, snapshot: TopicSnapshot) -> None:
        """Take over a commit of ours whose unknown outcome proves to be success."""
        state = snapshot.partitions[partition_log.partition]
        ours = partition_log.is_leader and state.leader_epoch == partition_log.leader_epoch
        if ours and partition_log.sealed_offset < state.sealed <= partition_log.readable_end(Isolation.READ_COMMITTED):
            partition_log.seal(state.sealed)

    def _restore(self, topic: Topic, snapshot: TopicSnapshot, *, at_start: bool) -> _Restored:
        """Rule R7: commit files again that the table has lost, of partitions that are led here."""
        files = topic.table.files
        grown = topic.is_maintained_here and len(topic.partitions) > snapshot.num_partitions
        if grown:
            log.error("partitions.overwritten", topic=topic.name, version=snapshot.version, now=snapshot.num_partitions)
            topic.table.add_partitions(len(topic.partitions))
            snapshot = topic.table.snapshot()
        present = topic.partitions[: snapshot.num_partitions]
        ours = [p for p in present if p.is_leader and p.recovered and _is_sound(snapshot, p.partition)]
        sound = {p.partition for p in ours}
        behind = [p for p in ours if snapshot.partitions[p.partition].sealed < p.sealed_offset]
        starts = {p.partition: p.log_start_offset for p in ours}
        starts = {p: start for p, start in starts.items() if snapshot.partitions[p].log_start < start}
        lost = [segment for file in snapshot.lost_since(topic.snapshot) if (segment := _on_disk(files, file))]
        # The files of a job come and go with its commit, as a whole.
        lost = [s for s in lost if s.operation == ROLL and s.partition in sound]
        lost = [s for s in lost if s.end_offset <= snapshot.partitions[s.partition].sealed]
        if at_start:
            lost += self._to_fill_gaps(files, snapshot, sorted(sound))
        if not behind and not lost and not starts:
            return _Restored(any=grown, failed={})
        log.error(
            "roll.overwritten",
            topic=topic.name,
            version=snapshot.version,
            partitions=[p.partition for p in behind],
            files=[s.path for s in lost],
            log_starts=starts,
        )
        parts = []
        failed: dict[int, str] = {}
        for partition_log in behind:
            partition, sealed = partition_log.partition, partition_log.sealed_offset
            start, limit = snapshot.partitions[partition].sealed, partition_log.readable_end(Isolation.READ_COMMITTED)
            try:
                # After a start the sealed offset may be that of the oldest frame in the journal, in the middle of the
                # roll that was lost: the files of that roll reach further.
                segments = sealed_segments_on_disk(files, partition, start, sealed, limit=limit)
            except CorruptionError as error:
                failed[partition] = str(error)
                continue
            end = segments[-1].end_offset
            parts.append(RollPart(partition, start, end, partition_log.leader_epoch, segments))
        if parts:
            refused = topic.table.commit_roll(parts).refused
            if refused:
                raise next(iter(refused.values()))
        if lost:
            topic.table.recommit(lost)
        if starts:
            topic.table.advance_log_start(starts, {p: topic.partitions[p].leader_epoch for p in starts})
        return _Restored(any=True, failed=failed)

    def _to_fill_gaps(self, files: TableFiles, snapshot: TopicSnapshot, partitions: Sequence[int]) -> list[Segment]:
        """Files of rolls whose commits were overwritten before the last stop.

        A file that is neither active nor removed was never committed or was overwritten, if it is so young that the log
        would still tell of its removal; an older one may have been deleted with SQL, and stays away. Offsets that a
        commit removed stay away, too, whatever files hold them.
        """
        oldest_ms = self._clock.now_ms() - TOMBSTONES_KEPT_MS
        kept = TOMBSTONE_RETENTION_PROPERTY not in snapshot.properties

        def was_lost(name: str) -> bool:
            return kept and name not in snapshot.tombstones and files.head(name).modified_ms > oldest_ms

        gaps = {partition: found for partition in partitions if (found := _lost_gaps(snapshot, partition))}
        if not gaps:
            return []
        # Another file of the range may be on disk, of a roll that was killed before its commit: the removal counts.
        removed = removed_ranges(removals_since(files, -1), None, files)
        segments: list[Segment] = []
        for partition, found in gaps.items():
            gone = sorted((r.start, r.end) for r in removed.get(partition, []))
            for start, end in new_gaps(found, gone):
                try:
                    segments += sealed_segments_on_disk(files, partition, start, end, wanted=was_lost)
                except MissingSegmentsError as error:
                    # A user deleted rows with SQL, as users may. Readers pass over the gap.
                    log.warning("history.gap", partition=partition, start=start, end=end, error=str(error))
        return segments

    async def _look(self, topic: Topic, work: Callable[[], T]) -> T:
        """Run blocking work that reads the table in a thread; StorageError for a disk that cannot be read."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except OSError as error:
            raise StorageError(f"Cannot read topic {topic.name!r}: {error}. Check the disk; try again.") from error


def _lost_gaps(snapshot: TopicSnapshot, partition: int) -> list[tuple[int, int]]:
    """The gaps of a partition without those below the clean point that compaction of an earlier release left."""
    cleaned = snapshot.partitions[partition].cleaned
    gaps = [
        (max(start, cleaned) if snapshot.touches_unnamed(partition, start, end) else start, end)
        for start, end in history_gaps(snapshot, partition)
    ]
    return [(start, end) for start, end in gaps if start < end]


def _is_sound(snapshot: TopicSnapshot, partition: int) -> bool:
    try:
        snapshot.check(partition)
    except CorruptionError:
        return False
    return True


def _on_disk(files: TableFiles, name: str) -> Segment | None:
    """The segment of a file; CorruptionError if it is damaged. Remove the file to give its records up."""
    try:
        verify_segment(files, name)
        return segment_from_file(files, name)
    except FileNotFoundError:
        log.error("history.file_lost", table=files.uri, file=name)
        return None
