"""Makes a topic follow its table: takes over commits of other writers, and commits files again that the table has lost
(rule R7). If another writer brings erased records back, they are erased again before any reader sees them.

If a later snapshot shows less than was sealed, a foreign commit has overwritten ours. Segments that a ``RESTORE`` or an
overwrite dropped are also committed again (``dropped_segments``). If gaps remain that no statement intended, another
writer has removed records, and readers get an error that says so.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypeVar
from weakref import WeakKeyDictionary

import structlog

from logstore.clock import Clock
from logstore.delta.erased_files import is_erased
from logstore.delta.file_history import file_history, removals_since
from logstore.delta.log_entries import is_ours
from logstore.delta.schema import TOMBSTONES_KEPT_MS, removals_kept_ms
from logstore.delta.snapshot import SegmentFile, TopicSnapshot
from logstore.delta.topic_table import RewritePart, RollPart
from logstore.errors import CommitRefusedError, CorruptionError, StorageError
from logstore.log.dropped_segments import dropped_segments
from logstore.log.erasures import ErasedUpTo, ErasureLog, TableErasure
from logstore.log.gone_files import is_on_disk, put_back_gone_files
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
from logstore.log.merge import MERGE
from logstore.log.partition_log import PartitionLog
from logstore.log.table_erasure import ERASE, erase_from_table
from logstore.log.topic import Topic
from logstore.segments.footer import ROLL
from logstore.segments.names import known_segment_name
from logstore.segments.reader import segment_from_file, verify_segment
from logstore.segments.writer import Segment
from logstore.table_files import TableFiles
from logstore.threads import threads

log = structlog.stdlib.get_logger(__name__)

T = TypeVar("T")

#: Threads that search for erased records and rewrite files, each with two row groups.
_ERASING_THREADS = 2
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class _Restored:
    """The result of ``_restore``. ``any`` says whether files were committed again; ``failed`` has, by partition, the
    reason why that failed.
    """

    any: bool
    failed: dict[int, str]


@dataclass(slots=True)
class _Searched:
    """The last search of a topic for records of the erasures up to ``number``.

    ``clean`` are files that have none of them; ``unserved`` as in ``TableErasure``.
    """

    number: int
    clean: set[str] = field(default_factory=set)
    unserved: str = ""


class TableFollower:
    """Brings topics to the newest version of their tables. The caller holds the topic's commit lock."""

    def __init__(self, clock: Clock, executor: Executor, erasures: ErasureLog) -> None:
        self._clock = clock
        self._executor = executor
        self._erasures = erasures
        self._searched: WeakKeyDictionary[Topic, _Searched] = WeakKeyDictionary()

    async def follow(self, topic: Topic, *, at_start: bool = False) -> None:
        """Bring the topic to the newest version of its table. ``at_start`` also looks for gaps in the history.

        Raises CorruptionError if the table's log cannot be read or a lost file is damaged; StorageError; the errors of
        ``TopicTable.commit_roll`` if files cannot be committed again, and of ``erase_from_table`` if erased records
        have come back; CommitRefusedError if another broker has to erase them.
        """
        erased = self._erasures.committed(topic.topic_id)
        before = topic.snapshot

        def look() -> tuple[TopicSnapshot, dict[int, str], bool]:
            snapshot = topic.table.snapshot()
            is_shown = erased is None or is_erased(snapshot, erased.number)
            if not is_shown and topic.is_maintained_here:
                came = snapshot.paths if at_start else snapshot.paths - before.paths
                if put_back_gone_files(topic.table, snapshot, came):
                    snapshot = topic.table.snapshot()
            restored = self._restore(topic, snapshot, at_start=at_start)
            if restored.any:
                snapshot = topic.table.snapshot()
                is_shown = erased is None or is_erased(snapshot, erased.number)
            return snapshot, restored.failed, is_shown

        snapshot, failed, is_shown = await self._look(topic, look)
        if erased is not None and not is_shown:
            snapshot = await self._erase_again(topic, snapshot, erased)
        sound = [p for p in range(snapshot.num_partitions) if _is_sound(snapshot, p)]
        gaps = {partition: history_gaps(snapshot, partition) for partition in sound}
        removed = await self._removed(topic, gaps, None if at_start else topic.snapshot)
        # There is no await from here on: no reader may follow the table before the missing records are known.
        topic.follow(snapshot, failed)
        for partition_log in topic.partitions:
            self._adopt(partition_log, snapshot)
        self._note_missing(topic, gaps, removed)
        if not at_start and snapshot.version > before.version:
            await self._look(topic, lambda: _log_changes(topic.name, topic.table.files, before, snapshot.version))

    async def _erase_again(self, topic: Topic, snapshot: TopicSnapshot, erased: ErasedUpTo) -> TopicSnapshot:
        """Search the files that another writer has added, remove records that were erased before, and return the new
        snapshot. Files that are not served are not searched, as no reader of the store sees their records.
        """
        if not topic.is_maintained_here:
            raise CommitRefusedError(
                f"Version {snapshot.version} of topic {topic.name!r} may have records that were erased: the leader of "
                "partition 0 erases them again"
            )
        table, before, config = topic.table, topic.snapshot, topic.config
        known = self._searched.get(topic)
        if known is None or known.number != erased.number:
            known = self._searched[topic] = _Searched(erased.number)
        clean, unserved = known.clean, known.unserved
        if is_erased(before, erased.number):
            clean.update(before.paths)

        def try_to_erase(pool: Executor) -> TableErasure:
            return erase_from_table(table, topic.name, erased, config, self._clock.now_ms(), pool, clean=clean)

        def erase() -> TableErasure:
            # A separate pool is needed, because this runs in the pool of the table's other work.
            with threads().pool(_ERASING_THREADS, "erase") as pool:
                for _ in range(_ATTEMPTS - 1):
                    try:
                        return try_to_erase(pool)
                    except (FileNotFoundError, StorageError):
                        # An erasure that runs at the same time may have deleted a file that has come back.
                        now = table.snapshot()
                        if not put_back_gone_files(table, now, now.paths - before.paths):
                            raise
                return try_to_erase(pool)

        found = await self._look(topic, erase)
        if found.records:
            log.error("erasure.repeated", topic=topic.name, version=found.versions[-1], records=found.records)
            self._erasures.came_back.append((topic.topic_id, found))
        after = await self._look(topic, table.snapshot)
        clean.intersection_update(after.paths)
        known.unserved = found.unserved
        if found.unserved not in ("", unserved):
            log.error("erasure.not_repeated", topic=topic.name, version=after.version, why=found.unserved)
        return after

    async def _removed(
        self, topic: Topic, gaps: Mapping[int, list[tuple[int, int]]], before: TopicSnapshot | None
    ) -> dict[int, list[RemovedRange]]:
        """Return the commits that removed files from the table, if the gaps have changed.

        All of them count, because a gap that a ``RESTORE`` brings back is as old as its ``DELETE``.
        """
        looked_at = topic.gaps
        if all(found == looked_at.get(partition, []) for partition, found in gaps.items()):
            return {}
        files = topic.table.files
        return await self._look(topic, lambda: removed_ranges(removals_since(files, -1), before, files))

    def _note_missing(
        self, topic: Topic, gaps: Mapping[int, list[tuple[int, int]]], removed: Mapping[int, list[RemovedRange]]
    ) -> None:
        """Find records that another writer removed from the history of served partitions, or restored.

        A partition that was not served is examined from the first entry on: its loss may be older than the last check.
        """
        served = [p for p in topic.partitions if p.quarantined is None and p.partition in gaps]
        for partition_log in served:
            partition, found = partition_log.partition, gaps[partition_log.partition]
            looked_at = topic.gaps.get(partition)
            missing = missing_ranges(
                # A gap that existed before keeps its cause.
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
        """Take over a commit of ours whose unknown outcome was success, or a commit of the previous leader."""
        state = snapshot.partitions[partition_log.partition]
        ours = partition_log.is_leader and state.leader_epoch <= partition_log.leader_epoch
        if ours and partition_log.sealed_offset < state.sealed <= partition_log.log_end_offset:
            partition_log.adopt_sealed(state.sealed)

    def _restore(self, topic: Topic, snapshot: TopicSnapshot, *, at_start: bool) -> _Restored:
        """Commit files again that the table has lost, of partitions that are led here (rule R7)."""
        files = topic.table.files
        count = max(len(topic.partitions), snapshot.num_partitions)
        grown = topic.is_maintained_here and count > snapshot.stated_partitions
        if grown:
            now = snapshot.stated_partitions
            log.error("partitions.overwritten", topic=topic.name, version=snapshot.version, partitions=count, now=now)
            topic.table.add_partitions(count)
            snapshot = topic.table.snapshot()
        present = topic.partitions[: snapshot.num_partitions]
        ours = [p for p in present if p.is_leader and p.recovered and _is_sound(snapshot, p.partition)]
        sound = {p.partition for p in ours}
        behind = [p for p in ours if snapshot.partitions[p.partition].sealed < p.sealed_offset]
        starts = {p.partition: p.log_start_offset for p in ours}
        starts = {p: start for p, start in starts.items() if snapshot.partitions[p].log_start < start}
        lost = [segment for file in snapshot.lost_since(topic.snapshot) if (segment := _on_disk(files, file))]
        lost = [s for s in lost if s.partition in sound and s.end_offset <= snapshot.partitions[s.partition].sealed]
        merges, lost = _lost_merges(files, snapshot, lost)
        if at_start:
            lost += self._to_fill_gaps(files, snapshot, sorted(sound))
        again = [*lost, *(segment for part in merges for segment in part.adds)]
        # A foreign commit may have overwritten a merge of ours, and dropped the files that the merge had joined.
        dropped = [
            segment
            for segment in _dropped(topic, snapshot, sorted(sound), at_start=at_start)
            if not any(segment.partition == other.partition and _overlap(segment, other) for other in again)
        ]
        if not (behind or lost or starts or merges or dropped):
            return _Restored(any=grown, failed={})
        log.error(
            "roll.overwritten",
            topic=topic.name,
            version=snapshot.version,
            partitions=[p.partition for p in behind],
            files=[s.path for s in (*again, *dropped)],
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
            refused = topic.table.commit_roll(parts, found=True).refused
            if refused:
                raise next(iter(refused.values()))
        if lost:
            topic.table.recommit(lost)
        if merges:
            topic.table.commit_rewrites(merges, data_change=False, operation=MERGE, found=True)
        if dropped:
            topic.table.recommit(dropped, removed=True)
        if starts:
            topic.table.advance_log_start(starts, {p: topic.partitions[p].leader_epoch for p in starts})
        return _Restored(any=True, failed=failed)

    def _to_fill_gaps(self, files: TableFiles, snapshot: TopicSnapshot, partitions: Sequence[int]) -> list[Segment]:
        """Return the files of rolls whose commits were overwritten before the last stop.

        If a file is neither active nor removed, and young enough that the log would still show its removal, it was
        never committed or its commit was overwritten. An older file may have been deleted with SQL, and is not
        committed again. Offsets that a commit removed are not committed again either, whatever files hold them.
        """
        oldest_ms = self._clock.now_ms() - TOMBSTONES_KEPT_MS
        kept = (removals_kept_ms(snapshot.properties) or 0) >= TOMBSTONES_KEPT_MS

        def was_lost(name: str) -> bool:
            return kept and not snapshot.log.was_removed(name) and files.head(name).modified_ms > oldest_ms

        gaps = {partition: found for partition in partitions if (found := _lost_gaps(snapshot, partition))}
        if not gaps:
            return []
        # The removal counts even if another file of the range is on disk, of a roll that was killed before its commit.
        removed = removed_ranges(removals_since(files, -1), None, files)
        segments: list[Segment] = []
        for partition, found in gaps.items():
            gone = sorted((r.start, r.end) for r in removed.get(partition, []))
            for start, end in new_gaps(found, gone):
                try:
                    segments += sealed_segments_on_disk(files, partition, start, end, wanted=was_lost)
                except MissingSegmentsError as error:
                    # A user deleted rows with SQL, as users may. Readers skip the gap.
                    log.warning("history.gap", partition=partition, start=start, end=end, error=str(error))
        return segments

    async def _look(self, topic: Topic, work: Callable[[], T]) -> T:
        """Run blocking work that reads the table in a thread. Raises StorageError if the disk cannot be read."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except OSError as error:
            raise StorageError(f"Cannot read topic {topic.name!r}: {error}. Check the disk; try again.") from error


def _log_changes(topic: str, files: TableFiles, before: TopicSnapshot, version: int) -> None:
    """Log the commits since ``before`` in which other writers changed or removed records, as they may."""
    if all(is_ours(files, number) for number in range(before.version + 1, version + 1)):
        return
    for partition, removed in removed_ranges(removals_since(files, before.version), before, files).items():
        commits: dict[int, list[RemovedRange]] = {}
        for found in removed:
            if found.removal.meant and not found.removal.ours and not found.removal.rewritten:
                commits.setdefault(found.removal.version, []).append(found)
        for number, ranges in sorted(commits.items()):
            log.warning(
                "history.changed",
                topic=topic,
                partition=partition,
                start=min(found.start for found in ranges),
                end=max(found.end for found in ranges),
                cause=f"{ranges[0].removal.operation} in version {number}",
            )


def _lost_merges(
    files: TableFiles, snapshot: TopicSnapshot, lost: Sequence[Segment]
) -> tuple[list[RewritePart], list[Segment]]:
    """Return the merges to commit again, and the files to commit again as they are.

    The files of a job count only together with its commit: after a merge's commit was overwritten, the files that it
    had joined count again. If one of these files was deleted meanwhile, the merge is committed again with the merged
    file. If the commits of these files were also overwritten, the merge's file takes their place. An erasure counts as
    a merge of one file.
    """
    removes: dict[int, dict[str, None]] = {}
    adds: dict[int, list[Segment]] = {}
    again = [segment for segment in lost if segment.operation == ROLL]
    for segment in lost:
        if segment.operation not in (MERGE, ERASE):
            continue
        joined = [file for file in snapshot.segments(segment.partition) if _overlap(file, segment)]
        if not joined:
            again.append(segment)
            continue
        paths = tuple(path for file in joined for path in file.paths)
        if any(not is_on_disk(files, path) for path in paths):
            removes.setdefault(segment.partition, {}).update(dict.fromkeys(file.path for file in joined))
            adds.setdefault(segment.partition, []).append(segment)
    return [RewritePart(partition, tuple(removes[partition]), tuple(adds[partition])) for partition in adds], again


def _overlap(one: Segment | SegmentFile, other: Segment) -> bool:
    """Return whether files of the same partition cover a common offset."""
    return one.base_offset < other.end_offset and other.base_offset < one.end_offset


def _dropped(topic: Topic, snapshot: TopicSnapshot, partitions: Sequence[int], *, at_start: bool) -> list[Segment]:
    """Return the segments that another writer dropped; the log is read only if the history looks different."""
    if not at_start:
        came = snapshot.paths - topic.snapshot.paths
        foreign = snapshot.has_foreign_files and any(known_segment_name(path) is None for path in came)
        if not foreign and all(history_gaps(snapshot, p) == topic.gaps.get(p, []) for p in partitions):
            return []
    elif not snapshot.has_foreign_files and not any(history_gaps(snapshot, p) for p in partitions):
        return []
    files = topic.table.files
    return dropped_segments(files, snapshot, file_history(files, -1), partitions)


def _lost_gaps(snapshot: TopicSnapshot, partition: int) -> list[tuple[int, int]]:
    """Return the gaps of a partition, except those below the clean point that compaction of an earlier release left."""
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
    """Return the segment of a file; None if the file is missing. Raises CorruptionError if the file is damaged. An
    operator may remove the file to give up its records.
    """
    try:
        verify_segment(files, name)
        return segment_from_file(files, name)
    except FileNotFoundError:
        log.error("history.file_lost", table=files.uri, file=name)
        return None
