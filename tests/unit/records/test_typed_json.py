"""Records of REST Proxy v3 are found in a stream however it is cut, read strictly, and made columns."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidRecordError, InvalidRequestError, RequestTooLargeError
from logstore.records.typed_json import (
    ObjectSplitter,
    TypedRecord,
    read_entries,
    read_entry,
    read_record,
    typed_columns,
)

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=3)), st.data())
def test_objects_are_found_however_the_stream_is_cut(objects: list[dict[str, object]], data: st.DataObject) -> None:
    texts = [json.dumps(found, ensure_ascii=data.draw(st.booleans())).encode() for found in objects]
    spaces = st.sampled_from([b"", b" ", b"\r\n", b"\n\n"])
    body = b"".join(data.draw(spaces) + text for text in texts) + data.draw(spaces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)))))
    splitter = ObjectSplitter(1_000_000)
    found = [
        text
        for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True)
        for text in splitter.feed(body[begin:end])
    ]
    splitter.finish()
    assert (found, splitter.error, splitter.held_bytes) == (texts, None, 0)


@pytest.mark.parametrize(
    ("body", "found", "error"),
    [
        (b'{"a":1} ,{"b":2}', [b'{"a":1}'], InvalidRequestError),
        (b'[{"a":1}]', [], InvalidRequestError),
        (b'{"a":1}}', [b'{"a":1}'], InvalidRequestError),
        (b'{"a":"' + b"x" * 100, [], RequestTooLargeError),
        (b'{"a":"' + b"x" * 100 + b'"}{}', [b"{}"], RequestTooLargeError),
        (b"{" + b"[" * 60, [], None),
        (b'{}{"a', [b"{}"], InvalidRequestError),
    ],
)
def test_a_stream_ends_where_no_record_begins(body: bytes, found: list[bytes], error: type[Exception] | None) -> None:
    splitter = ObjectSplitter(100)
    assert splitter.feed(body) == found
    if error is not InvalidRequestError or splitter.error is not None:
        assert splitter.error is None if error is None else isinstance(splitter.error, error)
        assert not splitter.error or splitter.feed(b"{}") == []
    splitter.finish()
    assert isinstance(splitter.error, error or InvalidRequestError)


def test_depth_is_bounded() -> None:
    splitter = ObjectSplitter(1_000_000)
    assert splitter.feed(b'{"a":' + b"[" * 1000) == []
    assert "nested" in str(splitter.error)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_a_record_with_everything() -> None:
    text = json.dumps(
        {
            "partition_id": 1,
            "headers": [{"name": "h", "value": b64(b"x")}, {"name": "n", "value": None}, {"name": "m"}],
            "key": {"type": "BINARY", "data": b64(b"\x00k")},
            "value": {"type": "JSON", "data": {"a": [1, None]}},
            "timestamp": "2021-02-05T19:14:42.5+01:00",
        }
    ).encode()
    assert read_record(text) == TypedRecord(
        1, 1612548882500, b"\x00k", b'{"a": [1, null]}', [("h", b"x"), ("n", None), ("m", None)], "BINARY", "JSON"
    )


@pytest.mark.parametrize(
    ("data", "stored"),
    [
        ('{"type":"STRING","data":"\\u00e9\\n"}', "é\n".encode()),
        ('{"type":"STRING","data":""}', b""),
        ('{"type":"JSON","data":0}', b"0"),
        ('{"type":"JSON","data":false}', b"false"),
        ('{"type":"JSON","data":""}', b'""'),
        ('{"type":"JSON","data":12345678901234567890.10}', b"12345678901234567890.10"),
        ('{"type":"JSON","data":null}', None),
        ('{"type":"JSON"}', None),
        ('{"type":"BINARY","data":""}', b""),
        ('{"data":"AAE="}', b"\x00\x01"),
        ("null", None),
    ],
)
def test_data_is_stored_by_its_type(data: str, stored: bytes | None) -> None:
    assert read_record(f'{{"value":{data}}}'.encode()).value == stored
    assert read_record(f'{{"key":{data}}}'.encode()).key == stored


def test_a_json_key_is_its_text_where_the_topic_says_so() -> None:
    assert read_record(b'{"key":{"type":"JSON","data":"k"}}', string_keys=True).key == b"k"
    assert read_record(b'{"key":{"type":"JSON","data":"k"}}').key == b'"k"'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"value":{"type":"AVRO","data":1}}', "'AVRO'"),
        ('{"value":{"type":"JSON","data":1,"schema_id":1}}', "schema registry"),
        ('{"value":{"type":"JSON","data":1,"data":2}}', "field twice"),
        ('{"value":{"type":"JSON"},"value":{"type":"JSON"}}', "field twice"),
        ('{"valu":{"type":"JSON"}}', "valu"),
        ('{"value":{"type":"BINARY","data":"AA"}}', "base64"),
        ('{"value":{"type":"BINARY","data":"AB=="}}', "base64"),
        ('{"value":{"type":"STRING","data":1}}', "no JSON string"),
        ('{"value":{"type":7,"data":1}}', "type of the value"),
        ('{"value":1}', "The value cannot be read"),
        ('{"partition_id":-1}', "partition_id"),
        ('{"partition_id":2147483648}', "partition_id"),
        ('{"partition_id":"1"}', "partition_id"),
        ('{"timestamp":"2021-02-05T19:14:42"}', "timestamp"),
        ('{"timestamp":"yesterday"}', "timestamp"),
        ('{"timestamp":-1}', "timestamp"),
        ('{"headers":{}}', "headers"),
        ('{"headers":[{"name":"h","value":"?"}]}', "value of a header"),
        ('{"headers":[{"value":""}]}', "name of a header"),
        ('{"value":{"type":"JSON","data":NaN}}', "cannot be read"),
        ('{"value":\udce9}', "UTF-8"),
    ],
)
def test_bad_records_are_refused_with_what_to_change(text: str, says: str) -> None:
    with pytest.raises(InvalidRecordError, match=says):
        read_record(text.encode(errors="surrogateescape"))


def test_entries_of_a_batch() -> None:
    body = b'{"entries":[{"id":"a","value":{"type":"JSON","data":1}},{"id":"b"}]}'
    (first, text), (second, _) = read_entries(body)
    assert (first, second, read_entry(text).value) == ("a", "b", b"1")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"entries":[{"value":null}]}',
        b'{"entries":[{"id":1}]}',
        b'{"entries":[{"id":""}]}',
        b'{"entries":[{"id":"' + b"x" * 81 + b'"}]}',
        b'{"entries":[{"id":"a"},{"id":"a"}]}',
        b'{"entries":[],"more":1}',
        b'{"entries":[{"id":"\xff"}]}',
    ],
)
def test_batches_without_ids_to_answer_by_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        read_entries(body)


def test_columns() -> None:
    records = [
        read_record(b'{"partition_id":3,"timestamp":5,"headers":[{"name":"h","value":null}]}'),
        read_record(b'{"key":{"type":"STRING","data":"k"},"value":{"type":"STRING","data":"v"},"headers":[]}'),
        read_record(b"{}"),
    ]
    decoded = typed_columns(records)
    assert decoded.partitions is not None
    assert decoded.partitions.tolist() == [3, -1, -1]
    assert decoded.batch.column("key").to_pylist() == [None, b"k", None]
    assert decoded.batch.column("headers").to_pylist() == [[{"key": "h", "value": None}], [], None]
    assert typed_columns(records[1:]).partitions is None
    assert [record.num_bytes for record in records] == [1, 2, 0]
