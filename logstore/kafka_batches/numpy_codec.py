"""The record codec with numpy and pyarrow, for machines without the library, and the oracle of its tests.

It works on whole columns, except that each record's length says where the next one begins: a loop over numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.kafka_batches.header import HEADER_BYTES, NO_TIMESTAMP, bytes_of
from logstore.kafka_batches.records import (
    COLUMN_BYTES_MAX,
    BatchRecords,
    DecodedBatches,
    Fault,
    Found,
    fault_error,
)
from logstore.limits import HEADERS_PER_RECORD_MAX, TIMESTAMP_MS_MAX
from logstore.records.batch import binary_offsets
from logstore.records.log_batches import int64_values
from logstore.records.schema import HEADERS_TYPE, WIRE_SCHEMA, null_headers

_NO_BYTES: Final = pa.scalar(b"", pa.binary())
_ZERO: Final = pa.scalar(b"\0", pa.binary())


class _FaultFoundError(Exception):
    def __init__(self, fault: Fault, record: int) -> None:
        super().__init__(fault.name)
        self.fault, self.record = fault, record


@dataclass(frozen=True, slots=True)
class _Slices:
    """Values in the data: start and length of each, -1 for null."""

    starts: np.ndarray
    lengths: np.ndarray

    def __getitem__(self, rows: np.ndarray) -> "_Slices":
        return _Slices(self.starts[rows], self.lengths[rows])

    @property
    def nbytes(self) -> int:
        return int(np.maximum(self.lengths, 0).sum())

    @property
    def null_count(self) -> int:
        return int((self.lengths < 0).sum())

    def column(self, data: pa.Buffer, kind: pa.DataType) -> pa.Array:
        """Return the values joined: every second value of the column that begins and ends where they do."""
        rows = len(self.starts)
        bounds = np.zeros(2 * rows + 1, np.int32)
        bounds[0:-1:2] = self.starts
        bounds[1::2] = self.starts + np.maximum(self.lengths, 0)
        bounds[-1] = bounds[-2] if rows else 0
        around = pa.Array.from_buffers(kind, 2 * rows, [None, pa.py_buffer(bounds), data])
        taken = pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32), mask=self.lengths < 0 if self.null_count else None)
        return around.take(taken)


@dataclass(frozen=True, slots=True)
class _Parsed:
    """The fields of a batch's records. Headers are in the order of their records."""

    data: pa.Buffer
    timestamps: np.ndarray
    offset_deltas: np.ndarray
    key: _Slices
    value: _Slices
    header_counts: np.ndarray
    header_key: _Slices
    header_value: _Slices

    def found(self) -> Found:
        null_keys = np.flatnonzero(self.key.lengths < 0)
        return Found(
            key_bytes=self.key.nbytes,
            value_bytes=self.value.nbytes,
            header_count=int(self.header_counts.sum()),
            header_key_bytes=self.header_key.nbytes,
            header_value_bytes=self.header_value.nbytes,
            null_keys=len(null_keys),
            first_null_key=int(null_keys[0]) if len(null_keys) else -1,
            null_values=self.value.null_count,
            null_header_values=self.header_value.null_count,
            bare=int((self.header_counts == 0).sum()),
            untimed=int((self.timestamps == NO_TIMESTAMP).sum()),
            max_timestamp=int(self.timestamps.max(initial=NO_TIMESTAMP)),
            last_offset_delta=int(self.offset_deltas[-1]) if len(self.offset_deltas) else -1,
        )

    def records(self) -> pa.RecordBatch:
        rows = len(self.timestamps)
        untimed = self.timestamps == NO_TIMESTAMP
        timestamps = pa.array(self.timestamps, WIRE_SCHEMA.field("timestamp").type, mask=untimed)
        columns = [timestamps, *(slices.column(self.data, pa.binary()) for slices in (self.key, self.value))]
        if self.header_counts.any():
            columns.append(self._headers())
        else:
            columns.append(null_headers(rows))
        return pa.RecordBatch.from_arrays(columns, schema=WIRE_SCHEMA)

    def _headers(self) -> pa.Array:
        key = self.header_key.column(self.data, pa.string())
        value = self.header_value.column(self.data, pa.binary())
        elements = pa.StructArray.from_arrays([key, value], fields=list(HEADERS_TYPE.value_type))
        begins = np.concatenate(([0], np.cumsum(self.header_counts))).astype(np.int32)
        bare = self.header_counts == 0
        mask = pa.array(bare) if bare.any() else None
        return pa.ListArray.from_arrays(pa.array(begins), elements, type=HEADERS_TYPE, mask=mask)


class NumpyCodec:
    """The ``RecordCodec`` in numpy and pyarrow."""

    def scan(self, batches: Sequence[BatchRecords], *, contiguous: bool, first_batch: int = 0) -> list[Found]:
        return [
            _parse(batch, number, contiguous=contiguous).found() for number, batch in enumerate(batches, first_batch)
        ]

    def decode(self, batches: Sequence[BatchRecords]) -> DecodedBatches:
        parsed = [_parse(batch, number, contiguous=False) for number, batch in enumerate(batches)]
        records = [batch.records() for batch in parsed]
        return DecodedBatches(
            records[0] if len(records) == 1 else pa.concat_batches(records),
            np.concatenate([batch.offset_deltas for batch in parsed]).astype(np.int32),
        )

    def encode(self, records: pa.RecordBatch, base_offset: int, base_timestamp: int) -> pa.Buffer:
        offsets, timestamps, key, value, headers = records.columns
        rows = records.num_rows
        header_counts, header_blobs = _encoded_headers(headers)
        lead = [int64_values(timestamps) - base_timestamp, int64_values(offsets) - base_offset, _lengths(key)]
        value_lengths = _lengths(value)
        sizes = 1 + sum(
            _varint_sizes(numbers) for numbers in (*lead, value_lengths, header_counts)
        )  # attributes, and the numbers
        sizes += np.maximum(lead[2], 0) + np.maximum(value_lengths, 0) + _lengths(header_blobs)
        if (total := int(sizes.sum() + _varint_sizes(sizes).sum()) + HEADER_BYTES) > COLUMN_BYTES_MAX:
            raise ValueError(f"a record batch has at most {COLUMN_BYTES_MAX} bytes: encode fewer records at once")
        joined = pc.binary_join_element_wise(
            _varints(sizes),
            _ZERO,  # attributes
            _varints(*lead),
            _without_nulls(key),
            _varints(value_lengths),
            _without_nulls(value),
            _varints(header_counts),
            header_blobs,
            _NO_BYTES,
        )
        out = pa.allocate_buffer(total)
        np.frombuffer(out, np.uint8)[HEADER_BYTES:] = _data(joined)
        assert len(joined) == rows
        return out


# ---- reading ---------------------------------------------------------------------------------------------------------


def _parse(batch: BatchRecords, number: int, *, contiguous: bool) -> _Parsed:
    try:
        return _parsed(batch, contiguous=contiguous)
    except _FaultFoundError as error:
        raise fault_error(error.fault, number, error.record) from None


def _parsed(batch: BatchRecords, *, contiguous: bool) -> _Parsed:
    data = np.frombuffer(batch.data, np.uint8)
    at, ends = _record_bounds(bytes_of(batch.data), batch.record_count)
    delta, at = _read_varints(data, at + 1, ends, 64, Fault.TIMESTAMP_DELTA)  # after the attributes
    timestamps = _timestamps(batch, delta)
    offset_deltas, at = _read_varints(data, at, ends, 32, Fault.OFFSET_DELTA)
    expected = np.arange(len(at))
    before = np.concatenate(([-1], offset_deltas[:-1]))
    _require(offset_deltas == expected if contiguous else offset_deltas > before, Fault.OFFSET_DELTA_VALUE)
    key, at = _read_slices(data, at, ends, Fault.KEY_LENGTH)
    value, at = _read_slices(data, at, ends, Fault.VALUE_LENGTH)
    header_counts, at = _read_varints(data, at, ends, 32, Fault.HEADER_COUNT)
    _require(header_counts >= 0, Fault.HEADER_COUNT)
    _require(header_counts <= HEADERS_PER_RECORD_MAX, Fault.TOO_MANY_HEADERS)
    header_key, header_value, at = _read_headers(data, at, ends, header_counts)
    _require(at == ends, Fault.RECORD_REST)
    _check_texts(header_key, batch.data, header_counts)
    return _Parsed(batch.data, timestamps, offset_deltas, key, value, header_counts, header_key, header_value)


def _require(good: np.ndarray, fault: Fault) -> None:
    if not good.all():
        raise _FaultFoundError(fault, int(np.argmin(good)))


def _record_bounds(data: memoryview, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions after the length of each record, and the records' ends."""
    starts, ends = [], []
    at, size = 0, len(data)
    for record in range(count):
        raw = shift = 0
        while True:
            if at >= size or shift > 28:
                raise _FaultFoundError(Fault.RECORD_LENGTH, record)
            byte = data[at]
            at += 1
            raw |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
        length = raw >> 1
        if raw >> 32 or raw & 1 or not 1 <= length <= size - at:
            raise _FaultFoundError(Fault.RECORD_LENGTH, record)
        starts.append(at)
        at += length
        ends.append(at)
    if at != size:
        raise _FaultFoundError(Fault.BATCH_REST, max(0, count - 1))
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _read_varints(
    data: np.ndarray, at: np.ndarray, ends: np.ndarray, bits: int, fault: Fault
) -> tuple[np.ndarray, np.ndarray]:
    """Read the zigzag varints at ``at``, none beyond its end: int64, and the positions after them."""
    _require(at < ends, fault)
    byte = data[at].astype(np.uint64)
    at = at + 1
    raw = byte & 127
    shift = 7
    longer = np.flatnonzero(byte >= 128)
    while len(longer):
        good = np.full(len(at), fill_value=True)
        good[longer] = (at[longer] < ends[longer]) & (shift < bits)
        _require(good, fault)
        byte = data[at[longer]].astype(np.uint64)
        if bits - shift < 7:
            good[longer] = (byte & 127) >> np.uint64(bits - shift) == 0
            _require(good, fault)
        raw[longer] |= (byte & 127) << np.uint64(shift)
        at[longer] += 1
        longer = longer[byte >= 128]
        shift += 7
    return (raw >> np.uint64(1)).view(np.int64) ^ -((raw & 1).view(np.int64)), at


def _read_slices(data: np.ndarray, at: np.ndarray, ends: np.ndarray, fault: Fault) -> tuple[_Slices, np.ndarray]:
    lengths, at = _read_varints(data, at, ends, 32, fault)
    _require((lengths >= -1) & (lengths <= ends - at), fault)
    return _Slices(at, lengths), at + np.maximum(lengths, 0)


def _timestamps(batch: BatchRecords, deltas: np.ndarray) -> np.ndarray:
    if batch.append_time is not None:
        return np.full(len(deltas), batch.append_time)
    # A sum that does not fit is also outside of the bounds, so it is compared before it is made.
    least, most = NO_TIMESTAMP - batch.base_timestamp, TIMESTAMP_MS_MAX - batch.base_timestamp
    bounds = np.iinfo(np.int64)
    if least > bounds.max or most < bounds.min:
        _require(np.zeros(len(deltas), np.bool_), Fault.TIMESTAMP_VALUE)
        return deltas
    _require((deltas >= max(least, bounds.min)) & (deltas <= min(most, bounds.max)), Fault.TIMESTAMP_VALUE)
    return deltas + batch.base_timestamp


def _read_headers(
    data: np.ndarray, at: np.ndarray, ends: np.ndarray, counts: np.ndarray
) -> tuple[_Slices, _Slices, np.ndarray]:
    """Read the first header of all records, then the second, and so on; return them in the order of the records."""
    at = at.copy()
    rows, numbers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    fields = [[np.empty(0, np.int64)] for _ in range(4)]
    for number in range(int(counts.max(initial=0))):
        having = np.flatnonzero(counts > number)
        try:
            key, behind = _read_slices(data, at[having], ends[having], Fault.HEADER_KEY_LENGTH)
            _require(key.lengths >= 0, Fault.HEADER_KEY_LENGTH)
            value, behind = _read_slices(data, behind, ends[having], Fault.HEADER_VALUE_LENGTH)
        except _FaultFoundError as error:
            raise _FaultFoundError(error.fault, int(having[error.record])) from None
        at[having] = behind
        rows.append(having)
        numbers.append(np.full(len(having), number))
        for column, found in zip(fields, (key.starts, key.lengths, value.starts, value.lengths), strict=True):
            column.append(found)
    order = np.lexsort((np.concatenate(numbers), np.concatenate(rows)))
    key_starts, key_lengths, value_starts, value_lengths = (np.concatenate(column)[order] for column in fields)
    return _Slices(key_starts, key_lengths), _Slices(value_starts, value_lengths), at


def _check_texts(keys: _Slices, data: pa.Buffer, counts: np.ndarray) -> None:
    column = keys.column(data, pa.string())
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        header = next(at for at in range(len(column)) if not _is_utf8(column[at : at + 1]))
        record = int(np.searchsorted(np.cumsum(counts), header, side="right"))
        raise _FaultFoundError(Fault.HEADER_KEY_TEXT, record) from None


def _is_utf8(column: pa.Array) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


# ---- writing ---------------------------------------------------------------------------------------------------------


def _varint_sizes(numbers: np.ndarray) -> np.ndarray:
    raw = _zigzag(numbers)
    sizes = np.ones(len(numbers), np.int64)
    for shift in range(7, 64, 7):
        sizes += raw >= np.uint64(1 << shift)
    return sizes


def _zigzag(numbers: np.ndarray) -> np.ndarray:
    numbers = numbers.astype(np.int64)
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def _varints(*columns: np.ndarray) -> pa.Array:
    """Return the zigzag varints of the numbers of each row, joined: binary."""
    parts_of, used = [], []
    for column in columns:
        raw = _zigzag(column)
        width = max(1, -(-int(raw.max(initial=0)).bit_length() // 7))
        parts = raw[:, None] >> (np.arange(width, dtype=np.uint64) * np.uint64(7))
        is_longer = parts >= 128
        parts_of.append(((parts & 127) | is_longer.astype(np.uint64) << np.uint64(7)).astype(np.uint8))
        used.append(np.concatenate((np.ones((len(raw), 1), np.bool_), is_longer[:, :-1]), axis=1))
    mask = np.concatenate(used, axis=1)
    ends = np.concatenate(([0], np.cumsum(mask.sum(axis=1)))).astype(np.int32)
    data = np.concatenate(parts_of, axis=1)[mask]
    return pa.Array.from_buffers(pa.binary(), len(mask), [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _lengths(column: pa.Array) -> np.ndarray:
    """Return the lengths of binary or text values, -1 for null: int64."""
    lengths = np.diff(binary_offsets(column)).astype(np.int64)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return lengths


def _without_nulls(column: pa.Array) -> pa.Array:
    return column.fill_null(_NO_BYTES) if column.null_count else column


def _data(column: Any) -> np.ndarray:
    """Return all values of a binary column, or of a chunked one, joined: uint8."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    pieces = [np.empty(0, np.uint8)]
    for chunk in chunks:
        offsets = binary_offsets(chunk)
        if offsets[-1] > offsets[0]:
            pieces.append(np.frombuffer(chunk.buffers()[2], np.uint8)[offsets[0] : offsets[-1]])
    return np.concatenate(pieces)


def _encoded_headers(headers: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Return the number of headers of each record, and their bytes: int64, binary."""
    rows = len(headers)
    if headers.null_count == rows:
        return np.zeros(rows, np.int64), pa.array([b""], pa.binary()).take(pa.array(np.zeros(rows, np.int32)))
    begins = headers.offsets.to_numpy()
    elements = headers.values.slice(begins[0], begins[-1] - begins[0])
    # A header's key cannot be null; a null of another writer's table is written as an empty text.
    key = _without_nulls(elements.field("key").cast(pa.binary()))
    value = elements.field("value")
    encoded = pc.binary_join_element_wise(
        _varints(_lengths(key)), key, _varints(_lengths(value)), _without_nulls(value), _NO_BYTES
    )
    ends = np.concatenate(([0], np.cumsum(_lengths(encoded))))
    filled = headers.is_valid().to_numpy(zero_copy_only=False)
    begins = begins - begins[0]
    starts = ends[begins[:-1]]
    slices = _Slices(starts, np.where(filled, ends[begins[1:]] - starts, 0))
    counts = np.where(filled, np.diff(begins), 0).astype(np.int64)
    return counts, slices.column(pa.py_buffer(_data(encoded)), pa.binary())
