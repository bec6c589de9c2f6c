"""How consume writes a record, without a store."""

import json

import pyarrow as pa
import pytest

from logstore.cli.record_lines import json_lines, pretty_lines, template_lines
from logstore.client.consumer.records import FetchedBatch
from logstore.records.schema import LOG_SCHEMA


def batch(
    value: bytes | None, key: bytes | None = None, headers: list[tuple[str, bytes | None]] | None = None
) -> FetchedBatch:
    columns = ([7], [1_500], [key], [value], [headers])
    record = pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, LOG_SCHEMA, strict=True)], schema=LOG_SCHEMA
    )
    return FetchedBatch("orders", 3, record, 8, 0, 8)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("%p %o %k %s %h %T", b"3 7 ada \xff a=1,b=NULL 1500\n"),
        ("%t[%p]@%o", b"orders[3]@7\n"),
        (r"%K\t%S\n", b"3\t1\n"),
        (r"%s\0", b"\xff\0"),
        (r"%s\x1e", b"\xff\x1e"),
        (r"100%% \\ é %o", "100% \\ é 7\n".encode()),
        (r"%o\r\n", b"7\r\n"),
    ],
)
def test_a_template_as_of_kcat(template, expected):
    record = batch(b"\xff", b"ada", [("a", b"1"), ("b", None)])
    assert template_lines(template)(record) == expected


def test_null_is_nothing_and_has_length_minus_1():
    assert template_lines("<%k|%s|%h> %K %S")(batch(None)) == b"<||> -1 -1\n"
    assert template_lines("<%k|%s> %K %S")(batch(b"", b"")) == b"<|> 0 0\n"


@pytest.mark.parametrize("template", ["%z", "%", r"%s\q", "\\", r"\x4", "%é"])
def test_mistakes_in_a_template_are_named(template):
    with pytest.raises(ValueError, match=r"is no (field|escape): there are .*%s|\\n"):
        template_lines(template)


@pytest.mark.parametrize(
    ("stored", "shown", "stored_as"),
    [
        (b'{"a": 1.0}', b'{"a": 1.0}', None),
        (b'{\n "a": 12345678901234567890123\r\n}', b'{"a":12345678901234567890123}', None),
        (b'"ada"', b'"ada"', None),
        (b'"\\ud800"', b'"\\ud800"', None),
        (b'{\n"a": "\\ud800"}', b'{ "a": "\\ud800"}', None),
        (b" 1e400 ", b" 1e400 ", None),
        (b"null", b"null", None),
        (None, b"null", None),
        (b"ada", b'"ada"', "string"),
        (b"", b'""', "string"),
        (b"  ", b'"  "', "string"),
        (b"NaN", b'"NaN"', "string"),
        (b"1,2", b'"1,2"', "string"),
        (b'{"a":', b'"{\\"a\\":"', "string"),
        ("é".encode(), '"é"'.encode(), "string"),
        (b"\xff", b'"/w=="', "binary"),
        (b'"\xff"', b'"Iv8i"', "binary"),
        (b"[" * 100_000, b'"' + b"[" * 100_000 + b'"', "string"),
    ],
)
def test_values_are_json_where_they_are_json_and_say_what_else_they_are(stored, shown, stored_as):
    line = json_lines(batch(stored))
    assert line.count(b"\n") == 1
    tail = b'"headers":[]}\n'
    stored_tail = b"" if stored_as is None else b'"value_format":"%b",' % stored_as.encode()
    assert line.endswith(b'"key":null,"value":' + shown + b"," + stored_tail + tail)
    assert json.loads(line) == json.loads(pretty_lines(batch(stored)))


def test_keys_are_shown_as_values_are():
    assert json.loads(json_lines(batch(None, b"17")))["key"] == 17
    found = json.loads(json_lines(batch(None, b"ada", [("h", b"hi"), ("n", None)])))
    assert (found["key"], found["key_format"]) == ("ada", "string")
    assert found["headers"] == [{"key": "h", "value": "aGk="}, {"key": "n", "value": None}]


def test_pretty_is_one_object_over_several_lines():
    assert pretty_lines(batch(b'{"a": [1]}')).decode().splitlines()[4:9] == [
        '  "timestamp": 1500,',
        '  "key": null,',
        '  "value": {',
        '    "a": [',
        "      1",
    ]
