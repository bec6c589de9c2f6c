"""The leader's responses to other brokers: appends that they forward (APPEND), and offsets (DESCRIBE).

The client's broker has checked and encoded the records; this one authorises again, claims, admits and appends.
Invariants: the work before the first await of ``append`` reaches the journal, so that messages of a connection are
appended in their order, even after one that waits for its topic. A payload is decoded only for checks that only the
leader can make. No quota is charged here.
"""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, Protocol
from uuid import UUID

import pyarrow as pa

from logstore.broker.admission import Admission
from logstore.broker.authorizer import Authorizer, Operation, ResourceType
from logstore.broker.context import INTERNAL, Forwarding, Principal, RequestContext
from logstore.broker.elsewhere.nobody import Discovery
from logstore.broker.produce.appends import PreparedRequest
from logstore.broker.produce.records import Producing
from logstore.errors import LeaderNotAvailableError, LogStoreError, MalformedMessageError, UnknownTopicIdError
from logstore.filesystem import Buffer
from logstore.limits import REQUEST_RECORDS_MAX
from logstore.log.topic import Topic
from logstore.records.batch import EncodedBatch, PartitionBatch
from logstore.records.batch_identity import NO_IDENTITY
from logstore.replication.protocol import (
    Append,
    AppendedPart,
    AppendPart,
    DescribedRow,
    decode_append,
    decode_describe,
    encode_appended,
    encode_described,
)

_ACKS: Final = (-1, 0, 1)
#: Seconds that an append waits for a topic that the other broker already knows.
_APPEARS_S: Final = 5.0


class TopicsById(Protocol):
    """The lookups of ``Topics``."""

    def by_id(self, topic_id: UUID) -> Topic:
        """Return the topic. Raises UnknownTopicIdError."""
        ...

    def knows_id(self, topic_id: UUID) -> bool: ...


class PeerHandlers:
    """Answers other brokers. ``topics`` finds a topic by its id."""

    def __init__(
        self,
        producing: Producing,
        topics: TopicsById,
        discovery: Discovery,
        admission: Admission,
        authorizer: Authorizer,
    ) -> None:
        self._producing = producing
        self._topics = topics
        self._discovery = discovery
        #: Appends that wait for topics, and those behind them, in their order.
        self._held_up = asyncio.Lock()
        self._admission = admission
        self._authorizer = authorizer

    async def append(self, body: Buffer) -> bytes:
        """Return APPENDED for the body of an APPEND. Raises the errors that refuse all of it, and
        MalformedMessageError.
        """
        append = decode_append(body)
        context = _context(append)
        _check(append)
        topic_ids = {part.topic_id for part in append.parts}
        if self._held_up.locked() or not all(map(self._topics.knows_id, topic_ids)):
            async with self._held_up:
                await self._discovery.until_ids_known(topic_ids, _APPEARS_S)
        self._admission.require_ready()
        outcomes: list[AppendedPart | None] = [None] * len(append.parts)
        requests: list[PreparedRequest] = []
        places: list[list[int]] = []
        for topic_id, group in _by_request(append.parts):
            try:
                topic = self._topics.by_id(topic_id)
                self._authorizer.require(context, Operation.WRITE, ResourceType.TOPIC, topic.name)
                if context is not INTERNAL:
                    topic.require_not_internal()
            except UnknownTopicIdError as error:
                # The other broker knows the topic: it is new, or will soon be known as deleted there.
                for at in group:
                    outcomes[at] = AppendedPart(LeaderNotAvailableError(f"{error.message} Try again."))
                continue
            except LogStoreError as error:
                for at in group:
                    outcomes[at] = AppendedPart(error)
                continue
            requests.append(_request(topic, [append.parts[at] for at in group]))
            places.append(group)
        acks, timeout_ms = append.acks, append.timeout_ms
        del append, body  # the journal holds the records until the fsync
        if requests:
            appended = await self._producing.append_here(context, requests, acks, timeout_ms)
            for group, one in zip(places, appended, strict=True):
                for at, response, claimed in zip(group, one.result().partitions, one.claims, strict=True):
                    outcomes[at] = AppendedPart(
                        response.error, response.base_offset, repeated=claimed.stored is not None
                    )
        assert None not in outcomes
        return encode_appended([one for one in outcomes if one is not None])

    async def describe(self, body: Buffer) -> bytes:
        """Return DESCRIBED for the body of a DESCRIBE."""
        return encode_described([self._described(*asked) for asked in decode_describe(body)])

    def _described(self, topic_id: UUID, partition: int) -> DescribedRow:
        try:
            log = self._topics.by_id(topic_id).partition(partition)
            leadership = log.require_leader()
            leadership.require_settled()
        except LogStoreError as error:
            return DescribedRow(error.kafka_code)
        ends = log.log_start_offset, log.sealed_offset, log.high_watermark, log.log_end_offset, log.last_stable_offset
        return DescribedRow(0, leadership.epoch, *ends, log.unsealed_bytes)


def _context(append: Append) -> RequestContext:
    if append.principal == str(INTERNAL.principal):
        # Joined requests come as INTERNAL: each was authorised where its client has asked.
        return INTERNAL
    kind, _, name = append.principal.partition(":")
    return RequestContext("", append.client_id, "PEER", "", None, Principal(kind, name), Forwarding.DONE)


def _check(append: Append) -> None:
    """Check the lengths and counts that this broker uses; the records were already checked."""
    if append.acks not in _ACKS or not append.parts:
        raise MalformedMessageError(f"APPEND has acks {append.acks} and {len(append.parts)} parts")
    for part in append.parts:
        if (
            not 1 <= part.record_count <= REQUEST_RECORDS_MAX
            or part.untimed_count > part.record_count
            or not part.inflated_bytes
        ):
            raise MalformedMessageError(
                f"a part of APPEND has {part.record_count} records, {part.untimed_count} without a timestamp, and "
                f"{part.inflated_bytes} bytes"
            )
        try:
            message = pa.ipc.read_message(pa.py_buffer(part.payload))
        except (pa.ArrowException, EOFError, OSError) as error:
            raise MalformedMessageError(f"a part of APPEND is no Arrow message: {error}") from error
        if message.type != "record batch":
            raise MalformedMessageError(f"a part of APPEND is an Arrow message of the type {message.type!r}")


def _by_request(parts: Sequence[AppendPart]) -> Iterator[tuple[UUID, list[int]]]:
    """Yield the numbers of the parts that are claimed together: those of one topic, and of one producer or key."""
    numbered = enumerate(parts)
    grouped = groupby(numbered, lambda one: (one[1].topic_id, one[1].identity.owner, one[1].identity.epoch))
    for (topic_id, _, _), group in grouped:
        yield topic_id, [at for at, _ in group]


def _request(topic: Topic, parts: Sequence[AppendPart]) -> PreparedRequest:
    payloads = [pa.py_buffer(part.payload) for part in parts]
    batches = [
        PartitionBatch(
            part.partition,
            EncodedBatch(part.record_count, part.inflated_bytes, part.untimed_count, part.max_timestamp_ms),
            None,
            payload,
        )
        for part, payload in zip(parts, payloads, strict=True)
    ]
    identities = None if parts[0].identity == NO_IDENTITY else [part.identity for part in parts]
    count, nbytes = sum([part.record_count for part in parts]), sum([part.inflated_bytes for part in parts])
    return PreparedRequest(topic, identities, count, nbytes, batches, payloads)
