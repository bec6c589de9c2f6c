import json

import pyarrow as pa
import pytest

from logstore.records.columns.declaration import parse_columns
from logstore.records.columns.inference import Proposal, propose


def proposal(*values: object) -> Proposal:
    stored = [v if v is None or isinstance(v, bytes) else json.dumps(v).encode() for v in values]
    return propose(pa.array(stored, pa.binary()))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((1, None, 3), "BIGINT"),
        ((1, 2.5), "DOUBLE"),
        ((1, 2**63), "DECIMAL(38,0)"),
        ((True, False), "BOOLEAN"),
        (("2024-02-29T12:00:00Z", "2024-02-29T12:00:00.123456789+02:00"), "TIMESTAMP"),
        (("2024-02-29", "2023-01-01"), "DATE"),
        (("2024-02-29", "2024-02-29T12:00:00Z"), "STRING"),
        (("2023-02-29",), "STRING"),
        (("12", "13"), "STRING"),
        (([1, 2], [], None), "ARRAY<BIGINT>"),
        (([{"a": 1}], [{"b": "x"}]), "ARRAY<STRUCT<a: BIGINT, b: STRING>>"),
        (({"a": 1, "b": {"c": 1.5}},), "STRUCT<a: BIGINT, b: STRUCT<c: DOUBLE>>"),
    ],
)
def test_a_type_is_that_of_all_values(values, kind):
    found = proposal(*({"x": value} for value in values))
    assert found.ddl == f"x {kind}"
    assert found.fitting == found.sampled == len(values)
    assert parse_columns(found.ddl) == found.columns


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ((None, None), "null in every value"),
        ((1, "a", "b"), "values of several kinds: 2 string, 1 integer"),
        ((True, 1), "values of several kinds: 1 boolean, 1 integer"),
        (([], []), "an array that is empty in every value"),
        (({}, {}), "an object without a field that has a type"),
        ((10**40,), "values of several kinds: 1 very large integer"),
        (tuple({f"key{n}": 1} for n in range(120)), "an object with 120 different keys: a map"),
        (tuple({f"key{n % 60}": 1} for n in range(200)), "an object with 60 keys that are rare: a map"),
    ],
)
def test_a_field_without_a_type_is_left_out_with_the_reason(values, reason):
    found = proposal(*({"x": value, "n": 1} for value in values))
    assert found.ddl == "n BIGINT"
    assert [(one.field, one.reason) for one in found.left_out] == [("x", reason)]


def test_the_share_that_fits_is_what_the_columns_would_have():
    found = proposal({"n": 1}, {"n": 2}, None, b"{", [1], b'{"n": 1, "n": 2}')
    assert (found.sampled, found.fitting) == (6, 3)
    assert sum(count for _, count in found.misfits) == 3


def test_names_that_a_table_cannot_have_are_changed():
    found = proposal({"offset": 1, "a b.c": 2, "Name": "x", "name": "y", "": 1, "s": {"a b": 1, "K": 1, "k": 2}})
    assert found.ddl == (
        "value_offset BIGINT FROM offset, a_b_c BIGINT FROM `a b.c`, Name STRING, name_2 STRING FROM name, "
        "s STRUCT<K: BIGINT>"
    )
    assert [one.field for one in found.left_out] == ["``", "s.`a b`", "s.k"]
    assert parse_columns(found.ddl) == found.columns


def test_values_that_are_deep_or_large_are_no_trouble():
    deep = b"[" * 100_000 + b"]" * 100_000
    nested: object = 1
    for _ in range(40):
        nested = {"a": nested}
    wide = {f"f{n}": n for n in range(1_500)}
    found = proposal(deep, {"x": nested}, wide, b"\xff\xfe", {"x": {"a": 1}})
    assert len(found.columns) <= 1_000
    assert parse_columns(found.ddl) == found.columns


def test_a_sample_without_objects_proposes_nothing():
    found = proposal(b"no json", None, [1])
    assert (found.columns, found.sampled, found.fitting) == ((), 3, 1)


def test_the_bytes_are_those_of_the_sample():
    values = [{"carrier": "UA", "delay": n % 50} for n in range(2_000)]
    found = proposal(*values)
    assert 0 < found.plain_bytes < found.typed_bytes < 4 * found.plain_bytes
