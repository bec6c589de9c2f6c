"""From the journal into Delta: un-sealed ranges become Parquet segments, one commit a topic seals them all.

The order that makes it safe, each step before the next: the segment file is written and fsynced; the Delta commit adds
it and moves ``sealed``; the commit is fsynced (rule R7); the ``sealed_offset`` advances; the journal may free the
range. A crash between any two leaves an orphan file at worst, which a later vacuum deletes. A commit that fails leaves
its files to the next attempt, which commits the same ones: a table that takes no commits does not fill the disk.

If a later snapshot shows less than was sealed, a foreign commit has overwritten ours: the same files are
committed again.
"""

import asyncio
import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import structlog

from logstore.clock import Clock
from logstore.delta.log_entries import removals_since
from logstore.delta.schema import TOMBSTONE_RETENTION_PROPERTY, TOMBSTONES_KEPT_MS
from logstore.delta.snapshot import TopicSnapshot
from logstore.delta.topic_table import RollPart
from logstore.errors import (
    CommitConflictError,
    CorruptionError,
    LogStoreError,
    NotLeaderOrFollowerError,
    StorageError,
    UnknownTopicError,
    storage_error,
)
from logstore.journal.errors import JournalRangeFreedError
from logstore.journal.journal import Journal
from logstore.limits import MIB
from logstore.log.frame_index import IndexedFrame
from logstore.log.frame_records import frame_records
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
from logstore.observability import ROLL_SECONDS, ROLLS
from logstore.records.batch_identity import unpack_batches
from logstore.records.transactions import Marker
from logstore.segments.footer import ROLL
from logstore.segments.layout import layout_of
from logstore.segments.reader import segment_from_file, verify_segment
from logstore.segments.writer import Segment, SegmentWriter
from logstore.table_files import TableFiles

log = structlog.stdlib.get_logger(__name__)

T = TypeVar("T")
# Bytes that are checked and decoded in one go, mostly with the interpreter held: about half a millisecond.
_READ_BYTES = 1 * MIB
_ATTEMPTS = 5
# A tenth of the weight of other threads. It is enough, because those often wait for the disk.
_NICENESS = 10


@dataclass(frozen=True, slots=True)
class RollResult:
    """``version`` of the Delta table that holds the commit; ``sealed`` offset of every partition of the topic."""

    version: int
    sealed: dict[int, int]


@dataclass(frozen=True, slots=True)
class _Piece:
    base_offset: int
    end_offset: int
    frames: list[IndexedFrame]


@dataclass(frozen=True, slots=True)
class _Range:
    """One partition's part of a roll: [base_offset, end_offset) in pieces of about ``segment.bytes``."""

    partition: int
    base_offset: int
    end_offset: int
    leader_epoch: int
    leader_epochs: tuple[tuple[int, int], ...]
    #: Batches remembered at the end, packed; a piece leaves out the batches behind it.
    producers: bytes
    idempotency_keys: bytes
    markers: tuple[Marker, ...]
    pieces: list[_Piece]


@dataclass(frozen=True, slots=True)
class _Restored:
    """``any``: whether something was committed again; ``failed``: by partition, why that could not be done."""

    any: bool
    failed: dict[int, str]


def roll_threads() -> ThreadPoolExecutor:
    """The executor of a ``Roller``. Nobody waits for a roll, so its threads leave the processor to requests."""
    return ThreadPoolExecutor(2, thread_name_prefix="roll", initializer=_step_back)


def _step_back() -> None:
    if sys.platform == "linux":  # where a thread has a priority of its own
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS)


class Roller:
    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        executor: Executor,
        require_lock: Callable[[], None] = lambda: None,
    ) -> None:
        """``require_lock`` raises LockLostError once the tables may be another process's to write."""
        self._require_lock = require_lock
        self._journal = journal
        self._clock = clock
        self._executor = executor
        self._running: set[asyncio.Task[object]] = set()
        #: By topic and partition: written, but not known to be committed.
        self._uncommitted: dict[Topic, dict[int, RollPart]] = {}

    async def roll(self, topic: Topic, select: Callable[[PartitionLog], bool] = lambda _: True) -> RollResult:
        """Seal everything committed so far of the partitions that ``select`` picks and that are led here; return when
        that is durable.

        Goes on to its end if the caller is cancelled. Raises UnknownTopicError for a topic deleted meanwhile,
        StorageFullError, StorageError, CommitRefusedError, CommitConflictError, CommitStateUnknownError,
        FencedLeaderEpochError.
        """
        return await self._to_the_end(self._roll(topic, select))

    async def refresh(self, topic: Topic, *, at_start: bool = False) -> None:
        """Take over commits of others; commit files again whose commit a foreign one overwrote.

        ``at_start`` also looks for gaps in the history, which a commit overwritten before the last stop leaves. Raises
        CorruptionError if sealed records are neither in the table nor on disk.
        """
        await self._to_the_end(self._refresh(topic, at_start=at_start))

    async def drain(self) -> None:
        """Wait for the rolls under way."""
        while self._running:
            await asyncio.wait(self._running)

    async def commit(self, topic: Topic, change: Callable[[], T]) -> T:
        """Run a blocking change of the topic's table, then follow it."""

        async def run() -> T:
            async with topic.commit_lock:
                _require(topic)
                self._require_lock()
                result = await self._in_thread(change)
                await self._follow(topic)
                return result

        return await self._to_the_end(run())

    async def _to_the_end(self, work: Coroutine[object, object, T]) -> T:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def _look(self, topic: Topic, work: Callable[[], T]) -> T:
        """As ``_in_thread``, for work that reads the table; StorageError for a disk that cannot be read."""
        try:
            return await self._in_thread(work)
        except OSError as error:
            raise StorageError(f"Cannot read topic {topic.name!r}: {error}. Check the disk; try again.") from error

    def forget(self, topic: Topic) -> None:
        """The topic was deleted."""
        self._uncommitted.pop(topic, None)

    async def _roll(self, topic: Topic, select: Callable[[PartitionLog], bool]) -> RollResult:
        async with topic.commit_lock:
            _require(topic)
            self._require_lock()
            refused = await self._commit(topic, await self._left_over(topic))
            wanted = [p for p in topic.partitions if p.is_leader and select(p) and p.partition not in refused]
            parts = await self._write_new(topic, wanted)
            if parts:
                refused |= await self._commit(topic, parts)
            else:
                await self._follow(topic)
            if refused:
                raise next(iter(refused.values()))
            return RollResult(topic.version, {p.partition: p.sealed_offset for p in topic.partitions})

    async def _write_new(self, topic: Topic, partitions: Sequence[PartitionLog]) -> list[RollPart]:
        for _ in range(_ATTEMPTS):
            # Without an await: the plans of one commit are of one moment.
            spans = [_plan(p, topic.config.segment_bytes) for p in partitions if p.sealed_offset < _end(p)]
            if not spans:
                return []
            with contextlib.suppress(JournalRangeFreedError):  # copied forward meanwhile: the index knows where to
                return await self._in_thread(functools.partial(self._write, topic, spans))
        raise StorageError(f"The roll of topic {topic.name!r} never found its records in the journal. Try again.")

    async def _left_over(self, topic: Topic) -> list[RollPart]:
        """The files that an earlier attempt wrote and could not commit, if they are still wanted and whole."""
        parts = [
            part
            for part in self._uncommitted.pop(topic, {}).values()
            if part.base_offset == topic.partitions[part.partition].sealed_offset
        ]
        return await self._in_thread(lambda: [part for part in parts if _is_whole(topic.table.files, part)])

    async def _commit(self, topic: Topic, parts: list[RollPart]) -> dict[int, LogStoreError]:
        """Seal ``parts``; by partition, why some were left out: also because another leads it by now."""
        logs = topic.partitions
        led = [p for p in parts if logs[p.partition].is_leader and logs[p.partition].leader_epoch == p.leader_epoch]
        refused: dict[int, LogStoreError] = {
            part.partition: NotLeaderOrFollowerError(f"{topic.name}-{part.partition} has another leader: not sealed.")
            for part in parts
            if part not in led
        }
        parts = led
        if not parts:
            return refused
        began = time.perf_counter()
        uncommitted = self._uncommitted.setdefault(topic, {})
        uncommitted |= {part.partition: part for part in parts}
        commit = await self._in_thread(lambda: topic.table.commit_roll(parts))
        await self._follow(topic)
        refused |= commit.refused
        for part in parts:
            partition = part.partition
            if partition in refused:
                continue
            if topic.snapshot.partitions[partition].sealed < part.end_offset:
                # A range sealed here and not in the table would look to readers like a gap.
                refused[partition] = CommitConflictError(
                    f"Version {commit.version} of topic {topic.name!r} was overwritten by a foreign commit at once: "
                    "the roll is committed again with the next one"
                )
                continue
            self._seal(topic.partitions[partition], part.end_offset)
            del uncommitted[partition]
        sealed = [partition for partition in commit.committed if partition not in refused]
        ROLLS.count(topic, 1, "committed" if sealed else "refused")
        ROLL_SECONDS.observe(time.perf_counter() - began)
        log.info(
            "roll.committed",
            topic=topic.name,
            version=commit.version,
            partitions=len(sealed),
            records=sum(part.end_offset - part.base_offset for part in parts if part.partition not in refused),
            seconds=round(time.perf_counter() - began, 3),
        )
        for partition, error in refused.items():
            log.error("roll.refused", topic=topic.name, partition=partition, error=str(error))
        return refused

    def _seal(self, partition_log: PartitionLog, offset: int) -> None:
        partition_log.seal(offset)
        self._journal.release(partition_log.topic_id, partition_log.partition, offset)

    def _write(self, topic: Topic, spans: Sequence[_Range]) -> list[RollPart]:
        """All files or none: a failed write leaves no file. StorageFullError, StorageError, JournalRangeFreedError."""
        codec = topic.config.segment_codec
        parts: list[RollPart] = []
        written: list[Segment] = []
        try:
            for span in spans:
                first = len(written)
                for piece in span.pieces:
                    segment = self._write_piece(topic, span, piece, codec)
                    written.append(segment)
                segments = tuple(written[first:])
                parts.append(RollPart(span.partition, span.base_offset, span.end_offset, span.leader_epoch, segments))
        except BaseException as error:
            topic.table.files.remove((segment.path for segment in written), durable=False)
            if isinstance(error, OSError):
                raise storage_error(f"the roll of topic {topic.name!r}", error) from error
            raise
        return parts

    def _write_piece(self, topic: Topic, span: _Range, piece: _Piece, codec: str) -> Segment:
        with SegmentWriter(
            topic.table.files,
            span.partition,
            piece.base_offset,
            piece.end_offset,
            span.leader_epoch,
            codec,
            layout=layout_of(topic.name),
        ) as writer:
            append_time_ms = 0
            for frames in _in_chunks(piece.frames, _READ_BYTES):
                stored = self._journal.read_many([f.location for f in frames])
                for batch in frame_records(stored):
                    writer.write(batch)
                append_time_ms = max((append_time_ms, *(frame.header.append_time_ms for frame in stored)))
            base, end = piece.base_offset, piece.end_offset
            return writer.finish(
                leader_epochs=tuple(entry for entry in span.leader_epochs if entry[1] < end),
                producers=[b for b in unpack_batches(span.producers) if b.base_offset < end],
                idempotency_keys=[b for b in unpack_batches(span.idempotency_keys) if base <= b.base_offset < end],
                append_time_ms=append_time_ms,
                markers=[marker for marker in span.markers if marker.offset < end],
            )

    # ---- following the table ----------------------------------------------------------------------------------------

    async def _refresh(self, topic: Topic, *, at_start: bool) -> None:
        async with topic.commit_lock:
            if topic.deleted:
                return
            self._require_lock()
            try:
                await self._follow(topic, at_start=at_start)
            except CorruptionError as error:
                topic.quarantine(str(error), "Restore _delta_log from a backup, then restart the store")
                raise
            # The log entries of lost records are kept until the records are back or given up.
            if topic.is_maintained_here and not any(p.missing for p in topic.partitions):
                await self._in_thread(topic.table.maintain)

    async def _follow(self, topic: Topic, *, at_start: bool = False) -> None:
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
        if ours and partition_log.sealed_offset < state.sealed <= _end(partition_log):
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
            partition, start = partition_log.partition, snapshot.partitions[partition_log.partition].sealed
            try:
                # After a start the sealed offset may be that of the oldest frame in the journal, in the middle of the
                # roll that was lost: the files of that roll reach further.
                segments = sealed_segments_on_disk(
                    files, partition, start, partition_log.sealed_offset, limit=_end(partition_log)
                )
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
    """CorruptionError if it is damaged. Remove the file to give its records up."""
    try:
        verify_segment(files, name)
        return segment_from_file(files, name)
    except FileNotFoundError:
        log.error("history.file_lost", table=files.uri, file=name)
        return None


def _is_whole(files: TableFiles, part: RollPart) -> bool:
    """If not, the journal has all of it still."""
    try:
        for segment in part.segments:
            verify_segment(files, segment.path)
    except (CorruptionError, OSError) as error:
        log.error("roll.file_lost", table=files.uri, partition=part.partition, error=str(error))
        return False
    return True


def _end(partition_log: PartitionLog) -> int:
    """Where a roll stops: what it seals, is decided."""
    return partition_log.readable_end(Isolation.READ_COMMITTED)


def _plan(partition_log: PartitionLog, segment_bytes: int) -> _Range:
    now_ms = partition_log.now_ms()
    partition_log.producers.expire(now_ms)
    partition_log.idempotency_keys.expire(now_ms)
    base, end = partition_log.sealed_offset, _end(partition_log)
    pieces = []
    start = base
    while start < end:
        piece_end = partition_log.index.offset_after_bytes(start, end, segment_bytes)
        pieces.append(_Piece(start, piece_end, list(partition_log.index.frames(start, piece_end))))
        start = piece_end
    return _Range(
        partition_log.partition,
        base,
        end,
        partition_log.leader_epoch,
        partition_log.leader_epochs.up_to(end),
        partition_log.producers.pack(),
        partition_log.idempotency_keys.pack(),
        partition_log.producers.markers,
        pieces,
    )


def _in_chunks(frames: list[IndexedFrame], max_bytes: int) -> list[list[IndexedFrame]]:
    chunks: list[list[IndexedFrame]] = [[]]
    total = 0
    for frame in frames:
        if total >= max_bytes:
            chunks.append([])
            total = 0
        chunks[-1].append(frame)
        total += frame.location.length
    return chunks


def _require(topic: Topic) -> None:
    if topic.deleted:
        raise UnknownTopicError(f"Topic {topic.name!r} was deleted.")


def due(partition_log: PartitionLog, *, segment_bytes: int, segment_ms: float) -> bool:
    """Whether the un-sealed range is big or old enough to roll."""
    if not partition_log.has_unsealed:
        return False
    return partition_log.unsealed_bytes >= segment_bytes or partition_log.unsealed_ms >= segment_ms
