"""Fields of JSON values, found without making objects of the rest of a value."""

import json
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from logstore.records.json_decoder import is_utf8
from logstore.records.where.expression import Path

#: An object or an array: it equals no literal.
COMPOUND: Final = object()
_ABSENT: Final = msgspec.Raw(b"")
_RAW = msgspec.json.Decoder(msgspec.Raw)
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_STRING = msgspec.json.Decoder(str)
_BAD_JSON = (msgspec.MsgspecError, RecursionError)
_SMALL_INTEGER = re.compile(r"-?[0-9]{1,18}")


class FieldReader:
    """``read`` gives the fields at ``paths`` of a value, in their order. Of a doubled field the last one counts."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._root = _Place([(path.steps, number) for number, path in enumerate(paths)])

    def read(self, value: bytes | None) -> list[Any]:
        """None for what is missing or null, and everywhere if the value is null or is not JSON; COMPOUND for an object
        or an array; else str, int, Decimal or bool.
        """
        found: list[Any] = [None] * len(self._paths)
        if value is None or not is_utf8(value):
            return found
        try:
            self._root.read(_RAW.decode(value), found)
        except _BAD_JSON:
            document = _with_half_surrogates(value)
            return [_field(document, path.steps) for path in self._paths]
        return found


class _Place:
    """What is wanted of a JSON text and below it."""

    def __init__(self, wanted: Sequence[tuple[tuple[str | int, ...], int]]) -> None:
        self._numbers = [number for steps, number in wanted if not steps]
        below: dict[str | int, list[tuple[tuple[str | int, ...], int]]] = {}
        for steps, number in wanted:
            if steps:
                below.setdefault(steps[0], []).append((steps[1:], number))
        self._elements = [(step, _Place(parts)) for step, parts in below.items() if isinstance(step, int)]
        names = [step for step in below if isinstance(step, str)]
        self._fields = [(f"field_{at}", _Place(below[name])) for at, name in enumerate(names)]
        self._object: msgspec.json.Decoder[Any] | None = None
        if names:
            # A structure of these fields alone: the decoder passes over all others.
            fields = [(attribute, msgspec.Raw, _ABSENT) for attribute, _ in self._fields]
            renamed = {attribute: name for (attribute, _), name in zip(self._fields, names, strict=True)}
            self._object = msgspec.json.Decoder(msgspec.defstruct("Fields", fields, rename=renamed, gc=False))

    def read(self, text: msgspec.Raw, found: list[Any]) -> None:
        begin = bytes(memoryview(text)[:1])
        for number in self._numbers:
            found[number] = _scalar(text, begin)
        if begin == b"{" and self._object is not None:
            fields = self._object.decode(text)
            for attribute, place in self._fields:
                field = getattr(fields, attribute)
                if field is not _ABSENT:
                    place.read(field, found)
        elif begin == b"[" and self._elements:
            elements = _ARRAY.decode(text)
            for index, place in self._elements:
                if index < len(elements):
                    place.read(elements[index], found)


def json_scalar(text: bytes) -> Any:
    """As ``FieldReader.read`` of ``$``."""
    return _WHOLE.read(text)[0]


def _scalar(text: msgspec.Raw, begin: bytes) -> Any:
    match begin:
        case b'"':
            return _STRING.decode(text)
        case b"{" | b"[":
            return COMPOUND
        case b"t" | b"f":
            return begin == b"t"
        case b"n":
            return None
    return _number(bytes(text))


def _number(digits: bytes | str) -> int | Decimal | None:
    """None for a number that is beyond all that can be compared."""
    text = digits if isinstance(digits, str) else digits.decode()
    if _SMALL_INTEGER.fullmatch(text):
        return int(text)
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def _with_half_surrogates(text: bytes) -> Any:
    """The document in ``text`` if half a surrogate pair, as an escape, is why it was not read: that is JSON, although
    no Unicode text. None for what is no JSON.
    """
    if b"\\u" not in text:
        return None
    try:
        return json.loads(text, parse_float=_number, parse_int=_number, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _field(document: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        try:
            document = document[step] if isinstance(document, dict if isinstance(step, str) else list) else None
        except LookupError:
            return None
    return COMPOUND if isinstance(document, (dict, list)) else document


_WHOLE: Final = FieldReader([Path(())])
