"""Reads partitions ahead of the program that consumes them.

One thread for each broker that leads some of them fetches over one connection; a few more threads decode the history of
several partitions.

Invariants:

- Each broker has one fetch under way at a time, for all partitions that it leads. The first partition that has a record
  ends the wait, and a partition that was just served goes to the end of the next request.
- A fetch begins only while less than ``fetch_max_bytes`` wait to be taken. All fetches under way together bring at most
  as much, and one batch each: about twice ``fetch_max_bytes`` are held.
- Records of a partition come without gap or repetition from the offset given to ``read``. Records that were fetched
  before ``read`` or ``stop_reading``, or by two brokers from the same offset, are dropped.
- A failure is raised in its turn, after the records before it. A partition that failed is not read until ``read`` is
  called. A temporary condition (another leader, a leader that has just begun, a store that is away) counts as a failure
  only after ``default_api_timeout_ms``.
- A topic that was created again is not a failure in its turn: ``replaced`` names it at once, and the consumer drops the
  records fetched from the old one. Nothing of the new one is fetched before ``read`` with its id.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from logstore.backoff import backoffs
from logstore.client.cluster_metadata import ANY_BROKER, NO_LEADER, ClusterMetadata
from logstore.client.consumer.options import ConsumerOptions
from logstore.client.consumer.records import FetchedBatch
from logstore.client.fetch import fetch
from logstore.client.metadata import TopicIdentity, TopicPartition
from logstore.client.transport import Transport
from logstore.errors import (
    LeaderNotAvailableError,
    LogStoreError,
    OffsetOutOfRangeError,
    ThrottledError,
    UnknownTopicIdError,
)
from logstore.protocol.fetch_response import PartitionData
from logstore.protocol.messages.records import FetchPartition, FetchRequest
from logstore.records.log_batches import int64_values

# A larger request would exceed what the store accepts, so further partitions are fetched in turns.
_PARTITIONS_PER_FETCH = 2_000
_WAIT_MS_OF_TURNS = 50
_DECODERS_MAX = 4


@dataclass(slots=True, eq=False)
class CompletedFetch:
    """A result for a partition: the rows of ``batch`` from ``row`` on are to be handed out, then reading continues at
    ``next_offset``. Without a batch it is a gap, a reset, or the ``error`` met at ``next_offset``.
    """

    partition: TopicPartition
    batch: FetchedBatch | None
    next_offset: int
    size: int = 0
    error: LogStoreError | None = None
    row: int = 0


@dataclass(slots=True, eq=False)
class _Backoff:
    """The time since when something has been failing, and of its next retry (both monotonic)."""

    since: float = 0.0
    retry_at: float = 0.0
    waits: Iterator[float] = field(default_factory=backoffs)

    def failed(self, error: LogStoreError) -> float:
        """Note a failure; return for how many seconds it has been failing."""
        now = time.monotonic()
        self.since = self.since or now
        wait_s = next(self.waits)
        self.retry_at = now + (max(wait_s, error.retry_after_s) if isinstance(error, ThrottledError) else wait_s)
        return now - self.since


@dataclass(slots=True, eq=False)
class _Reading:
    """The fetch position of a partition of the topic with ``topic_id``. A seek creates a new one. ``failing`` is set
    while the partition is refused.
    """

    next_offset: int
    topic_id: str
    failing: _Backoff | None = None


class _Asked(NamedTuple):
    """A partition in a fetch request, from ``offset`` on."""

    partition: TopicPartition
    reading: _Reading
    offset: int


@dataclass(slots=True, eq=False)
class _Worker:
    """The thread that fetches from ``broker``. ``is_outdated`` is set if the fetch under way is no longer wanted."""

    broker: int | None
    thread: threading.Thread | None = None
    is_outdated: bool = False
    failing: _Backoff = field(default_factory=_Backoff)


_Turn = list[_Asked]


class Fetcher:
    """The fetcher of one consumer, whose thread calls the methods. It owns ``transport`` and closes it at the end."""

    def __init__(self, transport: Transport, metadata: ClusterMetadata, options: ConsumerOptions) -> None:
        self._transport = transport
        self._metadata = metadata
        self._options = options
        self._decoders = ThreadPoolExecutor(min(_DECODERS_MAX, os.cpu_count() or 1), "logstore-consumer-decoder")
        # This lock guards all attributes below.
        self._changed = threading.Condition()
        # Workers by broker id, as ``ClusterMetadata.leader`` gives it; threads run after the first call of ``first``.
        self._workers: dict[int | None, _Worker] = {}
        self._has_begun = False
        self._readings: dict[TopicPartition, _Reading] = {}
        self._completed: deque[CompletedFetch] = deque()
        self._completed_bytes = 0
        self._failure: LogStoreError | None = None
        self._replaced: set[TopicIdentity] = set()
        self._woken = False
        self.closed = False

    def wake(self) -> None:
        """End the wait in ``first``, the current one or else the next. Any thread may call it."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def read(self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]) -> None:
        """Read these partitions from these offsets on, in the topics with these ids (by name)."""
        if not positions:
            return
        with self._changed:
            self._drop(positions)
            self._readings.update(
                (partition, _Reading(offset, topic_ids[partition.topic])) for partition, offset in positions.items()
            )
            # The fetch under way does not include the new partitions, and may wait for long.
            for broker in {self._metadata.leader(*partition) for partition in positions}:
                if broker in self._workers:
                    self._workers[broker].is_outdated = True
            self._transport.interrupt()
            self._employ()
            self._changed.notify_all()

    def stop_reading(self, partitions: Iterable[TopicPartition]) -> None:
        stopped = set(partitions)
        with self._changed:
            self._drop(stopped)
            for partition in stopped:
                self._readings.pop(partition, None)
            self._changed.notify_all()

    def first(self, timeout_s: float) -> CompletedFetch | None:
        """Return the next fetch to hand out, after at most ``timeout_s`` seconds. It stays until ``pop``.

        The wait also ends when a topic is ``replaced``, or after ``wake``. Raises the fetcher's error: the store has
        been away for long, or the response does not come from a store.
        """
        with self._changed:
            if not self._has_begun:
                self._has_begun = True
                self._employ()
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
        """Return the topics that were found, since the last call, to have been deleted and created again."""
        if not self._replaced:
            return set()
        with self._changed:
            replaced, self._replaced = self._replaced, set()
        return replaced

    def begun(self) -> CompletedFetch | None:
        """Return the next fetch to hand out, as ``first`` does, without waiting."""
        return self._completed[0] if self._completed else None

    def pop(self) -> None:
        with self._changed:
            self._completed_bytes -= self._completed.popleft().size
            self._changed.notify_all()

    def close(self) -> None:
        """End the threads."""
        with self._changed:
            self.closed = True
            workers = list(self._workers.values())
            for worker in workers:
                worker.is_outdated = True
            self._transport.interrupt()
            self._changed.notify_all()
        for worker in workers:
            if worker.thread is not None:
                worker.thread.join()
        self._decoders.shutdown()
        self._transport.close()

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        if self._completed:
            kept = deque(found for found in self._completed if found.partition not in partitions)
            self._completed = kept
            self._completed_bytes = sum(found.size for found in kept)

    def _employ(self) -> None:
        """Start a thread for each broker that leads a partition that is read. The caller holds the lock."""
        if not self._has_begun or self.closed:
            return
        for broker in {self._metadata.leader(*partition) for partition in self._readings} - self._workers.keys():
            worker = self._workers[broker] = _Worker(broker)
            worker.thread = threading.Thread(target=self._run, args=(worker,), name="logstore-consumer", daemon=True)
            worker.thread.start()

    # ---- in the threads ---------------------------------------------------------------------------------------------

    def _run(self, worker: _Worker) -> None:
        while (turn := self._next_turn(worker)) is not None:
            topics = {asked.partition.topic for asked in turn}
            began = time.monotonic()
            try:
                refusal = None
                # A new view may assign these partitions to other brokers.
                if not self._metadata.keep_fresh(topics) or not self._metadata.is_cluster:
                    refusal = self._take(turn, self._fetch(worker, turn))
                    worker.failing = _Backoff()
            except LogStoreError as error:
                if worker.is_outdated:
                    continue
                self._fail(error, worker.failing)
                refusal = error
            except Exception as error:  # noqa: BLE001 (a bug here must be seen where records are waited for)
                self._fail(LogStoreError(f"Fetching failed: {error!r}"), worker.failing)
                continue
            if refusal is not None:
                self._metadata.after(refusal, topics, began)
            if self._metadata.is_cluster or worker.broker is not ANY_BROKER:
                with self._changed:
                    self._employ()

    def _next_turn(self, worker: _Worker) -> _Turn | None:
        """Return the partitions to ask for next; None if there are none for this worker, which is then removed."""
        with self._changed:
            while True:
                own = self._readings_at(worker.broker)
                if self.closed or not own:
                    self._workers.pop(worker.broker)
                    self._employ()
                    return None
                now = time.monotonic()
                due = [asked for asked in own if asked.reading.failing is None or asked.reading.failing.retry_at <= now]
                wait_s = worker.failing.retry_at - now
                if due and wait_s <= 0 and self._completed_bytes < self._options.fetch_max_bytes:
                    worker.is_outdated = False
                    return due[:_PARTITIONS_PER_FETCH]
                if not due:
                    retries = (asked.reading.failing.retry_at for asked in own if asked.reading.failing is not None)
                    wait_s = max(wait_s, min(retries) - now)
                self._changed.wait(wait_s if wait_s > 0 else None)

    def _readings_at(self, broker: int | None) -> _Turn:
        """Return the partitions that ``broker`` leads, in the order in which they are asked for."""
        if not self._metadata.is_cluster:
            found = self._readings.items() if broker is ANY_BROKER else ()
            return [_Asked(*one, one[1].next_offset) for one in islice(found, _PARTITIONS_PER_FETCH)]
        leader = self._metadata.leader
        return [_Asked(*one, one[1].next_offset) for one in self._readings.items() if leader(*one[0]) == broker]

    def _fetch(self, worker: _Worker, turn: _Turn) -> list[tuple[int, list[CompletedFetch]]]:
        """Return the results of each partition of the turn that has any."""
        if worker.broker == NO_LEADER:
            names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(asked.partition for asked in turn))
            raise LeaderNotAvailableError(f"Without a leader at present: {names}.")
        options = self._options
        wait_ms = options.fetch_max_wait_ms
        if len(turn) == _PARTITIONS_PER_FETCH:
            wait_ms = min(wait_ms, _WAIT_MS_OF_TURNS)
        request = FetchRequest(
            tuple(FetchPartition(*asked.partition, asked.offset, asked.reading.topic_id) for asked in turn),
            max(1, options.fetch_max_bytes // len(self._workers)),
            options.max_partition_fetch_bytes,
            options.fetch_min_bytes,
            wait_ms,
            options.where,
        )
        began = time.monotonic()
        with self._metadata.way_to(worker.broker, turn[0].partition) as way:
            timeout_s = options.request_timeout_ms / 1000
            responses = fetch(self._transport, request, timeout_s, lambda: worker.is_outdated, at=way.url)
            way.was_refused = any(response.error_code for response in responses)

        def read(response: PartitionData) -> tuple[int, list[CompletedFetch]]:
            return response.index, self._read_response(response, turn[response.index], began)

        # Only inflating takes long enough to be worth a thread.
        in_threads = sum(response.has_parquet for response in responses) > 1
        return list(self._decoders.map(read, responses) if in_threads else map(read, responses))

    def _read_response(self, response: PartitionData, asked: _Asked, began: float) -> list[CompletedFetch]:
        partition, reading, offset = asked
        if (error := response.error) is not None:
            return [self._failed(error, partition, reading, offset, began)]
        batches = list(response.records(offset))
        if not batches:
            return [CompletedFetch(partition, None, response.next_offset)] if response.next_offset != offset else []
        ends = [*(int(int64_values(batch.column("offset"))[0]) for batch in batches[1:]), response.next_offset]
        range_now = (response.log_start_offset, response.high_watermark)
        return [
            CompletedFetch(partition, FetchedBatch(*partition, batch, end, *range_now), end, batch.nbytes)
            for batch, end in zip(batches, ends, strict=True)
        ]

    def _failed(
        self, error: LogStoreError, partition: TopicPartition, reading: _Reading, offset: int, began: float
    ) -> CompletedFetch:
        reset = self._options.auto_offset_reset
        if isinstance(error, OffsetOutOfRangeError) and reset != "none":
            return CompletedFetch(
                partition, None, error.log_start_offset if reset == "earliest" else error.high_watermark
            )
        if self._metadata.is_unheard_of(error, partition.topic, reading.topic_id, partition.partition, began=began):
            error = LeaderNotAvailableError(f"The leader has not heard of it yet: {error.message}")
        return CompletedFetch(partition, None, offset, error=error)

    def _take(self, turn: _Turn, found: list[tuple[int, list[CompletedFetch]]]) -> LogStoreError | None:
        """Take the results in ``found``; return a refusal that may pass. Its partition is asked for later."""
        refusal: LogStoreError | None = None
        with self._changed:
            for index, completed in found:
                partition, reading, offset = turn[index]
                if self._readings.get(partition) is not reading or reading.next_offset != offset or not completed:
                    continue
                del self._readings[partition]
                error = completed[-1].error
                if isinstance(error, UnknownTopicIdError):
                    self._replaced.add(TopicIdentity(partition.topic, reading.topic_id))
                    continue
                if error is None or error.retriable:
                    reading.next_offset = completed[-1].next_offset
                    # Put the partition at the end, so that the others come first next time.
                    self._readings[partition] = reading
                if error is not None and error.retriable:
                    refusal = error
                    reading.failing = reading.failing or _Backoff()
                    self._fail(error, reading.failing)
                    continue
                reading.failing = None
                self._completed.extend(completed)
                self._completed_bytes += sum(one.size for one in completed)
            if len(turn) == _PARTITIONS_PER_FETCH:
                for partition, reading, _ in turn:
                    if self._readings.get(partition) is reading:
                        self._readings[partition] = self._readings.pop(partition)
            self._changed.notify_all()
        return refusal

    def _fail(self, error: LogStoreError, failing: _Backoff) -> None:
        """Note an error: a store or leader that is away or too busy for a short while is not a failure yet."""
        seconds = failing.failed(error)
        with self._changed:
            if not error.retriable or seconds >= self._options.default_api_timeout_ms / 1000:
                self._failure = error
                self._changed.notify_all()
