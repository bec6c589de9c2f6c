"""The interface of all assignors, and their common parts.

An assignor is a pure function of the numbers of partitions and of the subscriptions. Its result does not depend on the
order of either mapping.

Racks are ignored, because a consumer reads from the leader of a partition. Kafka's assignors use them only where
replicas are on some racks and not on others, and otherwise give the results that these give.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """``owned`` are the partitions that the member has from ``generation`` (-1: it reports none). For the sticky
    assignor of Kafka's clients both come in the user data of the subscription.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    instance_id: str | None = None
    rack: str | None = None


class Assignor(Protocol):
    name: str

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> dict[str, list[TopicPartition]]:
        """Return the partitions of every member, also of one that gets none.

        ``partitions`` has the number of partitions of each topic; a subscription to another topic gives nothing. Every
        partition of a topic that has a subscriber is given to one of them.
        """


#: An assignor of KIP-848, which the store runs.
ServerAssignor = Assignor


def by_instance(members: Mapping[str, MemberSubscription]) -> list[str]:
    """Return the members in the order of range and roundrobin: static ones first, by instance id, then the others by
    id. So a static member that comes back with another id has its place again (KIP-345).
    """

    def key(member: str) -> tuple[bool, str, str]:
        instance_id = members[member].instance_id
        return instance_id is None, instance_id or "", member

    return sorted(members, key=key)


def topic_subscribers(
    partitions: Mapping[str, int], members: Mapping[str, MemberSubscription], order: Iterable[str]
) -> dict[str, list[str]]:
    """Return the subscribers of each topic, in ``order``. Topics are in the order of their names; those without a
    partition or a subscriber are left out.
    """
    subscribers: dict[str, list[str]] = {}
    for member in order:
        for topic in dict.fromkeys(members[member].topics):
            if partitions.get(topic, 0) > 0:
                subscribers.setdefault(topic, []).append(member)
    return dict(sorted(subscribers.items()))


def subscriptions_equal(members: Collection[MemberSubscription]) -> bool:
    """Return whether all subscribe to the same topics, counting topics that do not exist, as Kafka does."""
    return len({frozenset(member.topics) for member in members}) <= 1
