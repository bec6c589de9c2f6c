"""Appends for partitions that other brokers lead: a request is divided by leader, and the responses are combined.

The broker that a client has asked splits and encodes the records. The leaders claim, admit and append them (APPEND of
the peer protocol), one message each, all at once.

Invariants: all records of a partition go to one broker, in their order. A part that was not sent has an error of the
kind "nothing was stored", a part without a response one of the kind "unknown". Nothing is sent a second time.
"""

import asyncio
import functools
from collections.abc import Awaitable, Collection, Sequence
from typing import Final

from logstore.broker.context import RequestContext
from logstore.broker.elsewhere.division import DividedRequest, Division
from logstore.broker.elsewhere.forwarding import Router
from logstore.broker.elsewhere.nobody import Appends, PeerRequests
from logstore.broker.produce.appends import PreparedRequest, not_acknowledged
from logstore.broker.produce.result import NO_OFFSET
from logstore.errors import (
    LeaderNotAvailableError,
    LogStoreError,
    MalformedMessageError,
    PeerUnavailableError,
    RequestTimedOutError,
    ThrottledError,
    UnknownTopicIdError,
)
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.records.batch import EncodedBatch
from logstore.records.batch_identity import NO_IDENTITY
from logstore.replication.protocol import (
    Append,
    AppendPart,
    MessageType,
    decode_appended,
    encode_append,
)

# Joined requests have their own time-outs at the client's broker, and the leader must not give up earlier.
_LONGEST_MS: Final = 300_000
# The leader's time-out error says more than one from here, so it gets this much extra time.
_ANSWER_MS: Final = 1_000


class RemoteAppends(Appends):
    """Sends appends to other leaders. ``bytes_max`` bounds records that wait to be sent and need no response
    (acks=0).
    """

    def __init__(self, router: Router, peers: PeerRequests, bytes_max: int) -> None:
        self._router = router
        self._peers = peers
        self._bytes_max = bytes_max
        self._unanswered_bytes = 0
        self._sending: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        if self._sending:
            await asyncio.wait(self._sending)

    def not_led(self, requests: Sequence[PreparedRequest]) -> Collection[PartitionLog]:
        return [
            one.topic.partitions[part.partition]
            for one in requests
            for part in one.parts
            if _is_elsewhere(one.topic, part.partition)
        ]

    def divide(self, context: RequestContext, requests: Sequence[PreparedRequest]) -> Division | None:
        # Parts without a leader, or that are not to be forwarded, have their errors afterwards.
        if not any(_is_elsewhere(one.topic, part.partition) for one in requests for part in one.parts):
            return None
        division = Division(functools.partial(self._send, context), requests)
        for request, one in zip(division.requests, requests, strict=True):
            here: list[int] = []
            for at, part in enumerate(one.parts):
                if not _is_elsewhere(one.topic, part.partition):
                    here.append(at)
                    continue
                leader = self._router.leader(one.topic, part.partition)
                if leader == self._router.broker_id:
                    here.append(at)  # it is about to lead, or will soon learn that it does not
                elif (refusal := self._router.refusal(one.topic, part.partition, context)) is not None:
                    request.place(at, NO_OFFSET, refusal, repeated=False)
                else:
                    division.elsewhere.setdefault(leader, []).append((request, at, _encoded(one, at)))
            if here:
                division.add_here(request, one, here)
        return division

    def _send(
        self, context: RequestContext, division: Division, acks: int, timeout_ms: int | None
    ) -> Awaitable[object]:
        size = sum([part.inflated_bytes for parts in division.elsewhere.values() for _, _, part in parts])
        if acks == 0 and self._unanswered_bytes and self._unanswered_bytes + size > self._bytes_max:
            raise ThrottledError(
                f"{self._unanswered_bytes} bytes wait for other brokers; queued.max.request.bytes is "
                f"{self._bytes_max}. Send less, or try again in a moment."
            )
        tasks = []
        for leader, parts in division.elsewhere.items():
            append = Append(
                acks, timeout_ms or _LONGEST_MS, str(context.principal), context.client_id, [part for *_, part in parts]
            )
            places = [(request, at) for request, at, _ in parts]
            tasks.append(asyncio.create_task(self._append(leader, append, places)))
        division.elsewhere.clear()  # the tasks hold the records until they are sent
        if acks != 0:
            return asyncio.gather(*tasks)
        self._unanswered_bytes += size
        whole = asyncio.ensure_future(self._end_unanswered(tasks, size))
        self._sending.add(whole)
        whole.add_done_callback(self._sending.discard)
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def _end_unanswered(self, tasks: "list[asyncio.Task[None]]", size: int) -> None:
        # There may be no tasks: the partitions have no leader, or this broker now leads all of them.
        await asyncio.gather(*tasks, return_exceptions=True)
        self._unanswered_bytes -= size

    async def _append(self, leader: int, append: Append, places: list[tuple[DividedRequest, int]]) -> None:
        body, count, timeout_ms = encode_append(append), len(append.parts), append.timeout_ms
        del append
        try:
            answer = await self._peers.request(
                leader, MessageType.APPEND, body, timeout_s=(timeout_ms + _ANSWER_MS) / 1000
            )
            outcomes = decode_appended(answer)
            if len(outcomes) != count:
                raise MalformedMessageError(f"Broker {leader} answered for {len(outcomes)} of {count} parts.")
        except LogStoreError as error:
            refusal = _refusal(leader, error, timeout_ms)
            for request, at in places:
                request.refuse(at, refusal)
            return
        for (request, at), outcome in zip(places, outcomes, strict=True):
            why = None if outcome.error is None else _refusal(leader, outcome.error, timeout_ms)
            request.place_elsewhere(at, outcome.base_offset, why, repeated=outcome.repeated)


def _is_elsewhere(topic: Topic, partition: int) -> bool:
    return 0 <= partition < len(topic.partitions) and not topic.partitions[partition].is_leader


def _encoded(one: PreparedRequest, at: int) -> AppendPart:
    part, payload = one.parts[at], one.payloads[at]
    facts = EncodedBatch.of(part.batch, len(payload) if part.verbatim is None else part.batch.nbytes)
    return AppendPart(
        one.topic.topic_id,
        part.partition,
        NO_IDENTITY if one.identities is None else one.identities[at],
        facts.num_rows,
        facts.untimed_count,
        facts.max_timestamp_ms,
        facts.nbytes,
        memoryview(payload),
    )


def _refusal(leader: int, error: LogStoreError, timeout_ms: int) -> LogStoreError:
    """Return the error of records that went to ``leader``, or should have."""
    match error:
        case PeerUnavailableError() if error.nothing_sent:
            return LeaderNotAvailableError(
                f"Broker {leader} leads the partition, and cannot be reached: {error.message}. Nothing was stored: try "
                "again."
            )
        case PeerUnavailableError():
            return RequestTimedOutError(f"{not_acknowledged(timeout_ms).message} {error.message}")
        case UnknownTopicIdError():
            # It is starting, or learns of the topic's creation or deletion a little later than this broker.
            return LeaderNotAvailableError(f"Broker {leader} leads the partition, and is not ready: {error.message}")
        case MalformedMessageError():
            return RequestTimedOutError(f"The records may or may not be stored: {error.message}")
        case _:
            return error
