"""The state of a partition that follows from its frames: leader epochs, producers, idempotency keys and open
transactions.

The journal stores it in a ``PartitionSnapshot``, and recovery rebuilds it (``JournalTail``, segment footers).
Invariant: it is a function of the frames that count. A batch counts from ``begin`` on, unless it fails; a marker counts
when it is durable.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from logstore.clock import Clock
from logstore.journal.frame import Frame, FrameHeader, FrameType
from logstore.journal.partition_snapshot import PartitionSnapshot
from logstore.log.idempotency_keys import IdempotencyKeys
from logstore.log.journal_tail import JournalTail, is_transactional, marker_of
from logstore.log.leader_epochs import LeaderEpochs
from logstore.log.open_transactions import OpenTransactions
from logstore.log.producer_state import ProducerStates
from logstore.log.recent_batches import RecentBatches
from logstore.records.batch_identity import NO_IDENTITY, RememberedBatch
from logstore.records.transactions import Marker
from logstore.segments.footer import SegmentFooter

# This is looked up once, because an enumeration's members are slow to find.
_CONTROL: Final = FrameType.CONTROL


class PartitionLogState:
    __slots__ = ("_knows_all_producers", "idempotency_keys", "leader_epochs", "open_transactions", "producers")

    def __init__(
        self,
        partition: str,
        *,
        clock: Clock,
        producer_id_expiration_ms: int,
        high_watermark: Callable[[], int] = lambda: 0,
    ) -> None:
        """Begin with an empty state. ``partition`` is its name in messages, ``topic-0``. ``high_watermark`` must not
        refer to the log that has this state: logs that exist at a start are freed only by their last reference
        (``gc.freeze``).
        """
        self.leader_epochs = LeaderEpochs()
        self.open_transactions = transactions = OpenTransactions()
        self.producers = ProducerStates(
            partition,
            expiration_ms=producer_id_expiration_ms,
            in_transaction=self.open_transactions,
            committed_end=lambda: transactions.last_stable_offset(high_watermark()),
        )
        self.idempotency_keys = IdempotencyKeys(partition, clock)
        #: True if recovery found the batches of all producers; false if only segments have them.
        self._knows_all_producers = True

    # ---- frames -----------------------------------------------------------------------------------------------------

    def begin(self, header: FrameHeader) -> None:
        """Count a frame that was handed to the journal."""
        if (recent := self._recent_batches_of(header)) is not None:
            recent.begin(
                RememberedBatch(*header.identity, header.record_count, header.base_offset, header.append_time_ms)
            )

    def stored(self, frame: Frame) -> None:
        """Store the oldest frame that began, which is now durable. Raises the errors of ``marker_of``."""
        header = frame.header
        if (recent := self._recent_batches_of(header)) is not None:
            recent.complete(header.identity.owner, stored=True)
            if is_transactional(header):
                self.open_transactions.append(header)
        elif header.type is _CONTROL:
            self.producers.remember_marker(marker_of(header, frame.payload))
            self.open_transactions.end(header.identity.owner)
        self.leader_epochs.assign(header.leader_epoch, header.base_offset)

    def failed(self, header: FrameHeader) -> None:
        """Take back a frame that began, as it is not stored."""
        if (recent := self._recent_batches_of(header)) is not None:
            recent.complete(header.identity.owner, stored=False)

    def _recent_batches_of(self, header: FrameHeader) -> RecentBatches | None:
        """Return the memory that a batch belongs to; None for a batch without an identity, and for a marker."""
        identity = header.identity
        if identity == NO_IDENTITY or header.type is _CONTROL:
            return None
        return self.producers if identity.is_producers else self.idempotency_keys

    def truncate(self, offset: int) -> None:
        """Forget the records from ``offset`` on, as they are dropped."""
        self.leader_epochs.truncate(offset)
        self.open_transactions.truncate(offset)
        self.producers.forget_from(offset)
        self.idempotency_keys.forget_from(offset)

    # ---- snapshot and recovery --------------------------------------------------------------------------------------

    def snapshot(self, *, sealed_offset: int, log_end_offset: int, now_ms: int) -> PartitionSnapshot:
        """Return the state of the records below ``log_end_offset``, without expired batches."""
        self.producers.expire(now_ms)
        self.idempotency_keys.expire()
        return PartitionSnapshot(
            sealed_offset=sealed_offset,
            leader_epochs=self.leader_epochs.entries,
            log_end_offset=log_end_offset,
            producers=self.producers.pack(),
            idempotency_keys=self.idempotency_keys.pack(),
            producers_forgotten_up_to=self.producers.evicted_up_to,
            producers_whole_from=self.producers.whole_from,
            open_transactions=self.open_transactions.entries,
            markers=self.producers.markers,
        )

    def recover(self, tail: JournalTail, leader_epochs: Iterable[tuple[int, int]]) -> None:
        """Replay the journal's frames in the order of their offsets. ``leader_epochs`` are those of the journal's
        newest snapshot, or of the last segment's footer.
        """
        self.leader_epochs = tail.leader_epochs(leader_epochs)
        tail.replay_snapshot(self.producers, self.idempotency_keys)
        for stored in tail.batches():
            if isinstance(stored, Marker):
                self.producers.remember_marker(stored)
                continue
            if stored.epoch >= 0:
                self.producers.expire(stored.append_time_ms)
                self.producers.recall(stored)
            else:
                self.idempotency_keys.expire()
                self.idempotency_keys.recall(stored)
        self.open_transactions.replace(tail.open_transactions())

    def replace(self, footers: Sequence[SegmentFooter], producer_ids_begin: int) -> None:
        """Replace the state by that at the end of the newest of ``footers``, which come newest first; without one it is
        empty. If the files do not have it, producers with ids below ``producer_ids_begin`` may have been forgotten.
        """
        newest = footers[0] if footers else None
        self.leader_epochs = LeaderEpochs(newest.leader_epochs if newest else ())
        self.producers.replace(newest.producers if newest else (), newest.markers if newest else ())
        self.producers.whole_from = newest.end_offset if newest else 0
        forgotten = -1 if newest is None else newest.producers_forgotten_up_to
        self.producers.evicted_up_to = producer_ids_begin - 1 if forgotten is None else forgotten
        self.idempotency_keys.replace(key for footer in reversed(footers) for key in footer.idempotency_keys)
        self.open_transactions.replace(newest.open_transactions if newest else ())
        self._knows_all_producers = True

    def recover_from_footers(self, footers: Sequence[SegmentFooter], producer_ids_begin: int) -> None:
        """Recover when the journal ends before the table does: the segments' state counts, as for ``replace``.
        Producers that appended after the segments are unknown; their ids are below ``producer_ids_begin``.
        """
        leader_epochs = self.leader_epochs
        self.replace(footers, producer_ids_begin)
        if not footers:
            self.leader_epochs = leader_epochs
        self._knows_all_producers = False
        self.forget_producers(producer_ids_begin)

    def forget_producers(self, producer_ids_begin: int) -> None:
        """Count all producers with ids below ``producer_ids_begin`` as evicted, if batches of producers are unknown."""
        if not self._knows_all_producers:
            self.producers.evicted_up_to = max(self.producers.evicted_up_to, producer_ids_begin - 1)
