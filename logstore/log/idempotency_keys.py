"""The idempotency keys of one partition: the batches stored for each key, while its window is open.

``remembered_ms`` is ``idempotency.window.ms``. ``idempotency.keys.max`` counts batches, which is keys unless a request
has several batches for one partition. Invariants:

* A key is forgotten when its window is over and not before; if there is no room for a new one, the new request is
  refused.
* A broker ages a key by its monotonic clock, from the moment when the batch was durable there, as leader or follower.
  Neither a step of the wall clock nor the append time, which may lie ahead, changes the age.
* A start knows a stored key by its append time alone. The key then has the age that the wall clock gives it, and 0 if
  the append time lies ahead; it ages by the monotonic clock from there. So no key is kept for longer than one window
  after a start, and a start forgets no key early unless the wall clock was set forward since its append.
"""

from collections.abc import Iterable, Sequence

from logstore.clock import Clock
from logstore.errors import IdempotencyKeyReusedError, ThrottledError
from logstore.log.recent_batches import RecentBatches
from logstore.observability import THROTTLED
from logstore.records.batch_identity import RememberedBatch

_RETRY_AFTER_S_MAX = 60


class IdempotencyKeys(RecentBatches):
    def __init__(self, partition: str, clock: Clock) -> None:
        super().__init__(0)
        self._partition = partition
        self.clock = clock
        self.keys_max = 0
        # The time at which the last batch of each key was remembered, in ms of the monotonic clock, like all times
        # here.
        self._since_ms: dict[int, int] = {}
        # The same time by the epoch of keys; each secret of the store has one.
        self._last_of_epoch_ms: dict[int, int] = {}

    def _now_ms(self) -> int:
        return round(self.clock.monotonic() * 1000)

    def remember(self, batch: RememberedBatch) -> None:
        super().remember(batch)
        self._since_ms[batch.owner] = self._last_of_epoch_ms[batch.epoch] = self._now_ms()

    def recall(self, batch: RememberedBatch) -> None:
        super().remember(batch)
        since_ms = self._now_ms() - max(0, self.clock.now_ms() - batch.append_time_ms)
        self._since_ms[batch.owner] = self._last_of_epoch_ms[batch.epoch] = since_ms

    def are_over(self, append_time_ms: int) -> bool:
        """Return whether a start may skip the batches that were stored by then, because their windows are over."""
        return append_time_ms + self.remembered_ms <= self.clock.now_ms()

    def expire(self) -> None:
        """Forget the keys whose window is over."""
        self._expire(self._now_ms())

    def _last_append_ms(self, owner: int) -> int:
        return self._since_ms[owner]

    def _forget(self, owner: int) -> None:
        super()._forget(owner)
        del self._since_ms[owner]

    def replace(self, batches: Iterable[RememberedBatch]) -> None:
        self._since_ms.clear()
        super().replace(batches)

    def forget_from(self, offset: int) -> list[int]:
        lost = super().forget_from(offset)
        for owner in lost:
            del self._since_ms[owner]
        return lost

    def check(self, key_hash: int, batches: Sequence[tuple[int, int]]) -> list[RememberedBatch]:
        """Return the batches among a request's ``batches`` for this partition, (fingerprint, record count), that are
        already stored. They are the first ones: a crash between two batches may have kept the later ones from being
        stored. Raises IdempotencyKeyReusedError if other batches were stored with the key.
        """
        self.expire()
        known = self.known(key_hash)
        stored = [(k.sequence, k.record_count) for k in known]
        if stored != list(batches[: len(stored)]):
            raise IdempotencyKeyReusedError(
                f"The Idempotency-Key was used for another request: in {self._partition} that one stored "
                f"{sum(count for _, count in stored)} records, and they are not those of this body. Nothing was "
                "stored now. Use a new key for each request; a retry must be the same, byte for byte, and to a topic "
                "with as many partitions."
            )
        return known

    def require_one_secret(self, epoch: int) -> None:
        """Raise ThrottledError while a key is remembered that was stored with another secret than that of ``epoch``, or
        with none. Any new request may repeat that one, and the store cannot find out.
        """
        others = [last for other, last in self._last_of_epoch_ms.items() if other != epoch]
        if others and (wait_ms := max(others) + self.remembered_ms - self._now_ms()) > 0:
            raise self._throttled(
                f"{self._partition} remembers idempotency keys from before the store's secret was lost "
                "(brokers/<id>/secret), or before it had one: whether this request is one of theirs cannot be told, so "
                "nothing was stored. "
                f"Wait until they are {self.remembered_ms} ms old (idempotency.window.ms), or bring the file back",
                wait_ms,
            )

    def require_room(self, count: int) -> None:
        """Raise ThrottledError unless ``count`` more batches can be remembered."""
        if self.num_batches + count <= self.keys_max:
            return
        oldest = self._oldest()
        wait_ms = 0 if oldest is None else self._since_ms[oldest] + self.remembered_ms - self._now_ms()
        raise self._throttled(
            f"{self._partition} remembers {self.num_batches} idempotency keys, and idempotency.keys.max is "
            f"{self.keys_max}: nothing was stored. Wait until the oldest are {self.remembered_ms} ms old "
            "(idempotency.window.ms), or raise the bound",
            wait_ms,
        )

    def _throttled(self, message: str, wait_ms: int) -> ThrottledError:
        THROTTLED.labels("idempotency_keys").inc()
        return ThrottledError(f"{message}.", retry_after_s=min(_RETRY_AFTER_S_MAX, max(1, -(-wait_ms // 1000))))
