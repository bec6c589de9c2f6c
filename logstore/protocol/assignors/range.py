"""range: each topic by itself, in contiguous ranges."""

from collections.abc import Mapping
from itertools import repeat

from logstore.protocol.assignors.assignor import MemberSubscription, TopicPartition, by_instance, topic_subscribers


class RangeAssignor:
    """Kafka's RangeAssignor. The subscribers of each topic, in the order of ``by_instance``, get ranges of partitions
    in turn. If the partitions do not divide evenly, the first subscribers get one more.

    Topics with the same number of partitions and the same subscribers are co-partitioned: partition i of each goes to
    the same member. The client's assignor and that of KIP-848 give the same result.
    """

    name = "range"

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> dict[str, list[TopicPartition]]:
        assignment: dict[str, list[TopicPartition]] = {member: [] for member in members}
        for topic, subscribers in topic_subscribers(partitions, members, by_instance(members)).items():
            quota, extra = divmod(partitions[topic], len(subscribers))
            start = 0
            for index, member in enumerate(subscribers):
                end = start + quota + (index < extra)
                assignment[member] += zip(repeat(topic), range(start, end))
                start = end
        return assignment
