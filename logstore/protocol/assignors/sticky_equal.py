"""The sticky assignment of members with equal subscriptions: by quotas, in time that grows with the partitions."""

from collections import deque
from collections.abc import Mapping
from operator import itemgetter

from logstore.protocol.assignors.assignor import TopicPartition

_NUMBER_AND_TOPIC = itemgetter(1, 0)


def assign_equal(
    counts: Mapping[str, int],
    owned: Mapping[str, list[TopicPartition]],
    contested: set[TopicPartition],
) -> tuple[dict[str, list[TopicPartition]], dict[TopicPartition, str]]:
    """Return the assignment, and the partitions that change owners, with their new ones.

    ``counts`` has the partitions of the subscribed topics. ``owned`` is in Kafka's order of members: the first of those
    that own enough may keep one partition more. ``contested`` partitions were claimed by two members, so whoever gets
    them takes them from another member.
    """
    quota, members_over_quota = divmod(sum(counts.values()), len(owned))
    assignment: dict[str, list[TopicPartition]] = {}
    given_up: dict[TopicPartition, str] = {}
    below: list[str] = []
    at_quota: list[str] = []
    over = members_over_quota
    for member, partitions in owned.items():
        # The order is by number first, so that the partitions that a member keeps are spread over the topics.
        mine = sorted((p for p in partitions if p not in contested), key=_NUMBER_AND_TOPIC)
        keep = quota
        if len(mine) < quota:
            below.append(member)
        elif len(mine) > quota and over:
            over -= 1
            keep += 1
        else:
            at_quota.append(member)
        assignment[member] = mine[:keep]
        given_up |= dict.fromkeys(mine[keep:], member)

    kept = {partition for partitions in assignment.values() for partition in partitions}
    free = [(topic, n) for topic in sorted(counts) for n in range(counts[topic]) if (topic, n) not in kept]
    # First the members below the quota get partitions in turn, then some members get one more.
    below_in_turn = deque(sorted(below))
    at_quota_in_turn = deque(sorted(at_quota) if over else ())
    transferring: dict[TopicPartition, str] = {}
    for partition in free:
        member = (below_in_turn or at_quota_in_turn).popleft()
        mine = assignment[member]
        mine.append(partition)
        if len(mine) < quota:
            below_in_turn.append(member)
        elif len(mine) == quota:
            at_quota_in_turn.append(member)
        if partition in contested or given_up.get(partition, member) != member:
            transferring[partition] = member
    return assignment, transferring
