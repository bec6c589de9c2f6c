"""The fields that the columns of a schema read, as one tree, and the reasons why a value does not fit it.

The root is the object that each value has to be. Columns never overlap, so a field is either an object on the way to
columns or what one column converts. A reason is the path of a field, what is expected there, and what was found; an
index of an array is not part of it. So a schema has a limited number of reasons, and queries can group by them.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from logstore.records.columns.schema import Column, ColumnSchema, Conversion

#: The characters of a reason.
REASON_LENGTH_MAX: Final = 200
#: The levels of objects and arrays that a value may have, in fields that are not declared as well.
VALUE_LEVELS_MAX: Final = 64


class Fault(enum.IntEnum):
    """A way in which a value does not fit; ``json_columns.c`` has the same numbers."""

    STRING = 1
    NUMBER = 2
    BOOLEAN = 3
    OBJECT = 4
    ARRAY = 5
    NULL = 6
    FRACTION = 7
    RANGE = 8
    TEXT = 9
    TWICE = 10
    EMPTY = 11
    NOT_UTF8 = 12
    NOT_JSON = 13
    DEEP = 14
    SURROGATE = 15


_FOUND: Final = {
    Fault.STRING: "a string",
    Fault.NUMBER: "a number",
    Fault.BOOLEAN: "a boolean",
    Fault.OBJECT: "an object",
    Fault.ARRAY: "an array",
    Fault.NULL: "null",
    Fault.FRACTION: "a number with a fraction or an exponent",
    Fault.RANGE: "one out of range",
    Fault.TEXT: "another string",
    Fault.EMPTY: "nothing",
}
_OTHERWISE: Final = {
    Fault.TWICE: "expected once, got twice",
    Fault.NOT_UTF8: "expected UTF-8, got other bytes",
    Fault.NOT_JSON: "expected JSON, got another text",
    Fault.DEEP: f"expected at most {VALUE_LEVELS_MAX} levels, got more",
    Fault.SURROGATE: "expected Unicode, got half of a surrogate pair",
}
_EXPECTED: Final = {
    "boolean": "a boolean",
    "bigint": "an integer",
    "double": "a number",
    "string": "a string",
    "timestamp": "a timestamp",
    "epoch_s": "an integer",
    "epoch_ms": "an integer",
    "epoch_us": "an integer",
    "date": "a date",
    "struct": "an object",
    "array": "an array",
}


@dataclass(frozen=True, slots=True)
class FieldNode:
    """A field of the values, or the element of an array, or the root."""

    #: The path as errors show it.
    path: str
    conversion: Conversion
    fields: "dict[str, FieldNode]" = field(default_factory=dict)
    element: "FieldNode | None" = None
    _reasons: dict[Fault, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def word(self) -> str:
        return self.conversion.word

    def reason(self, fault: Fault) -> str:
        """Return why a value does not fit, in at most 200 characters."""
        if fault not in self._reasons:
            self._reasons[fault] = self._reason(fault)
        return self._reasons[fault]

    def _reason(self, fault: Fault) -> str:
        expected = _EXPECTED.get(self.word, f"a {self.conversion}")
        what = _OTHERWISE.get(fault) or f"expected {expected}, got {_FOUND[fault]}"
        return f"{shortened(self.path, REASON_LENGTH_MAX - len(what) - 2)}: {what}"


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def field_tree(schema: ColumnSchema) -> FieldNode:
    """Return the root of the fields that the columns read."""
    return _node("$", _root_conversion([(column.path, column) for column in schema.columns]))


def _root_conversion(columns: Sequence[tuple[tuple[str, ...], Column]]) -> Conversion:
    """Return a struct of the fields that the columns read; the paths begin at the struct."""
    groups: dict[str, list[tuple[tuple[str, ...], Column]]] = {}
    for path, column in columns:
        groups.setdefault(path[0], []).append((path[1:], column))
    fields = [
        (name, _root_conversion(inner) if inner[0][0] else Conversion.parse(inner[0][1].conversion))
        for name, inner in groups.items()
    ]
    return Conversion("struct", fields=tuple(fields))


def _node(path: str, conversion: Conversion) -> FieldNode:
    if conversion.element is not None:
        return FieldNode(path, conversion, element=_node(f"{path}[]", conversion.element))
    return FieldNode(path, conversion, {name: _node(f"{path}.{name}", inner) for name, inner in conversion.fields})


def columns_of(schema: ColumnSchema, rows: pa.StructArray) -> list[pa.Array]:
    """Return the columns from rows of the root's type; a row that is null has only nulls."""
    arrays: dict[tuple[str, ...], pa.Array] = {(): rows}

    def at(path: tuple[str, ...]) -> pa.Array:
        if path not in arrays:
            outer = at(path[:-1])
            # The children are taken with the nulls of their parents.
            for inner, child in zip(outer.type, outer.flatten(), strict=True):
                arrays[*path[:-1], inner.name] = child
        return arrays[path]

    return [at(column.path) for column in schema.columns]
