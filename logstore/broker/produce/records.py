"""Producing: records are split, encoded, claimed, given offsets and handed to the journal, then waited for.

In a cluster, batches for partitions that other brokers lead go there once they are encoded (``remote_appends``).
Invariants: between giving out offsets and handing the frames to the journal nothing awaits, so that the order of
offsets is the order of frames. A request with an identity is also claimed and appended in one step.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from logstore.broker.admission import Admission
from logstore.broker.authorizer import Authorizer, Operation, ResourceType
from logstore.broker.context import INTERNAL, RequestContext
from logstore.broker.elsewhere.nobody import Elsewhere
from logstore.broker.produce.appends import (
    Appended,
    AppendedRequest,
    AppendGroup,
    PreparedRequest,
)
from logstore.broker.produce.idempotence import Claim, claim, identities_of, require_partitions_named
from logstore.broker.produce.request_parts import batch_refusal, check_batch_keys, check_keys, split, sticky_partition
from logstore.broker.produce.result import ProduceResult
from logstore.broker.quotas import QuotaKind
from logstore.cluster.cluster_state import ClusterState
from logstore.errors import (
    LogStoreError,
    NotLeaderOrFollowerError,
    ThrottledError,
    UnknownProducerIdError,
)
from logstore.filesystem import Buffer, FileSystem
from logstore.journal.journal import Journal
from logstore.limits import MIB, PRODUCER_EPOCH_MAX
from logstore.log.acknowledgements import Acknowledgement
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.records.batch import (
    DecodedRecords,
    EncodedBatch,
    KafkaBatch,
    PartitionBatch,
    Records,
    check_record_sizes,
)
from logstore.records.batch_identity import BatchIdentity, IdempotencyKey, ProducerIdentity
from logstore.records.payload import decode_payload, encode_payload
from logstore.threads import threads

if TYPE_CHECKING:  # one node imports nothing of the traffic between brokers
    from logstore.broker.elsewhere.division import Division

# Above this, splitting and encoding a request would hold up the event loop for milliseconds.
_ENCODE_IN_THREAD_BYTES = 1 * MIB


class ProducerId(NamedTuple):
    producer_id: int
    producer_epoch: int


#: Called with a request's topics, for each the partitions that are led here and the identities of their batches.
BeforeClaim = Callable[
    [RequestContext, Sequence[tuple[Topic, Sequence[int], Sequence[BatchIdentity] | None]]], Awaitable[None]
]


class Producing:
    """Produces records. ``appended`` is called with the topic and the partitions of each append."""

    def __init__(
        self,
        journal: Journal,
        admission: Admission,
        authorizer: Authorizer,
        cluster_state: ClusterState,
        filesystem: FileSystem,
        elsewhere: Elsewhere,
        appended: Callable[[Topic, Iterable[int]], None],
    ) -> None:
        self._journal = journal
        self._admission = admission
        self._authorizer = authorizer
        self._cluster_state = cluster_state
        self._filesystem = filesystem
        #: The way to the leaders of other partitions.
        self._elsewhere = elsewhere.appends
        self._wait_until_led = elsewhere.router.until_led
        self._appended = appended
        #: Steps that must know of a request's partitions before they change. They are awaited in turn, between the
        #: check and encoding of the request and its claim of offsets. An error refuses the request.
        self.before_claim: list[BeforeClaim] = []
        # Turns are counted per topic. A common count would send alternating topics to one partition each.
        self._sticky: WeakKeyDictionary[Topic, Iterator[int]] = WeakKeyDictionary()
        # Few threads are enough, because each holds a request twice: as sent and as stored.
        self._encoders = threads().pool(2, "encode")

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
        """Append a request's records. Each partition gets all of its records, with consecutive offsets, or none.

        A partition that fails stops no other: its PartitionResponse has the error. ``acks``: 0 returns once they are
        queued, 1 when they are durable here, -1 (all) on all in-sync replicas. Only INTERNAL writes to the store's own
        topics. Requests of up to 1 MiB are appended in the order of the calls. With an ``identity``, batches that are
        already stored are not stored again; the result has their offsets, whatever the topic's configuration is now.

        Errors of a partition: UnknownPartitionError, QuarantinedError, UnknownTopicError (deleted in the meantime);
        with sequence numbers OutOfOrderSequenceError, DuplicateSequenceError, InvalidProducerEpochError. Raises errors
        of the whole request: TopicAuthorizationError, InvalidTopicError, InvalidRequestError, InvalidRecordError (a
        null key in a compacted topic), ThrottledError (the journal is at ``journal.max.bytes``), BrokerNotReadyError,
        StorageFullError, StorageError, RequestTimedOutError; with an ``identity`` also InvalidProducerRequestError,
        IdempotencyKeyReusedError, and RecordTooLargeError (without one the decoder has checked the sizes).
        """
        prepared = [await self._prepare(context, topic, records, partition, identity)]
        del records  # the journal holds them until the fsync
        if (division := self._elsewhere.divide(context, prepared)) is not None:
            prepared.clear()
            return await self._append_everywhere(context, division, acks, timeout_ms)
        (appended,) = await self.append_here(context, prepared, acks, timeout_ms)
        return appended.result()

    async def _prepare(
        self,
        context: RequestContext,
        topic: Topic,
        records: Records,
        partition: int | None,
        identity: ProducerIdentity | IdempotencyKey | None,
    ) -> PreparedRequest:
        """Check a request, and encode its records."""
        self._authorizer.require(context, Operation.WRITE, ResourceType.TOPIC, topic.name)
        self._admission.require_ready()
        if context is not INTERNAL:
            topic.require_not_internal()
            self._admission.require_quota(context, QuotaKind.PRODUCED_BYTES)
        if identity is None:
            check_keys(topic, records)
        if isinstance(identity, ProducerIdentity):
            await self.require_issued(identity.producer_id)
        sticky = self._sticky_partition(topic, records, partition, identity)
        parts, payloads = await self._encode(topic, records, partition, sticky)
        self._filesystem.reached("produce.parsed")
        return PreparedRequest(topic, identities_of(parts, identity), records.num_rows, records.nbytes, parts, payloads)

    async def append_here(
        self, context: RequestContext, prepared: list[PreparedRequest], acks: int, timeout_ms: int | None
    ) -> list[AppendedRequest]:
        """Append requests whose partitions this broker leads, and wait as ``acks`` says. Raises the errors of
        ``produce``.
        """
        appended = await self.append(context, prepared, acks)
        for one in appended.requests:
            one.require_new()
        requests = await self.acknowledged(appended, timeout_ms)
        for one in requests:
            one.require_new()
        return requests

    async def append(self, context: RequestContext, prepared: list[PreparedRequest], acks: int) -> Appended:
        """Append requests whose partitions this broker leads. Afterwards the journal has them, in the order of the
        calls unless a call waits for a partition's leader or a step.
        """
        if logs := self._elsewhere.not_led(prepared):
            await self._wait_until_led(logs)
        for step in self.before_claim:
            await step(context, [(one.topic, [p.partition for p in one.parts], one.identities) for one in prepared])
        self._admission.require_ready()
        # From here to the append nothing awaits, so that the second of two tries of a request finds the first.
        appended = self._append(context, prepared, acks)
        prepared.clear()  # the journal holds the records until the fsync
        return appended

    async def acknowledged(self, appended: Appended, timeout_ms: int | None) -> list[AppendedRequest]:
        """Wait for appended requests, and for those that they repeat. Call it at once. A failure is the error of its
        part.
        """
        in_doubt = [(one, one.refusals_in_doubt()) for one in appended.requests]
        if appended.whole is not None:
            timer = None
            if timeout_ms is not None:
                timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, appended.time_out, timeout_ms)
            try:
                await appended.whole.future
            finally:
                if timer is not None:
                    timer.cancel()
            self._filesystem.reached("produce.durable")
        for one, refusals in in_doubt:
            await self._confirm(one, refusals)
        return appended.requests

    async def _confirm(self, one: AppendedRequest, refusals: Sequence[tuple[int, PartitionLog, int]]) -> None:
        """Confirm refusals because of a producer's numbers, which would end the producer's identity. A leader that was
        replaced and does not know it yet lacks batches, so its refusal counts only if it still leads. Otherwise the
        producer has to try again.
        """
        for (log, epoch), parts in itertools.groupby(refusals, lambda refusal: refusal[1:]):
            if not await self._cluster_state.leads_still(log.topic_id, log.partition, epoch):
                error = NotLeaderOrFollowerError(
                    f"Broker {self._cluster_state.broker_id} cannot tell whether it leads {log.topic}-{log.partition} "
                    "still: nothing was stored. Look up the leader, and try again there."
                )
                for at, *_ in parts:
                    one.refuse(at, error)

    async def _append_everywhere(
        self, context: RequestContext, division: "Division", acks: int, timeout_ms: int | None
    ) -> ProduceResult:
        """Append each part at its leader, all at once. A refusal by one broker is the error of its parts."""
        sent = division.send(acks, timeout_ms)
        if division.here:
            try:
                appended = await self.append_here(context, division.here, acks, timeout_ms)
                division.answer_here(appended)
            except LogStoreError as error:
                division.refuse_here(error)
        await sent
        (one,) = division.requests
        return one.result(self._admission.charge(context, QuotaKind.PRODUCED_BYTES, one.bytes_elsewhere))

    def _sticky_partition(
        self, topic: Topic, records: Records, partition: int | None, identity: ProducerIdentity | IdempotencyKey | None
    ) -> int:
        """Return the partition for records whose producer leaves it open. A retry goes where the first try went."""
        if partition is not None:
            return partition
        if identity is None:
            return sticky_partition(topic, next(self._sticky.setdefault(topic, itertools.count())))
        if isinstance(identity, IdempotencyKey):
            return identity.partition_hash
        require_partitions_named(records, partition)
        return 0

    async def init_producer(
        self, context: RequestContext, producer_id: int | None = None, producer_epoch: int = -1
    ) -> ProducerId:
        """Return a new id for an idempotent producer with epoch 0; for an id and its epoch, the same id with the next
        epoch.

        After epoch 32767 it is a new id, as for Kafka's producers without a transactional id (KIP-360). Raises
        UnknownProducerIdError for an id that was never issued, and ClusterAuthorizationError.
        """
        self._authorizer.require_cluster(context, Operation.IDEMPOTENT_WRITE)
        self._admission.require_ready()
        if producer_id is not None:
            await self.require_issued(producer_id)
            if producer_epoch < PRODUCER_EPOCH_MAX:
                return ProducerId(producer_id, producer_epoch + 1)
        return ProducerId(await self._cluster_state.new_producer_id(), 0)

    async def require_issued(self, producer_id: int) -> None:
        """Raise UnknownProducerIdError for an id that this store has not issued."""
        # Such an id may be issued later: its producer's batches would then count as repetitions.
        if not self._cluster_state.is_issued(producer_id):
            await self._cluster_state.refresh_producer_ids()
        if not self._cluster_state.is_issued(producer_id):
            raise UnknownProducerIdError(
                f"Producer id {producer_id} was not issued by this store: ask POST /producers for one."
            )

    async def _encode(
        self, topic: Topic, records: Records, partition: int | None, sticky: int
    ) -> tuple[list[PartitionBatch], list[Buffer | pa.Buffer]]:
        def encode() -> tuple[list[PartitionBatch], list[Buffer | pa.Buffer]]:
            parts = split(topic, records, partition, sticky)
            return parts, [encode_payload(p.batch) if p.verbatim is None else p.verbatim for p in parts]

        if isinstance(records, DecodedRecords) and records.nbytes > _ENCODE_IN_THREAD_BYTES:
            return await asyncio.get_running_loop().run_in_executor(self._encoders, encode)
        return encode()

    def _append(self, context: RequestContext, prepared: Sequence[PreparedRequest], acks: int) -> Appended:
        """Claim the parts of all requests, give the new ones offsets, and hand them to the journal as one append."""
        requests = [self._claim(one, acks) for one in prepared]
        for one, request in zip(prepared, requests, strict=True):
            if request.new:
                try:
                    self._admission.require_room(one.topic, sum([len(one.payloads[at]) for at in request.new]))
                except ThrottledError as error:
                    request.refuse_new(error)
        count = sum([len(request.new) for request in requests])
        if count and (refusal := self._journal.refusal) is not None:
            raise refusal
        repeated = [request.repeated() for request in requests] if acks != 0 else []
        waits = 0 if acks == 0 else count + sum(map(len, repeated))
        whole = Acknowledgement(waits) if waits else None
        if count:
            # From here on nothing raises: the journal reports for every tracked frame whether it is stored or has
            # failed.
            append = AppendGroup(whole)
            for one, request in zip(prepared, requests, strict=True):
                append.add(one, request, acks)
            self._journal.store(append.frames, append.on_stored)
        if whole is not None:
            for request, parts in zip(requests, repeated, strict=True):
                for at, log, end_offset in parts:
                    request.wait_for(at, log, end_offset, acks, whole)
        for one, request in zip(prepared, requests, strict=True):
            if request.new:
                self._appended(one.topic, [one.parts[at].partition for at in request.new])
            # Clients that do not wait for durability are also charged.
            request.throttled(self._admission.charge(context, QuotaKind.PRODUCED_BYTES, request.new_bytes))
        return Appended(requests, whole)

    def _claim(self, one: PreparedRequest, acks: int) -> AppendedRequest:
        """Claim the parts of a request. Only new ones have to meet the current configuration of the topic: of Kafka's
        record batches each by itself, of records all or none.
        """
        topic, parts = one.topic, one.parts
        claims = claim(topic, parts, one.identities, acks)
        for at, claimed in enumerate(claims):
            batch = parts[at].batch
            if claimed.is_new and isinstance(batch, KafkaBatch):
                refusal = batch_refusal(topic, batch, len(one.payloads[at]))
                claims[at] = Claim(claimed.identity, error=refusal)
        request = AppendedRequest(one, claims)
        try:
            self._check_new(one, request.new)
        except LogStoreError as error:
            request.refuse_new(error)
        return request

    def _check_new(self, one: PreparedRequest, new: Sequence[int]) -> None:
        """Raise RecordTooLargeError and InvalidRecordError. The decoder has checked the sizes of records without an
        identity; keys may have become necessary while they were encoded.
        """
        topic = one.topic
        if one.identities is None and not topic.config.compacted:
            return
        for at in new:
            part = one.parts[at]
            if isinstance(part.batch, KafkaBatch):
                continue
            batch = decode_payload(one.payloads[at]) if isinstance(part.batch, EncodedBatch) else part.batch
            rows = np.arange(batch.num_rows) if part.rows is None else part.rows
            if one.identities is not None:
                check_record_sizes(batch, topic.config.max_message_bytes, rows)
            check_batch_keys(topic, batch, rows)
