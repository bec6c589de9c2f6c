"""Bytes that are no messages give one class of error, in bounded time and memory."""

import contextlib
import random
import struct
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import MalformedMessageError
from logstore.kafka_protocol import messages
from logstore.kafka_protocol.decoders import decoder
from logstore.kafka_protocol.definitions import MessageDefinition
from logstore.kafka_protocol.encoders import encoder
from logstore.kafka_protocol.varints import varint
from logstore.limits import KAFKA_MESSAGE_ELEMENTS_MAX, MIB
from tests.support.examples import examples
from tests.support.kafka_messages import (
    advertised_messages_and_versions,
    joined,
    messages_and_versions,
    name_of,
    random_message,
)

ALL = list(messages_and_versions())
SERVED = list(advertised_messages_and_versions())
#: These lengths are wrong: null, negative, or as large as 16, 32 or 35 bits can be.
LENGTHS = [b"\x00", b"\xff", b"\x7f\xff", b"\xff\xff", b"\x80\x00", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"]
LENGTHS += [b"\x80\x00\x00\x00", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\x80" * 9]


def mutated(frame: bytes, chance: random.Random) -> bytes:
    """Return ``frame`` with some bytes changed, left out or doubled, or with a wrong length in it."""
    changed = bytearray(frame)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randint(0, len(changed))
        match chance.randint(0, 4):
            case 0:
                changed[at : at + 1] = chance.randbytes(1)
            case 1:
                del changed[at:]
            case 2:
                del changed[at : at + chance.randint(1, 9)]
            case 3:
                length = chance.choice(LENGTHS)
                changed[at : at + len(length)] = length
            case _:
                changed[at:at] = changed[max(0, at - 20) : at]
    return bytes(changed)


def decoded_or_malformed(definition: MessageDefinition, version: int, frame: bytes) -> bool:
    """Return whether ``frame`` is a message."""
    with contextlib.suppress(MalformedMessageError):
        decoder(definition.name, version)(frame)
        return True
    return False


@pytest.mark.parametrize("definition", {d.name: d for d, _ in SERVED}.values(), ids=name_of)
def test_mutated_messages_are_messages_or_malformed(definition: MessageDefinition):
    versions = [version for other, version in SERVED if other is definition]
    chance = random.Random(definition.name)
    outcomes = set()
    for version in versions:
        for _ in range(examples(100)):
            written = joined(
                encoder(definition.name, version)(random_message(definition, version, chance), bytearray())
            )
            outcomes.add(decoded_or_malformed(definition, version, mutated(written, chance)))
    assert False in outcomes


@given(which=st.sampled_from(ALL), frame=st.binary(max_size=300))
def test_any_bytes_are_a_message_or_malformed(which, frame: bytes):
    decoded_or_malformed(*which, frame)


@pytest.mark.parametrize(("definition", "version"), SERVED[:: len(SERVED) // 60], ids=name_of)
def test_a_message_that_is_cut_anywhere_is_malformed(definition: MessageDefinition, version: int):
    message = random_message(definition, version, random.Random(5))
    written = joined(encoder(definition.name, version)(message, bytearray()))
    for end in range(0, len(written), max(1, len(written) // 200)):
        assert not decoded_or_malformed(definition, version, written[:end])


@pytest.mark.parametrize("count", [1 << 20, (1 << 31) - 1])
def test_the_number_of_elements_is_not_believed(count: int):
    for version, frame in (
        (1, struct.pack(">i", count)),
        (9, varint(count + 1)),
        (9, b"\x01\x00\x00\x00" + varint(count)),
    ):
        tracemalloc.start()
        with pytest.raises(MalformedMessageError, match=r"elements|tagged fields"):
            decoder("MetadataRequest", version)(frame + b"\x00" * 100)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < MIB


@pytest.mark.parametrize("array", ["[]int32", "[]string"])
def test_arrays_of_single_values_are_bounded_by_the_bytes_that_are_left(array: str):
    # OffsetFetch v1 has group "", one topic with name "", then its partitions; DescribeGroups v0 has only its groups.
    name, head = ("OffsetFetchRequest", "0000 00000001 0000") if array == "[]int32" else ("DescribeGroupsRequest", "")
    for count in (101, 0x7FFFFFFF):
        frame = bytes.fromhex(head) + struct.pack(">i", count) + bytes(400 if array == "[]int32" else 200)
        with pytest.raises(MalformedMessageError):
            decoder(name, 1 if array == "[]int32" else 0)(frame)


def test_an_error_names_message_and_version():
    with pytest.raises(MalformedMessageError, match=r"^FetchRequest v12 cannot be read: "):
        decoder("FetchRequest", 12)(b"")


def test_negative_lengths_are_null_and_null_only_where_it_may_be():
    for length in (-1, -2, -0x8000):
        with pytest.raises(MalformedMessageError, match=r"HeartbeatRequest\.GroupId is null"):
            decoder("HeartbeatRequest", 0)(struct.pack(">h", length) + bytes(20))
    for length in (-1, -2, -0x8000_0000):
        assert decoder("MetadataRequest", 1)(struct.pack(">i", length)).topics is None
        with pytest.raises(MalformedMessageError, match=r"MetadataRequest\.Topics is null"):
            decoder("MetadataRequest", 0)(struct.pack(">i", length))


def test_a_string_is_as_long_as_kafka_takes_it_and_utf_8():
    def heartbeat(group: bytes) -> bytes:
        return varint(len(group) + 1) + group + b"\x00\x00\x00\x01\x01\x00\x00"

    assert decoder("HeartbeatRequest", 4)(heartbeat(b"g" * 0x7FFF)).group_id == "g" * 0x7FFF
    with pytest.raises(MalformedMessageError, match="has 32768 bytes; a string has at most 32767"):
        decoder("HeartbeatRequest", 4)(heartbeat(b"g" * 0x8000))
    with pytest.raises(MalformedMessageError, match="utf-8"):
        decoder("HeartbeatRequest", 4)(heartbeat(b"\xff\xfe"))


def test_a_tagged_field_has_the_size_that_it_says():
    def fetch(tagged: bytes) -> bytes:
        return encoder("FetchRequest", 12)(messages.FetchRequest(), bytearray())[0][:-1] + tagged

    read = decoder("FetchRequest", 12)
    assert read(fetch(b"\x01\x00\x02\x02a")).cluster_id == "a"
    for size in (0, 1, 3):
        with pytest.raises(MalformedMessageError, match="ClusterId does not have the"):
            read(fetch(bytes([1, 0, size]) + b"\x02aaaa"))
    with pytest.raises(MalformedMessageError, match="goes beyond the end"):
        read(fetch(b"\x01\x00\x20\x02a"))
    # A tagged field that the version does not know is skipped if it is whole.
    assert read(fetch(b"\x02\x00\x02\x02a\x63\x03abc")).cluster_id == "a"
    with pytest.raises(MalformedMessageError, match="goes beyond the end"):
        read(fetch(b"\x01\x63\x04abc"))
    # This structure has no known tagged fields.
    heartbeat = encoder("HeartbeatRequest", 4)(messages.HeartbeatRequest(), bytearray())[0][:-1]
    assert decoder("HeartbeatRequest", 4)(heartbeat + b"\x01\x63\x03abc").group_id == ""
    with pytest.raises(MalformedMessageError, match="goes beyond the end"):
        decoder("HeartbeatRequest", 4)(heartbeat + b"\x01\x63\x04abc")


@pytest.mark.long
def test_a_message_of_very_many_elements_is_refused_and_one_below_is_read_in_bounded_memory():
    def topics(count: int) -> bytes:
        # Each topic is as small as possible: an empty name, no partitions, no tagged fields.
        return (
            encoder("FetchRequest", 12)(messages.FetchRequest(), bytearray())[0][:-4]
            + varint(count + 1)
            + b"\x01\x01\x00" * count
            + b"\x01\x01\x00"
        )

    frame = topics(KAFKA_MESSAGE_ELEMENTS_MAX)
    tracemalloc.start()
    request = decoder("FetchRequest", 12)(frame)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(request.topics) == KAFKA_MESSAGE_ELEMENTS_MAX
    assert peak < 250 * KAFKA_MESSAGE_ELEMENTS_MAX
    with pytest.raises(MalformedMessageError, match="more than the message has room for"):
        decoder("FetchRequest", 12)(topics(KAFKA_MESSAGE_ELEMENTS_MAX + 1))


@pytest.mark.parametrize("fill", [0, 1, 2, 3, 0x10, 0x7F, 0x81, 0xFF])
def test_large_frames_of_one_byte_take_bounded_time_and_memory(fill: int):
    frame = bytes([fill]) * (4 * MIB)
    for definition, version in SERVED[::7]:
        began = time.process_time()
        decoded_or_malformed(definition, version, frame)
        assert time.process_time() - began < 5
    # These have the most elements for their bytes.
    for name, version in (
        ("FetchRequest", 12),
        ("MetadataResponse", 13),
        ("ProduceResponse", 9),
        ("OffsetFetchRequest", 8),
    ):
        tracemalloc.start()
        with contextlib.suppress(MalformedMessageError):
            decoder(name, version)(frame)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 100 * MIB
