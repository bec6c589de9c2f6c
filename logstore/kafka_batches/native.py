"""The record codec in C (``record_codec.c``), called through ctypes, which lets other threads run meanwhile.

A structure is the bytes of its fields, of 8 bytes each: packing them takes a microsecond, ctypes' own structures ten.
"""

import ctypes
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from logstore.kafka_batches.header import HEADER_BYTES
from logstore.kafka_batches.records import (
    COLUMN_BYTES_MAX,
    BatchRecords,
    DecodedBatches,
    Fault,
    Found,
    fault_error,
)
from logstore.limits import HEADERS_PER_RECORD_MAX, TIMESTAMP_MS_MAX
from logstore.native_library import library_of, load
from logstore.records import column_memory as memory
from logstore.records.column_memory import ByteColumn, HeaderColumns
from logstore.records.schema import WIRE_SCHEMA, null_headers

SOURCE: Final = Path(__file__).with_name("record_codec.c")
LIBRARY: Final = library_of(SOURCE)

_TIMESTAMP_TYPE: Final = WIRE_SCHEMA.field("timestamp").type
_BATCH_FIELDS: Final = 6
_BATCH: Final = struct.Struct(f"{_BATCH_FIELDS}q")
#: The struct found: fault, record, and the fields of ``Found``.
_FOUND: Final = struct.Struct(f"{2 + len(Found._fields)}q")
_COLUMNS: Final = struct.Struct("23q")
_RECORDS: Final = struct.Struct("31q")
_NO_HEADER_COLUMNS: Final = [0] * 10
_NO_HEADER_SOURCES: Final = [0] * 15
_RISING: Final = struct.pack("3q", 0, TIMESTAMP_MS_MAX, HEADERS_PER_RECORD_MAX)
_CONTIGUOUS: Final = struct.pack("3q", 1, TIMESTAMP_MS_MAX, HEADERS_PER_RECORD_MAX)


#: The ``struct source``: validity, bit of the first row in it, offsets, data, bytes before each value.
Source: TypeAlias = tuple[int, int, int, int, int]


class NativeCodec:
    """The ``RecordCodec`` that calls the library."""

    def __init__(self, library: Path = LIBRARY) -> None:
        """Load the library. Raises the errors of ``native_library.load``."""
        functions = load(SOURCE, library)
        # The last argument of each is memory that it writes, or reads without a length: an address.
        structure, number, address = ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p
        for name, arguments in (
            ("scan", (structure, number, structure, address)),
            ("decode", (structure, number, structure, structure)),
            ("encoded_size", (structure,)),
            ("encode", (structure, address, number, address)),
        ):
            function = getattr(functions, name)
            function.argtypes = arguments
            function.restype = number
        self._scan, self._decode = functions.scan, functions.decode
        self._encoded_size, self._encode = functions.encoded_size, functions.encode

    def scan(self, batches: Sequence[BatchRecords], *, contiguous: bool, first_batch: int = 0) -> list[Found]:
        return self._found(batches, _packed(batches), _CONTIGUOUS if contiguous else _RISING, first_batch)

    def _found(self, batches: Sequence[BatchRecords], packed: bytes, rules: bytes, first_batch: int) -> list[Found]:
        count = len(batches)
        found = memory.allocate(count * _FOUND.size)
        good = self._scan(packed, count, rules, found.address)
        if good < count:
            fault, record, *_ = _FOUND.unpack_from(found, good * _FOUND.size)
            raise fault_error(Fault(fault), first_batch + good, record)
        return [Found._make(row[2:]) for row in _FOUND.iter_unpack(found)]

    def decode(self, batches: Sequence[BatchRecords]) -> DecodedBatches:
        packed = _packed(batches)
        found = self._found(batches, packed, _RISING, 0)
        total = found[0] if len(found) == 1 else Found._make(map(sum, zip(*found, strict=True)))
        rows = sum(batch.record_count for batch in batches)
        timed, timestamps, deltas = (
            memory.bits(rows, total.untimed),
            memory.allocate(8 * rows),
            memory.allocate(4 * rows),
        )
        key = ByteColumn(rows, total.key_bytes, total.null_keys)
        value = ByteColumn(rows, total.value_bytes, total.null_values)
        headers = _header_columns(rows, total) if total.header_count else None
        columns = _COLUMNS.pack(
            rows,
            total.header_count,
            timestamps.address,
            memory.address(timed),
            deltas.address,
            *key.target,
            *value.target,
            *(_NO_HEADER_COLUMNS if headers is None else headers.targets),
        )
        if not self._decode(packed, len(batches), _RISING, columns):
            raise AssertionError("the records were changed while they were decoded")
        arrays = [
            pa.Array.from_buffers(_TIMESTAMP_TYPE, rows, [timed, timestamps], null_count=total.untimed),
            key.array(pa.binary()),
            value.array(pa.binary()),
            null_headers(rows) if headers is None else headers.array(),
        ]
        return DecodedBatches(
            pa.RecordBatch.from_arrays(arrays, schema=WIRE_SCHEMA), np.frombuffer(deltas, np.int32, rows)
        )

    def encode(self, records: pa.RecordBatch, base_offset: int, base_timestamp: int) -> pa.Buffer:
        value = _source(records.column("value"))
        packed = RecordColumns(records).packed(0, records.num_rows, value, None, base_offset, base_timestamp)
        size = self.encoded_size(packed)
        if size + HEADER_BYTES > COLUMN_BYTES_MAX:
            raise ValueError(f"a record batch has at most {COLUMN_BYTES_MAX} bytes: encode fewer records at once")
        out = memory.allocate(HEADER_BYTES + size)
        if self._encode(packed, out.address + HEADER_BYTES, size, None) != size:
            raise AssertionError("the records were changed while they were encoded")
        return out

    def encode_into(self, out: pa.Buffer, at: int, packed: bytes) -> tuple[int, int]:
        """Write rows, packed by ``RecordColumns``, to ``out`` from its byte ``at`` on, as the records of a batch, up to
        the first that does not fit. Return the number of rows that are done, those that are not kept included, and
        the bytes that they took.
        """
        done = ctypes.c_int64()
        size = self._encode(packed, out.address + at, out.size - at, ctypes.byref(done))
        return done.value, size

    def encoded_size(self, packed: bytes) -> int:
        """Return the bytes that ``encode_into`` needs for all of the rows."""
        return int(self._encoded_size(packed))


class RecordColumns:
    """The columns of records (LOG_SCHEMA) except their values, of which rows are encoded."""

    def __init__(self, records: pa.RecordBatch) -> None:
        offsets, timestamps, key, headers = map(records.column, ("offset", "timestamp", "key", "headers"))
        # They own the memory.
        self._columns = offsets, timestamps, key, headers
        self._numbers = _numbers(offsets), _numbers(timestamps)
        self._key = _source(key)
        self._lists: Source | None = None
        self._elements: tuple[int, ...] = ()
        if headers.null_count < len(headers):
            elements = headers.values
            self._lists = _source(headers)
            self._elements = (*_source(elements.field("key")), *_source(elements.field("value")))

    def packed(
        self, first: int, rows: int, value: Source, kept: np.ndarray | None, base_offset: int, base_timestamp: int
    ) -> bytes:
        """Return the ``struct records`` of ``rows`` rows from ``first`` on, with their values from elsewhere. ``kept``
        is a boolean for each, None to keep all.
        """
        offsets, timestamps = self._numbers
        fields = [rows, base_offset, base_timestamp, offsets + 8 * first, timestamps + 8 * first]
        fields += [0 if kept is None else kept.ctypes.data, *_from_row(self._key, first), *value]
        if self._lists is None:
            fields += _NO_HEADER_SOURCES
        else:
            fields += [*_from_row(self._lists, first), *self._elements]
        return _RECORDS.pack(*fields)


def _packed(batches: Sequence[BatchRecords]) -> bytes:
    fields: list[int] = []
    for data, count, base_timestamp, append_time in batches:
        fields += (data.address, data.size, count, base_timestamp, append_time is not None, append_time or 0)
    return _BATCH.pack(*fields) if len(batches) == 1 else struct.pack(f"{_BATCH_FIELDS * len(batches)}q", *fields)


def _header_columns(rows: int, found: Found) -> HeaderColumns:
    return HeaderColumns(
        rows,
        found.bare,
        found.header_count,
        key_bytes=found.header_key_bytes,
        value_bytes=found.header_value_bytes,
        null_values=found.null_header_values,
    )


def _source(column: pa.Array) -> Source:
    """Return the source of a binary, text or list column, which may be a slice. A list has no data."""
    valid, offsets, data, *_ = column.buffers()
    start = column.offset
    return (
        memory.address(valid) if column.null_count else 0,
        start,
        memory.address(offsets) + 4 * start,
        memory.address(data),
        0,
    )


def _from_row(source: Source, row: int) -> Source:
    valid, bit, offsets, data, prefix = source
    return valid, bit + row, offsets + 4 * row, data, prefix


def _numbers(column: pa.Array) -> int:
    """Return the address of the first number of a column of 64-bit numbers without nulls."""
    return int(column.buffers()[1].address) + 8 * int(column.offset)
