"""Decodes Arrow IPC streams from outside to one WIRE_SCHEMA batch (rule R2). The checks come in this order, so that no
step relies on a later one: the stream's layout and declared sizes (``arrow_messages``), the schema, each batch with
``validate(full=True)`` (offsets, UTF-8, null counts), then its columns are cast to the wire schema, then the records'
own limits.

These columns are accepted: ``value`` and ``key`` as binary or utf8 in their plain, large and view types; ``timestamp``
as int64 milliseconds or any timestamp unit (without a zone it is UTC; digits below a millisecond are cut off);
``headers`` as list or large_list of struct<key, value>; ``partition`` as any integer. All except ``value`` may be
absent, each may be null.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import InvalidRecordError, InvalidRequestError, NoRecordsError, RequestTooLargeError
from logstore.limits import KIB, TIMESTAMP_MS_MAX
from logstore.records.arrow_messages import StreamLayout, read_layout
from logstore.records.batch import (
    DecodedRecords,
    PartitionBatch,
    Records,
    SplitRecords,
    check_record_count,
    check_records,
)
from logstore.records.schema import HEADERS_TYPE, WIRE_SCHEMA, null_headers

_TIMESTAMP_TYPE = WIRE_SCHEMA.field("timestamp").type
_UNITS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_ERROR_LENGTH_MAX = 300
# A message with more metadata has the producer's own content, which is not stored.
_VERBATIM_METADATA_BYTES_MAX = 2 * KIB
_VIEW_WORDS = 4
_PARTITION_MAX = np.iinfo(np.int32).max


def decode_arrow(body: bytes, *, max_message_bytes: int, max_request_size: int) -> Records:
    """Decode ``application/vnd.apache.arrow.stream``: the batches of the stream become one.

    If each batch says in its metadata (``partition``) where all its records go, the batches stay as they are.
    ``max_request_size`` bounds the inflated size of all buffers. Raises InvalidRequestError, InvalidRecordError,
    RecordTooLargeError, RequestTooLargeError.
    """
    return ArrowRequest(body, max_request_size).decode(max_message_bytes)


class ArrowRequest:
    """A stream of which only the frame has been read, so that the memory for decoding is known before. The constructor
    raises InvalidRequestError and RequestTooLargeError.
    """

    def __init__(self, body: bytes, max_request_size: int) -> None:
        self._body, self._max_request_size = body, max_request_size
        self._layout = read_layout(memoryview(body), max_request_size)

    @property
    def inflated_bytes(self) -> int:
        """The inflated size of all buffers, as the stream declares it; at least the bytes of the body."""
        return max(len(self._body), self._layout.inflated_bytes)

    def decode(self, max_message_bytes: int) -> Records:
        """Decode the stream, see ``decode_arrow``."""
        check_record_count(sum(message.num_rows for message in self._layout.batches))
        try:
            return _decode(pa.py_buffer(self._body), self._layout, max_message_bytes, self._max_request_size)
        except (pa.ArrowException, EOFError, OSError, ValueError) as error:
            raise InvalidRequestError(f"The Arrow stream is malformed: {str(error)[:_ERROR_LENGTH_MAX]}") from error


def _decode(body: pa.Buffer, layout: StreamLayout, max_message_bytes: int, max_request_size: int) -> Records:
    schema = pa.ipc.read_schema(body.slice(0, layout.schema_end))
    _check_schema(schema)
    if not layout.batches:
        raise NoRecordsError("records may not be empty: the Arrow stream has no batch")
    is_wire = schema.equals(WIRE_SCHEMA)
    has_partitions = "partition" in schema.names
    batches: list[pa.RecordBatch] = []
    partitions: list[np.ndarray] = []
    verbatim: list[pa.Buffer | None] = []
    for message in layout.batches:
        stored = body.slice(message.start, message.end - message.start)
        batch = pa.ipc.read_record_batch(stored, schema)
        batch.validate(full=True)
        batches.append(_checked_wire(batch, max_request_size) if is_wire else _to_wire(batch, max_request_size))
        if has_partitions:
            partitions.append(_partitions(batch))
        verbatim.append(stored if is_wire and message.metadata_bytes <= _VERBATIM_METADATA_BYTES_MAX else None)
    if any(message.partition is not None for message in layout.batches):
        return _split(layout, schema, batches, verbatim, max_message_bytes)
    combined = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    check_records(combined, max_message_bytes)
    named = np.concatenate(partitions) if has_partitions else None
    if named is not None and not (named >= 0).any():
        named = None
    return DecodedRecords(combined, named, verbatim[0] if len(verbatim) == 1 else None)


def _split(
    layout: StreamLayout,
    schema: pa.Schema,
    batches: list[pa.RecordBatch],
    verbatim: list[pa.Buffer | None],
    max_message_bytes: int,
) -> SplitRecords:
    if "partition" in schema.names:
        raise InvalidRequestError("The Arrow stream names partitions in a column and in its batches' metadata")
    parts: list[PartitionBatch] = []
    row = 0
    for message, batch, stored in zip(layout.batches, batches, verbatim, strict=True):
        name = message.partition
        if name is None or not name.isdigit() or len(name) > len(str(_PARTITION_MAX)) or int(name) > _PARTITION_MAX:
            raise InvalidRequestError(
                f"The Arrow batch at byte {message.start} names partition {name!r} in its metadata: every batch of a "
                "stream names one, or none does"
            )
        check_records(batch, max_message_bytes, row)
        parts.append(PartitionBatch(int(name), batch, np.arange(row, row + batch.num_rows), stored))
        row += batch.num_rows
    return SplitRecords(tuple(parts))


def _check_schema(schema: pa.Schema) -> None:
    """Raise InvalidRequestError unless each column is a known one, occurs once, and has an accepted type."""
    if "value" not in schema.names:
        raise InvalidRequestError("The Arrow stream has no column 'value'")
    if len(set(schema.names)) != len(schema.names):
        raise InvalidRequestError("The Arrow stream has two columns of one name")
    for field in schema:
        if field.name not in _COLUMN_TYPES:
            raise InvalidRequestError(
                f"The Arrow stream has a column {field.name[:_ERROR_LENGTH_MAX]!r}: "
                f"send no others than {', '.join(_COLUMN_TYPES)}"
            )
        accepts, wanted = _COLUMN_TYPES[field.name]
        if not accepts(field.type):
            raise InvalidRequestError(
                f"The Arrow column {field.name!r} has type {str(field.type)[:_ERROR_LENGTH_MAX]}: send it as {wanted}"
            )


def _is_bytes(kind: pa.DataType) -> bool:
    return _is_text(kind) or kind in (pa.binary(), pa.large_binary(), pa.binary_view())


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def _is_headers(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    return bool(
        kind.value_type.num_fields == len(fields) == 2
        and fields.keys() == {"key", "value"}
        and _is_text(fields["key"])
        and _is_bytes(fields["value"])
    )


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) or kind == pa.int64()


_BYTES_WANTED = "binary or utf8 (plain, large or view, not dictionary-encoded)"
_COLUMN_TYPES: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "value": (_is_bytes, _BYTES_WANTED),
    "key": (_is_bytes, _BYTES_WANTED),
    "timestamp": (_is_time, "timestamp or int64 milliseconds"),
    "headers": (_is_headers, "list<struct<key: utf8, value: binary>>"),
    "partition": (pa.types.is_integer, "int32"),
}


def _checked_wire(batch: pa.RecordBatch, max_request_size: int) -> pa.RecordBatch:
    """Check the values of a batch of WIRE_SCHEMA, and return it: a time or a header's key may be wrong."""
    timestamps, _, _, headers = batch.columns
    if timestamps.null_count < len(timestamps):
        _to_timestamp(timestamps)
    if headers.null_count < len(headers):
        _to_headers(headers, max_request_size)
    return batch


def _to_wire(batch: pa.RecordBatch, max_request_size: int) -> pa.RecordBatch:
    names = set(batch.schema.names)
    columns = [
        _to_timestamp(batch.column("timestamp")) if "timestamp" in names else pa.nulls(batch.num_rows, _TIMESTAMP_TYPE),
        _cast(batch.column("key"), pa.binary(), max_request_size)
        if "key" in names
        else pa.nulls(batch.num_rows, pa.binary()),
        _cast(batch.column("value"), pa.binary(), max_request_size),
        _to_headers(batch.column("headers"), max_request_size) if "headers" in names else null_headers(batch.num_rows),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=WIRE_SCHEMA)


def _cast(column: pa.Array, kind: pa.DataType, max_request_size: int) -> pa.Array:
    """Return a binary or text column as ``kind`` (binary or utf8, plain)."""
    if column.type in (pa.binary_view(), pa.string_view()):
        column = _checked_views(column, max_request_size)
    return column.cast(kind)


def _checked_views(column: pa.Array, max_request_size: int) -> pa.Array:
    """Return a view column that is safe to cast. Raises RequestTooLargeError if its values, written out, are too large
    to be accepted in one request.
    """
    validity, views_buffer, *data = column.buffers()
    # A view has a length, then 12 bytes: the value itself, or prefix, buffer and offset.
    views = np.frombuffer(views_buffer or b"", np.int32, len(column) * _VIEW_WORDS).reshape(-1, _VIEW_WORDS).copy()
    # Arrow validates only the views of valid rows, yet its cast reads all: a negative length there is a segfault.
    views[~column.is_valid().to_numpy(zero_copy_only=False)] = 0
    # Views may share bytes, so a few bytes can represent many.
    if views[:, 0].sum(dtype=np.int64) > max_request_size:
        raise RequestTooLargeError(
            f"An Arrow view column has more than max.request.size = {max_request_size} bytes when written out: "
            "send several smaller requests"
        )
    return pa.Array.from_buffers(column.type, len(column), [validity, pa.py_buffer(views), *data])


def _to_timestamp(column: pa.Array) -> pa.Array:
    unit = column.type.unit if pa.types.is_timestamp(column.type) else "ms"
    ticks = column.cast(pa.int64())
    bounds = pc.min_max(ticks).as_py()
    ticks_per_second = _UNITS_PER_SECOND[unit]
    if bounds["min"] is not None and (
        bounds["min"] < 0 or bounds["max"] * 1_000 // ticks_per_second > TIMESTAMP_MS_MAX
    ):
        raise InvalidRecordError(
            f"A timestamp is outside 0 to {TIMESTAMP_MS_MAX} ms since 1970: send null for the time of the append"
        )
    if ticks_per_second > 1_000:
        ticks = pc.divide(ticks, ticks_per_second // 1_000)
    elif ticks_per_second < 1_000:
        ticks = pc.multiply(ticks, 1_000 // ticks_per_second)
    return ticks.cast(_TIMESTAMP_TYPE)


def _to_headers(column: pa.Array, max_request_size: int) -> pa.Array:
    elements = column.values
    keys = elements.field("key")
    if elements.null_count or keys.null_count:
        raise InvalidRecordError("A header or its key is null: only the value of a header may be null")
    fields = HEADERS_TYPE.value_type
    plain = pa.StructArray.from_arrays(
        [
            _cast(keys, pa.string(), max_request_size),
            _cast(elements.field("value"), pa.binary(), max_request_size),
        ],
        fields=list(fields),
    )
    mask = column.is_null() if column.null_count else None
    return pa.ListArray.from_arrays(column.offsets.cast(pa.int32()), plain, type=HEADERS_TYPE, mask=mask)


def _partitions(batch: pa.RecordBatch) -> np.ndarray:
    """Return the partition that each record names in its column, int32, -1 = none."""
    column = batch.column("partition")
    bounds = pc.min_max(column).as_py()
    if bounds["min"] is not None and (bounds["min"] < 0 or bounds["max"] > _PARTITION_MAX):
        raise InvalidRecordError(
            f"A partition is outside 0 to {_PARTITION_MAX}: send null to have it chosen by the key"
        )
    return np.asarray(pc.fill_null(column.cast(pa.int32()), -1))
