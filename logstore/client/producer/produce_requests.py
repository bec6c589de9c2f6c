"""Produce requests: each is sent until it is answered for good, and its records are completed by the answers.

Invariants:

- The same request, with the same sequence numbers, is sent until the store has answered for good: with them, a second
  copy of it is stored once. Without idempotence a lost answer's copy may be stored twice.
- A partition that refuses its records costs no other its own: those are completed, and only records with a retriable
  error are sent again.
- A refusal that may be about few of the records does not cost the others: the request is sent again in halves, at last
  each partition by itself, and each record if the request was too large.
- A request is for a topic, not for its name. If the topic was made again, the records go to the new one if they are not
  stored in the old one and have the same partitions there; otherwise they fail.
- All records of a request are completed when ``send`` returns, whatever happened.
"""

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import pyarrow as pa

from logstore import errors
from logstore.client.connections import Answer
from logstore.client.metadata import TopicIdentity, TopicPartitions, decode
from logstore.client.producer.delivery import Outcome
from logstore.client.producer.options import ProducerOptions
from logstore.client.producer.producer_batch import ProducerBatch, body
from logstore.client.producer.producer_identity import Identities, Identity
from logstore.client.transport import Transport, topic_path
from logstore.errors import LogStoreError
from logstore.protocol.error_codes import error_of

_ARROW_STREAM = "application/vnd.apache.arrow.stream"
# Refusals of a whole request because of one partition, or one record, of it. Nothing of it was stored.
_OF_A_RECORD = (errors.RecordTooLargeError, errors.RequestTooLargeError)
_OF_A_PARTITION = (
    *_OF_A_RECORD,
    errors.InvalidRecordError,
    errors.UnknownPartitionError,
    errors.OutOfOrderSequenceError,
    errors.DuplicateSequenceError,
    errors.InvalidProducerEpochError,
)
# The store's sequence numbers differ from ours: this identity is of no more use.
_OUT_OF_STEP = (
    errors.OutOfOrderSequenceError,
    errors.DuplicateSequenceError,
    errors.InvalidProducerEpochError,
)


@dataclass(frozen=True, slots=True)
class _Range:
    """``error_code`` and ``error`` are for records that were not stored; ``base_offset`` is None then."""

    partition: int
    base_offset: int | None
    count: int
    error_code: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Produced:
    ranges: tuple[_Range, ...]


@dataclass(slots=True)
class _Request:
    """``batches`` of one partition follow one another. ``in_doubt``: the request may be stored."""

    topic: TopicIdentity
    batches: list[ProducerBatch]
    identity: Identity | None = None
    sequences: dict[int, int] = field(default_factory=dict)
    in_doubt: bool = False

    @property
    def partitions(self) -> dict[int, int]:
        """The number of records of each partition."""
        counts: dict[int, int] = {}
        for partition, count in self.counts:
            counts[partition] = counts.get(partition, 0) + count
        return counts

    @property
    def counts(self) -> list[tuple[int, int]]:
        return [(batch.partition, len(batch.rows)) for batch in self.batches]

    def split(self, batches: list[ProducerBatch]) -> "_Request":
        """A request of some of the partitions, with the same sequence numbers."""
        return _Request(self.topic, batches, self.identity, self.sequences, self.in_doubt)


class ProduceRequests:
    """Safe from several threads, each with requests for partitions of its own.

    ``complete``: called for each batch as ``Outcome.complete``; ``find_partitions``: as of ``Sender``.
    """

    def __init__(
        self,
        transport: Transport,
        options: ProducerOptions,
        complete: Callable[[ProducerBatch, int, LogStoreError | None], None],
        find_partitions: Callable[[str, float, Iterable[Outcome]], TopicPartitions],
    ) -> None:
        self._transport = transport
        self._options = options
        self._complete = complete
        self._find_partitions = find_partitions
        self._identities = Identities(transport) if options.idempotent else None
        self._stopped = threading.Event()
        self._params: dict[str, str | int] = {
            "acks": options.acks,
            "timeout_ms": max(1, int(options.request_timeout_ms)),
        }

    def stop(self) -> None:
        """Send nothing any more."""
        self._stopped.set()

    def send(self, topic: str, batches: list[ProducerBatch]) -> None:
        """Send ``batches``, those of a partition next to each other, and complete them."""
        by_topic = groupby(batches, lambda batch: batch.chosen_among.topic_id)
        waiting = [_Request(TopicIdentity(topic, topic_id), list(found)) for topic_id, found in by_topic][::-1]
        while waiting:
            request = waiting.pop()
            # Parts of the request that partitions have refused; other partitions may take theirs.
            refused: list[tuple[_Request, LogStoreError]] = []
            try:
                self._send(request, refused)
            except Exception as failed:  # noqa: BLE001 (a bug here must not leave others waiting)
                refused.append((request, as_log_store_error(topic, failed)))
            for part, error in refused:
                waiting += self._after(part, error)

    def send_first(
        self, outcome: Outcome, record: pa.RecordBatch, partition: int | None, give_up: float
    ) -> tuple[int, int]:
        """Send one record to a topic that may not exist. The store may create the topic with its first record; only
        then are there partitions to choose from. Returns the place of the record.
        """
        path = topic_path(outcome.topic, "" if partition is None else f"/partitions/{partition}")
        headers = {"Content-Type": _ARROW_STREAM, "Idempotency-Key": uuid.uuid4().hex}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, record.schema) as writer:
            writer.write_batch(record)
        content = sink.getvalue().to_pybytes()

        def once(timeout_s: float) -> Answer:
            return self._transport.request_once(
                "POST", path, content, headers=headers, params=self._params, timeout_s=timeout_s
            )

        ranges = decode(self.ask(once, give_up, [outcome]).content, _Produced).ranges
        if not ranges:
            return -1, -1
        return ranges[0].partition, -1 if ranges[0].base_offset is None else ranges[0].base_offset

    def ask(self, once: Callable[[float], Answer], give_up: float, outcomes: Iterable[Outcome] = ()) -> Answer:
        """``once(timeout_s)`` until it is answered or refused for good, or time or the retries are up.

        ``outcomes`` wait for it, and get the error that makes it take long.
        """
        failed: LogStoreError | None = None
        for attempt, backoff in enumerate(self._backoffs()):
            remaining = give_up - time.monotonic()
            if self._stopped.is_set() or remaining <= 0:
                raise failed or errors.RequestTimedOutError(f"{self._too_late()}: it is not stored")
            try:
                return once(min(remaining, self._options.request_timeout_ms / 1000))
            except LogStoreError as error:
                if not error.retriable or attempt >= self._options.retries:
                    raise
                failed = error
                for outcome in outcomes:
                    outcome.last_error = error
            wait = max(backoff, failed.retry_after_s) if isinstance(failed, errors.ThrottledError) else backoff
            if time.monotonic() + wait > give_up or self._stopped.wait(wait):
                raise failed
        raise AssertionError

    def _too_late(self) -> str:
        if self._stopped.is_set():
            return "The producer was closed before this was sent"
        return f"Not sent within delivery_timeout_ms = {self._options.delivery_timeout_ms}"

    def _after(self, request: _Request, error: LogStoreError) -> list[_Request]:
        """The requests to send instead of one that was refused for good; records that go nowhere are completed."""
        if isinstance(error, errors.UnknownTopicIdError):
            return self._for_new_topic(request, error)
        if halves := self._halves(request, error):
            return halves
        if isinstance(error, errors.DuplicateSequenceError) and request.in_doubt:
            # An earlier try was stored; the store does not remember the offsets.
            self._end(request, [-1] * len(request.batches))
        else:
            self._give_up(request, error)
        return []

    def _send(self, request: _Request, refused: list[tuple[_Request, LogStoreError]]) -> None:
        """Send until the store has answered for all partitions; ``refused`` gets those that it refuses for good."""
        give_up = max(batch.deadline for batch in request.batches)
        outcomes = {batch.outcome for batch in request.batches}
        if self._identities and request.identity is None:
            request.identity = self._identities.current(lambda once: self.ask(once, give_up, outcomes))
            request.sequences = self._identities.sequences(request.identity, request.topic, request.partitions)
        content = body(request.batches)
        count = len(request.batches)

        def once(timeout_s: float) -> Answer:
            nonlocal content, count
            if len(request.batches) < count:  # the other partitions have been answered
                content, count = body(request.batches), len(request.batches)
            try:
                answer = self._transport.request_once(
                    "POST",
                    topic_path(request.topic.name),
                    content,
                    headers=_headers(request),
                    params=self._params,
                    timeout_s=timeout_s,
                )
            except LogStoreError as error:
                request.in_doubt = request.in_doubt or _may_be_stored(error)
                raise
            self._take(request, answer, refused)
            return answer

        self.ask(once, give_up, outcomes)

    def _take(self, request: _Request, answer: Answer, refused: list[tuple[_Request, LogStoreError]]) -> None:
        """Complete the records that are stored, and add those to ``refused`` that will never be.

        Raises the error of records that another try may store; ``request`` is then reduced to these.
        """
        if self._options.acks == 0:
            self._end(request, [-1] * len(request.batches))
            return
        ranges = decode(answer.content, _Produced).ranges
        if [(found.partition, found.count) for found in ranges] != request.counts:
            name = request.topic.name
            raise LogStoreError(f"The store answered for other records than were sent to {name!r}: {ranges}")
        failed: dict[int, LogStoreError] = {}
        for found in ranges:
            if found.error_code is not None:
                failed.setdefault(found.partition, error_of(found.error_code, found.error or ""))
        stored = [(batch, found) for batch, found in zip(request.batches, ranges, strict=True)]
        stored = [(batch, found) for batch, found in stored if batch.partition not in failed]
        if stored:
            offsets = [-1 if found.base_offset is None else found.base_offset for _, found in stored]
            self._end(request.split([batch for batch, _ in stored]), offsets)
        again: list[ProducerBatch] = []
        for partition, error in failed.items():
            part = request.split([batch for batch in request.batches if batch.partition == partition])
            part.in_doubt = part.in_doubt or _may_be_stored(error)
            if error.retriable:
                request.in_doubt = part.in_doubt
                again += part.batches
            else:
                refused.append((part, error))
        if again:
            request.batches = again
            raise next(error for error in failed.values() if error.retriable)

    def _halves(self, request: _Request, error: LogStoreError) -> list[_Request]:
        """The requests to send instead of a refused one, last first; none when it is refused for good."""
        batches = request.batches
        ends = [at for at, (a, b) in enumerate(pairwise(batches), 1) if a.partition != b.partition]
        if ends and isinstance(error, _OF_A_PARTITION):
            middle = ends[len(ends) // 2]
            return [request.split(batches[middle:]), request.split(batches[:middle])]
        # Parts of a partition get new sequence numbers: only if nothing of the whole can be stored.
        if isinstance(error, _OF_A_RECORD) and not request.in_doubt:
            if len(batches) == 1 and len(batches[0].rows) > 1:
                batches = list(batches[0].halves(self._options.codec))
            if len(batches) > 1:
                middle = len(batches) // 2
                return [_Request(request.topic, batches[middle:]), _Request(request.topic, batches[:middle])]
        return []

    def _for_new_topic(self, request: _Request, refusal: errors.UnknownTopicIdError) -> list[_Request]:
        """The requests to send to the topic that has the name now; records that go nowhere are completed."""
        name, topic_id = request.topic
        made_again = f"Topic {name!r} was deleted and made again"
        if request.in_doubt:
            unknown = "whether this is in the one that was deleted is not known, and it is not sent to the new one"
            self._give_up(request, errors.UnknownTopicIdError(f"{made_again}: {unknown}"))
            return []
        try:
            give_up = max(batch.deadline for batch in request.batches)
            now = self._find_partitions(name, give_up, {batch.outcome for batch in request.batches})
            if now.topic_id == topic_id:
                raise refusal
        except LogStoreError as error:
            self._give_up(request, error)
            return []
        fitting = []
        for batch in request.batches:
            if batch.chosen_among.count == now.count:
                fitting.append(batch)
            else:
                others = f"its {now.count} partitions are others than those that this was meant for. Send it again"
                self._complete(batch, -1, errors.UnknownTopicIdError(f"{made_again}: {others}"))
        return [_Request(TopicIdentity(name, now.topic_id), fitting)] if fitting else []

    def _give_up(self, request: _Request, error: LogStoreError) -> None:
        if (
            self._identities
            and request.identity
            and (request.in_doubt or _may_be_stored(error) or isinstance(error, _OUT_OF_STEP))
        ):
            self._identities.retire(request.identity)
        for batch in request.batches:
            self._complete(batch, -1, error)

    def _end(self, request: _Request, base_offsets: list[int]) -> None:
        if self._identities and request.identity:
            self._identities.advance(request.identity, request.topic, request.sequences, request.partitions)
        for batch, base_offset in zip(request.batches, base_offsets, strict=True):
            self._complete(batch, base_offset, None)

    def _backoffs(self) -> Iterator[float]:
        wait, longest = self._options.retry_backoff_ms / 1000, self._options.retry_backoff_max_ms / 1000
        while True:
            # Jitter, so that many producers do not come back in one moment.
            yield min(wait, longest) * random.uniform(0.8, 1.2)  # noqa: S311 (not a secret)
            wait *= 2


def _headers(request: _Request) -> dict[str, str]:
    headers = {"Content-Type": _ARROW_STREAM, "Logstore-Topic-Id": request.topic.topic_id}
    if request.identity is not None:
        headers |= {
            "Logstore-Producer-Id": str(request.identity.producer_id),
            "Logstore-Producer-Epoch": str(request.identity.producer_epoch),
            "Logstore-Base-Sequences": ",".join(
                f"{partition}={request.sequences[partition]}" for partition in request.partitions
            ),
        }
    return headers


def as_log_store_error(topic: str, error: Exception) -> LogStoreError:
    return error if isinstance(error, LogStoreError) else LogStoreError(f"Sending to topic {topic!r} failed: {error!r}")


def _may_be_stored(error: LogStoreError) -> bool:
    """Whether a request with this error may be stored; after a 4xx, a 429 or a 503 it is not."""
    if isinstance(error, errors.StoreUnreachableError):
        return False
    unknown = (errors.NetworkError, errors.RequestTimedOutError, errors.CommitStateUnknownError, errors.StorageError)
    return type(error) is LogStoreError or isinstance(error, unknown)
