"""Rolls the journal into Delta: un-sealed ranges become Parquet segments, and one commit per topic seals them all.

These steps make it safe, each one before the next: the segment file is written and fsynced; the Delta commit adds it
and moves ``sealed``; the commit is fsynced (rule R7); the ``sealed_offset`` advances; the journal may free the range. A
crash between any two leaves an orphan file at worst, which a later vacuum deletes. A commit that fails leaves its files
to the next attempt, which commits the same ones: a table that accepts no commits does not fill the disk.
``table_follower`` repairs a commit of ours that another writer's commit overwrote later.
"""

import asyncio
import contextlib
import functools
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TypeVar

import structlog

from logstore.clock import Clock
from logstore.delta.columns import layout_of
from logstore.delta.topic_table import RollPart
from logstore.errors import (
    CommitConflictError,
    CorruptionError,
    LogStoreError,
    NotLeaderOrFollowerError,
    StorageError,
    UnknownTopicError,
    UnsupportedTableError,
    ZooKeeperUnavailableError,
    storage_error,
)
from logstore.journal.errors import JournalRangeFreedError
from logstore.journal.frame import FrameFlags
from logstore.journal.journal import Journal
from logstore.limits import DELTA_CHECKPOINT_INTERVAL, MIB
from logstore.log.erasures import ErasureLog
from logstore.log.frame_index import FrameIndex, IndexedFrame
from logstore.log.frame_records import frame_records
from logstore.log.partition_log import PartitionLog
from logstore.log.producer_state import counted_at
from logstore.log.table_follower import TableFollower
from logstore.log.topic import Topic
from logstore.observability import COLUMN_MISFITS, ROLL_SECONDS, ROLLS
from logstore.records.batch_identity import unpack_batches
from logstore.records.transactions import Marker
from logstore.segments.layout import TableLayout
from logstore.segments.offset_ranges import OffsetRanges, join_ranges
from logstore.segments.reader import verify_segment
from logstore.segments.writer import Segment, SegmentWriter
from logstore.table_files import TableFiles
from logstore.threads import threads

log = structlog.stdlib.get_logger(__name__)

T = TypeVar("T")
# The bytes that are checked and decoded in one go, mostly while the interpreter lock is held: about half a millisecond.
_READ_BYTES = 1 * MIB
_READ_FRAMES = 128
# The pause between chunks of many small frames, which cost more of the interpreter's time than their bytes do.
_PAUSE_S = 0.002
_ATTEMPTS = 5
_MISFITS_LOGGED_S = 60
# The threads have a tenth of the weight of other threads. It is enough, because those often wait for the disk.
_NICENESS = 10


@dataclass(frozen=True, slots=True)
class RollResult:
    """The result of a roll: the ``version`` of the Delta table with the commit, and the ``sealed`` offset of every
    partition of the topic.
    """

    version: int
    sealed: dict[int, int]


@dataclass(frozen=True, slots=True)
class _Piece:
    base_offset: int
    end_offset: int
    #: A copy, so that the roll's thread, and not the event loop, makes an object for each frame.
    frames: FrameIndex


@dataclass(frozen=True, slots=True)
class _Range:
    """One partition's part of a roll: [base_offset, end_offset) in pieces of about ``segment.bytes``."""

    partition: int
    base_offset: int
    end_offset: int
    leader_epoch: int
    leader_epochs: tuple[tuple[int, int], ...]
    #: Batches remembered at the end, packed; a piece leaves out the batches after it.
    producers: bytes
    idempotency_keys: bytes
    markers: tuple[Marker, ...]
    producers_forgotten_up_to: int
    pieces: list[_Piece]


def roll_threads() -> Executor:
    """Return the executor of a ``Roller``. Nobody waits for a roll, so its threads give way to those of requests."""
    return threads().pool(2, "roll", _NICENESS)


class Roller:
    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        executor: Executor,
        require_lock: Callable[[], None] = lambda: None,
        table_lock: Callable[[str], AbstractAsyncContextManager[None]] = lambda _: contextlib.nullcontext(),
        erasures: ErasureLog | None = None,
    ) -> None:
        """Begin without rolls. ``require_lock`` raises LockLostError once another process may write the tables.
        ``table_lock`` is held while the log of a topic's table is checkpointed. ``erasures`` are those that the tables
        must include.
        """
        self._erasures = erasures or ErasureLog()
        self._require_lock = require_lock
        self._table_lock = table_lock
        self._journal = journal
        self._clock = clock
        self._executor = executor
        self._follower = TableFollower(clock, executor, self._erasures)
        self._running: set[asyncio.Task[object]] = set()
        #: Parts that are written, but not known to be committed, by topic and partition.
        self._uncommitted: dict[Topic, dict[int, RollPart]] = {}
        #: The records without columns that no line of the log has counted yet, and the times of the last lines.
        self._misfits: dict[Topic, int] = {}
        self._misfits_logged: dict[Topic, float] = {}

    async def roll(self, topic: Topic, select: Callable[[PartitionLog], bool] = lambda _: True) -> RollResult:
        """Seal everything committed so far of the partitions that ``select`` picks and that are led here; return when
        that is durable.

        Continues to its end if the caller is cancelled. Raises UnknownTopicError for a topic deleted meanwhile,
        StorageFullError, StorageError, CommitRefusedError, CommitConflictError, CommitStateUnknownError,
        FencedLeaderEpochError.
        """
        return await self._to_the_end(self._roll(topic, select))

    async def refresh(self, topic: Topic, *, at_start: bool = False) -> None:
        """Take over commits of others; commit files again whose commit another writer overwrote.

        ``at_start`` also looks for gaps in the history, which a commit overwritten before the last stop leaves. Raises
        CorruptionError if sealed records are neither in the table nor on disk.
        """
        await self._to_the_end(self._refresh(topic, at_start=at_start))

    @property
    def is_busy(self) -> bool:
        """True while a roll or another commit is running."""
        return bool(self._running)

    async def drain(self) -> None:
        """Wait for the running rolls."""
        while self._running:
            await asyncio.wait(self._running)

    async def commit(self, topic: Topic, change: Callable[[], T]) -> T:
        """Run a blocking change of the topic's table, then follow it."""

        async def run() -> T:
            async with topic.commit_lock:
                _require(topic)
                self._require_lock()
                result = await self._in_thread(change)
                await self._follower.follow(topic)
                return result

        return await self._to_the_end(run())

    async def _to_the_end(self, work: Coroutine[object, object, T]) -> T:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def forget(self, topic: Topic) -> None:
        """Forget the topic, as it was deleted."""
        self._uncommitted.pop(topic, None)
        self._misfits.pop(topic, None)
        self._misfits_logged.pop(topic, None)

    async def _roll(self, topic: Topic, select: Callable[[PartitionLog], bool]) -> RollResult:
        async with topic.commit_lock:
            _require(topic)
            self._require_lock()
            refused = await self._commit(topic, await self._left_over(topic))
            wanted = [p for p in topic.partitions if p.is_leader and select(p) and p.partition not in refused]
            if any(_is_first_roll(topic, p) for p in wanted):
                await self._follower.follow(topic)
            parts = await self._write_new(topic, wanted)
            if parts:
                refused |= await self._commit(topic, parts)
            else:
                await self._follower.follow(topic)
            if refused:
                raise next(iter(refused.values()))
            return RollResult(topic.version, {p.partition: p.sealed_offset for p in topic.partitions})

    async def _write_new(self, topic: Topic, partitions: Sequence[PartitionLog]) -> list[RollPart]:
        for _ in range(_ATTEMPTS):
            # There is no await here, so that the plans of one commit are from one moment.
            spans = [_plan(p, topic.config.segment_bytes) for p in partitions if p.sealed_offset < p.rollable_end]
            if not spans:
                return []
            with contextlib.suppress(JournalRangeFreedError):  # copied forward meanwhile: the index has the new place
                return await self._in_thread(functools.partial(self._write, topic, spans))
        raise StorageError(f"The roll of topic {topic.name!r} never found its records in the journal. Try again.")

    async def _left_over(self, topic: Topic) -> list[RollPart]:
        """Return the files that an earlier attempt wrote and could not commit, if they are still wanted and whole."""
        parts = [
            part
            for part in self._uncommitted.pop(topic, {}).values()
            if part.base_offset == topic.partitions[part.partition].sealed_offset
        ]
        return await self._in_thread(lambda: [part for part in parts if _is_whole(topic.table.files, part)])

    async def _commit(self, topic: Topic, parts: list[RollPart]) -> dict[int, LogStoreError]:
        """Seal ``parts`` and return by partition why some were left out. Another broker may lead one by now."""
        refused: dict[int, LogStoreError] = {}
        led = []
        for part in parts:
            partition_log = topic.partitions[part.partition]
            if partition_log.is_leader and partition_log.leader_epoch == part.leader_epoch:
                led.append(part)
            else:
                refused[part.partition] = NotLeaderOrFollowerError(
                    f"{topic.name}-{part.partition} has another leader: not sealed."
                )
        if not (parts := led):
            return refused
        began = self._clock.monotonic()
        uncommitted = self._uncommitted.setdefault(topic, {})
        uncommitted |= {part.partition: part for part in parts}
        erased = self._erasures.committed(topic.topic_id)
        # Such frames were in the journal of a backup that was restored.
        found = erased is not None and any(part.base_offset < erased.end_offset(part.partition) for part in parts)
        commit = await self._in_thread(lambda: topic.table.commit_roll(parts, found=found))
        await self._follower.follow(topic)
        refused |= commit.refused
        for part in parts:
            partition = part.partition
            if partition in refused:
                continue
            if topic.snapshot.partitions[partition].sealed < part.end_offset:
                # Readers would see a gap if a range were sealed here and not in the table.
                refused[partition] = CommitConflictError(
                    f"Version {commit.version} of topic {topic.name!r} was overwritten by a foreign commit at once: "
                    "the roll is committed again with the next one"
                )
                continue
            self._seal(topic.partitions[partition], part.end_offset)
            del uncommitted[partition]
        sealed = [partition for partition in commit.committed if partition not in refused]
        ROLLS.count(topic, 1, "committed" if sealed else "refused")
        ROLL_SECONDS.observe(self._clock.monotonic() - began)
        log.info(
            "roll.committed",
            topic=topic.name,
            version=commit.version,
            partitions=len(sealed),
            records=sum(part.end_offset - part.base_offset for part in parts if part.partition not in refused),
            seconds=round(self._clock.monotonic() - began, 3),
        )
        self._count_misfits(topic, [part for part in parts if part.partition in sealed])
        for partition, error in refused.items():
            log.error("roll.refused", topic=topic.name, partition=partition, error=str(error))
        return refused

    def _count_misfits(self, topic: Topic, parts: Sequence[RollPart]) -> None:
        count = sum(segment.misfits for part in parts for segment in part.segments)
        if not count:
            return
        COLUMN_MISFITS.count(topic, count)
        self._misfits[topic] = self._misfits.get(topic, 0) + count
        now = self._clock.monotonic()
        if now >= self._misfits_logged.get(topic, -math.inf) + _MISFITS_LOGGED_S:
            self._misfits_logged[topic] = now
            log.warning("roll.misfits", topic=topic.name, records=self._misfits.pop(topic), see="value_error")

    def _seal(self, partition_log: PartitionLog, offset: int) -> None:
        # Another broker may lead by now, and this log may be shorter than the range it has rolled, because its end was
        # dropped.
        if (offset := min(offset, partition_log.last_stable_offset)) > partition_log.sealed_offset:
            partition_log.seal(offset)
        self._journal.release(partition_log.topic_id, partition_log.partition, partition_log.sealed_offset)

    def _write(self, topic: Topic, spans: Sequence[_Range]) -> list[RollPart]:
        """Write all files or none: a failed write leaves no file. Raises StorageFullError, StorageError and
        JournalRangeFreedError.
        """
        codec, layout = topic.config.segment_codec, layout_of(topic.name, topic.snapshot)
        parts: list[RollPart] = []
        written: list[Segment] = []
        try:
            for span in spans:
                first = len(written)
                for piece in span.pieces:
                    segment = self._write_piece(topic, span, piece, codec, layout)
                    written.append(segment)
                segments = tuple(written[first:])
                parts.append(RollPart(span.partition, span.base_offset, span.end_offset, span.leader_epoch, segments))
        except BaseException as error:
            topic.table.files.discard(segment.path for segment in written)
            if isinstance(error, OSError):
                raise storage_error(f"the roll of topic {topic.name!r}", error) from error
            raise
        return parts

    def _write_piece(self, topic: Topic, span: _Range, piece: _Piece, codec: str, layout: TableLayout) -> Segment:
        with SegmentWriter(
            topic.table.files,
            span.partition,
            piece.base_offset,
            piece.end_offset,
            span.leader_epoch,
            codec,
            layout=layout,
        ) as writer:
            append_time_ms = 0
            is_append_time = False
            log_append_times: OffsetRanges = ()
            for frames in _in_chunks(piece.frames):
                stored = self._journal.read_many([f.location for f in frames])
                for batch in frame_records(stored, kafkas_bytes=2 * _READ_BYTES):
                    writer.write(batch)
                append_time_ms = max((append_time_ms, *(frame.header.append_time_ms for frame in stored)))
                ranges = list(log_append_times)
                for header, _ in stored:
                    # A frame without records counts as part of the one before it.
                    if header.has_records:
                        is_append_time = FrameFlags.LOG_APPEND_TIME in header.flags
                    if is_append_time:
                        ranges.append((header.base_offset, header.end_offset))
                log_append_times = join_ranges(ranges)
                if len(frames) == _READ_FRAMES:
                    self._clock.sleep(_PAUSE_S)
            base, end = piece.base_offset, piece.end_offset
            return writer.finish(
                leader_epochs=tuple(entry for entry in span.leader_epochs if entry[1] < end),
                producers=counted_at(unpack_batches(span.producers), end),
                idempotency_keys=[b for b in unpack_batches(span.idempotency_keys) if base <= b.base_offset < end],
                append_time_ms=append_time_ms,
                markers=[marker for marker in span.markers if marker.offset < end],
                producers_forgotten_up_to=span.producers_forgotten_up_to,
                log_append_times=log_append_times,
            )

    # ---- following the table ----------------------------------------------------------------------------------------

    async def _refresh(self, topic: Topic, *, at_start: bool) -> None:
        async with topic.commit_lock:
            if topic.deleted:
                return
            self._require_lock()
            try:
                await self._follower.follow(topic, at_start=at_start)
            except UnsupportedTableError as error:
                topic.quarantine(error.reason, error.remedy)
                raise
            except CorruptionError as error:
                topic.quarantine(str(error), "Restore _delta_log from a backup, then restart the store")
                raise
            # The log entries of lost records are kept until the records are back or given up. At a start the log was
            # just made durable, and below this version no checkpoint is due.
            due = not at_start or topic.version >= DELTA_CHECKPOINT_INTERVAL
            if due and topic.is_maintained_here and not any(p.missing for p in topic.partitions):
                await self._maintain(topic)

    async def _maintain(self, topic: Topic) -> None:
        """Maintain the table, one broker at a time: a replaced leader of partition 0 that does not know it may also be
        doing this.
        """
        if not await self._in_thread(topic.table.is_maintenance_due):
            return
        try:
            async with self._table_lock(topic.name):
                await self._in_thread(topic.table.maintain)
        except ZooKeeperUnavailableError as error:
            log.info("delta.checkpoint_postponed", topic=topic.name, why=error.message)


def _is_whole(files: TableFiles, part: RollPart) -> bool:
    """Return whether the files are on disk and undamaged. If they are not, the journal still has their records."""
    try:
        for segment in part.segments:
            verify_segment(files, segment.path)
    except (CorruptionError, OSError) as error:
        log.error("roll.file_lost", table=files.uri, partition=part.partition, error=str(error))
        return False
    return True


def _plan(partition_log: PartitionLog, segment_bytes: int) -> _Range:
    partition_log.state.producers.expire(partition_log.now_ms())
    partition_log.state.idempotency_keys.expire()
    base, end = partition_log.sealed_offset, partition_log.rollable_end
    pieces = []
    start = base
    while start < end:
        piece_end = partition_log.index.offset_after_bytes(start, end, segment_bytes)
        pieces.append(_Piece(start, piece_end, partition_log.index.part(start, piece_end)))
        start = piece_end
    return _Range(
        partition_log.partition,
        base,
        end,
        partition_log.leader_epoch,
        partition_log.state.leader_epochs.up_to(end),
        partition_log.state.producers.pack(),
        partition_log.state.idempotency_keys.pack(),
        partition_log.state.producers.markers,
        partition_log.state.producers.evicted_up_to,
        pieces,
    )


def _in_chunks(frames: Iterable[IndexedFrame]) -> Iterator[list[IndexedFrame]]:
    chunk: list[IndexedFrame] = []
    total = 0
    for frame in frames:
        if total >= _READ_BYTES or len(chunk) == _READ_FRAMES:
            yield chunk
            chunk, total = [], 0
        chunk.append(frame)
        total += frame.location.length
    if chunk:
        yield chunk


def _is_first_roll(topic: Topic, partition_log: PartitionLog) -> bool:
    """Return whether the leader has something to roll, and the known table has nothing of its epoch. The previous
    leader may have rolled more than it could report.
    """
    if partition_log.sealed_offset >= partition_log.rollable_end:
        return False
    known = topic.snapshot.partitions.get(partition_log.partition)
    return known is not None and known.leader_epoch < partition_log.leader_epoch


def _require(topic: Topic) -> None:
    if topic.deleted:
        raise UnknownTopicError(f"Topic {topic.name!r} was deleted.")
