"""The columns that a topic derives from its values: their names, paths, conversions and types.

A conversion says what a JSON value has to be and which type it becomes. Its text is one word, or Spark's DDL with
conversions in it: ``struct<name:string,born:date>``, ``array<epoch_ms>``. A name in it that has one of ``:<>`` or a
backtick is quoted with backticks, in which a backtick is doubled.
"""

import functools
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from logstore.records.columns.times import EPOCH_MICROS, TIMESTAMP

VALUE_ERROR: Final = "value_error"
#: The levels of structs, and as many of arrays, that a conversion and the path of its column have together.
LEVELS_MAX: Final = 8
DECIMAL_DIGITS_MAX: Final = 38
#: Parquet and Delta refuse a name with one of these; a dot separates the names of a path.
FORBIDDEN_IN_NAMES: Final = frozenset(" ,;{}()\n\t=.")

_SCALARS: Final = {
    "boolean": pa.bool_(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp": TIMESTAMP,
    **dict.fromkeys(EPOCH_MICROS, TIMESTAMP),
    "date": pa.date32(),
}
_OTHER_WORDS: Final = {
    **dict.fromkeys(("byte", "tinyint", "short", "smallint", "int", "integer", "long"), "bigint"),
    **dict.fromkeys(("float", "real"), "double"),
    **dict.fromkeys(("varchar", "char", "text"), "string"),
    **dict.fromkeys(("dec", "numeric"), "decimal(p,s)"),
    **dict.fromkeys(("timestamp_ltz", "timestamp_ntz", "datetime"), "timestamp"),
    "bool": "boolean",
    "list": "array<...>",
}
_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|([^\s,:<>()`]+)|([,:<>()]))")
_PLAIN_NAME: Final = re.compile(r"[^\s,:<>()`]+")
#: This number changes when the same value would give other columns, so that files from before are derived again.
_RULES: Final = 1


@dataclass(frozen=True, slots=True)
class Conversion:
    """A parsed conversion. ``fields`` belong to a struct, ``element`` to an array, the two numbers to a decimal."""

    word: str
    precision: int = 0
    scale: int = 0
    fields: "tuple[tuple[str, Conversion], ...]" = ()
    element: "Conversion | None" = None

    @classmethod
    def parse(cls, text: str) -> "Conversion":
        """Parse the text of a conversion. Raises ValueError."""
        return _Parser(text).parse()

    def __str__(self) -> str:
        """Return the canonical text."""
        if self.word == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.word == "struct":
            return f"struct<{','.join(f'{_quoted(name)}:{field}' for name, field in self.fields)}>"
        return self.word if self.element is None else f"array<{self.element}>"

    @property
    def type(self) -> pa.DataType:
        if self.word == "decimal":
            return pa.decimal128(self.precision, self.scale)
        if self.word == "struct":
            return pa.struct([pa.field(name, field.type) for name, field in self.fields])
        return _SCALARS[self.word] if self.element is None else pa.list_(pa.field("element", self.element.type))

    def levels(self, word: str) -> int:
        """Return how deep structs (``word`` is "struct") or arrays are nested in this conversion."""
        below = [field for _, field in self.fields] if self.element is None else [self.element]
        return (self.word == word) + max((inner.levels(word) for inner in below), default=0)


def type_of(conversion: str) -> pa.DataType:
    """Return the type of the column that a conversion makes. Raises ValueError if it is no conversion."""
    return Conversion.parse(conversion).type


@dataclass(frozen=True)
class Column:
    """A column of the table, the names in the value that lead to its field, and how the field becomes its type."""

    name: str
    path: tuple[str, ...]
    conversion: str
    type: pa.DataType


@dataclass(frozen=True)
class ColumnSchema:
    """The derived columns of a topic, in the order of its table. Raises ValueError if a column has another type than
    its conversion makes, or two columns read the same field.
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        paths: dict[tuple[str, ...], str] = {}
        for column in self.columns:
            conversion = Conversion.parse(column.conversion)
            if conversion.type != column.type:
                raise ValueError(
                    f"column {column.name} has the type {column.type}, but its conversion {column.conversion} makes "
                    f"{conversion.type}"
                )
            if not column.path:
                raise ValueError(f"column {column.name} has no path: name the field of the value that it reads")
            if len(column.path) - 1 + conversion.levels("struct") > LEVELS_MAX:
                raise ValueError(f"column {column.name} reads objects in more than {LEVELS_MAX} levels")
            if column.path in paths:
                raise ValueError(f"columns {paths[column.path]} and {column.name} both read {path_text(column.path)}")
            paths[column.path] = column.name
        for path, name in paths.items():
            for length in range(1, len(path)):
                if outer := paths.get(path[:length]):
                    raise ValueError(
                        f"column {name} reads {path_text(path)}, which is in the field of column {outer}: declare one "
                        "of the two"
                    )

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A text that is equal for schemas that derive the same columns from the same values."""
        what = [[column.name, column.path, str(Conversion.parse(column.conversion))] for column in self.columns]
        return hashlib.sha256(json.dumps([_RULES, what]).encode()).hexdigest()[:16]

    @functools.cached_property
    def arrow_fields(self) -> tuple[pa.Field, ...]:
        """The fields of all columns, and last ``value_error``."""
        fields = (pa.field(column.name, column.type) for column in self.columns)
        return (*fields, pa.field(VALUE_ERROR, pa.string()))


def path_text(path: tuple[str, ...]) -> str:
    """Return a path as errors show it: ``$.user.city``."""
    return ".".join(("$", *path))


def in_backticks(name: str) -> str:
    """Return a name in backticks, with each backtick in it doubled."""
    return f"`{name.replace('`', '``')}`"


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else in_backticks(name)


class _Parser:
    """Parses the text of one conversion. Its recursion ends at the most levels of structs and arrays."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._head = next(self._tokens)

    def parse(self) -> Conversion:
        found = self._conversion(0, 0)
        if self._head:
            raise self._error(f"{self._head!r} follows its end")
        return found

    def _split(self) -> Iterator[str]:
        at, end = 0, len(self._text.rstrip())
        while at < end:
            token = _TOKEN.match(self._text, at, end)
            if token is None:
                raise self._error(f"{self._text[at:].strip()[:20]!r} is not understood")
            yield token[0].lstrip()
            at = token.end()
        yield ""

    def _error(self, what: str) -> ValueError:
        return ValueError(f"{self._text[:100]!r} is no conversion: {what}")

    def _next(self) -> str:
        token, self._head = self._head, next(self._tokens, "")
        return token

    def _expect(self, token: str) -> None:
        if (found := self._next()) != token:
            raise self._error(f"{token!r} is expected, not {found!r}" if found else f"it ends before {token!r}")

    def _conversion(self, structs: int, arrays: int) -> Conversion:
        token = self._next()
        word = token.lower()
        if max(structs + (word == "struct"), arrays + (word == "array")) > LEVELS_MAX:
            raise self._error(f"structs and arrays have at most {LEVELS_MAX} levels each")
        if word == "decimal":
            return self._decimal()
        if word == "struct":
            return self._struct(structs + 1, arrays)
        if word == "array":
            self._expect("<")
            element = self._conversion(structs, arrays + 1)
            self._expect(">")
            return Conversion(word, element=element)
        if word not in _SCALARS:
            known = ", ".join((*_SCALARS, "decimal(p,s)", "struct<...>", "array<...>"))
            instead = f"write {_OTHER_WORDS[word]}" if word in _OTHER_WORDS else f"the conversions are {known}"
            raise self._error(f"{token!r} is not known: {instead}")
        return Conversion(word)

    def _decimal(self) -> Conversion:
        self._expect("(")
        precision = self._number()
        self._expect(",")
        scale = self._number()
        self._expect(")")
        if not 1 <= precision <= DECIMAL_DIGITS_MAX or scale > precision:
            raise self._error(f"a decimal has 1 to {DECIMAL_DIGITS_MAX} digits, and no more of them behind the point")
        return Conversion("decimal", precision, scale)

    def _number(self) -> int:
        token = self._next()
        if not re.fullmatch("[0-9]{1,3}", token):
            raise self._error("write a decimal with two numbers, as in decimal(12,2)")
        return int(token)

    def _struct(self, structs: int, arrays: int) -> Conversion:
        self._expect("<")
        fields: dict[str, Conversion] = {}
        folded: dict[str, str] = {}
        while True:
            name = self._field_name()
            if (other := folded.setdefault(name.lower(), name)) != name or name in fields:
                raise self._error(f"the fields {other!r} and {name!r} of a struct have the same name for Spark")
            self._expect(":")
            fields[name] = self._conversion(structs, arrays)
            if self._head != ",":
                self._expect(">")
                return Conversion("struct", fields=tuple(fields.items()))
            self._next()

    def _field_name(self) -> str:
        token = self._next()
        name = token[1:-1].replace("``", "`") if token.startswith("`") else token
        if not name or token in tuple(",:<>()"):
            raise self._error("a field of a struct has a name, a colon and a conversion")
        if bad := sorted(FORBIDDEN_IN_NAMES.intersection(name)):
            raise self._error(f"the name {name!r} has {bad[0]!r}, which a table's names cannot have")
        return name
