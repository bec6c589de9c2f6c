"""Producing: a request's records are split, encoded, claimed, given offsets and handed to the journal, then waited for.

Invariants: between giving out offsets and handing the frames to the journal nothing awaits, so that the order of
offsets is the order of frames; a request with an identity is claimed and appended in one step, too.
"""

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from logstore.broker.access import Access, Operation, ResourceType
from logstore.broker.admission import Admission
from logstore.broker.context import INTERNAL, RequestContext
from logstore.broker.coordinator import Coordinator
from logstore.broker.idempotence import claim, require_partitions_named
from logstore.broker.topics import require_users_topic
from logstore.errors import (
    InvalidProducerRequestError,
    InvalidRecordError,
    InvalidRequestError,
    RequestTimedOutError,
)
from logstore.filesystem import FileSystem
from logstore.journal.frame import Frame, FrameLocation
from logstore.journal.journal import Journal
from logstore.limits import MIB
from logstore.log.topic import Topic
from logstore.observability import PRODUCED_BYTES, PRODUCED_RECORDS, REPLAYED_RECORDS
from logstore.records.batch import (
    DecodedRecords,
    PartitionBatch,
    Records,
    SplitRecords,
    check_record_sizes,
    partition_batches,
)
from logstore.records.batch_identity import (
    NO_IDENTITY,
    PRODUCER_EPOCH_MAX,
    BatchIdentity,
    IdempotencyKey,
    ProducerIdentity,
)
from logstore.records.partitioner import choose_partitions
from logstore.records.payload import encode_payload

# Above this, splitting and encoding a request would hold up the event loop for milliseconds.
_ENCODE_IN_THREAD_BYTES = 1 * MIB


@dataclass(frozen=True, slots=True)
class ProducedRange:
    """Records of a request that got consecutive offsets in one partition.

    ``rows`` are their positions in the request, in offset order (None: all of them, 0 to count - 1).
    """

    partition: int
    base_offset: int
    count: int
    rows: np.ndarray | None


@dataclass(frozen=True, slots=True)
class ProduceResult:
    """``replayed``: nothing was stored, all of it was there already."""

    ranges: tuple[ProducedRange, ...]
    count: int
    replayed: bool = False

    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Partition (int32) and offset (int64) of each record, in the order of the request."""
        partitions = np.empty(self.count, np.int32)
        offsets = np.empty(self.count, np.int64)
        for found in self.ranges:
            rows = slice(None) if found.rows is None else found.rows
            partitions[rows] = found.partition
            offsets[rows] = np.arange(found.base_offset, found.base_offset + found.count)
        return partitions, offsets


class ProducerId(NamedTuple):
    producer_id: int
    producer_epoch: int


class Producing:
    """``appended`` is called with the topic of each append."""

    def __init__(
        self,
        journal: Journal,
        admission: Admission,
        access: Access,
        coordinator: Coordinator,
        filesystem: FileSystem,
        appended: Callable[[Topic], None],
    ) -> None:
        self._journal = journal
        self._admission = admission
        self._access = access
        self._coordinator = coordinator
        self._filesystem = filesystem
        self._appended = appended
        self._sticky = itertools.count()
        # Few: each holds a request twice, as it was sent and as it is stored.
        self._encoders = ThreadPoolExecutor(2, thread_name_prefix="encode")

    def close(self) -> None:
        self._encoders.shutdown()

    async def produce(
        self,
        context: RequestContext,
        topic: Topic,
        records: Records,
        *,
        partition: int | None = None,
        acks: int = -1,
        timeout_ms: int | None = 30_000,
        identity: ProducerIdentity | IdempotencyKey | None = None,
    ) -> ProduceResult:
        """Append a request's records; per partition all of them with consecutive offsets, or none.

        ``acks``: 0 returns once they are queued, 1 when they are durable here, -1 (all) on all in-sync replicas.
        Only INTERNAL writes to a topic of the store's own. Requests of up to 1 MiB are appended in the order of the
        calls. With an ``identity`` what is stored already is not stored again, and told of as at first, whatever
        the topic's configuration is by now.

        Raises TopicAuthorizationError, UnknownPartitionError, InvalidTopicError, InvalidRecordError (a null key in a
        compacted topic), ThrottledError (the journal is at ``journal.max.bytes``), BrokerNotReadyError,
        StorageFullError, StorageError, RequestTimedOutError; with an ``identity`` also what ``claim`` raises, and
        RecordTooLargeError, which decoding is to find for all others.
        """
        self._access.require(context, Operation.WRITE, ResourceType.TOPIC, topic.name)
        self._admission.require_ready()
        if context is not INTERNAL:
            require_users_topic(topic)
        if identity is not None:
            return await self._produce_once(topic, records, partition, acks, timeout_ms, identity)
        _check_keys(topic, records)
        parts, payloads = await self._encode(topic, records, partition, _sticky_partition(topic, next(self._sticky)))
        self._filesystem.reached("produce.parsed")
        self._admission.require_ready()
        self._admission.require_room(topic, sum(len(payload) for payload in payloads))
        ranges, durable = self._append(topic, parts, payloads)
        count, nbytes = records.num_rows, records.nbytes
        # What waits for the fsync is held once, by the journal.
        del records, parts, payloads
        if acks != 0:
            await self._acknowledged([durable], timeout_ms)
        PRODUCED_RECORDS.count(topic, count)
        PRODUCED_BYTES.count(topic, nbytes)
        return ProduceResult(ranges, count)

    async def _produce_once(
        self,
        topic: Topic,
        records: Records,
        partition: int | None,
        acks: int,
        timeout_ms: int | None,
        identity: ProducerIdentity | IdempotencyKey,
    ) -> ProduceResult:
        """``produce`` without what is stored already, or on its way."""
        if isinstance(identity, ProducerIdentity):
            self._require_issued(identity.producer_id)
            require_partitions_named(records, partition)
            sticky = 0
        else:
            sticky = identity.partition_hash
        parts, payloads = await self._encode(topic, records, partition, sticky)
        self._filesystem.reached("produce.parsed")
        self._admission.require_ready()
        claims = claim(topic, parts, identity)
        new = [at for at, claimed in enumerate(claims) if claimed.stored is None]
        # What was stored is not asked for what is asked of new records by now.
        for part in [parts[at] for at in new]:
            rows = np.arange(part.batch.num_rows) if part.rows is None else part.rows
            check_record_sizes(part.batch, topic.config.max_message_bytes, rows)
            _check_batch_keys(topic, part.batch, rows)
        if new:
            self._admission.require_room(topic, sum(len(payloads[at]) for at in new))
        waiting = {c.stored.durable for c in claims if c.stored is not None and c.stored.durable is not None}
        appended: tuple[ProducedRange, ...] = ()
        if new:
            appended, durable = self._append(
                topic, [parts[at] for at in new], [payloads[at] for at in new], [claims[at].identity for at in new]
            )
            waiting.add(durable)
        if acks != 0:
            await self._acknowledged(waiting, timeout_ms)
        PRODUCED_RECORDS.count(topic, sum(r.count for r in appended))
        PRODUCED_BYTES.count(topic, sum(parts[at].batch.nbytes for at in new))
        REPLAYED_RECORDS.count(topic, records.num_rows - sum(r.count for r in appended))
        stored = iter(appended)
        ranges = tuple(
            next(stored)
            if claimed.stored is None
            else ProducedRange(part.partition, claimed.stored.batch.base_offset, part.batch.num_rows, part.rows)
            for part, claimed in zip(parts, claims, strict=True)
        )
        return ProduceResult(ranges, records.num_rows, replayed=not new)

    async def _acknowledged(
        self, appends: Collection[asyncio.Future[list[FrameLocation]]], timeout_ms: int | None
    ) -> None:
        if appends and timeout_ms is not None:
            await asyncio.wait(appends, timeout=timeout_ms / 1000)
        for durable in appends:
            if timeout_ms is None:
                await durable
            elif not durable.done():
                raise not_acknowledged(timeout_ms)
            durable.result()
        self._filesystem.reached("produce.durable")

    async def init_producer(
        self, context: RequestContext, producer_id: int | None = None, producer_epoch: int = -1
    ) -> ProducerId:
        """A new id for an idempotent producer with epoch 0; for an id and its epoch the same with the next epoch.

        After epoch 32767 it is a new id, as Kafka's producers without a transactional id have it (KIP-360). Raises
        InvalidProducerRequestError for an id that was never handed out, ClusterAuthorizationError.
        """
        self._access.require_cluster(context, Operation.IDEMPOTENT_WRITE)
        self._admission.require_ready()
        if producer_id is not None:
            self._require_issued(producer_id)
            if producer_epoch < PRODUCER_EPOCH_MAX:
                return ProducerId(producer_id, producer_epoch + 1)
        return ProducerId(await self._coordinator.new_producer_id(), 0)

    def _require_issued(self, producer_id: int) -> None:
        # Else it could be handed out later, to somebody whose batches would then be taken for repetitions.
        if not self._coordinator.is_issued(producer_id):
            raise InvalidProducerRequestError(
                f"Producer id {producer_id} was not issued by this store: ask POST /producers for one."
            )

    async def _encode(
        self, topic: Topic, records: Records, partition: int | None, sticky: int
    ) -> tuple[list[PartitionBatch], list[pa.Buffer]]:
        def encode() -> tuple[list[PartitionBatch], list[pa.Buffer]]:
            parts = _split(topic, records, partition, sticky)
            return parts, [encode_payload(p.batch) if p.verbatim is None else p.verbatim for p in parts]

        if isinstance(records, DecodedRecords) and records.nbytes > _ENCODE_IN_THREAD_BYTES:
            return await asyncio.get_running_loop().run_in_executor(self._encoders, encode)
        return encode()

    def _append(
        self,
        topic: Topic,
        parts: list[PartitionBatch],
        payloads: list[pa.Buffer],
        identities: Iterable[BatchIdentity] = itertools.repeat(NO_IDENTITY),
    ) -> tuple[tuple[ProducedRange, ...], asyncio.Future[list[FrameLocation]]]:
        # No await in here: the order of offsets is the order of frames in the journal.
        frames: list[Frame] = []
        last: dict[int, Frame] = {}
        for part, payload, identity in zip(parts, payloads, identities, strict=False):
            frame = topic.partition(part.partition).next_frame(
                part.batch,
                payload,
                inflated_bytes=payload.size if part.verbatim is None else part.batch.nbytes,
                log_append_time=topic.config.log_append_time,
                after=last.get(part.partition),
                identity=identity,
            )
            last[part.partition] = frame
            frames.append(frame)
        durable = self._journal.append(frames)
        self._appended(topic)
        for at, (part, frame) in enumerate(zip(parts, frames, strict=True)):
            topic.partitions[part.partition].track(frame, durable, at)
        ranges = tuple(
            ProducedRange(part.partition, frame.header.base_offset, frame.header.record_count, part.rows)
            for part, frame in zip(parts, frames, strict=True)
        )
        return ranges, durable


def not_acknowledged(timeout_ms: int) -> RequestTimedOutError:
    return RequestTimedOutError(
        f"The records were not acknowledged within {timeout_ms} ms; they may or may not be stored."
    )


def _check_keys(topic: Topic, records: Records) -> None:
    if not topic.config.compacted:
        return
    row = 0
    for batch in [part.batch for part in records.parts] if isinstance(records, SplitRecords) else [records.batch]:
        _check_batch_keys(topic, batch, range(row, row + batch.num_rows))
        row += batch.num_rows


def _check_batch_keys(topic: Topic, batch: pa.RecordBatch, rows: np.ndarray | range) -> None:
    keys = batch.column("key")
    if topic.config.compacted and keys.null_count:
        first = rows[int(np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False))[0])]
        raise InvalidRecordError(
            f"Record {first} has no key, and topic '{topic.name}' is compacted (cleanup.policy=compact): send a key."
        )


def _sticky_partition(topic: Topic, turn: int) -> int:
    """For records that leave it open: one that is served, if there is any.

    Not for requests with an idempotency key: a retry of them must go where the first try went.
    """
    served = [p.partition for p in topic.partitions if p.quarantined is None] or [0]
    return served[turn % len(served)]


def _split(topic: Topic, records: Records, partition: int | None, sticky: int) -> list[PartitionBatch]:
    if isinstance(records, SplitRecords):
        for part in records.parts:
            topic.partition(part.partition)
            if partition is not None and part.partition != partition:
                raise InvalidRequestError(
                    f"An Arrow batch names partition {part.partition} in its metadata, but the path names {partition}: "
                    "leave it out of the metadata, or post to the topic."
                )
        return list(records.parts)
    if partition is None:
        chosen = choose_partitions(records, len(topic.partitions), sticky % len(topic.partitions))
        return partition_batches(records, chosen)
    topic.partition(partition)
    if records.partitions is not None:
        others = np.flatnonzero((records.partitions != partition) & (records.partitions != -1))
        if len(others):
            raise InvalidRequestError(
                f"Record {int(others[0])} names partition {int(records.partitions[others[0]])}, but the path names "
                f"{partition}: leave it out of the record, or post to the topic."
            )
    return [PartitionBatch(partition, records.batch, None, records.verbatim)]
