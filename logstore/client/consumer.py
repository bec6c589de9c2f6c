"""Read topics over HTTP in Arrow: partitions assigned by hand, positions held here.

Invariant: a partition's position only rises while polling and always lies past every record that was handed out, so
that no record comes twice; gaps that compaction leaves are stepped over by ``Logstore-Next-Offset``. Not for several
threads.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
import pyarrow as pa

from logstore.client.addresses import DEFAULT_URL
from logstore.client.metadata import PartitionOffsets, TopicDescription, decode
from logstore.client.transport import Transport, topic_path
from logstore.errors import InvalidRequestError, LogStoreError, OffsetOutOfRangeError, UnknownPartitionError
from logstore.limits import FETCH_WAIT_MS_MAX, MIB

ARROW_STREAM = "application/vnd.apache.arrow.stream"
# With several partitions a wait is on one of them: this is how late a record of another may be.
_WAIT_MS_OF_MANY = 100

Start = int | Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True)
class Record:
    """One record. ``timestamp_ms`` counts from 1970 UTC; ``value`` None is a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """Records of one partition by rising offset, as one pyarrow RecordBatch with the columns
    ``offset, timestamp (ms, UTC), key, value, headers``. Reading goes on at ``next_offset``.
    """

    topic: str
    partition: int
    batch: pa.RecordBatch
    next_offset: int
    log_start_offset: int
    high_watermark: int

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def before(self, end_offset: int | None = None, max_records: int | None = None) -> Self:
        """The records with offsets below ``end_offset``, and of these the first ``max_records``; a view, no copy."""
        length = len(self) if end_offset is None else int(np.searchsorted(self.batch.column("offset"), end_offset))
        return replace(self, batch=self.batch.slice(0, length if max_records is None else min(length, max_records)))

    def records(self) -> Iterator[Record]:
        """A view with an object per record: convenient, and slower than the columns."""
        offsets, timestamps, keys, values, headers = self.batch.columns
        columns = (offsets, timestamps.cast(pa.int64()), keys, values, headers)
        for offset, timestamp, key, value, pairs in zip(*(column.to_pylist() for column in columns), strict=True):
            named = tuple((pair["key"], pair["value"]) for pair in pairs or ())
            yield Record(self.topic, self.partition, offset, timestamp, key, value, named)


class Consumer:
    """Reads the partitions that ``assign`` names, from where it says. A context manager.

    ``fetch_max_bytes`` bounds one answer (one record always comes), ``fetch_min_bytes`` and ``fetch_max_wait_ms`` are
    Kafka's. ``auto_offset_reset`` says what happens when a position is no longer in the log: ``none`` raises
    OffsetOutOfRangeError, ``earliest`` and ``latest`` go on there. Lost connections are tried again for
    ``retry_timeout_s``.
    """

    def __init__(
        self,
        bootstrap: str = DEFAULT_URL,
        *,
        client_id: str | None = None,
        fetch_max_bytes: int = 4 * MIB,
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        auto_offset_reset: Literal["none", "earliest", "latest"] = "none",
        request_timeout_s: float = 30.0,
        retry_timeout_s: float = 30.0,
    ) -> None:
        self._transport = Transport(
            bootstrap, client_id=client_id, request_timeout_s=request_timeout_s, retry_timeout_s=retry_timeout_s
        )
        self._max_bytes, self._min_bytes = fetch_max_bytes, fetch_min_bytes
        self._max_wait_ms = min(fetch_max_wait_ms, FETCH_WAIT_MS_MAX)
        self._auto_offset_reset = auto_offset_reset
        self._positions: dict[tuple[str, int], int] = {}
        # Whose turn it is: the partition that was read last is read again last.
        self._turns: deque[tuple[str, int]] = deque()

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def assign(
        self,
        topic: str,
        partitions: Iterable[int] | None = None,
        *,
        start: Start = "latest",
        start_timestamp_ms: int | None = None,
    ) -> None:
        """Read ``partitions`` of ``topic`` too (None: all that it has now) from ``start``: an offset, ``earliest`` or
        ``latest`` (Kafka's default); or from the first record at or after ``start_timestamp_ms``, if there is none
        from the end.

        Raises UnknownTopicError, UnknownPartitionError.
        """
        known = {found.partition for found in self._describe(topic).partitions}
        chosen = sorted(known if partitions is None else set(partitions))
        if missing := [partition for partition in chosen if partition not in known]:
            raise UnknownPartitionError(
                f"Partition {missing[0]} not found: topic {topic!r} has partitions 0 to {max(known)}."
            )
        for partition in chosen:
            if (topic, partition) not in self._positions:
                self._turns.append((topic, partition))
            self._positions[topic, partition] = -1
            if start_timestamp_ms is None:
                self.seek(topic, partition, start)
            else:
                self.seek_to_timestamp(topic, partition, start_timestamp_ms)

    def unassign(self, topic: str, partition: int) -> None:
        """Read this partition no longer."""
        del self._positions[self._assigned(topic, partition)]
        self._turns.remove((topic, partition))

    def assignment(self) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(self._positions))

    def seek(self, topic: str, partition: int, offset: Start) -> None:
        """Go on from ``offset``. One outside the log shows when it is polled."""
        assigned = self._assigned(topic, partition)
        if isinstance(offset, int):
            if offset < 0:
                raise InvalidRequestError(
                    f"Offset {offset} is negative: give an offset from 0, 'earliest' or 'latest'."
                )
            self._positions[assigned] = offset
        else:
            ends = self.offsets(topic, partition)
            self._positions[assigned] = ends.beginning_offset if offset == "earliest" else ends.end_offset

    def seek_to_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> None:
        """Go on from the first record at or after ``timestamp_ms``; from the end if there is none."""
        assigned = self._assigned(topic, partition)
        found = self.offsets(topic, partition, timestamp_ms=timestamp_ms)
        self._positions[assigned] = found.end_offset if found.offset is None else found.offset

    def position(self, topic: str, partition: int) -> int:
        """The offset from which the next poll reads."""
        return self._positions[self._assigned(topic, partition)]

    def offsets(self, topic: str, partition: int, *, timestamp_ms: int | None = None) -> PartitionOffsets:
        """The ends of a partition now, and the offset of a time."""
        params = None if timestamp_ms is None else {"timestamp": timestamp_ms}
        path = topic_path(topic, f"/partitions/{partition}/offsets")
        return decode(self._transport.request("GET", path, params=params).content, PartitionOffsets)

    def poll(self, timeout_s: float = 1.0) -> FetchedBatch | None:
        """The next records of one partition, partitions in turn; None if none come within ``timeout_s`` seconds.

        Raises OffsetOutOfRangeError (``auto_offset_reset="none"``), UnknownTopicError when the topic was deleted,
        InvalidRequestError when nothing is assigned.
        """
        if not self._turns:
            raise InvalidRequestError("Nothing is assigned: call assign(topic) before poll().")
        deadline = time.monotonic() + timeout_s
        while True:
            for _ in range(len(self._turns)):
                if fetched := self._fetch_next(0):
                    return fetched
            remaining_ms = int(1000 * (deadline - time.monotonic()))
            if remaining_ms <= 0:
                return None
            wait_ms = self._max_wait_ms if len(self._turns) == 1 else min(self._max_wait_ms, _WAIT_MS_OF_MANY)
            if fetched := self._fetch_next(max(1, min(remaining_ms, wait_ms))):
                return fetched

    def __iter__(self) -> Iterator[Record]:
        """Records for ever, waiting at the end; ``poll`` gives batches."""
        while True:
            if fetched := self.poll():
                yield from fetched.records()

    def _fetch_next(self, wait_ms: int) -> FetchedBatch | None:
        """From the partition whose turn it is."""
        topic, partition = self._turns[0]
        self._turns.rotate(-1)
        try:
            fetched = self._fetch(topic, partition, self._positions[topic, partition], wait_ms)
        except OffsetOutOfRangeError:
            if self._auto_offset_reset == "none":
                raise
            self.seek(topic, partition, self._auto_offset_reset)
            return None
        self._positions[topic, partition] = fetched.next_offset
        return fetched if len(fetched) else None

    def _fetch(self, topic: str, partition: int, offset: int, wait_ms: int) -> FetchedBatch:
        params = {"offset": offset, "max_bytes": self._max_bytes, "min_bytes": self._min_bytes, "max_wait_ms": wait_ms}
        response = self._transport.request(
            "GET",
            topic_path(topic, f"/partitions/{partition}/records"),
            params=params,
            headers={"Accept": ARROW_STREAM},
            timeout_s=wait_ms / 1000,
        )
        try:
            batch = _read_stream(response.content)
            next_offset, log_start, high_watermark = (
                int(response.headers[f"Logstore-{name}"])
                for name in ("Next-Offset", "Log-Start-Offset", "High-Watermark")
            )
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise LogStoreError(f"What answered is not a log store, or of another version: {error}") from error
        return FetchedBatch(topic, partition, batch, next_offset, log_start, high_watermark)

    def _describe(self, topic: str) -> TopicDescription:
        return decode(self._transport.request("GET", topic_path(topic)).content, TopicDescription)

    def _assigned(self, topic: str, partition: int) -> tuple[str, int]:
        if (topic, partition) not in self._positions:
            raise InvalidRequestError(f"Partition {partition} of topic {topic!r} is not assigned: call assign() first.")
        return topic, partition


def _read_stream(body: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(body) as reader:
        batches = list(reader)
        return pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema=reader.schema)
