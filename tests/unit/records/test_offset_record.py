import json
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import CorruptionError
from logstore.records.offset_record import (
    OFFSET_COLUMNS,
    GroupKey,
    OffsetCommit,
    OffsetKey,
    decode_key,
    decode_offset_record,
    encode_offset_records,
    offset_columns,
)
from logstore.records.schema import WIRE_SCHEMA

# JSON can carry any text except lone surrogates, and no input from outside gets past with one.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
keys = st.builds(OffsetKey, group=texts, topic=texts, partition=st.integers(0, 2**31 - 1))
commits = st.builds(
    OffsetCommit,
    offset=st.integers(0, 2**63 - 1),
    leader_epoch=st.integers(-1, 2**31 - 1),
    metadata=texts,
    generation=st.integers(-1, 2**31 - 1),
    topic_id=st.uuids().map(str),
    commit_timestamp=st.integers(0, 2**53),
)
some_records = st.lists(st.tuples(keys, st.none() | commits), max_size=8)


def batch(keys: list[bytes], values: list[bytes | None]) -> pa.RecordBatch:
    nothing = [None] * len(keys)
    return pa.RecordBatch.from_pydict(
        {"timestamp": nothing, "key": keys, "value": values, "headers": nothing}, schema=WIRE_SCHEMA
    )


@given(some_records)
def test_records_read_back_and_their_columns_say_the_same(records):
    encoded = encode_offset_records(records)
    assert encoded.schema == WIRE_SCHEMA
    texts = zip(encoded["key"].to_pylist(), encoded["value"].to_pylist(), strict=True)
    assert [decode_offset_record(key, value) for key, value in texts] == records

    columns = offset_columns(encoded)
    table = pa.RecordBatch.from_arrays(columns, schema=OFFSET_COLUMNS)
    table.validate(full=True)
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        (
            key.group,
            key.topic,
            key.partition,
            *((commit.offset, commit.leader_epoch, commit.metadata, commit.generation) if commit else [None] * 4),
        )
        for key, commit in records
    ]


def test_the_spelling_is_part_of_the_format():
    commit = OffsetCommit(7, 2, 'a "b"', -1, str(UUID(int=1)), 1_700_000_000_000)
    encoded = encode_offset_records([(OffsetKey("g", "t", 3), commit)])
    assert encoded["key"][0].as_py() == b'{"group":"g","topic":"t","partition":3}'
    assert json.loads(encoded["value"][0].as_py()) == {
        "offset": 7,
        "leader_epoch": 2,
        "metadata": 'a "b"',
        "generation": -1,
        "topic_id": "00000000-0000-0000-0000-000000000001",
        "commit_timestamp": 1_700_000_000_000,
    }


def test_only_the_name_in_the_metadata_of_a_group_is_a_column():
    assert decode_key(b'{"group":"g"}') == GroupKey("g")
    assert [column[0].as_py() for column in offset_columns(batch([b'{"group":"g"}'], [b'{"state":1}']))] == [
        "g",
        *[None] * 6,
    ]
    with pytest.raises(CorruptionError, match="about no offset"):
        decode_offset_record(b'{"group":"g"}', None)


def test_fields_of_a_later_release_are_passed_over():
    commit = OffsetCommit(7, 2, "", -1, str(uuid4()), 5)
    encoded = encode_offset_records([(OffsetKey("g", "t", 3), commit)])
    key, value = (
        json.dumps({"new": [1], **json.loads(encoded[name][0].as_py()), "more": {"x": 1}}).encode()
        for name in ("key", "value")
    )
    assert decode_offset_record(key, value) == (OffsetKey("g", "t", 3), commit)
    assert [column[0].as_py() for column in offset_columns(batch([key], [value]))] == ["g", "t", 3, 7, 2, "", -1]


@pytest.mark.parametrize(
    "text", [b"", b"{", b"null", b"1", b"[]", b"\xff", b'{"group":"g","topic":"t"}', b'{"offset":"7"}']
)
def test_a_record_that_no_coordinator_wrote_is_corruption(text):
    with pytest.raises(CorruptionError):
        decode_offset_record(text, None)
    with pytest.raises(CorruptionError):
        decode_offset_record(b'{"group":"g","topic":"t","partition":3}', text)


@pytest.mark.parametrize("text", [b"", b"{", b"null", b"[]", b'{"offset":"7"}', b"{}{}", b"{}\n{}"])
def test_columns_of_a_record_that_no_coordinator_wrote_are_corruption(text):
    key = b'{"group":"g","topic":"t","partition":3}'
    with pytest.raises(CorruptionError):
        offset_columns(batch([key, key], [text, None]))
