"""Topics that are due to roll, found without a walk over idle ones.

Invariant: every topic with un-sealed records is either among the ``touched``, which the next ``take`` looks at, or has
a time to be looked at again, at the latest when its oldest record reaches ``segment.ms`` or a minute has passed.
"""

import heapq
import itertools
import math

from logstore.log.topic import Topic

#: A topic rolls when this part of its share of the journal is used: producers then need not wait for room.
PRESSURE = 0.5
_LOOK_AGAIN_S = 60.0
# Two times of one topic this close together count as one; otherwise every look would add another.
_SAME_S = 0.01


class DueTopics:
    """Times are those of a monotonic clock, in seconds. The journal may hold ``journal_bytes_max`` of a topic."""

    def __init__(self, journal_bytes_max: int) -> None:
        self._journal_bytes_max = journal_bytes_max
        self._touched: set[Topic] = set()
        self._wakes: list[tuple[float, int, Topic]] = []
        self._next_wake: dict[Topic, float] = {}
        self._tie = itertools.count()

    def touch(self, topic: Topic) -> None:
        """Records were appended to the topic, or its configuration may have changed."""
        self._touched.add(topic)

    def is_pressed(self, topic: Topic) -> bool:
        """Whether the journal holds so much of the topic that all of it is to roll."""
        return topic.journal_bytes > PRESSURE * self._journal_bytes_max

    def wake_at(self, topic: Topic, when: float) -> None:
        if when < self._next_wake.get(topic, math.inf) - _SAME_S:
            self._next_wake[topic] = when
            heapq.heappush(self._wakes, (when, next(self._tie), topic))

    def take(self, now: float) -> list[Topic]:
        """The topics that are due; the others are kept for later."""
        while self._wakes and self._wakes[0][0] <= now:
            when, _, topic = heapq.heappop(self._wakes)
            if self._next_wake.get(topic) == when:
                del self._next_wake[topic]
            self._touched.add(topic)
        looked_at, self._touched = self._touched, set()
        due = []
        for topic in looked_at:
            if topic.deleted:
                continue
            wait_s = 0.0 if self.is_pressed(topic) and topic.has_unsealed else _seconds_until_due(topic)
            if wait_s <= 0:
                due.append(topic)
                continue
            if wait_s < math.inf:
                self.wake_at(topic, now + min(wait_s, _LOOK_AGAIN_S))
            if any(p.next_offset > p.log_end_offset for p in topic.partitions):
                self._touched.add(topic)  # records that are being fsynced have no age yet
        return due


def _seconds_until_due(topic: Topic) -> float:
    """Seconds until the un-sealed range of a partition is big or old enough to roll. At most 0 if one is already; inf
    without un-sealed records.
    """
    config, wait_ms = topic.config, math.inf
    for partition_log in topic.partitions:
        if partition_log.has_unsealed:
            if partition_log.unsealed_bytes >= config.segment_bytes:
                return 0.0
            wait_ms = min(wait_ms, config.segment_ms - partition_log.unsealed_ms)
    return wait_ms / 1000
