"""The record in a line of input: a value, perhaps with a key before a separator or in a field of its JSON."""

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from logstore.cli.json_columns import json_texts
from logstore.cli.line_reader import Lines
from logstore.errors import InvalidRecordError
from logstore.records import surrogates
from logstore.records.json_strings import string_text

_NULL = b"null"


class LineRecords:
    """Turns lines into records. With ``key_separator`` the key is the text before its first occurrence. With
    ``key_field`` every value is a JSON object, and this field of it is the key.

    A key is stored as its text, or as its JSON text with ``key_json`` or from a field that is not text. A missing field
    or null means no key. With ``tombstones`` an empty value is null.
    """

    def __init__(
        self,
        *,
        is_json: bool = False,
        key_field: str | None = None,
        key_separator: str | None = None,
        key_json: bool = False,
        tombstones: bool = False,
    ) -> None:
        self._key_field, self._key_json, self._tombstones = key_field, key_json, tombstones
        self._separator = None if key_separator is None else key_separator.encode()
        self._decoder: msgspec.json.Decoder[Any] | None = None
        if key_field is not None:
            field = ("key", msgspec.Raw, msgspec.Raw(_NULL))
            self._decoder = msgspec.json.Decoder(msgspec.defstruct("Line", [field], rename={"key": key_field}))
        elif is_json:
            self._decoder = msgspec.json.Decoder()

    def columns(self, lines: Lines) -> tuple[dict[str, Any], InvalidRecordError | None]:
        """Return the columns of the lines before the first refused one, and that one's error."""
        columns: dict[str, Any] = {"value": lines.values}
        problem = None
        if self._separator is not None:
            columns, problem = self._split(lines, self._separator)
        if self._tombstones:
            columns["value"] = nulls_for_empty(columns["value"])
        if self._decoder is not None:
            keys, error = self._check(columns["value"], lines)
            problem = error or problem
            columns = {name: column[: len(keys)] for name, column in columns.items()}
            if self._key_field is not None:
                columns["key"] = pa.array(keys, pa.binary())
        return columns, problem

    def _split(self, lines: Lines, separator: bytes) -> tuple[dict[str, Any], InvalidRecordError | None]:
        parts = pc.split_pattern(lines.values, pattern=separator, max_splits=1)
        lengths = pc.list_value_length(parts).to_numpy()
        whole = len(lengths) if (lengths == 2).all() else int((lengths < 2).argmax())
        problem = None
        if whole < len(lengths):
            shown = separator.decode()
            problem = InvalidRecordError(
                f"line {lines.numbers[whole]} has no {shown!r} between a key and a value: begin it with {shown!r} to "
                "send an empty key"
            )
        parts = parts[:whole]
        keys, values = pc.list_element(parts, 0), pc.list_element(parts, 1)
        if self._key_json:
            try:
                keys = json_texts(keys.cast(pa.string()))
            except pa.ArrowInvalid as error:
                raise InvalidRecordError(
                    f"line {lines.numbers[0]} and on: a key that is not UTF-8 has no JSON text: {error}"
                ) from error
        return {"key": keys, "value": values}, problem

    def _check(self, values: pa.Array, lines: Lines) -> tuple[list[bytes | None], InvalidRecordError | None]:
        """Return the keys (null without a key field) of the values before the first that is not JSON, and its error."""
        assert self._decoder is not None
        keys: list[bytes | None] = []
        for row, text in enumerate(values.to_pylist()):
            if text is None:
                keys.append(None)
                continue
            try:
                found, decoded = surrogates.decode(self._decoder, text)
                if self._key_field is None:
                    keys.append(None)
                    continue
                raw = found.key if decoded is text else surrogates.as_sent([found.key], decoded, text)[0]
                keys.append(self._key(bytes(raw)))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                expected = "JSON" if self._key_field is None else "a JSON object"
                return keys, InvalidRecordError(f"line {lines.numbers[row]} is not {expected}: {error}")
            except InvalidRecordError as error:
                return keys, InvalidRecordError(f"line {lines.numbers[row]}: {error}")
        return keys, None

    def _key(self, text: bytes) -> bytes | None:
        if text == _NULL:
            return None
        return text if self._key_json else string_text(text)


def nulls_for_empty(values: pa.Array) -> pa.Array:
    """Return empty values as null, as tombstones."""
    return pc.if_else(pc.equal(pc.binary_length(values), 0), None, values)
