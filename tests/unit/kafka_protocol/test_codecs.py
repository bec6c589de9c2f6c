"""Codecs write and read every message of Kafka in every version; some tests cover omitted and unmoved fields."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import MalformedMessageError
from logstore.kafka_protocol import messages
from logstore.kafka_protocol.decoders import decoder
from logstore.kafka_protocol.definitions import MessageDefinition
from logstore.kafka_protocol.encoders import encoder
from logstore.kafka_protocol.varints import read_varint, varint
from tests.support.kafka_messages import joined, messages_and_versions, name_of, plain, random_message

ALL = list(messages_and_versions())
RECORDS = bytes(range(256)) * 40


def encoded(name: str, version: int, message: object) -> bytes:
    return joined(encoder(name, version)(message, bytearray()))


@pytest.mark.parametrize("definition", {d.name: d for d, _ in ALL}.values(), ids=name_of)
def test_every_version_of_a_message_is_decoded_to_what_was_encoded(definition: MessageDefinition):
    chance = random.Random(definition.name)
    for version in range(definition.versions.first, definition.versions.last + 1):
        for message in (random_message(definition, version, chance) for _ in range(3)):
            written = encoded(definition.name, version, message)
            for frame in (written, bytearray(written), memoryview(written)):
                assert plain(decoder(definition.name, version)(frame)) == plain(message)


@given(which=st.sampled_from(ALL), chance=st.randoms(use_true_random=False), before=st.binary(max_size=9))
def test_a_message_is_where_its_position_says_whatever_follows(which, chance: random.Random, before: bytes):
    definition, version = which
    message = random_message(definition, version, chance)
    written = joined(encoder(definition.name, version)(message, bytearray(before)))
    assert written.startswith(before)
    assert plain(decoder(definition.name, version)(written + b"\x01\x02\x03", len(before))) == plain(message)


def test_fields_that_a_version_has_not_are_left_out_and_get_their_default():
    request = messages.FetchRequest(session_id=7, rack_id="here", min_bytes=2)
    old = decoder("FetchRequest", 4)(encoded("FetchRequest", 4, request))
    assert (old.min_bytes, old.session_id, old.rack_id) == (2, 0, "")
    new = decoder("FetchRequest", 11)(encoded("FetchRequest", 11, request))
    assert (new.min_bytes, new.session_id, new.rack_id) == (2, 7, "here")


def test_a_tagged_field_with_its_default_is_left_out():
    partition = messages.FetchResponse.PartitionData
    epoch = messages.FetchResponse.EpochEndOffset
    sizes = [
        len(encoded("FetchResponse", 12, messages.FetchResponse(responses=[response])))
        for response in (
            messages.FetchResponse.FetchableTopicResponse(partitions=[partition()]),
            # This equals the default, but is not the shared instance.
            messages.FetchResponse.FetchableTopicResponse(partitions=[partition(diverging_epoch=epoch(epoch=-1))]),
            messages.FetchResponse.FetchableTopicResponse(partitions=[partition(diverging_epoch=epoch(epoch=5))]),
        )
    ]
    assert sizes[0] == sizes[1] == sizes[2] - 15


def test_tagged_fields_are_in_the_order_of_their_tags():
    response = messages.ApiVersionsResponse(zk_migration_ready=True, finalized_features_epoch=3)
    # These are the error code, no APIs, the throttle time and two tagged fields.
    assert encoded("ApiVersionsResponse", 3, response).hex(" ", 1) == (
        "00 00 01 00 00 00 00 02 01 08 00 00 00 00 00 00 00 03 03 01 01"
    )


def test_records_are_a_slice_of_the_frame():
    request = messages.ProduceRequest(
        topic_data=[
            messages.ProduceRequest.TopicProduceData(
                name="t", partition_data=[messages.ProduceRequest.PartitionProduceData(index=3, records=RECORDS)]
            )
        ]
    )
    frame = bytearray(encoded("ProduceRequest", 9, request))
    (topic,) = decoder("ProduceRequest", 9)(frame).topic_data
    (partition,) = topic.partition_data
    assert isinstance(partition.records, memoryview)
    assert partition.records == RECORDS
    frame[frame.index(RECORDS)] ^= 0xFF
    assert partition.records[0] == RECORDS[0] ^ 0xFF


def test_bytes_outlive_the_frame():
    request = messages.SyncGroupRequest(
        assignments=[messages.SyncGroupRequest.SyncGroupRequestAssignment(member_id="m", assignment=b"assigned")]
    )
    frame = bytearray(encoded("SyncGroupRequest", 5, request))
    (assignment,) = decoder("SyncGroupRequest", 5)(memoryview(frame)).assignments
    frame[:] = bytes(len(frame))
    assert assignment.assignment == b"assigned"


def test_large_records_are_not_copied_and_small_ones_are_no_buffer_of_their_own():
    first, second = memoryview(RECORDS), memoryview(RECORDS)[:5000]
    partitions = [
        messages.FetchResponse.PartitionData(partition_index=0, records=[first, second]),
        messages.FetchResponse.PartitionData(partition_index=1, records=[b"sm", b"all"]),
        messages.FetchResponse.PartitionData(partition_index=2, records=b"small"),
        messages.FetchResponse.PartitionData(partition_index=3, records=None),
        messages.FetchResponse.PartitionData(partition_index=4, records=RECORDS),
    ]
    response = messages.FetchResponse(responses=[messages.FetchResponse.FetchableTopicResponse(partitions=partitions)])
    head = bytearray(b"head")
    buffers = encoder("FetchResponse", 12)(response, head)
    assert buffers[0] is head
    assert [buffer for buffer in buffers if not isinstance(buffer, bytearray)] == [first, second, RECORDS]
    assert buffers[1] is first
    assert len(buffers) == 6
    (topic,) = decoder("FetchResponse", 12)(joined(buffers), 4).responses
    assert [partition.records for partition in topic.partitions] == [
        RECORDS + RECORDS[:5000],
        b"small",
        b"small",
        None,
        RECORDS,
    ]


def test_a_value_that_its_field_does_not_take_is_an_error_of_the_program():
    for response in (
        messages.HeartbeatResponse(error_code=40_000),
        messages.HeartbeatResponse(throttle_time_ms=None),
        messages.HeartbeatResponse(error_code="no"),
    ):
        with pytest.raises((struct.error, TypeError)):
            encoded("HeartbeatResponse", 4, response)
    with pytest.raises((AttributeError, TypeError)):
        encoded("HeartbeatRequest", 4, messages.HeartbeatRequest(group_id=None))


def test_a_version_that_kafka_has_not_has_no_codec():
    with pytest.raises(AssertionError, match="FetchRequest has no version 19"):
        decoder("FetchRequest", 19)
    with pytest.raises(AssertionError, match="FetchRequest has no version 3"):
        encoder("FetchRequest", 3)


@pytest.mark.parametrize("bits", range(35))
def test_a_variable_length_integer_is_read_as_it_was_written(bits: int):
    for value in (1 << bits, (1 << bits) - 1, (1 << bits + 1) - 1):
        assert read_varint(b"\xff" + varint(value) + b"\x01", 1) == (value, 1 + len(varint(value)))
        assert len(varint(value)) == max(1, -(-value.bit_length() // 7))


def test_a_variable_length_integer_has_five_bytes_at_most():
    with pytest.raises(MalformedMessageError, match="more than 5"):
        read_varint(b"\x80" * 5 + b"\x00", 0)
