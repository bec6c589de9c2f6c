import pyarrow as pa
import pytest

from logstore.records.columns.schema import Column, ColumnSchema, Conversion, type_of
from tests.support.column_values import schema_of


@pytest.mark.parametrize(
    ("text", "canonical", "kind"),
    [
        ("bigint", "bigint", pa.int64()),
        (" DOUBLE ", "double", pa.float64()),
        ("decimal( 38 , 0 )", "decimal(38,0)", pa.decimal128(38, 0)),
        ("epoch_ms", "epoch_ms", pa.timestamp("us", "UTC")),
        ("date", "date", pa.date32()),
        ("array<array<string>>", "array<array<string>>", pa.list_(pa.field("element", pa.list_(pa.string())))),
        ("struct<a: bigint, B:date>", "struct<a:bigint,B:date>", pa.struct([("a", pa.int64()), ("B", pa.date32())])),
        ("struct<`a:``b`:boolean>", "struct<`a:``b`:boolean>", pa.struct([("a:`b", pa.bool_())])),
    ],
)
def test_a_conversion_has_a_type_and_one_text(text: str, canonical: str, kind: pa.DataType):
    assert type_of(text) == kind
    assert str(Conversion.parse(text)) == canonical
    assert Conversion.parse(canonical) == Conversion.parse(text)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "'' is not known"),
        ("int", "write bigint"),
        ("decimal", "ends before '('"),
        ("decimal(39,1)", "1 to 38 digits"),
        ("decimal(4,5)", "no more of them behind the point"),
        ("decimal(a,b)", "as in decimal(12,2)"),
        ("array<bigint", "it ends before '>'"),
        ("bigint bigint", "'bigint' follows its end"),
        ("struct<>", "a name, a colon and a conversion"),
        ("struct<a bigint>", "':' is expected"),
        ("struct<a:bigint,A:date>", "the fields 'a' and 'A' of a struct have the same name"),
        ("struct<a:bigint,a:date>", "the fields 'a' and 'a' of a struct have the same name"),
        ("struct<`a b`:bigint>", "has ' '"),
        ("struct<`a", "'`a' is not understood"),
        ("array<" * 100_000, "at most 8 levels each"),
        ("struct<a:" * 9 + "bigint" + ">" * 9, "at most 8 levels each"),
    ],
)
def test_a_text_that_is_no_conversion_is_refused_with_the_reason(text: str, what: str):
    with pytest.raises(ValueError, match="is no conversion") as refused:
        type_of(text)
    assert what in str(refused.value)
    assert len(str(refused.value)) < 400


def test_eight_levels_of_structs_and_of_arrays_are_taken():
    kind = type_of("struct<a:array<" * 8 + "bigint" + ">>" * 8)
    for _ in range(8):
        kind = kind.field("a").type.value_type
    assert kind == pa.int64()


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ([("a", ("a",), "bigint", pa.string())], "column a has the type string, but its conversion bigint makes int64"),
        ([("a", (), "bigint", pa.int64())], "column a has no path"),
        ([("a", ("x",), "bigint", pa.int64()), ("b", ("x",), "date", pa.date32())], "columns a and b both read"),
        ([("a", ("x", "y"), "bigint", pa.int64()), ("b", ("x",), "string", pa.string())], r"\$.x.y.*field of column b"),
        ([("a", ("x",) * 9, "struct<a:bigint>", type_of("struct<a:bigint>"))], "more than 8 levels"),
        ([("a", ("a",), "int", pa.int64())], "write bigint"),
    ],
)
def test_a_schema_that_contradicts_itself_is_refused(columns: list[tuple], what: str):
    with pytest.raises(ValueError, match=what):
        ColumnSchema(tuple(Column(*column) for column in columns))


def test_schemas_with_the_same_columns_are_equal_and_have_one_fingerprint():
    schema = schema_of("i bigint, user.city string")
    assert schema == schema_of("i bigint, user.city string")
    assert schema.fingerprint == schema_of("i BIGINT, user.city  string").fingerprint == "3499def9c1c9e32f"
    assert len({schema, schema_of("i bigint, user.city string")}) == 1
    others = [schema_of(text) for text in ("i bigint", "i double, user.city string", "user.city string, i bigint")]
    assert len({schema.fingerprint, *(other.fingerprint for other in others)}) == 4
    assert [field.name for field in schema.arrow_fields] == ["i", "user_city", "value_error"]
