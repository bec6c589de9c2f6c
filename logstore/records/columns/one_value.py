"""Converts one JSON value, or finds why it does not fit. This is the rule of what fits; the faster ways agree with it.

A value is one JSON text (RFC 8259) of UTF-8 bytes: an object of at most 64 levels, without lone surrogates. Then its
fields are read in their order, and the first one that does not fit gives the reason. Undeclared fields are passed over.
"""

import json
import re
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any, Final

import numpy as np

from logstore.records import surrogates
from logstore.records.columns.field_tree import VALUE_LEVELS_MAX, Fault, FieldNode
from logstore.records.columns.times import EPOCH_MICROS, MICROS_MAX, MICROS_MIN, read_date, read_timestamp

_BIGINT_END: Final = 1 << 63
_INTEGER_LENGTH_MAX: Final = len(str(-_BIGINT_END))
#: A decimal may also be a string, because many producers keep it from being read as a double.
_DECIMAL: Final = re.compile(r"([+-]?)(?=[0-9]|\.[0-9])([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?", re.ASCII)
# It matches a string without an end as well, so that it reads no byte twice.
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_KINDS: Final = {
    str: Fault.STRING,
    bytes: Fault.NUMBER,
    bool: Fault.BOOLEAN,
    tuple: Fault.OBJECT,
    list: Fault.ARRAY,
}
_BRACKETS: Final = np.zeros(256, np.int8)
_BRACKETS[list(b"{[")] = 1
_BRACKETS[list(b"}]")] = -1
_SPACE: Final = b" \t\r\n"


class Misfit(Exception):  # noqa: N818 - it is no error of the program
    """The value does not fit the tree; the argument is the reason."""


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


# An object becomes the tuple of its fields, an array a list, and a number the bytes of its text.
_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=tuple, parse_int=str.encode, parse_float=str.encode, parse_constant=_no_constant
)


Reader = Callable[[Any], Any]


def value_converter(root: FieldNode) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that returns the fields of a value, as ``pyarrow.array`` takes them for the root's type: times
    are numbers. The function raises Misfit.
    """
    read = _struct(root)

    def convert(value: bytes) -> dict[str, Any]:
        fields: dict[str, Any] = read(_decode(root, value))
        return fields

    return convert


def _decode(root: FieldNode, value: bytes) -> Any:
    if not value.strip(_SPACE):
        raise Misfit(root.reason(Fault.EMPTY))
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise Misfit(root.reason(Fault.NOT_UTF8)) from None
    if is_deep(value):
        raise Misfit(root.reason(Fault.DEEP))
    try:
        document = _DECODER.decode(text)
    except ValueError:
        raise Misfit(root.reason(Fault.NOT_JSON)) from None
    if b"\\u" in value and surrogates.count(value):
        raise Misfit(root.reason(Fault.SURROGATE))
    return document


def is_deep(value: bytes) -> bool:
    """Return whether a JSON text has more levels than a decoder is given."""
    if value.count(b"{") + value.count(b"[") <= VALUE_LEVELS_MAX:
        return False
    outside = np.frombuffer(_STRING.sub(b"", value), np.uint8)
    return bool(np.cumsum(_BRACKETS[outside], dtype=np.int64).max(initial=0) > VALUE_LEVELS_MAX)


def _kind(value: Any) -> Fault:
    return Fault.NULL if value is None else _KINDS[type(value)]


# ---- by the word of a conversion: a function for a node returns one that reads a value -------------------------------


def _reader(node: FieldNode) -> Reader:
    if node.word == "struct":
        return _struct(node)
    return _array(node) if node.element is not None else partial(_SCALARS[node.word], node)


def _struct(node: FieldNode) -> Reader:
    fields = {name: (_reader(field), field) for name, field in node.fields.items()}

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, tuple):
            raise Misfit(node.reason(_kind(value)))
        row: dict[str, Any] = {}
        for name, inner in value:
            if found := fields.get(name):
                if name in row:
                    raise Misfit(found[1].reason(Fault.TWICE))
                row[name] = None if inner is None else found[0](inner)
        return row

    return read


def _array(node: FieldNode) -> Reader:
    assert node.element is not None
    read_element = _reader(node.element)

    def read(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise Misfit(node.reason(_kind(value)))
        return [None if inner is None else read_element(inner) for inner in value]

    return read


def _boolean(node: FieldNode, value: Any) -> bool:
    if not isinstance(value, bool):
        raise Misfit(node.reason(_kind(value)))
    return value


def _string(node: FieldNode, value: Any) -> str:
    if not isinstance(value, str):
        raise Misfit(node.reason(_kind(value)))
    return value


def _bigint(node: FieldNode, value: Any) -> int:
    if not isinstance(value, bytes):
        raise Misfit(node.reason(_kind(value)))
    if not value.lstrip(b"-").isdigit():
        raise Misfit(node.reason(Fault.FRACTION))
    number = int(value) if len(value) <= _INTEGER_LENGTH_MAX else _BIGINT_END
    if not -_BIGINT_END <= number < _BIGINT_END:
        raise Misfit(node.reason(Fault.RANGE))
    return number


def _double(node: FieldNode, value: Any) -> float:
    if not isinstance(value, bytes):
        raise Misfit(node.reason(_kind(value)))
    number = float(value)
    if number in {float("inf"), float("-inf")}:
        raise Misfit(node.reason(Fault.RANGE))
    return number


def _decimal(node: FieldNode, value: Any) -> Decimal:
    if not isinstance(value, str | bytes):
        raise Misfit(node.reason(_kind(value)))
    parts = _DECIMAL.fullmatch(value if isinstance(value, str) else value.decode())
    if parts is None:
        raise Misfit(node.reason(Fault.TEXT))
    sign, whole, fraction, exponent = parts.groups()
    fraction = fraction or ""
    # The number is `digits` times ten to the power of `power`; neither is made longer than the column's digits.
    digits = (whole + fraction).lstrip("0")
    kept = digits.rstrip("0")
    if not kept:
        return Decimal((0, (0,), -node.conversion.scale))
    power = _exponent(exponent) - len(fraction) + len(digits) - len(kept)
    zeros = power + node.conversion.scale
    if zeros < 0 or len(kept) + zeros > node.conversion.precision:
        raise Misfit(node.reason(Fault.RANGE))
    return Decimal((sign == "-", tuple(map(int, kept + "0" * zeros)), -node.conversion.scale))


def _exponent(text: str | None) -> int:
    """Return the exponent. One with many digits is cut, because no value has the digits that would make up for it."""
    if text is None:
        return 0
    digits = text.lstrip("+-").lstrip("0")
    size = int(digits or "0") if len(digits) <= 12 else 10**12
    return -size if text.startswith("-") else size


def _timestamp(node: FieldNode, value: Any) -> int:
    micros = read_timestamp(_string(node, value))
    if micros is None:
        raise Misfit(node.reason(Fault.TEXT))
    return micros


def _date(node: FieldNode, value: Any) -> int:
    days = read_date(_string(node, value))
    if days is None:
        raise Misfit(node.reason(Fault.TEXT))
    return days


def _epoch(micros: int) -> Callable[[FieldNode, Any], int]:
    def read(node: FieldNode, value: Any) -> int:
        number = _bigint(node, value) * micros
        if not MICROS_MIN <= number <= MICROS_MAX:
            raise Misfit(node.reason(Fault.RANGE))
        return number

    return read


_SCALARS: Final[dict[str, Callable[[FieldNode, Any], Any]]] = {
    "boolean": _boolean,
    "bigint": _bigint,
    "double": _double,
    "decimal": _decimal,
    "string": _string,
    "timestamp": _timestamp,
    **{word: _epoch(micros) for word, micros in EPOCH_MICROS.items()},
    "date": _date,
}
