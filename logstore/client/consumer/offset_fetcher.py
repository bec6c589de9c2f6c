"""Looks up what a consumer needs before it reads: the partitions of topics, and the offsets to begin at.

One separate thread runs the lookups, one at a time, so that ``poll`` keeps to its timeout even while the store is away.
Their results are applied in the consumer's thread.
"""

import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from logstore.client.admin import Admin
from logstore.client.consumer.group_member import GroupMember
from logstore.client.consumer.options import AutoOffsetReset, ConsumerOptions
from logstore.client.consumer.subscription_state import SubscriptionState, listed
from logstore.client.consumer.wakeup import Wakeup
from logstore.client.metadata import TopicPartition
from logstore.errors import (
    InvalidRequestError,
    NoOffsetForPartitionError,
    UnknownGroupError,
    UnknownPartitionError,
    UnknownTopicError,
)
from logstore.protocol.messages.topics import Partition, Topic


class OffsetFetcher:
    """The lookups for the consumer with ``state``. Its methods are for the consumer's thread."""

    def __init__(
        self,
        admin: Admin,
        state: SubscriptionState,
        member: GroupMember | None,
        wakeup: Wakeup,
        options: ConsumerOptions,
    ) -> None:
        self._admin = admin
        self._member = member
        self._wakeup = wakeup
        self._state = state
        self._options = options
        #: When to look up the partitions of a subscription again (monotonic).
        self.refresh_at = math.inf
        # The lookup under way; its result is a function to call in the consumer's thread.
        self._lookup: Future[Callable[[], None]] | None = None
        self._lookups = ThreadPoolExecutor(1, thread_name_prefix="logstore-lookup")

    def close(self) -> None:
        self._lookups.shutdown(cancel_futures=True)

    def begin_anew(self) -> None:
        """Drop the lookup under way, because other partitions are to be read."""
        self.refresh_at = math.inf if self._state.topics is None else 0.0
        self._lookup = None

    def refresh(self) -> None:
        """Look up the partitions of a subscription at once, because a topic was created again."""
        if self._state.topics is not None:
            self.refresh_at = 0.0

    def look_up(self, timeout_s: float) -> bool:
        """Return True if the partitions subscribed to, and the offsets to begin at, are known.

        Waits up to ``timeout_s`` for that, or until a wakeup. Raises the error of the lookup.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() >= self.refresh_at or self._state.unplaced:
            if self._lookup is None:
                if time.monotonic() >= self.refresh_at:
                    assert self._state.topics is not None
                    followed = self._member.followed if self._member else frozenset()
                    self._lookup = self._lookups.submit(
                        self._find_partitions, self._state.topics, self._state.pattern, followed
                    )
                else:
                    self._lookup = self._lookups.submit(self._find_positions, dict(self._state.unplaced))
            if not self._wakeup.wait(self._lookup, deadline):
                return False
            found, self._lookup = self._lookup, None
            found.result()()
        return True

    def place_unplaced(self) -> None:
        """Look up the offsets to begin at, and wait for them."""
        self._find_positions(dict(self._state.unplaced))()

    def place(self, partitions: Iterable[TopicPartition], offset_of: Callable[[Partition], int]) -> None:
        """Continue at the offset that ``offset_of`` gives for each of ``partitions``."""
        described, found = self._describe_by_leaders(listed(partitions))
        self._place({partition: offset_of(at) for partition, at in found.items()}, described)

    def describe(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Partition]:
        """Describe ``partitions``. Raises UnknownTopicError, UnknownPartitionError, LeaderNotAvailableError."""
        _, found = self._describe_by_leaders(listed(partitions))
        return found

    def committed(self) -> dict[TopicPartition, int]:
        """Return the group's committed offsets. Raises InvalidRequestError if there is no group."""
        if self._options.group_id is None:
            raise InvalidRequestError("Committed offsets are a group's: give group_id.")
        try:
            committed = self._admin.group_offsets(self._options.group_id)
        except UnknownGroupError:
            return {}
        return {TopicPartition(found.topic, found.partition): found.offset for found in committed}

    # ---- in the thread ----------------------------------------------------------------------------------------------

    def _find_partitions(
        self, topics: frozenset[str], pattern: re.Pattern[str] | None, followed: frozenset[str]
    ) -> Callable[[], None]:
        """Find the partitions of the topics subscribed to, and of the ``followed`` ones that exist."""
        others = followed - topics
        if pattern is None:
            found = self._admin.find_partitions(topics, may_create=True)
        else:
            found = self._admin.find_partitions(
                (topic.topic_name for topic in self._admin.topics() if pattern.fullmatch(topic.topic_name)),
                if_there=True,
            )
        counts = {name: topic.count for name, topic in found.items()}
        counts |= {name: topic.count for name, topic in self._admin.find_partitions(others, if_there=True).items()}

        def apply() -> None:
            if self._member is None:
                if pattern is not None:
                    self._state.found_matching(frozenset(found))
                for name, topic in found.items():
                    self._state.found_topic(name, topic)
            else:
                # Partitions of topics that no longer match are given up in a rebalance.
                self._state.see(found)
                self._member.found_topics(frozenset(found), counts)
            self.refresh_at = time.monotonic() + self._options.metadata_max_age_ms / 1000

        return apply

    def _find_positions(self, unplaced: Mapping[TopicPartition, int | AutoOffsetReset]) -> Callable[[], None]:
        """Find the offsets to begin at and the topics' ids."""
        # Topics come first, then offsets: if a topic is created again between the two, offsets in the new one must not
        # be taken for offsets in the old one.
        described = {name: self._describe(name) for name in sorted(_by_topic(unplaced))}
        positions = {partition: at for partition, at in unplaced.items() if isinstance(at, int)}
        asks = self._options.group_id is not None and len(positions) < len(unplaced)
        committed = self.committed() if asks else {}
        without = unplaced.keys() - positions.keys() - committed.keys()
        if stranded := [partition for partition in without if unplaced[partition] == "none"]:
            topic, number = min(stranded)
            raise NoOffsetForPartitionError(
                f"Group {self._options.group_id!r} has committed nothing for partition {number} of topic {topic!r} as "
                f"it is now (id {described[topic].topic_id}), and auto_offset_reset is 'none': seek() to where it is "
                "to begin."
            )
        found = _partitions_of(described, without)
        if any(at.high_watermark < 0 for at in found.values()):  # their leaders did not report in time
            again, found = self._describe_by_leaders(without)
            described |= again
        for partition, at in found.items():
            earliest = unplaced[partition] == "earliest"
            positions[partition] = at.log_start_offset if earliest else at.high_watermark
        for partition in unplaced.keys() - positions.keys():
            positions[partition] = committed[partition]

        def apply() -> None:
            # The program may have set some positions meanwhile.
            wanted = {p: at for p, at in positions.items() if self._state.unplaced.get(p) == unplaced[p]}
            self._place(wanted, described)

        return apply

    def _describe(self, topic: str) -> Topic:
        """Describe a topic that is to be read. If it does not exist, it is created if the store creates topics."""
        try:
            return self._admin.describe_topic(topic)
        except UnknownTopicError:
            self._admin.find_partitions([topic], may_create=True)
            return self._admin.describe_topic(topic)

    def _place(self, positions: Mapping[TopicPartition, int], described: Mapping[str, Topic]) -> None:
        # An earlier lookup may report topics that have been deleted since.
        self._lookup = None
        self._state.place(positions, described)

    def _describe_by_leaders(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[str, Topic], dict[TopicPartition, Partition]]:
        """Return the topics of ``partitions`` by name, and the partitions with offsets that their leaders report."""
        described = {
            name: self._admin.describe_by_leaders(name, numbers)
            for name, numbers in sorted(_by_topic(partitions).items())
        }
        return described, _partitions_of(described, partitions)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, []).append(number)
    return found


def _partitions_of(
    topics: Mapping[str, Topic], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, Partition]:
    """Return the descriptions of ``partitions``. Raises UnknownPartitionError."""
    found = {TopicPartition(name, p.partition): p for name, topic in topics.items() for p in topic.partitions}
    for partition in (asked := list(partitions)):
        if partition not in found:
            raise UnknownPartitionError(f"Partition {partition.partition} of topic {partition.topic!r} not found.")
    return {partition: found[partition] for partition in asked}
