"""A fetch at the other brokers that lead some of its partitions: POST /fetch, with batches as they are stored.

Invariant: bytes of a response are reserved before they are read.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from logstore.broker.admission import Reservation
from logstore.broker.context import RequestContext
from logstore.broker.fetch.purgatory import FetchLimits, WantedPartition
from logstore.errors import LeaderNotAvailableError, LogStoreError, PeerUnavailableError, UnknownTopicError
from logstore.log.log_reader import FetchResult
from logstore.protocol.error_codes import error_of
from logstore.protocol.fetch_response import MEDIA_TYPE, PartitionData, read_fetch_response
from logstore.records.where.expression import text_of

if TYPE_CHECKING:
    from logstore.replication.peer_http import PeerHttp

_OK: Final = 200
#: A partition of a request: its number there, and the wanted records.
Asked = tuple[int, WantedPartition]


class DividedFetch:
    """The partitions of a fetch that other brokers lead, by leader."""

    def __init__(self, http: "PeerHttp", context: RequestContext, by_leader: dict[int, list[Asked]]) -> None:
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
