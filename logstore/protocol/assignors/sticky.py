"""sticky: balanced, and every member keeps as many of its partitions as the balance allows."""

from collections.abc import Mapping
from dataclasses import dataclass

from logstore.protocol.assignors.assignor import (
    MemberSubscription,
    TopicPartition,
    subscriptions_equal,
    topic_subscribers,
)
from logstore.protocol.assignors.hash_order import hash_order
from logstore.protocol.assignors.sticky_equal import assign_equal
from logstore.protocol.assignors.sticky_general import GeneralAssignment


class StickyAssignor:
    """Kafka's StickyAssignor (KIP-54, KIP-341). With equal subscriptions the numbers of partitions differ by at most
    one. Otherwise, no partition can move to a subscriber that has at least two fewer than its owner.

    Members of the eager protocol give up all partitions before they join, so their earlier ones come as user data.
    """

    name = "sticky"

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> dict[str, list[TopicPartition]]:
        return assign_sticky(partitions, members).assignment


@dataclass(frozen=True, slots=True)
class StickyAssignment:
    """``transferring`` has the partitions that move from an owner to another member, with that member."""

    assignment: dict[str, list[TopicPartition]]
    transferring: dict[TopicPartition, str]


def assign_sticky(partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]) -> StickyAssignment:
    """Return the assignment of both sticky assignors, before any partition is held back."""
    if not members:
        return StickyAssignment({}, {})
    subscribed = topic_subscribers(partitions, members, sorted(members))
    counts = {topic: partitions[topic] for topic in subscribed}
    owned, contested = _owned(counts, members)
    if subscriptions_equal(members.values()):
        return StickyAssignment(*assign_equal(counts, owned, contested))
    assignment = GeneralAssignment(counts, subscribed, owned, _previous_owners(members)).build()
    return StickyAssignment(assignment, _transferring(members, assignment))


def _owned(
    counts: Mapping[str, int], members: Mapping[str, MemberSubscription]
) -> tuple[dict[str, list[TopicPartition]], set[TopicPartition]]:
    """Return what each member really owns, and the partitions that two claimed in one generation, which nobody owns.

    Of two claims the higher generation counts. Partitions that do not exist are left out. The members are in Kafka's
    order.
    """
    owned: dict[str, dict[TopicPartition, None]] = {}
    owners: dict[TopicPartition, str] = {}
    contested: set[TopicPartition] = set()
    for member in hash_order(members):
        mine = owned[member] = {}
        generation = members[member].generation
        for partition in members[member].owned:
            topic, number = partition
            if not 0 <= number < counts.get(topic, 0):
                continue
            other = owners.get(partition)
            if other is None or generation > members[other].generation:
                if other is not None:
                    owned[other].pop(partition, None)
                mine[partition] = None
            elif generation == members[other].generation and other != member:
                contested.add(partition)
                owned[other].pop(partition, None)
            else:
                continue
            owners[partition] = member
    return {member: list(mine) for member, mine in owned.items()}, contested


def _previous_owners(members: Mapping[str, MemberSubscription]) -> dict[TopicPartition, str]:
    """Return the latest member that reports to have had a partition in a generation before the newest."""
    newest = max(member.generation for member in members.values())
    previous: dict[TopicPartition, str] = {}
    for member in hash_order(members):
        generation = members[member].generation
        if generation == newest:
            continue
        for partition in members[member].owned:
            if partition not in previous or generation > members[previous[partition]].generation:
                previous[partition] = member
    return previous


def _transferring(
    members: Mapping[str, MemberSubscription], assignment: Mapping[str, list[TopicPartition]]
) -> dict[TopicPartition, str]:
    """Return the partitions that are new to their member while another one has to give them up."""
    claimed = {partition for member in members.values() for partition in member.owned}
    return {
        partition: member
        for member, partitions in assignment.items()
        for partition in claimed.intersection(partitions).difference(members[member].owned)
    }
