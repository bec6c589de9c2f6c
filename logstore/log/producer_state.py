"""One partition's state of idempotent producers: their epochs, and the last batches of each (KIP-98, KIP-360).

The rules are those of Kafka's ``ProducerStateManager``: the last five batches are remembered, so that a retry gets the
offsets of its first try, and a batch must follow the one before it. Invariant: no producer with an id above
``evicted_up_to`` was evicted. If such a producer is unknown here, it has stored nothing here; batches older than its
remembered ones were stored. Other producers may have been evicted: any first sequence number is taken from them, as in
Kafka.
"""

import structlog

from logstore.errors import DuplicateSequenceError, InvalidProducerEpochError, OutOfOrderSequenceError
from logstore.limits import PRODUCERS_PER_PARTITION_MAX
from logstore.log.recent_batches import KnownBatch, RecentBatches
from logstore.observability import PRODUCERS_FORGOTTEN
from logstore.records.batch_identity import PACKED_BYTES, SEQUENCE_MAX, RememberedBatch, next_sequence, unpack_batches

log = structlog.stdlib.get_logger(__name__)

#: As many as in Kafka: a producer has at most five requests under way.
BATCHES_REMEMBERED = 5


class ProducerStates(RecentBatches):
    def __init__(self, partition: str, *, expiration_ms: int) -> None:
        super().__init__(expiration_ms)
        self._partition = partition
        self._told = False
        self.evicted_up_to = -1
        """The highest id of a producer that may have been evicted."""

    def check(
        self, producer_id: int, producer_epoch: int, base_sequence: int, record_count: int, now_ms: int
    ) -> KnownBatch | None:
        """The batch that this one repeats; None if it is new and follows.

        Raises InvalidProducerEpochError, OutOfOrderSequenceError, DuplicateSequenceError.
        """
        self.expire(now_ms)
        recent = self.known(producer_id)[-BATCHES_REMEMBERED:]
        who = f"Producer {producer_id} (epoch {producer_epoch}) in {self._partition}"
        if not recent:
            if base_sequence and producer_id > self.evicted_up_to:
                raise OutOfOrderSequenceError(
                    f"{who} has stored nothing yet and begins at sequence 0, not {base_sequence}: a batch is missing."
                )
            return None
        last = recent[-1].batch
        if producer_epoch < last.epoch:
            raise InvalidProducerEpochError(
                f"{who} is fenced: the epoch is {last.epoch} by now. Ask POST /producers for a new one."
            )
        if producer_epoch > last.epoch:
            if base_sequence:
                raise OutOfOrderSequenceError(f"{who} is new and begins at sequence 0, not {base_sequence}.")
            return None
        recent = [known for known in recent if known.batch.epoch == producer_epoch]
        for known in recent:
            if (known.batch.sequence, known.batch.record_count) == (base_sequence, record_count):
                return known
        expected = next_sequence(last.sequence, last.record_count)
        if base_sequence == expected:
            return None
        oldest = recent[0].batch.sequence
        # A batch that ends where the oldest remembered one begins, or up to half of all sequence numbers before that.
        behind = (oldest - next_sequence(base_sequence, record_count)) & SEQUENCE_MAX
        if behind <= SEQUENCE_MAX // 2 and producer_id > self.evicted_up_to:
            raise DuplicateSequenceError(
                f"{who} stored sequence {base_sequence} before, and its offsets are no longer known: "
                f"the next sequence is {expected}."
            )
        raise OutOfOrderSequenceError(
            f"{who} sent sequence {base_sequence} ({record_count} records), and {expected} is next: a batch is missing."
        )

    def _joined(self, before: bytes, batch: RememberedBatch) -> bytes:
        if before:
            (last,) = unpack_batches(before[-PACKED_BYTES:])
            if last.epoch != batch.epoch:
                return batch.pack()
        return before[-(BATCHES_REMEMBERED - 1) * PACKED_BYTES :] + batch.pack()

    def remember(self, batch: RememberedBatch) -> None:
        super().remember(batch)
        if len(self._durable) > PRODUCERS_PER_PARTITION_MAX:
            forgotten = self._forget_oldest()
            PRODUCERS_FORGOTTEN.inc()
            if not self._told:
                self._told = True
                log.warning(
                    "producers.too_many",
                    partition=self._partition,
                    limit=PRODUCERS_PER_PARTITION_MAX,
                    forgotten=forgotten,
                    meaning="a retry of a producer that is forgotten is stored again",
                )

    def _forget_oldest(self) -> int:
        producer_id = super()._forget_oldest()
        self.evicted_up_to = max(self.evicted_up_to, producer_id)
        return producer_id

    def forget_from(self, offset: int) -> list[int]:
        """As for all batches. Batches before those of a producer of which nothing is left are no longer known, so it
        counts as evicted.
        """
        lost = super().forget_from(offset)
        self.evicted_up_to = max(self.evicted_up_to, *lost, -1)
        return lost
