"""Represents an expression over records, and derives facts from it without reading a record.

The logic is SQL's with three values. A comparison with a missing operand is unknown, ``not`` of unknown is unknown, and
a record is selected only if the whole expression is true. An operand is missing if the key is null, if the value is
null, is not JSON or has no such field, or if the field is null. ``== null`` and ``!= null`` test for this and are never
unknown. Values of different types are different, and have no order (unknown). Strings are ordered by code points, keys
by bytes.

A string is compared with the text of a key. If the key is a JSON string, as JSON requests store it (``"ada"`` with its
quotes), its text is that string; the text of any other key is its bytes.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from functools import reduce
from typing import Final

import msgspec

from logstore.limits import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN

#: A literal. Only keys are compared with bytes; a ``timestamp`` is compared with ms since 1970.
Literal = str | bytes | int | Decimal | bool | None


class Operator(StrEnum):
    equal = "=="
    not_equal = "!="
    less = "<"
    less_equal = "<="
    greater = ">"
    greater_equal = ">="

    @property
    def is_order(self) -> bool:
        return self not in (Operator.equal, Operator.not_equal)


@dataclass(frozen=True, slots=True)
class Key:
    def __str__(self) -> str:
        return "key"


@dataclass(frozen=True, slots=True)
class Timestamp:
    def __str__(self) -> str:
        return "timestamp"


@dataclass(frozen=True, slots=True)
class Path:
    """A place in a JSON value: names of fields, and indices of arrays from 0."""

    steps: tuple[str | int, ...]

    def __str__(self) -> str:
        return "$" + "".join(map(_step_text, self.steps))


@dataclass(frozen=True, slots=True)
class Comparison:
    operand: Key | Timestamp | Path
    operator: Operator
    literal: Literal


@dataclass(frozen=True, slots=True)
class Not:
    part: "Node"


@dataclass(frozen=True, slots=True)
class And:
    parts: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Or:
    parts: "tuple[Node, ...]"


Node = Comparison | Not | And | Or


@dataclass(frozen=True, slots=True)
class TimestampRange:
    """Timestamps in ms, both ends inclusive; empty if ``low`` is above ``high``."""

    low: int = TIMESTAMP_MS_MIN
    high: int = TIMESTAMP_MS_MAX

    def overlaps(self, low: int, high: int) -> bool:
        return max(self.low, low) <= min(self.high, high)


EVERY_TIMESTAMP: Final = TimestampRange()


def json_key(text: str) -> bytes:
    """Return the canonical JSON text of a string, which stands for all others: only what has to be escaped is."""
    # Half a surrogate pair exists only in JSON, as an escape.
    return json.dumps(text).encode() if _has_surrogates(text) else msgspec.json.encode(text)


def key_forms(text: str) -> frozenset[bytes]:
    """Return the most frequent of the keys whose text is ``text``, and the canonical one.

    These are its UTF-8 bytes, and its JSON string with non-ASCII letters either unchanged or escaped. A key that is in
    none of these forms may have the same text: ``logstore.records.key_texts``.
    """
    forms = {json_key(text), json.dumps(text).encode()}
    if not _has_surrogates(text):
        forms.add(text.encode())
    return frozenset(forms)


def key_equals(text: str) -> Comparison:
    """Return the expression of ``--key`` and ``?key=``."""
    return Comparison(Key(), Operator.equal, text)


def both(first: Node | None, second: Node | None) -> Node | None:
    """Return ``first and second``, of which each may be missing."""
    if first is None or second is None:
        return second if first is None else first
    return And((first, second))


def comparisons(node: Node) -> Iterator[Comparison]:
    match node:
        case Comparison():
            yield node
        case Not(part):
            yield from comparisons(part)
        case And(parts) | Or(parts):
            for part in parts:
                yield from comparisons(part)


def paths(node: Node) -> tuple[Path, ...]:
    """Return the fields of values that ``node`` reads; if there are none, keys and timestamps alone decide it."""
    found = (comparison.operand for comparison in comparisons(node))
    return tuple(dict.fromkeys(operand for operand in found if isinstance(operand, Path)))


def timestamps(node: Node) -> TimestampRange:
    """Return a range that contains the timestamp of each selected record."""
    match node:
        case Comparison(Timestamp(), operator, int(at)):
            match operator:
                case Operator.equal:
                    return TimestampRange(at, at)
                case Operator.less | Operator.less_equal:
                    return TimestampRange(high=at - (operator is Operator.less))
                case Operator.greater | Operator.greater_equal:
                    return TimestampRange(low=at + (operator is Operator.greater))
        case And(parts):
            return reduce(_intersection, map(timestamps, parts))
        case Or(parts):
            return reduce(_hull, map(timestamps, parts))
    return EVERY_TIMESTAMP


def text_of(node: Node, literal: Callable[[Literal], str] | None = None) -> str:
    """Return the expression as text that parses to the same expression. ``literal`` returns the text of a literal."""
    show = _literal_text if literal is None else literal
    match node:
        case Comparison(operand, operator, value):
            return f"{operand} {operator} {show(value)}"
        case Not(part):
            return f"not {_in_parentheses(part, show, (And, Or))}"
        case And(parts):
            return " and ".join(_in_parentheses(part, show, (And, Or)) for part in parts)
        case Or(parts):
            return " or ".join(_in_parentheses(part, show, (Or,)) for part in parts)


def _in_parentheses(part: Node, show: Callable[[Literal], str], kinds: tuple[type, ...]) -> str:
    text = text_of(part, show)
    return f"({text})" if isinstance(part, kinds) else text


def _literal_text(value: Literal) -> str:
    match value:
        case bytes():
            return f"x'{value.hex()}'"
        case Decimal():
            return str(value)
        case str():
            return json.dumps(value, ensure_ascii=_has_surrogates(value))
        case _:
            return msgspec.json.encode(value).decode()


def is_plain(step: str | int) -> bool:
    """Return whether a step of a path is an index, or a name that needs no brackets."""
    return isinstance(step, int) or (bool(step) and step.replace("_", "").replace("-", "").isalnum())


def _step_text(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    if is_plain(step):
        return f".{step}"
    return f"[{_literal_text(step)}]"


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def _intersection(first: TimestampRange, second: TimestampRange) -> TimestampRange:
    return TimestampRange(max(first.low, second.low), min(first.high, second.high))


def _hull(first: TimestampRange, second: TimestampRange) -> TimestampRange:
    if first.low > first.high:
        return second
    if second.low > second.high:
        return first
    return TimestampRange(min(first.low, second.low), max(first.high, second.high))
