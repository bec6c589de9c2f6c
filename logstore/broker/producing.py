"""Producing: a request's records are split, encoded, claimed, given offsets and handed to the journal, then waited for.

Invariants: between giving out offsets and handing the frames to the journal nothing awaits, so that the order of
offsets is the order of frames; a request with an identity is claimed and appended in one step, too.
"""

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from logstore.broker.admission import Admission
from logstore.broker.authorizer import Authorizer, Operation, ResourceType
from logstore.broker.context import INTERNAL, RequestContext
from logstore.broker.coordinator import Coordinator
from logstore.broker.idempotence import Claim, claim, require_partitions_named
from logstore.broker.produce_result import NO_OFFSET, PartitionResponse, ProduceResult
from logstore.broker.quotas import QuotaKind
from logstore.broker.request_parts import check_batch_keys, check_keys, split, sticky_partition
from logstore.errors import InvalidProducerRequestError, LogStoreError, RequestTimedOutError
from logstore.filesystem import FileSystem
from logstore.journal.frame import Frame, FrameLocation
from logstore.journal.journal import Journal
from logstore.limits import MIB
from logstore.log.topic import Topic
from logstore.observability import PRODUCED_BYTES, PRODUCED_RECORDS, REPLAYED_RECORDS
from logstore.records.batch import DecodedRecords, PartitionBatch, Records, check_record_sizes
from logstore.records.batch_identity import PRODUCER_EPOCH_MAX, IdempotencyKey, ProducerIdentity
from logstore.records.payload import encode_payload

# Above this, splitting and encoding a request would hold up the event loop for milliseconds.
_ENCODE_IN_THREAD_BYTES = 1 * MIB


class ProducerId(NamedTuple):
    producer_id: int
    producer_epoch: int


class Producing:
    """``appended`` is called with the topic of each append."""

    def __init__(
        self,
        journal: Journal,
        admission: Admission,
        authorizer: Authorizer,
        coordinator: Coordinator,
        filesystem: FileSystem,
        appended: Callable[[Topic], None],
    ) -> None:
        self._journal = journal
        self._admission = admission
        self._authorizer = authorizer
        self._coordinator = coordinator
        self._filesystem = filesystem
        self._appended = appended
        # A turn for each topic: else topics that are sent to in turns would get one partition each.
        self._sticky: WeakKeyDictionary[Topic, Iterator[int]] = WeakKeyDictionary()
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
        """Append a request's records; of each partition all with consecutive offsets, or none.

        One partition that fails stops no other: its PartitionResponse has the error. ``acks``: 0 returns once they are
        queued, 1 when they are durable here, -1 (all) on all in-sync replicas. Only INTERNAL writes to a topic of the
        store's own. Requests of up to 1 MiB are appended in the order of the calls. With an ``identity``, batches that
        are stored already are not stored again; the answer gives their offsets, whatever the topic's configuration is
        by now.

        Errors of a partition: UnknownPartitionError, QuarantinedError, UnknownTopicError (deleted meanwhile); with
        sequence numbers OutOfOrderSequenceError, DuplicateSequenceError, InvalidProducerEpochError. Raises errors of
        the whole request: TopicAuthorizationError, InvalidTopicError, InvalidRequestError, InvalidRecordError (a null
        key in a compacted topic), ThrottledError (the journal is at ``journal.max.bytes``), BrokerNotReadyError,
        StorageFullError, StorageError, RequestTimedOutError; with an ``identity`` also InvalidProducerRequestError,
        IdempotencyKeyReusedError, and RecordTooLargeError (without one the decoder has checked the sizes).
        """
        self._authorizer.require(context, Operation.WRITE, ResourceType.TOPIC, topic.name)
        self._admission.require_ready()
        if context is not INTERNAL:
            topic.require_not_internal()
            self._admission.require_quota(context, QuotaKind.PRODUCED_BYTES)
        if identity is None:
            check_keys(topic, records)
        sticky = self._sticky_partition(topic, records, partition, identity)
        parts, payloads = await self._encode(topic, records, partition, sticky)
        self._filesystem.reached("produce.parsed")
        self._admission.require_ready()
        # From here to the append nothing awaits: of two tries of a request the second one finds the first.
        claims = claim(topic, parts, identity)
        new = [at for at, claimed in enumerate(claims) if claimed.is_new]
        if identity is not None:
            # Only new records have to meet the topic's configuration of today.
            for part in [parts[at] for at in new]:
                rows = np.arange(part.batch.num_rows) if part.rows is None else part.rows
                check_record_sizes(part.batch, topic.config.max_message_bytes, rows)
                check_batch_keys(topic, part.batch, rows)
        durable, base_offsets = self._append(topic, parts, payloads, claims, new)
        responses = [
            PartitionResponse(part.partition, base_offset, part.batch.num_rows, part.rows, claimed.error)
            for part, base_offset, claimed in zip(parts, base_offsets, claims, strict=True)
        ]
        repeated = {at: c.stored.durable for at, c in enumerate(claims) if c.stored is not None and c.stored.durable}
        new_records = sum(responses[at].count for at in new)
        new_bytes = records.nbytes if len(new) == len(parts) else sum(parts[at].batch.nbytes for at in new)
        # Also of who does not wait until it is durable.
        throttle_ms = self._admission.charge(context, QuotaKind.PRODUCED_BYTES, new_bytes)
        count = records.num_rows
        # The journal holds the records until the fsync: drop them here.
        del records, parts, payloads
        if acks != 0:
            await self._acknowledged(durable, repeated.values(), timeout_ms)
            for at, earlier in repeated.items():
                if isinstance(failure := earlier.exception(), LogStoreError):
                    responses[at] = dataclasses.replace(responses[at], base_offset=NO_OFFSET, error=failure)
        PRODUCED_RECORDS.count(topic, new_records)
        PRODUCED_BYTES.count(topic, new_bytes)
        if identity is not None:
            REPLAYED_RECORDS.count(topic, sum(r.count for r in responses if r.error is None) - new_records)
        replayed = identity is not None and not new and all(r.error is None for r in responses)
        return ProduceResult(tuple(responses), count, replayed, throttle_ms)

    def _sticky_partition(
        self, topic: Topic, records: Records, partition: int | None, identity: ProducerIdentity | IdempotencyKey | None
    ) -> int:
        """The partition for records whose producer leaves it open. A retry goes where the first try went."""
        if identity is None:
            return sticky_partition(topic, next(self._sticky.setdefault(topic, itertools.count())))
        if isinstance(identity, IdempotencyKey):
            return identity.partition_hash
        self._require_issued(identity.producer_id)
        require_partitions_named(records, partition)
        return 0

    async def _acknowledged(
        self,
        durable: asyncio.Future[list[FrameLocation]] | None,
        repeated: Collection[asyncio.Future[list[FrameLocation]]],
        timeout_ms: int | None,
    ) -> None:
        """Wait for this append and for the appends that it repeats. Raises the error of this append."""
        if repeated or timeout_ms is not None:
            waiting = {*repeated, *([] if durable is None else [durable])}
            if waiting:
                _, late = await asyncio.wait(waiting, timeout=None if timeout_ms is None else timeout_ms / 1000)
                if late:
                    assert timeout_ms is not None
                    raise not_acknowledged(timeout_ms)
        if durable is not None:
            await durable
        self._filesystem.reached("produce.durable")

    async def init_producer(
        self, context: RequestContext, producer_id: int | None = None, producer_epoch: int = -1
    ) -> ProducerId:
        """A new id for an idempotent producer with epoch 0; for an id and its epoch the same with the next epoch.

        After epoch 32767 it is a new id, as Kafka's producers without a transactional id have it (KIP-360). Raises
        InvalidProducerRequestError for an id that was never handed out, ClusterAuthorizationError.
        """
        self._authorizer.require_cluster(context, Operation.IDEMPOTENT_WRITE)
        self._admission.require_ready()
        if producer_id is not None:
            self._require_issued(producer_id)
            if producer_epoch < PRODUCER_EPOCH_MAX:
                return ProducerId(producer_id, producer_epoch + 1)
        return ProducerId(await self._coordinator.new_producer_id(), 0)

    def _require_issued(self, producer_id: int) -> None:
        # Such an id may be issued later: its producer's batches would then be taken for repetitions.
        if not self._coordinator.is_issued(producer_id):
            raise InvalidProducerRequestError(
                f"Producer id {producer_id} was not issued by this store: ask POST /producers for one."
            )

    async def _encode(
        self, topic: Topic, records: Records, partition: int | None, sticky: int
    ) -> tuple[list[PartitionBatch], list[pa.Buffer]]:
        def encode() -> tuple[list[PartitionBatch], list[pa.Buffer]]:
            parts = split(topic, records, partition, sticky)
            return parts, [encode_payload(p.batch) if p.verbatim is None else p.verbatim for p in parts]

        if isinstance(records, DecodedRecords) and records.nbytes > _ENCODE_IN_THREAD_BYTES:
            return await asyncio.get_running_loop().run_in_executor(self._encoders, encode)
        return encode()

    def _append(
        self,
        topic: Topic,
        parts: Sequence[PartitionBatch],
        payloads: Sequence[pa.Buffer],
        claims: Sequence[Claim],
        new: Sequence[int],
    ) -> tuple[asyncio.Future[list[FrameLocation]] | None, list[int]]:
        """Append the ``new`` ones of ``parts``; the base offset of each part, NO_OFFSET for one that failed."""
        base_offsets = [NO_OFFSET if c.stored is None else c.stored.batch.base_offset for c in claims]
        if not new:
            return None, base_offsets
        self._admission.require_room(topic, sum([len(payloads[at]) for at in new]))
        # No await in here: the order of offsets is the order of frames in the journal.
        frames: list[Frame] = []
        last: dict[int, Frame] = {}
        for at in new:
            part, payload = parts[at], payloads[at]
            frame = topic.partitions[part.partition].next_frame(
                part.batch,
                payload,
                inflated_bytes=payload.size if part.verbatim is None else part.batch.nbytes,
                log_append_time=topic.config.log_append_time,
                after=last.get(part.partition),
                identity=claims[at].identity,
            )
            last[part.partition] = frame
            frames.append(frame)
            base_offsets[at] = frame.header.base_offset
        durable = self._journal.append(frames)
        self._appended(topic)
        for at, frame in enumerate(frames):
            topic.partitions[frame.header.partition].track(frame, durable, at)
        durable.add_done_callback(lambda _: _complete_appends(topic, last))
        return durable, base_offsets


def _complete_appends(topic: Topic, partitions: Iterable[int]) -> None:
    for partition in partitions:
        topic.partitions[partition].complete_appends()


def not_acknowledged(timeout_ms: int) -> RequestTimedOutError:
    return RequestTimedOutError(
        f"The records were not acknowledged within {timeout_ms} ms; they may or may not be stored."
    )
