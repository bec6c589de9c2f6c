"""Which partitions of a fetch other brokers lead, and look-ups at their leaders; ``divided_fetch`` fetches there."""

import urllib.parse
from collections.abc import Sequence
from typing import Final

import msgspec

from logstore.broker.context import Forwarding, RequestContext
from logstore.broker.elsewhere.divided_fetch import Asked, DividedFetch, error_of_answer
from logstore.broker.elsewhere.forwarding import NOBODY, Router, no_leader
from logstore.broker.elsewhere.nobody import Fetches
from logstore.broker.fetch.forms import FetchPartition
from logstore.broker.fetch.purgatory import WantedPartition
from logstore.errors import LeaderNotAvailableError, LogStoreError, PeerUnavailableError
from logstore.log.partition_log import PartitionLog
from logstore.replication.peer_http import PeerHttp

_OK: Final = 200


class RemoteFetches(Fetches):
    def __init__(self, router: Router, http: PeerHttp) -> None:
        self._router = router
        self._http = http

    def unknown(self, partitions: Sequence[FetchPartition]) -> Sequence[str]:
        return self._router.unknown(one.topic for one in partitions)

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
