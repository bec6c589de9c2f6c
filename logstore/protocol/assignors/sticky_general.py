"""The sticky assignment of members whose subscriptions differ: fill the emptiest, then even out by moves."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heapreplace
from itertools import groupby
from operator import itemgetter

from logstore.protocol.assignors.assignor import TopicPartition


class GeneralAssignment:
    """The state of one assignment. ``counts`` and ``subscribers`` are of topics that exist and have a subscriber.

    Invariant after the fill: every partition has one owner, which subscribes to its topic.
    """

    def __init__(
        self,
        counts: Mapping[str, int],
        subscribers: Mapping[str, Sequence[str]],
        owned: Mapping[str, Sequence[TopicPartition]],
        previous: Mapping[TopicPartition, str],
    ) -> None:
        self._counts = counts
        self._subscribers = subscribers
        self._subscribed = {topic: frozenset(names) for topic, names in subscribers.items()}
        self._previous = previous
        # The dicts are sets that keep their order.
        self._assigned: dict[str, dict[TopicPartition, None]] = {
            member: dict.fromkeys(p for p in partitions if member in self._subscribed[p[0]])
            for member, partitions in owned.items()
        }
        self._subscription_lost = any(len(self._assigned[member]) < len(owned[member]) for member in owned)
        self._owner = {p: member for member, partitions in self._assigned.items() for p in partitions}
        self._movements = _Movements()

    def build(self) -> dict[str, list[TopicPartition]]:
        """Return the assignment of each member."""
        topics = sorted(self._counts, key=lambda topic: (len(self._subscribers[topic]), topic))
        partitions = [(topic, number) for topic in topics for number in range(self._counts[topic])]
        free = [partition for partition in partitions if partition not in self._owner]
        self._fill(free)
        if not self._subscription_lost:
            # Moves of new partitions take nothing from anybody.
            self._even_out([partition for partition in free if self._can_move(partition)])
        self._even_out([partition for partition in partitions if self._can_move(partition)])
        return {member: list(assigned) for member, assigned in self._assigned.items()}

    def _fill(self, free: Iterable[TopicPartition]) -> None:
        """Give each partition to the subscriber with the fewest; among equals to the first by name."""
        for topic, partitions in groupby(free, key=itemgetter(0)):
            loads = [(len(self._assigned[member]), member) for member in self._subscribers[topic]]
            heapify(loads)
            for partition in partitions:
                load, member = loads[0]
                self._assigned[member][partition] = None
                self._owner[partition] = member
                heapreplace(loads, (load + 1, member))

    def _can_move(self, partition: TopicPartition) -> bool:
        return len(self._subscribers[partition[0]]) > 1

    def _even_out(self, partitions: Sequence[TopicPartition]) -> None:
        """Move partitions to subscribers that have at least two fewer, until none can move.

        Every move makes two members more equal, so this ends, and the result need not be compared with the state
        before, as Kafka does.
        """
        moved = True
        while moved:
            moved = False
            fewest: dict[str, str] = {}
            for partition in partitions:
                topic, owner = partition[0], self._owner[partition]
                target = self._previous.get(partition)
                # Kafka takes a previous owner even if it no longer subscribes to the topic.
                if target not in self._subscribed[topic] or not self._is_fuller(owner, target):
                    if topic not in fewest:
                        fewest[topic] = min(self._subscribers[topic], key=self._load_and_name)
                    target = fewest[topic]
                    if not self._is_fuller(owner, target):
                        continue
                self._move(partition, target)
                fewest.clear()
                moved = True

    def _is_fuller(self, member: str, other: str) -> bool:
        """Return whether ``member`` has at least two partitions more than ``other``."""
        return len(self._assigned[member]) > len(self._assigned[other]) + 1

    def _load_and_name(self, member: str) -> tuple[int, str]:
        return len(self._assigned[member]), member

    def _move(self, partition: TopicPartition, target: str) -> None:
        """Move ``partition`` to ``target``, or undo a move of the same topic in the other direction."""
        back = self._movements.to_take_back(partition, self._owner[partition], target)
        moving = back if back is not None and self._is_fuller(self._owner[back], target) else partition
        owner = self._owner[moving]
        self._movements.add(moving, owner, target)
        del self._assigned[owner][moving]
        self._assigned[target][moving] = None
        self._owner[moving] = target


class _Movements:
    """The origin and the present member of moved partitions, so that two members do not swap partitions of a topic."""

    def __init__(self) -> None:
        self._ends: dict[TopicPartition, tuple[str, str]] = {}
        self._partitions: defaultdict[tuple[str, str, str], set[TopicPartition]] = defaultdict(set)

    def to_take_back(self, partition: TopicPartition, owner: str, target: str) -> TopicPartition | None:
        """Return a partition that came from ``target`` to where ``partition`` was first. Of several it is the lowest;
        Kafka takes any.
        """
        source = self._ends[partition][0] if partition in self._ends else owner
        return min(self._partitions.get((partition[0], target, source), ()), default=None)

    def add(self, partition: TopicPartition, source: str, target: str) -> None:
        before = self._ends.pop(partition, None)
        if before is not None:
            self._partitions[partition[0], *before].remove(partition)
            source = before[0]
        if source != target:
            self._ends[partition] = source, target
            self._partitions[partition[0], source, target].add(partition)
