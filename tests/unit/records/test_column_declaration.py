import re

import pytest

from logstore.records.columns.declaration import COLUMNS_MAX, checked, declaration, parse_columns


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("month BIGINT", "month BIGINT"),
        (" month  bigint ,city string from user.city ", "month BIGINT, city STRING FROM user.city"),
        ("city STRING\nFROM `user.name`.`a ``b`", "city STRING FROM `user.name`.`a ``b`"),
        ("offset BIGINT", "value_offset BIGINT FROM offset"),
        (
            "Timestamp TIMESTAMP, TimestampType STRING",
            "value_Timestamp TIMESTAMP FROM Timestamp, value_TimestampType STRING FROM TimestampType",
        ),
        ("topic STRING FROM meta.topic", "value_topic STRING FROM meta.topic"),
        ("price Decimal(12, 2), seen epoch_ms, born date", "price DECIMAL(12,2), seen EPOCH_MS, born DATE"),
        (
            "who STRUCT<Name: STRING, tags: ARRAY<STRUCT<k:string>>>, xs array<double>",
            "who STRUCT<Name: STRING, tags: ARRAY<STRUCT<k: STRING>>>, xs ARRAY<DOUBLE>",
        ),
        ("`größe` BIGINT, `2nd` STRING", "`größe` BIGINT, `2nd` STRING"),
        ("x BIGINT,", "x BIGINT"),
    ],
)
def test_declarations_have_a_normal_form(text: str, normal: str) -> None:
    columns = parse_columns(text)
    assert ", ".join(map(declaration, columns)) == normal
    assert parse_columns(normal) == columns


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "no column is declared: write for example carrier STRING"),
        ("month", "column 'month' has no type: write for example month STRING"),
        ("month INT", "write bigint"),
        ("month NUMBER", "the conversions are boolean, bigint"),
        ("`` STRING", "is no column: write a name and a type"),
        ("user.city STRING", "write user_city STRING FROM user.city"),
        ("`a.b` STRING", "write a_b STRING FROM `a.b`"),
        ("`a b` STRING", "write a_b STRING FROM `a b`"),
        ("a;b STRING", "write a_b STRING FROM `a;b`"),
        ("a BIGINT, A STRING FROM b", "the name 'A' differs from 'a' in case only: write A_2 STRING FROM b"),
        ("a BIGINT, a BIGINT", "column 'a' is declared twice: leave one out"),
        ("a BIGINT FROM", "no conversion"),
        ("a BIGINT FROM x y", "'y' is not understood"),
        ("a BIGINT FROM x.", "a path has the names of fields"),
        ("a BIGINT FROM " + ".".join("abcdefghi"), "has more than 8 levels"),
        ("a DECIMAL(39,0)", "a decimal has 1 to 38 digits"),
        ("a " + "STRUCT<a: " * 9 + "BIGINT" + ">" * 9, "at most 8 levels"),
        (", ".join(f"c{n} BIGINT" for n in range(COLUMNS_MAX + 1)), "at most 1,000 columns, not 1,001"),
    ],
)
def test_a_refusal_says_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(ValueError, match=re.escape(advice)):
        parse_columns(text)


def test_a_thousand_columns_are_allowed() -> None:
    columns = parse_columns(", ".join(f"c{n} BIGINT" for n in range(COLUMNS_MAX)))
    assert checked(columns) == columns
