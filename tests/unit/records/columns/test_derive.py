import json
import math
import re
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.json
import pytest
from hypothesis import given, settings

from logstore.records.columns import derive as derive_module
from logstore.records.columns.derive import FRAMED_ROWS_MIN, derive
from logstore.records.columns.field_tree import FieldNode, field_tree
from logstore.records.columns.framed import FramedConverter
from logstore.records.columns.one_value import value_converter
from logstore.records.columns.schema import Column, ColumnSchema
from tests.support.column_values import ODD_SCHEMA, odd_values, schema_of, schemas_with_values


@pytest.fixture(scope="module", params=["kernel", "library"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run all tests with the kernel, and as on a machine without a compiler."""
    if request.param == "kernel" and derive_module.KERNEL is None:
        pytest.skip("the kernel is not compiled")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "library":
            patch.setattr(derive_module, "KERNEL", None)
        derive_module._deriver.cache_clear()
        yield request.param
    derive_module._deriver.cache_clear()


def rows_of(schema: ColumnSchema, *values: bytes | str | None) -> list[dict[str, Any]]:
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    batch = derive(schema, pa.array(encoded, pa.binary()))
    batch.validate(full=True)
    assert batch.schema == pa.schema(schema.arrow_fields)
    assert batch.num_rows == len(values)
    return batch.to_pylist()


def reason_of(schema: ColumnSchema, value: bytes | str) -> str | None:
    (row,) = rows_of(schema, value)
    reason = row.pop("value_error")
    assert reason is None or not any(found is not None for found in row.values())
    return reason


# ---- the rule, whichever way derives --------------------------------------------------------------------------------

NOT_JSON = "$: expected JSON, got another text"
REASONS = [
    ("i bigint", '{"i":"1"}', "$.i: expected an integer, got a string"),
    ("i bigint", '{"i":1.5}', "$.i: expected an integer, got a number with a fraction or an exponent"),
    ("i bigint", '{"i":1e3}', "$.i: expected an integer, got a number with a fraction or an exponent"),
    ("i bigint", '{"i":9223372036854775808}', "$.i: expected an integer, got one out of range"),
    ("i bigint", '{"i":-9223372036854775809}', "$.i: expected an integer, got one out of range"),
    ("i bigint", f'{{"i":{"9" * 5_000}}}', "$.i: expected an integer, got one out of range"),
    ("i bigint", '{"i":18446744073709551616}', "$.i: expected an integer, got one out of range"),
    ("i bigint", '{"i":true}', "$.i: expected an integer, got a boolean"),
    ("i bigint", '{"i":[]}', "$.i: expected an integer, got an array"),
    ("i bigint", '{"i":{}}', "$.i: expected an integer, got an object"),
    ("i bigint", '{"i":1,"i":1}', "$.i: expected once, got twice"),
    ("i bigint", '{"i":null,"\\u0069":null}', "$.i: expected once, got twice"),
    ("d double", '{"d":"NaN"}', "$.d: expected a number, got a string"),
    ("d double", '{"d":1e400}', "$.d: expected a number, got one out of range"),
    ("d double", '{"d":1.7976931348623159e308}', "$.d: expected a number, got one out of range"),
    ("d double", '{"d":NaN}', NOT_JSON),
    ("d double", '{"x":Infinity}', NOT_JSON),
    ("m decimal(4,2)", '{"m":1.234}', "$.m: expected a decimal(4,2), got one out of range"),
    ("m decimal(4,2)", '{"m":100}', "$.m: expected a decimal(4,2), got one out of range"),
    ("m decimal(4,2)", '{"m":1e1000000000000}', "$.m: expected a decimal(4,2), got one out of range"),
    ("m decimal(38,0)", '{"m":4e38}', "$.m: expected a decimal(38,0), got one out of range"),
    (
        "m decimal(38,0)",
        '{"m":3402823669209384634633746074317682114560}',
        "$.m: expected a decimal(38,0), got one out of range",
    ),
    ("m decimal(4,2)", '{"m":"1,5"}', "$.m: expected a decimal(4,2), got another string"),
    ("m decimal(4,2)", '{"m":"."}', "$.m: expected a decimal(4,2), got another string"),
    ("m decimal(4,2)", '{"m":false}', "$.m: expected a decimal(4,2), got a boolean"),
    ("s string", '{"s":1}', "$.s: expected a string, got a number"),
    ("s string", r'{"s":"\ud800"}', "$: expected Unicode, got half of a surrogate pair"),
    ("s string", r'{"x":"\udc00\ud800"}', "$: expected Unicode, got half of a surrogate pair"),
    ("s string", r'{"s":"\udc00\udc00"}', "$: expected Unicode, got half of a surrogate pair"),
    ("s string", b'{"s":"\xff"}', "$: expected UTF-8, got other bytes"),
    ("s string", b'{"s":"\xed\xa0\x80"}', "$: expected UTF-8, got other bytes"),
    ("s string", '{"s":"\n"}', NOT_JSON),
    ("b boolean", '{"b":0}', "$.b: expected a boolean, got a number"),
    ("t timestamp", '{"t":0}', "$.t: expected a timestamp, got a number"),
    ("t timestamp", '{"t":"2024-01-01"}', "$.t: expected a timestamp, got another string"),
    ("t date", '{"t":"2024-01-01T00:00:00Z"}', "$.t: expected a date, got another string"),
    ("t epoch_s", '{"t":253402300800}', "$.t: expected an integer, got one out of range"),
    ("t epoch_ms", '{"t":-62135596800001}', "$.t: expected an integer, got one out of range"),
    ("t epoch_us", '{"t":1.5}', "$.t: expected an integer, got a number with a fraction or an exponent"),
    ("user.city string", '{"user":1}', "$.user: expected an object, got a number"),
    ("user.city string", '{"user":{"city":1}}', "$.user.city: expected a string, got a number"),
    ("o struct<x:bigint>", '{"o":[]}', "$.o: expected an object, got an array"),
    ("o struct<x:bigint>", '{"o":{"x":1,"x":1}}', "$.o.x: expected once, got twice"),
    ("l array<struct<x:bigint>>", '{"l":[{"x":1},{"x":"1"}]}', "$.l[].x: expected an integer, got a string"),
    ("l array<bigint>", '{"l":{}}', "$.l: expected an array, got an object"),
    ("l array<bigint>", '{"l":[[]]}', "$.l[]: expected an integer, got an array"),
    # The first field that does not fit gives the reason, and a text that is no JSON comes before all fields.
    ("a bigint, b bigint", '{"b":"","a":""}', "$.b: expected an integer, got a string"),
    ("a bigint, b bigint", '{"b":"","a":""', NOT_JSON),
    ("a bigint", '{"a":""}{}', NOT_JSON),
    ("a bigint", "", "$: expected an object, got nothing"),
    ("a bigint", " \n", "$: expected an object, got nothing"),
    ("a bigint", "null", "$: expected an object, got null"),
    ("a bigint", '"x"', "$: expected an object, got a string"),
    ("a bigint", "12", "$: expected an object, got a number"),
    ("a bigint", "true", "$: expected an object, got a boolean"),
    ("a bigint", '[{"a":1}]', "$: expected an object, got an array"),
    ("a bigint", '{"a":1}\n{"a":2}', NOT_JSON),
    ("a bigint", '{"a":1}\x00', NOT_JSON),
    ("a bigint", '{"a":01}', NOT_JSON),
    ("a bigint", '{"a":1,}', NOT_JSON),
    ("a bigint", "{'a':1}", NOT_JSON),
    ("a bigint", '{"a":1}//', NOT_JSON),
    ("a bigint", '\N{ZERO WIDTH NO-BREAK SPACE}{"a":1}', NOT_JSON),
    ("a bigint", '{"a":1}'.encode("utf-16"), "$: expected UTF-8, got other bytes"),
    ("a bigint", '{"a":1}'.encode("utf-16-be"), NOT_JSON),
    ("a bigint", "[" * 100_000, "$: expected at most 64 levels, got more"),
    ("a bigint", '{"x":' * 64 + "{}" + "}" * 64, "$: expected at most 64 levels, got more"),
    ("a bigint", '{"x":' + "[" * 64 + "]" * 64 + "}", "$: expected at most 64 levels, got more"),
    (f"{'n' * 300} bigint", f'{{"{"n" * 300}":""}}', f"$.{'n' * 162}…: expected an integer, got a string"),
]


@pytest.mark.parametrize(("schema", "value", "reason"), REASONS)
def test_a_value_that_does_not_fit_has_null_columns_and_a_reason(schema: str, value: str | bytes, reason: str):
    assert reason_of(schema_of(schema), value) == reason
    assert len(reason) <= 200


GOOD = [
    ("i bigint", ' {"i" :\t-9223372036854775808}\r\n', -(2**63)),
    ("i bigint", '{"i":-0}', 0),
    ("i bigint", '{"x":[1,{"i":"no"}],"i":7,"x":1e999,"x":"[{"}', 7),
    ("i bigint", '{"\\u0069":7}', 7),
    ("i bigint", "{}", None),
    ("i bigint", '{"x":' + "[" * 63 + "]" * 63 + ',"i":7}', 7),
    ("i bigint", '{"x":"' + "[" * 1_000 + r"\"{\\" + '","i":7}', 7),
    ("i bigint", "{" + "".join(f'"x{n}":{n},' for n in range(10_000)) + '"i":7}', 7),
    ("d double", '{"d":12345678901234567890}', 12345678901234567890.0),
    ("d double", '{"d":18446744073709551616}', 18446744073709551616.0),
    ("d double", '{"d":9007199254740993}', 9007199254740992.0),
    ("d double", '{"d":1e22}', 1e22),
    ("d double", '{"d":1e23}', 1e23),
    ("d double", '{"d":3e-23}', 3e-23),
    ("d double", '{"d":0.1e+1}', 1.0),
    ("d double", '{"d":4.9e-324}', 5e-324),
    ("d double", '{"d":1e-999}', 0.0),
    ("d double", f'{{"d":0.{"3" * 2_000}}}', 1 / 3),
    ("s string", r'{"s":"\u0000\u00e9\ud83d\ude00\/\"\\\b\f\n\r\t"}', '\x00é😀/"\\\b\f\n\r\t'),
    ("s string", '{"s":"é😀"}', "é😀"),
    ("b boolean", '{"b":false}', False),
    ("o struct<x:bigint,y:string>", '{"o":{"y":"a"}}', {"x": None, "y": "a"}),
    ("o struct<x:bigint,y:string>", '{"o":null}', None),
    ("user.name.first string", '{"user":{"name":{"first":"Ada"}}}', "Ada"),
    ("user.name.first string", '{"user":{"name":null}}', None),
    ("l array<array<bigint>>", '{"l":[[1,null],null,[]]}', [[1, None], None, []]),
    ("l array<struct<x:bigint>>", '{"l":[{"x":1},null,{}]}', [{"x": 1}, None, {"x": None}]),
]


@pytest.mark.parametrize(("schema", "value", "expected"), GOOD)
def test_a_value_that_fits(schema: str, value: str, expected: object):
    (row,) = rows_of(schema_of(schema), value)
    assert row.pop("value_error") is None
    assert list(row.values()) == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[("1.5", "1.50"), ('"1.5"', "1.50"), ('"+1.5"', "1.50"), ('".5"', "0.50"), ('"5."', "5.00"), ("-0", "0.00")],
        *[
            ("9.9e1", "99.00"),
            ("0.00000e99999", "0.00"),
            ("1.500000", "1.50"),
            ("150000e-5", "1.50"),
            ('"007"', "7.00"),
        ],
    ],
)
def test_decimals_are_never_rounded(text: str, expected: str):
    (row,) = rows_of(schema_of("m decimal(4,2)"), f'{{"m":{text}}}')
    assert str(row["m"]) == expected


def test_a_decimal_may_have_all_its_digits():
    value, least = "9" * 38, "0." + "0" * 37 + "1"
    (row,) = rows_of(schema_of("a decimal(38,0), b decimal(38,38)"), f'{{"a":-{value},"b":{least}}}')
    assert (f"{row['a']:f}", f"{row['b']:f}") == (f"-{value}", least)


def test_a_negative_zero_stays_one():
    (row,) = rows_of(schema_of("d double"), '{"d":-0.0}')
    assert math.copysign(1, row["d"]) == -1


def test_a_tombstone_has_null_columns_and_no_reason():
    assert rows_of(schema_of("i bigint"), None, '{"i":1}', None, "") == [
        {"i": None, "value_error": None},
        {"i": 1, "value_error": None},
        {"i": None, "value_error": None},
        {"i": None, "value_error": "$: expected an object, got nothing"},
    ]


def test_a_schema_without_columns_has_reasons():
    assert rows_of(ColumnSchema(()), '{"i":1}', "[]", None) == [
        {"value_error": None},
        {"value_error": "$: expected an object, got an array"},
        {"value_error": None},
    ]


def test_no_values_are_no_rows():
    schema = schema_of(ODD_SCHEMA)
    assert rows_of(schema) == []
    assert derive(schema, pa.chunked_array([], pa.binary())).schema == pa.schema(schema.arrow_fields)


@settings(max_examples=40, deadline=None)
@given(drawn=schemas_with_values())
def test_values_become_what_they_were_made_of(drawn: tuple[ColumnSchema, list[tuple[str, dict[str, Any]]]]):
    schema, made = drawn
    expected = [{**row, "value_error": None} for _, row in made]
    assert rows_of(schema, *(text for text, _ in made)) == expected
    # Many values go through pyarrow.json.
    assert rows_of(schema, *([text for text, _ in made] * 40)) == expected * 40


# ---- the ways agree -------------------------------------------------------------------------------------------------


def one_by_one(schema: ColumnSchema, values: list[bytes]) -> list[str]:
    """Return what the rule makes of each value; -0.0 and 0.0 have different texts."""
    deriver = derive_module.Deriver(schema, None)
    batch = deriver.batch(*deriver.convert_each(pa.array(values, pa.binary())))
    return [repr(row) for row in batch.to_pylist()]


def in_company(schema: ColumnSchema, values: list[bytes]) -> list[str]:
    batch = derive(schema, pa.array(values, pa.binary()))
    batch.validate(full=True)
    return [repr(row) for row in batch.to_pylist()]


@pytest.mark.parametrize("seed", range(4))
def test_a_value_has_the_same_row_alone_and_in_company(seed: int):
    schema, random = schema_of(ODD_SCHEMA), Random(seed)
    values = list(odd_values(random, 3_000))
    rows = one_by_one(schema, values)
    assert in_company(schema, values) == rows
    fits = [row.endswith("'value_error': None}") for row in rows]
    assert 0.15 < sum(fits) / len(fits) < 0.85
    # pyarrow.json refuses a chunk as a whole, so values are given to it in groups with few or no bad ones as well.
    good = [at for at, does_fit in enumerate(fits) if does_fit]
    for _ in range(12):
        group = random.choices(good, k=FRAMED_ROWS_MIN) + random.choices(range(len(values)), k=random.randrange(3))
        random.shuffle(group)
        assert in_company(schema, [values[at] for at in group]) == [rows[at] for at in group]


@pytest.mark.parametrize(
    ("schema", "value"),
    [(schema, value) for schema, value, _ in REASONS] + [(schema, value) for schema, value, _ in GOOD],
)
def test_an_odd_value_does_not_change_its_neighbours(schema: str, value: str | bytes):
    columns = schema_of(schema)
    odd = value.encode() if isinstance(value, str) else value
    values = [b"{}"] * FRAMED_ROWS_MIN + [odd] + [b"{}"]
    assert in_company(columns, values) == one_by_one(columns, values)


def test_pyarrow_is_never_given_a_bare_value(way: str):
    """See that each value is in a frame: pyarrow.json is not made for others. The values here would be harmless."""
    given: list[bytes] = []
    read_json = pyarrow.json.read_json

    def spy(source: Any, **options: Any) -> pa.Table:
        data = source.read()
        given.append(data)
        return read_json(pa.BufferReader(data), **options)

    values = [b'{"i":1}', b'{"i":2,\n"x":[{}]}', b'{"i":1.5}', b'{"i":3,"i":3}', b" {} ", b"null"] * 40
    if way == "kernel":
        # The kernel leaves escaped names to the library.
        values = [value.replace(b'"i"', b'"\\u0069"') for value in values]
    with mock.patch.object(pyarrow.json, "read_json", spy):
        for part in (values, values[:2] * 40, values[:1] * 40, values[:3] * 40):
            derive(schema_of("i bigint"), pa.array(part, pa.binary()))
    assert len(given) >= 4
    for data in given:
        name = re.match(rb'\{"(r[0-9a-f]{16})":', data)
        assert name
        begin = b'{"' + name[1] + b'":'
        frames = data.split(b"}\n" + begin)
        assert len(frames) > 1
        assert frames[0].startswith(begin)
        assert frames[-1].endswith(b"}")
        assert {frames[0].removeprefix(begin), *frames[1:-1], frames[-1][:-1]} <= set(values)
    assert len({data[:18] for data in given}) == len(given)


def test_a_chunk_of_another_number_of_rows_is_not_believed():
    """pyarrow.json takes two documents on a line for two rows: a frame that a value closed would be seen."""
    converter = FramedConverter(field_tree(schema_of("i bigint")))
    with mock.patch("logstore.records.columns.framed.random_bytes", return_value=bytes(8)):
        closed = b'{"i":1}}\n{"r0000000000000000":{"i":2}'
        rows, left = converter.convert(pa.array([b'{"i":1}', closed], pa.binary()))
    assert rows is not None
    assert (rows[0].as_py(), left.tolist()) == ({"i": 1}, [False, True])


@pytest.mark.parametrize("kind", ["slice", "chunked", "large chunks", "with nulls", "large_binary", "binary_view"])
def test_any_binary_array_is_taken(kind: str, monkeypatch: pytest.MonkeyPatch):
    schema, values = (
        schema_of("i bigint, s string"),
        [None if kind == "with nulls" and n % 3 else n for n in range(300)],
    )
    texts = pa.array([None if n is None else f'{{"i":{n},"s":"{n}"}}'.encode() for n in values], pa.binary())
    rows = [{"i": n, "s": None if n is None else str(n), "value_error": None} for n in values]
    if kind == "large chunks":
        monkeypatch.setattr(derive_module, "CHUNK_BYTES_MAX", 100)
    if "chunk" in kind:
        derived = derive(schema, pa.chunked_array([texts[:7], texts[7:7], texts[7:]]))
    else:
        kinds = {"large_binary": pa.large_binary(), "binary_view": pa.binary_view()}
        derived = derive(schema, texts[100:290].cast(kinds.get(kind, pa.binary())))
        rows = rows[100:290]
    assert derived.to_pylist() == rows


def test_a_chunk_has_a_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(derive_module, "CHUNK_BYTES_MAX", 100)
    values = pa.array([b"x" * n for n in (0, 0, 0, 0, 0, 0, 99, 1, 0, 1, 101, 300, 1, 1)], pa.binary())
    sizes = [[len(value) for value in part.to_pylist()] for part in derive_module._parts(values, 5)]
    assert sizes == [[0] * 5, [0, 99, 1, 0], [1], [101], [300], [1, 1]]
    rows = derive(schema_of("i bigint"), values).to_pylist()
    assert [row["value_error"] for row in rows] == [
        f"$: expected {'an object, got nothing' if not value.as_py() else 'JSON, got another text'}" for value in values
    ]


def test_many_columns_have_fewer_rows_in_a_step():
    assert derive_module.Deriver(schema_of("i bigint"), None).rows_max == 64 * 1024
    assert derive_module.Deriver(schema_of(",".join(f"c{n} bigint" for n in range(1_000))), None).rows_max == 2_095


def test_a_fault_of_the_program_stops_nothing(monkeypatch: pytest.MonkeyPatch):
    """Let the conversion fail at one value: its row alone has no columns, and its reason says what failed."""

    def failing_converter(root: FieldNode) -> Callable[[bytes], dict[str, Any]]:
        convert = value_converter(root)
        return lambda value: {"i": 1 // 0} if value == b'{"i":13}' else convert(value)

    monkeypatch.setattr(derive_module, "value_converter", failing_converter)
    derive_module._deriver.cache_clear()
    monkeypatch.setattr(derive_module.Deriver, "convert", lambda self, values: 1 / 0)
    assert rows_of(schema_of("i bigint"), None, '{"i":1}', '{"i":13}', "") == [
        {"i": None, "value_error": None},
        {"i": 1, "value_error": None},
        {"i": None, "value_error": "$: not derived because of an error (ZeroDivisionError)"},
        {"i": None, "value_error": "$: expected an object, got nothing"},
    ]
    derive_module._deriver.cache_clear()


def test_a_fault_of_the_derivation_is_a_reason_of_every_value(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(derive_module, "_deriver", lambda schema: 1 // 0)
    reason = "the columns could not be derived (ZeroDivisionError)"
    expected = [{"i": None, "value_error": None}, {"i": None, "value_error": reason}]
    values = pa.array([None, b'{"i":1}'], pa.binary())
    assert derive(schema_of("i bigint"), values).to_pylist() == expected
    assert derive(schema_of("i bigint"), pa.chunked_array([values, values])).to_pylist() == expected * 2
    assert caplog.text.count("columns.not_derived") == 2


def test_fields_may_have_any_name():
    names = ["a", "A b", 'q"', "back\\slash", "é", "", "x:y", "__class__", "f0", "😀", "\x00", "`"]
    schema = ColumnSchema(tuple(Column(f"c{n}", (name,), "bigint", pa.int64()) for n, name in enumerate(names)))
    value = json.dumps({name: n for n, name in enumerate(names)}).encode()
    expected = {**{f"c{n}": n for n in range(len(names))}, "value_error": None}
    assert derive(schema, pa.array([value] * 40 + [b'{"f0":"x"}'], pa.binary())).to_pylist()[:40] == [expected] * 40


def test_a_thousand_columns_in_any_order():
    schema = schema_of(",".join(f"c{n} bigint" for n in range(1_000)))
    random, values = Random(1), []
    for _ in range(50):
        numbers = random.sample(range(1_000), 1_000)
        values.append(json.dumps({f"c{n}": n for n in numbers}).encode())
    derived = derive(schema, pa.array(values, pa.binary()))
    assert all(derived[f"c{n}"].to_pylist() == [n] * 50 for n in range(1_000))


@pytest.mark.parametrize(
    "value",
    [
        *(
            b"[" * 1_000_000,
            b'{"x":' * 200_000,
            b'"' * 1_000_000,
            b'{"x":"' + rb"\"" * 500_000,
            b"{" * 64 + b'"' * 10**6,
        ),
        *(b'{"i":' + b"1" * 1_000_000 + b"}", b'{"d":' + b"1" * 1_000_000 + b"}", b'{"d":1e' + b"1" * 1_000_000 + b"}"),
        *(b'{"d":0.' + b"1" * 1_000_000 + b"}", b'{"m":"' + b"1" * 1_000_000 + b'"}', b'{"m":1e' + b"9" * 10**6 + b"}"),
        *(b'{"m":0.' + b"0" * 1_000_000 + b"1e1000001}", b'{"t":"' + b"1" * 1_000_000 + b'"}'),
        *(b'{"t":"1970-01-01T00:00:00.' + b"1" * 1_000_000 + b'"}', b"[{}," * 200_000, b"[" + b"{}," * 300_000),
        *(
            b'{"x":[' + b'{"x":1},' * 120_000 + b"1]}",
            b'{"i":1' + b',"i":1' * 160_000 + b"}",
            b" " * 1_000_000,
            b"\xff" * 10**6,
        ),
        *(b'{"s":"' + rb"\ud83d" * 160_000 + b'"}', b'{"s":"' + rb"\u00e9" * 160_000 + b'"}'),
    ],
)
def test_a_value_costs_a_time_by_its_bytes(value: bytes):
    """Derive a megabyte in less than seconds; a quadratic step would take minutes."""
    schema = schema_of("i bigint, d double, s string, t timestamp, m decimal(9,2), x array<struct<x:bigint>>")
    begin = time.process_time()
    alone = in_company(schema, [value])
    assert in_company(schema, [b"{}"] * 40 + [value])[-1] == alone[0]
    assert time.process_time() - begin < 20
