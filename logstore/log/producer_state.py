"""One partition's state of idempotent producers: their epochs, and the last batches and the newest marker of each
(KIP-98, KIP-360, KIP-890).

The rules are those of Kafka's ``ProducerStateManager``: the last five batches are remembered, so that a retry gets the
offsets of its first try, and a batch must follow the one before it. A marker may raise the epoch: batches of the epoch
before are fenced and forgotten, and the first batch of the new one begins at sequence 0. An unknown producer may begin
at any sequence number: it continues after it was evicted, or in a topic that was created again (KIP-360).

Invariants: for producers with ids above ``evicted_up_to``, all batches that are older than the remembered ones were
stored here. Other producers may have been evicted, or have not begun at sequence 0. A producer with an open transaction
is never evicted.

A truncation may drop the newest batches of a producer, and then older ones count again. So all batches above the
committed end are kept, whatever their epoch, and the last five below it; only a marker forgets the batches of older
epochs. The state at each offset from ``whole_from`` on is known: after a truncation to that offset, and for the footer
of a segment that ends there.
"""

import itertools
from collections.abc import Callable, Container, Iterable

import structlog

from logstore.errors import DuplicateSequenceError, InvalidProducerEpochError, OutOfOrderSequenceError
from logstore.limits import PRODUCERS_PER_PARTITION_MAX
from logstore.log.recent_batches import RecentBatches
from logstore.observability import PRODUCERS_FORGOTTEN
from logstore.records.batch_identity import (
    PACKED_BYTES,
    SEQUENCE_MAX,
    RememberedBatch,
    last_append_ms,
    last_epoch,
    next_sequence,
    packed_below,
    unpack_batches,
)
from logstore.records.transactions import Marker

log = structlog.stdlib.get_logger(__name__)

#: The number is Kafka's: a producer has at most five requests in flight.
BATCHES_REMEMBERED = 5
_REMEMBERED_BYTES = BATCHES_REMEMBERED * PACKED_BYTES
#: Trimming waits for this size, because trimming with each batch would remove one batch at a time.
_TRIMMED_ABOVE_BYTES = 3 * _REMEMBERED_BYTES


class ProducerStates(RecentBatches):
    def __init__(
        self,
        partition: str,
        *,
        expiration_ms: int,
        in_transaction: Container[int] = (),
        committed_end: Callable[[], int] = lambda: 0,
    ) -> None:
        """Begin without producers. ``in_transaction`` always holds the ids of the producers with an open transaction.
        Nothing below ``committed_end`` is truncated any more.
        """
        super().__init__(expiration_ms)
        self._partition = partition
        self._in_transaction = in_transaction
        self._committed_end = committed_end
        # Their producers are also in ``_durable``, with or without batches.
        self._markers: dict[int, Marker] = {}
        self._has_warned = False
        self.evicted_up_to = -1
        """The highest id of a producer of which older batches may never have come, or may have been evicted."""
        self.whole_from = 0
        """The state at each offset from here on is known."""

    def known(self, owner: int) -> list[RememberedBatch]:
        durable = self._durable.get(owner, b"")[-_REMEMBERED_BYTES:]
        return [*unpack_batches(durable), *self._pending.get(owner, ())][-BATCHES_REMEMBERED:]

    def check(
        self, producer_id: int, producer_epoch: int, base_sequence: int, record_count: int, now_ms: int
    ) -> RememberedBatch | None:
        """Return the batch that this one repeats; None if it is new and follows. Raises InvalidProducerEpochError,
        OutOfOrderSequenceError and DuplicateSequenceError.
        """
        self.expire(now_ms)
        recent = self.known(producer_id)
        who = f"Producer {producer_id} (epoch {producer_epoch}) in {self._partition}"
        marker = self._markers.get(producer_id)
        if not recent and marker is None:
            return None
        epoch = max(recent[-1].epoch if recent else -1, marker.producer_epoch if marker else -1)
        if producer_epoch < epoch:
            raise InvalidProducerEpochError(
                f"{who} is fenced: the epoch is {epoch} by now. Ask POST /producers for a new one."
            )
        recent = [known for known in recent if known.epoch == producer_epoch]
        if not recent:
            if base_sequence:
                raise OutOfOrderSequenceError(f"{who} is new and begins at sequence 0, not {base_sequence}.")
            return None
        last = recent[-1]
        for known in recent:
            if (known.sequence, known.record_count) == (base_sequence, record_count):
                return known
        expected = next_sequence(last.sequence, last.record_count)
        if base_sequence == expected:
            return None
        oldest = recent[0].sequence
        # This is a batch that ends where the oldest remembered one begins, or up to half of all sequence numbers before
        # that.
        behind = (oldest - next_sequence(base_sequence, record_count)) & SEQUENCE_MAX
        if behind <= SEQUENCE_MAX // 2 and self._began_here(producer_id):
            raise DuplicateSequenceError(
                f"{who} stored sequence {base_sequence} before, and its offsets are no longer known: "
                f"the next sequence is {expected}."
            )
        raise OutOfOrderSequenceError(
            f"{who} sent sequence {base_sequence} ({record_count} records), and {expected} is next: a batch is missing."
        )

    def _began_here(self, producer_id: int) -> bool:
        """Return whether all batches before the remembered ones of this known ``producer_id`` were stored here."""
        if producer_id <= self.evicted_up_to:
            return False
        return producer_id in self._durable or self._pending[producer_id][0].sequence == 0

    def remember(self, batch: RememberedBatch) -> None:
        if batch.sequence and batch.owner not in self._durable:
            self.evicted_up_to = max(self.evicted_up_to, batch.owner)
        super().remember(batch)
        if len(packed := self._durable[batch.owner]) > _TRIMMED_ABOVE_BYTES:
            self._trim(packed)
        self._evict()

    def _trim(self, packed: bytearray) -> None:
        committed_end = self._committed_end()
        surplus = packed_below(packed, committed_end) - _REMEMBERED_BYTES
        if surplus > 0:
            del packed[:surplus]
            self.num_batches -= surplus // PACKED_BYTES
            self.whole_from = max(self.whole_from, committed_end)

    def pack(self) -> bytes:
        for packed in self._durable.values():
            if len(packed) > _REMEMBERED_BYTES:
                self._trim(packed)
        return super().pack()

    def remember_marker(self, marker: Marker) -> None:
        """Remember a durable marker. Markers and batches come by rising offset."""
        producer_id = marker.producer_id
        packed = self._durable.setdefault(producer_id, bytearray())
        if packed and last_epoch(packed) < marker.producer_epoch:
            self.num_batches -= len(packed) // PACKED_BYTES
            packed.clear()
        self._markers[producer_id] = marker
        self._durable.move_to_end(producer_id)
        self._evict()

    @property
    def markers(self) -> tuple[Marker, ...]:
        """The newest marker of each producer that has one, by rising offset."""
        return tuple(sorted(self._markers.values(), key=lambda marker: marker.offset))

    def replace(self, batches: Iterable[RememberedBatch], markers: Iterable[Marker] = ()) -> None:
        """Take over batches and markers that were stored. Set ``evicted_up_to`` after that."""
        self._markers.clear()
        super().replace(batches)
        for marker in markers:
            self.remember_marker(marker)
        if self._markers:
            self._order()

    def _last_offset(self, owner: int) -> int:
        marker = self._markers.get(owner)
        return max(super()._last_offset(owner), marker.offset if marker else -1)

    # ---- forgetting -------------------------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> None:
        """Forget the producers that appended nothing for longer than the expiration, by the append time."""
        self._expire(now_ms)

    def _oldest(self) -> int | None:
        for producer_id in self._durable:
            if producer_id not in self._in_transaction:
                return producer_id
        return None

    def _last_append_ms(self, owner: int) -> int:
        packed = self._durable[owner]
        marker = self._markers.get(owner)
        if marker is None:
            return last_append_ms(packed)
        return max(marker.append_time_ms, last_append_ms(packed)) if packed else marker.append_time_ms

    def _evict(self) -> None:
        """Keep the number of producers bounded."""
        if len(self._durable) > PRODUCERS_PER_PARTITION_MAX and (forgotten := self._oldest()) is not None:
            self._forget(forgotten)
            PRODUCERS_FORGOTTEN.inc()
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "producers.too_many",
                    partition=self._partition,
                    limit=PRODUCERS_PER_PARTITION_MAX,
                    forgotten=forgotten,
                    meaning="a retry of a producer that is forgotten is stored again",
                )

    def _forget(self, owner: int) -> None:
        super()._forget(owner)
        self._markers.pop(owner, None)
        self.evicted_up_to = max(self.evicted_up_to, owner)

    def forget_from(self, offset: int) -> list[int]:
        """Forget the batches from ``offset`` on, as for all owners. A producer counts as evicted if its newest marker
        is dropped, or if all its batches are and older ones may have existed: the state before is no longer known.
        """
        with_batches = {producer_id for producer_id, packed in self._durable.items() if packed}
        dropped = super().forget_from(offset)
        unknown = [one for one in dropped if one in with_batches] if offset < self.whole_from else []
        for producer_id, marker in list(self._markers.items()):
            if marker.offset >= offset:
                del self._markers[producer_id]
                unknown.append(producer_id)
        for producer_id in [producer_id for producer_id in dropped if producer_id in self._markers]:
            self._durable[producer_id] = bytearray()
        if self._markers:
            self._order()
        self.evicted_up_to = max(self.evicted_up_to, *unknown, -1)
        return dropped


def counted_at(batches: Iterable[RememberedBatch], end: int) -> list[RememberedBatch]:
    """Return the batches of the state at ``end``: the last ones of each producer's newest epoch. ``batches`` come by
    producer.
    """
    found: list[RememberedBatch] = []
    for _, of_producer in itertools.groupby(batches, key=lambda batch: batch.owner):
        below = [batch for batch in of_producer if batch.base_offset < end]
        found += [batch for batch in below if batch.epoch == below[-1].epoch][-BATCHES_REMEMBERED:]
    return found
