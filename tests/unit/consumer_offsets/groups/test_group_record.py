"""Records of groups have one spelling, and no field of an offset."""

import uuid

import pytest

from consumer_offsets.groups.group_record import (
    ClassicGroupValue,
    ClassicMemberValue,
    ConsumerGroupValue,
    ConsumerMemberValue,
    GroupRecord,
    Tombstone,
    decode_group_record,
)
from logstore.errors import CorruptionError
from logstore.records.offset_record import GroupKey, OffsetKey, decode_key

TOPIC = uuid.UUID(int=1)
CLASSIC = ClassicGroupValue(
    3,
    "Stable",
    1_000,
    "consumer",
    "range",
    "m",
    [ClassicMemberValue("m", None, "c", "/h", 6_000, 60_000, [("range", b"\xff\0")], b"\xfe")],
)
CONSUMER = ConsumerGroupValue(
    4,
    3,
    0,
    {"t": (TOPIC, 2)},
    {"t.*": ["t"]},
    {TOPIC: "t"},
    [
        ConsumerMemberValue(
            "m",
            "i",
            None,
            "c",
            "/h",
            60_000,
            ["t"],
            "t.*",
            "uniform",
            3,
            2,
            "unrevoked_partitions",
            {TOPIC: [0]},
            {TOPIC: [1]},
            {TOPIC: [0]},
        )
    ],
)


@pytest.mark.parametrize("record", [GroupRecord("g", CLASSIC), GroupRecord("é\n", CONSUMER), Tombstone("g")])
def test_a_record_is_read_back(record):
    assert decode_group_record(*record.encoded()) == record


def test_the_key_is_spelt_in_one_way_for_both_kinds():
    """Use the same key, so that compaction and a change of kind leave one record of a group."""
    keys = {record.encoded()[0] for record in (GroupRecord("g", CLASSIC), GroupRecord("g", CONSUMER))}
    assert keys == {b'{"group":"g"}'}
    assert Tombstone("g").encoded() == (b'{"group":"g"}', None)


def test_the_value_of_a_classic_group():
    assert GroupRecord("g", CLASSIC).encoded()[1] == (
        b'{"kind":"classic","generation":3,"state":"Stable","state_timestamp":1000,"protocol_type":"consumer",'
        b'"protocol":"range","leader":"m","members":[{"member_id":"m","instance_id":null,"client_id":"c",'
        b'"client_host":"/h","session_timeout_ms":6000,"rebalance_timeout_ms":60000,"protocols":[["range","/wA="]],'
        b'"assignment":"/g=="}]}'
    )


def test_keys_of_groups_and_of_offsets_are_told_apart():
    assert decode_key(GroupRecord("g", CLASSIC).encoded()[0]) == GroupKey("g")
    assert decode_key(b'{"group":"g","topic":"t","partition":0}') == OffsetKey("g", "t", 0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b'{"group":"g","topic":"t","partition":0}', None),
        (b'{"group":"g"}', b"{}"),
        (b'{"group":"g"}', b'{"kind":"share"}'),
        (b"\xff", None),
        (None, None),
    ],
)
def test_a_record_that_no_coordinator_wrote_is_refused(key, value):
    with pytest.raises(CorruptionError):
        decode_group_record(key, value)


def test_fields_that_a_later_release_adds_are_passed_over():
    value = GroupRecord("g", CLASSIC).encoded()[1]
    assert decode_group_record(b'{"group":"g"}', value[:-1] + b',"later":1}') == GroupRecord("g", CLASSIC)
