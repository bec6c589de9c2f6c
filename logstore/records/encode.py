"""Records of the log (LOG_SCHEMA) to HTTP bodies.

Stored JSON texts are embedded as they are, byte for byte. What is stored need not be JSON (Arrow, NDJSON and base64
producers store any bytes), so that each text is proven to be one JSON value by itself before it is embedded: else a
value like ``1,"offset":0`` would rewrite its record.
"""

import struct
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from logstore.errors import UnreadableRecordError
from logstore.filesystem import Buffer
from logstore.records.json_decoder import is_utf8
from logstore.records.schema import LOG_SCHEMA

_NULL = b"null"
_JSON_TEXTS = msgspec.json.Decoder(list[msgspec.Raw])
_JSON_TEXT = msgspec.json.Decoder(msgspec.Raw)
# Around the record batch messages of a stream: the schema, and a continuation of no bytes.
_STREAM_BEGIN = LOG_SCHEMA.serialize().to_pybytes()
_STREAM_END = struct.pack("<II", 0xFFFFFFFF, 0)


def encode_json(records: pa.Table, topic: str, partition: int) -> bytes:
    """A json.v2 array: topic, key, value, partition, offset, timestamp (ms) and, where it has any, headers.

    UnreadableRecordError with the offset of the first record whose key or value is not JSON.
    """
    return _encode_array(_json_rows(batch, topic, partition) for batch in records.to_batches())


def encode_binary(records: pa.Table, topic: str, partition: int) -> bytes:
    """A binary.v2 array: as ``encode_json``, key and value as base64 or null."""
    return _encode_array(_binary_rows(batch, topic, partition) for batch in records.to_batches())


def encode_arrow_stream(records: pa.Table) -> list[Buffer]:
    """An Arrow IPC stream of LOG_SCHEMA, in pieces; no records are a stream of the schema alone."""
    batches = [memoryview(batch.serialize()) for batch in records.to_batches() if batch.num_rows]
    return [_STREAM_BEGIN, *batches, _STREAM_END]


def _encode_array(rows: Iterable[Iterable[bytes]]) -> bytes:
    return b"[" + b",".join(chain.from_iterable(rows)) + b"]"


def _json_rows(batch: pa.RecordBatch, topic: str, partition: int) -> Iterable[bytes]:
    columns = []
    for name in ("key", "value"):
        texts = [_NULL if text is None else text for text in batch.column(name).to_pylist()]
        if not _are_json(texts):
            _check_each(texts, name, batch.column("offset"), topic, partition)
        columns.append(texts)
    return _encode_rows(batch, topic, partition, *columns)


def _binary_rows(batch: pa.RecordBatch, topic: str, partition: int) -> Iterable[bytes]:
    columns = ([_base64_text(data) for data in batch.column(name).to_pylist()] for name in ("key", "value"))
    return _encode_rows(batch, topic, partition, *columns)


def _encode_rows(
    batch: pa.RecordBatch, topic: str, partition: int, keys: Sequence[bytes], values: Sequence[bytes]
) -> Iterable[bytes]:
    name = msgspec.json.encode(topic).replace(b"%", b"%%")
    row = b'{"topic":%b,"key":%%b,"value":%%b,"partition":%d,"offset":%%d,"timestamp":%%d%%b}' % (name, partition)
    offsets = batch.column("offset").to_pylist()
    timestamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
    headers = _headers_fields(batch.column("headers"))
    return map(row.__mod__, zip(keys, values, offsets, timestamps, headers, strict=True))


def _headers_fields(column: pa.Array) -> Iterable[bytes]:
    """``,"headers":[...]`` of each record; nothing for a record without headers."""
    if column.null_count == len(column):
        return [b""] * len(column)
    elements = column.values
    encode: Callable[[Any], bytes] = msgspec.json.encode
    texts = [
        b'{"key":%b,"value":%b}' % (encode(key), _base64_text(value))
        for key, value in zip(elements.field("key").to_pylist(), elements.field("value").to_pylist(), strict=True)
    ]
    offsets = column.offsets.to_numpy()
    filled = (np.diff(offsets) > 0) & column.is_valid().to_numpy(zero_copy_only=False)
    return [
        b',"headers":[%b]' % b",".join(texts[start:end]) if has_any else b""
        for start, end, has_any in zip(offsets[:-1].tolist(), offsets[1:].tolist(), filled.tolist(), strict=True)
    ]


def _base64_text(data: bytes | None) -> bytes:
    return _NULL if data is None else b'"%b"' % b2a_base64(data, newline=False)


def _are_json(texts: list[bytes]) -> bool:
    """Whether each text is one JSON value with no space around it, found out for all at once.

    They are read as one array. If it has as many elements as there are texts, each as long as its text, then, by
    induction from the left, every element *is* its text: no comma or bracket of one text reached into another.
    """
    joined = b"[" + b",".join(texts) + b"]"
    try:
        elements = _JSON_TEXTS.decode(joined)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return list(map(len, elements)) == list(map(len, texts)) and is_utf8(joined)


def _check_each(texts: list[bytes], column: str, offsets: pa.Array, topic: str, partition: int) -> None:
    """UnreadableRecordError at the first text that is not JSON, where they are not all plain (space around a value)."""
    for row, text in enumerate(texts):
        try:
            _JSON_TEXT.decode(text)
        except (msgspec.MsgspecError, RecursionError):
            is_json = False
        else:
            is_json = is_utf8(text)
        if not is_json:
            offset = offsets[row].as_py()
            raise UnreadableRecordError(
                f"The {column} of the record at offset {offset} of {topic}-{partition} is not JSON: "
                "read it as application/vnd.kafka.binary.v2+json or application/vnd.apache.arrow.stream",
                offset=offset,
            )
