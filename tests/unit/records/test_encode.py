import base64
import json
import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import UnreadableRecordError
from logstore.records import encode
from logstore.records.encode import encode_arrow_stream
from logstore.records.log_batches import WireBatch, to_log_batch
from logstore.records.schema import LOG_SCHEMA
from tests.support.records import Row, headers_lists, rows, timestamps, wire_batch, wire_rows

_JSON_TEXT = st.sampled_from(["null", "1e400", '"a\\u00e9"', '"é%s%%"', ' {"a" : 1} ', "[1,\n2]", "-0", "9" * 400])
_JSON_ROWS = st.builds(
    Row,
    timestamp=timestamps,
    key=st.none() | _JSON_TEXT.map(str.encode),
    value=st.none() | _JSON_TEXT.map(str.encode),
    headers=st.none() | headers_lists,
)


def encode_json(*given: object, **options: bool) -> bytes:
    return b"".join(encode.encode_json(*given, **options))


def encode_readable(*given: object, **options: bool) -> bytes:
    return b"".join(encode.encode_readable(*given, **options))


def encode_binary(*given: object) -> bytes:
    return b"".join(encode.encode_binary(*given))


def _log(records: list[Row], base_offset: int = 10) -> pa.Table:
    """Return the records as a table of two batches."""
    half = len(records) // 2
    parts = ((records[:half], base_offset), (records[half:], base_offset + half))
    batches = [to_log_batch([WireBatch(wire_batch(rows), base, 1_000, log_append_time=False)]) for rows, base in parts]
    return pa.Table.from_batches(batches)


def _expected(row: Row, offset: int, key: object, value: object) -> dict[str, object]:
    record = {"topic": "a%d", "key": key, "value": value, "partition": 3, "offset": offset, "timestamp": row.timestamp}
    if row.headers:
        record["headers"] = [
            {"key": name, "value": None if data is None else base64.b64encode(data).decode()}
            for name, data in row.headers
        ]
    return record


@given(st.lists(_JSON_ROWS, max_size=8), st.integers(0, 4))
@settings(deadline=None)
def test_json_rows(records, skip):
    body = encode_json(_log(records).slice(skip), "a%d", 3)
    expected = [
        _expected(row, 10 + skip + i, json.loads(row.key or b"null"), json.loads(row.value or b"null"))
        for i, row in enumerate(records[skip:])
    ]
    assert json.loads(body) == expected
    for row in records[skip:]:
        assert (row.key or b"null") in body
        assert (row.value or b"null") in body


@given(st.lists(rows, max_size=8))
@settings(deadline=None)
def test_base64_rows(records):
    batch = _log(records)
    body = encode_binary(batch, "a%d", 3)
    expected = [
        _expected(
            row, 10 + i, *(data if data is None else base64.b64encode(data).decode() for data in (row.key, row.value))
        )
        for i, row in enumerate(wire_rows(batch))
    ]
    assert json.loads(body) == expected


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"abc",
        b"1,2",
        b'1,"offset":0',
        b"1}",
        b'"',
        b"\xff",
        b'"\xff"',
        b"[" * 100_000,
        b"nul",
        b"NaN",
        b"\0",
    ],
)
@pytest.mark.parametrize("column", ["key", "value"])
def test_a_record_that_is_not_json_is_named_by_its_offset(text, column):
    good = Row(1, b"1", b" {} ", None)
    bad = Row(1, text if column == "key" else b"1", text if column == "value" else b"1", None)
    with pytest.raises(UnreadableRecordError, match=f"The {column} .* offset 12 of t-3 is not JSON") as error:
        encode_json(_log([good, good, bad, bad]), "t", 3)
    assert error.value.offset == 12


@pytest.mark.parametrize(
    "texts", [[b"[1", b"2]"], [b"1,2", b"[3", b"4]"], [b'"a', b'b"'], [b"1,1", b"[", b"]"], [b" 1,2", b"[3", b"4] "]]
)
def test_texts_that_are_json_only_together_are_not_json(texts):
    with pytest.raises(UnreadableRecordError) as error:
        encode_json(_log([Row(1, None, text, None) for text in texts]), "t", 3)
    assert error.value.offset == 10


@given(st.lists(_JSON_ROWS, max_size=8))
@settings(deadline=None)
def test_json_records_are_the_same_in_the_readable_form(records):
    assert encode_readable(_log(records), "t", 3) == encode_json(_log(records), "t", 3)


@pytest.mark.parametrize(
    ("stored", "given", "kind"),
    [
        (b"ada", "ada", "string"),
        (b"", "", "string"),
        (b'1,"offset":0', '1,"offset":0', "string"),
        ("é\0".encode(), "é\0", "string"),
        (b"\xff\x00", "/wA=", "binary"),
        (b'"\xff"', "Iv8i", "binary"),
        (b" {} ", {}, None),
        (b'"ada"', "ada", None),
        (None, None, None),
    ],
)
def test_each_key_and_value_that_is_not_json_is_text_or_base64_and_says_so(stored, given, kind):
    log = _log([Row(1, stored, b"1", [("h", b"")]), Row(1, b"1", stored, None)])
    first, second = json.loads(encode_readable(log, "t", 3))
    assert (first["key"], first.get("key_format"), first["value"]) == (given, kind, 1)
    assert (second["value"], second.get("value_format"), second["key"]) == (given, kind, 1)
    assert "value_format" not in first
    assert "key_format" not in second
    assert first["headers"] == [{"key": "h", "value": ""}]


@pytest.mark.parametrize("key", [b"ada", b'"ada"', b"17", b"null", b"", None])
def test_string_keys_are_texts_whatever_they_look_like(key):
    log = _log([Row(1, key, b"1", None)])
    (strict,) = json.loads(encode_json(log, "t", 3, string_keys=True))
    (readable,) = json.loads(encode_readable(log, "t", 3, string_keys=True))
    assert strict["key"] == readable.pop("key") == (None if key is None else key.decode())
    assert readable.pop("key_format", None) == (None if key is None else "string")
    assert strict == {"key": strict["key"], **readable}


def test_a_string_key_that_is_not_utf8_is_named_by_its_offset():
    log = _log([Row(1, b"a", b"1", None), Row(1, b"\xff", b"1", None)])
    with pytest.raises(UnreadableRecordError, match=r"The key .* offset 11 of t-3 is not UTF-8") as error:
        encode_json(log, "t", 3, string_keys=True)
    assert error.value.offset == 11
    assert json.loads(encode_readable(log, "t", 3, string_keys=True))[1]["key_format"] == "binary"


@given(st.lists(rows, max_size=8), st.booleans())
@settings(deadline=None)
def test_the_readable_form_never_fails(records, string_keys):
    found = json.loads(encode_readable(_log(records), "t", 3, string_keys=string_keys))
    assert [record["offset"] for record in found] == list(range(10, 10 + len(records)))


@given(st.lists(rows, max_size=8))
@settings(deadline=None)
def test_arrow_streams(records):
    log = _log(records)
    table = pa.ipc.open_stream(b"".join(encode_arrow_stream(log))).read_all()
    assert table.schema.equals(LOG_SCHEMA)
    table.validate(full=True)
    assert table.equals(log)


def test_no_records():
    empty = _log([])
    assert encode_json(empty, "t", 0) == encode_readable(empty, "t", 0) == encode_binary(empty, "t", 0) == b"[]"
    assert pa.ipc.open_stream(b"".join(encode_arrow_stream(empty))).read_all().num_rows == 0


@given(st.lists(_JSON_ROWS, max_size=12), st.integers(1, 300), st.integers(0, 4))
@settings(deadline=None)
def test_records_encoded_in_runs_are_those_encoded_at_once(records, run_bytes, skip):
    log = _log(records).slice(skip)
    forms = (encode_json, encode_readable, encode_binary)
    at_once = [form(log, "a%d", 3) for form in forms]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "_RUN_BYTES", run_bytes)
        assert [form(log, "a%d", 3) for form in forms] == at_once


@pytest.mark.parametrize("value_bytes", [20, 1_000, 100_000])
@pytest.mark.parametrize("form", ["encode_json", "encode_readable", "encode_binary"])
def test_an_encoder_holds_little_besides_its_answer(form, value_bytes):
    text = b'"%s"' % (b"x" * value_bytes)
    batch = wire_batch([Row(1, b"1", text, None)] * (8_000_000 // (value_bytes + 32)))
    log = pa.Table.from_batches([to_log_batch([WireBatch(batch, 0, 1_000, log_append_time=False)])])
    pieces = getattr(encode, form)(log, "t", 3)
    tracemalloc.start()
    try:
        body = list(pieces)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < sum(map(len, body)) + 8_000_000
