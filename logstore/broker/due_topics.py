"""Topics that are due to roll, found without a walk over idle topics, or over the idle partitions of a busy one.

Invariant: each partition with un-sealed records is checked by the next ``take``, alone or with its topic, or its topic
has a time for its next check. That time is at the latest when its oldest record reaches ``segment.ms``, all its records
have expired (``retention.ms``) or a minute has passed.
"""

import heapq
import itertools
import math
from collections.abc import Iterable

from logstore.clock import Clock
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.topic_config import TopicConfig

#: A topic rolls when this part of its share of the journal is used, so that producers need not wait for room.
PRESSURE = 0.5
_LOOK_AGAIN_S = 60.0
# Two times of one topic this close together count as one; otherwise every check would add another.
_SAME_S = 0.01


class DueTopics:
    """Collects topics that are due. Times are those of a monotonic clock, in seconds. The journal may hold
    ``journal_bytes_max`` of a topic. Expired records are due after ``check_interval_ms`` at the earliest.
    """

    def __init__(self, clock: Clock, journal_bytes_max: int, check_interval_ms: int) -> None:
        self._clock = clock
        self._journal_bytes_max = journal_bytes_max
        self._check_interval_ms = check_interval_ms
        self._touched: dict[Topic, None] = {}
        #: By topic, partitions with new records.
        self._appended: dict[Topic, set[PartitionLog]] = {}
        self._wakes: list[tuple[float, int, Topic]] = []
        self._next_wake: dict[Topic, float] = {}
        self._tie = itertools.count()

    def touch(self, topic: Topic) -> None:
        """Check the topic again: its configuration, un-sealed records or leaders may have changed."""
        self._touched[topic] = None

    def appended(self, topic: Topic, partitions: Iterable[int]) -> None:
        """Note that records were appended to the partitions."""
        self._appended.setdefault(topic, set()).update([topic.partitions[number] for number in partitions])

    def is_pressed(self, topic: Topic) -> bool:
        """Return True if the journal holds so much of the topic that all of it should roll."""
        return topic.journal_bytes > PRESSURE * self._journal_bytes_max

    def wake_at(self, topic: Topic, when: float) -> None:
        if when < self._next_wake.get(topic, math.inf) - _SAME_S:
            self._next_wake[topic] = when
            heapq.heappush(self._wakes, (when, next(self._tie), topic))

    def take(self, now: float) -> list[Topic]:
        """Take the topics that are due; the others are kept for later."""
        while self._wakes and self._wakes[0][0] <= now:
            when, _, topic = heapq.heappop(self._wakes)
            if self._next_wake.get(topic) == when:
                del self._next_wake[topic]
            self._touched[topic] = None
        looked_at: dict[Topic, Iterable[PartitionLog]] = dict(self._appended)
        looked_at.update({topic: topic.partitions for topic in self._touched})
        self._touched, self._appended = {}, {}
        due = []
        for topic, logs in looked_at.items():
            if topic.deleted:
                continue
            wait_s = 0.0 if self.is_pressed(topic) and topic.has_unsealed else self._seconds_until_due(topic, logs)
            if wait_s <= 0:
                due.append(topic)
                continue
            if wait_s < math.inf:
                self.wake_at(topic, now + min(wait_s, _LOOK_AGAIN_S))
            # Records have no age yet while they are being fsynced, or while followers do not have them.
            if growing := {log for log in logs if log.is_leader and log.high_watermark < log.next_offset}:
                self._appended[topic] = growing
        return due

    def ms_until_due(self, partition_log: PartitionLog, config: TopicConfig, segment_ms: float) -> float:
        """Return the shortest time until the un-sealed range of a partition can be big enough, ``segment_ms`` old or
        expired; at most 0 if it already is, inf without un-sealed records.

        Like Kafka's active segment, it has expired when ``retention.ms`` has passed for all its records: once rolled,
        they can be removed.
        """
        if not partition_log.has_unsealed:
            return math.inf
        if partition_log.unsealed_bytes >= config.segment_bytes:
            return 0.0
        age_ms = partition_log.unsealed_ms
        wait_ms = segment_ms - age_ms
        if "delete" in config.cleanup_policy and config.retention_ms >= 0:
            # Records that a producer dates far back have expired when they come; they must not cause a roll each.
            check_ms = self._check_interval_ms - age_ms
            wait_ms = min(wait_ms, check_ms if check_ms > 0 else self._ms_until_expired(partition_log, config))
        return wait_ms

    def _ms_until_expired(self, partition_log: PartitionLog, config: TopicConfig) -> float:
        index, since_ms = partition_log.index, config.retention_ms + 1 - self._clock.now_ms()
        last = index.newest_timestamp_ms
        if last is None or last + since_ms > 0:
            return math.inf if last is None else last + since_ms
        return (index.largest_timestamp_ms or 0) + since_ms

    def _seconds_until_due(self, topic: Topic, logs: Iterable[PartitionLog]) -> float:
        """Return ``ms_until_due`` of the partition that is due first, in seconds."""
        config = topic.config
        return min([self.ms_until_due(log, config, config.segment_ms) for log in logs], default=math.inf) / 1000
