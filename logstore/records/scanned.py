"""JSON requests that the scanner in C has taken: their records are places in the bodies until columns are needed.

Invariant: a body that is taken here gives the records that ``json_decoder`` gives. Every other body is left to it, also
each one that has to be refused, so that all messages are in one place.
"""

import functools
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from logstore.limits import REQUEST_RECORDS_MAX
from logstore.records import native
from logstore.records.batch import DecodedRecords, PartitionBatch
from logstore.records.native import MORE_HEADERS, MORE_RECORDS, Native, Spans

# The first attempt has room for one record, and for one header, in each of these numbers of bytes of the body. Pages
# that are not written take no memory.
_BYTES_A_RECORD: Final = 24
_BYTES_A_HEADER: Final = 64
# None is shorter than this, with its comma.
_RECORD_BYTES_MIN: Final = len("{},")
_HEADER_BYTES_MIN: Final = len('{"key":""},')
# A place in a body is int32.
_BODY_BYTES_MAX: Final = (1 << 31) - 1


class ScannedRecords(DecodedRecords):
    """Records whose columns are made when they are asked for, at best by partition (``split``): then nothing is sorted
    or copied afterwards.
    """

    def __init__(self, scanner: Native, bodies: bytes, spans: Spans) -> None:
        self._scanner = scanner
        self._bodies = bodies
        self._spans = spans
        self.found = spans.found
        self.verbatim = None

    @functools.cached_property
    def batch(self) -> pa.RecordBatch:
        return self._scanner.columns(self._bodies, self._spans, self.found)

    @property
    def partitions(self) -> np.ndarray | None:
        return self._spans.partitions(self.found.records) if self.found.named else None

    @property
    def num_rows(self) -> int:
        return self.found.records

    @property
    def nbytes(self) -> int:
        """The bytes of the columns: those of all texts, and for each record a timestamp and offsets."""
        found = self.found
        texts = found.key_bytes + found.value_bytes + found.header_key_bytes + found.header_value_bytes
        return texts + 20 * found.records + 8 * found.headers

    @property
    def null_keys(self) -> int:
        return self.found.null_keys

    def split(self, partitions: int, sticky: int) -> list[PartitionBatch] | None:
        """Return the records by rising partition, in request order inside each; the partition is the named one, or by
        the key (``partitioner``), or ``sticky``. Return None if a record names one that is not there.
        """
        placed = self._scanner.place(self._bodies, self._spans, self.found.records, partitions, sticky)
        if placed is None:
            return None
        order, begins = placed
        filled = [at for at in range(partitions) if begins[at] < begins[at + 1]]
        if len(filled) == 1:
            return [PartitionBatch(filled[0], self.batch, None, None)]
        batch = self._scanner.columns(self._bodies, self._spans, self.found, order)
        ranges = [(at, begins[at], begins[at + 1]) for at in filled]
        return [
            PartitionBatch(at, batch.slice(begin, end - begin), order[begin:end], None) for at, begin, end in ranges
        ]


def scan_json(bodies: bytes, *, string_keys: bool = False, documents: int = 1) -> ScannedRecords | None:
    """Return the records of requests in JSON, one behind the other in ``bodies``; None if ``json_decoder`` has to look
    at them.
    """
    scanner, size = native.NATIVE, len(bodies)
    if scanner is None or size > _BODY_BYTES_MAX:
        return None
    rows, headers = size // _BYTES_A_RECORD + 1, size // _BYTES_A_HEADER
    while True:
        spans = Spans(min(rows, REQUEST_RECORDS_MAX), min(headers, REQUEST_RECORDS_MAX))
        found = scanner.scan(bodies, spans, string_keys=string_keys, documents=documents)
        if found > 0:
            records = ScannedRecords(scanner, bodies, spans)
            # The bound of records counts headers as well.
            return records if records.found.records + records.found.headers <= REQUEST_RECORDS_MAX else None
        if found == MORE_RECORDS and rows < min(size // _RECORD_BYTES_MIN, REQUEST_RECORDS_MAX):
            rows = size // _RECORD_BYTES_MIN
        elif found == MORE_HEADERS and headers < min(size // _HEADER_BYTES_MIN, REQUEST_RECORDS_MAX):
            headers = size // _HEADER_BYTES_MIN
        else:
            return None


class SmallBody(msgspec.Struct):
    """A body that the scanner has taken, and the number of its records: it is scanned again together with others."""

    body: bytes
    records: int

    def __len__(self) -> int:
        return self.records


def scan_small(body: bytes, spans: Spans, *, string_keys: bool, partitions: tuple[int, int]) -> SmallBody | None:
    """Return a small body whose records name only ``partitions`` (from, up to but not including), if they are not more
    than ``spans`` has room for.
    """
    scanner = native.NATIVE
    if scanner is None:
        return None
    records = scanner.scan(body, spans, string_keys=string_keys, partitions=partitions)
    return SmallBody(body, records) if records > 0 else None


def small_columns(bodies: Sequence[SmallBody], *, string_keys: bool) -> DecodedRecords:
    """Return the records of ``scan_small``'s bodies, one after another."""
    records = scan_json(b"".join([one.body for one in bodies]), string_keys=string_keys, documents=len(bodies))
    assert records is not None
    return records
