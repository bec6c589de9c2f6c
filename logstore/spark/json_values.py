"""JSON values of a topic as VARIANT, or as structs of a schema."""

from typing import TYPE_CHECKING

from logstore.errors import InvalidRequestError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

#: As Spark's own JSON source names it.
CORRUPT_RECORD = "_corrupt_record"


def parse_json(
    df: "DataFrame",
    schema: "str | StructType | None" = None,
    column: str = "value",
    *,
    strict: bool = False,
) -> "DataFrame":
    """``df`` with the JSON in ``column`` (bytes or text) parsed: as VARIANT, or with a ``schema`` as a struct.

    ``schema`` is a StructType, or its columns as text: ``"carrier string, dep_delay int"``. Null stays null. A value
    that is no JSON, no UTF-8, or does not fit the schema becomes null, and its text stands in the new last column
    ``_corrupt_record``, which is null elsewhere. With ``strict`` there is no such column, and such a value ends the
    query with Spark's error.

    Raises InvalidRequestError for a column that is not there or not bytes or text, and for a schema that is none.
    """
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    types = dict(df.dtypes)
    if types.get(column) not in ("binary", "string"):
        is_what = f"is {types[column]}" if column in types else f"is not one of {', '.join(types)}"
        raise InvalidRequestError(f"parse_json: column {column!r} {is_what}; name one of bytes or text")
    if not strict and CORRUPT_RECORD in types:
        raise InvalidRequestError(f"parse_json: there is a column {CORRUPT_RECORD} already; rename it first")
    wanted = _struct(schema) if schema is not None else None
    raw = F.col(f"`{column}`").cast("string")
    if strict:
        text = F.validate_utf8(raw)
        return df.withColumn(
            column, F.parse_json(text) if wanted is None else F.from_json(text, wanted, {"mode": "FAILFAST"})
        )
    text = F.try_validate_utf8(raw)
    parsed = F.try_parse_json(text) if wanted is None else _whole(text, wanted)
    corrupt = F.when(parsed.isNull() & raw.isNotNull(), F.make_valid_utf8(raw))
    return df.withColumns({CORRUPT_RECORD: corrupt, column: parsed})


def _struct(schema: "str | StructType") -> "StructType":
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType, StructType

    wrong = InvalidRequestError(
        f'parse_json: schema={schema!r} is none: give columns, such as "carrier string, dep_delay int", or a StructType'
    )
    try:
        found = DataType.fromDDL(schema) if isinstance(schema, str) else schema
    except PySparkException:
        raise wrong from None
    if not isinstance(found, StructType) or not found.fields:
        raise wrong
    return found


def _whole(text: "Column", wanted: "StructType") -> "Column":
    """The struct, or null where a part of it does not fit."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StringType, StructField, StructType

    # Spark gives what fits of a broken record; the field for the broken text tells it from a whole one.
    broken = "_corrupt_record of parse_json"
    marked = StructType([*wanted.fields, StructField(broken, StringType())])
    parsed = F.from_json(text, marked, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": broken})
    fields = F.struct(*[parsed.getField(field.name).alias(field.name) for field in wanted.fields])
    return F.when(parsed.isNotNull() & parsed.getField(broken).isNull(), fields)
