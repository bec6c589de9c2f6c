"""JSON values of a topic as VARIANT, or as structs of a schema.

Spark's parsers stop at the end of the first document, and ignore the text behind it. So a value is parsed as the first
element of an array that a mark closes: ``[<value>, <mark>]``. Only a value that is exactly one document is followed by
the mark. Each call makes a new mark, so that no value can contain it.

A number may have more digits than a double holds (17), and Spark's parser writes it as a double into a column of text.
It may have more digits than VARIANT holds (38). Values with such numbers take a slower path, which keeps the digits, or
are refused. A cheap test of the text chooses the path.
"""

import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from logstore.errors import InvalidRequestError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

#: The name that Spark's own JSON source uses.
CORRUPT_RECORD = "_corrupt_record"
CORRUPT_REASON = "_corrupt_reason"

NOT_TEXT = "not UTF-8"
NOT_JSON = "not one JSON document"
NOT_OF_THE_SCHEMA = "does not fit the schema"
#: JSON that Spark's VARIANT does not accept.
NO_VARIANT = "JSON that VARIANT cannot hold: a key twice in an object, half a surrogate pair, or too large"
LONE_SURROGATE = "half a surrogate pair, which is no text"
TOO_MANY_DIGITS = "a number with more digits than VARIANT holds"

#: Options that enforce RFC 8259, where Spark's JSON source accepts more.
_OPTIONS = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
#: A number, or digits in a string, that a double or VARIANT may not hold.
_LONG, _VERY_LONG = r"[0-9][0-9.]{17}", r"[0-9][0-9.]{38}"
#: A number that VARIANT, which keeps 38 digits, does not hold.
_TOO_LONG = r"(?<![0-9.])(?:[1-9][0-9]{38}|[1-9](?=[0-9]*\.)[0-9.]{39}|0\.[0-9]{39})"

#: An escape of half a character, in text without escaped backslashes.
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE = rf"{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW}"


def parse_json(
    df: "DataFrame",
    schema: "str | StructType | None" = None,
    column: str = "value",
    *,
    strict: bool = False,
) -> "DataFrame":
    """Return ``df`` with the JSON in ``column`` (bytes or text) parsed: as VARIANT, or with a ``schema`` as a struct.

    ``schema`` is a StructType, or its columns as text: ``"carrier string, dep_delay int"``, interpreted by the
    session's settings. Null stays null. A value that is not one JSON document (RFC 8259), is not UTF-8, or does not fit
    the schema or VARIANT, becomes null. Its text is then in the new column ``_corrupt_record`` and the reason in the
    last one, ``_corrupt_reason``; both are null elsewhere. With ``strict`` these columns do not exist, and such a value
    ends the query with an error that has the reason and the text.

    Raises InvalidRequestError for a column that does not exist or is not bytes or text, and for an invalid schema.
    """
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    types = dict(df.dtypes)
    if types.get(column) not in ("binary", "string"):
        is_what = f"is {types[column]}" if column in types else f"is not one of {', '.join(types)}"
        raise InvalidRequestError(f"parse_json: column {column!r} {is_what}; name one of bytes or text")
    for name in (CORRUPT_RECORD, CORRUPT_REASON):
        if not strict and name in types:
            raise InvalidRequestError(f"parse_json: there is a column {name} already; rename it first")
    wanted = _struct(schema) if schema is not None else None
    raw, mark = F.col(f"`{column}`").cast("string"), uuid.uuid4().hex
    text, parsed = F.col(f"_text_{mark}"), F.col(f"_parsed_{mark}")
    # These are separate columns rather than nested expressions, which Spark evaluates again wherever they are used.
    made = df.withColumn(f"_text_{mark}", F.try_validate_utf8(raw))
    made = _with_variant(made, text, mark) if wanted is None else _with_struct(made, text, wanted, mark)
    misfit = F.when(_has_lone_surrogate(text), LONE_SURROGATE).otherwise(NOT_OF_THE_SCHEMA)
    if wanted is None:
        misfit = F.when(_has_too_many_digits(text), TOO_MANY_DIGITS).otherwise(NO_VARIANT)
    reason = F.when(text.isNull(), NOT_TEXT).when(~_is_json(text, mark), NOT_JSON).otherwise(misfit)
    is_corrupt, broken = parsed.isNull() & raw.isNotNull(), F.make_valid_utf8(raw)
    if strict:
        error = F.concat(F.lit("parse_json: cannot parse a value ("), reason, F.lit("): "), broken)
        made = made.withColumn(column, F.when(is_corrupt, F.raise_error(error)).otherwise(parsed))
    else:
        corrupt = {CORRUPT_RECORD: F.when(is_corrupt, broken), CORRUPT_REASON: F.when(is_corrupt, reason)}
        made = made.withColumns(corrupt | {column: parsed})
    return made.drop(*(name for name in made.columns if name.endswith(f"_{mark}")))


def _struct(schema: "str | StructType") -> "StructType":
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType, StructType

    wrong = InvalidRequestError(
        f'parse_json: schema={schema!r} is not a schema: give columns, such as "carrier string, dep_delay int", '
        "or a StructType"
    )
    try:
        found = DataType.fromDDL(schema) if isinstance(schema, str) else schema
    except PySparkException:
        raise wrong from None
    if not isinstance(found, StructType) or not found.fields:
        raise wrong
    return found


# ---- one document ---------------------------------------------------------------------------------------------------


def _with_variant(df: "DataFrame", text: "Column", mark: str) -> "DataFrame":
    """Add a column of the value as VARIANT, or null."""
    from pyspark.sql import functions as F  # noqa: N812

    both = F.col(f"_both_{mark}")
    df = df.withColumn(f"_both_{mark}", F.try_parse_json(F.concat(F.lit("["), text, F.lit(f',"{mark}"]'))))
    is_one = F.try_variant_get(both, "$[1]", "string") == mark
    value = F.when(is_one & ~_has_too_many_digits(text), F.try_variant_get(both, "$[0]", "variant"))
    return df.withColumn(f"_parsed_{mark}", value)


def _with_struct(df: "DataFrame", text: "Column", wanted: "StructType", mark: str) -> "DataFrame":
    """Add a column of the struct, or null if a part of it does not fit."""
    from pyspark.sql import functions as F  # noqa: N812

    # Spark reads half a character as a question mark.
    text = F.when(~_has_lone_surrogate(text), text)
    result, plain, precise, long = (f"_{name}_{mark}" for name in ("parsed", "plain", "precise", "long"))
    exact, rebuilt = _exact(wanted)
    if rebuilt is None:
        return _with_first(df, plain, text, wanted, mark).withColumn(result, _fields(F.col(plain), wanted, {}))
    df = df.withColumn(long, _has_number(text, _LONG, _LONG))
    df = _with_first(df, plain, F.when(~F.col(long), text), wanted, mark)
    df = _with_first(df, precise, F.when(F.col(long), text), exact, mark)
    value = F.when(F.col(long), rebuilt(F.col(precise))).otherwise(_fields(F.col(plain), wanted, {}))
    return df.withColumn(result, value)


def _with_first(df: "DataFrame", name: str, text: "Column", schema: "DataType", mark: str) -> "DataFrame":
    """Add a column of the value as a struct, with the mark as an extra field; null if a part does not fit."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import BooleanType, StructField, StructType

    assert isinstance(schema, StructType)
    marked = StructType([*schema.fields, StructField(mark, BooleanType())])
    df = df.withColumn(name, _parsed(text, marked, mark))
    both = _both(F.col(name), mark)
    return df.withColumn(name, F.when(F.get(both, F.lit(1)).getField(mark), F.get(both, F.lit(0))))


def _is_json(text: "Column", mark: str) -> "Column":
    """Return a column that is true if the value is one document of any kind."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StringType

    both = _both(_parsed(text, StringType(), mark), mark)
    return F.coalesce(F.get(both, F.lit(1)) == f'{{"{mark}":true}}', F.lit(False))


def _parsed(text: "Column", element: "DataType", mark: str) -> "Column":
    """Return the value and the mark as an array of two elements, in a struct that ``_both`` takes apart."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType

    # Spark returns the parts that fit of a broken document; the field for the broken text shows that it is broken.
    schema = StructType([StructField(mark, ArrayType(element)), StructField(f"broken {mark}", StringType())])
    document = F.concat(F.lit(f'{{"{mark}":['), text, F.lit(f',{{"{mark}":true}}]}}'))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": f"broken {mark}"}
    return F.from_json(document, schema, _OPTIONS | options)


def _both(parsed: "Column", mark: str) -> "Column":
    """Return the array, or null if it is another one, or a part of it does not fit."""
    from pyspark.sql import functions as F  # noqa: N812

    is_both = parsed.getField(f"broken {mark}").isNull() & (F.size(parsed.getField(mark)) == 2)
    return F.when(is_both, parsed.getField(mark))


def _has_lone_surrogate(text: "Column") -> "Column":
    from pyspark.sql import functions as F  # noqa: N812

    without_backslashes = F.regexp_replace(text, r"\\\\", "__")
    return F.when(text.rlike(r"\\u[dD][89a-fA-F]"), without_backslashes.rlike(_LONE)).otherwise(F.lit(False))


# ---- digits ---------------------------------------------------------------------------------------------------------


def _has_too_many_digits(text: "Column") -> "Column":
    return _has_number(text, _VERY_LONG, _TOO_LONG)


def _has_number(text: "Column", candidate: str, number: str) -> "Column":
    """Return a column that is true if ``number`` matches outside the strings of a document.

    Only documents with a ``candidate`` are taken apart. The patterns match without recursion, however long a string is.
    """
    from pyspark.sql import functions as F  # noqa: N812

    without_strings = F.regexp_replace(F.regexp_replace(text, r"\\.", ""), '"[^"]*"', '""')
    return F.when(text.rlike(candidate), without_strings.rlike(number)).otherwise(F.lit(False))


#: A function that converts a parsed column to the requested type.
Rebuild = Callable[["Column"], "Column"]


def _exact(kind: "DataType") -> "tuple[DataType, Rebuild | None]":
    """Return a type that keeps the digits of numbers in text columns, and its conversion to ``kind``, None if equal."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType, VariantType

    if isinstance(kind, StringType):
        return VariantType(), lambda column: column.cast(kind)
    if isinstance(kind, StructType):
        found = {field.name: _exact(field.dataType) for field in kind}
        rebuilds = {name: rebuild for name, (_, rebuild) in found.items() if rebuild is not None}
        if rebuilds:
            exact = StructType([StructField(name, of_type) for name, (of_type, _) in found.items()])
            return exact, lambda column: _fields(column, kind, rebuilds)
    if isinstance(kind, ArrayType):
        element, rebuild = _exact(kind.elementType)
        if rebuild is not None:
            return ArrayType(element), lambda column: F.transform(column, rebuild)
    if isinstance(kind, MapType):
        of_values, rebuild = _exact(kind.valueType)
        if rebuild is not None:
            return MapType(kind.keyType, of_values), lambda column: F.transform_values(column, lambda _, v: rebuild(v))
    return kind, None


def _fields(column: "Column", wanted: "StructType", rebuilds: Mapping[str, Rebuild]) -> "Column":
    """Return the requested fields of a struct, some of them rebuilt."""
    from pyspark.sql import functions as F  # noqa: N812

    fields = {name: column.getField(name) for name in wanted.names}
    made = [rebuilds[name](field) if name in rebuilds else field for name, field in fields.items()]
    return F.when(column.isNotNull(), F.struct(*[field.alias(name) for name, field in zip(fields, made, strict=True)]))
