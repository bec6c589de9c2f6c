"""Records of ``__consumer_offsets`` in Kafka's schemas, byte for byte; Kafka's tools read them in another test."""

import struct
import uuid

import msgspec

from consumer_offsets.groups.group_record import (
    ClassicGroupValue,
    ClassicMemberValue,
    ConsumerGroupValue,
    GroupRecord,
    Tombstone,
)
from consumer_offsets.groups.instance_record import InstanceKey
from consumer_offsets.kafka_records import kafka_record
from logstore.records.offset_record import OffsetCommit, OffsetKey, OffsetRecord


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


def test_the_commit_of_an_offset_and_its_deletion():
    key = OffsetKey("grüppe", "t", 7)
    commit = OffsetCommit(2**40, 5, "Ω", 3, str(uuid.uuid4()), 1_700_000_000_123)
    kafkas_key = struct.pack(">h", 1) + text("grüppe") + text("t") + struct.pack(">i", 7)
    kafkas_value = struct.pack(">hqi", 3, 2**40, 5) + text("Ω") + struct.pack(">q", 1_700_000_000_123)
    assert kafka_record(*OffsetRecord(key, commit).encoded()) == (kafkas_key, kafkas_value)
    assert kafka_record(*OffsetRecord(key, None).encoded()) == (kafkas_key, None)


def test_a_classic_group():
    member = ClassicMemberValue("m-1", None, "c", "/h", 10_000, 60_000, [("a", b"x"), ("range", b"sub")], b"assigned")
    value = ClassicGroupValue(4, "Stable", 1_700_000_000_000, "consumer", "range", "m-1", [member])
    expected = struct.pack(">h", 3) + text("consumer") + struct.pack(">i", 4) + text("range") + text("m-1")
    expected += struct.pack(">qi", 1_700_000_000_000, 1) + text("m-1") + struct.pack(">h", -1) + text("c") + text("/h")
    expected += struct.pack(">ii", 60_000, 10_000) + struct.pack(">i", 3) + b"sub" + struct.pack(">i", 8) + b"assigned"
    assert kafka_record(*GroupRecord("g", value).encoded()) == (struct.pack(">h", 2) + text("g"), expected)
    empty = ClassicGroupValue(5, "Empty", 7, "consumer", None, None, [])
    found = kafka_record(*GroupRecord("g", empty).encoded())
    assert found is not None
    nulls = struct.pack(">hh", -1, -1)
    expected = struct.pack(">h", 3) + text("consumer") + struct.pack(">i", 5) + nulls + struct.pack(">qi", 7, 0)
    assert found[1] == expected


def test_a_consumer_group_is_its_epoch():
    value = ConsumerGroupValue(9, 8, 0, {}, {}, {}, [])
    found = kafka_record(*GroupRecord("g", value).encoded())
    assert found == (struct.pack(">h", 3) + text("g"), struct.pack(">hi", 0, 9) + b"\0")
    assert kafka_record(*Tombstone("g").encoded()) == (struct.pack(">h", 2) + text("g"), None)


def test_records_without_a_form_of_kafkas_are_left_out():
    assert kafka_record(msgspec.json.encode(InstanceKey("g", "i")), b"{}") is None
    assert kafka_record(b"no json", b"{}") is None
    assert kafka_record(None, None) is None
    long = OffsetKey("g" * 40_000, "t", 0)
    assert kafka_record(*OffsetRecord(long, None).encoded()) is None
