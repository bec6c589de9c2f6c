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
from logstore.log.acknowledgements import Acknowledgement, PartAcknowledgement
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.observability import PRODUCED_BYTES, PRODUCED_RECORDS, REPLAYED_RECORDS
from logstore.records.batch import PartitionBatch
from logstore.records.batch_identity import BatchIdentity


class PreparedRequest(NamedTuple):
    """A request that was checked, and its records by partition, as the journal stores them.

    ``identities`` has each part's; None if the request has none.
    """

    topic: Topic
    identities: Sequence[BatchIdentity] | None
    num_records: int
    nbytes: int
    parts: list[PartitionBatch]
    payloads: list[Buffer | pa.Buffer]


class AppendedRequest:
    """A request whose records were appended: its parts by partition and count, without the records. Each part has its
    own outcome.
    """

    def __init__(self, one: PreparedRequest, claims: list[Claim]) -> None:
        self.topic = one.topic
        self.claims = claims
        #: The parts that are appended; the reason why none is.
        self.new = new = [at for at, claimed in enumerate(claims) if claimed.is_new]
        self._refusal: LogStoreError | None = None
        self.base_offsets = [NO_OFFSET if c.stored is None else c.stored.base_offset for c in claims]
        #: The waits of the new parts, and of those that were stored before and are not acknowledged yet.
        self.waits: dict[int, PartAcknowledgement] = {}
        #: The append times of new parts whose records have them.
        self.append_times_ms: dict[int, int] = {}
        self._throttle_ms = 0
        #: The bytes of the new parts. With none repeated or refused they are those of the request as it came.
        self.new_bytes = sum([one.parts[at].batch.nbytes for at in new]) if len(new) < len(claims) else one.nbytes
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
        self._refusal = error
        self.new.clear()
        self.new_bytes = 0

    def throttled(self, throttle_ms: int) -> None:
        """Let the client wait before its next request."""
        self._throttle_ms = throttle_ms

    def require_new(self) -> None:
        """Raise the error of the first part that was to be appended and has failed, or of a repeated part whose time is
        up: records of one request are reported as stored together.
        """
        if self._refusal is not None:
            raise self._refusal
        for at, wait in self.waits.items():
            if wait.error is not None and (at in self.new or isinstance(wait.error, RequestTimedOutError)):
                raise wait.error

    def repeated(self) -> list[tuple[int, PartitionLog, int]]:
        """Return parts that were stored before and are not acknowledged yet: number, log, end offset."""
        found = []
        for at, claimed in enumerate(self.claims):
            if claimed.stored is not None:
                log = self.topic.partitions[self._parts[at][0]]
                end = claimed.stored.base_offset + claimed.stored.record_count
                if end > log.high_watermark:
                    found.append((at, log, end))
        return found

    def wait_for(self, at: int, log: PartitionLog, end_offset: int, acks: int, whole: Acknowledgement) -> None:
        """Let part ``at`` wait for ``end_offset`` as ``acks`` says."""
        self.waits[at] = wait = PartAcknowledgement(whole)
        log.require_leader().acknowledge(end_offset, acks, wait)

    def result(self) -> ProduceResult:
        """Return the result; call it after the wait."""
        responses = [
            PartitionResponse(partition, base_offset, count, rows, claimed.error)
            for (partition, count, rows), base_offset, claimed in zip(
                self._parts, self.base_offsets, self.claims, strict=True
            )
        ]
        for at, wait in self.waits.items():
            if wait.error is not None:
                responses[at] = dataclasses.replace(responses[at], base_offset=NO_OFFSET, error=wait.error)
        new_records = sum([responses[at].count for at in self.new if responses[at].error is None])
        PRODUCED_RECORDS.count(self.topic, new_records)
        PRODUCED_BYTES.count(self.topic, self.new_bytes)
        replayed = False
        if self._has_identity:
            REPLAYED_RECORDS.count(self.topic, sum(r.count for r in responses if r.error is None) - new_records)
            replayed = not self.new and all(r.error is None for r in responses)
        return ProduceResult(tuple(responses), self._count, replayed, self._throttle_ms)


class AppendGroup:
    """The frames of one append. ``on_stored`` passes their outcome to the partition logs. ``whole`` counts the waits of
    all parts down; None if no request waits.
    """

    __slots__ = ("_logs", "_whole", "frames")

    def __init__(self, whole: Acknowledgement | None) -> None:
        self._whole = whole
        self._logs: list[PartitionLog] = []
        self.frames: list[Frame] = []

    def add(self, one: PreparedRequest, request: AppendedRequest, acks: int) -> None:
        """Give offsets to the new parts of a request."""
        partitions, log_append_time = one.topic.partitions, one.topic.config.log_append_time
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
            if log_append_time:
                request.append_times_ms[at] = frame.header.append_time_ms
            if self._whole is not None:
                request.wait_for(at, log, frame.header.end_offset, acks, self._whole)

    def on_stored(self, locations: Sequence[FrameLocation], error: LogStoreError | None) -> None:
        """Pass on the outcome: the journal has stored all frames, or none."""
        if error is None:
            for log, frame, location in zip(self._logs, self.frames, locations, strict=True):
                log.stored(frame, location)
            return
        for log, frame in zip(self._logs, self.frames, strict=True):
            log.failed(frame, error)


class Appended(NamedTuple):
    """Requests that are appended together."""

    requests: list[AppendedRequest]
    #: The wait for all parts; None if there is nothing to wait for.
    whole: Acknowledgement | None

    def time_out(self, timeout_ms: int) -> None:
        """Fail the parts that still wait."""
        for request in self.requests:
            for wait in request.waits.values():
                wait.fail(not_acknowledged(timeout_ms))


def not_acknowledged(timeout_ms: int) -> RequestTimedOutError:
    return RequestTimedOutError(
        f"The records were not acknowledged within {timeout_ms} ms; they may or may not be stored."
    )
