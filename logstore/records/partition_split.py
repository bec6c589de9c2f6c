"""The one way to split records by partition, for a producer and for the store."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from logstore.records.schema import WIRE_SCHEMA, null_headers


@dataclass(frozen=True, slots=True)
class PartitionSplit:
    """Records by rising partition; inside each partition in the given order.

    ``batch`` (WIRE_SCHEMA) is one copy of all records; a partition has the rows [start, end) of its entry in ``ranges``
    (partition, start, end). ``order``: the given row for each row of ``batch``; None if the rows stay as they came, not
    copied.
    """

    batch: pa.RecordBatch
    order: np.ndarray | None
    ranges: list[tuple[int, int, int]]


def split_by_partition(batch: pa.RecordBatch, partitions: np.ndarray) -> PartitionSplit:
    """Split a ``batch`` (WIRE_SCHEMA) of at least one row. ``partitions`` is int32 per row, from 0."""
    first = int(partitions[0])
    if (partitions == first).all():
        return PartitionSplit(batch, None, [(first, 0, len(partitions))])
    # numpy sorts 16-bit integers by radix.
    narrow = partitions.astype(np.int16) if partitions.max() <= np.iinfo(np.int16).max else partitions
    order = np.argsort(narrow, kind="stable")
    ordered = narrow[order]
    begins = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist()]
    ranges = list(zip(ordered[begins].tolist(), begins, [*begins[1:], len(order)], strict=True))
    rows = pa.array(order)
    *columns, headers = batch.columns
    # A column of nulls is the same in any order; elements below null headers mean nothing.
    taken = [column if column.null_count == len(column) else column.take(rows) for column in columns]
    taken.append(null_headers(len(rows)) if headers.null_count == len(rows) else headers.take(rows))
    return PartitionSplit(pa.RecordBatch.from_arrays(taken, schema=WIRE_SCHEMA), order, ranges)
