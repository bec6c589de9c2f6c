"""The records that a consumer hands out, as columns and as objects.

Objects are created column by column, without a line of Python per record: about 0.1 µs each, most of it for copying
bytes. Functions that import pandas are avoided (``logstore.records.log_batches``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from logstore.errors import LogStoreError, RecordDeserializationError
from logstore.records.log_batches import int64_values

Deserializer = Callable[[bytes], Any]


# Garbage collection is off: a record is in no cycle, and millions of them would be scanned again and again.
class Record(msgspec.Struct, frozen=True, gc=False):
    """One record. ``timestamp_ms`` counts from 1970 UTC; a ``value`` of None is a tombstone.

    ``key`` and ``value`` are bytes, or the results of the consumer's deserializers.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """Records of one partition by rising offset, as one pyarrow RecordBatch with the columns ``offset, timestamp (ms,
    UTC), key, value, headers``.

    Reading continues at ``next_offset``, which may lie further behind the last record because compaction leaves gaps.
    """

    topic: str
    partition: int
    batch: pa.RecordBatch
    next_offset: int
    log_start_offset: int
    high_watermark: int

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def slice(self, start: int, end: int) -> "FetchedBatch":
        """Return rows ``start`` to ``end`` as a view, without a copy."""
        if start <= 0 and end >= len(self):
            return self
        end = min(end, len(self))
        next_offset = self.next_offset if end == len(self) else self.offset_at(end - 1) + 1 if end else -1
        rows = self.batch.slice(start, end - start)
        return FetchedBatch(self.topic, self.partition, rows, next_offset, self.log_start_offset, self.high_watermark)

    def before(self, end_offset: int) -> "FetchedBatch":
        """Return the records with offsets below ``end_offset`` as a view, without a copy."""
        return self.slice(0, int(np.searchsorted(int64_values(self.batch.column("offset")), end_offset)))

    def records(self) -> list[Record]:
        """Return the records as objects."""
        return self.deserialized(None, None)[0]

    def deserialized(
        self, key_deserializer: Deserializer | None, value_deserializer: Deserializer | None
    ) -> tuple[list[Record], LogStoreError | None]:
        """Return the records with keys and values deserialized (None stays None) up to the first failure, and its
        RecordDeserializationError.
        """
        offsets, timestamps, keys, values, headers = self.batch.columns
        found_keys, key_failure = _deserialized(keys.to_pylist(), key_deserializer)
        found_values, value_failure = _deserialized(values.to_pylist(), value_deserializer)
        records = list(
            map(
                Record,
                repeat(self.topic),
                repeat(self.partition),
                int64_values(offsets).tolist(),
                int64_values(timestamps).tolist(),
                found_keys,
                found_values,
                repeat(()) if headers.null_count == len(headers) else map(_pairs, headers.to_pylist()),
            )
        )
        if len(records) == len(self):
            return records, None
        what, failure = ("key", key_failure) if len(found_keys) == len(records) else ("value", value_failure)
        offset = self.offset_at(len(records))
        error = RecordDeserializationError(
            f"The {what} of the record at offset {offset} of {self.topic}-{self.partition} cannot be deserialized: "
            f"{failure!r}. seek() to {offset + 1} to pass over it.",
            topic=self.topic,
            partition=self.partition,
            offset=offset,
        )
        error.__cause__ = failure
        return records, error

    def offset_at(self, row: int) -> int:
        """Return the offset of the record in ``row``."""
        return int(int64_values(self.batch.column("offset"))[row])


def _deserialized(
    contents: list[bytes | None], deserializer: Deserializer | None
) -> tuple[list[Any], Exception | None]:
    """Return the deserialized values up to the first failure, and that failure."""
    if deserializer is None:
        return contents, None
    done: list[Any] = []
    append = done.append
    try:
        for content in contents:
            append(None if content is None else deserializer(content))
    except Exception as error:  # noqa: BLE001 (whatever a program's own function raises)
        return done, error
    return done, None


def _pairs(headers: list[dict[str, Any]] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((header["key"], header["value"]) for header in headers or ())
