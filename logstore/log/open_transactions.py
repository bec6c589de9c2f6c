"""The open transactions of one partition: the producers with records here that no marker has committed or aborted.

A transactional batch opens its producer's transaction, a marker closes it. Invariant: an open transaction's records are
all at or above its ``first_offset``, and the partition's last stable offset is not above that.
"""

from collections.abc import Iterable

from logstore.journal.frame import FrameHeader
from logstore.records.transactions import OpenTransaction


class OpenTransactions:
    def __init__(self) -> None:
        self._by_producer: dict[int, OpenTransaction] = {}

    def __contains__(self, producer_id: object) -> bool:
        return producer_id in self._by_producer

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset at this high watermark."""
        if not self._by_producer:  # the usual case, and the method is called often
            return high_watermark
        return min(high_watermark, *[one.first_offset for one in self._by_producer.values()])

    @property
    def entries(self) -> tuple[OpenTransaction, ...]:
        """The open transactions, by rising first offset."""
        return tuple(sorted(self._by_producer.values(), key=lambda one: one.first_offset))

    def append(self, header: FrameHeader) -> None:
        """Open the producer's transaction, or extend it, as its transactional batch is durable."""
        producer_id, epoch, _ = header.identity
        found = self._by_producer.get(producer_id)
        first = header.base_offset if found is None else found.first_offset
        self._by_producer[producer_id] = OpenTransaction(producer_id, epoch, first, header.append_time_ms)

    def end(self, producer_id: int) -> None:
        """End the producer's transaction, as its marker is durable."""
        self._by_producer.pop(producer_id, None)

    def replace(self, entries: Iterable[OpenTransaction]) -> None:
        """Take over transactions that were stored."""
        self._by_producer = {one.producer_id: one for one in entries}

    def truncate(self, offset: int) -> None:
        """Drop the transactions that began at or after ``offset``, as their records are dropped. A transaction that a
        dropped marker had ended stays ended: no marker is dropped below the high watermark, where the end may have been
        read.
        """
        self.replace([one for one in self._by_producer.values() if one.first_offset < offset])
