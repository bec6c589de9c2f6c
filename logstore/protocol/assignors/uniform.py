"""uniform: the store's own assignor for groups of KIP-848, balanced and sticky."""

from collections.abc import Mapping

from logstore.protocol.assignors.assignor import (
    MemberSubscription,
    TopicPartition,
    subscriptions_equal,
    topic_subscribers,
)
from logstore.protocol.assignors.uniform_equal import assign_equal
from logstore.protocol.assignors.uniform_general import GeneralAssignment


class UniformAssignor:
    """Kafka's UniformAssignor (KIP-848). With equal subscriptions the numbers of partitions differ by at most one, and
    no partition moves unnecessarily. Otherwise it evens out topic by topic, in at most sixteen rounds.

    Kafka orders topics by their ids; this assignor orders them by their names.
    """

    name = "uniform"

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> dict[str, list[TopicPartition]]:
        if not members:
            return {}
        subscribers = topic_subscribers(partitions, members, sorted(members))
        counts = {topic: partitions[topic] for topic in subscribers}
        owned = _owned(counts, members)
        if subscriptions_equal(members.values()):
            return assign_equal(counts, owned)
        return GeneralAssignment(counts, subscribers, owned).build()


def _owned(
    counts: Mapping[str, int], members: Mapping[str, MemberSubscription]
) -> dict[str, dict[TopicPartition, None]]:
    """Return the partitions that each member has of its subscribed topics, as sets that keep their order. If two
    members have a partition, it counts for the first one by id.
    """
    taken: set[TopicPartition] = set()
    owned: dict[str, dict[TopicPartition, None]] = {}
    for member in sorted(members):
        topics = frozenset(members[member].topics)
        mine = owned[member] = {}
        for partition in members[member].owned:
            topic, number = partition
            if topic in topics and 0 <= number < counts.get(topic, 0) and partition not in taken:
                mine[partition] = None
                taken.add(partition)
    return owned
