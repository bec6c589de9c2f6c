"""An append to the journal: the frames of one or several produce requests, and the requests that wait for them.

Invariant: a frame that its partition log tracks is handed to the journal in the same step of the loop, and the log
learns its outcome before any request that waits.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from logstore.broker.produce.idempotence import OF_A_PARTITION, Claim
from logstore.broker.produce.result import NO_OFFSET, PartitionResponse, ProduceResult
from logstore.errors import LogStoreError, RequestTimedOutError
from logstore.filesystem import Buffer
from logstore.journal.frame import Frame, FrameLocation
from logstore.log.acknowledgements import Acknowledgement
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.observability import PRODUCED_BYTES, PRODUCED_RECORDS, REPLAYED_RECORDS
from logstore.records.batch import PartitionBatch, Records
from logstore.records.batch_identity import BatchIdentity, IdempotencyKey, ProducerIdentity


class ProduceRequest(NamedTuple):
    """Records for one topic; the fields are the arguments of ``Producing.produce``."""

    topic: Topic
    records: Records
    partition: int | None = None
    identity: ProducerIdentity | IdempotencyKey | None = None


class PreparedRequest(NamedTuple):
    """A request that was checked, and its records by partition, as the journal stores them.

    ``identities`` has each part's; None if the request has none. With ``is_kafkas`` the parts are record batches of a
    Kafka client, one per partition, and each has its own outcome: a time-out or want of room affects no other.
    """

    topic: Topic
    identities: Sequence[BatchIdentity] | None
    num_records: int
    nbytes: int
    parts: list[PartitionBatch]
    payloads: list[Buffer | pa.Buffer]
    is_kafkas: bool = False


class AppendedRequest:
    """A request whose records were appended: its parts by partition and count, without the records."""

    def __init__(self, one: PreparedRequest, claims: list[Claim], new: list[int]) -> None:
        self.topic = one.topic
        self.claims = claims
        self.new = new
        self.base_offsets = [NO_OFFSET if c.stored is None else c.stored.base_offset for c in claims]
        #: The waits of single parts: those stored before and not acknowledged yet, and all of Kafka's.
        self.waits: dict[int, Acknowledgement] = {}
        #: The append times of Kafka's new parts.
        self.append_times_ms: dict[int, int] = {}
        self.is_kafkas = one.is_kafkas
        self.throttle_ms = 0
        self.new_bytes = sum([one.parts[at].batch.nbytes for at in new]) if len(new) < len(one.parts) else 0
        self._parts = [(part.partition, part.batch.num_rows, part.rows) for part in one.parts]
        self._count = one.num_records
        self._has_identity = one.identities is not None

    def refusals_in_doubt(self) -> list[tuple[int, PartitionLog, int]]:
        """Return parts refused because of a producer's state, if another broker may have replaced this leader and know
        more: the part's number, its log, and the leader epoch.
        """
        found = []
        for at, claimed in enumerate(self.claims):
            if isinstance(claimed.error, OF_A_PARTITION):
                log = self.topic.partitions[self._parts[at][0]]
                if log.is_leader and log.require_leader().in_sync_replicas is not None:
                    found.append((at, log, log.leader_epoch))
        return found

    def refuse(self, at: int, error: LogStoreError) -> None:
        """Replace the error of part ``at``, which is not stored."""
        self.claims[at] = Claim(self.claims[at].identity, error=error)

    def refuse_new(self, error: LogStoreError) -> None:
        """Refuse all parts that were to be appended."""
        for at in self.new:
            self.refuse(at, error)
        self.new.clear()
        self.new_bytes = 0

    def wait_for_repeated(self, acks: int) -> None:
        """Wait for the parts that were stored before as well: ``acks`` counts for them as for new parts."""
        for at, claimed in enumerate(self.claims):
            if claimed.stored is not None:
                log = self.topic.partitions[self._parts[at][0]]
                end = claimed.stored.base_offset + claimed.stored.record_count
                if end > log.high_watermark:
                    self.waits[at] = wait = Acknowledgement(1)
                    log.require_leader().acknowledge(end, acks, wait)

    def result(self) -> ProduceResult:
        """Return the result; call it after the wait."""
        responses = [
            PartitionResponse(partition, base_offset, count, rows, claimed.error)
            for (partition, count, rows), base_offset, claimed in zip(
                self._parts, self.base_offsets, self.claims, strict=True
            )
        ]
        for at, wait in self.waits.items():
            if wait.future.done() and isinstance(failure := wait.future.exception(), LogStoreError):
                responses[at] = dataclasses.replace(responses[at], base_offset=NO_OFFSET, error=failure)
        new_records = sum([responses[at].count for at in self.new if responses[at].error is None])
        PRODUCED_RECORDS.count(self.topic, new_records)
        PRODUCED_BYTES.count(self.topic, self.new_bytes)
        replayed = False
        if self._has_identity:
            REPLAYED_RECORDS.count(self.topic, sum(r.count for r in responses if r.error is None) - new_records)
            replayed = not self.new and all(r.error is None for r in responses)
        return ProduceResult(tuple(responses), self._count, replayed, self.throttle_ms)


class AppendGroup:
    """The frames of one append. ``told`` passes their outcome to the partition logs. ``acknowledgement`` is for all new
    parts; None if no request waits, or if each part has its own wait.
    """

    __slots__ = ("_acknowledgement", "_logs", "frames")

    def __init__(self, acknowledgement: Acknowledgement | None) -> None:
        self._acknowledgement = acknowledgement
        self._logs: list[PartitionLog] = []
        self.frames: list[Frame] = []

    def add(self, one: PreparedRequest, request: AppendedRequest, acks: int) -> None:
        """Give offsets to the new parts of a request."""
        partitions, log_append_time = one.topic.partitions, one.topic.config.log_append_time
        is_kafkas = one.is_kafkas
        for at in request.new:
            part, payload = one.parts[at], one.payloads[at]
            log = partitions[part.partition]
            frame = log.next_frame(
                part.batch,
                payload,
                inflated_bytes=len(payload) if part.verbatim is None else part.batch.nbytes,
                log_append_time=log_append_time,
                identity=request.claims[at].identity,
            )
            log.track(frame)
            self._logs.append(log)
            self.frames.append(frame)
            request.base_offsets[at] = frame.header.base_offset
            acknowledgement = self._acknowledgement
            if is_kafkas:
                request.append_times_ms[at] = frame.header.append_time_ms
                if acks != 0:
                    request.waits[at] = acknowledgement = Acknowledgement(1)
            if acknowledgement is not None:
                log.require_leader().acknowledge(frame.header.end_offset, acks, acknowledgement)

    def told(self, locations: Sequence[FrameLocation], error: LogStoreError | None) -> None:
        """Pass on the outcome: the journal has stored all frames, or none."""
        if error is None:
            for log, frame, location in zip(self._logs, self.frames, locations, strict=True):
                log.stored(frame, location)
            return
        if self._acknowledgement is not None:
            self._acknowledgement.fail(error)
        for log, frame in zip(self._logs, self.frames, strict=True):
            log.failed(frame, error)


class Appended(NamedTuple):
    """Requests that are appended together."""

    requests: list[AppendedRequest]
    #: The wait for all new parts except Kafka's; None if there is nothing to wait for.
    acknowledgement: Acknowledgement | None


def time_out(waits: Sequence[Acknowledgement], timeout_ms: int) -> None:
    """Fail the acknowledgements that still wait."""
    for wait in waits:
        wait.fail(not_acknowledged(timeout_ms))


def not_acknowledged(timeout_ms: int) -> RequestTimedOutError:
    return RequestTimedOutError(
        f"The records were not acknowledged within {timeout_ms} ms; they may or may not be stored."
    )
