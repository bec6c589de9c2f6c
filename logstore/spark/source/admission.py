"""The share of the unread offsets that a batch takes: ``maxOffsetsPerTrigger``, ``minOffsetsPerTrigger``,
``maxTriggerDelay``.

No Spark, no store. Both bounds count offsets, so gaps count also, as in Spark's Kafka source.
"""

from collections.abc import Mapping

from logstore.clock import Clock
from logstore.spark.offset_ranges import limited
from logstore.spark.source.offset_json import TopicPartition
from logstore.spark.source.unread import Unread


def admitted(unread: Mapping[TopicPartition, Unread], offsets_max: int | None) -> dict[TopicPartition, int]:
    """Return the end of a batch in each partition: of all offsets, or of about ``offsets_max`` in proportion."""
    if offsets_max is None:
        return {place: part.end for place, part in unread.items()}
    sizes = limited([part.count for part in unread.values()], offsets_max)
    return {place: part.start + size for (place, part), size in zip(unread.items(), sizes, strict=True)}


class TriggerDelay:
    """Holds triggers back until ``offsets_min`` offsets can be read, or for ``delay_ms`` since the last batch.

    The first trigger after a start is not held back.
    """

    def __init__(self, offsets_min: int | None, delay_ms: int, clock: Clock) -> None:
        self._offsets_min = offsets_min
        self._delay_s = delay_ms / 1000
        self._clock = clock
        self._last: float | None = None

    def holds(self, unread: Mapping[TopicPartition, Unread]) -> bool:
        """Return True if this trigger has to wait. If not, it becomes the last batch."""
        count = sum(part.count for part in unread.values())
        now = self._clock.monotonic()
        is_early = self._last is not None and now < self._last + self._delay_s
        if self._offsets_min is not None and count < self._offsets_min and is_early:
            return True
        if count or self._last is None:
            self._last = now
        return False
