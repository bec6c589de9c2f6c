"""For each assignor, the metadata that a member sends and a leader reads."""

import pytest

from logstore.errors import InvalidRequestError
from logstore.protocol.assignors.assignor import MemberSubscription
from logstore.protocol.assignors.member_metadata import decode_metadata, encode_metadata
from logstore.protocol.assignors.registry import CLIENT_ASSIGNORS
from logstore.protocol.consumer_protocol import (
    Subscription,
    decode_subscription,
    encode_sticky_user_data,
    encode_subscription,
)

MEMBER = MemberSubscription(("a", "b"), (("a", 0), ("b", 3)), 7, rack="r")


@pytest.mark.parametrize("name", CLIENT_ASSIGNORS)
def test_a_leader_learns_what_a_member_sends(name: str):
    assert decode_metadata(name, encode_metadata(name, MEMBER)) == MEMBER
    static = decode_metadata(name, encode_metadata(name, MemberSubscription(("a",))), "i")
    assert static == MemberSubscription(("a",), instance_id="i")


def test_user_data_is_that_of_kafkas_assignors():
    assert decode_subscription(encode_metadata("range", MEMBER)).user_data is None
    assert decode_subscription(encode_metadata("cooperative-sticky", MEMBER)).user_data == b"\0\0\0\7"
    sticky = decode_subscription(encode_metadata("sticky", MEMBER))
    assert sticky.user_data == encode_sticky_user_data(MEMBER.owned, 7)
    assert sticky.owned == ()
    assert decode_subscription(encode_metadata("sticky", MemberSubscription(("a",)))).user_data is None


def test_sticky_counts_the_user_data_alone():
    user_data = encode_sticky_user_data([("a", 1)], 6)
    metadata = encode_subscription(Subscription(("a",), user_data, (("a", 0),), 7))
    assert decode_metadata("sticky", metadata) == MemberSubscription(("a",), (("a", 1),), 6)
    old = encode_subscription(Subscription(("a",), user_data[:-4]), 0)
    assert decode_metadata("sticky", old) == MemberSubscription(("a",), (("a", 1),), -1)
    for unreadable in (None, b"", b"\0\0\0\1\xff"):
        metadata = encode_subscription(Subscription(("a",), unreadable, (("a", 0),), 7))
        assert decode_metadata("sticky", metadata) == MemberSubscription(("a",))


def test_cooperative_sticky_takes_the_generation_of_the_user_data_where_the_subscription_has_none():
    before_version_2 = encode_subscription(Subscription(("a",), b"\0\0\0\5", (("a", 0),)), 1)
    assert decode_metadata("cooperative-sticky", before_version_2) == MemberSubscription(("a",), (("a", 0),), 5)
    newer = encode_subscription(Subscription(("a",), b"\0\0\0\5", (("a", 0),), 6))
    assert decode_metadata("cooperative-sticky", newer).generation == 6
    for unreadable in (None, b"", b"\0"):
        metadata = encode_subscription(Subscription(("a",), unreadable, (("a", 0),)), 1)
        assert decode_metadata("cooperative-sticky", metadata) == MemberSubscription(("a",), (("a", 0),))


@pytest.mark.parametrize("name", CLIENT_ASSIGNORS)
def test_metadata_that_is_no_subscription(name: str):
    with pytest.raises(InvalidRequestError, match="subscription of the consumer protocol"):
        decode_metadata(name, b"\0\1\0")
