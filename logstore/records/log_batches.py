"""Turns batches of producers (WIRE_SCHEMA) into records of the log (LOG_SCHEMA), with offsets and timestamps.

Store and client share it. It does not call ``pa.array``, ``pa.scalar`` or ``to_numpy``: pyarrow imports pandas, if it
is installed, with the first of these calls, and a client's first record would wait half a second.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.limits import KIB
from logstore.records.schema import LOG_SCHEMA

#: Small batches are joined up to this size: copying this much costs about as much as one more batch in the later steps.
GATHERED_BYTES: Final = 128 * KIB


@dataclass(frozen=True, slots=True)
class WireBatch:
    """A batch in which record i of ``records`` (WIRE_SCHEMA) has the offset ``base_offset`` + i.

    ``append_time_ms`` is the timestamp of records without one, or of all records with ``log_append_time``
    (message.timestamp.type = LogAppendTime).
    """

    records: pa.RecordBatch
    base_offset: int
    append_time_ms: int
    log_append_time: bool


class Origin(NamedTuple):
    """The origin of records; the fields are those of ``WireBatch``."""

    record_count: int
    base_offset: int
    append_time_ms: int
    log_append_time: bool


def log_batches(batches: Iterable[WireBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of LOG_SCHEMA, in the given order. Small ones are joined, large ones are not copied."""
    gathered: list[WireBatch] = []
    gathered_bytes = 0
    for batch in batches:
        num_bytes = batch.records.nbytes
        if gathered and gathered_bytes + num_bytes > GATHERED_BYTES:
            yield to_log_batch(gathered)
            gathered, gathered_bytes = [], 0
        gathered.append(batch)
        gathered_bytes += num_bytes
    if gathered:
        yield to_log_batch(gathered)


def to_log_batch(batches: Sequence[WireBatch]) -> pa.RecordBatch:
    """Return ``batches``, at least one, as one of LOG_SCHEMA. Only the timestamps of a single batch are copied."""
    records = batches[0].records if len(batches) == 1 else pa.concat_batches([batch.records for batch in batches])
    return with_origins(
        records,
        [
            Origin(batch.records.num_rows, batch.base_offset, batch.append_time_ms, batch.log_append_time)
            for batch in batches
        ],
    )


def with_origins(records: pa.RecordBatch, origins: Sequence[Origin]) -> pa.RecordBatch:
    """Return ``records`` (WIRE_SCHEMA), which come from ``origins`` in that order, as a batch of LOG_SCHEMA."""
    columns = zip(*origins, strict=True)
    counts, bases, append_times, overruled = (np.array(column) for column in columns)
    offsets = np.arange(records.num_rows) + np.repeat(bases - np.cumsum(counts) + counts, counts)
    timestamps, *others = records.columns
    if timestamps.null_count or overruled.any():
        append_times = np.repeat(append_times, counts)
        if timestamps.null_count < len(timestamps):
            stands = _valid(timestamps) & ~np.repeat(overruled, counts)
            append_times = np.where(stands, int64_values(timestamps), append_times)
        timestamps = _column(LOG_SCHEMA.field("timestamp").type, append_times)
    return pa.RecordBatch.from_arrays([_column(pa.int64(), offsets), timestamps, *others], schema=LOG_SCHEMA)


def int64_values(column: pa.Array) -> np.ndarray:
    """Return a view of an int64 or timestamp column; where it is null, the number has no meaning."""
    # A count is given, because the buffer may end in the middle of a number.
    return np.frombuffer(column.buffers()[1], np.int64, column.offset + len(column))[column.offset :]


def _valid(column: pa.Array) -> np.ndarray:
    bits = column.buffers()[0]
    if bits is None:
        return np.ones(len(column), np.bool_)
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=column.offset + len(column), bitorder="little")
    return flags[column.offset :].view(np.bool_)


def _column(kind: pa.DataType, numbers: np.ndarray) -> pa.Array:
    """Return a column with these int64 numbers, not copied."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])
