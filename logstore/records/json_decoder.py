"""JSON request bodies (``{"records": [...]}``) to Arrow columns, with embedded JSON or base64 keys and values.

Embedded keys and values stay what they were: the JSON text, byte for byte as sent (a text key keeps its quotes, as in
REST Proxy), taken as slices of the body; ``null`` or absent is null. They keep to RFC 8259: UTF-8, no NaN, no lone
surrogates, nested less deeply than Python's recursion limit. Numbers of any size are text too. Of a field given twice
the last one counts; a field that is not known is refused, so that a misspelt one cannot lose data.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Generic, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from logstore.errors import InvalidRequestError
from logstore.limits import REQUEST_RECORDS_MAX, TIMESTAMP_MS_MAX
from logstore.records.batch import DecodedRecords, check_record_count, check_records
from logstore.records.schema import HEADERS_TYPE, WIRE_SCHEMA, null_headers

_ERROR_LENGTH_MAX = 300
_SHAPE = 'send {"records": [{"key": ..., "value": ...}]}'
_NULL_TEXT = msgspec.Raw(b"null")
_TIMESTAMP_TYPE = WIRE_SCHEMA.field("timestamp").type
# With fewer texts the steps over all of them cost more than an object for each.
_VECTOR_ROWS_MIN = 64

_TimestampMs = Annotated[int, msgspec.Meta(ge=0, le=TIMESTAMP_MS_MAX)]
_Partition = Annotated[int, msgspec.Meta(ge=0, le=np.iinfo(np.int32).max)]


class _Header(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    key: str
    value: bytes | None = None


class _Record(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    partition: _Partition | None = None
    timestamp: _TimestampMs | None = None
    headers: list[_Header] | None = None


class _JsonRecord(_Record, forbid_unknown_fields=True, gc=False):
    key: msgspec.Raw = _NULL_TEXT
    value: msgspec.Raw = _NULL_TEXT


class _BinaryRecord(_Record, forbid_unknown_fields=True, gc=False):
    key: bytes | None = None
    value: bytes | None = None


R = TypeVar("R", bound=_Record)


class _Request(msgspec.Struct, Generic[R], forbid_unknown_fields=True):
    """REST Proxy's request. Its schema fields belong to formats that are not spoken here."""

    records: list[R]
    key_schema: msgspec.Raw = _NULL_TEXT
    key_schema_id: msgspec.Raw = _NULL_TEXT
    value_schema: msgspec.Raw = _NULL_TEXT
    value_schema_id: msgspec.Raw = _NULL_TEXT


class PlainRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A record with nothing but a key and a value, as JSON texts."""

    key: msgspec.Raw = _NULL_TEXT
    value: msgspec.Raw = _NULL_TEXT


class _PlainRequest(msgspec.Struct, forbid_unknown_fields=True):
    records: list[PlainRecord]


_PLAIN_DECODER = msgspec.json.Decoder(_PlainRequest)
_JSON_DECODER = msgspec.json.Decoder(_Request[_JsonRecord])
_BINARY_DECODER = msgspec.json.Decoder(_Request[_BinaryRecord])


def decode_json(body: bytes, *, max_message_bytes: int) -> DecodedRecords:
    """``application/vnd.kafka.json.v2+json`` and ``application/json``: key and value are any JSON.

    Raises InvalidRequestError, InvalidRecordError, RecordTooLargeError, RequestTooLargeError.
    """
    plain = decode_plain(body)
    if plain is not None:
        decoded = plain_columns(plain)
        check_records(decoded.batch, max_message_bytes)
        return decoded
    records = _decode_body(body, _JSON_DECODER, _JsonRecord)
    keys = _json_text_column([record.key for record in records])
    values = _json_text_column([record.value for record in records])
    return _decoded(records, keys, values, max_message_bytes)


def decode_binary(body: bytes, *, max_message_bytes: int) -> DecodedRecords:
    """``application/vnd.kafka.binary.v2+json``: key and value are base64 (RFC 4648 section 4) or null.

    Raises InvalidRequestError, InvalidRecordError, RecordTooLargeError, RequestTooLargeError.
    """
    records = _decode_body(body, _BINARY_DECODER, _BinaryRecord)
    keys = pa.array([record.key for record in records], pa.binary())
    values = pa.array([record.value for record in records], pa.binary())
    return _decoded(records, keys, values, max_message_bytes)


def is_utf8(data: bytes) -> bool:
    """Whether ``data`` is UTF-8 with no surrogates; nothing is copied."""
    if data.isascii():
        return True
    offsets = pa.py_buffer(np.array([0, len(data)], np.int64))
    try:
        pa.Array.from_buffers(pa.large_utf8(), 1, [None, offsets, pa.py_buffer(data)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def decode_plain(body: bytes) -> list[PlainRecord] | None:
    """The records if they have nothing but keys and values, as most have: a third faster. None for all else."""
    if len(body) > REQUEST_RECORDS_MAX or not is_utf8(body):
        return None
    try:
        return _PLAIN_DECODER.decode(body).records
    except (msgspec.MsgspecError, RecursionError):
        return None


def plain_columns(records: Sequence[PlainRecord]) -> DecodedRecords:
    """What ``decode_plain`` gave as columns; their sizes are not checked."""
    rows = len(records)
    columns = [
        pa.nulls(rows, _TIMESTAMP_TYPE),
        _json_text_column([record.key for record in records]),
        _json_text_column([record.value for record in records]),
        null_headers(rows),
    ]
    return DecodedRecords(pa.RecordBatch.from_arrays(columns, schema=WIRE_SCHEMA), None)


def _decode_body(body: bytes, decoder: msgspec.json.Decoder[_Request[R]], record_type: type[R]) -> list[R]:
    if not is_utf8(body):
        raise InvalidRequestError("The body is not UTF-8: send JSON in UTF-8, and bytes that are not text as base64")
    # Each record and header is an object, so that few braces bound what decoding allocates; else it has to count.
    if (
        len(body) > REQUEST_RECORDS_MAX
        and np.count_nonzero(np.frombuffer(body, np.uint8) == ord("{")) > REQUEST_RECORDS_MAX
    ):
        decoder = _counting_decoder(record_type)
    try:
        request = decoder.decode(body)
    except RecursionError as error:
        raise InvalidRequestError("The body is nested too deeply: nest keys and values less deeply") from error
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(f"The body is not a valid request: {_explain(error)}") from error
    for name in ("key_schema", "key_schema_id", "value_schema", "value_schema_id"):
        if (given := getattr(request, name)) is not _NULL_TEXT and bytes(given) != b"null":
            raise InvalidRequestError(f"{name} is not supported with JSON and binary records: leave it out")
    return request.records


def _explain(error: msgspec.MsgspecError) -> str:
    text = str(error)[:_ERROR_LENGTH_MAX]
    # What is wrong inside of records comes with its path. Else it is the request that has another shape.
    is_shape = isinstance(error, msgspec.ValidationError) and " - at `$" not in text
    return f"{text}; {_SHAPE}" if is_shape else text


def _counting_decoder(record_type: type[R]) -> msgspec.json.Decoder[_Request[R]]:
    """A decoder, for one use, that stops with RequestTooLargeError at the first record or header too many."""
    seen = 0

    def count(_: msgspec.Struct) -> None:
        nonlocal seen
        seen += 1
        check_record_count(seen)

    counting = {"__post_init__": count}
    header = msgspec.defstruct("Header", [], bases=(_Header,), namespace=counting)
    headers = ("headers", list[header] | None, None)  # type: ignore[valid-type]
    record = msgspec.defstruct("Record", [headers], bases=(record_type,), namespace=counting)
    return msgspec.json.Decoder(_Request[record])  # type: ignore[valid-type]


def _decoded(records: Sequence[_Record], keys: pa.Array, values: pa.Array, max_message_bytes: int) -> DecodedRecords:
    rows = len(records)
    times = [record.timestamp for record in records]
    timestamps = pa.nulls(rows, _TIMESTAMP_TYPE)
    if times.count(None) < rows:
        timestamps = pa.array(times, pa.int64()).cast(_TIMESTAMP_TYPE)
    headers = _headers_column([record.headers for record in records])
    batch = pa.RecordBatch.from_arrays([timestamps, keys, values, headers], schema=WIRE_SCHEMA)
    check_records(batch, max_message_bytes)
    named = [record.partition for record in records]
    partitions = None
    if named.count(None) < rows:
        partitions = np.fromiter((-1 if partition is None else partition for partition in named), np.int32, rows)
    return DecodedRecords(batch, partitions)


def _json_text_column(texts: list[msgspec.Raw]) -> pa.Array:
    """JSON texts as a binary column; the text ``null`` as null."""
    rows = len(texts)
    if rows < _VECTOR_ROWS_MIN:
        values = map(bytes, texts)
        return pa.array([None if value == b"null" else value for value in values], pa.binary())
    data = np.frombuffer(b"".join(texts), np.uint8)
    lengths = np.fromiter(map(len, texts), np.int32, rows)
    # Of all JSON texts only null has four letters and begins with n.
    is_null = lengths == len(b"null")
    is_null[is_null] = data[np.cumsum(lengths)[is_null] - len(b"null")] == ord("n")
    validity = None
    if is_null.any():
        validity = pa.array(~is_null).buffers()[1]
        data = data[np.repeat(~is_null, lengths)]
        lengths[is_null] = 0
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), rows, [validity, pa.py_buffer(offsets), pa.py_buffer(data)])


def _headers_column(lists: list[list[_Header] | None]) -> pa.Array:
    if lists.count(None) == len(lists):
        return null_headers(len(lists))
    flat = list(chain.from_iterable(headers for headers in lists if headers))
    elements = pa.StructArray.from_arrays(
        [
            pa.array([header.key for header in flat], pa.string()),
            pa.array([header.value for header in flat], pa.binary()),
        ],
        fields=list(HEADERS_TYPE.value_type),
    )
    counts = np.fromiter((len(headers) if headers else 0 for headers in lists), np.int32, len(lists))
    offsets = np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)))
    mask = pa.array([headers is None for headers in lists])
    return pa.ListArray.from_arrays(pa.array(offsets), elements, type=HEADERS_TYPE, mask=mask)
