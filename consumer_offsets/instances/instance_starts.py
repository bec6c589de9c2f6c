"""Finds where a consumer instance begins to read, and keeps its record, which has the starts.

Positions beyond the starts are the instance's memory. ``instance_table`` has the invariants.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from consumer_offsets.group_shards import GroupShard, answered
from consumer_offsets.groups.instance_record import InstanceValue, Start
from consumer_offsets.groups.instance_table import PutInstance
from consumer_offsets.instances.instance_home import InstanceHome
from logstore.broker.context import INTERNAL
from logstore.broker.elsewhere.partition_offsets import PartitionOffsets
from logstore.broker.topics.ids import require_topic_id, topic_id_text
from logstore.errors import BrokerNotReadyError, LogStoreError
from logstore.log.isolation import Isolation
from logstore.log.partition_log import PartitionLog
from logstore.protocol.members.identity import TopicPartition
from logstore.records.offset_record import InstanceKey

_TIMEOUT_MS: Final = 30_000


class Position:
    """The next offset to read in a partition of the topic with that id. When it moves, another object replaces it."""

    __slots__ = ("offset", "topic_id")

    def __init__(self, topic_id: str, offset: int) -> None:
        self.topic_id = topic_id
        self.offset = offset


class InstanceStarts:
    """``value`` is the record. Only this object changes it, and returns when the change is durable."""

    def __init__(self, home: InstanceHome, shard: GroupShard, key: InstanceKey, id: str) -> None:
        self._home = home
        self._broker = home.broker
        self._shard = shard
        self._key = key
        self._id = id
        self._is_closed = False

    def close(self) -> None:
        """Refuse further use: the store stops, or another object continues with the instance."""
        self._is_closed = True

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def value(self) -> InstanceValue:
        """The record. Raises UnknownInstanceError, what ``CoordinatorShard.machine`` raises, and BrokerNotReadyError
        after ``close``, because a client would replace an unknown instance by a new one.
        """
        value = self._shard.machine.instances.require(self._key, self._id)
        if self._is_closed:
            raise BrokerNotReadyError("The store is stopping. Try again in a few seconds.")
        return value

    async def put(self, value: InstanceValue | None) -> None:
        """Change the record, which was read since the last await, and return when that is durable."""
        answer = self._shard.request(lambda token: PutInstance(token, self._key, self._id, value))
        await answered(self._key.group, answer, _TIMEOUT_MS)

    async def put_starts(self, starts: Mapping[TopicPartition, Start]) -> None:
        value = self.value
        before = {TopicPartition(start.topic, start.partition): start for start in value.starts}
        changed = {**before, **starts}
        if (found := list(changed.values())) != value.starts:
            await self.put(msgspec.structs.replace(value, starts=found))

    async def drop_starts(self, partitions: Iterable[TopicPartition]) -> None:
        value, gone = self.value, set(partitions)
        kept = [start for start in value.starts if TopicPartition(start.topic, start.partition) not in gone]
        if len(kept) < len(value.starts):
            await self.put(msgspec.structs.replace(value, starts=kept))

    def subscribed(self, value: InstanceValue) -> frozenset[str]:
        """Return the topics that it names, or those that match it now and that its subscriber may describe."""
        if value.pattern is None:
            return frozenset(value.topics or ())
        found = self._home.topics.matching(value.pattern)
        shown = self._broker.authorizer.described(value.subscriber.context, tuple(found))
        return found if len(shown) == len(found) else shown

    def topic_id(self, at: TopicPartition) -> str | None:
        """Return the id of the topic if it has the partition now."""
        try:
            topic = self._broker.topics.served.topic(INTERNAL, at.topic)
        except LogStoreError:
            return None
        return topic_id_text(topic.topic_id) if at.partition < len(topic.partitions) else None

    async def resolved(
        self, wanted: Mapping[TopicPartition, str]
    ) -> tuple[dict[TopicPartition, Position], list[Start]]:
        """Return positions, and the starts that exist or are made for them. Raises LeaderNotAvailableError.

        A position is the start in the record, else the group's commit, else what ``auto.offset.reset`` gives.
        """
        written = {TopicPartition(start.topic, start.partition): start for start in self.value.starts}
        commits = self._home.commits(self._key.group)
        positions, starts, rest = {}, [], {}
        for at, topic_id in wanted.items():
            start, commit = written.get(at), commits.get(at)
            if start is not None and start.topic_id == topic_id:
                positions[at] = Position(topic_id, start.offset)
                starts.append(start)
            elif commit is not None and commit.topic_id == topic_id:
                positions[at] = Position(topic_id, commit.offset)
            else:
                rest[at] = topic_id
        reset, reset_starts = await self.reset(rest)
        return positions | reset, starts + reset_starts

    async def find(self, wanted: Mapping[TopicPartition, str | None]) -> dict[TopicPartition, Position]:
        """Return the positions of partitions of topics with these ids. The starts among them are durable on return."""
        there = {at: topic_id for at, topic_id in wanted.items() if topic_id is not None}
        if not there:
            return {}
        positions, starts = await self.resolved(there)
        await self.put_starts({TopicPartition(start.topic, start.partition): start for start in starts})
        return positions

    async def reset(self, wanted: Mapping[TopicPartition, str]) -> tuple[dict[TopicPartition, Position], list[Start]]:
        """Return positions by ``auto.offset.reset``. Topics and partitions that are newer than the subscription begin
        at their start.

        The leaders report the ends. Raises LeaderNotAvailableError if one does not.
        """
        value = self.value
        first: dict[TopicPartition, PartitionLog] = {}
        last: dict[TopicPartition, PartitionLog] = {}
        for at, topic_id in wanted.items():
            try:
                topic = self._broker.topics.served.topic(INTERNAL, at.topic)
                require_topic_id(topic, topic_id)
                partition_log = topic.partition(at.partition)
            except LogStoreError:
                continue
            seen_id, seen_partitions = value.seen.get(at.topic, ("", 0))
            is_new = value.is_subscribed and (seen_id != topic_id or at.partition >= seen_partitions)
            earliest = is_new or value.config.auto_offset_reset == "earliest"
            (first if earliest else last)[at] = partition_log
        offsets = {at: partition_log.log_start_offset for at, partition_log in first.items()}
        offsets |= await self.readable_ends(last)
        positions = {at: Position(wanted[at], offset) for at, offset in offsets.items()}
        return positions, [Start(*at, one.topic_id, one.offset) for at, one in positions.items()]

    async def readable_ends(self, logs: Mapping[TopicPartition, PartitionLog]) -> dict[TopicPartition, int]:
        """Return the offsets where readers stop now, as the leaders report. Raises LeaderNotAvailableError if one does
        not.
        """
        elsewhere = await self._broker.elsewhere.offsets(list(logs.values()))
        isolation = Isolation(self.value.config.isolation)
        ends = {}
        for at, partition_log in logs.items():
            found = PartitionOffsets.of(partition_log, elsewhere)
            found.require_known(partition_log)
            ends[at] = found.readable_end(isolation)
        return ends
