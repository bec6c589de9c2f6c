import base64
import json

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logstore.errors import (
    InvalidRecordError,
    InvalidRequestError,
    LogStoreError,
    RecordTooLargeError,
    RequestTooLargeError,
)
from logstore.limits import HEADERS_PER_RECORD_MAX, REQUEST_RECORDS_MAX, TIMESTAMP_MS_MAX
from logstore.records.decode import decode_binary, decode_json
from logstore.records.json_decoder import decode_plain, is_utf8, plain_columns
from logstore.records.schema import WIRE_SCHEMA
from tests.support.examples import examples
from tests.support.records import Row, headers_lists, small_bytes, timestamps, wire_rows

pytestmark = pytest.mark.usefixtures("with_and_without_c")

_LIMIT = 1 << 20
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
_SPACES = st.text(" \t\n\r", max_size=2)
# JSON serialisers differ in spaces and escapes. All of these must come back unchanged.
_JSON_TEXTS = st.builds(
    lambda value, ascii_only, separators: json.dumps(value, ensure_ascii=ascii_only, separators=separators),
    _JSON_VALUES,
    st.booleans(),
    st.tuples(_SPACES.map(lambda space: f"{space},"), _SPACES.map(lambda space: f":{space}")),
)


def _value(text: bytes) -> bytes | None:
    return decode_json(b'{"records":[{"value":%b}]}' % text, max_message_bytes=_LIMIT).batch.column("value")[0].as_py()


def _refused(body: bytes, match: str | None = None, error: type[LogStoreError] = InvalidRequestError) -> None:
    with pytest.raises(error, match=match):
        decode_json(body, max_message_bytes=_LIMIT)


@st.composite
def _requests(draw, embedded, stored):
    """Draw (body, rows, partitions): records whose fields have any order and spaces, and may be absent or null."""
    texts, rows, partitions = [], [], []
    for _ in range(draw(st.integers(1, 8))):
        key, value = draw(st.none() | embedded), draw(st.none() | embedded)
        timestamp, headers = draw(st.none() | timestamps), draw(st.none() | headers_lists)
        partition = draw(st.none() | st.integers(0, 9))
        fields = [("key", key or "null"), ("value", value or "null")]
        fields += [("timestamp", json.dumps(timestamp)), ("partition", json.dumps(partition))]
        encoded = headers and [{"key": k, "value": v and base64.b64encode(v).decode()} for k, v in headers]
        encoded = [] if headers == () else encoded
        for header, (_, v) in zip(encoded or [], headers or (), strict=True):
            header["value"] = None if v is None else base64.b64encode(v).decode()
        fields.append(("headers", json.dumps(encoded)))
        fields = [field for field in fields if field[1] != "null" or draw(st.booleans())]
        space = draw(_SPACES)
        members = [f'"{name}"{space}:{space}{text}' for name, text in draw(st.permutations(fields))]
        texts.append("{" + f"{space},{space}".join(members) + "}")
        rows.append(Row(timestamp, stored(key), stored(value), headers))
        partitions.append(-1 if partition is None else partition)
    return f'{{"records":[{",".join(texts)}]}}'.encode(), rows, partitions


def _check(decode, request):
    body, rows, partitions = request
    decoded = decode(body, max_message_bytes=_LIMIT)
    assert decoded.batch.schema.equals(WIRE_SCHEMA)
    decoded.batch.validate(full=True)
    assert wire_rows(decoded.batch) == rows
    if all(partition == -1 for partition in partitions):
        assert decoded.partitions is None
    else:
        assert decoded.partitions.tolist() == partitions
    assert decoded.verbatim is None


@given(_requests(_JSON_TEXTS, lambda text: None if text in (None, "null") else text.encode()))
@settings(deadline=None)
def test_json_texts_are_stored_byte_for_byte(request_and_rows):
    _check(decode_json, request_and_rows)


@given(
    _requests(
        small_bytes.map(lambda data: json.dumps(base64.b64encode(data).decode())),
        lambda text: None if text is None else base64.b64decode(text),
    )
)
@settings(deadline=None)
def test_base64_is_decoded(request_and_rows):
    _check(decode_binary, request_and_rows)


@pytest.mark.parametrize(
    "text",
    [
        b"9" * 6000,
        b"1e400",
        b"-0",
        b'"\\u00e9\\n"',
        b'"\\ud800"',
        b'["\\udc00\\ud83d\\ude00",{"\\uD83D":1}]',
        '"é🎉"'.encode(),
        b'{"a": 1,  "a":2}',
        b'"nul"',
        b"true",
        b'""',
        b"[[[]]]",
    ],
)
def test_a_value_is_its_text(text):
    assert _value(text) == text
    assert _value(b" \n" + text + b"\t ") == text


@pytest.mark.parametrize(
    "text",
    [
        *(b"NaN", b"Infinity", b"-Infinity", b"01", b"1.", b".5", b"+1", b"1e", b"-", b"'a'", b"tru", b"", b"nulll"),
        *(b'"\\x"', b'"\x01"', b'"\\ud8"', b"[1,]", b'{"a":1,}', b"{1:2}", b"[1 2]"),
        *(b"1//c", b"1 2", b'1,"offset":0', b"\xef\xbb\xbf1", b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"'),
    ],
)
def test_a_body_that_is_not_json_is_refused(text):
    _refused(b'{"records":[{"value":%b}]}' % text)


@pytest.mark.parametrize("depth", [100_000])
@pytest.mark.parametrize("closing", [b"]", b""])
def test_deep_nesting_is_refused(depth, closing):
    _refused(b'{"records":[{"value":%b}]}' % (b"[" * depth + closing * depth), "nested too deeply")


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (b"", "truncated"),
        (b"null", "Expected `object`"),
        (b"[]", "Expected `object`"),
        (b"{}", r'missing required field `records`; send \{"records": \[\{"key": ..., "value": ...\}\]\}$'),
        (b'{"key":1}', "unknown field `key`; send "),
        (b"[]", "Expected `object`, got `array`; send "),
        (b'{"records":null}', "Expected `array`"),
        (b'{"records":{}}', "Expected `array`"),
        (b'{"records":[]}', "records may not be empty"),
        (b'{"records":[null]}', r"Expected `object`, got `null` - at `\$.records\[0\]`"),
        (b'{"records":[{},1]}', r"\$.records\[1\]"),
        (b'{"records":[{}],"topic":"t"}', "unknown field `topic`"),
        (b'{"records":[{"Key":1}]}', r"unknown field `Key` - at `\$.records\[0\]`"),
        (b'{"records":[{}]} {"records":[{}]}', "trailing characters"),
        (b'\xef\xbb\xbf{"records":[{}]}', "invalid character"),
        ('{"records":[{"value":"é"}]}'.encode("utf-16"), "not UTF-8"),
        ('{"records":[{"value":"é"}]}'.encode("latin-1"), "not UTF-8"),
        (b'{"records":[{}],"value_schema":"{}"}', "value_schema is not supported"),
        (b'{"records":[{}],"key_schema_id":1}', "key_schema_id is not supported"),
        (b'{"records":[{"timestamp":-1}]}', r">= 0` - at `\$.records\[0\].timestamp`|>= 0 - at"),
        (b'{"records":[{"timestamp":%d}]}' % (TIMESTAMP_MS_MAX + 1), "timestamp"),
        (b'{"records":[{"timestamp":%b}]}' % (b"9" * 10_000), "timestamp"),
        (b'{"records":[{"timestamp":"1"}]}', "timestamp"),
        (b'{"records":[{"timestamp":1.5}]}', "timestamp"),
        (b'{"records":[{"timestamp":true}]}', "timestamp"),
        (b'{"records":[{"partition":-1}]}', "partition"),
        (b'{"records":[{"partition":2147483648}]}', "partition"),
        (b'{"records":[{"partition":"0"}]}', "partition"),
        (b'{"records":[{"headers":{}}]}', "headers"),
        (b'{"records":[{"headers":[null]}]}', r"headers\[0\]"),
        (b'{"records":[{"headers":[{"value":"YQ=="}]}]}', "missing required field `key`"),
        (b'{"records":[{"headers":[{"key":null}]}]}', r"headers\[0\].key"),
        (b'{"records":[{"headers":[{"key":"\\ud800"}]}]}', "name of a header has half of a surrogate pair"),
        (b'{"records":[{"value":"\\ud800","headers":[{"key":"\\ud800"}]}]}', "name of a header has half"),
        (b'{"records":[{"headers":[{"key":"a","value":"YQ"}]}]}', "base64"),
        (b'{"records":[{"headers":[{"key":"a","name":1}]}]}', "unknown field `name`"),
    ],
)
def test_malformed_requests_are_refused_and_say_where(body, match):
    _refused(body, match)


@pytest.mark.parametrize("text", ["YQ", "YQ=", "Y Q==", "-_==", "YQ==\\n", "=", "A===", "é", "YQ=a"])
def test_bad_base64_is_refused(text):
    with pytest.raises(InvalidRequestError, match=r"base64.*records\[0\]\.value"):
        decode_binary(f'{{"records":[{{"value":"{text}"}}]}}'.encode(), max_message_bytes=_LIMIT)


def test_binary_wants_text():
    with pytest.raises(InvalidRequestError, match="value"):
        decode_binary(b'{"records":[{"value":{"a":1}}]}', max_message_bytes=_LIMIT)


def test_null_schemas_are_as_good_as_none():
    body = b'{"key_schema":null,"value_schema_id": null ,"records":[{"value":1}]}'
    assert wire_rows(decode_json(body, max_message_bytes=_LIMIT).batch) == [Row(None, None, b"1", None)]


@pytest.mark.parametrize("text", ["QR==", "QUJ=", "QR=\\u003d", "\\u0051R==", "+/9=", "AAAAQR=="])
@pytest.mark.parametrize("rest", ["", ',"headers":[{"key":"a=","value":"Yg=="}]'])
def test_base64_with_bits_behind_its_end_is_refused(text, rest):
    record = f'{{"value":"{text}"{rest}}}'
    body = f'{{"records":[{{"value":"QQ=="}},{record}]}}'.encode()
    with pytest.raises(InvalidRequestError, match=r"base64.*records\[1\]\.value"):
        decode_binary(body, max_message_bytes=_LIMIT)
    body = f'{{"records":[{{"headers":[{{"key":"a","value":"{text}"}}]}}]}}'.encode()
    for decode in (decode_json, decode_binary):
        with pytest.raises(InvalidRequestError, match=r"base64.*records\[0\]\.headers\[0\]\.value"):
            decode(body, max_message_bytes=_LIMIT)


def test_text_that_only_looks_like_base64_is_taken():
    body = b'{"records":[{"key":"QR==","value":"x=","headers":[{"key":"QR==","value":"QQ\\u003d="}]}]}'
    (row,) = wire_rows(decode_json(body, max_message_bytes=_LIMIT).batch)
    assert row == Row(None, b'"QR=="', b'"x="', (("QR==", b"A"),))
    body = b'{"records":[{"value":"+\\/8=","headers":[{"key":"x=="}]}]}'
    (row,) = wire_rows(decode_binary(body, max_message_bytes=_LIMIT).batch)
    assert row == Row(None, None, b"\xfb\xff", (("x==", None),))


_TWICE = [
    '{"records":[{"value":1}],"records":[{"value":2}]}',
    '{"records":[{"value":1}],"records":[]}',
    '{"key_schema":null,"records":[{"value":1}],"key_schema":null}',
    '{"records":[{"value":1,"value":2}]}',
    '{"records":[{"key":1,"value":1,"key":1}]}',
    '{"records":[{"value":1,"value":1}]}',
    '{"records":[{"value":"a","v\\u0061lue":"b"}]}',
    '{"records":[{"value":null,"value":null}]}',
    '{"records":[{"value":"\\"\\\\","value":"\\\\\\""}]}',
    '{"records":[{"value":{"a":[1,"b"]},"value":1}]}',
    '{"records":[{"value":1,"partition":0,"partition":1}]}',
    '{"records":[{"value":1,"partition":0,"partition":null}]}',
    '{"records":[{"value":1,"timestamp":5,"timestamp":6}]}',
    '{"records":[{"value":1,"headers":[],"headers":[{"key":"a"}]}]}',
    '{"records":[{"value":1,"headers":[{"key":"a"}],"headers":null}]}',
    '{"records":[{"value":1,"headers":[{"key":"a","key":"b"}]}]}',
    '{"records":[{"value":1,"headers":[{"key":"a\\"","value":null,"value":"Yg=="}]}]}',
]


@pytest.mark.parametrize(
    "more", ["", ", {}" * 500, ', {"key": "\\"",  "value": "\\\\"}' * 100], ids=["one", "many", "escapes"]
)
@pytest.mark.parametrize("body", _TWICE)
def test_a_field_that_is_there_twice_is_refused(body, more):
    """Repeat a field with any spaces, and among many records."""
    for spaced in (body, body.replace(",", " ,\n").replace(":", " : ")):
        whole = spaced.replace("}]", f"}}{more}]", 1) if "headers" not in body else spaced
        _refused(whole.encode(), "is there twice")
        assert decode_plain(whole.encode()) is None


@pytest.mark.parametrize("of", ["key", "value", "partition", "timestamp", "headers"])
def test_a_repeated_field_is_also_refused_with_base64(of):
    fields = {"key": '"QQ=="', "value": "null", "partition": "0", "timestamp": "null", "headers": '[{"key":"a"}]'}
    once = ",".join(f'"{name}":{text}' for name, text in fields.items())
    assert decode_binary(b'{"records":[{%b}]}' % once.encode(), max_message_bytes=_LIMIT).num_rows == 1
    for again in (fields[of], "null"):
        twice = f'{{"records":[{{}},{{{once},"{of}":{again}}}]}}'
        with pytest.raises(InvalidRequestError, match="is there twice"):
            decode_binary(twice.encode(), max_message_bytes=_LIMIT)


def test_fields_of_what_is_stored_are_nobody_elses_affair():
    assert _value(b'{"a":1,"a":2}') == b'{"a":1,"a":2}'


def test_nulls_leave_no_bytes_behind():
    body = b'{"records":[%b{"value":7}]}' % (b'{"value":null},' * 10_000)
    column = decode_json(body, max_message_bytes=_LIMIT).batch.column("value")
    assert (column.null_count, column.buffers()[2].size) == (10_000, 1)


def test_a_record_too_large_is_named():
    body = b'{"records":[{},{"key":"k","value":"%b"}]}' % (b"x" * _LIMIT)
    _refused(body, f"Record 1 .* {_LIMIT + 5} bytes", RecordTooLargeError)


def test_too_many_headers_are_refused():
    header = b'{"key":"a"}'
    body = b'{"records":[{"headers":[%b]}]}' % b",".join([header] * (HEADERS_PER_RECORD_MAX + 1))
    _refused(body, "headers", InvalidRecordError)


@pytest.mark.parametrize("decode", [decode_json, decode_binary])
@pytest.mark.parametrize("record", [b"{}", b'{"headers":[{"key":""},{"key":""}]}'], ids=["records", "headers"])
def test_decoding_stops_at_too_many_records(decode, record):
    body = b'{"records":[%b]}' % b",".join([record] * (REQUEST_RECORDS_MAX + 1))
    with pytest.raises(RequestTooLargeError, match="records"):
        decode(body, max_message_bytes=_LIMIT)


def test_braces_inside_of_values_are_not_records():
    value = b"[%b]" % b",".join([b"{}"] * (REQUEST_RECORDS_MAX + 1))
    body = b'{"records":[{"value":%b,"headers":[{"key":"a","value":"Yg=="}]}]}' % value
    (row,) = wire_rows(decode_json(body, max_message_bytes=len(value) + 2).batch)
    assert row == Row(None, None, value, (("a", b"b"),))


@given(st.binary(max_size=60) | st.text(max_size=30).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example("é".encode())
def test_utf8_is_what_python_takes_for_it(data):
    try:
        data.decode()
    except UnicodeDecodeError:
        assert not is_utf8(data)
    else:
        assert is_utf8(data)


_SEED = (
    b'{"key_schema":null,"records":[{"key":"a\\u00e9","value":{"b":[1,-2.5e3,null,true]},"timestamp":17,'
    b'"partition":1,"headers":[{"key":"h","value":"YQ=="}]},{"value":"\xc3\xa9"}]}'
)
_TOKENS = [
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b'"',
    b"\\",
    b"\\u",
    b"null",
    b"-",
    b"1e999",
    b"9" * 40,
    b"\xff",
    b"\x00",
    b" ",
    b"{}",
]


@given(st.data())
@settings(deadline=None, max_examples=examples(400))
def test_mutated_bodies_give_records_or_the_named_errors(data):
    body = bytearray(_SEED)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 5))] = data.draw(st.sampled_from(_TOKENS) | st.binary(max_size=2))
    for decode in (decode_json, decode_binary):
        try:
            decoded = decode(bytes(body), max_message_bytes=50)
        except (InvalidRequestError, RecordTooLargeError, RequestTooLargeError):
            continue
        decoded.batch.validate(full=True)
        if decode is decode_json:
            # Python's parser decides: every accepted text must be JSON there as well.
            assert decoded.batch.num_rows == len(json.loads(body, parse_constant=pytest.fail)["records"])
            for text in pa.concat_arrays([decoded.batch.column("key"), decoded.batch.column("value")]).drop_null():
                json.loads(text.as_py(), parse_constant=pytest.fail)


_TEXT_KEYS = {
    b'"ada"': b"ada",
    b'""': b"",
    b'"null"': b"null",
    b'"a\\"\\u00e9\\\\"': 'a"é\\'.encode(),
    '"é"'.encode(): "é".encode(),
    b"null": None,
    b"17": b"17",
    b"-0.50": b"-0.50",
    b"true": b"true",
    b'{"k": "v"}': b'{"k": "v"}',
    b'["a"]': b'["a"]',
}


@pytest.mark.parametrize("keys", [[b'"ada"'], list(_TEXT_KEYS), [*_TEXT_KEYS] * 20, [b'"ada"', b"null", b"17"] * 50])
@pytest.mark.parametrize("timestamp", [b"", b',"timestamp":1'], ids=["plain", "more"])
def test_string_keys_are_their_utf8_text_and_all_others_json_texts(keys, timestamp):
    body = b'{"records":[%b]}' % b",".join(b'{"key":%b,"value":"v"%b}' % (key, timestamp) for key in keys)
    batch = decode_json(body, max_message_bytes=_LIMIT, string_keys=True).batch
    batch.validate(full=True)
    assert batch.column("key").to_pylist() == [_TEXT_KEYS[key] for key in keys]
    assert set(batch.column("value").to_pylist()) == {b'"v"'}, "values stay JSON texts"


@pytest.mark.parametrize("counts", [(1,), (1, 2), (70, 1), (1, 70), (64, 100), (3, 61)], ids=str)
def test_the_records_of_many_bodies_are_those_of_each_in_turn(counts):
    """Decode few and many texts, which are stored in different ways."""
    texts = [
        [(f'"k{body}-{row}"', "null" if row % 7 == 3 else f"{row}") for row in range(n)]
        for body, n in enumerate(counts)
    ]
    bodies = ['{"records":[' + ",".join(f'{{"key":{k},"value":{v}}}' for k, v in records) + "]}" for records in texts]
    decoded = [decode_plain(body.encode()) for body in bodies]
    assert [len(records) for records in decoded] == list(counts)
    batch = plain_columns(decoded).batch
    alone = [decode_json(body.encode(), max_message_bytes=_LIMIT).batch.to_pylist() for body in bodies]
    assert batch.to_pylist() == [record for records in alone for record in records]
    batch.validate(full=True)


def test_a_large_body_of_plain_records_takes_the_fast_way_unless_its_braces_may_be_too_many_records():
    record = b'{"key":"k","value":{"pad":"%b"}}' % (b"x" * 1_000)
    body = b'{"records":[%b]}' % b",".join([record] * 1_200)
    plain = decode_plain(body)
    assert plain is not None
    assert len(plain) == 1_200
    assert decode_json(body, max_message_bytes=_LIMIT).batch.num_rows == 1_200
    braces = b'{"records":[{"value":"%b"}]}' % (b"{" * 1_000_001)
    assert decode_plain(braces) is None
    assert decode_json(braces, max_message_bytes=2_000_000).batch.num_rows == 1, "the counting decoder takes it"
