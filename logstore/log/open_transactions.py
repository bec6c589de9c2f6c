"""The open transactions of one partition: the producers with records here that no marker has decided about.

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
        """The last stable offset at this high watermark."""
        if not self._by_producer:  # the usual case, and asked often
            return high_watermark
        return min(high_watermark, *[one.first_offset for one in self._by_producer.values()])

    @property
    def entries(self) -> tuple[OpenTransaction, ...]:
        """By rising first offset."""
        return tuple(sorted(self._by_producer.values(), key=lambda one: one.first_offset))

    def append(self, header: FrameHeader) -> None:
        """A transactional batch is durable."""
        producer_id, epoch, _ = header.identity
        found = self._by_producer.get(producer_id)
        first = header.base_offset if found is None else found.first_offset
        self._by_producer[producer_id] = OpenTransaction(producer_id, epoch, first, header.append_time_ms)

    def end(self, producer_id: int) -> None:
        """A marker of the producer is durable."""
        self._by_producer.pop(producer_id, None)

    def replace(self, entries: Iterable[OpenTransaction]) -> None:
        """Take over transactions that were stored."""
        self._by_producer = {one.producer_id: one for one in entries}

    def truncate(self, offset: int) -> None:
        """The records from ``offset`` on are dropped. A transaction that a dropped marker had ended stays ended: below
        the high watermark, where it may have been read as such, no marker is dropped.
        """
        self.replace([one for one in self._by_producer.values() if one.first_offset < offset])
