"""One partition: its offsets, its un-sealed tail in the journal, and the segments that hold its history.

Invariants (``check``), all on the event loop that owns the partition, so without locks::

    log_start_offset <= sealed_offset <= last_stable_offset <= high_watermark <= log_end_offset <= next_offset

* ``next_offset``: the offset that the next append gets; records between ``log_end_offset`` and it are being fsynced.
* ``log_end_offset``: everything below is durable in this broker's journal or in Delta.
* ``high_watermark``: everything below is durable on all in-sync replicas; readers and rolls stop here.
* ``sealed_offset``: everything below is in Delta; the journal index covers [sealed_offset, log_end_offset) whole.

Offsets are assigned in the order of calls to ``next_frame`` and become durable in that order. If the journal fails,
every pending append fails with it, and ``next_offset`` falls back to ``log_end_offset``: offsets stay dense.
``producers`` and ``idempotency_keys`` follow: a batch counts for them from ``track`` on, unless it fails.
"""

import asyncio
import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from logstore.clock import Clock
from logstore.delta.snapshot import SegmentFile
from logstore.errors import LogStoreError, MissingRecordsError, QuarantinedError
from logstore.journal.frame import (
    HEADER_BYTES,
    Frame,
    FrameFlags,
    FrameHeader,
    FrameLocation,
    FrameType,
)
from logstore.journal.partition_snapshot import PartitionSnapshot
from logstore.log.frame_index import FrameIndex
from logstore.log.history import MissingRange
from logstore.log.idempotency_keys import IdempotencyKeys
from logstore.log.leader_epochs import LeaderEpochs
from logstore.log.producer_state import ProducerStates
from logstore.log.recent_batches import RecentBatches
from logstore.records.batch_identity import (
    NO_IDENTITY,
    BatchIdentity,
    RememberedBatch,
    first_producer_id,
    unpack_batches,
)

# Making it anew for each frame takes as long as the rest of a header.
_NO_FLAGS = FrameFlags(0)


@dataclass(slots=True)
class JournalBytes:
    """Bytes of the frames that are not in Delta, those being fsynced included; the partitions of a topic share it."""

    num_bytes: int = 0


@dataclass(slots=True)
class _Pending:
    header: FrameHeader
    length: int
    durable: asyncio.Future[list[FrameLocation]]
    position_in_append: int


class PartitionLog:
    def __init__(
        self,
        topic: str,
        topic_id: UUID,
        partition: int,
        *,
        leader_epoch: int,
        clock: Clock,
        producer_id_expiration_ms: int,
        journal_bytes: JournalBytes | None = None,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.log_start_offset = 0
        self.sealed_offset = 0
        self.high_watermark = 0
        self.log_end_offset = 0
        self.next_offset = 0
        self.index = FrameIndex()
        self._journal_bytes = journal_bytes or JournalBytes()
        self.leader_epochs = LeaderEpochs()
        self.segments: tuple[SegmentFile, ...] = ()
        #: Why readers and writers are refused; the partition's frames stay in the journal meanwhile.
        self.quarantined: QuarantinedError | None = None
        #: Whether recovery has finished; until then the journal keeps the partition's frames as they are.
        self.recovered = True
        self._recover: Callable[[], None] | None = None
        #: The reasons why segments cannot be read, by path, as readers have found them.
        self.unreadable: dict[str, str] = {}
        self.missing: tuple[MissingRange, ...] = ()
        self.producers = ProducerStates(f"{topic}-{partition}", expiration_ms=producer_id_expiration_ms)
        self.idempotency_keys = IdempotencyKeys(f"{topic}-{partition}")
        self._clock = clock
        self._pending: deque[_Pending] = deque()
        self._unsealed_since: float | None = None
        self._last_append_time_ms = 0
        self._advanced: asyncio.Future[None] | None = None
        self._closed: LogStoreError | None = None
        #: While recovering: batches below this offset are in ``producers`` and ``idempotency_keys`` already.
        self.remembered_end = 0

    def __repr__(self) -> str:
        return (
            f"{self.topic}-{self.partition}[start={self.log_start_offset} sealed={self.sealed_offset} "
            f"hw={self.high_watermark} end={self.log_end_offset} next={self.next_offset}]"
        )

    @property
    def last_stable_offset(self) -> int:
        """Equal to the high watermark: nothing here opens a transaction."""
        return self.high_watermark

    @property
    def segment_count(self) -> int:
        return len(self.segments)

    @property
    def size_bytes(self) -> int:
        """Bytes of the segment files in Delta."""
        return sum(segment.size for segment in self.segments)

    @property
    def record_count(self) -> int:
        """The number of records that readers see. If the log start lies inside a compacted segment, all its records
        count.
        """
        kept = sum(segment.num_records for segment in self.segments if segment.end_offset > self.log_start_offset)
        offsets = self.high_watermark - self.log_start_offset
        return min(offsets, kept + self.high_watermark - max(self.sealed_offset, self.log_start_offset))

    @property
    def newest_timestamp_ms(self) -> int | None:
        """The largest timestamp of the last frame of the tail, or of the last segment with a record."""
        if (newest := self.index.newest_timestamp_ms) is not None:
            return newest
        return next((segment.max_timestamp_ms for segment in reversed(self.segments) if segment.num_records), None)

    @property
    def unsealed_bytes(self) -> int:
        return self.index.num_bytes

    @property
    def unsealed_ms(self) -> float:
        """How long the oldest un-sealed record has been waiting here, at least; 0 without one. The monotonic clock
        measures it: a wall clock that is set back must not hold up rolls.
        """
        return 0.0 if self._unsealed_since is None else (self._clock.monotonic() - self._unsealed_since) * 1000

    def check(self) -> None:
        ends = (self.log_start_offset, self.sealed_offset, self.last_stable_offset, self.high_watermark)
        rising = (*ends, self.log_end_offset, self.next_offset)
        assert all(a <= b for a, b in itertools.pairwise(rising)), self
        if self.sealed_offset < self.log_end_offset:
            first = self.index.base_offset
            assert first is not None, self
            assert first <= self.sealed_offset, self
            assert self.index.end_offset == self.log_end_offset, self

    # ---- problems -------------------------------------------------------------------------------------------------

    def require_served(self) -> None:
        """Raise QuarantinedError if readers and writers are refused."""
        if self.quarantined is not None:
            raise self.quarantined

    def quarantine(self, reason: str, remedy: str) -> None:
        """Refuse readers and writers: the table says what cannot be, and nobody may build on it."""
        self.quarantined = QuarantinedError(f"{self.topic}-{self.partition} is quarantined: {reason}", remedy)
        self._wake()

    def end_quarantine(self) -> None:
        """The table is mended."""
        if not self.recovered and self._recover is not None:
            self.recovered = True
            self.quarantined = None
            self._recover()  # which may find something else
        elif self.recovered:
            self.quarantined = None

    def follow_segments(self, segments: tuple[SegmentFile, ...]) -> None:
        self.segments = segments
        if self.unreadable:
            paths = {segment.path for segment in segments}
            self.unreadable = {path: why for path, why in self.unreadable.items() if path in paths}

    def readable_end(self, offset: int) -> int:
        """The offset at which a read from ``offset`` stops: the last stable offset, or the next missing record.

        Raises QuarantinedError; MissingRecordsError if ``offset`` itself is missing.
        """
        self.require_served()
        for gap in self.missing:
            if offset < gap.end:
                if offset >= gap.start:
                    raise MissingRecordsError(". ".join(self.explain_missing(gap)))
                return min(gap.start, self.last_stable_offset)
        return self.last_stable_offset

    def stored_bytes(self, start: int, end: int) -> int:
        """About how many bytes the records of [start, end) take: in their segments, or as readers count the tail.

        0 only if there are none.
        """
        total = 0
        for segment in self.segments[bisect_right(self.segments, start, key=lambda s: s.end_offset) :]:
            if segment.base_offset >= min(end, self.sealed_offset):
                break
            wanted = min(segment.max_offset + 1, end) - max(segment.min_offset, start)
            if segment.num_records and wanted > 0:
                total += max(1, segment.size * wanted // (segment.max_offset + 1 - segment.min_offset))
        return total + self.index.record_bytes(max(start, self.sealed_offset), end)

    def is_missing(self, offset: int) -> bool:
        return any(gap.start <= offset < gap.end for gap in self.missing)

    def explain_missing(self, gap: MissingRange) -> tuple[str, str]:
        """The missing records in words, and a remedy."""
        give_up = f"logstore topic delete-records {self.topic} --partition {self.partition} --before-offset {gap.end}"
        return (
            f"Offsets {gap.start} to {gap.end - 1} of {self.topic}-{self.partition} are missing: {gap.cause}",
            f"Restore the table to its version before, or give up these records and all before them: {give_up}",
        )

    # ---- appending --------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The append time that a batch would get now. It never falls. Failed appends do not count."""
        self.complete_appends()
        return max(self._clock.now_ms(), self._last_append_time_ms)

    def next_frame(
        self,
        batch: pa.RecordBatch,
        payload: pa.Buffer,
        *,
        inflated_bytes: int,
        log_append_time: bool,
        after: Frame | None = None,
        identity: BatchIdentity = NO_IDENTITY,
    ) -> Frame:
        """The journal frame for a batch, with the next offsets. Hand it to the journal and ``track`` it at once.

        ``after`` is the one before it in the same append, if that has several of this partition.
        Between this call and ``track`` nothing may await: the order of frames in the journal is the order of offsets.
        """
        if self._closed:
            raise self._closed
        self.require_served()
        self.complete_appends()
        append_time = max(self._clock.now_ms(), self._last_append_time_ms)
        self._last_append_time_ms = append_time
        header = FrameHeader(
            type=FrameType.DATA,
            flags=FrameFlags.LOG_APPEND_TIME if log_append_time else _NO_FLAGS,
            topic_id=self.topic_id,
            partition=self.partition,
            base_offset=self.next_offset if after is None else after.header.end_offset,
            record_count=batch.num_rows,
            leader_epoch=self.leader_epoch,
            append_time_ms=append_time,
            max_timestamp_ms=append_time if log_append_time else _max_timestamp(batch, append_time),
            inflated_bytes=inflated_bytes,
            identity=identity,
        )
        return Frame(header, payload)

    def track(self, frame: Frame, durable: asyncio.Future[list[FrameLocation]], position_in_append: int) -> None:
        """Follow a frame given to the journal; ``durable`` resolves to the locations of all frames of that append.

        ``complete_appends`` is to be called when it has: once for all frames of this partition.
        """
        assert frame.header.base_offset == self.next_offset, (frame.header, self)
        self.next_offset += frame.header.record_count
        length = HEADER_BYTES + len(frame.payload or b"")
        self._journal_bytes.num_bytes += length
        self._pending.append(_Pending(frame.header, length, durable, position_in_append))
        if (recent := self._recent_batches_of(frame.header)) is not None:
            recent.begin(_remembered(frame.header), durable)

    def complete_appends(self) -> None:
        # Also called before offsets are assigned: the journal fails all that is pending in one step, and callbacks run
        # a step later; an append in between must not continue from offsets that were never stored.
        while self._pending and self._pending[0].durable.done():
            pending = self._pending.popleft()
            stored = pending.durable.exception() is None
            if (recent := self._recent_batches_of(pending.header)) is not None:
                recent.complete(_remembered(pending.header).owner, stored=stored)
            if not stored:
                self._journal_bytes.num_bytes -= pending.length
                self.next_offset = self.log_end_offset
                continue
            assert pending.header.base_offset == self.log_end_offset, (pending.header, self)
            if self._unsealed_since is None:
                self._unsealed_since = self._clock.monotonic()
            self.index.add(pending.header, pending.durable.result()[pending.position_in_append])
            self.leader_epochs.assign(pending.header.leader_epoch, pending.header.base_offset)
            self.log_end_offset += pending.header.record_count
            self._advance_high_watermark(self.log_end_offset)

    def _recent_batches_of(self, header: FrameHeader) -> RecentBatches | None:
        """The memory that a batch belongs to; None for a batch without an identity."""
        if header.identity.is_producers:
            return self.producers
        return self.idempotency_keys if header.identity.is_keys else None

    def _advance_high_watermark(self, offset: int) -> None:
        if offset > self.high_watermark:
            self.high_watermark = offset
            self._wake()

    # ---- waiting ----------------------------------------------------------------------------------------------------

    def advanced(self) -> "asyncio.Future[None]":
        """Done when readers see more than now, or when the log is closed. Shared: not to be cancelled."""
        if self._advanced is None:
            self._advanced = asyncio.get_running_loop().create_future()
        return self._advanced

    def _wake(self) -> None:
        if self._advanced is not None:
            self._advanced.set_result(None)
            self._advanced = None

    @property
    def closed(self) -> LogStoreError | None:
        """The error that the log was closed with; None while it is open."""
        return self._closed

    @property
    def is_closed(self) -> bool:
        return self._closed is not None

    def require_open(self) -> None:
        """Raise the error that the log was closed with."""
        if self._closed:
            raise self._closed

    def close(self, reason: LogStoreError) -> None:
        """Waiting readers and later appends get ``reason``: the topic was deleted, or the broker stops."""
        self._closed = reason
        self._wake()

    # ---- sealing ----------------------------------------------------------------------------------------------------

    def seal(self, offset: int) -> None:
        """Everything below ``offset`` is in Delta, durably."""
        assert self.sealed_offset <= offset <= self.last_stable_offset, (offset, self)
        self.sealed_offset = offset
        self._journal_bytes.num_bytes -= self.index.num_bytes
        self.index.drop_below(offset)
        self._journal_bytes.num_bytes += self.index.num_bytes
        self._unsealed_since = self._clock.monotonic() if len(self.index) else None

    def snapshot_frame(self) -> Frame:
        """The frame that every new journal file begins with for this partition.

        It stands for all frames before it: appends that are durable by then are completed first.
        """
        now_ms = self.now_ms()
        self.producers.expire(now_ms)
        self.idempotency_keys.expire(now_ms)
        payload = PartitionSnapshot(
            sealed_offset=self.sealed_offset,
            leader_epochs=self.leader_epochs.entries,
            log_end_offset=self.log_end_offset,
            producers=self.producers.pack(),
            idempotency_keys=self.idempotency_keys.pack(),
            producers_forgotten_up_to=self.producers.evicted_up_to,
        )
        header = FrameHeader(
            type=FrameType.SNAPSHOT,
            flags=FrameFlags(0),
            topic_id=self.topic_id,
            partition=self.partition,
            base_offset=self.sealed_offset,
            record_count=0,
            leader_epoch=self.leader_epoch,
            append_time_ms=self._last_append_time_ms,
            max_timestamp_ms=self._last_append_time_ms,
            inflated_bytes=0,
        )
        return Frame(header, payload.encode())

    # ---- recovery ---------------------------------------------------------------------------------------------------

    def recover_append_time(self, append_time_ms: int) -> None:
        """A record was appended then: later ones are not appended earlier, whatever the clock says now."""
        self._last_append_time_ms = max(self._last_append_time_ms, append_time_ms)

    def recover_frame(self, header: FrameHeader, location: FrameLocation) -> None:
        """A data frame that the journal scan found; ``finish_recovery`` puts them in order."""
        self.recover_append_time(header.append_time_ms)
        self.index.add(header, location)
        self.leader_epochs.assign(header.leader_epoch, header.base_offset)
        # A frame that was copied forward stands behind later ones; the state already includes it.
        if header.base_offset >= self.remembered_end:
            self.remembered_end = header.end_offset
            if (recent := self._recent_batches_of(header)) is not None:
                recent.expire(header.append_time_ms)
                recent.remember(_remembered(header))

    def recover_snapshot(self, snapshot: PartitionSnapshot) -> None:
        """A snapshot frame that the journal scan found; the frames before it may tell all of it already."""
        if snapshot.log_end_offset > self.remembered_end:
            self.remembered_end = snapshot.log_end_offset
            self.producers.replace(unpack_batches(snapshot.producers))
            self.idempotency_keys.replace(unpack_batches(snapshot.idempotency_keys))
        self.producers.evicted_up_to = max(self.producers.evicted_up_to, snapshot.producers_forgotten_up_to)

    def recover_from_footers(
        self, end_offset: int, producers: Iterable[RememberedBatch], idempotency_keys: Iterable[RememberedBatch]
    ) -> None:
        """Take over the batches that segments remember below ``end_offset``, if the journal begins later. Producers
        that appended behind the segments are unknown.
        """
        self.remembered_end = end_offset
        self.producers.replace(producers)
        self.producers.evicted_up_to = first_producer_id(self.leader_epoch) - 1
        self.idempotency_keys.replace(idempotency_keys)

    def recover_history(self, *, sealed_offset: int, leader_epochs: Sequence[tuple[int, int]]) -> None:
        """Take over the state in Delta; leader epochs come from the journal's snapshot or the last segment's footer."""
        self.sealed_offset = sealed_offset
        written_since = self.leader_epochs.entries
        self.leader_epochs = LeaderEpochs([*leader_epochs, *written_since])

    def postpone_recovery(self, recover: Callable[[], None] | None) -> None:
        """The partition is quarantined, and is recovered when that ends; without ``recover`` by the next start."""
        self.recovered = False
        self._recover = recover

    def finish_recovery(self) -> None:
        """Compute the ends from the recovered frames. CorruptionError if the journal has a hole or an overlap."""
        self.index.finish_recovery(self.sealed_offset)
        self._journal_bytes.num_bytes += self.index.num_bytes
        self.log_end_offset = max(self.sealed_offset, self.index.end_offset or 0)
        self.next_offset = self.high_watermark = self.log_end_offset
        if len(self.index):
            self._unsealed_since = self._clock.monotonic()
        self.check()


def _remembered(header: FrameHeader) -> RememberedBatch:
    return RememberedBatch(*header.identity, header.record_count, header.base_offset, header.append_time_ms)


def _max_timestamp(batch: pa.RecordBatch, append_time_ms: int) -> int:
    timestamps = batch.column(0)
    if timestamps.null_count == len(timestamps):
        return append_time_ms
    latest = pc.max(timestamps.cast(pa.int64())).as_py()
    return int(max(latest, append_time_ms)) if timestamps.null_count else int(latest)
