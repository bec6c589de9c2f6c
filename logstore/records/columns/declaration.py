"""Declarations of columns as people write them: ``carrier STRING, city STRING FROM user.city, seen EPOCH_MS``.

A declaration is a name, a conversion (``schema.Conversion``, in any case) and, after ``FROM``, the path of the field in
the value; without it the field has the name of the column. A name with other characters than letters, digits and
``_`` stands in backticks, in which a backtick is doubled. Names that the table has for something else get the prefix
``value_``: ``offset BIGINT`` is the column ``value_offset`` of the field ``offset``.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from logstore.records.columns.schema import (
    FORBIDDEN_IN_NAMES,
    LEVELS_MAX,
    VALUE_ERROR,
    Column,
    ColumnSchema,
    Conversion,
    in_backticks,
)
from logstore.records.schema import TABLE_SCHEMA

COLUMNS_MAX: Final = 1_000
#: Names that a declared column cannot have: the table's and those that readers of the log add.
TAKEN: Final = frozenset(name.lower() for name in (*TABLE_SCHEMA.names, "topic", "timestampType", VALUE_ERROR))
_PREFIX: Final = "value_"
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s,.`<>()]+))")
_FROM: Final = re.compile(r"\s+from(?=[\s`])", re.IGNORECASE)
#: Runs of characters that a column cannot have in its name.
FORBIDDEN: Final = re.compile("[" + re.escape("".join(sorted(FORBIDDEN_IN_NAMES))) + "]+")


def parse_columns(text: str) -> tuple[Column, ...]:
    """Parse declarations, separated by commas. Raises ValueError, which says what to write instead."""
    declared = [_declaration(part) for part in _split(text) if part.strip()]
    if not declared:
        raise ValueError("no column is declared: write for example carrier STRING, month BIGINT")
    return checked(declared)


def checked(columns: Iterable[Column]) -> tuple[Column, ...]:
    """Return the columns if a table can have them together. Raises ValueError, which proposes other names."""
    columns = tuple(columns)
    if len(columns) > COLUMNS_MAX:
        raise ValueError(f"a topic has at most {COLUMNS_MAX:,} columns, not {len(columns):,}")
    known: dict[str, str] = {}
    for column in columns:
        other = known.get(column.name.lower())
        if other == column.name:
            raise ValueError(f"column {column.name!r} is declared twice: leave one out, or give it another name")
        if other is not None:
            instead = Column(f"{column.name}_2", column.path, column.conversion, column.type)
            raise ValueError(
                f"the name {column.name!r} differs from {other!r} in case only: write {declaration(instead)}"
            )
        known[column.name.lower()] = column.name
    ColumnSchema(columns)
    return columns


def free_name(name: str) -> str:
    """Return the name of the column for a field of this name: with a prefix if the table has the name."""
    return f"{_PREFIX}{name}" if name.lower() in TAKEN else name


def field_text(path: Sequence[str]) -> str:
    """Return the path of a field as a declaration has it: ``user.city``."""
    return ".".join(map(_quoted, path))


def parse_field(text: str) -> tuple[str, ...]:
    """Parse the path of a field. Raises ValueError."""
    names, at = [], 0
    while True:
        name, at = _name(text, at, "a path has the names of fields, as in user.city")
        names.append(name)
        rest = text[at:]
        if not rest.strip():
            break
        if not rest.startswith("."):
            raise ValueError(f"{text.strip()[:100]!r} is no path: {rest.strip()[:20]!r} is not understood")
        at += 1
    if len(names) > LEVELS_MAX:
        raise ValueError(f"the path {text.strip()[:100]!r} has more than {LEVELS_MAX} levels")
    return tuple(names)


def declaration(column: Column) -> str:
    """Return the declaration of a column."""
    source = "" if column.path == (column.name,) else f" FROM {field_text(column.path)}"
    return f"{_quoted(column.name)} {_upper(column.conversion)}{source}"


def _declaration(text: str) -> Column:
    name, at = _name(text, 0, f"{text.strip()[:100]!r} is no column: write a name and a type, as in month BIGINT")
    head, *path = _FROM.split(text[at:], maxsplit=1)
    if not head.strip():
        raise ValueError(f"column {name!r} has no type: write for example {_quoted(name)} STRING")
    if text[at] == ".":
        end = _end_of_path(text)
        proposal = f"{FORBIDDEN.sub('_', text[:end].strip())} {text[end:].strip()} FROM {text[:end].strip()}"
        raise ValueError(f"a column has no dot in its name, and reads a path: write {proposal}")
    conversion = Conversion.parse(head.strip())
    fields = parse_field(path[0]) if path else (name,)
    column = free_name(name)
    if bad := sorted(FORBIDDEN_IN_NAMES.intersection(column)):
        raise ValueError(
            f"the name {column!r} has {bad[0]!r}, which a table's names cannot have: write "
            f"{_quoted(FORBIDDEN.sub('_', column))} {head.strip()} FROM {field_text(fields)}"
        )
    return Column(column, fields, str(conversion), conversion.type)


def _split(text: str) -> list[str]:
    """Split at the commas that are in no bracket and in no quoted name."""
    parts, depth, is_quoted, first = [], 0, False, 0
    for at, character in enumerate(text):
        if character == "`":
            is_quoted = not is_quoted
        elif not is_quoted and character in "<(":
            depth += 1
        elif not is_quoted and character in ">)":
            depth -= 1
        elif character == "," and depth == 0 and not is_quoted:
            parts.append(text[first:at])
            first = at + 1
    return [*parts, text[first:]]


def _name(text: str, at: int, problem: str) -> tuple[str, int]:
    found = _NAME.match(text, at)
    if found is None:
        raise ValueError(problem)
    return found[1].replace("``", "`") if found[1] else found[2], found.end()


def _end_of_path(text: str) -> int:
    _, at = _name(text, 0, "")
    while at < len(text) and text[at] == ".":
        _, at = _name(text, at + 1, f"{text.strip()[:100]!r} ends in a dot")
    return at


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else in_backticks(name)


def _upper(conversion: str) -> str:
    """Return a conversion with its words in upper case, as DDL is written; the names in it stay."""
    parsed = Conversion.parse(conversion)
    if parsed.word == "struct":
        inner = ", ".join(f"{_quoted(name)}: {_upper(str(field))}" for name, field in parsed.fields)
        return f"STRUCT<{inner}>"
    if parsed.element is not None:
        return f"ARRAY<{_upper(str(parsed.element))}>"
    return str(parsed).upper()
