"""Encodes records of the log (LOG_SCHEMA) as HTTP bodies, in pieces.

Invariant: besides the pieces made so far, an encoder holds what one run of records needs: a run of 512 KiB, or of one
record. Stored JSON texts are embedded as they are, byte for byte. Stored bytes need not be JSON (Arrow, NDJSON and
base64 producers store any bytes). So each text is checked to be one JSON value before it is embedded; otherwise a value
like ``1,"offset":0`` would rewrite its record. With ``string_keys`` all keys are texts, even those that look like JSON.
"""

import struct
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from logstore.errors import UnreadableRecordError
from logstore.filesystem import Buffer
from logstore.limits import RECORD_OVERHEAD_BYTES
from logstore.records import surrogates
from logstore.records.batch import record_sizes
from logstore.records.json_decoder import is_utf8
from logstore.records.schema import LOG_SCHEMA

_NULL = b"null"
_JSON, _STRING, _BINARY = "json", "string", "binary"
# The objects of a run's records take several times its bytes.
_RUN_BYTES = 512 * 1024
_JSON_TEXTS = msgspec.json.Decoder(list[msgspec.Raw])
_JSON_TEXT = msgspec.json.Decoder(msgspec.Raw)
# These surround the record batch messages of a stream: the schema, and a continuation of no bytes.
_STREAM_BEGIN = LOG_SCHEMA.serialize().to_pybytes()
_STREAM_END = struct.pack("<II", 0xFFFFFFFF, 0)


def encode_json(records: pa.Table, topic: str, partition: int, *, string_keys: bool = False) -> Iterator[bytes]:
    """Encode a json.v2 array: topic, key, value, partition, offset, timestamp (ms) and, if it has any, headers. Raises
    UnreadableRecordError with the offset of the first record whose value or key is not JSON (a string key: not UTF-8).
    """

    def rows(batch: pa.RecordBatch) -> Iterable[bytes]:
        columns = []
        for name, is_string in (("key", string_keys), ("value", False)):
            texts, formats = _embedded(batch.column(name).to_pylist(), is_string=is_string)
            _require(_STRING if is_string else _JSON, formats, name, batch.column("offset"), topic, partition)
            columns.append(texts)
        return _encode_rows(batch, topic, partition, *columns)

    return encode_array(map(rows, runs(records)))


def encode_readable(records: pa.Table, topic: str, partition: int, *, string_keys: bool = False) -> Iterator[bytes]:
    """Encode like ``encode_json``, but bytes that are not JSON as text, and bytes that are not UTF-8 as base64. Such a
    record says so in ``key_format`` or ``value_format``: ``string`` or ``binary``.
    """
    return encode_array(readable_rows(run, topic, partition, string_keys=string_keys) for run in runs(records))


def encode_binary(records: pa.Table, topic: str, partition: int) -> Iterator[bytes]:
    """Encode a binary.v2 array: like ``encode_json``, but key and value as base64 or null."""
    return encode_array(binary_rows(run, topic, partition) for run in runs(records))


def encode_arrow_stream(records: pa.Table) -> Iterator[Buffer]:
    """Encode an Arrow IPC stream of LOG_SCHEMA; without records it is a stream of only the schema."""
    yield _STREAM_BEGIN
    for batch in records.to_batches():
        if batch.num_rows:
            yield memoryview(batch.serialize())
    yield _STREAM_END


def readable_rows(batch: pa.RecordBatch, topic: str, partition: int, *, string_keys: bool = False) -> Iterable[bytes]:
    """Return the object of each record, as in the array of ``encode_readable``."""
    keys, key_formats = _embedded(batch.column("key").to_pylist(), is_string=string_keys)
    values, value_formats = _embedded(batch.column("value").to_pylist(), is_string=False)
    fields = [
        _format_field(b"key", key_format) + _format_field(b"value", value_format)
        for key_format, value_format in zip(key_formats, value_formats, strict=True)
    ]
    return _encode_rows(batch, topic, partition, keys, values, fields)


def binary_rows(batch: pa.RecordBatch, topic: str, partition: int) -> Iterable[bytes]:
    """Return the object of each record, as in the array of ``encode_binary``."""
    columns = ([_base64_text(data) for data in batch.column(name).to_pylist()] for name in ("key", "value"))
    return _encode_rows(batch, topic, partition, *columns)


def runs(records: pa.Table, run_bytes: int = _RUN_BYTES) -> Iterator[pa.RecordBatch]:
    """Yield the records in batches of at most ``run_bytes``, or of one record."""
    for batch in records.to_batches():
        ends = np.cumsum(record_sizes(batch) + RECORD_OVERHEAD_BYTES)
        start = 0
        while start < batch.num_rows:
            begun = int(ends[start - 1]) if start else 0
            end = max(start + 1, int(np.searchsorted(ends, begun + run_bytes, side="right")))
            yield batch.slice(start, end - start)
            start = end


def encode_array(runs: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Encode the JSON array of the objects of all ``runs``, each of at least one record."""
    yield b"["
    for number, rows in enumerate(runs):
        # The empty first item puts a comma between two runs.
        yield b",".join(chain((b"",), rows) if number else rows)
    yield b"]"


def _encode_rows(
    batch: pa.RecordBatch,
    topic: str,
    partition: int,
    keys: Iterable[bytes],
    values: Iterable[bytes],
    fields: Iterable[bytes] | None = None,
) -> Iterable[bytes]:
    """Return the object of each record. ``fields`` are the other fields of a record, each with a comma before it."""
    name = msgspec.json.encode(topic).replace(b"%", b"%%")
    row = b'{"topic":%b,"key":%%b,"value":%%b,"partition":%d,"offset":%%d,"timestamp":%%d%%b%%b}' % (name, partition)
    offsets = batch.column("offset").to_pylist()
    timestamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
    headers = _headers_fields(batch.column("headers"))
    fields = repeat(b"", batch.num_rows) if fields is None else fields
    return map(row.__mod__, zip(keys, values, offsets, timestamps, fields, headers, strict=True))


def _headers_fields(column: pa.Array) -> Iterable[bytes]:
    """Return ``,"headers":[...]`` for each record; nothing for a record without headers."""
    if column.null_count == len(column):
        return [b""] * len(column)
    offsets = column.offsets.to_numpy()
    elements = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    offsets = offsets - offsets[0]
    encode: Callable[[Any], bytes] = msgspec.json.encode
    texts = [
        b'{"key":%b,"value":%b}' % (encode(key), _base64_text(value))
        for key, value in zip(elements.field("key").to_pylist(), elements.field("value").to_pylist(), strict=True)
    ]
    filled = (np.diff(offsets) > 0) & column.is_valid().to_numpy(zero_copy_only=False)
    return [
        b',"headers":[%b]' % b",".join(texts[start:end]) if has_any else b""
        for start, end, has_any in zip(offsets[:-1].tolist(), offsets[1:].tolist(), filled.tolist(), strict=True)
    ]


def _base64_text(data: bytes | None) -> bytes:
    return _NULL if data is None else b'"%b"' % b2a_base64(data, newline=False)


def _are_json(texts: list[bytes]) -> bool:
    """Return whether each text is one JSON value with no space around it, checked for all at once.

    They are read as one array. If it has as many elements as there are texts, each as long as its text, then, by
    induction from the left, every element *is* its text: no comma or bracket of one text reached into another.
    """
    joined = b"[" + b",".join(texts) + b"]"
    try:
        elements, _ = surrogates.decode(_JSON_TEXTS, joined)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return list(map(len, elements)) == list(map(len, texts)) and is_utf8(joined)


def _embedded(stored: list[bytes | None], *, is_string: bool) -> tuple[list[bytes], list[str]]:
    """Return each value's form in JSON, and its kind: JSON (or null), a string, or base64. With ``is_string`` no value
    is taken for JSON.
    """
    if not is_string:
        texts = [_NULL if data is None else data for data in stored]
        if _are_json(texts):
            return texts, [_JSON] * len(texts)
    pairs = [_embed(data, is_string=is_string) for data in stored]
    return [text for text, _ in pairs], [kind for _, kind in pairs]


def _embed(data: bytes | None, *, is_string: bool) -> tuple[bytes, str]:
    if data is None:
        return _NULL, _JSON
    if not is_string and _is_json(data):
        return data, _JSON
    try:
        return msgspec.json.encode(data.decode()), _STRING
    except UnicodeDecodeError:
        return _base64_text(data), _BINARY


def _is_json(text: bytes) -> bool:
    """Return whether the text is one JSON value, possibly with space around it."""
    try:
        surrogates.decode(_JSON_TEXT, text)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return is_utf8(text)


def _format_field(name: bytes, kind: str) -> bytes:
    return b"" if kind == _JSON else b',"%b_format":"%b"' % (name, kind.encode())


def _require(kind: str, formats: list[str], column: str, offsets: pa.Array, topic: str, partition: int) -> None:
    """Raise UnreadableRecordError at the first record whose ``column`` is neither JSON nor ``kind``."""
    row = next((row for row, found in enumerate(formats) if found not in (_JSON, kind)), None)
    if row is not None:
        offset = offsets[row].as_py()
        raise UnreadableRecordError(
            f"The {column} of the record at offset {offset} of {topic}-{partition} is not "
            f"{'JSON' if kind == _JSON else 'UTF-8'}: read it as application/vnd.kafka.binary.v2+json or "
            "application/vnd.apache.arrow.stream, or send no Accept",
            offset=offset,
        )
