"""The uniform assignment of members whose subscriptions differ: topic by topic, from members with most partitions to
members with fewest.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import Final

from logstore.protocol.assignors.assignor import TopicPartition

# This is Kafka's limit. Topics whose subscribers have no other topics are even after one round; overlapping ones take
# more.
_ROUNDS_MAX: Final = 16


class GeneralAssignment:
    """The state of one assignment. ``counts`` and ``subscribers`` are of topics that exist and have a subscriber;
    ``owned`` has every member, with partitions of topics to which it subscribes.
    """

    def __init__(
        self,
        counts: Mapping[str, int],
        subscribers: Mapping[str, Sequence[str]],
        owned: Mapping[str, Iterable[TopicPartition]],
    ) -> None:
        self._subscribers = subscribers
        self._owners: dict[str, list[str | None]] = {topic: [None] * count for topic, count in counts.items()}
        self._loads = dict.fromkeys(owned, 0)
        for member, partitions in owned.items():
            for topic, number in partitions:
                self._give(topic, number, member)

    def build(self) -> dict[str, list[TopicPartition]]:
        """Return the assignment of each member."""
        topics = sorted(self._owners, key=self._topic_order)
        for topic in topics:
            fewest = _FewestPartitions(self._by_load(topic), self._loads)
            for number, owner in enumerate(self._owners[topic]):
                if owner is None:
                    self._give(topic, number, fewest.take()[1])
        self._even_out([topic for topic in topics if len(self._subscribers[topic]) > 1])
        assignment: dict[str, list[TopicPartition]] = {member: [] for member in self._loads}
        for topic, owners in sorted(self._owners.items()):
            for number, owner in enumerate(owners):
                assert owner is not None
                assignment[owner].append((topic, number))
        return assignment

    def _topic_order(self, topic: str) -> tuple[float, int, str]:
        """Sort topics with many partitions for each subscriber first: the others can even out what these leave."""
        subscribers = len(self._subscribers[topic])
        return -len(self._owners[topic]) / subscribers, subscribers, topic

    def _by_load(self, topic: str) -> list[str]:
        return sorted(self._subscribers[topic], key=lambda member: (self._loads[member], member))

    def _give(self, topic: str, number: int, member: str) -> None:
        owner = self._owners[topic][number]
        if owner is not None:
            self._loads[owner] -= 1
        self._owners[topic][number] = member
        self._loads[member] += 1

    def _even_out(self, topics: Sequence[str]) -> None:
        """Even out all topics, until a whole round moves nothing."""
        last_moved = None
        for _ in range(_ROUNDS_MAX):
            for topic in topics:
                if topic == last_moved:
                    return
                if self._even_out_topic(topic) or last_moved is None:
                    last_moved = topic

    def _even_out_topic(self, topic: str) -> bool:
        """Move partitions of ``topic`` from subscribers with most to those with fewest, and return whether any
        moved.
        """
        members = self._by_load(topic)
        if self._loads[members[-1]] - self._loads[members[0]] <= 1:
            return False
        held: dict[str | None, list[int]] = {}
        for number, owner in enumerate(self._owners[topic]):
            held.setdefault(owner, []).append(number)
        fewest = _FewestPartitions(members, self._loads)
        most = _MostPartitions(members, self._loads)
        moved = False
        while (source := most.take()) is not None:
            if not held.get(source):
                most.exclude()
                continue
            load, target = fewest.take()
            if self._loads[source] - load <= 1:
                break
            self._give(topic, held[source].pop(), target)
            moved = True
        return moved


class _FewestPartitions:
    """Gives the member with the fewest partitions, which then has one more; among equals the first of ``members``."""

    def __init__(self, members: Iterable[str], loads: Mapping[str, int]) -> None:
        self._heap = [(loads[member], place, member) for place, member in enumerate(members)]
        heapify(self._heap)

    def take(self) -> tuple[int, str]:
        """Return the member, with its number of partitions before."""
        load, place, member = self._heap[0]
        heapreplace(self._heap, (load + 1, place, member))
        return load, member


class _MostPartitions:
    """Gives the member with most partitions, which then has one fewer; among equals the last.

    Members with most partitions take turns, from the last to the first. After a full turn they have as many as the next
    ones below, which join them. ``members`` are sorted by ``loads``, which change with what is given.
    """

    def __init__(self, members: Iterable[str], loads: Mapping[str, int]) -> None:
        self._loads = loads
        self._below = list(members)
        self._joined: list[str] = []
        self._load = 0
        self._turn = -1

    def take(self) -> str | None:
        """Return the member, or None if all were excluded."""
        if self._turn < 0:
            if self._joined:
                self._load -= 1
            elif self._below:
                self._load = self._loads[self._below[-1]]
            first = len(self._below)
            while first and self._loads[self._below[first - 1]] == self._load:
                first -= 1
            self._joined = self._below[first:] + self._joined
            del self._below[first:]
            self._turn = len(self._joined) - 1
        if self._turn < 0:
            return None
        self._turn -= 1
        return self._joined[self._turn + 1]

    def exclude(self) -> None:
        """Leave out the member that was given last. As in Kafka, the last one takes its place."""
        last = self._joined.pop()
        if self._turn + 1 < len(self._joined):
            self._joined[self._turn + 1] = last
