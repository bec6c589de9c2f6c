"""Errors name the columns that are wrong or missing, and the types that they may have."""

import pytest
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from logstore.errors import InvalidRequestError
from logstore.spark.sink.columns import SinkColumns

HEADERS = ArrayType(StructType().add("key", "string").add("value", "binary"))
OTHER_HEADERS = ArrayType(StructType().add("k", "string").add("v", "binary"))


def places(columns: list[tuple[str, str | DataType]], topic: str = "t") -> dict[str, int]:
    schema = StructType()
    for name, kind in columns:
        schema.add(name, kind)
    return SinkColumns.of(schema, topic).places


def test_known_columns_are_found_and_others_left_out():
    source = [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "integer"),
        ("offset", "long"),
        ("timestamp", "timestamp"),
        ("timestampType", "integer"),
        ("headers", HEADERS),
    ]
    assert places(source, "") == {"key": 0, "value": 1, "topic": 2, "partition": 3, "timestamp": 5, "headers": 7}
    # The option overrides the column, whatever its type.
    assert places([("topic", "integer"), ("VALUE", "string")]) == {"value": 1}


VALUE = ("value", "string")


@pytest.mark.parametrize(
    ("columns", "topic", "line"),
    [
        ([("key", "string"), ("n", "long")], "t", "Required attribute 'value' not found among key, n: it is a string"),
        ([VALUE], "", "topic option required when no 'topic' attribute is present"),
        ([("value", "long")], "t", "value attribute unsupported type bigint: it must be string or binary"),
        ([VALUE, ("key", "long")], "t", "key attribute unsupported type bigint: it must be string or binary"),
        ([VALUE, ("topic", "long")], "", "topic attribute unsupported type bigint: it must be string"),
        ([VALUE, ("partition", "long")], "t", "partition attribute unsupported type bigint: it must be int"),
        ([VALUE, ("timestamp", "long")], "t", "timestamp attribute unsupported type bigint: it must be timestamp"),
        (
            [VALUE, ("headers", MapType(StringType(), StringType()))],
            "t",
            "headers attribute unsupported type map<string,string>: it must be array<struct<key:string,value:binary>>",
        ),
        ([VALUE, ("headers", OTHER_HEADERS)], "t", "headers attribute unsupported type array<struct<k:string,v:binar"),
        ([VALUE, ("Value", "string")], "t", "Two columns are named 'value'"),
    ],
)
def test_a_wrong_column_is_named(columns, topic, line):
    with pytest.raises(InvalidRequestError) as raised:
        places(columns, topic)
    assert str(raised.value).startswith(line)
