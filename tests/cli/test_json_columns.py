"""Columns have the JSON forms that docs/cli.md promises."""

import json
import uuid
from decimal import Decimal

import pyarrow as pa
import pytest

from logstore.cli.json_columns import json_objects, json_texts, key_texts
from logstore.errors import InvalidRecordError

FORMS = [
    (pa.array([1, -5], pa.int8()), ["1", "-5"]),
    (pa.array([2**64 - 1], pa.uint64()), ["18446744073709551615"]),
    (pa.array([True, False]), ["true", "false"]),
    (pa.array([0.1, 5.0, 1e300, -0.0]), ["0.1", "5.0", "1e+300", "-0.0"]),
    (pa.array([float("nan"), float("inf"), -float("inf")]), ['"NaN"', '"Infinity"', '"-Infinity"']),
    (pa.array([0.1], pa.float32()), ["0.1"]),
    (pa.array([0.5], pa.float16()), ["0.5"]),
    (pa.array([Decimal("12.50"), Decimal(-1)], pa.decimal128(20, 2)), ["12.50", "-1.00"]),
    (
        pa.array([Decimal("0.123456789012345678901234567890")], pa.decimal256(60, 30)),
        ["0.123456789012345678901234567890"],
    ),
    (pa.array(["00123", 'q"\\\n\x01é', ""]), ['"00123"', '"q\\"\\\\\\n\\u0001é"', '""']),
    (pa.array(["a"], pa.large_string()), ['"a"']),
    (pa.array(["a", "b", "a"]).dictionary_encode(), ['"a"', '"b"', '"a"']),
    (pa.array([b"\xff"]), ['"/w=="']),
    (pa.array([b"ab"], pa.binary(2)), ['"YWI="']),
    (pa.array([1_500], pa.timestamp("ms", "Europe/Berlin")), ['"1970-01-01T00:00:01.500Z"']),
    (pa.array([1], pa.timestamp("ns")), ['"1970-01-01T00:00:00.000000001"']),
    (pa.array([-1], pa.timestamp("us", "UTC")), ['"1969-12-31T23:59:59.999999Z"']),
    (pa.array([0], pa.timestamp("s")), ['"1970-01-01T00:00:00"']),
    (pa.array([1], pa.date32()), ['"1970-01-02"']),
    (pa.array([86_400_000], pa.date64()), ['"1970-01-02"']),
    (pa.array([3_661], pa.time32("s")), ['"01:01:01"']),
    (pa.array([1], pa.time64("ns")), ['"00:00:00.000000001"']),
    (pa.array([90_500, -1_500, -1], pa.duration("ms")), ['"PT90.500S"', '"PT-1.500S"', '"PT-0.001S"']),
    (pa.array([90], pa.duration("s")), ['"PT90S"']),
    (pa.array([1], pa.duration("ns")), ['"PT0.000000001S"']),
    (pa.array([[1, None], []]), ["[1,null]", "[]"]),
    (pa.array([["a", '"'], ["b"]], pa.large_list(pa.string())), ['["a","\\""]', '["b"]']),
    (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), ["[1,2]"]),
    (pa.array([[[1], None]]), ["[[1],null]"]),
    (
        pa.array([{"a": 1, "b": {"c": ["x"]}}, {"a": None, "b": None}]),
        ['{"a":1,"b":{"c":["x"]}}', '{"a":null,"b":null}'],
    ),
    (pa.array([{}], pa.struct([])), ["{}"]),
    (pa.array([[("a", 1), ("b", None)], []], pa.map_(pa.string(), pa.int64())), ['{"a":1,"b":null}', "{}"]),
    (pa.array([[(1, "x")]], pa.map_(pa.int64(), pa.string())), ['{"1":"x"}']),
    (pa.array([[(0, "x")]], pa.map_(pa.timestamp("s"), pa.string())), ['{"1970-01-01T00:00:00":"x"}']),
    (pa.array([uuid.UUID(int=5).bytes], pa.uuid()), ['"00000000-0000-0000-0000-000000000005"']),
]


@pytest.mark.parametrize(("column", "texts"), FORMS, ids=[str(column.type) for column, _ in FORMS])
def test_each_type_has_its_form(column, texts):
    assert json_texts(column).to_pylist() == texts
    assert [json.dumps(json.loads(text)) for text in texts], "each is one JSON value"


@pytest.mark.parametrize(("column", "texts"), FORMS, ids=[str(column.type) for column, _ in FORMS])
def test_nulls_and_slices(column, texts):
    column = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    nulls = pa.nulls(1, column.type)
    longer = pa.concat_arrays([column, nulls, column])[1:]
    assert json_texts(longer).to_pylist() == [*texts[1:], "null", *texts]
    assert key_texts(longer).to_pylist()[len(texts) - 1] is None


def test_no_values():
    for column, _ in FORMS:
        assert json_texts(column[:0]).to_pylist() == []


def test_a_key_is_what_it_is_and_not_its_json():
    for column, keys in (
        (pa.array(["ada", "", None]), [b"ada", b"", None]),
        (pa.array([b"\xff"]), [b"\xff"]),
        (pa.array(["a"]).dictionary_encode(), [b"a"]),
        (pa.array([7, None]), ["7", None]),
        (pa.array([1], pa.date32()), ["1970-01-02"]),
        (pa.array([{"a": "b"}]), ['{"a":"b"}']),
    ):
        assert key_texts(column).to_pylist() == keys


def test_rows_are_objects_of_all_columns():
    batch = pa.RecordBatch.from_pydict({"zip": ["00123", None], 'n"': [1, 2]})
    assert json_objects(batch).to_pylist() == ['{"zip":"00123","n\\"":1}', '{"zip":null,"n\\"":2}']


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), "column 'c': values of type month_day_nano_interval"),
        (pa.array([10**13], pa.timestamp("s")), "column 'c': a value of type timestamp"),
        (pa.array([[{"i": (1, 2, 3)}]], pa.list_(pa.struct([("i", pa.month_day_nano_interval())]))), "no JSON form"),
    ],
)
def test_a_type_without_a_json_form_is_named(column, says):
    with pytest.raises(InvalidRecordError) as error:
        json_objects(pa.RecordBatch.from_arrays([column], ["c"]))
    assert says in error.value.message


def test_text_that_is_not_utf8_is_no_text():
    column = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    with pytest.raises(pa.ArrowInvalid):
        json_texts(column)
