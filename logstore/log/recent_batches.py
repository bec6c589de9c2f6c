"""The batches that a partition remembers by their owner: a producer, or an idempotency key.

Durable batches are packed, about a hundred bytes per owner, in the order in which the owners last appended. Batches
being fsynced are kept beside them, and vanish without a trace if the journal fails. An owner is forgotten
``remembered_ms`` after its last append, by the clock of the class. All calls come from the event loop that owns the
partition.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable

from logstore.records.batch_identity import PACKED_BYTES, RememberedBatch, last_append_ms, packed_below, unpack_batches


class RecentBatches:
    def __init__(self, remembered_ms: int) -> None:
        self.remembered_ms = remembered_ms
        self._durable: OrderedDict[int, bytearray] = OrderedDict()
        self._pending: dict[int, deque[RememberedBatch]] = {}
        self.num_batches = 0
        """Remembered ones, those being fsynced included."""

    def known(self, owner: int) -> list[RememberedBatch]:
        """Return the batches of ``owner`` in the order of their offsets. The last ones may not be durable yet: their
        offsets are returned to the client when the log's end, or its high watermark, has reached them.
        """
        return [*unpack_batches(self._durable.get(owner, b"")), *self._pending.get(owner, ())]

    def __contains__(self, owner: int) -> bool:
        return owner in self._durable or owner in self._pending

    # ---- batches being fsynced --------------------------------------------------------------------------------------

    def begin(self, batch: RememberedBatch) -> None:
        """Count a batch from here on, as it was handed to the journal."""
        self._pending.setdefault(batch.owner, deque()).append(batch)
        self.num_batches += 1

    def complete(self, owner: int, *, stored: bool) -> None:
        """Complete the oldest pending batch of ``owner``: it is durable (``stored``) or has failed."""
        pending = self._pending[owner]
        batch = pending.popleft()
        self.num_batches -= 1
        if not pending:
            del self._pending[owner]
        if stored:
            self.remember(batch)

    # ---- durable batches --------------------------------------------------------------------------------------------

    def remember(self, batch: RememberedBatch) -> None:
        """Remember a durable batch. Batches come by rising offset."""
        packed = self._durable.get(batch.owner)
        if packed is None:
            packed = self._durable[batch.owner] = bytearray()
        packed += batch.pack()
        self._durable.move_to_end(batch.owner)
        self.num_batches += 1

    def recall(self, batch: RememberedBatch) -> None:
        """Remember a batch that was stored before this log began. Batches come by rising offset, as for
        ``remember``.
        """
        self.remember(batch)

    def _expire(self, now_ms: int) -> None:
        """Forget the owners whose time is over."""
        while self._durable:
            owner = self._oldest()
            if owner is None or self._last_append_ms(owner) + self.remembered_ms > now_ms:
                return
            self._forget(owner)

    def _oldest(self) -> int | None:
        """Return the owner that has not appended for longest, among those that may be forgotten."""
        return next(iter(self._durable), None)

    def _last_append_ms(self, owner: int) -> int:
        return last_append_ms(self._durable[owner])

    def _forget(self, owner: int) -> None:
        self.num_batches -= len(self._durable.pop(owner)) // PACKED_BYTES

    def pack(self) -> bytes:
        """Pack all durable batches to be stored."""
        return b"".join(self._durable.values())

    def replace(self, batches: Iterable[RememberedBatch]) -> None:
        """Take over batches that were stored."""
        self._durable.clear()
        self.num_batches = sum(map(len, self._pending.values()))
        for batch in batches:
            self.recall(batch)

    def forget_from(self, offset: int) -> list[int]:
        """Forget the batches from ``offset`` on, as their records were truncated. Return the owners left without a
        batch.
        """
        lost = []
        for owner, packed in list(self._durable.items()):
            kept = packed_below(packed, offset)
            self.num_batches -= (len(packed) - kept) // PACKED_BYTES
            del packed[kept:]
            if not kept:
                del self._durable[owner]
                lost.append(owner)
        self._order()
        return lost

    def _order(self) -> None:
        for owner in sorted(self._durable, key=self._last_offset):
            self._durable.move_to_end(owner)

    def _last_offset(self, owner: int) -> int:
        return max((batch.base_offset for batch in unpack_batches(self._durable[owner][-PACKED_BYTES:])), default=-1)
