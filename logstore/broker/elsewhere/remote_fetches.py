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
from logstore.broker.context import RequestContext
from logstore.broker.elsewhere.forwarding import NOBODY, Router, no_leader
from logstore.broker.fetch.purgatory import FetchLimits, WantedPartition
from logstore.errors import LeaderNotAvailableError, LogStoreError, PeerUnavailableError, UnknownTopicError
from logstore.log.log_reader import FetchResult
from logstore.log.topic import Topic
from logstore.protocol.error_codes import error_of
from logstore.protocol.fetch_response import MEDIA_TYPE, PartitionData, read_fetch_response
from logstore.records.where.expression import text_of
from logstore.replication.peer_http import PeerHttp

_OK: Final = 200
#: A partition of a request: its number there, and the wanted records.
Asked = tuple[int, WantedPartition]


class RemoteFetches:
    def __init__(self, router: Router, http: PeerHttp) -> None:
        self._router = router
        self._http = http

    async def until_known(self, names: Iterable[str]) -> None:
        """Wait as ``Router.until_known`` does."""
        await self._router.until_known(names)

    def divide(self, context: RequestContext, found: list[WantedPartition | LogStoreError]) -> dict[int, list[Asked]]:
        """Return, by leader, the partitions of ``found`` that others lead. In ``found``, replace a partition that has
        no leader, or must not be forwarded, with its error.
        """
        elsewhere: dict[int, list[Asked]] = {}
        for at, one in enumerate(found):
            if not isinstance(one, WantedPartition) or one.log.is_leader:
                continue
            leader = self._router.leader(one.topic, one.log.partition)
            if leader == self._router.broker_id:
                # it is about to lead, or will learn that it does not; until then it refuses as any broker does
                continue
            if leader == NOBODY:
                found[at] = no_leader(one.topic, one.log.partition)
            elif (refusal := self._router.refusal(one.topic, one.log.partition, context)) is not None:
                found[at] = refusal
            else:
                elsewhere.setdefault(leader, []).append((at, one))
        return elsewhere

    async def fetch(
        self,
        leader: int,
        context: RequestContext,
        asked: Sequence[Asked],
        limits: FetchLimits,
        max_wait_ms: int,
        reservation: Reservation,
    ) -> dict[int, FetchResult[pa.Buffer] | LogStoreError]:
        """Return news of the asked partitions by their numbers; an error of the request becomes that of each.

        Records are the content of ``PartitionData``, and are not counted.
        """
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
                leader, "POST", "/fetch", context.encode(), body=body, accept=MEDIA_TYPE, reserve=reservation.grow
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

    async def offset_for_timestamp(
        self, context: RequestContext, topic: Topic, partition: int, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """Call ``Fetching.offset_for_timestamp`` at the leader. Raises LeaderNotAvailableError, and the leader's own
        errors.
        """
        leader = self._router.leader(topic, partition)
        if leader == NOBODY:
            raise no_leader(topic, partition)
        path = f"/topics/{urllib.parse.quote(topic.name)}/partitions/{partition}/offsets?timestamp={timestamp_ms}"
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
