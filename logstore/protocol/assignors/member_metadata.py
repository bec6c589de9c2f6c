"""A member's metadata of a JoinGroup request, for an assignor and by it: a Subscription of the consumer protocol.

The assignor determines where a member reports what it owns. The sticky one is of the eager protocol, in which members
give up everything before they join, and so has it in its user data. cooperative-sticky has it in the subscription, and
the generation also in its user data, for readers older than version 2.
"""

import struct
from typing import Final

from logstore.errors import InvalidRequestError
from logstore.protocol.assignors.assignor import MemberSubscription, TopicPartition
from logstore.protocol.assignors.cooperative_sticky import CooperativeStickyAssignor
from logstore.protocol.assignors.sticky import StickyAssignor
from logstore.protocol.consumer_protocol import (
    Subscription,
    decode_sticky_user_data,
    decode_subscription,
    encode_sticky_user_data,
    encode_subscription,
)

_GENERATION: Final = struct.Struct(">i")


def encode_metadata(assignor_name: str, member: MemberSubscription) -> bytes:
    """Return the metadata with which a member offers the assignor of this name."""
    owned, user_data = member.owned, None
    if assignor_name == StickyAssignor.name:
        owned = ()
        if member.owned or member.generation >= 0:
            user_data = encode_sticky_user_data(member.owned, member.generation)
    elif assignor_name == CooperativeStickyAssignor.name:
        user_data = _GENERATION.pack(member.generation)
    return encode_subscription(Subscription(member.topics, user_data, owned, member.generation, member.rack))


def decode_metadata(assignor_name: str, metadata: bytes, instance_id: str | None = None) -> MemberSubscription:
    """Return the leader's input for the assignor of this name. Raises InvalidRequestError if ``metadata`` is not a
    subscription. As in Kafka, user data that cannot be read is ignored.
    """
    subscription = decode_subscription(metadata)
    owned, generation = subscription.owned, subscription.generation
    if assignor_name == StickyAssignor.name:
        owned, generation = _sticky_user_data(subscription.user_data)
    elif assignor_name == CooperativeStickyAssignor.name and generation < 0:
        generation = _generation(subscription.user_data)
    return MemberSubscription(subscription.topics, owned, generation, instance_id, subscription.rack)


def _sticky_user_data(user_data: bytes | None) -> tuple[tuple[TopicPartition, ...], int]:
    try:
        owned, generation = decode_sticky_user_data(user_data or b"")
    except InvalidRequestError:
        return (), -1
    return owned, max(generation, -1)


def _generation(user_data: bytes | None) -> int:
    if user_data is None or len(user_data) < _GENERATION.size:
        return -1
    return max(int(_GENERATION.unpack_from(user_data)[0]), -1)
