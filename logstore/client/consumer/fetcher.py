"""Reads partitions ahead of the program that consumes them, in one thread over one connection; history of several is
decoded in a few more.

Invariants:

- One fetch is under way at a time, for all partitions: whichever has a record first ends the wait, and a partition that
  was just served is asked for last.
- A fetch begins only while less than ``fetch_max_bytes`` wait to be taken, and brings at most as much, and one batch:
  about twice ``fetch_max_bytes`` are held.
- Records of a partition come without gap or repetition from the offset given to ``read``; records that were fetched
  before ``read`` or ``stop_reading`` are dropped, also if they arrive later.
- A failure is raised in its turn, after the records before it. A partition that failed is not read on before ``read``.
- A topic that was made again is no failure in its turn: ``replaced`` names it at once, and the consumer drops the
  records fetched from the old one. Nothing of the new one is fetched before ``read`` with its id.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from logstore.backoff import backoffs
from logstore.client.consumer.options import ConsumerOptions
from logstore.client.consumer.records import FetchedBatch
from logstore.client.fetch import FetchPartition, FetchRequest, fetch
from logstore.client.metadata import TopicIdentity, TopicPartition
from logstore.client.transport import Transport
from logstore.errors import LogStoreError, OffsetOutOfRangeError, ThrottledError, UnknownTopicIdError
from logstore.protocol.fetch_response import PartitionData
from logstore.records.log_batches import int64_values

# A request for more would be larger than the store takes; with more partitions than that they are asked for in turns.
_PARTITIONS_PER_FETCH = 2_000
_WAIT_MS_OF_TURNS = 50
_DECODERS_MAX = 4


@dataclass(slots=True, eq=False)
class CompletedFetch:
    """The rows of ``batch`` from ``row`` on are still to be handed out; then reading goes on at ``next_offset``.

    No batch: a gap, a reset, or the ``error`` that was met at ``next_offset``.
    """

    partition: TopicPartition
    batch: FetchedBatch | None
    next_offset: int
    size: int = 0
    error: LogStoreError | None = None
    row: int = 0


@dataclass(slots=True, eq=False)
class _Reading:
    """The fetch position of a partition of the topic with ``topic_id``. A seek makes a new one."""

    next_offset: int
    topic_id: str


_Turn = list[tuple[TopicPartition, _Reading]]


class Fetcher:
    """The methods are for one thread, the consumer's. ``transport`` is the fetcher's own, and closed at its end."""

    def __init__(self, transport: Transport, options: ConsumerOptions) -> None:
        self._transport = transport
        self._options = options
        self._give_up: float | None = None
        self._decoders = ThreadPoolExecutor(min(_DECODERS_MAX, os.cpu_count() or 1), "logstore-consumer-decoder")
        self._thread: threading.Thread | None = None
        # Guards all attributes below.
        self._changed = threading.Condition()
        self._readings: dict[TopicPartition, _Reading] = {}
        self._completed: deque[CompletedFetch] = deque()
        self._completed_bytes = 0
        self._failure: LogStoreError | None = None
        self._replaced: set[TopicIdentity] = set()
        # Whether the fetch under way is no longer wanted.
        self._outdated = False
        self._woken = False
        self.closed = False

    def wake(self) -> None:
        """End the wait in ``first``, the one under way or else the next. For any thread."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def read(self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]) -> None:
        """Read these partitions from these offsets on, of the topics with these ids (by name)."""
        if not positions:
            return
        with self._changed:
            self._drop(positions)
            self._readings.update(
                (partition, _Reading(offset, topic_ids[partition.topic])) for partition, offset in positions.items()
            )
            # The fetch under way does not ask for the new partitions, and may wait for long.
            self._outdated = True
            self._transport.interrupt()
            self._changed.notify_all()

    def stop_reading(self, partitions: Iterable[TopicPartition]) -> None:
        stopped = set(partitions)
        with self._changed:
            self._drop(stopped)
            for partition in stopped:
                self._readings.pop(partition, None)
            self._changed.notify_all()

    def first(self, timeout_s: float) -> CompletedFetch | None:
        """The next fetch to hand out; waits up to ``timeout_s`` for it. It stays until ``pop``.

        Waits no longer once a topic is ``replaced``, or after ``wake``. Raises the error of the fetcher: the store is
        away for long, or the answer is not a store's.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="logstore-consumer", daemon=True)
            self._thread.start()
        with self._changed:
            if not self._completed and timeout_s > 0:
                self._changed.wait_for(
                    lambda: self._completed or self._failure or self._replaced or self._woken, timeout_s
                )
            self._woken = False
            if self._completed:
                return self._completed[0]
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return None

    def replaced(self) -> set[TopicIdentity]:
        """The topics that were found, since the last call, to have been deleted and made again."""
        if not self._replaced:
            return set()
        with self._changed:
            replaced, self._replaced = self._replaced, set()
        return replaced

    def begun(self) -> CompletedFetch | None:
        """The next fetch to hand out, as ``first``, without waiting."""
        return self._completed[0] if self._completed else None

    def pop(self) -> None:
        with self._changed:
            self._completed_bytes -= self._completed.popleft().size
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self.closed = self._outdated = True
            self._transport.interrupt()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._decoders.shutdown()
        self._transport.close()

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        if self._completed:
            kept = deque(found for found in self._completed if found.partition not in partitions)
            self._completed = kept
            self._completed_bytes = sum(found.size for found in kept)

    # ---- in the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        waits = backoffs()
        while (turn := self._next_turn()) is not None:
            try:
                self._take(turn, self._fetch(turn))
                self._give_up, waits = None, backoffs()
            except LogStoreError as error:
                if not self._outdated:
                    self._fail(error, next(waits))
            except Exception as error:  # noqa: BLE001 (a bug here must be seen where records are waited for)
                self._fail(LogStoreError(f"Fetching failed: {error!r}"), next(waits))

    def _next_turn(self) -> _Turn | None:
        """The partitions to ask for next; None when closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.closed or (self._readings and self._completed_bytes < self._options.fetch_max_bytes)
            )
            if self.closed:
                return None
            self._outdated = False
            return list(islice(self._readings.items(), _PARTITIONS_PER_FETCH))

    def _fetch(self, turn: _Turn) -> list[tuple[int, list[CompletedFetch]]]:
        """The results of each partition of the turn that has news."""
        options = self._options
        wait_ms = options.fetch_max_wait_ms
        if len(turn) == _PARTITIONS_PER_FETCH:
            wait_ms = min(wait_ms, _WAIT_MS_OF_TURNS)
        request = FetchRequest(
            [FetchPartition(*partition, reading.next_offset, reading.topic_id) for partition, reading in turn],
            options.fetch_max_bytes,
            options.max_partition_fetch_bytes,
            options.fetch_min_bytes,
            wait_ms,
        )
        responses = fetch(self._transport, request, options.request_timeout_ms / 1000, lambda: self._outdated)

        def read(response: PartitionData) -> tuple[int, list[CompletedFetch]]:
            partition, reading = turn[response.index]
            return response.index, self._read_response(response, partition, reading.next_offset)

        # Only inflating takes long enough to be worth a thread.
        in_threads = sum(response.has_parquet for response in responses) > 1
        return list(self._decoders.map(read, responses) if in_threads else map(read, responses))

    def _read_response(self, response: PartitionData, partition: TopicPartition, offset: int) -> list[CompletedFetch]:
        if (error := response.error) is not None:
            return [self._failed(error, partition, offset)]
        batches = list(response.records(offset))
        if not batches:
            return [CompletedFetch(partition, None, response.next_offset)] if response.next_offset != offset else []
        ends = [*(int(int64_values(batch.column("offset"))[0]) for batch in batches[1:]), response.next_offset]
        range_now = (response.log_start_offset, response.high_watermark)
        return [
            CompletedFetch(partition, FetchedBatch(*partition, batch, end, *range_now), end, batch.nbytes)
            for batch, end in zip(batches, ends, strict=True)
        ]

    def _failed(self, error: LogStoreError, partition: TopicPartition, offset: int) -> CompletedFetch:
        reset = self._options.auto_offset_reset
        if isinstance(error, OffsetOutOfRangeError) and reset != "none":
            return CompletedFetch(
                partition, None, error.log_start_offset if reset == "earliest" else error.high_watermark
            )
        return CompletedFetch(partition, None, offset, error=error)

    def _take(self, turn: _Turn, found: list[tuple[int, list[CompletedFetch]]]) -> None:
        with self._changed:
            for index, completed in found:
                partition, reading = turn[index]
                if self._readings.get(partition) is not reading or not completed:
                    continue
                del self._readings[partition]
                if isinstance(completed[-1].error, UnknownTopicIdError):
                    self._replaced.add(TopicIdentity(partition.topic, reading.topic_id))
                    continue
                if completed[-1].error is None:
                    reading.next_offset = completed[-1].next_offset
                    # Put the partition at the end: the others come first next time.
                    self._readings[partition] = reading
                self._completed.extend(completed)
                self._completed_bytes += sum(one.size for one in completed)
            if len(turn) == _PARTITIONS_PER_FETCH:
                for partition, reading in turn:
                    if self._readings.get(partition) is reading:
                        self._readings[partition] = self._readings.pop(partition)
            self._changed.notify_all()

    def _fail(self, error: LogStoreError, wait_s: float) -> None:
        """Wait before the next try. A store that is away, or too busy, for a while is no failure yet."""
        now = time.monotonic()
        self._give_up = self._give_up or now + self._options.default_api_timeout_ms / 1000
        with self._changed:
            if not error.retriable or now >= self._give_up:
                self._failure = error
                self._changed.notify_all()
            if isinstance(error, ThrottledError):
                wait_s = max(wait_s, error.retry_after_s)
            self._changed.wait_for(lambda: self.closed, wait_s)
