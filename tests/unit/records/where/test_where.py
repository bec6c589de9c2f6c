"""The expressions of --where: the records that they select, unknown values, and their errors."""

import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidWhereError
from logstore.records.schema import LOG_SCHEMA, null_headers
from logstore.records.where.evaluation import Where
from logstore.records.where.expression import (
    And,
    Comparison,
    Key,
    Not,
    Operator,
    Or,
    Path,
    Timestamp,
    TimestampRange,
    both,
    key_equals,
    key_forms,
    text_of,
    timestamps,
)
from logstore.records.where.parser import COMPARISONS_MAX, LENGTH_MAX, parse_where


def batch_of(records):
    """Return a batch of ``(key, value, timestamp)``, cut from a larger one."""
    keys, values, times = zip(*[(b"before", b'{"a":1}', 0), *records], strict=True)
    columns = [
        pa.array(range(len(keys)), pa.int64()),
        pa.array(times, pa.int64()).cast(pa.timestamp("ms", "UTC")),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        null_headers(len(keys)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LOG_SCHEMA).slice(1)


def selected(text, records):
    return Where(parse_where(text)).mask(batch_of(records)).to_pylist()


def of_values(text, *values):
    return selected(
        text, [(None, value if value is None or isinstance(value, bytes) else value.encode(), 0) for value in values]
    )


def of_keys(text, *keys):
    return selected(text, [(key, None, 0) for key in keys])


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ('$.user == "ada"', '{"user":"ada"}', True),
        ("$.user == 'ada'", ' {"x": [1, {}], "user" : "ada"} ', True),
        ('$.user == "ada"', '{"user":"bob","ada":1}', False),
        ('$.user == "ada"', '{"other":{"user":"ada"}}', False),
        ('$.user == "ada"', r'{"user":"\u0061da"}', True),
        ('$.user == "ada"', r'{"us\u0065r":"ada"}', True),
        ('$.user == "gr\u00fc\u00dfe"', '{"user":"gr\u00fc\u00dfe"}', True),
        ('$.user == "gr\\u00fc\u00dfe"', json.dumps({"user": "gr\u00fc\u00dfe"}), True),
        (r'$.path == "a/b\"c"', r'{"path":"a\/b\"c"}', True),
        ("$.a.b[1] == 7", '{"a":{"b":[1,7]}}', True),
        ("$.a.b[2] == 7", '{"a":{"b":[1,7]}}', False),
        ("$[0] == 1", "[1]", True),
        ('$["a b"].c-d == 1', '{"a b":{"c-d":1}}', True),
        ("$['a'] == 1", '{"a":1}', True),
        ('$ == "text"', '"text"', True),
        ("$ == 5", "5", True),
        ("$.a == 1", '{"a":1.0}', True),
        ("$.a == 1", '{"a":10e-1}', True),
        ("$.a == 0", '{"a":-0}', True),
        ("$.a == 1", '{"a":true}', False),
        ("$.a == true", '{"a":1}', False),
        ("$.a == true", '{"a":true}', True),
        ("$.a != false", '{"a":true}', True),
        ('$.a == "1"', '{"a":1}', False),
        ('$.a != "1"', '{"a":1}', True),
        ('$.a != "1"', '{"a":{}}', True),
        ("$.a == 9007199254740993", '{"a":9007199254740992}', False),
        ("$.a == 9007199254740993", '{"a":9007199254740993}', True),
        ("$.a == 123456789012345678901234567890.5", '{"a":123456789012345678901234567890.5}', True),
        ("$.a < 0.1000000000000000055511151231257827", '{"a":0.1}', True),
        ("$.a > 0.1", '{"a":0.10}', False),
        ("$.a < 1e400", '{"a":1e399}', True),
        ("$.a > 5", '{"a":1e99999999999999999999999}', False),
        ('$.a >= "b"', '{"a":"b"}', True),
        ('$.a < "b"', '{"a":"B"}', True),
        ("$.a > 1", '{"a":"2"}', False),
        ("not $.a > 1", '{"a":"2"}', False),
        ('$.a == "x"', '{"a":"x","a":"y"}', False),
        ('$.a == "y"', '{"a":"x","a":"y"}', True),
        (r'$.a == "\ud800"', r'{"a":"\ud800"}', True),
        (r'$.a != "x"', r'{"a":"\ud800"}', True),
        ("$.a.b[0] == 1.5", r'{"x":"\ud800","a":{"b":[1.5]}}', True),
        ("$.a == null", r'{"x":"\ud800","a":{}}', False),
        ("$.a == null", r'{"x":"\ud800","a":NaN}', True),
        ("$.a > 1", '{"a":' + "9" * 5000 + "}", True),
        ("$.a.b == 1 or $.a.c == 1", '{"a":{"c":1}}', True),
        ("$.a.b == null", '{"a":5}', True),
        ("$.a.b == 1 or $.a == 5", '{"a":5}', True),
        ("$.a.b.c == 1 or $.x.y == 2", '{"a":{"b":[]},"x":{"y":2}}', True),
    ],
)  # fmt: skip
def test_a_field_is_compared_exactly_and_by_its_type(text, value, expected):
    assert of_values(text, value) == [expected]


@pytest.mark.parametrize(
    "value",
    [None, "", "ada", "{", '{"b":1}', '{"a":null}', '{"a":1} x', b'{"a":1,"b":"\xff"}', "[1]", "[" * 100_000, "NaN"],
)
def test_a_field_that_is_not_there_is_unknown_as_in_sql(value):
    assert of_values("$.a == null", value) == [True]
    for text in (
        "$.a == 1",
        "$.a != 1",
        "not $.a == 1",
        "$.a < 1",
        "$.a != null",
        "not $.a == null",
        '$.a == "x"',
        "not ($.a == 1 or $.a == 2)",
    ):
        assert of_values(text, value) == [False], text
    # A known operand decides where the unknown one does not matter.
    assert of_values("$.a == 1 or $.a == null", value) == [True]
    assert of_values("not ($.a == 1 and $.a != null)", value) == [True]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('key == "ada"', [True, True, False, False, False]),
        ('key != "ada"', [False, False, True, True, False]),
        ('not key == "ada"', [False, False, True, True, False]),
        ("key == null", [False, False, False, False, True]),
        ("key != null", [True, True, True, True, False]),
        ("key == 17", [False, False, True, False, False]),
        ("key < 18", [False, False, True, False, False]),
        ("key != 17", [True, True, False, True, False]),
        ("key == x'ff00'", [False, False, False, True, False]),
        ('key > X"fe"', [False, False, False, True, False]),
        ('key >= "b"', [False, False, False, True, False]),
        ('key <= "ada"', [True, True, True, False, False]),
    ],
)  # fmt: skip
def test_a_key_is_compared_by_its_text(text, expected):
    assert of_keys(text, b"ada", b'"ada"', b"17", b"\xff\x00", None) == expected


def test_the_forms_of_a_key_are_those_that_encoders_write():
    assert key_forms("ada") == {b"ada", b'"ada"'}
    assert key_forms("\u00fc") == {"\u00fc".encode(), '"\u00fc"'.encode(), b'"\\u00fc"'}
    assert (
        Where(key_equals("\u00fc")).mask(batch_of([(form, None, 0) for form in key_forms("\u00fc")])).to_pylist()
        == [True] * 3
    )


@pytest.mark.parametrize(
    ("text", "spellings"),
    [
        ("a/b", [rb'"a\/b"', rb'"\u0061\u002Fb"', b'"a/b"', b"a/b", b'"a/b" ']),
        ("<&>'+", [rb'"\u003c\u0026\u003e\u0027\u002B"', b"<&>'+", b"\"<&>'+\"", rb'"<\u0026>\u0027+"']),
        ("\u00fc", [rb'"\u00FC"', rb'"\u00fc"', '"\u00fc"'.encode()]),
        ("\x08\u20ac\U0001f600", [rb'"\u0008\u20AC\uD83D\uDE00"', '"\\b\u20ac\U0001f600"'.encode()]),
        ("\ud800\u00fc", [rb'"\uD800\u00fc"', b'"\\ud800\xc3\xbc"']),
        ('"\\', [rb'"\"\\"', rb'"\u0022\u005C"']),
    ],
)  # fmt: skip
def test_all_json_texts_of_a_string_are_the_same_key(text, spellings):
    others = [b"\xff", rb'"a\/c"', rb'"a\x"', rb'"a\/b', rb'"a\/b","b"', None, rb"a\/b", b'"', b'"\xff\\/']
    batch = batch_of([(key, None, 0) for key in (*spellings, *others)])
    assert Where(key_equals(text)).mask(batch).to_pylist() == [True] * len(spellings) + [False] * len(others)
    unequal = Where(Not(key_equals(text))).mask(batch).to_pylist()
    assert unequal == [False] * len(spellings) + [key is not None for key in others]


def test_a_timestamp_is_compared_with_ms_and_iso_8601():
    records = [(None, None, at) for at in (999, 1000, 1001)]
    assert selected("timestamp >= 1000", records) == [False, True, True]
    assert selected('timestamp == "1970-01-01T00:00:01Z"', records) == [False, True, False]
    assert selected('timestamp < "1970-01-01T01:00:01+01:00"', records) == [True, False, False]
    assert selected('timestamp != "1970-01-01T00:00:01.000"', records) == [True, False, True]


def test_and_binds_stronger_than_or_and_not_strongest():
    a, b, c = (Comparison(Path((name,)), Operator.equal, 1) for name in "abc")
    assert parse_where("$.a==1 or $.b==1 and not $.c==1") == Or((a, And((b, Not(c)))))
    assert parse_where("($.a==1 OR $.b==1) AND $.c==1") == And((Or((a, b)), c))
    assert parse_where("not not $.a == 1") == Not(Not(a))


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("", 1, "expected key, timestamp, a field as $.user, not or (, found the end"),
        ("$.user", 7, "expected one of == != < <= > >=, found the end"),
        ("$.user = 1", 8, "'=' is not understood: use =="),
        ("$.user <> 1", 8, "'<' is not understood: use !="),
        ("$.a == 1 && $.b == 2", 10, "use and"),
        ("$.user == ada", 11, "expected a text in quotes, a number, true, false or null, found 'ada'"),
        ('$.user == "ada', 11, "no closing quote"),
        (r'$.user == "\x"', 11, "not a JSON string"),
        ("user == 1", 1, "expected key, timestamp, a field as $.user"),
        ("$.items[01] == 1", 8, 'a field goes on with .name, [0] or ["name"]'),
        ("($.a == 1", 10, "expected and, or, or ), found the end"),
        ("$.a == 1)", 9, "expected and, or, or the end, found ')'"),
        ("$.a == 1 $.b == 2", 10, "expected and, or, or the end, found '$.b'"),
        ("$.a[-1] == 1", 4, "goes on with"),
        ("$.* == 1", 2, "goes on with"),
        ("$..a == 1", 2, "goes on with"),
        ("$.a == 01", 8, "'0' is not understood"),
        ("$.a == 1.", 8, "is not understood"),
        ("$.a < null", 7, "only == or !="),
        ("$.a == x'ff'", 8, "bytes are compared with key alone"),
        ("key == x'f'", 8, "hexadecimal"),
        ("timestamp > 1.5", 13, "whole milliseconds"),
        ('timestamp > "soon"', 13, "whole milliseconds"),
        ('timestamp > "2026-11-21T00:00:00.0001Z"', 13, "whole milliseconds"),
        ("timestamp == null", 14, "whole milliseconds"),
        ("timestamp > 99999999999999999", 13, "whole milliseconds"),
        ("$.a[99999999999999] == 1", 4, "no array"),
        ("(" * 60 + "$.a == 1" + ")" * 60, 52, "nest deeper"),
        ("not " * 60 + "$.a == 1", 205, "nest deeper"),
        ("$.a == 1e99999999999999999999", 8, "out of range"),
    ],
)  # fmt: skip
def test_an_error_names_the_position(text, position, message):
    with pytest.raises(InvalidWhereError) as refused:
        parse_where(text)
    assert refused.value.position == position
    assert f"Position {position} " in refused.value.message
    assert message in refused.value.message


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "\x00", "\ud800"])
def test_a_field_may_have_any_name(name):
    value = json.dumps({name: 1, "other": {name: "x"}})
    assert of_values(f"$[{json.dumps(name)}] == 1", value, "{}") == [True, False]
    assert of_values(f'$.other[{json.dumps(name)}] == "x" and $[{json.dumps(name)}] == 1', value, "{}") == [True, False]


@pytest.mark.parametrize("depth", [31, 32, 33, 500])
def test_a_field_may_lie_deep(depth):
    value = '{"a":' * depth + "1" + "}" * depth
    assert of_values("$" + ".a" * depth + " == 1", value, '{"a":1}') == [True, False]


def test_a_path_may_be_as_long_as_the_expression():
    assert of_values("$" + ".a" * (LENGTH_MAX // 2 - 5) + " == 1", '{"a":{"a":1}}') == [False]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_json_is_utf_8_alone(encoding):
    assert of_keys("key == 1", "1".encode(encoding), b"1") == [False, True]
    assert of_values("$ == 1", "1".encode(encoding), b"1") == [False, True]


def test_a_long_expression_is_refused_as_a_whole():
    with pytest.raises(InvalidWhereError, match="at most"):
        parse_where('key == "' + "x" * LENGTH_MAX + '"')
    parse_where(" or ".join(["key == 1"] * COMPARISONS_MAX))
    with pytest.raises(InvalidWhereError, match="at most 100 comparisons"):
        parse_where(" or ".join(["key == 1"] * (COMPARISONS_MAX + 1)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("timestamp >= 5 and timestamp < 9", (5, 8)),
        ("timestamp == 5 or timestamp == 9", (5, 9)),
        ("timestamp > 5 and $.a == 1", (6, None)),
        ("timestamp > 5 or $.a == 1", (None, None)),
        ("timestamp != 5", (None, None)),
        ("not timestamp <= 5", (None, None)),
        ("timestamp < 5 and timestamp > 5 or timestamp == 7", (7, 7)),
    ],
)
def test_the_range_of_timestamps_that_an_expression_implies(text, expected):
    every = TimestampRange()
    low, high = expected
    assert timestamps(parse_where(text)) == TimestampRange(
        every.low if low is None else low, every.high if high is None else high
    )


def test_an_expression_is_shown_with_its_literals_replaced():
    node = parse_where("""($.a.b[0] == 'x"y' or key == x'00ff') and not (timestamp > 5 or $["a b"] < 1.50)""")
    assert text_of(node) == """($.a.b[0] == "x\\"y" or key == x'00ff') and not (timestamp > 5 or $["a b"] < 1.50)"""
    seen = []
    hidden = text_of(node, lambda literal: seen.append(literal) or "?")
    assert hidden == '($.a.b[0] == ? or key == ?) and not (timestamp > ? or $["a b"] < ?)'
    assert seen == ['x"y', b"\0\xff", 5, Decimal("1.50")]


def test_two_expressions_make_one():
    one, other = key_equals("a"), parse_where("$.x == 1")
    assert both(None, one) is one
    assert both(one, None) is one
    assert both(one, other) == And((one, other))


def test_keys_decide_without_values():
    where = Where(parse_where('key == "a" and $.x == 1'))
    batch = batch_of([(b"a", b'{"x":2}', 0), (b"b", b'{"x":1}', 0)])
    assert where.possible(batch.select(["key"])).to_pylist() == [True, False]
    assert where.columns == {"key", "value"}


# ---- against a plain reading of the definition -----------------------------------------------------------------------

_scalars = st.sampled_from(["ada", "a", "", 0, 1, Decimal("1.5"), True, False, None])
_operands = st.sampled_from([Key(), Timestamp(), Path(("a",)), Path(("a", "b")), Path(("a", 0)), Path(())])


@st.composite
def _comparisons(draw):
    operand = draw(_operands)
    operator = draw(st.sampled_from(list(Operator)))
    literal = draw(st.integers(0, 2)) if isinstance(operand, Timestamp) else draw(_scalars)
    if operator.is_order and (literal is None or isinstance(literal, bool)):
        literal = 1
    return Comparison(operand, operator, literal)


_nodes = st.recursive(
    _comparisons(),
    lambda parts: st.one_of(
        parts.map(Not),
        st.lists(parts, min_size=2, max_size=3).map(lambda found: And(tuple(found))),
        st.lists(parts, min_size=2, max_size=3).map(lambda found: Or(tuple(found))),
    ),
    max_leaves=6,
)
_json_scalars = st.sampled_from(["ada", "a", "", 0, 1, 1.5, True, False, None])
_documents = st.recursive(
    _json_scalars,
    lambda parts: st.one_of(st.lists(parts, max_size=2), st.dictionaries(st.sampled_from("ab"), parts)),
    max_leaves=4,
)
_values = st.one_of(
    st.none(), st.just(b"{"), _documents.map(lambda found: json.dumps(found).encode()), st.just(b'{"a":"\\u0061da"}')
)
_records = st.lists(
    st.tuples(st.sampled_from([None, b"ada", b'"a"', b"1", b"true"]), _values, st.integers(0, 2)), max_size=8
)


def _found(node, key, document, timestamp):
    match node.operand:
        case Timestamp():
            return timestamp
        case Key() if key is None:
            return None
        case Key() if isinstance(node.literal, str):
            return key.decode().strip('"')
        case Key():
            return _loaded(key, {})
        case Path(steps):
            for step in steps:
                kind = dict if isinstance(step, str) else list
                try:
                    document = document[step] if isinstance(document, kind) else None
                except LookupError:
                    document = None
            return document


def _loaded(text, otherwise):
    try:
        return json.loads(text)
    except ValueError:
        return otherwise


def _meaning(node, key, document, timestamp):
    match node:
        case Not(part):
            found = _meaning(part, key, document, timestamp)
            return None if found is None else not found
        case And(parts) | Or(parts):
            found = [_meaning(part, key, document, timestamp) for part in parts]
            decisive = isinstance(node, Or)
            return decisive if decisive in found else None if None in found else not decisive
    literal, found = node.literal, _found(node, key, document, timestamp)
    if literal is None:
        return (found is None) is (node.operator is Operator.equal)
    if found is None:
        return None
    kinds = [
        str
        if isinstance(x, str)
        else bool
        if isinstance(x, bool)
        else int
        if isinstance(x, (int, float, Decimal))
        else dict
        for x in (found, literal)
    ]
    if kinds[0] is not kinds[1]:
        return None if node.operator.is_order else node.operator is Operator.not_equal
    if kinds[0] is dict:
        return None
    compared = {"==": found == literal, "!=": found != literal}
    if node.operator.is_order:
        compared = {"<": found < literal, "<=": found <= literal, ">": found > literal, ">=": found >= literal}
    return compared[node.operator.value]


@given(_nodes, _records)
def test_the_mask_is_what_the_definition_says(node, records):
    expected = []
    for key, value, timestamp in records:
        document = None if value is None else _loaded(value, None)
        expected.append(_meaning(node, key, document, timestamp) is True)
    batch = batch_of(records)
    where = Where(node)
    assert where.mask(batch).to_pylist() == expected
    possible = where.possible(batch.select(["key", "timestamp"])).to_pylist()
    assert all(not wanted or may_be for wanted, may_be in zip(expected, possible, strict=True))
    implied = timestamps(node)
    assert all(
        not wanted or implied.low <= at <= implied.high for wanted, (_, _, at) in zip(expected, records, strict=True)
    )


@given(_nodes)
def test_the_text_of_an_expression_parses_to_the_same(node):
    text = text_of(node)
    assert text_of(parse_where(text)) == text
    batch = batch_of([(b"ada", b'{"a":1}', 1), (None, b"[]", 0), (b"1", b"1.5", 2)])
    assert Where(parse_where(text)).mask(batch).equals(Where(node).mask(batch))


def test_many_rows_are_parsed_in_parts():
    records = [(None, b'{"a":%d}' % (number % 7), 0) for number in range(5000)]
    found = Where(parse_where("$.a == 3")).mask(batch_of(records)).to_numpy(zero_copy_only=False)
    assert (found == (np.arange(5000) % 7 == 3)).all()
