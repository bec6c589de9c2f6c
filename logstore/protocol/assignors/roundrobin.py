"""roundrobin: all partitions of all topics, one to each member in turn."""

from collections.abc import Mapping
from itertools import cycle

from logstore.protocol.assignors.assignor import MemberSubscription, TopicPartition, by_instance, topic_subscribers


class RoundRobinAssignor:
    """Kafka's RoundRobinAssignor. The partitions go round the members in the order of ``by_instance``, topic by topic;
    a member that does not subscribe to the topic is skipped.

    With equal subscriptions the members' numbers of partitions differ by at most one. Otherwise they can differ more.
    """

    name = "roundrobin"

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> dict[str, list[TopicPartition]]:
        assignment: dict[str, list[TopicPartition]] = {member: [] for member in members}
        order = by_instance(members)
        turns = cycle(order)
        for topic, subscribers in topic_subscribers(partitions, members, order).items():
            subscribed = frozenset(subscribers)
            for partition in range(partitions[topic]):
                member = next(member for member in turns if member in subscribed)
                assignment[member].append((topic, partition))
        return assignment
