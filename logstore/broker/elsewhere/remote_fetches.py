"""Fetches of partitions that other brokers lead: their leaders answer POST /fetch, with batches as they are stored.

One fetch may have partitions of several leaders. All are asked at once for what they have. If none has news, all are
asked to wait, and the first that has some ends the wait of the others. Invariant: bytes of a response are reserved
before they are read.
"""

import urllib.parse
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from logstore.broker.admission import Reservation
from logstore.broker.context import Forwarding, RequestContext
from logstore.broker.elsewhere.forwarding import NOBODY, Router, no_leader
from logstore.broker.elsewhere.nobody import Fetches
from logstore.broker.fetch.purgatory import FetchLimits, WantedPartition
from logstore.errors import LeaderNotAvailableError, LogStoreError, PeerUnavailableError, UnknownTopicError
from logstore.log.log_reader import FetchResult
from logstore.log.partition_log import PartitionLog
from logstore.protocol.error_codes import error_of
from logstore.protocol.fetch_response import MEDIA_TYPE, PartitionData, read_fetch_response
from logstore.records.where.expression import text_of
from logstore.replication.peer_http import PeerHttp

_OK: Final = 200
#: A partition of a request: its number there, and the wanted records.
Asked = tuple[int, WantedPartition]


class DividedFetch:
    """The partitions of a fetch that other brokers lead, by leader."""

    def __init__(self, http: PeerHttp, context: RequestContext, by_leader: dict[int, list[Asked]]) -> None:
        self._http = http
        self._context = context
        self.by_leader = by_leader

    async def fetch(
        self, leader: int, limits: FetchLimits, max_wait_ms: int, reservation: Reservation
    ) -> dict[int, FetchResult[pa.Buffer] | LogStoreError]:
        """Return news of the leader's partitions by their numbers; an error of the request becomes that of each.

        Records are the content of ``PartitionData``, and are not counted.
        """
        asked = self.by_leader[leader]
        body = msgspec.json.encode(
            {
                "partitions": [
                    {
                        "topic": one.topic.name,
                        "topic_id": str(one.topic.topic_id),
                        "partition": one.log.partition,
                        "offset": one.offset,
                    }
                    for _, one in asked
                ],
                "max_bytes": limits.max_bytes,
                "max_partition_bytes": min(limits.max_partition_bytes, limits.max_bytes),
                "min_bytes": limits.min_bytes,
                "max_wait_ms": max_wait_ms,
                **({} if limits.where is None else {"where": text_of(limits.where.node)}),
            }
        )
        try:
            answer = await self._http.ask(
                leader, "POST", "/fetch", self._context.encode(), body=body, accept=MEDIA_TYPE, reserve=reservation.grow
            )
            content = pa.py_buffer(b"".join(answer.body))
            if answer.status != _OK:
                raise error_of_answer(answer.body)
            return {asked[one.index][0]: _result(one) for one in read_fetch_response(content)}
        except PeerUnavailableError as error:
            refusal = LeaderNotAvailableError(f"Broker {leader} leads the partition: {error.message}")
            return {at: refusal for at, _ in asked}
        except LogStoreError as error:
            return {at: error for at, _ in asked}


class RemoteFetches(Fetches):
    def __init__(self, router: Router, http: PeerHttp) -> None:
        self._router = router
        self._http = http

    def unknown(self, names: Iterable[str]) -> Sequence[str]:
        return self._router.unknown(names)

    def divide(self, context: RequestContext, found: list[WantedPartition | LogStoreError]) -> DividedFetch | None:
        elsewhere: dict[int, list[Asked]] = {}
        for at, one in enumerate(found):
            if not isinstance(one, WantedPartition) or one.log.is_leader:
                continue
            leader = self._router.leader(one.topic, one.log.partition)
            if leader == self._router.broker_id:
                # it is about to lead, or will learn that it does not; until then it refuses as any broker does
                continue
            if leader == NOBODY:
                found[at] = no_leader(one.log)
            elif (refusal := self._router.refusal(one.topic, one.log.partition, context)) is not None:
                found[at] = refusal
            else:
                elsewhere.setdefault(leader, []).append((at, one))
        return DividedFetch(self._http, context, elsewhere) if elsewhere else None

    def leader(self, context: RequestContext, log: PartitionLog) -> int | None:
        if context.forwarding is Forwarding.DONE:
            return None
        leader = self._router.leader_of(log.topic_id, log.partition)
        if leader == NOBODY:
            raise no_leader(log)
        return leader

    async def offset_for_timestamp(
        self, leader: int, context: RequestContext, log: PartitionLog, timestamp_ms: int
    ) -> tuple[int, int] | None:
        path = f"/topics/{urllib.parse.quote(log.topic)}/partitions/{log.partition}/offsets?timestamp={timestamp_ms}"
        try:
            answer = await self._http.ask(leader, "GET", path, context.encode())
        except PeerUnavailableError as error:
            raise LeaderNotAvailableError(f"Broker {leader} leads the partition: {error.message}") from error
        if answer.status != _OK:
            raise error_of_answer(answer.body)
        found = msgspec.json.decode(b"".join(answer.body))
        return None if found["offset"] is None else (found["offset"], found["timestamp"])


def error_of_answer(body: Sequence[bytes]) -> LogStoreError:
    """Return the error in another broker's response."""
    try:
        found = msgspec.json.decode(b"".join(body))
        return error_of(int(found["error_code"]), str(found["message"]))
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return LogStoreError("Another broker answered what cannot be read.")


def _result(data: PartitionData) -> FetchResult[pa.Buffer] | LogStoreError:
    if (error := data.error) is not None:
        if isinstance(error, UnknownTopicError):
            # This broker knows the topic: it is new there, or will soon be known as deleted here.
            return LeaderNotAvailableError(f"The leader does not know the topic: {error.message} Try again.")
        return error
    content = data.content[0]
    ends = data.log_start_offset, data.high_watermark, data.last_stable_offset
    return FetchResult(content, 0, len(content), data.next_offset, *ends)
