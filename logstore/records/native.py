"""The scanner of JSON bodies, Kafka's hash of keys and the text of answers with offsets, all in C (``json_scan.c``).

``NATIVE`` is None where there is no library: its callers then do the same with msgspec, numpy and Arrow. A structure is
the bytes of its fields, of 8 bytes each, as in ``kafka_batches.native``.
"""

import ctypes
import struct
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.limits import HEADERS_PER_RECORD_MAX, KIB, TIMESTAMP_MS_MAX
from logstore.native_library import library_of, load, loaded
from logstore.records import column_memory as memory
from logstore.records.column_memory import ByteColumn, HeaderColumns
from logstore.records.schema import WIRE_SCHEMA, null_headers

SOURCE: Final = Path(__file__).with_name("json_scan.c")
LIBRARY: Final = library_of(SOURCE)
#: Results of a scan that has not found all records.
NOT_PLAIN: Final = -1
MORE_RECORDS: Final = -2
MORE_HEADERS: Final = -3
#: Any partition may be named: the numbers from the first one up to, not including, the second one.
ANY_PARTITION: Final = (0, 1 << 31)
#: The seed of Kafka's murmur2.
SEED: Final = 0x9747B28C

_TIMESTAMP_TYPE: Final = WIRE_SCHEMA.field("timestamp").type
_RULES: Final = struct.Struct("8q")
_SPANS: Final = struct.Struct("12q")
_COLUMNS: Final = struct.Struct("22q")
_NO_HEADER_COLUMNS: Final = [0] * 10
# The bytes of the arrays of ``struct spans`` for a record, and for a header.
_RECORD_BYTES: Final = 8 + 6 * 4 + 1
_HEADER_BYTES: Final = 4 * 4
_PLACE_BYTES_MAX: Final = 96
# A call over fewer bytes keeps the interpreter: it ends before another thread would give it back.
_RELEASE_BYTES_MIN: Final = 256 * KIB


class Found(NamedTuple):
    """Sums over the records of a scan (``struct found``). ``bare`` of them have no list of headers, ``timed`` have a
    timestamp, ``named`` a partition; ``largest`` is the most bytes of key, value and headers that one has.
    """

    records: int
    headers: int
    key_bytes: int
    value_bytes: int
    header_key_bytes: int
    header_value_bytes: int
    null_keys: int
    null_values: int
    null_header_values: int
    bare: int
    timed: int
    named: int
    largest: int


_FOUND: Final = struct.Struct(f"{len(Found._fields)}q")


class Spans:
    """Memory for the places of the fields of ``records`` and ``headers`` (``struct spans``), and for what was found."""

    __slots__ = ("_memory", "_sums", "headers", "packed", "records", "sums_at")

    def __init__(self, records: int, headers: int) -> None:
        self.records, self.headers = records, headers
        self._memory = memory.allocate(_RECORD_BYTES * records + _HEADER_BYTES * headers)
        # Numbers of eight bytes come first, then those of four, then of one: so all are aligned.
        fields = [int(self._memory.address)]
        at = fields[0] + 8 * records
        for count in (*[records] * 6, *[headers] * 4):
            fields.append(at)
            at += 4 * count
        self.packed = _SPANS.pack(*fields, at)
        self._sums = memory.allocate(_FOUND.size)
        self.sums_at = int(self._sums.address)

    @property
    def found(self) -> Found:
        return Found._make(_FOUND.unpack(self._sums))

    def partitions(self, records: int) -> np.ndarray:
        """Return the partition that each of the first ``records`` names, int32, -1 = none."""
        return np.frombuffer(self._memory, np.int32, records, 8 * self.records + 4 * 4 * self.records)


class Native:
    """The functions of the library. Its calls over long bodies let other threads run meanwhile."""

    def __init__(self, library: Path = LIBRARY) -> None:
        """Load the library. Raises the errors of ``native_library.load``."""
        self._releasing = _declared(load(SOURCE, library))
        self._keeping = _declared(ctypes.PyDLL(str(library)))

    def scan(
        self,
        bodies: bytes,
        spans: Spans,
        *,
        string_keys: bool,
        documents: int = 1,
        partitions: tuple[int, int] = ANY_PARTITION,
    ) -> int:
        """Find the records of the requests in ``bodies``, one behind the other. Return how many they are, or NOT_PLAIN
        for bodies that ``json_decoder`` has to look at, MORE_RECORDS or MORE_HEADERS if ``spans`` has no room for all.

        Records may name ``partitions``. Bodies have less than 2^31 bytes.
        """
        rules = _RULES.pack(
            documents,
            spans.records,
            spans.headers,
            string_keys,
            *partitions,
            TIMESTAMP_MS_MAX,
            HEADERS_PER_RECORD_MAX,
        )
        size = len(bodies)
        functions = self._keeping if size < _RELEASE_BYTES_MIN else self._releasing
        found: int = functions.scan(bodies, size, rules, spans.packed, spans.sums_at)
        return found

    def place(
        self, bodies: bytes, spans: Spans, records: int, partitions: int, sticky: int
    ) -> tuple[np.ndarray, list[int]] | None:
        """Return the records (int64) by rising partition, and where each partition begins in them and the last one
        ends.

        The partition is the named one, or by the key as Kafka's clients choose it, or ``sticky``. Return None if a
        record names one that is not there.
        """
        order, begins, chosen = (
            memory.allocate(8 * records),
            memory.allocate(8 * (partitions + 1)),
            memory.allocate(4 * records),
        )
        functions = self._keeping if len(bodies) < _RELEASE_BYTES_MIN else self._releasing
        if not functions.place(
            bodies,
            spans.packed,
            records,
            partitions,
            sticky,
            SEED,
            chosen.address,
            order.address,
            begins.address,
        ):
            return None
        return np.frombuffer(order, np.int64, records), np.frombuffer(begins, np.int64, partitions + 1).tolist()

    def columns(self, bodies: bytes, spans: Spans, found: Found, order: np.ndarray | None = None) -> pa.RecordBatch:
        """Return all records (WIRE_SCHEMA), in the ``order`` of ``place`` if it is given."""
        rows = found.records
        key = ByteColumn(rows, found.key_bytes, found.null_keys)
        value = ByteColumn(rows, found.value_bytes, found.null_values)
        timestamps = timed = headers = None
        if found.timed:
            timestamps, timed = memory.allocate(8 * rows), memory.allocate((rows + 7) // 8)
        if found.bare < rows:
            headers = HeaderColumns(
                rows,
                found.bare,
                found.headers,
                key_bytes=found.header_key_bytes,
                value_bytes=found.header_value_bytes,
                null_values=found.null_header_values,
            )
        packed = _COLUMNS.pack(
            rows,
            found.headers,
            *key.target,
            *value.target,
            memory.address(timestamps),
            memory.address(timed),
            *(_NO_HEADER_COLUMNS if headers is None else headers.targets),
        )
        ordered = None if order is None else memory.address(pa.py_buffer(order))
        functions = self._keeping if len(bodies) < _RELEASE_BYTES_MIN else self._releasing
        if not functions.write_columns(bodies, spans.packed, ordered, packed):
            raise AssertionError("the body was changed while it was read")
        arrays = [
            pa.nulls(rows, _TIMESTAMP_TYPE)
            if timestamps is None
            else pa.Array.from_buffers(_TIMESTAMP_TYPE, rows, [timed, timestamps], null_count=rows - found.timed),
            key.array(pa.binary()),
            value.array(pa.binary()),
            null_headers(rows) if headers is None else headers.array(),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=WIRE_SCHEMA)

    def murmur2_column(self, offsets: int, data: int, rows: int, seed: int) -> np.ndarray:
        """Return murmur2 of each value of a binary column with these addresses: uint32."""
        hashes = memory.allocate(4 * rows)
        self._keeping.hash_column(offsets, data, rows, seed, hashes.address)
        return np.frombuffer(hashes, np.uint32, rows)

    def places_text(self, partitions: np.ndarray, offsets: np.ndarray) -> memoryview:
        """Return the elements of a response in JSON. ``partitions`` are int32, ``offsets`` int64, none is negative."""
        rows = len(partitions)
        text = memory.allocate(_PLACE_BYTES_MAX * rows)
        addresses = [memory.address(pa.py_buffer(numbers)) for numbers in (partitions, offsets)]
        size = self._keeping.write_places(*addresses, rows, text.address)
        return memoryview(text)[:size]


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    structure, number, address = ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p
    for name, arguments, result in (
        ("scan", (address, number, structure, structure, address), number),
        ("place", (address, structure, number, number, number, ctypes.c_uint32, address, address, address), number),
        ("write_columns", (address, structure, address, structure), number),
        ("hash_column", (address, address, number, ctypes.c_uint32, address), None),
        ("write_places", (address, address, number, address), number),
    ):
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = result
    return library


NATIVE: Final = loaded(Native)
