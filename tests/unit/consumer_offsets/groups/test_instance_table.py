"""Instances in their records: the key has one spelling, and a start position goes with the commit of its partition."""

import msgspec
import pytest

from consumer_offsets.committed_offsets import TopicPartition
from consumer_offsets.effects import AppendRecord, Effect, Respond
from consumer_offsets.groups.instance_record import (
    Assigned,
    InstanceConfig,
    InstanceRecord,
    InstanceValue,
    Start,
    decode_instance,
)
from consumer_offsets.groups.instance_table import InstanceTable, PutInstance
from logstore.errors import CorruptionError, InstanceExistsError, UnknownInstanceError
from logstore.records.offset_record import InstanceKey, decode_key

KEY = InstanceKey("g", "c")
TOPIC = "00000000-0000-0000-0000-000000000001"
VALUE = InstanceValue(
    "id",
    InstanceConfig("json", "latest", auto_commit=True, fetch_min_bytes=1, request_timeout_ms=5, isolation=0),
    topics=["t"],
    seen={"t": (TOPIC, 2)},
    member_id="m",
    starts=[Start("t", 0, TOPIC, 7), Start("t", 1, TOPIC, 8)],
)


def put(table: InstanceTable, id: str | None, value: InstanceValue | None) -> tuple[list[InstanceRecord], object]:
    """Return the appended records and the answer."""
    effects: list[Effect] = list(table.put(PutInstance(1, KEY, id, value)))
    (answer,) = (effect.response for effect in effects if isinstance(effect, Respond))
    return [effect.record for effect in effects if isinstance(effect, AppendRecord)], answer


@pytest.mark.parametrize(
    "value", [VALUE, InstanceValue("i", VALUE.config, assigned=[Assigned("t", 1, TOPIC)]), None], ids=str
)
def test_a_record_reads_back(value):
    key, text = InstanceRecord(KEY, value).encoded()
    assert key == b'{"group":"g","instance":"c"}'
    assert decode_key(key) == KEY
    assert decode_instance(key, text) == value


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"id":1}', b"\xff"])
def test_records_that_no_coordinator_wrote_are_corrupt(text):
    with pytest.raises(CorruptionError, match="instance"):
        decode_instance(b"key", text)
    with pytest.raises(CorruptionError):
        decode_key(b'{"group":"g","instance":"c","topic":"t","partition":0}')


def test_a_name_has_one_instance_and_an_id_is_of_one_life():
    table = InstanceTable()
    assert put(table, "id", VALUE)[0] == []
    assert put(table, None, VALUE) == ([InstanceRecord(KEY, VALUE)], None)
    records, answer = put(table, None, msgspec.structs.replace(VALUE, id="other"))
    assert (records, type(answer)) == ([], InstanceExistsError)
    records, answer = put(table, "other", None)
    assert (records, type(answer)) == ([], UnknownInstanceError)
    assert table.require(KEY, "id") == VALUE
    assert put(table, "id", None) == ([InstanceRecord(KEY, None)], None)
    assert table.get(KEY) is None
    with pytest.raises(UnknownInstanceError):
        table.require(KEY, "id")


def test_a_commit_takes_the_starts_of_its_partitions_with_it():
    table = InstanceTable()
    table.replay(KEY, VALUE)
    assert list(table.committed(KEY, [TopicPartition("u", 0)])) == []
    (effect,) = table.committed(KEY, [TopicPartition("t", 0), TopicPartition("u", 0)])
    changed = msgspec.structs.replace(VALUE, starts=[Start("t", 1, TOPIC, 8)])
    assert effect == AppendRecord(InstanceRecord(KEY, changed))
    assert table.get(KEY) == changed
    assert list(table.committed(KEY, [TopicPartition("t", 0)])) == []
