"""One partition: its offsets, its un-sealed tail in the journal, and the segments that hold its history.

This is what all replicas have. What a leader does besides is its role, ``leadership``: a partition without one takes no
appends. Invariants (``check``), all on the event loop that owns the partition, so without locks::

    log_start_offset <= sealed_offset <= last_stable_offset <= high_watermark <= log_end_offset <= next_offset

* ``next_offset``: the offset that the next append gets; records between ``log_end_offset`` and it are being fsynced.
* ``log_end_offset``: everything below is durable in this broker's journal or in Delta.
* ``high_watermark``: everything below is durable on all in-sync replicas; readers stop here.
* ``last_stable_offset``: no transaction is open below; rolls, and readers of what is committed, stop here.
* ``sealed_offset``: everything below is in Delta; the journal index covers [sealed_offset, log_end_offset) whole.

Frames are tracked in the order of their offsets, and the journal tells in that order what is stored. If it fails, all
that is pending fails in one step of the loop, and ``next_offset`` falls back to ``log_end_offset``: offsets stay dense.
``producers`` and ``idempotency_keys`` follow: a batch counts for them from ``track`` on, unless it fails.
"""

import asyncio
import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from uuid import UUID

from logstore.clock import Clock
from logstore.delta.snapshot import SegmentFile
from logstore.errors import (
    FencedLeaderEpochError,
    LogStoreError,
    MissingRecordsError,
    NotLeaderOrFollowerError,
    QuarantinedError,
    RequestTimedOutError,
)
from logstore.journal.frame import (
    HEADER_BYTES,
    Frame,
    FrameFlags,
    FrameHeader,
    FrameLocation,
    FrameType,
)
from logstore.journal.partition_snapshot import PartitionSnapshot
from logstore.log.frame_index import FrameIndex, IndexedFrame
from logstore.log.history import MissingRange
from logstore.log.idempotency_keys import IdempotencyKeys
from logstore.log.isolation import Isolation
from logstore.log.journal_tail import JournalTail, is_transactional, marker_of
from logstore.log.leader_epochs import LeaderEpochs
from logstore.log.leadership import Leadership
from logstore.log.open_transactions import OpenTransactions
from logstore.log.producer_state import ProducerStates
from logstore.log.recent_batches import RecentBatches
from logstore.records.batch_identity import RememberedBatch
from logstore.records.transactions import Marker


@dataclass(slots=True)
class JournalBytes:
    """Bytes of the frames that are not in Delta, those being fsynced included; the partitions of a topic share it."""

    num_bytes: int = 0


class PartitionLog:
    def __init__(
        self,
        topic: str,
        topic_id: UUID,
        partition: int,
        *,
        clock: Clock,
        producer_id_expiration_ms: int,
        journal_bytes: JournalBytes | None = None,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        #: The epoch of the newest leader that is known; -1: none is.
        self.leader_epoch = -1
        #: None: another broker leads, or nobody does.
        self.leadership: Leadership | None = None
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
        #: Whether recovery found the batches of all producers: not if only segments tell of them.
        self.knows_all_producers = True
        self._recover: Callable[[], None] | None = None
        #: The reasons why segments cannot be read, by path, as readers have found them.
        self.unreadable: dict[str, str] = {}
        self.missing: tuple[MissingRange, ...] = ()
        self.open_transactions = OpenTransactions()
        self.producers = ProducerStates(
            f"{topic}-{partition}", expiration_ms=producer_id_expiration_ms, in_transaction=self.open_transactions
        )
        self.idempotency_keys = IdempotencyKeys(f"{topic}-{partition}")
        self._clock = clock
        self._unsealed_since: float | None = None
        self._last_append_time_ms = 0
        self._advanced: asyncio.Future[None] | None = None
        self._closed: LogStoreError | None = None
        #: The log end offset that a truncation on its way to the disk orders; None without one.
        self._truncating_to: int | None = None

    def __repr__(self) -> str:
        return (
            f"{self.topic}-{self.partition}[start={self.log_start_offset} sealed={self.sealed_offset} "
            f"hw={self.high_watermark} end={self.log_end_offset} next={self.next_offset}]"
        )

    @property
    def last_stable_offset(self) -> int:
        """No transaction is open below it; at most the high watermark."""
        first = self.open_transactions.first_offset
        return self.high_watermark if first is None else min(first, self.high_watermark)

    def readable_end(self, isolation: Isolation) -> int:
        """The offset at which readers, waits and rolls stop. Rolls are READ_COMMITTED."""
        return self.last_stable_offset if isolation is Isolation.READ_COMMITTED else self.high_watermark

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
    def has_unsealed(self) -> bool:
        """Whether a roll would have something to seal."""
        return (
            self.sealed_offset < self.readable_end(Isolation.READ_COMMITTED)
            and self.is_leader
            and self.quarantined is None
        )

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
        """Refuse readers and writers: the table contradicts itself, and nothing may be built on it."""
        self.quarantined = QuarantinedError(f"{self.topic}-{self.partition} is quarantined: {reason}", remedy)
        self._wake()

    def end_quarantine(self) -> None:
        """The table is mended."""
        if not self.recovered and self._recover is not None:
            self.recovered = True
            self.quarantined = None
            self._recover()  # recovery may find another problem
        elif self.recovered:
            self.quarantined = None

    def follow_segments(self, segments: tuple[SegmentFile, ...]) -> None:
        self.segments = segments
        if self.unreadable:
            paths = {segment.path for segment in segments}
            self.unreadable = {path: why for path, why in self.unreadable.items() if path in paths}

    def read_end(self, offset: int, isolation: Isolation) -> int:
        """The offset at which a read from ``offset`` stops: the ``readable_end``, or the next missing record.

        Raises QuarantinedError; MissingRecordsError if ``offset`` itself is missing.
        """
        self.require_served()
        end = self.readable_end(isolation)
        for gap in self.missing:
            if offset < gap.end:
                if offset >= gap.start:
                    raise MissingRecordsError(". ".join(self.explain_missing(gap)))
                return min(gap.start, end)
        return end

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

    # ---- leading ----------------------------------------------------------------------------------------------------

    def become_leader(self, epoch: int) -> None:
        """Lead with ``epoch``, which is higher than that of any leader before. FencedLeaderEpochError if it is not."""
        if epoch <= max(self.leader_epoch, self.leader_epochs.last):
            raise FencedLeaderEpochError(
                f"Broker cannot lead {self.topic}-{self.partition} with epoch {epoch}: "
                f"epoch {max(self.leader_epoch, self.leader_epochs.last)} has led it already."
            )
        self.resign(epoch)
        self.leadership = Leadership(self, epoch)

    def resign(self, epoch: int) -> None:
        """Another leader has ``epoch``. What is not acknowledged may be truncated: its outcome is unknown."""
        self.leader_epoch = max(self.leader_epoch, epoch)
        if (leadership := self.leadership) is not None:
            self.leadership = None
            leadership.fail(
                RequestTimedOutError(
                    f"{self.topic}-{self.partition} has a new leader (epoch {epoch}): the records may or may not be "
                    "stored. Try again."
                )
            )

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self.leadership is not None

    @property
    def not_leader(self) -> NotLeaderOrFollowerError | None:
        """Why appends are refused; None for the leader."""
        return None if self.leadership is not None else self._not_leader()

    def _not_leader(self) -> NotLeaderOrFollowerError:
        return NotLeaderOrFollowerError(
            f"This broker does not lead {self.topic}-{self.partition} (leader epoch {self.leader_epoch}): "
            "look up its leader, and try again there."
        )

    def require_leader(self) -> Leadership:
        """The role. Raises NotLeaderOrFollowerError without it."""
        if self.leadership is None:
            raise self._not_leader()
        return self.leadership

    # ---- appending --------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The append time that a batch would get now. It never falls."""
        return max(self._clock.now_ms(), self._last_append_time_ms)

    def next_append_time_ms(self) -> int:
        """The append time of a frame that is made now."""
        self._last_append_time_ms = now_ms = self.now_ms()
        return now_ms

    def track(self, frame: Frame) -> None:
        """Follow a frame that is handed to the journal; ``stored`` or ``failed`` is called with what became of it."""
        header = frame.header
        if header.type is FrameType.TRUNCATE:
            self._truncating_to = header.base_offset
        else:
            assert header.base_offset == self.next_offset, (header, self)
            self._journal_bytes.num_bytes += HEADER_BYTES + len(frame.payload)
            if (recent := self._recent_batches_of(header)) is not None:
                recent.begin(_remembered(header))
        self.next_offset = header.end_offset

    def stored(self, frame: Frame, location: FrameLocation) -> None:
        """The oldest frame that is tracked is durable."""
        header = frame.header
        if header.type is FrameType.TRUNCATE:
            self._drop_from(header.base_offset)
            return
        assert header.base_offset == self.log_end_offset, (header, self)
        if (recent := self._recent_batches_of(header)) is not None:
            recent.complete(header.identity.owner, stored=True)
            if is_transactional(header):
                self.open_transactions.append(header)
        elif header.type is FrameType.CONTROL:
            self.producers.remember_marker(marker_of(header, frame.payload))
            self.open_transactions.end(header.identity.owner)
        if self._unsealed_since is None:
            self._unsealed_since = self._clock.monotonic()
        self.index.add(header, location)
        self.leader_epochs.assign(header.leader_epoch, header.base_offset)
        self.log_end_offset = header.end_offset
        if self.leadership is not None:
            self.leadership.advance()

    def failed(self, frame: Frame, error: LogStoreError) -> None:
        """A frame that is tracked is not stored, nor is any behind it: the journal tells of them in the same step."""
        header = frame.header
        self.next_offset = self.log_end_offset
        if header.type is FrameType.TRUNCATE:
            self._truncating_to = None
            return
        self._journal_bytes.num_bytes -= HEADER_BYTES + len(frame.payload)
        if (recent := self._recent_batches_of(header)) is not None:
            recent.complete(header.identity.owner, stored=False)
        if self.leadership is not None:
            self.leadership.fail(error)

    def _recent_batches_of(self, header: FrameHeader) -> RecentBatches | None:
        """The memory that a batch belongs to; None for a batch without an identity, and for a marker."""
        if header.type is FrameType.CONTROL:
            return None
        if header.identity.is_producers:
            return self.producers
        return self.idempotency_keys if header.identity.is_keys else None

    def advance_high_watermark(self, offset: int) -> None:
        """Everything below ``offset`` is durable on all in-sync replicas."""
        if offset > self.high_watermark:
            self.high_watermark = offset
            self._wake()

    # ---- truncating -------------------------------------------------------------------------------------------------

    def truncation(self, offset: int, leader_epoch: int) -> Frame:
        """The journal frame that drops the records from ``offset`` on, and those that share a frame with it. Hand it to
        the journal and ``track`` it at once; the records are dropped when it is durable.

        ``leader_epoch`` is that of the leader who orders it, which is another broker: a leader drops nothing. What is
        in Delta stays: an offset below the sealed one drops all that is not (C8).
        """
        self.require_open()
        assert self.leadership is None, self
        assert self.next_offset == self.log_end_offset, self
        end = max(min(offset, self.log_end_offset), self.sealed_offset)
        if (boundary := self.index.boundary(end)) is not None:
            end = max(boundary, self.sealed_offset)
        return Frame(
            FrameHeader(
                type=FrameType.TRUNCATE,
                flags=FrameFlags(0),
                topic_id=self.topic_id,
                partition=self.partition,
                base_offset=end,
                record_count=0,
                leader_epoch=leader_epoch,
                append_time_ms=self._last_append_time_ms,
                max_timestamp_ms=self._last_append_time_ms,
                inflated_bytes=0,
            ),
            b"",
        )

    def _drop_from(self, offset: int) -> None:
        """A truncation is durable."""
        self._truncating_to = None
        offset = max(offset, self.sealed_offset)
        self._change_index(lambda: self.index.truncate(offset))
        self.log_end_offset = offset
        self.high_watermark = min(self.high_watermark, offset)
        self.leader_epochs.truncate(offset)
        self.open_transactions.truncate(offset)
        self.producers.forget_from(offset)
        self.idempotency_keys.forget_from(offset)
        if not len(self.index):
            self._unsealed_since = None
        self._wake()

    def _change_index(self, change: Callable[[], None]) -> None:
        self._journal_bytes.num_bytes -= self.index.num_bytes
        change()
        self._journal_bytes.num_bytes += self.index.num_bytes

    def frames_to_keep(self, start: int, end: int) -> list[IndexedFrame]:
        """The frames at the journal positions [start, end) that count: those that a truncation on its way to the disk
        drops do not, because a copy behind it would bring them back.
        """
        return [frame for frame in self.index.located_in(start, end) if self.keeps(frame)]

    def keeps(self, frame: IndexedFrame) -> bool:
        """Whether the frame counts still."""
        dropped = self._truncating_to is not None and frame.end_offset > self._truncating_to
        return not dropped and self.index.holds(frame)

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
        self._change_index(lambda: self.index.drop_below(offset))
        self._unsealed_since = self._clock.monotonic() if len(self.index) else None

    def snapshot_frame(self) -> Frame:
        """The frame that every new journal file begins with for this partition. It stands for all frames before it."""
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
            open_transactions=self.open_transactions.entries,
            markers=self.producers.markers,
        )
        header = FrameHeader(
            type=FrameType.SNAPSHOT,
            flags=FrameFlags(0),
            topic_id=self.topic_id,
            partition=self.partition,
            base_offset=self.sealed_offset,
            record_count=0,
            leader_epoch=max(self.leader_epoch, 0),
            append_time_ms=self._last_append_time_ms,
            max_timestamp_ms=self._last_append_time_ms,
            inflated_bytes=0,
        )
        return Frame(header, payload.encode())

    # ---- recovery ---------------------------------------------------------------------------------------------------

    def recover_append_time(self, append_time_ms: int) -> None:
        """A record was appended then: later ones are not appended earlier, whatever the clock says now."""
        self._last_append_time_ms = max(self._last_append_time_ms, append_time_ms)

    def recover(self, tail: JournalTail, *, sealed_offset: int, leader_epochs: Iterable[tuple[int, int]]) -> None:
        """Replay what the journal tells, in the order of offsets. ``leader_epochs``: those of the journal's newest
        snapshot, or of the last segment's footer.
        """
        self.recover_append_time(tail.append_time_ms)
        self.leader_epochs = tail.leader_epochs(leader_epochs)
        tail.replay_snapshot(self.producers, self.idempotency_keys)
        for stored in tail.batches():
            if isinstance(stored, Marker):
                self.producers.remember_marker(stored)
                continue
            recent: RecentBatches = self.producers if stored.epoch >= 0 else self.idempotency_keys
            recent.expire(stored.append_time_ms)
            recent.remember(stored)
        self.open_transactions.replace(tail.open_transactions())
        self.index = tail.index
        self.sealed_offset = sealed_offset

    def recover_from_footers(
        self,
        producers: Iterable[RememberedBatch],
        idempotency_keys: Iterable[RememberedBatch],
        *,
        producer_ids_begin: int,
        markers: Iterable[Marker] = (),
    ) -> None:
        """Take over the batches that segments remember, if the journal ends before the table does. Producers that
        appended behind the segments are unknown; their ids are below ``producer_ids_begin``.
        """
        self.producers.replace(producers, markers)
        self.idempotency_keys.replace(idempotency_keys)
        self.knows_all_producers = False
        self.forget_producers(producer_ids_begin)

    def forget_producers(self, producer_ids_begin: int) -> None:
        """If batches of producers are unknown: those of all with ids below ``producer_ids_begin`` may be."""
        if not self.knows_all_producers:
            self.producers.evicted_up_to = max(self.producers.evicted_up_to, producer_ids_begin - 1)

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
