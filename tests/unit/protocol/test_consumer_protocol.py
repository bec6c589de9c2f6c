"""Messages of the consumer protocol: the bytes of Kafka 4.1.1's client, round trips, and bytes that are no message."""

import contextlib
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import InvalidRequestError
from logstore.protocol.consumer_protocol import (
    NEWEST_VERSION,
    Assignment,
    Subscription,
    decode_assignment,
    decode_sticky_user_data,
    decode_subscription,
    encode_assignment,
    encode_sticky_user_data,
    encode_subscription,
)
from tests.support.assignments import tps
from tests.support.examples import examples

SUBSCRIPTION = Subscription(
    topics=("orders", "clicks", "événements"),
    user_data=b"\x00\x01\xff",
    owned=tuple(tps("orders:2 orders:0 clicks:1 orders:11")),
    generation=7,
    rack="rack-a",
)
#: These are the fields of each version after its number; a later version adds to the earlier ones.
TOPICS = "000000030006636c69636b7300066f7264657273000cc3a976c3a96e656d656e7473"
USER_DATA = "000000030001ff"
OWNED = "000000020006636c69636b73000000010000000100066f72646572730000000300000000000000020000000b"
ASSIGNED = "0000000200066f72646572730000000300000002000000000000000b0006636c69636b730000000100000001"
GOLDEN_SUBSCRIPTIONS = [
    "0000" + TOPICS + USER_DATA,
    "0001" + TOPICS + USER_DATA + OWNED,
    "0002" + TOPICS + USER_DATA + OWNED + "00000007",
    "0003" + TOPICS + USER_DATA + OWNED + "00000007" + "00067261636b2d61",
]
GOLDEN_EMPTY_SUBSCRIPTIONS = [
    "00000000000100066f7264657273ffffffff",
    "00010000000100066f7264657273ffffffff00000000",
    "00020000000100066f7264657273ffffffff00000000ffffffff",
    "00030000000100066f7264657273ffffffff00000000ffffffffffff",
]
STICKY_USER_DATA = "000000020006636c69636b73000000010000000100066f726465727300000002000000020000000000000007"

names = st.text(st.characters(codec="utf-8"), max_size=8)
partitions = st.lists(st.tuples(names, st.integers(-(2**31), 2**31 - 1)), max_size=8)
user_data = st.none() | st.binary(max_size=8)


@pytest.mark.parametrize("version", range(NEWEST_VERSION + 1))
def test_subscriptions_are_kafkas_bytes(version: int):
    assert encode_subscription(SUBSCRIPTION, version).hex() == GOLDEN_SUBSCRIPTIONS[version]
    assert encode_subscription(Subscription(("orders",)), version).hex() == GOLDEN_EMPTY_SUBSCRIPTIONS[version]
    assert decode_subscription(bytes.fromhex(GOLDEN_EMPTY_SUBSCRIPTIONS[version])) == Subscription(("orders",))
    assert decode_subscription(bytes.fromhex(GOLDEN_SUBSCRIPTIONS[version])) == Subscription(
        ("clicks", "orders", "événements"),
        b"\x00\x01\xff",
        tuple(tps("clicks:1 orders:0 orders:2 orders:11")) if version >= 1 else (),
        7 if version >= 2 else -1,
        "rack-a" if version >= 3 else None,
    )


@pytest.mark.parametrize("version", range(NEWEST_VERSION + 1))
def test_assignments_are_kafkas_bytes(version: int):
    assignment = Assignment(tuple(tps("orders:2 orders:0 clicks:1 orders:11")), b"\x05")
    golden = f"{version:04x}" + ASSIGNED + "0000000105"
    assert encode_assignment(assignment, version).hex() == golden
    assert decode_assignment(bytes.fromhex(golden)) == Assignment(
        tuple(tps("orders:2 orders:0 orders:11 clicks:1")), b"\x05"
    )
    assert encode_assignment(Assignment(()), version).hex() == f"{version:04x}" + "00000000ffffffff"


def test_user_data_of_the_sticky_assignor():
    owned = tps("clicks:1 orders:2 orders:0")
    assert encode_sticky_user_data(owned, 7).hex() == STICKY_USER_DATA
    assert decode_sticky_user_data(bytes.fromhex(STICKY_USER_DATA)) == (tuple(owned), 7)
    # Version 0 has no generation.
    assert decode_sticky_user_data(bytes.fromhex(STICKY_USER_DATA)[:-4]) == (tuple(owned), -1)


def test_a_newer_version_is_read_as_the_newest_known():
    newer = struct.pack(">h", 100) + encode_subscription(SUBSCRIPTION)[2:] + b"\x00\x03bar"
    assert decode_subscription(newer) == decode_subscription(encode_subscription(SUBSCRIPTION))
    newer = struct.pack(">h", 100) + encode_assignment(Assignment((("t", 1),)))[2:] + b"\x00\x03foo"
    assert decode_assignment(newer) == Assignment((("t", 1),))


def test_an_empty_rack_is_none():
    assert decode_subscription(encode_subscription(Subscription(("t",), rack=""))).rack is None


@settings(max_examples=examples(500))
@given(
    st.builds(
        Subscription,
        st.lists(names, max_size=4).map(lambda topics: tuple(sorted(topics))),
        user_data,
        partitions.map(lambda owned: tuple(sorted(owned))),
        st.integers(-1, 2**31 - 1),
        st.none() | names.filter(bool),
    ),
    st.builds(Assignment, partitions.map(lambda assigned: tuple(sorted(assigned))), user_data),
)
def test_encoded_batches_are_decoded(subscription: Subscription, assignment: Assignment):
    assert decode_subscription(encode_subscription(subscription)) == subscription
    assert decode_assignment(encode_assignment(assignment)) == assignment
    user_data = encode_sticky_user_data(subscription.owned, subscription.generation)
    assert decode_sticky_user_data(user_data) == (subscription.owned, subscription.generation)


@settings(max_examples=examples(1_000))
@given(st.binary(max_size=80), st.integers(0, 200), st.integers(0, 200))
def test_bytes_that_are_none_give_one_error(noise: bytes, at: int, length: int):
    """Decode noise, alone and in the place of a part of a message."""
    whole = encode_subscription(SUBSCRIPTION), encode_assignment(Assignment(SUBSCRIPTION.owned, b"\x05"))
    for message in (noise, *(good[:at] + noise + good[at + length :] for good in whole)):
        for decode in (decode_subscription, decode_assignment, decode_sticky_user_data):
            with contextlib.suppress(InvalidRequestError):
                decode(message)


@pytest.mark.parametrize(
    ("decode", "message", "told"),
    [
        (decode_subscription, b"", "byte 0 has 2 bytes are announced where 0 are left"),
        (decode_subscription, b"\xff\xff", "byte 2 has version -1"),
        (decode_subscription, b"\0\0\xff\xff\xff\xff", "byte 6 has -1 elements where 0 bytes are left"),
        (decode_subscription, b"\0\0\0\0\0\1\xff\xff", "byte 8 has null where a name is needed"),
        (decode_subscription, b"\0\0\0\0\0\1\0\1\xff", "byte 9 has a name that is not UTF-8"),
        (decode_subscription, b"\0\0\0\0\0\1\xff\xfe", "byte 8 has -2 bytes are announced where 0 are left"),
        (
            decode_assignment,
            b"\0\0\0\0\0\1\0\1t\x7f\xff\xff\xff",
            "byte 13 has 2147483647 elements where 0 bytes are left",
        ),
    ],
)
def test_the_error_names_the_place(decode, message: bytes, told: str):
    with pytest.raises(InvalidRequestError, match="as Kafka's clients encode it: ") as raised:
        decode(message)
    assert str(raised.value).endswith(told)


def test_memory_is_bounded_by_the_length_of_the_message():
    for hostile in (
        b"\0\0" + struct.pack(">i", 2**31 - 1) + bytes(100),
        b"\0\1" + struct.pack(">iii", 0, -1, 2**30) + bytes(100),
        b"\0\1" + struct.pack(">iiihi", 0, -1, 1, 0, 2**29) + bytes(100),
        b"\0\0" + struct.pack(">ii", 0, 2**31 - 1) + bytes(100),
    ):
        tracemalloc.start()
        with pytest.raises(InvalidRequestError):
            decode_subscription(hostile)
        assert tracemalloc.get_traced_memory()[1] < 100_000
        tracemalloc.stop()


def test_texts_and_versions_that_cannot_be_encoded_are_refused():
    with pytest.raises(InvalidRequestError, match="Shorten 'tttt"):
        encode_subscription(Subscription(("t" * 40_000,)))
    with pytest.raises(ValueError, match="versions 0 to 3, not 4"):
        encode_assignment(Assignment(()), 4)
