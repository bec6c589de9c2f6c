"""The subscription state of a consumer: the partitions that it reads, and its position in each.

Invariants:

- A partition's position is the offset after the last record that was handed out, or the offset that was set.
- The fetcher reads the partitions that have a position and are not paused, and no others.
- A position belongs to a topic, not to its name. Once a topic is found to have been made again, its partitions are
  without a position until one in the new topic is found. Paused ones stay paused.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from logstore.client.consumer.fetcher import CompletedFetch, Fetcher
from logstore.client.consumer.options import AutoOffsetReset
from logstore.client.metadata import TopicDescription, TopicIdentity, TopicPartition, TopicPartitions
from logstore.errors import InvalidRequestError


class SubscriptionState:
    """The state of one consumer, for its thread only. ``auto_offset_reset``: where a partition begins without a
    committed offset.
    """

    def __init__(self, fetcher: Fetcher, auto_offset_reset: AutoOffsetReset) -> None:
        self._fetcher = fetcher
        self._auto_offset_reset = auto_offset_reset
        #: None: partitions were assigned one by one. With a ``pattern`` these are the topics that match it, as far as
        #: is known.
        self.topics: frozenset[str] | None = None
        self.pattern: re.Pattern[str] | None = None
        # Of a member of a group: the topics of the subscription as they were first seen, with their numbers of
        # partitions then.
        self._seen: dict[TopicIdentity, int] = {}
        self.assignment: set[TopicPartition] = set()
        self.paused: set[TopicPartition] = set()
        #: Assigned partitions without a position. They begin at the offset given here, or else at the committed offset,
        #: or else as the policy given here says.
        self.unplaced: dict[TopicPartition, int | AutoOffsetReset] = {}
        # Positions of the other partitions. While rows of a batch are handed out this is the position before that
        # batch.
        self._positions: dict[TopicPartition, int] = {}
        # By topic name: the id of the topic that the positions are in.
        self._topic_ids: dict[str, str] = {}
        # The id of the topic that was read before, for partitions that began anew and have handed out nothing since.
        self._read_before: dict[TopicPartition, str] = {}

    # ---- the partitions to read -------------------------------------------------------------------------------------

    def subscribe(self, topics: frozenset[str]) -> None:
        """Forget partitions of other topics; those of ``topics`` come by ``found_topic``."""
        self.topics, self.pattern = topics, None
        self._keep({partition for partition in self.assignment if partition.topic in topics})

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        """Subscribe to all topics whose whole name matches: ``found_matching`` says which."""
        self.topics, self.pattern = frozenset(), pattern

    def found_matching(self, topics: frozenset[str]) -> None:
        """The topics of the pattern; forget partitions of others."""
        self.topics = topics
        self._keep({partition for partition in self.assignment if partition.topic in topics})

    def subscribe_as_member(self, topics: frozenset[str], pattern: re.Pattern[str] | None) -> None:
        """Read what the group gives, from ``add`` to ``give_up``."""
        self.topics, self.pattern = topics, pattern

    def see(self, topics: Mapping[str, TopicPartitions]) -> None:
        """A member's subscription means these topics, which are so now."""
        found: dict[TopicIdentity, int] = {}
        for name, topic in topics.items():
            found[TopicIdentity(name, topic.topic_id)] = topic.count
            if name in self._topic_ids:
                self._enter(name, topic.topic_id)
        self._seen = {topic: self._seen.get(topic, count) for topic, count in found.items()}
        if self.pattern is not None:
            self.topics = frozenset(topic.name for topic in found)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """The group has given these to this member."""
        counts = {topic.name: count for topic, count in self._seen.items()}
        new = set(partitions) - self.assignment
        for partition in new:
            # One that was added since is read from its first record: from its end on, records would be missed.
            grown = partition.partition >= counts.get(partition.topic, partition.partition + 1)
            self.unplaced[partition] = "earliest" if grown else self._auto_offset_reset
        self.assignment |= new

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """The group has taken these away: nothing more of them is handed out."""
        self._keep(self.assignment - set(partitions))

    def assign(self, partitions: set[TopicPartition]) -> None:
        """Read these, and no others. Those that are read already go on where they are."""
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
        """``partitions``, or all; InvalidRequestError for one that is not assigned."""
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
        """Go on where these were paused; those that are not are left alone."""
        resuming = partitions & self.paused
        self.paused -= resuming
        self.read_on(resuming & self._positions.keys())

    # ---- positions --------------------------------------------------------------------------------------------------

    def begins_somewhere(self, partition: TopicPartition) -> bool:
        """Whether ``position`` of an assigned partition is known."""
        return partition in self._positions or isinstance(self.unplaced[partition], int)

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record to be handed out."""
        fetch = self._fetcher.begun()
        if fetch is not None and fetch.partition == partition and fetch.batch is not None and fetch.row:
            return fetch.batch.slice(0, fetch.row).next_offset
        at = self._positions[partition] if partition in self._positions else self.unplaced[partition]
        assert isinstance(at, int)
        return at

    def positions(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> tuple[dict[TopicPartition, int], dict[str, str]]:
        """All positions, or those of ``partitions``, and the ids of their topics, where these are known."""
        sought = {partition: at for partition, at in self.unplaced.items() if isinstance(at, int)}
        found = sought | {partition: self.position(partition) for partition in self._positions}
        if partitions is not None:
            found = {partition: found[partition] for partition in partitions if partition in found}
        return found, self._topic_ids

    def topics_meant(self, partitions: Iterable[TopicPartition]) -> dict[str, str]:
        """The ids of the topics to which a program's own offsets for ``partitions`` belong.

        A program that has had no record of a topic that was made again can only mean the topic before.
        """
        before = {p.topic: self._read_before[p] for p in partitions if p in self._read_before}
        return self._topic_ids | before

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on from ``offset`` in the topic that is read, or in the first that is found."""
        self._read_before.pop(partition, None)
        if partition.topic in self._topic_ids:
            self._begin({partition: offset})
        else:
            self.unplaced[partition] = offset

    def place(self, positions: Mapping[TopicPartition, int], described: Mapping[str, TopicDescription]) -> None:
        """Go on from these positions in the topics that were found."""
        for topic in {partition.topic for partition in positions}:
            self._enter(topic, described[topic].topic_id)
        self._begin(positions)

    def advance(self, fetch: CompletedFetch, rows: int) -> None:
        """``rows`` more of ``fetch``, the fetcher's first, were handed out."""
        fetch.row += rows
        if rows:
            self.handed_out(fetch.partition)
        if fetch.batch is None or fetch.row >= len(fetch.batch):
            self._positions[fetch.partition] = fetch.next_offset
            self._fetcher.pop()

    def handed_out(self, partition: TopicPartition) -> None:
        """The program has seen a record of the topic that is read."""
        self._read_before.pop(partition, None)

    def read_on(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these from their positions on."""
        self._fetcher.read({partition: self._positions[partition] for partition in partitions}, self._topic_ids)

    def begin_anew(self, replaced: Iterable[TopicIdentity]) -> bool:
        """Forget positions in topics that were made again. True if there were any."""
        found = [topic for topic in replaced if self._topic_ids.get(topic.name) == topic.topic_id]
        for topic in found:
            self._forget_topic(topic.name)
        return bool(found)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _keep(self, kept: set[TopicPartition]) -> None:
        """Forget all partitions but ``kept``."""
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
        """From now on positions under this name are in this topic."""
        if self._topic_ids.get(name, topic_id) != topic_id:
            self._forget_topic(name)
        self._topic_ids[name] = topic_id

    def _forget_topic(self, topic: str) -> None:
        """Let the partitions of a topic begin anew: another topic has its name."""
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
    """The partitions as a list. InvalidRequestError for a single one (a tuple, so iterable itself), and for other
    things.
    """
    found: list[TopicPartition] = []
    given: Any
    for given in partitions:
        if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str)):
            raise InvalidRequestError(f"{partitions!r}: pass a list of partitions, as [TopicPartition('orders', 0)].")
        found.append(TopicPartition(*given))
    return found
