"""Converts groups with members: a classic group to a consumer group, and a consumer group to a classic group.

This corresponds to Kafka's ``ConsumerGroup.fromClassicGroup`` and ``ClassicGroup.fromConsumerGroup``, from and to the
values of records: a conversion is one record, and a restart after it continues with the converted group.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final
from uuid import UUID

from consumer_offsets.groups.classic_members import ClassicMember, ClassicMembers, ClassicState
from consumer_offsets.groups.events import TopicIdPartition, TopicImage
from consumer_offsets.groups.group_record import (
    ClassicGroupValue,
    ClassicMemberValue,
    ClassicProtocolValue,
    ConsumerGroupValue,
    ConsumerMemberValue,
    Partitions,
)
from consumer_offsets.groups.reconciliation import MemberState, by_topic
from logstore.protocol.assignors.assignor import TopicPartition
from logstore.protocol.consumer_protocol import (
    PROTOCOL_TYPE,
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    version_of,
)

# The generation of claims to partitions that were assigned in the present one: higher than the generations that members
# report for earlier assignments.
_PRESENT: Final = 1 << 32


def to_consumer_group(
    generation: int, members: Collection[ClassicMember], topics: TopicImage, *, is_stable: bool
) -> ConsumerGroupValue:
    """Return the consumer group of these members, each with the partitions that it holds, with the generation as epoch.

    If some partition has no holder, or a rebalance was in progress, the group's epoch is one higher: the group assigns
    partitions, and heartbeats ask the members to join again. Raises InvalidRequestError if the metadata of a member is
    not a subscription.
    """
    subscriptions = [decode_subscription(member.protocols[0].metadata) for member in members]
    subscribed = sorted({topic for each in subscriptions for topic in each.topics if topic in topics})
    assigned = _owned(members, subscriptions, topics)
    held = Counter(topic_id for each in assigned.values() for topic_id, numbers in each.items() for _ in numbers)
    is_settled = is_stable and all(held[topics[topic].topic_id] == topics[topic].partitions for topic in subscribed)
    return ConsumerGroupValue(
        epoch=generation if is_settled else generation + 1,
        target_epoch=generation,
        state_timestamp=0,
        topics={topic: (topics[topic].topic_id, topics[topic].partitions) for topic in subscribed},
        regexes={},
        names={one.topic_id: topic for topic, one in topics.items() if topic in subscribed or one.topic_id in held},
        members=[
            ConsumerMemberValue(
                member_id=member.member_id,
                instance_id=member.instance_id,
                rack_id=subscription.rack,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                subscribed_topics=sorted(set(subscription.topics)),
                subscribed_regex="",
                server_assignor=None,
                member_epoch=generation,
                previous_member_epoch=generation,
                state=MemberState.STABLE,
                assigned=assigned[member.member_id],
                pending_revocation={},
                target=assigned[member.member_id],
                classic=ClassicProtocolValue(
                    member.session_timeout_ms, [(each.name, each.metadata) for each in member.protocols]
                ),
            )
            for member, subscription in zip(members, subscriptions, strict=True)
        ],
    )


def _owned(
    members: Collection[ClassicMember], subscriptions: Iterable[Subscription], topics: TopicImage
) -> dict[str, Partitions]:
    """Return, by member id, the partitions that each member holds.

    If several members claim a partition, the claim of the latest generation wins.
    """
    claims = [
        (member.member_id, *_claim(member, subscription))
        for member, subscription in zip(members, subscriptions, strict=True)
    ]
    owners: dict[TopicIdPartition, str] = {}
    for member_id, _, claimed in sorted(claims, key=lambda claim: claim[1], reverse=True):
        for topic, partition in claimed:
            if topic in topics and partition in range(topics[topic].partitions):
                owners.setdefault(TopicIdPartition(topics[topic].topic_id, partition), member_id)
    owned: dict[str, list[TopicIdPartition]] = {member.member_id: [] for member in members}
    for at, member_id in owners.items():
        owned[member_id].append(at)
    return {member_id: by_topic(partitions) for member_id, partitions in owned.items()}


def _claim(member: ClassicMember, subscription: Subscription) -> tuple[int, tuple[TopicPartition, ...]]:
    """Return the generation of a member's claim, and the partitions that the member holds.

    These are the partitions of its assignment, or those that it reported when it joined if it has no assignment or
    waits for the next generation.
    """
    if member.assignment and member.parked_join is None:
        return _PRESENT, decode_assignment(member.assignment).partitions
    return subscription.generation, subscription.owned


def to_classic_group(
    group: ConsumerGroupValue, topics: Mapping[UUID, str], now_ms: int, *, is_settled: bool
) -> ClassicGroupValue:
    """Return the classic group of these members, each with its target as its assignment, with the epoch as generation.

    If ``is_settled``, all members have their assignments, and the group is stable; otherwise they join again.
    ``topics`` are the names of the topics that exist.
    """
    leader = group.members[0].member_id
    protocol = ClassicMembers.of([_classic_member(each, b"") for each in group.members], leader).select_protocol()
    return ClassicGroupValue(
        generation=group.epoch,
        state=ClassicState.STABLE if is_settled else ClassicState.PREPARING_REBALANCE,
        state_timestamp=now_ms,
        protocol_type=PROTOCOL_TYPE,
        protocol=protocol,
        leader=leader,
        members=[_classic_member(each, _assignment(each, protocol, topics)) for each in group.members],
    )


def _classic_member(member: ConsumerMemberValue, assignment: bytes) -> ClassicMemberValue:
    assert member.classic is not None
    return ClassicMemberValue(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.classic.session_timeout_ms,
        member.rebalance_timeout_ms,
        member.classic.protocols,
        assignment,
    )


def _assignment(member: ConsumerMemberValue, protocol: str, topics: Mapping[UUID, str]) -> bytes:
    """Encode the member's target in the version of its own subscription."""
    assert member.classic is not None
    partitions = tuple(
        (topics[topic_id], number)
        for topic_id, numbers in member.target.items()
        if topic_id in topics
        for number in numbers
    )
    return encode_assignment(Assignment(partitions), version_of(dict(member.classic.protocols)[protocol]))
