"""One partition: its offsets, its un-sealed tail in the journal, and the segments that hold its history.

All replicas have a partition log; the leader also has a role, ``Leadership``. A partition without that role accepts no
appends. Invariants (``check``), all on the event loop that owns the partition, so without locks::

    log_start_offset <= sealed_offset <= last_stable_offset <= high_watermark <= log_end_offset <= next_offset

* ``next_offset``: the offset that the next append gets; records between ``log_end_offset`` and it are being fsynced.
* ``log_end_offset``: everything below is durable in this broker's journal or in Delta.
* ``high_watermark``: everything below is durable on all in-sync replicas; readers stop here (``HighWatermark``).
* ``last_stable_offset``: no transaction is open below; rolls, and readers of committed records, stop here.
* ``sealed_offset``: everything below is in Delta; the journal index covers [sealed_offset, log_end_offset) whole.

Frames are tracked in the order of their offsets, and the journal reports in that order which are stored. If it fails,
all pending frames fail in one step of the loop, and ``next_offset`` falls back to ``log_end_offset``: offsets stay
dense. The ``state`` (producers, keys, transactions, epochs) follows the same frames.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final
from uuid import UUID

import pyarrow as pa

from logstore.clock import Clock
from logstore.errors import (
    FencedLeaderEpochError,
    LogStoreError,
    MissingRecordsError,
    NotLeaderOrFollowerError,
    QuarantinedError,
    RequestTimedOutError,
)
from logstore.journal.frame import Frame, FrameHeader, FrameLocation, FrameType
from logstore.log.active_segment import ActiveSegment, JournalBytes
from logstore.log.frame_index import FrameIndex
from logstore.log.high_watermark import HighWatermark
from logstore.log.history import MissingRange
from logstore.log.in_sync_replicas import Follower, InSyncReplicas
from logstore.log.isolation import Isolation
from logstore.log.journal_tail import JournalTail
from logstore.log.leadership import Leadership
from logstore.log.log_segments import LogSegments
from logstore.log.partition_frames import PartitionFrames
from logstore.log.partition_log_state import PartitionLogState
from logstore.records.batch import EncodedBatch, KafkaBatch
from logstore.records.batch_identity import NO_IDENTITY, BatchIdentity

# This is looked up once, because an enumeration's members are slow to find.
_TRUNCATE: Final = FrameType.TRUNCATE
_NO_FOLLOWERS: Final[Mapping[int, Follower]] = MappingProxyType({})


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
        location: str = "TABLE",
    ) -> None:
        self.topic = topic
        #: The location of the topic's table, for messages.
        self.location = location
        self.topic_id = topic_id
        self.partition = partition
        self._frames = PartitionFrames(topic_id, partition, clock)
        self._high_watermark = high_watermark = HighWatermark()
        self.state = PartitionLogState(
            f"{topic}-{partition}",
            clock=clock,
            producer_id_expiration_ms=producer_id_expiration_ms,
            high_watermark=lambda: high_watermark.offset,
        )
        #: The epoch of the newest known leader; -1 if none is known.
        self.leader_epoch = -1
        #: None if another broker leads, or nobody does.
        self._leadership: Leadership | None = None
        self.log_start_offset = 0
        self.sealed_offset = 0
        #: A sealed offset that is known, and the one that recovery has inferred. Snapshots have the known one until a
        #: roll goes beyond: the frames may be in a file that is lost and comes back, which must not be freed then.
        self._inferred = (0, 0)
        self.log_end_offset = 0
        self.next_offset = 0
        self.active_segment = ActiveSegment(clock, journal_bytes or JournalBytes())
        self.segments = LogSegments()
        #: The reason why readers and writers are refused; the partition's frames stay in the journal meanwhile.
        self.quarantined: QuarantinedError | None = None
        #: True when recovery has finished; until then the journal keeps the partition's frames as they are.
        self.recovered = True
        self._recover: Callable[[], None] | None = None
        self.missing: tuple[MissingRange, ...] = ()
        self._closed: LogStoreError | None = None

    def __repr__(self) -> str:
        return (
            f"{self.topic}-{self.partition}[start={self.log_start_offset} sealed={self.sealed_offset} "
            f"hw={self.high_watermark} end={self.log_end_offset} next={self.next_offset}]"
        )

    @property
    def high_watermark(self) -> int:
        """The offset below which everything is durable on all in-sync replicas."""
        return self._high_watermark.offset

    @property
    def last_stable_offset(self) -> int:
        """The offset below which no transaction is open; at most the high watermark."""
        return self.state.open_transactions.last_stable_offset(self._high_watermark.offset)

    def readable_end(self, isolation: Isolation) -> int:
        """Return the offset at which readers and waits stop."""
        return self.last_stable_offset if isolation is Isolation.READ_COMMITTED else self._high_watermark.offset

    @property
    def rollable_end(self) -> int:
        """The offset at which rolls stop. A leader that is not settled rolls nothing (C9)."""
        if self._leadership is None or not self._leadership.is_settled:
            return self.sealed_offset
        return self.last_stable_offset

    @property
    def record_count(self) -> int:
        """The number of records that readers see. If the log start lies inside a compacted segment, all its records
        count.
        """
        kept = self.segments.records_above(self.log_start_offset)
        offsets = self.high_watermark - self.log_start_offset
        return min(offsets, kept + self.high_watermark - max(self.sealed_offset, self.log_start_offset))

    @property
    def newest_timestamp_ms(self) -> int | None:
        """The largest timestamp of the last frame of the tail, or of the last segment with a record."""
        newest = self.index.newest_timestamp_ms
        return self.segments.newest_timestamp_ms if newest is None else newest

    @property
    def index(self) -> FrameIndex:
        """The frames of the active segment."""
        return self.active_segment.index

    @property
    def unsealed_bytes(self) -> int:
        """Journal bytes of the active segment."""
        return self.index.num_bytes

    @property
    def has_unsealed(self) -> bool:
        """True if a roll would have something to seal."""
        return self.sealed_offset < self.rollable_end and self.quarantined is None

    @property
    def unsealed_ms(self) -> float:
        """The age of the active segment."""
        return self.active_segment.age_ms

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
        """Refuse readers and writers, because the table contradicts itself and nothing may be built on it."""
        self.quarantined = QuarantinedError(f"{self.topic}-{self.partition} is quarantined: {reason}", remedy)
        self._high_watermark.wake_readers()

    def end_quarantine(self) -> None:
        """Serve the partition again, as the table is repaired."""
        if not self.recovered and self._recover is not None:
            self.recovered = True
            self.quarantined = None
            self._recover()  # recovery may find another problem
        elif self.recovered:
            self.quarantined = None

    def read_end(self, offset: int, isolation: Isolation) -> int:
        """Return the offset at which a read from ``offset`` stops: the ``readable_end``, or the next missing record.
        Raises QuarantinedError, and MissingRecordsError if ``offset`` itself is missing.
        """
        self.require_served()
        end = self.readable_end(isolation)
        for gap in self.missing:
            if offset < gap.end:
                if offset >= gap.start:
                    raise MissingRecordsError(". ".join(gap.explained(self.topic, self.partition, self.location)))
                return min(gap.start, end)
        return end

    def stored_bytes(self, start: int, end: int) -> int:
        """Return about how many bytes the records of [start, end) take: in their segments, or as readers count the
        tail. It is 0 only if there are no records.
        """
        in_delta = self.segments.stored_bytes(start, min(end, self.sealed_offset))
        return in_delta + self.index.record_bytes(max(start, self.sealed_offset), end)

    def is_missing(self, offset: int) -> bool:
        return any(gap.start <= offset < gap.end for gap in self.missing)

    # ---- leading ----------------------------------------------------------------------------------------------------

    def become_leader(
        self,
        epoch: int,
        in_sync_replicas: InSyncReplicas | None = None,
        has_lease: Callable[[], bool] = lambda: True,
        is_followed: Callable[[InSyncReplicas], bool] = lambda _: True,
    ) -> None:
        """Lead with ``epoch``. Raises FencedLeaderEpochError unless it is higher than that of any leader before.
        ``in_sync_replicas``, ``has_lease`` and ``is_followed`` are as for ``Leadership``.
        """
        newest = max(self.leader_epoch, self.state.leader_epochs.last)
        if epoch <= newest:
            raise FencedLeaderEpochError(
                f"Broker cannot lead {self.topic}-{self.partition} with epoch {epoch}: "
                f"epoch {newest} has led it already."
            )
        self.resign(epoch)
        self._leadership = Leadership(
            epoch, self._high_watermark, self.log_end_offset, in_sync_replicas, has_lease, is_followed
        )

    def resign(self, epoch: int) -> None:
        """Stop leading, as another leader has ``epoch``. Records that are not acknowledged may be truncated: their
        outcome is unknown.
        """
        self.leader_epoch = max(self.leader_epoch, epoch)
        if (leadership := self._leadership) is not None:
            self._leadership = None
            leadership.end(
                RequestTimedOutError(
                    f"{self.topic}-{self.partition} has a new leader (epoch {epoch}): the records may or may not be "
                    "stored. Try again."
                )
            )
            self._high_watermark.wake_readers()

    @property
    def is_settled(self) -> bool:
        """True if this broker leads, as far as anybody can know, and its end offsets cannot fall any more (C9)."""
        return self._leadership is not None and self._leadership.is_settled and not self._leadership.is_cut_off

    @property
    def is_leader(self) -> bool:
        """True if this broker leads the partition."""
        return self._leadership is not None

    def count_replicas(self) -> None:
        """Count the replicas again: ``min.insync.replicas`` has changed, so the high watermark may rise now."""
        if self._leadership is not None:
            self._leadership.count_replicas()

    def append_refusal(self, acks: int) -> LogStoreError | None:
        """Return why an append with ``acks`` is refused; None if it is accepted."""
        return self._not_leader() if self._leadership is None else self._leadership.refusal(acks)

    def _not_leader(self) -> NotLeaderOrFollowerError:
        return NotLeaderOrFollowerError(
            f"This broker does not lead {self.topic}-{self.partition} (leader epoch {self.leader_epoch}): "
            "look up its leader, and try again there."
        )

    def require_leader(self) -> Leadership:
        """Return the leader's role. Raises NotLeaderOrFollowerError if this broker does not lead."""
        if self._leadership is None:
            raise self._not_leader()
        return self._leadership

    @property
    def followers(self) -> Mapping[int, Follower]:
        """The other replicas as this leader knows them, by broker; none if another broker leads."""
        leadership = self._leadership
        if leadership is None or leadership.in_sync_replicas is None:
            return _NO_FOLLOWERS
        return leadership.in_sync_replicas.followers

    # ---- appending --------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the append time that a batch would get now. It never falls."""
        return self._frames.now_ms()

    def next_frame(
        self,
        batch: pa.RecordBatch | EncodedBatch | KafkaBatch,
        payload: pa.Buffer,
        *,
        inflated_bytes: int,
        log_append_time: bool,
        identity: BatchIdentity = NO_IDENTITY,
    ) -> Frame:
        """Return the journal frame for a batch, with the next offsets. Hand it to the journal and ``track`` it at once.
        A KafkaBatch itself says how large it is, and whether it gets the append time.

        Between this call and ``Journal.store`` nothing may await: the order of frames in the journal is the order of
        offsets. Raises NotLeaderOrFollowerError, QuarantinedError, or the error that the log was closed with.
        """
        epoch = self.require_leader().epoch
        self.require_open()
        self.require_served()
        if isinstance(batch, KafkaBatch):
            return self._frames.kafka_batch(
                batch, payload, base_offset=self.next_offset, leader_epoch=epoch, identity=identity
            )
        return self._frames.data(
            batch,
            payload,
            base_offset=self.next_offset,
            leader_epoch=epoch,
            inflated_bytes=inflated_bytes,
            log_append_time=log_append_time,
            identity=identity,
        )

    def track(self, frame: Frame) -> None:
        """Follow a frame that is handed to the journal; ``stored`` or ``failed`` reports its outcome."""
        header = frame.header
        if header.type is _TRUNCATE:
            self.active_segment.begin_truncation()
        else:
            assert header.base_offset == self.next_offset or self.begins_tail(header), (header, self)
            self.state.begin(header)
            self.active_segment.begin(frame)
        self.next_offset = header.end_offset

    def stored(self, frame: Frame, location: FrameLocation) -> None:
        """Count the oldest tracked frame, which is now durable."""
        header = frame.header
        if header.type is _TRUNCATE:
            self._drop_from(header.base_offset)
            return
        assert header.base_offset == self.log_end_offset or self.begins_tail(header), (header, self)
        self.state.stored(frame)
        self.active_segment.stored(header, location)
        self.log_end_offset = header.end_offset
        if self._leadership is not None:
            self._leadership.advance(header.end_offset)

    def failed(self, frame: Frame, error: LogStoreError) -> None:
        """Undo a tracked frame that is not stored. No frame after it is stored either: the journal reports all of them
        in the same step.
        """
        self.next_offset = self.log_end_offset
        if frame.header.type is _TRUNCATE:
            self.active_segment.truncation_failed()
            return
        self.active_segment.failed(frame)
        self.state.failed(frame.header)
        if self._leadership is not None:
            self._leadership.fail(error)

    # ---- following --------------------------------------------------------------------------------------------------

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last record; -1 without one."""
        return self.state.leader_epochs.last

    @property
    def is_quiet(self) -> bool:
        """True if no frame is being written to disk."""
        return self.next_offset == self.log_end_offset and not self.active_segment.is_truncating

    def begins_tail(self, header: FrameHeader) -> bool:
        """Return whether a follower's first frame after the sealed offset begins below it."""
        return not len(self.index) and header.base_offset < self.sealed_offset < header.end_offset

    def track_replicated(self, frames: Sequence[Frame]) -> None:
        """Follow frames of the leader that are handed to the journal, after ``following.require_follows`` accepted
        them. They keep the leader's append times.
        """
        assert self._leadership is None, self
        for frame in frames:
            self._frames.recover_append_time(frame.header.append_time_ms)
            self.track(frame)

    def follow_leader(self, high_watermark: int, sealed_offset: int, log_start_offset: int) -> None:
        """Follow the leader's offsets, as far as they are about records that are here."""
        assert self._leadership is None, self
        end = self.log_end_offset
        self._high_watermark.advance(max(min(high_watermark, end), min(sealed_offset, end)))
        if (sealed := min(sealed_offset, end)) > self.sealed_offset:
            self.seal(sealed)
        self.log_start_offset = max(self.log_start_offset, min(log_start_offset, self.sealed_offset))

    def adopt_sealed(self, offset: int) -> None:
        """Seal up to ``offset``, which the table has and this log did not know: the previous leader had rolled it, so
        all in-sync replicas have it (C10).
        """
        assert offset <= self.log_end_offset, (offset, self)
        self._high_watermark.advance(offset)
        self.seal(offset)

    # ---- truncating -------------------------------------------------------------------------------------------------

    def truncation(self, offset: int, leader_epoch: int) -> Frame:
        """Return the journal frame that drops the records from ``offset`` on, and those that share a frame with it.
        Hand it to the journal and ``track`` it at once; the records are dropped when it is durable.

        ``leader_epoch`` is that of the leader that orders it. This is another broker, because a leader drops nothing.
        Records in Delta stay: an offset below the sealed one drops everything that is not in Delta (C8).
        """
        self.require_open()
        assert self._leadership is None, self
        assert self.next_offset == self.log_end_offset, self
        end = max(min(offset, self.log_end_offset), self.sealed_offset)
        if (boundary := self.index.boundary(end)) is not None:
            end = max(boundary, self.sealed_offset)
        return self._frames.truncation(end, leader_epoch)

    def _drop_from(self, offset: int) -> None:
        """Drop the records from ``offset`` on, as the truncation is durable. Records in Delta stay; the leader may have
        rolled more meanwhile.
        """
        offset = max(offset, self.sealed_offset)
        self.active_segment.truncate(offset)
        self.log_end_offset = offset
        self.next_offset = max(offset, self.next_offset)
        self._high_watermark.truncate(offset)
        self.state.truncate(offset)
        self._high_watermark.wake_readers()

    # ---- waiting ----------------------------------------------------------------------------------------------------

    def add_reader(self, woken: "asyncio.Future[bool]") -> None:
        """Set ``woken`` to true when readers see more than now, or an error, until ``remove_reader``."""
        self._high_watermark.add_reader(woken)

    def remove_reader(self, woken: "asyncio.Future[bool]") -> None:
        self._high_watermark.remove_reader(woken)

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
        """Fail waiting readers and later appends with ``reason``: the topic was deleted, or the broker stops."""
        self._closed = reason
        self._high_watermark.wake_readers()

    # ---- sealing ----------------------------------------------------------------------------------------------------

    def seal(self, offset: int) -> None:
        """Seal everything below ``offset``, which is in Delta durably."""
        assert self.sealed_offset <= offset <= self.last_stable_offset, (offset, self)
        self.sealed_offset = offset
        self.active_segment.seal(offset)

    def snapshot_frame(self) -> Frame:
        """Return the frame with which every new journal file begins for this partition. It replaces all frames before
        it.
        """
        sealed = self._inferred[0] if self.has_inferred_sealed else self.sealed_offset
        return self.snapshot_of(self.state, sealed_offset=sealed, log_end_offset=self.log_end_offset)

    def snapshot_of(self, state: PartitionLogState, *, sealed_offset: int, log_end_offset: int) -> Frame:
        """Return the snapshot frame of a log with this state and these ends."""
        snapshot = state.snapshot(sealed_offset=sealed_offset, log_end_offset=log_end_offset, now_ms=self.now_ms())
        return self._frames.snapshot(sealed_offset, max(self.leader_epoch, 0), snapshot.encode())

    # ---- recovery ---------------------------------------------------------------------------------------------------

    def recover_append_time(self, append_time_ms: int) -> None:
        """Note that a record was appended then: later records are not appended earlier, whatever the clock says now."""
        self._frames.recover_append_time(append_time_ms)

    def recover(
        self, tail: JournalTail, *, known_sealed: int, sealed_offset: int, leader_epochs: Iterable[tuple[int, int]]
    ) -> None:
        """Replay the journal's frames in the order of their offsets. ``leader_epochs`` are those of the journal's
        newest snapshot, or of the last segment's footer. ``sealed_offset`` is above ``known_sealed`` if it only follows
        from frames that the journal does not have.
        """
        self._inferred = known_sealed, sealed_offset
        self.recover_append_time(tail.append_time_ms)
        self.state.recover(tail, leader_epochs)
        self.active_segment.index = tail.index
        self.sealed_offset = sealed_offset

    @property
    def has_inferred_sealed(self) -> bool:
        """True if the sealed offset only follows from frames that the journal does not have (``recover``)."""
        return self._inferred[0] < self._inferred[1] == self.sealed_offset

    def postpone_recovery(self, recover: Callable[[], None] | None) -> None:
        """Postpone recovery until the partition's quarantine ends; without ``recover``, until the next start."""
        self.recovered = False
        self._recover = recover

    def finish_recovery(self) -> None:
        """Compute the ends from the recovered frames. Raises CorruptionError if the journal has a hole or overlap."""
        self.active_segment.finish_recovery(self.sealed_offset)
        self.next_offset = self.log_end_offset = max(self.sealed_offset, self.index.end_offset or 0)
        # More records may be on all replicas: the leader reports that, or this broker is the only replica.
        self._high_watermark.offset = self.sealed_offset
        if self._leadership is not None:
            self._leadership.advance(self.log_end_offset)
        self.check()

    def reset(self, sealed_offset: int) -> None:
        """Begin again, as a follower, at the end of the table. The tail is truncated; ``state`` is the state there."""
        assert self._leadership is None, self
        assert not len(self.index), self
        assert self.is_quiet, self
        self.next_offset = self.log_end_offset = self.sealed_offset = sealed_offset
        self._high_watermark.advance(sealed_offset)
        self.check()
