"""The subscription state of a consumer: the partitions that it reads, and its position in each.

Invariants:

- A partition's position is the offset after the last record that was handed out, or the offset that was set.
- The fetcher reads exactly the partitions that have a position and are not paused.
- A position belongs to a topic, not to its name. Once a topic is known to have been created again, its partitions have
  no position until one in the new topic is found. Paused ones stay paused.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from logstore.client.consumer.fetcher import CompletedFetch, Fetcher
from logstore.client.consumer.options import AutoOffsetReset
from logstore.client.metadata import TopicIdentity, TopicPartition, TopicPartitions
from logstore.errors import InvalidRequestError
from logstore.protocol.messages.topics import Topic


class SubscriptionState:
    """The state of one consumer, for its thread only.

    ``auto_offset_reset`` says where a partition begins without a committed offset.
    """

    def __init__(self, fetcher: Fetcher, auto_offset_reset: AutoOffsetReset) -> None:
        self._fetcher = fetcher
        self._auto_offset_reset = auto_offset_reset
        #: It is None if partitions were assigned one by one. With a ``pattern`` it has the matching topics that are
        #: known so far.
        self.topics: frozenset[str] | None = None
        self.pattern: re.Pattern[str] | None = None
        # For a member of a group: the topics of the subscription as they were first seen, with their partition counts
        # then.
        self._seen: dict[TopicIdentity, int] = {}
        self.assignment: set[TopicPartition] = set()
        self.paused: set[TopicPartition] = set()
        #: Assigned partitions without a position. They begin at the offset given here; without one, at the committed
        #: offset, or else as the policy given here says.
        self.unplaced: dict[TopicPartition, int | AutoOffsetReset] = {}
        # Positions of the other partitions. While rows of a batch are handed out, it is the position before that batch.
        self._positions: dict[TopicPartition, int] = {}
        # The id of the topic that the positions are in, by topic name.
        self._topic_ids: dict[str, str] = {}
        # The id of the topic that was read before, for partitions that have begun again and handed out nothing since.
        self._read_before: dict[TopicPartition, str] = {}

    # ---- the partitions to read -------------------------------------------------------------------------------------

    def subscribe(self, topics: frozenset[str]) -> None:
        """Forget partitions of other topics; ``found_topic`` adds those of ``topics``."""
        self.topics, self.pattern = topics, None
        self._keep({partition for partition in self.assignment if partition.topic in topics})

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        """Subscribe to all topics whose whole name matches; ``found_matching`` sets them."""
        self.topics, self.pattern = frozenset(), pattern

    def found_matching(self, topics: frozenset[str]) -> None:
        """Set the topics that match the pattern, and forget partitions of others."""
        self.topics = topics
        self._keep({partition for partition in self.assignment if partition.topic in topics})

    def subscribe_as_member(self, topics: frozenset[str], pattern: re.Pattern[str] | None) -> None:
        """Read the partitions that the group gives, from ``add`` to ``give_up``."""
        self.topics, self.pattern = topics, pattern

    def see(self, topics: Mapping[str, TopicPartitions]) -> None:
        """Set the topics that a member's subscription covers, as they are now."""
        found: dict[TopicIdentity, int] = {}
        for name, topic in topics.items():
            found[TopicIdentity(name, topic.topic_id)] = topic.count
            if name in self._topic_ids:
                self._enter(name, topic.topic_id)
        self._seen = {topic: self._seen.get(topic, count) for topic, count in found.items()}
        if self.pattern is not None:
            self.topics = frozenset(topic.name for topic in found)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions that the group has given to this member."""
        counts = {topic.name: count for topic, count in self._seen.items()}
        new = set(partitions) - self.assignment
        for partition in new:
            # A partition that was added later is read from its first record: from its end on, records would be missed.
            grown = partition.partition >= counts.get(partition.topic, partition.partition + 1)
            self.unplaced[partition] = "earliest" if grown else self._auto_offset_reset
        self.assignment |= new

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop partitions that the group has taken away: none of their records is handed out any more."""
        self._keep(self.assignment - set(partitions))

    def assign(self, partitions: set[TopicPartition]) -> None:
        """Read these, and no others. Those that are read already keep their positions."""
        self.topics = self.pattern = None
        self._keep(partitions)
        self.unplaced |= dict.fromkeys(partitions - self.assignment, self._auto_offset_reset)
        self.assignment |= partitions

    def found_topic(self, name: str, topic: TopicPartitions) -> None:
        """Read all partitions of a topic that is subscribed to."""
        found = {TopicPartition(name, partition) for partition in range(topic.count)}
        known = {partition for partition in self.assignment if partition.topic == name}
        # A partition that is added is read from its first record: from its end on, records would be missed.
        grown = bool(known) and self._topic_ids.get(name) == topic.topic_id
        self._keep(self.assignment - (known - found))
        self._enter(name, topic.topic_id)
        self.unplaced |= dict.fromkeys(found - known, "earliest" if grown else self._auto_offset_reset)
        self.assignment |= found

    def require_assigned(self, partitions: Iterable[TopicPartition] | None) -> set[TopicPartition]:
        """Return ``partitions``, or all of them (None). Raises InvalidRequestError for one that is not assigned."""
        if partitions is None:
            return set(self.assignment)
        asked = set(listed(partitions))
        if missing := asked - self.assignment:
            topic, partition = min(missing)
            raise InvalidRequestError(f"Partition {partition} of topic {topic!r} is not assigned: call assign() first.")
        return asked

    def pause(self, partitions: set[TopicPartition]) -> None:
        """Hand out nothing more of these. Their positions are after the last record that was handed out."""
        for partition in partitions & self._positions.keys():
            self._positions[partition] = self.position(partition)
        self.paused |= partitions
        self._fetcher.stop_reading(partitions)

    def resume(self, partitions: set[TopicPartition]) -> None:
        """Continue where these were paused; partitions that are not paused are left alone."""
        resuming = partitions & self.paused
        self.paused -= resuming
        self.read_on(resuming & self._positions.keys())

    # ---- positions --------------------------------------------------------------------------------------------------

    def begins_somewhere(self, partition: TopicPartition) -> bool:
        """Return True if ``position`` of an assigned partition is known."""
        return partition in self._positions or isinstance(self.unplaced[partition], int)

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record to hand out."""
        fetch = self._fetcher.begun()
        if fetch is not None and fetch.partition == partition and fetch.batch is not None and fetch.row:
            return fetch.batch.slice(0, fetch.row).next_offset
        at = self._positions[partition] if partition in self._positions else self.unplaced[partition]
        assert isinstance(at, int)
        return at

    def positions(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> tuple[dict[TopicPartition, int], dict[str, str]]:
        """Return all positions, or those of ``partitions``, and the ids of their topics where these are known."""
        sought = {partition: at for partition, at in self.unplaced.items() if isinstance(at, int)}
        found = sought | {partition: self.position(partition) for partition in self._positions}
        if partitions is not None:
            found = {partition: found[partition] for partition in partitions if partition in found}
        return found, self._topic_ids

    def topics_meant(self, partitions: Iterable[TopicPartition]) -> dict[str, str]:
        """Return the ids of the topics to which a program's offsets for ``partitions`` belong.

        If a topic was created again and the program has had no record of the new one, it can only mean the old one.
        """
        before = {p.topic: self._read_before[p] for p in partitions if p in self._read_before}
        return self._topic_ids | before

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue from ``offset`` in the topic that is read, or in the first that is found."""
        self._read_before.pop(partition, None)
        if partition.topic in self._topic_ids:
            self._begin({partition: offset})
        else:
            self.unplaced[partition] = offset

    def place(self, positions: Mapping[TopicPartition, int], described: Mapping[str, Topic]) -> None:
        """Continue from these positions in the topics that were found."""
        for topic in {partition.topic for partition in positions}:
            self._enter(topic, described[topic].topic_id)
        self._begin(positions)

    def advance(self, fetch: CompletedFetch, rows: int) -> None:
        """Note that ``rows`` more of ``fetch``, the fetcher's first, were handed out."""
        fetch.row += rows
        if rows:
            self.handed_out(fetch.partition)
        if fetch.batch is None or fetch.row >= len(fetch.batch):
            self._positions[fetch.partition] = fetch.next_offset
            self._fetcher.pop()

    def handed_out(self, partition: TopicPartition) -> None:
        """Note that the program has seen a record of the topic that is read."""
        self._read_before.pop(partition, None)

    def read_on(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these from their positions on."""
        self._fetcher.read({partition: self._positions[partition] for partition in partitions}, self._topic_ids)

    def begin_anew(self, replaced: Iterable[TopicIdentity]) -> bool:
        """Forget positions in topics that were created again; return True if there were any."""
        found = [topic for topic in replaced if self._topic_ids.get(topic.name) == topic.topic_id]
        for topic in found:
            self._forget_topic(topic.name)
        return bool(found)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _keep(self, kept: set[TopicPartition]) -> None:
        """Forget all partitions except ``kept``."""
        dropped = self.assignment - kept
        self._fetcher.stop_reading(dropped)
        self.assignment -= dropped
        self.paused -= dropped
        for partition in dropped:
            self.unplaced.pop(partition, None)
            self._positions.pop(partition, None)
            self._read_before.pop(partition, None)
        for topic in self._topic_ids.keys() - {partition.topic for partition in self.assignment}:
            del self._topic_ids[topic]

    def _enter(self, name: str, topic_id: str) -> None:
        """Let positions under this name be in this topic from now on."""
        if self._topic_ids.get(name, topic_id) != topic_id:
            self._forget_topic(name)
        self._topic_ids[name] = topic_id

    def _forget_topic(self, topic: str) -> None:
        """Let the partitions of a topic begin again, because another topic has its name."""
        before = self._topic_ids.pop(topic)
        begun = {partition for partition in self._positions if partition.topic == topic}
        self._fetcher.stop_reading(begun)
        for partition in begun:
            del self._positions[partition]
            self.unplaced[partition] = self._auto_offset_reset
            self._read_before.setdefault(partition, before)

    def _begin(self, positions: Mapping[TopicPartition, int]) -> None:
        self._positions.update(positions)
        for partition in positions.keys() & self.unplaced.keys():
            del self.unplaced[partition]
        self.read_on(positions.keys() - self.paused)


def listed(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions as a list.

    Raises InvalidRequestError for a single one (a tuple, so itself iterable), and for anything else.
    """
    found: list[TopicPartition] = []
    given: Any
    for given in partitions:
        if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str)):
            raise InvalidRequestError(f"{partitions!r}: pass a list of partitions, as [TopicPartition('orders', 0)].")
        found.append(TopicPartition(*given))
    return found
