"""Decodes JSON request bodies (``{"records": [...]}``) to Arrow columns, with embedded JSON or base64 keys and values.

Embedded keys and values stay JSON texts, byte for byte as sent (a text key keeps its quotes, as in REST Proxy), taken
as slices of the body; ``null`` or absent is null. They follow RFC 8259: UTF-8, no NaN, nested less deeply than Python's
recursion limit. Numbers of any size are text, and so are escapes of lone surrogates (``surrogates``). With
``string_keys`` a key that is a JSON string is its UTF-8 text instead; all other keys stay JSON texts. Unknown fields
are refused, and doubled ones (outside of keys and values), so that a slip cannot lose data. So is base64 that no
encoder would make.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, Generic, NamedTuple, Self, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from logstore.errors import InvalidRequestError
from logstore.limits import REQUEST_RECORDS_MAX, TIMESTAMP_MS_MAX
from logstore.records import surrogates
from logstore.records.batch import DecodedRecords, check_record_count, check_records
from logstore.records.json_strings import string_texts
from logstore.records.schema import HEADERS_TYPE, WIRE_SCHEMA, null_headers
from logstore.records.strict_json import (
    ABSENT,
    VECTOR_ROWS_MIN,
    Texts,
    count_strings,
    has_doubled_field,
    require_canonical_base64,
)

_ERROR_LENGTH_MAX = 300
_SHAPE = 'send {"records": [{"key": ..., "value": ...}]}'
_TIMESTAMP_TYPE = WIRE_SCHEMA.field("timestamp").type

_TimestampMs = Annotated[int, msgspec.Meta(ge=0, le=TIMESTAMP_MS_MAX)]
_Partition = Annotated[int, msgspec.Meta(ge=0, le=np.iinfo(np.int32).max)]


# The number of a record without the field, unlike one where it is null.
_NO_NUMBER = -1


class _Header(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    key: str
    value: bytes | msgspec.UnsetType | None = msgspec.UNSET


class _Record(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    partition: _Partition | None = _NO_NUMBER
    timestamp: _TimestampMs | None = _NO_NUMBER
    headers: list[_Header] | msgspec.UnsetType | None = msgspec.UNSET


class _JsonRecord(_Record, forbid_unknown_fields=True, gc=False):
    key: msgspec.Raw = ABSENT
    value: msgspec.Raw = ABSENT


class _BinaryRecord(_Record, forbid_unknown_fields=True, gc=False):
    key: bytes | msgspec.UnsetType | None = msgspec.UNSET
    value: bytes | msgspec.UnsetType | None = msgspec.UNSET


R = TypeVar("R", bound=_Record)
_SCHEMA_FIELDS = ("key_schema", "key_schema_id", "value_schema", "value_schema_id")


class _Request(msgspec.Struct, Generic[R], forbid_unknown_fields=True):
    """The request of REST Proxy. Its schema fields belong to formats that are not supported here."""

    records: list[R]
    key_schema: msgspec.Raw = ABSENT
    key_schema_id: msgspec.Raw = ABSENT
    value_schema: msgspec.Raw = ABSENT
    value_schema_id: msgspec.Raw = ABSENT


class _PlainRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A record with only a key and a value, as JSON texts."""

    key: msgspec.Raw = ABSENT
    value: msgspec.Raw = ABSENT


class _PlainRequest(msgspec.Struct, forbid_unknown_fields=True):
    records: list[_PlainRecord]


class PlainRecords:
    """The records of a body that have only keys and values, as JSON texts."""

    __slots__ = ("keys", "values")

    def __init__(self, records: Sequence[_PlainRecord]) -> None:
        self.keys = Texts([record.key for record in records])
        self.values = Texts([record.value for record in records])

    def __len__(self) -> int:
        return len(self.keys.texts)

    @property
    def held_bytes(self) -> int:
        """The bytes of memory beside the texts: an object for each. For tiny records that is many times their body."""
        return _PLAIN_RECORD_BYTES * len(self)


_PLAIN_RECORD_BYTES = 160
_PLAIN_DECODER = msgspec.json.Decoder(_PlainRequest)
_JSON_DECODER = msgspec.json.Decoder(_Request[_JsonRecord])
_BINARY_DECODER = msgspec.json.Decoder(_Request[_BinaryRecord])


def decode_json(body: bytes, *, max_message_bytes: int, string_keys: bool = False) -> DecodedRecords:
    """Decode ``application/vnd.kafka.json.v2+json`` and ``application/json``: key and value are any JSON."""
    plain = decode_plain(body)
    if plain is not None:
        records = plain_columns([plain], string_keys=string_keys)
        check_records(records.batch, max_message_bytes)
        return records
    request, decoded = _decode_body(body, _JSON_DECODER, _JsonRecord)
    texts = [record.key for record in request.records], [record.value for record in request.records]
    if decoded is not body:
        texts = surrogates.as_sent(texts[0], decoded, body), surrogates.as_sent(texts[1], decoded, body)
    keys, values = map(Texts, texts)
    if decoded is not body and surrogates.count(body) > surrogates.count(keys.data) + surrogates.count(values.data):
        raise InvalidRequestError("The name of a header has half of a surrogate pair, which is no UTF-8: send it whole")
    others = _Others.of(request.records)
    strings = keys.present + values.present + count_strings(keys.data) + count_strings(values.data)
    _require_each_field_once(body, request, others, strings)
    if others.flat_headers:
        _require_canonical_base64(decoded, is_binary=False)
    return _decoded(_key_column(keys, string_keys=string_keys), _json_text_column(values), others, max_message_bytes)


def decode_binary(body: bytes, *, max_message_bytes: int) -> DecodedRecords:
    """Decode ``application/vnd.kafka.binary.v2+json``: key and value are base64 (RFC 4648 section 4) or null."""
    request, decoded = _decode_body(body, _BINARY_DECODER, _BinaryRecord)
    if decoded is not body:
        raise InvalidRequestError("The body has half of a surrogate pair, which is neither base64 nor UTF-8")
    keys, with_key = _present([record.key for record in request.records])
    values, with_value = _present([record.value for record in request.records])
    columns = pa.array(keys, pa.binary()), pa.array(values, pa.binary())
    others = _Others.of(request.records)
    strings = with_key + with_value + sum(len(column) - column.null_count for column in columns)
    _require_each_field_once(body, request, others, strings)
    _require_canonical_base64(body, is_binary=True)
    return _decoded(*columns, others, max_message_bytes)


def is_utf8(data: bytes) -> bool:
    """Return whether ``data`` is UTF-8 without surrogates; nothing is copied."""
    if data.isascii():
        return True
    offsets = pa.py_buffer(np.array([0, len(data)], np.int64))
    try:
        pa.Array.from_buffers(pa.large_utf8(), 1, [None, offsets, pa.py_buffer(data)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def decode_plain(body: bytes) -> PlainRecords | None:
    """Return the records if there are any and they have only keys and values, as most do (a third faster); None for any
    other body.
    """
    if _may_have_too_many_records(body) or not is_utf8(body):
        return None
    try:
        records = PlainRecords(_PLAIN_DECODER.decode(body).records)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return records if records.keys.texts and not has_doubled_field(body, records.keys, records.values) else None


def plain_columns(requests: Sequence[PlainRecords], *, string_keys: bool = False) -> DecodedRecords:
    """Return the records of several bodies one after another as columns; their sizes are not checked."""
    keys = Texts.joined([records.keys for records in requests])
    values = Texts.joined([records.values for records in requests])
    rows = len(keys.texts)
    columns = [_key_column(keys, string_keys=string_keys), _json_text_column(values)]
    columns = [pa.nulls(rows, _TIMESTAMP_TYPE), *columns, null_headers(rows)]
    return DecodedRecords(pa.RecordBatch.from_arrays(columns, schema=WIRE_SCHEMA), None)


def _decode_body(
    body: bytes, decoder: msgspec.json.Decoder[_Request[R]], record_type: type[R]
) -> tuple[_Request[R], bytes]:
    """Return the request, and the bytes that were decoded, as ``surrogates.decode`` does."""
    if not is_utf8(body):
        raise InvalidRequestError("The body is not UTF-8: send JSON in UTF-8, and bytes that are not text as base64")
    if _may_have_too_many_records(body):
        decoder = _counting_decoder(record_type)
    try:
        request, decoded = surrogates.decode(decoder, body)
    except RecursionError as error:
        raise InvalidRequestError("The body is nested too deeply: nest keys and values less deeply") from error
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(f"The body is not a valid request: {_explain(error)}") from error
    for name in _SCHEMA_FIELDS:
        if bytes(getattr(request, name)) not in (b"", b"null"):
            raise InvalidRequestError(f"{name} is not supported with JSON and binary records: leave it out")
    return request, decoded


def _may_have_too_many_records(body: bytes) -> bool:
    """Return whether a body may have more records, or headers, than a request may have: each begins with a brace.

    Decoding such a body must count them.
    """
    if len(body) <= REQUEST_RECORDS_MAX:
        return False
    return int(np.count_nonzero(np.frombuffer(body, np.uint8) == ord("{"))) > REQUEST_RECORDS_MAX


def _explain(error: msgspec.MsgspecError) -> str:
    text = str(error)[:_ERROR_LENGTH_MAX]
    # An error inside records has a path. Without a path the request itself has another shape.
    is_shape = isinstance(error, msgspec.ValidationError) and " - at `$" not in text
    return f"{text}; {_SHAPE}" if is_shape else text


def _counting_decoder(record_type: type[R]) -> msgspec.json.Decoder[_Request[R]]:
    """Return a decoder, for one use, that raises RequestTooLargeError at the first record or header too many."""
    seen = 0

    def count(_: msgspec.Struct) -> None:
        nonlocal seen
        seen += 1
        check_record_count(seen)

    counting = {"__post_init__": count}
    header = msgspec.defstruct("Header", [], bases=(_Header,), namespace=counting)
    headers = ("headers", list[header] | msgspec.UnsetType | None, msgspec.UNSET)  # type: ignore[valid-type]
    record = msgspec.defstruct("Record", [headers], bases=(record_type,), namespace=counting)
    return msgspec.json.Decoder(_Request[record])  # type: ignore[valid-type]


def _present(values: list[Any]) -> tuple[list[Any], int]:
    """Return the values of a field, None where it is absent, and how often it is present."""
    absent = values.count(msgspec.UNSET)
    if absent == len(values):
        return [None] * absent, 0
    return values if not absent else [None if v is msgspec.UNSET else v for v in values], len(values) - absent


class _Others(NamedTuple):
    """The fields besides key and value, of all records; ``present`` counts them. Numbers are None if no record has one;
    a single record without one has ``_NO_NUMBER`` or None.
    """

    timestamps: list[int | None] | None
    partitions: list[int | None] | None
    headers: list[list[_Header] | None]
    flat_headers: list[_Header]
    present: int

    @classmethod
    def of(cls, records: Sequence[_Record]) -> Self:
        timestamps, partitions = [record.timestamp for record in records], [record.partition for record in records]
        with_timestamp, with_partition = (
            len(numbers) - numbers.count(_NO_NUMBER) for numbers in (timestamps, partitions)
        )
        headers, with_headers = _present([record.headers for record in records])
        flat = list(chain.from_iterable(filter(None, headers)))
        present = with_timestamp + with_partition + with_headers
        return cls(
            timestamps if with_timestamp else None, partitions if with_partition else None, headers, flat, present
        )


def _require_each_field_once(body: bytes, request: _Request[R], others: _Others, strings: int) -> None:
    """Require that no field is doubled. ``strings`` is the number of decoded strings of keys and values, including
    field names. Raises InvalidRequestError.
    """
    header_values, with_value = _present([header.value for header in others.flat_headers])
    strings += 1 + sum(bool(getattr(request, name)) for name in _SCHEMA_FIELDS) + others.present
    strings += 2 * len(header_values) + with_value + len(header_values) - header_values.count(None)
    if count_strings(body) != strings:
        raise InvalidRequestError("A field of the request, of a record or of a header is there twice: send each once")


def _require_canonical_base64(body: bytes, *, is_binary: bool) -> None:
    try:
        require_canonical_base64(body, is_binary=is_binary)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"The body is not a valid request: {_explain(error)}") from error


def _decoded(keys: pa.Array, values: pa.Array, others: _Others, max_message_bytes: int) -> DecodedRecords:
    rows = len(keys)
    timestamps = pa.nulls(rows, _TIMESTAMP_TYPE)
    if others.timestamps is not None:
        given = [None if time == _NO_NUMBER else time for time in others.timestamps]
        timestamps = pa.array(given, pa.int64()).cast(_TIMESTAMP_TYPE)
    batch = pa.RecordBatch.from_arrays([timestamps, keys, values, _headers_column(others)], schema=WIRE_SCHEMA)
    check_records(batch, max_message_bytes)
    partitions = None
    if others.partitions is not None and others.partitions.count(None) + others.partitions.count(_NO_NUMBER) < rows:
        named = (_NO_NUMBER if partition is None else partition for partition in others.partitions)
        partitions = np.fromiter(named, np.int32, rows)
    return DecodedRecords(batch, partitions)


def _key_column(keys: Texts, *, string_keys: bool) -> pa.Array:
    column = _json_text_column(keys)
    return string_texts(column) if string_keys else column


def _json_text_column(texts: Texts) -> pa.Array:
    """Return JSON texts as a binary column; the text ``null``, and an absent text, become null."""
    rows = len(texts.texts)
    if rows < VECTOR_ROWS_MIN:
        values = map(bytes, texts.texts)
        return pa.array([None if value in (b"null", b"") else value for value in values], pa.binary())
    data, lengths = np.frombuffer(texts.data, np.uint8), np.fromiter(map(len, texts.texts), np.int32, rows)
    # Among all JSON texts only null has four letters and begins with n.
    is_null = lengths == len(b"null")
    is_null[is_null] = data[np.cumsum(lengths)[is_null] - len(b"null")] == ord("n")
    is_null |= lengths == 0
    validity = None
    if is_null.any():
        validity = pa.array(~is_null).buffers()[1]
        data = data[np.repeat(~is_null, lengths)]
        lengths = np.where(is_null, 0, lengths)
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), rows, [validity, pa.py_buffer(offsets), pa.py_buffer(data)])


def _headers_column(others: _Others) -> pa.Array:
    lists = others.headers
    if lists.count(None) == len(lists):
        return null_headers(len(lists))
    values, _ = _present([header.value for header in others.flat_headers])
    elements = pa.StructArray.from_arrays(
        [
            pa.array([header.key for header in others.flat_headers], pa.string()),
            pa.array(values, pa.binary()),
        ],
        fields=list(HEADERS_TYPE.value_type),
    )
    counts = np.fromiter((len(headers) if headers else 0 for headers in lists), np.int32, len(lists))
    offsets = np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)))
    mask = pa.array([headers is None for headers in lists])
    return pa.ListArray.from_arrays(pa.array(offsets), elements, type=HEADERS_TYPE, mask=mask)
