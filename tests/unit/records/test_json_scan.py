"""The scanner in C beside the decoder, the partitioner and the answers in Python: whatever it takes, they take as well,
with the same result.
"""

from random import Random

import numpy as np
import pytest

from logstore.errors import InvalidRequestError, RequestTooLargeError
from logstore.limits import HEADERS_PER_RECORD_MAX, REQUEST_RECORDS_MAX
from logstore.records import json_decoder, native, scanned
from logstore.records.decode import decode_json
from logstore.records.native import ANY_PARTITION, Spans
from logstore.records.scanned import ScannedRecords, scan_json, scan_small, small_columns
from tests.support.json_bodies import body, compare, decoded

pytestmark = pytest.mark.skipif(native.NATIVE is None, reason="there is no C compiler")

_LIMIT = 1 << 30


def compared(whole: bytes) -> set[str]:
    return {compare(whole, Random(1), string_keys=string_keys) for string_keys in (False, True)}


def of_value(text: bytes) -> bytes:
    return b'{"records":[{"key":"k","value":%b}]}' % text


@pytest.mark.parametrize("seed", range(4))
def test_random_and_damaged_bodies_give_what_python_gives(seed):
    random = Random(seed)
    found = [compare(body(random), random, string_keys=random.random() < 0.5) for _ in range(600)]
    assert min(found.count(outcome) for outcome in ("taken", "refused", "left")) > 3


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1_000, 1_020))
def test_a_million_bodies_give_what_python_gives(seed):
    random = Random(seed)
    found = [compare(body(random), random, string_keys=random.random() < 0.5) for _ in range(50_000)]
    assert found.count("taken") > 5_000


#: Bodies as clients send them: ours, curl's of the pages, REST Proxy's Python and Java examples, a browser's.
_RECORDED = [
    b'{"records":[{"value":{"user":"ada","n":1}}]}',
    b'{"records": [{"key": "ada", "value": {"amount": 3.50}}, {"key": "bob", "value": null}]}',
    b'{"records":[{"key":"somekey","value":{"foo":"bar"}},{"value":["foo","bar"],"partition":1},{"value":53.5}]}',
    b'{\n  "records" : [ {\n    "key" : "k\\u00e9",\n    "value" : "v"\n  } ]\n}\n',
    b'{"records":[{"partition":0,"timestamp":1732000000000,"headers":[{"key":"trace","value":"AAEC"}],"value":"x"}]}',
    b'{"records":[{"value":"\xf0\x9f\x98\x80 \xe6\x97\xa5\xe6\x9c\xac"},{"value":""},{"key":null,"value":true}]}\r\n',
]


@pytest.mark.parametrize("whole", _RECORDED)
def test_recorded_bodies_are_taken_and_nothing_that_is_cut_off_them(whole):
    assert "taken" in compared(whole)
    trimmed = whole.rstrip()
    for end in range(len(trimmed)):
        assert compared(trimmed[:end]) == {"refused"}, trimmed[:end]
    assert compared(whole + whole) == {"refused"}
    assert compared(whole + b"\0") == {"refused"}


# ---- shapes of JSON as parsers meet them (after Nicolas Seriot's "Parsing JSON is a Minefield", own cases) ----------

_ACCEPTED = [
    *(b"0", b"-0", b"7", b"-12", b"0.0", b"1.25", b"1e9", b"1E9", b"1e+9", b"1e-9", b"0e1", b"-0.0E-0", b"12.5e10"),
    *(b"true", b"false", b"null", b'""', b'" "', b'"a"', b"[]", b"{}", b"[[]]", b"[{}]", b'{"":0}', b'{"a":[1,2]}'),
    *(b"[1,2]", b"[ 1 , 2 ]", b"[\n1\t,\r2 ]", b'{"a":1,"b":2}', b'{ "a" : { "b" : [ ] } }', b'{"a":1,"a":2}'),
    *(b'"\\"\\\\\\/\\b\\f\\n\\r\\t"', b'"\\u0000"', b'"\\u00e9"', b'"\\uD83D\\uDE00"', b'"\\ud83d\\ude00x"', b'"\x7f"'),
    *(b'"\xc2\x80"', b'"\xdf\xbf"', b'"\xe0\xa0\x80"', b'"\xed\x9f\xbf"', b'"\xee\x80\x80"', b'"\xef\xbf\xbf"'),
    *(b'"\xf0\x90\x80\x80"', b'"\xf4\x8f\xbf\xbf"', b'"\xe2\x80\xa8"', b'"\xef\xbb\xbf"', b'"/*"', b'"\'"', b'"]}"'),
    *(b"9" * 400, b"-" + b"1" * 400, b"0." + b"3" * 400, b"1e400", b"-1e-400", b"123456789012345678901234567890"),
    *(b'"' + b"x" * n + b'"' for n in (15, 16, 17, 31, 32, 33)),
    *(b'"' + b"x" * n + b"\xc3\xa9" + b"y" * n + b'\\n"' for n in (14, 15, 16, 17)),
]
_REFUSED = [
    *(
        b"",
        b" ",
        b"01",
        b"-01",
        b"1.",
        b".5",
        b"-",
        b"+1",
        b"--1",
        b"1e",
        b"1e+",
        b"1E-",
        b"0x10",
        b"1_000",
        b"1,",
        b"00",
    ),
    *(b"NaN", b"Infinity", b"-Infinity", b"inf", b"True", b"nul", b"nulll", b"tru", b"falsee", b"undefined", b"None"),
    *(b"'a'", b"a", b'"', b'"a', b'a"', b'"\\"', b'"\\x"', b'"\\u"', b'"\\u00"', b'"\\u00g0"', b'"\\U0041"', b'"\\\n"'),
    *(b'"\n"', b'"\t"', b'"\x00"', b'"\x1f"', b'"a\x01b"', b"\\u0022a\\u0022", b"\x00", b"\xa0", b"\xef\xbb\xbf1"),
    *(b'"\x80"', b'"\xbf"', b'"\xc0\x80"', b'"\xc1\xbf"', b'"\xe0\x80\x80"', b'"\xe0\x9f\xbf"', b'"\xf0\x80\x80\x80"'),
    *(b'"\xed\xa0\x80"', b'"\xed\xbf\xbf"', b'"\xf4\x90\x80\x80"', b'"\xf5\x80\x80\x80"', b'"\xfe"', b'"\xff"'),
    *(b'"\xc3"', b'"\xe2\x82"', b'"\xf0\x9f\x98"', b'"\xc3(x"', b"\xe9", b'{"\xff":0}', b'"\xe2"\x82\xac'),
    *(b"[", b"]", b"[1", b"1]", b"[1,]", b"[,1]", b"[,]", b"[1 2]", b"[1;2]", b"[1,,2]", b"[1}", b"[1],", b"[\x0c1]"),
    *(
        b"{",
        b"}",
        b"{,}",
        b'{"a"}',
        b'{"a":}',
        b'{"a" 1}',
        b'{"a":1,}',
        b'{"a":1 "b":2}',
        b"{a:1}",
        b"{1:1}",
        b'{"a":1]',
    ),
    *(
        b'{"a"::1}',
        b"{:1}",
        b'{"a":1,,"b":2}',
        b"{null:1}",
        b"/**/1",
        b"1//",
        b"1#",
        b"1 2",
        b"[1][2]",
        b"{}{}",
        b'""""',
    ),
    *(b"1\x0b", b"\x0c1", b"\xc2\xa01", b"1\xe2\x80\x83", b"[\xe3\x80\x801]", b"<null>", b"*", b"$", b"@", b"`a`"),
]
#: RFC 8259 leaves these to a parser.
_EITHER = [
    *(b'"\\ud800"', b'"\\udfff"', b'"\\ud800\\n"', b'"\\ud800\\u0041"', b'"\\ud83d\\ud83d"', b'"\\ude00\\ud83d"'),
    *(b'{"\\ud800":0}', b"[" * 600 + b"]" * 600, b'{"a":' * 600 + b"1" + b"}" * 600, b"[" * 5_000 + b"]" * 5_000),
]


def test_allowed_json_is_taken_byte_for_byte():
    for text in _ACCEPTED:
        for spaced in (text, b" \r\n\t" + text + b"  "):
            assert compared(of_value(spaced)) == {"taken"}, text
        scan = scan_json(of_value(text))
        assert scan is not None
        assert scan.batch.column("value")[0].as_py() == (None if text == b"null" else text)


def test_forbidden_json_is_refused_with_the_same_words_as_without_c(monkeypatch):
    for text in _REFUSED:
        assert compared(of_value(text)) == {"refused"}, text
        told = []
        for functions in (native.NATIVE, None):
            monkeypatch.setattr(native, "NATIVE", functions)
            with pytest.raises(InvalidRequestError) as refused:
                decode_json(of_value(text), max_message_bytes=_LIMIT)
            told.append(refused.value.message)
            monkeypatch.undo()
        assert told[0] == told[1]


def test_json_with_an_open_meaning_is_left_to_python():
    for text in _EITHER:
        assert not compared(of_value(text)) & {"taken"}, text


# ---- requests -------------------------------------------------------------------------------------------------------

_NESTED_TOO_DEEPLY = b"[" * 513 + b"]" * 513
#: By outcome, without keys as texts.
_REQUESTS = {
    "taken": [
        *(b'{"records":[{}]}', b' { "records" : [ { } , { } ] } ', b'{"records":[{"key":null,"value":null}]}'),
        *(
            b'{"records":[{"value":%b}]}' % (b"[" * 512 + b"]" * 512),
            b'{"records":[{"value":%b}]}' % (b"7" * 1_000_000),
        ),
        b'{"records":[{"timestamp":253402300799999,"partition":2147483647}]}',
        b'{"records":[{"headers":[%b]}]}' % b",".join([b'{"key":"h"}'] * HEADERS_PER_RECORD_MAX),
        *(b'{"records":[{"headers":[{"key":"h","value":"%b"}]}]}' % text for text in (b"", b"QQ==", b"QUI=", b"+/+/")),
        *(b'{"records":[{"value":{"key":1,"key":2,"value":{},"records":[]}}]}', b'{"records":[{"headers":null}]}'),
    ],
    "left": [
        *(b'{"records":[{"v\\u0061lue":1}]}', b'{"r\\u0065cords":[{}]}', b'{"records":[{}],"key_schema":null}'),
        *(b'{"value_schema_id":null,"records":[{}]}', b'{"records":[{"value":%b}]}' % _NESTED_TOO_DEEPLY),
        b'{"records":[{"headers":[{"k\\u0065y":"h"}]}]}',
        b'{"records":[{"headers":[{"key":"\\u0068","value":"QQ\\u003d="}]}]}',
        b'{"records":[{"value":"\\ud800"}]}',
    ],
    "refused": [
        *(b"", b"{}", b"[]", b"null", b'{"records":[]}', b'{"records":null}', b'{"records":{}}', b'{"records":[1]}'),
        *(b'{"records":[null]}', b'{"records":[[]]}', b'{"records":[{}],}', b'{"records":[{},]}', b'{"records":[,{}]}'),
        *(
            b'{"records":[{}],"records":[{}]}',
            b'{"records":[{}]}]',
            b'{"records":[{}]} {}',
            b'{"records":[{}],"more":1}',
        ),
        *(b'{"records":[{"value":1,"value":1}]}', b'{"records":[{"key":1,"key":1}]}', b'{"records":[{"vlaue":1}]}'),
        *(b'{"records":[{"partition":0,"partition":0}]}', b'{"records":[{"timestamp":1,"timestamp":1}]}'),
        *(b'{"records":[{"headers":[],"headers":[]}]}', b'{"records":[{"headers":[{"key":"a","key":"a"}]}]}'),
        *(b'{"records":[{"headers":[{"value":"QQ=="}]}]}', b'{"records":[{"headers":[{"key":null}]}]}'),
        *(
            b'{"records":[{"headers":[{"key":"h","value":"%b"}]}]}' % t
            for t in (b"Q", b"QQ", b"QR==", b"QUJ=", b"Q===")
        ),
        *(
            b'{"records":[{"headers":[{"key":"h","value":"%b"}]}]}' % t
            for t in (b"QQ==QQ==", b"QU D", b"_-__", b"====")
        ),
        *(b'{"records":[{"headers":[{"key":"h","more":1}]}]}', b'{"records":[{"headers":{}}]}'),
        *(b'{"records":[{"headers":[{}]}]}', b'{"records":[{"headers":[1]}]}', b'{"records":[{"headers":[,]}]}'),
        *(
            b'{"records":[{"partition":%b}]}' % n
            for n in (b"-1", b"2147483648", b"01", b"1.5", b'"1"', b"9" * 30, b"[]")
        ),
        *(
            b'{"records":[{"timestamp":%b}]}' % n
            for n in (b"-1", b"253402300800000", b"00", b'"1"', b"9" * 30, b"true")
        ),
        *(
            b'{"records":[{"value":1}',
            b'{"records":[{"value":"\\',
            b'{"records":[{"value":"\\u00',
            b'{"records":[{"value":',
        ),
    ],
}


@pytest.mark.parametrize("outcome", _REQUESTS)
def test_requests_of_every_kind(outcome):
    for whole in _REQUESTS[outcome]:
        assert compare(whole, Random(1), string_keys=False) == outcome, whole[:200]


@pytest.mark.parametrize(
    ("key", "outcome"),
    [(b'"a\\u0062"', "left"), (b'"\\ud800"', "refused"), (b'{"a":"\\n"}', "taken"), (b'"\xc3\xa9"', "taken")],
)
def test_keys_as_texts_have_no_escapes_here(key, outcome):
    assert compare(b'{"records":[{"key":%b}]}' % key, Random(1), string_keys=True) == outcome


def test_more_headers_than_a_record_may_have_are_refused():
    headers = b",".join([b'{"key":"h"}'] * (HEADERS_PER_RECORD_MAX + 1))
    assert compared(b'{"records":[{"headers":[%b]}]}' % headers) == {"refused"}


@pytest.mark.parametrize("records", [REQUEST_RECORDS_MAX, REQUEST_RECORDS_MAX + 1])
def test_the_bound_of_records(records):
    """Count them without columns, which would need the memory of a million rows."""
    whole = b'{"records":[%b]}' % b",".join([b"{}"] * records)
    found = scan_json(whole)
    assert (found is not None) == (records == REQUEST_RECORDS_MAX)
    if found is None:
        with pytest.raises(RequestTooLargeError):
            decode_json(whole, max_message_bytes=_LIMIT)


def test_the_bound_of_records_counts_headers():
    record = b'{"headers":[%b]}' % b",".join([b'{"key":"h"}'] * 999)
    for records, taken in ((1_000, True), (1_001, False)):
        whole = b'{"records":[%b]}' % b",".join([record] * records)
        assert (scan_json(whole) is not None) == taken
    with pytest.raises(RequestTooLargeError):
        json_decoder.decode_json(whole, max_message_bytes=_LIMIT)


def test_a_body_whose_places_are_no_int32_is_left(monkeypatch):
    whole = of_value(b"1")
    monkeypatch.setattr(scanned, "_BODY_BYTES_MAX", len(whole))
    assert scan_json(whole) is not None
    assert scan_json(whole + b" ") is None


def test_the_room_grows_with_the_records_and_their_headers():
    for record in (b"{}", b'{"key":1}', b'{"headers":[]}', b'{"headers":[{"key":""}]}'):
        for count in (1, 40, 3_000):
            assert compared(b'{"records":[%b]}' % b",".join([record] * count)) == {"taken"}, (record, count)


def test_the_largest_record_is_bounded_by_python_words(monkeypatch):
    whole = b'{"records":[{"key":"abc","value":12},{"value":"12345678","headers":[{"key":"h","value":"QUI="}]}]}'
    assert isinstance(decode_json(whole, max_message_bytes=13), ScannedRecords)
    with pytest.raises(Exception, match="Record 1 of the request has 13 bytes"):
        decode_json(whole, max_message_bytes=12)


# ---- small requests -------------------------------------------------------------------------------------------------


def small(whole: bytes, *, string_keys: bool = False, partitions: tuple[int, int] = ANY_PARTITION, room: int = 64):
    return scan_small(whole, Spans(room, room), string_keys=string_keys, partitions=partitions)


@pytest.mark.parametrize("string_keys", [False, True])
def test_bodies_that_join_give_the_records_of_each_in_turn(string_keys):
    random = Random(7)
    bodies = [*_RECORDED, *(body(random) for _ in range(300))]
    taken = [(found, whole) for whole in bodies if (found := small(whole, string_keys=string_keys)) is not None]
    assert len(taken) > 50
    alone = [decoded(whole, string_keys=string_keys) for _, whole in taken]
    assert [len(found) for found, _ in taken] == [one.num_rows for one in alone if one is not None]
    joined = small_columns([found for found, _ in taken], string_keys=string_keys)
    joined.batch.validate(full=True)
    assert joined.batch.to_pylist() == [row for one in alone if one is not None for row in one.batch.to_pylist()]


def test_a_small_body_has_few_records_and_headers_and_names_partitions_that_are_there():
    assert len(small(b'{"records":[{},{}]}', room=2) or ()) == 2
    assert small(b'{"records":[{},{},{}]}', room=2) is None
    assert small(b'{"records":[{"headers":[{"key":"a"},{"key":"b"},{"key":"c"}]}]}', room=2) is None
    for partition, there in ((0, False), (1, True), (2, True), (3, False), ("null", True)):
        whole = b'{"records":[{"partition":%b},{}]}' % str(partition).encode()
        assert (small(whole, partitions=(1, 3)) is not None) == there, partition


def test_the_text_of_places_has_no_padding():
    partitions = np.array([0, 7, 1_000, 2**31 - 1], np.int32)
    offsets = np.array([9, 10, 123_456_789_012, 2**63 - 1], np.int64)
    assert native.NATIVE is not None
    assert bytes(native.NATIVE.places_text(partitions, offsets)) == b",".join(
        b'{"partition":%d,"offset":%d,"error_code":null,"error":null}' % place
        for place in zip(partitions.tolist(), offsets.tolist(), strict=True)
    )
