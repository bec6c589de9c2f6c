"""The uniform assignment of members with equal subscriptions: quotas."""

from collections.abc import Mapping
from itertools import islice

from logstore.protocol.assignors.assignor import TopicPartition


def assign_equal(
    counts: Mapping[str, int], owned: Mapping[str, Mapping[TopicPartition, None]]
) -> dict[str, list[TopicPartition]]:
    """Let each member keep partitions up to its quota, and fill it up. ``counts`` has the partitions of the subscribed
    topics.

    Some quotas are higher by one if the partitions do not divide evenly. As in Kafka since 4.1, they go first to
    members that own that many, then to the last ones by id; so no partition moves unnecessarily.
    """
    quota, extra = divmod(sum(counts.values()), len(owned))
    quotas: dict[str, int] = {}
    assignment: dict[str, list[TopicPartition]] = {}
    given_up: list[TopicPartition] = []
    for index, member in enumerate(sorted(owned)):
        mine = _by_topic(owned[member])
        enough_others = len(owned) - index > extra
        one_more = extra > 0 and (len(mine) > quota or not enough_others)
        extra -= one_more
        quotas[member] = quota + one_more
        assignment[member] = mine[: quotas[member]]
        given_up += mine[quotas[member] :]
    taken = {partition for mine in owned.values() for partition in mine}
    unowned = [(topic, n) for topic in sorted(counts) for n in range(counts[topic]) if (topic, n) not in taken]
    free = iter(unowned + given_up)
    for member, assigned in assignment.items():
        assigned.extend(islice(free, quotas[member] - len(assigned)))
    return assignment


def _by_topic(mine: Mapping[TopicPartition, None]) -> list[TopicPartition]:
    """Return the partitions in the order in which their topics first occur, and by number."""
    topics = {topic: index for index, topic in enumerate(dict.fromkeys(topic for topic, _ in mine))}
    return sorted(mine, key=lambda partition: (topics[partition[0]], partition[1]))
