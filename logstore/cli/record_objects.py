"""Converts lines of records, as ``consume --format record`` writes them, back into columns.

A line is a JSON object: ``key`` and ``value`` are JSON and stored as written, or, by ``key_format`` and
``value_format``, ``string`` for the text's UTF-8 bytes or ``binary`` for base64; null is null. ``timestamp`` is in ms,
and the append time if it is missing. Other fields, such as the partition and the offset that the record had, are
ignored.
"""

import base64
import binascii
from typing import Any, Literal

import msgspec
import pyarrow as pa

from logstore.cli.line_reader import Lines
from logstore.errors import InvalidRecordError
from logstore.limits import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN
from logstore.records import surrogates
from logstore.records.json_decoder import is_utf8
from logstore.records.schema import WIRE_SCHEMA

_Format = Literal["json", "string", "binary"]


class _Header(msgspec.Struct, gc=False):
    key: str
    value: str | None


class _Line(msgspec.Struct, gc=False):
    value: msgspec.Raw
    key: msgspec.Raw = msgspec.Raw(b"null")
    key_format: _Format = "json"
    value_format: _Format = "json"
    headers: list[_Header] | None = None
    timestamp: int | None = None


class RecordObjects:
    """The counterpart of ``LineRecords`` for lines of records."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(_Line)

    def columns(self, lines: Lines) -> tuple[dict[str, Any], InvalidRecordError | None]:
        """Return the columns of the lines before the first refused one, and that one's error."""
        rows = []
        problem = None
        for number, line in zip(lines.numbers.tolist(), lines.values.to_pylist(), strict=True):
            try:
                rows.append(self._row(line))
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                problem = InvalidRecordError(f"line {number} is not a record: {error}")
                break
        columns = zip(*rows, strict=True) if rows else ((),) * 4
        names = ("timestamp", "key", "value", "headers")
        return {
            name: pa.array(column, WIRE_SCHEMA.field(name).type) for name, column in zip(names, columns, strict=True)
        }, problem

    def _row(self, line: bytes) -> tuple[int | None, bytes | None, bytes | None, list[dict[str, Any]] | None]:
        if not is_utf8(line):
            raise ValueError("it is not UTF-8: give bytes as base64, with value_format binary")
        record, decoded = surrogates.decode(self._decoder, line)
        raws = [record.key, record.value]
        if decoded is not line:
            raws[1:] = surrogates.as_sent(raws[1:], decoded, line)
            if bytes(raws[0]) != b"null":
                raws[:1] = surrogates.as_sent(raws[:1], decoded, line)
            if surrogates.count(line) > sum(surrogates.count(bytes(raw)) for raw in raws):
                raise ValueError("half of a surrogate pair is not UTF-8, which the name of a header needs")
        at = record.timestamp
        if at is not None and not TIMESTAMP_MS_MIN <= at <= TIMESTAMP_MS_MAX:
            raise ValueError(f"timestamp {at} is out of range: times are ms since 1970, from year 1 to 9999")
        headers = [{"key": header.key, "value": _bytes(header.value)} for header in record.headers or ()]
        key, value = _content(raws[0], record.key_format), _content(raws[1], record.value_format)
        return at, key, value, headers or None


def _content(text: msgspec.Raw, stored_as: _Format) -> bytes | None:
    if bytes(text) == b"null":
        return None
    if stored_as == "json":
        return bytes(text)
    found = msgspec.json.decode(text, type=str)
    return found.encode() if stored_as == "string" else _bytes(found)


def _bytes(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text[:40]!r} is not base64: {error}") from None
