"""Finds fields of JSON values without making objects of the rest of a value.

A decoder makes structures of the wanted fields and skips all others. Values that it refuses are parsed a second time in
full: values in which a field has another type than the paths expect, and the few that only Python's own parser accepts
as JSON, such as those with half a surrogate pair.
"""

import json
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from operator import attrgetter
from typing import Any, Final

import msgspec

from logstore.records.json_decoder import is_utf8
from logstore.records.where.expression import Path

_SMALL_INTEGER = re.compile(r"-?[0-9]{1,18}")
#: Names that msgspec accepts for a field of a structure.
_FIELD_NAME = re.compile(r"[^\x00-\x1f\"\\\ud800-\udfff]*")
#: The depth to which structures are nested; deeper fields are found in the objects of Python.
_STRUCTURES_MAX: Final = 32
_Steps = tuple[str | int, ...]


class FieldReader:
    """Reads fields of JSON values. ``read`` returns the fields at ``paths``, in their order. The last of repeated
    fields counts.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = [path.steps for path in paths]
        #: The way to an attribute of the structure, and the steps from there on, for each path.
        self._ways: list[tuple[Any, _Steps]] = []
        kind = self._structure(dict(enumerate(self._paths)), ())
        self._decode = msgspec.json.Decoder(kind, float_hook=_number).decode

    def _structure(self, wanted: dict[int, _Steps], way: tuple[str, ...]) -> Any:
        """Return the type to decode for the paths in ``wanted``: a structure if it can have all of their next steps."""
        if len(way) == _STRUCTURES_MAX or not all(steps and _is_field(steps[0]) for steps in wanted.values()):
            for number, steps in wanted.items():
                self._reach(number, way, steps)
            return Any
        fields: list[tuple[str, Any, Any]] = []
        renamed: dict[str, str] = {}
        for at, name in enumerate(dict.fromkeys(str(steps[0]) for steps in wanted.values())):
            attribute = f"field_{at}"
            below = {number: steps[1:] for number, steps in wanted.items() if steps[0] == name}
            kind = self._structure(below, (*way, attribute))
            fields.append((attribute, kind, None if kind is Any else msgspec.field(default_factory=kind)))
            renamed[attribute] = name
        return msgspec.defstruct("Fields", fields, rename=renamed, gc=False)

    def _reach(self, number: int, way: tuple[str, ...], steps: _Steps) -> None:
        self._ways += [(None, ())] * (number + 1 - len(self._ways))
        self._ways[number] = (attrgetter(".".join(way)) if way else None, steps)

    def read(self, value: bytes | None) -> list[Any]:
        """Return a str, int, Decimal, bool, object or array for each path.

        The result has None for a field that is missing or null, and only None if the value is null or is not JSON.
        """
        if value is None or not is_utf8(value):
            return [None] * len(self._paths)
        try:
            found = self._decode(value)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            document = _read_in_full(value)
            return [_field(document, steps) for steps in self._paths]
        return [_field(way(found) if way else found, steps) for way, steps in self._ways]


def _is_field(step: str | int) -> bool:
    return isinstance(step, str) and _FIELD_NAME.fullmatch(step) is not None


def json_scalar(text: bytes) -> Any:
    """Return the result of ``FieldReader.read`` for the path ``$``."""
    return _WHOLE.read(text)[0]


def _field(document: Any, steps: _Steps) -> Any:
    for step in steps:
        container: Any = document if isinstance(document, dict if isinstance(step, str) else list) else {}
        try:
            document = container[step]
        except LookupError:
            return None
    return document


def _read_in_full(text: bytes) -> Any:
    """Return the document in ``text``; None if it is not JSON."""
    try:
        # Given bytes, the parser would also accept UTF-16 and UTF-32.
        return json.loads(text.decode("utf-8-sig"), parse_float=_number, parse_int=_number, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _number(text: str) -> int | Decimal | None:
    """Convert a number; None if it is beyond the range of numbers that can be compared."""
    if _SMALL_INTEGER.fullmatch(text):
        return int(text)
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


_WHOLE: Final = FieldReader([Path(())])
