"""Decodes records of REST Proxy v3: JSON objects whose key and value name their type, one after another in a body.

``ObjectSplitter`` finds the objects in a stream of bytes and holds at most one incomplete object. ``read_record`` makes
a record of one, ``typed_columns`` columns of many. As in ``json_decoder``, embedded JSON stays the text that was sent,
``null`` or absent data is null, unknown and doubled fields are refused.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from logstore.errors import InvalidRecordError, InvalidRequestError, LogStoreError, RequestTooLargeError
from logstore.limits import HEADERS_PER_RECORD_MAX, TIMESTAMP_MS_MAX
from logstore.records import surrogates
from logstore.records.batch import DecodedRecords
from logstore.records.byte_order_mark import BYTE_ORDER_MARK, without_byte_order_mark
from logstore.records.json_decoder import is_utf8
from logstore.records.json_strings import string_text
from logstore.records.schema import HEADERS_TYPE, WIRE_SCHEMA, null_headers
from logstore.records.strict_json import ABSENT, canonical_base64, count_strings

#: The types of keys and values; the first is the default.
TYPES: Final = ("BINARY", "JSON", "STRING")
#: The deepest nesting of a JSON object: decoders accept less than Python's recursion limit.
_DEPTH_MAX: Final = 500
_NUL: Final = b"null"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OUTSIDE, _IN_STRING, _NO_SPACE = re.compile(rb'[{}\[\]"]'), re.compile(rb'["\\]'), re.compile(rb"[^ \t\r\n]")

S = TypeVar("S", bound=msgspec.Struct)


# ---- the objects of a stream ----------------------------------------------------------------------------------------


class ObjectSplitter:
    """Splits a stream of bytes into JSON objects, each of at most ``max_bytes``.

    Only braces, brackets and quotes are examined, each byte once; the reader of an object finds any other mistake.
    ``error`` ends the stream: InvalidRequestError for bytes that begin no object or are nested too deeply, or
    RequestTooLargeError.
    """

    def __init__(self, max_bytes: int) -> None:
        self.error: LogStoreError | None = None
        self._max_bytes = max_bytes
        self._held = bytearray()
        self._at = self._depth = 0
        self._in_string = False
        self._has_begun = False

    @property
    def held_bytes(self) -> int:
        """The bytes of an object that is not complete."""
        return len(self._held)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the objects that are complete with ``data``. Nothing comes after an ``error``."""
        if self.error is not None:
            return []
        held = self._held
        held += data
        if not self._has_begun:
            if len(held) < len(BYTE_ORDER_MARK) and BYTE_ORDER_MARK.startswith(held):
                return []
            self._has_begun = True
            if held.startswith(BYTE_ORDER_MARK):
                del held[: len(BYTE_ORDER_MARK)]
        found: list[bytes] = []
        begin, at = 0, self._at
        while at < len(held) and self.error is None:
            if not self._depth:
                begin = at = self._next_begin(at)
                at += self._depth
                continue
            token = (_IN_STRING if self._in_string else _OUTSIDE).search(held, at)
            if token is None:
                at = len(held)
                break
            at = token.end()
            self._take(token[0])
            # The letter after a backslash is not a token; it may not have arrived yet.
            at += token[0] == b"\\"
            if not self._depth:
                found.append(bytes(held[begin:at]))
                begin = at
        if not self._depth:
            begin = max(begin, at)
        del held[:begin]
        self._at = at - begin
        if len(held) > self._max_bytes or any(len(text) > self._max_bytes for text in found):
            self.error = RequestTooLargeError(f"A record has more than {self._max_bytes} bytes: send a smaller one.")
            found = [text for text in found if len(text) <= self._max_bytes]
        return found

    def finish(self) -> None:
        """End the stream. Sets ``error`` if it ends within an object."""
        if (self._depth or (self._held and not self._has_begun)) and self.error is None:
            self.error = InvalidRequestError("The body ends in the middle of a record: that record is not stored.")

    def _next_begin(self, at: int) -> int:
        token = _NO_SPACE.search(self._held, at)
        if token is None:
            return len(self._held)
        if token[0] == b"{":
            self._depth = 1
        else:
            self.error = InvalidRequestError(
                f"The body has {token[0]!r} where a record begins: send JSON objects one after another, with nothing "
                "but spaces and line ends between them."
            )
        return token.start()

    def _take(self, token: bytes) -> None:
        if token == b'"':
            self._in_string = not self._in_string
        elif token in b"{[":
            self._depth += 1
            if self._depth > _DEPTH_MAX:
                self.error = InvalidRequestError("A record is nested too deeply: nest keys and values less deeply.")
        elif token in b"}]":
            self._depth -= 1


# ---- one record -----------------------------------------------------------------------------------------------------


class TypedRecord(NamedTuple):
    """A record of v3. If ``partition`` or ``timestamp_ms`` is None, the store decides. ``key_type`` is None if no key
    is named.
    """

    partition: int | None
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    key_type: str | None
    value_type: str | None

    @property
    def num_bytes(self) -> int:
        """The size as ``batch.record_sizes`` counts it."""
        headers = sum(len(key.encode()) + len(value or b"") for key, value in self.headers or ())
        return len(self.key or b"") + len(self.value or b"") + headers


class _Record(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    partition_id: msgspec.Raw = ABSENT
    headers: msgspec.Raw = ABSENT
    key: msgspec.Raw = ABSENT
    value: msgspec.Raw = ABSENT
    timestamp: msgspec.Raw = ABSENT


class _Entry(_Record, forbid_unknown_fields=True, gc=False):
    id: msgspec.Raw = ABSENT


class _Data(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    type: msgspec.Raw = ABSENT
    data: msgspec.Raw = ABSENT
    subject: msgspec.Raw = ABSENT
    subject_name_strategy: msgspec.Raw = ABSENT
    schema_id: msgspec.Raw = ABSENT
    schema_version: msgspec.Raw = ABSENT
    schema: msgspec.Raw = ABSENT


class _Header(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: msgspec.Raw = ABSENT
    value: msgspec.Raw = ABSENT


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    entries: list[msgspec.Raw]


_RECORD, _ENTRY = msgspec.json.Decoder(_Record), msgspec.json.Decoder(_Entry)
_DATA, _HEADER = msgspec.json.Decoder(_Data), msgspec.json.Decoder(_Header)
_BATCH, _LIST, _TEXT = msgspec.json.Decoder(_Batch), msgspec.json.Decoder(list[msgspec.Raw]), msgspec.json.Decoder(str)
_NUMBER = msgspec.json.Decoder(int)
_TIME = msgspec.json.Decoder(datetime)
_NO_SCHEMA_FIELDS = ("subject", "subject_name_strategy", "schema_id", "schema_version", "schema")


def read_record(text: bytes, *, string_keys: bool = False) -> TypedRecord:
    """Read a record of v3. ``string_keys``: a JSON key that is a string is stored as its text. Raises
    InvalidRecordError.
    """
    if not is_utf8(text):
        raise InvalidRecordError("The record is not UTF-8: send bytes that are not text with the type BINARY.")
    return _record(_fields(text, _RECORD, "The record"), string_keys=string_keys)


def read_entries(body: bytes) -> list[tuple[str, bytes]]:
    """Read the entries of a batch, each with its id. Raises InvalidRequestError for a body that is not a batch, and for
    ids that are missing, doubled, or not of 1 to 80 characters.
    """
    body = without_byte_order_mark(body)
    if not is_utf8(body):
        raise InvalidRequestError('The body is not UTF-8: send {"entries": [{"id": "1", "value": ...}]} in UTF-8.')
    try:
        batch, decoded = surrogates.decode(_BATCH, body)
        entries = batch.entries if decoded is body else surrogates.as_sent(batch.entries, decoded, body)
        ids = [_entry_id(bytes(entry)) for entry in entries]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequestError(f'{str(error)[:300]}; send {{"entries": [{{"id": "1", "value": ...}}]}}') from None
    if any(not 1 <= len(entry_id) <= _ID_LENGTH_MAX for entry_id in ids):
        raise InvalidRequestError(f"The id of an entry has 1 to {_ID_LENGTH_MAX} characters.")
    if len(set(ids)) < len(ids):
        raise InvalidRequestError("Two entries have the same id: give each entry an id of its own.")
    return list(zip(ids, map(bytes, entries), strict=True))


class _EntryId(msgspec.Struct):
    id: msgspec.Raw


_ENTRY_ID = msgspec.json.Decoder(_EntryId)


def _entry_id(entry: bytes) -> str:
    found, decoded = surrogates.decode(_ENTRY_ID, entry)
    return _TEXT.decode(found.id if decoded is entry else surrogates.as_sent([found.id], decoded, entry)[0])


_ID_LENGTH_MAX: Final = 80


def read_entry(text: bytes, *, string_keys: bool = False) -> TypedRecord:
    """Read an entry of a batch, as ``read_record`` does."""
    return _record(_fields(text, _ENTRY, "The entry"), string_keys=string_keys)


def _record(found: _Record, *, string_keys: bool) -> TypedRecord:
    key, key_type = _data(found.key, "key")
    value, value_type = _data(found.value, "value")
    if key is not None and string_keys and key_type == "JSON":
        key = string_text(key)
    return TypedRecord(
        _number(found.partition_id, "partition_id", np.iinfo(np.int32).max),
        _timestamp(found.timestamp),
        key,
        value,
        _headers(found.headers),
        key_type,
        value_type,
    )


def _fields(text: bytes, decoder: msgspec.json.Decoder[S], what: str) -> S:
    """Read a JSON object whose fields are JSON texts, each present once."""
    try:
        found, decoded = surrogates.decode(decoder, text)
    except RecursionError:
        raise InvalidRecordError(f"{what} is nested too deeply: nest keys and values less deeply.") from None
    except msgspec.MsgspecError as error:
        raise InvalidRecordError(f"{what} cannot be read: {str(error)[:300]}") from None
    if decoded is not text:
        names = found.__struct_fields__
        for name, raw in zip(names, surrogates.as_sent(map(found.__getattribute__, names), decoded, text), strict=True):
            setattr(found, name, raw)
    present = [raw for raw in map(found.__getattribute__, found.__struct_fields__) if raw != ABSENT]
    # The decoder drops a doubled field, but not its strings.
    if count_strings(text) != sum(1 + count_strings(bytes(raw)) for raw in present):
        raise InvalidRecordError(f"{what} has a field twice: send each once.")
    return found


def _is_null(raw: msgspec.Raw) -> bool:
    return bytes(raw) in (b"", _NUL)


def _data(raw: msgspec.Raw, what: str) -> tuple[bytes | None, str | None]:
    """Return bytes and type of a key or value."""
    if _is_null(raw):
        return None, None
    found = _fields(bytes(raw), _DATA, f"The {what}")
    named = TYPES[0] if _is_null(found.type) else _text(found.type, f"The type of the {what}")
    advice = f"send the {what} as one of {', '.join(TYPES)}, without a schema"
    if any(not _is_null(getattr(found, name)) for name in _NO_SCHEMA_FIELDS):
        raise InvalidRecordError(f"The {what} names a schema, and there is no schema registry here: {advice}.")
    if named not in TYPES:
        raise InvalidRecordError(f"The {what} has the type {named[:80]!r}, which is not stored here: {advice}.")
    if _is_null(found.data):
        return None, named
    if named == "JSON":
        return bytes(found.data), named
    text = _text(found.data, f"The data of the {what}, {named},")
    return (text.encode() if named == "STRING" else _base64(text, f"data of the {what}")), named


def _text(raw: msgspec.Raw, what: str) -> str:
    try:
        return _TEXT.decode(raw)
    except msgspec.MsgspecError:
        raise InvalidRecordError(
            f"{what} is no JSON string, or has half of a surrogate pair, which is no UTF-8."
        ) from None


def _base64(text: str, what: str) -> bytes:
    try:
        return canonical_base64(text)
    except ValueError as error:
        raise InvalidRecordError(f"The {what} is not what it should be. {error}.") from None


def _headers(raw: msgspec.Raw) -> list[tuple[str, bytes | None]] | None:
    if _is_null(raw):
        return None
    try:
        elements, decoded = surrogates.decode(_LIST, text := bytes(raw))
    except msgspec.MsgspecError:
        raise InvalidRecordError('The headers are no list: send [{"name": ..., "value": base64}].') from None
    if decoded is not text:
        elements = surrogates.as_sent(elements, decoded, text)
    if len(elements) > HEADERS_PER_RECORD_MAX:
        raise InvalidRecordError(
            f"The record has {len(elements)} headers, at most {HEADERS_PER_RECORD_MAX} are allowed."
        )
    found = []
    for element in elements:
        header = _fields(bytes(element), _HEADER, "A header")
        name = _text(header.name, "The name of a header")
        value = None if _is_null(header.value) else _text(header.value, "The value of a header")
        found.append((name, None if value is None else _base64(value, "value of a header")))
    return found


def _number(raw: msgspec.Raw, what: str, largest: int) -> int | None:
    if _is_null(raw):
        return None
    try:
        number = _NUMBER.decode(raw)
    except msgspec.MsgspecError:
        number = -1
    if not 0 <= number <= largest:
        raise InvalidRecordError(f"{what} is a whole number from 0 to {largest}.")
    return number


def _timestamp(raw: msgspec.Raw) -> int | None:
    """Return milliseconds since 1970, from ISO 8601 with an offset, or from that number itself."""
    if _is_null(raw):
        return None
    if not bytes(raw).startswith(b'"'):
        return _number(raw, "timestamp", TIMESTAMP_MS_MAX)
    try:
        at = _TIME.decode(raw)
        milliseconds = (at - _EPOCH) // timedelta(milliseconds=1)
    except (msgspec.MsgspecError, TypeError, OverflowError):
        milliseconds = -1
    if not 0 <= milliseconds <= TIMESTAMP_MS_MAX:
        raise InvalidRecordError("timestamp is a time as 2026-11-21T08:00:00Z, or milliseconds since 1970.")
    return milliseconds


# ---- many records ---------------------------------------------------------------------------------------------------


def typed_columns(records: Sequence[TypedRecord]) -> DecodedRecords:
    """Return one or more records as columns; their sizes are not checked."""
    times = pa.array([record.timestamp_ms for record in records], pa.int64()).cast(WIRE_SCHEMA.field("timestamp").type)
    columns = [
        times,
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        _header_column(records),
    ]
    named = [-1 if record.partition is None else record.partition for record in records]
    partitions = None if max(named) < 0 else np.array(named, np.int32)
    return DecodedRecords(pa.RecordBatch.from_arrays(columns, schema=WIRE_SCHEMA), partitions)


def _header_column(records: Sequence[TypedRecord]) -> pa.Array:
    if all(record.headers is None for record in records):
        return null_headers(len(records))
    headers = [
        None if record.headers is None else [{"key": key, "value": value} for key, value in record.headers]
        for record in records
    ]
    return pa.array(headers, HEADERS_TYPE)
