"""The other brokers of a cluster, as the rooms of this one use them."""

import asyncio
import contextlib
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final
from uuid import UUID

import msgspec
import structlog

from logstore.broker.context import INTERNAL, Forwarding, RequestContext
from logstore.broker.elsewhere.forwarding import NOBODY, Router, Target
from logstore.broker.elsewhere.nobody import Elsewhere, Links
from logstore.broker.elsewhere.partition_offsets import Key, OffsetsElsewhere, PartitionOffsets
from logstore.broker.elsewhere.remote_appends import RemoteAppends
from logstore.broker.elsewhere.remote_fetches import RemoteFetches
from logstore.broker.elsewhere.topic_discovery import TopicDiscovery
from logstore.broker.topics.served import Topics
from logstore.cluster.cluster_state import ClusterState
from logstore.errors import (
    InvalidConfigError,
    LeaderNotAvailableError,
    LogStoreError,
    PeerUnavailableError,
    RequestTimedOutError,
    TopicExistsError,
)
from logstore.filesystem import FileSystem
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.protocol.error_codes import error_of
from logstore.records.erasure_record import ErasedBroker
from logstore.replication.peer_http import Response
from logstore.replication.protocol import MessageType, decode_described, encode_describe
from logstore.settings import Settings

log = structlog.stdlib.get_logger(__name__)

_OK: Final = 200
_CREATED: Final = 201
_NO_CONTENT: Final = 204
#: A leader that is gone must not hold up a list of all topics.
_DESCRIBE_S: Final = 1.0
#: Seconds between two checks for new partitions of a broker whose journal has failed.
_OFFLINE_S: Final = 1.0


class OtherBrokers(Elsewhere):
    is_alone: ClassVar[bool] = False

    def __init__(
        self, cluster_state: ClusterState, topics: Topics, links: Links, settings: Settings, filesystem: FileSystem
    ) -> None:
        discovery = TopicDiscovery(topics, cluster_state)
        router = Router(cluster_state, topics, discovery)
        super().__init__(
            router,
            RemoteAppends(router, links.requests, settings.queued_max_request_bytes),
            RemoteFetches(router, links.http),
            discovery,
        )
        self._cluster_state = cluster_state
        self._requests = links.requests
        self._http = links.http
        self._data = settings.data
        self._filesystem = filesystem
        self._reporting: asyncio.Task[None] | None = None

    async def until_known(self, topics: Iterable[str]) -> None:
        await self.router.until_known(topics)

    async def ask(
        self, broker_id: int, method: str, target: str, context: RequestContext, body: bytes = b""
    ) -> Response:
        return await self._http.ask(broker_id, method, target, context.encode(), body=body)

    async def create_topic(self, context: RequestContext, name: str) -> None:
        answer = await self._ask_controller(context, "topics", {"topic_name": name}, f"has made topic {name!r}")
        if answer.status != _CREATED:
            raise _error(answer, TopicExistsError)

    async def alter_configs(
        self, context: RequestContext, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        body = {
            "data": [
                {"name": key, "operation": "DELETE"}
                if value is None
                else {"name": key, "operation": "SET", "value": value}
                for key, value in changes.items()
            ],
            "validate_only": validate_only,
        }
        target = f"topics/{urllib.parse.quote(name)}/configs:alter"
        answer = await self._ask_controller(context, target, body, f"has altered topic {name!r}")
        if answer.status != _NO_CONTENT:
            raise _error(answer, InvalidConfigError)

    async def _ask_controller(self, context: RequestContext, resource: str, body: Any, doubt: str) -> Response:
        """POST to a ``resource`` of the cluster at the controller. Raises NotControllerError, and RequestTimedOutError
        when it is unknown whether it did what ``doubt`` says.
        """
        controller = self.router.controller()
        target = f"/v3/clusters/{self._cluster_state.cluster_id}/{resource}"
        try:
            return await self.ask(controller, "POST", target, context, msgspec.json.encode(body))
        except PeerUnavailableError as error:
            if error.nothing_sent:
                raise self.router.unreachable(Target.CONTROLLER, controller, error.message) from error
            raise RequestTimedOutError(
                f"The controller, broker {controller}, did not answer: whether it {doubt} is unknown."
            ) from error

    async def make_topic_of_erasures(self) -> None:
        controller = self.router.controller()
        answer = await self.ask(controller, "POST", "/erasures", INTERNAL)
        if answer.status != _OK:
            raise _error(answer, InvalidConfigError)

    async def erase_from_journal(self, broker_id: int, erasure_id: str) -> ErasedBroker:
        target = f"/erasures/{urllib.parse.quote(erasure_id)}/journal"
        answer = await self.ask(broker_id, "POST", target, INTERNAL)
        if answer.status != _OK:
            raise _error(answer, InvalidConfigError)
        return msgspec.json.decode(b"".join(answer.body), type=ErasedBroker)

    async def make_topic_of_groups(self, context: RequestContext, group: str) -> None:
        target = f"/metadata?{urllib.parse.urlencode({'group': group})}"
        await self.ask(self.router.controller(), "GET", target, context)

    async def ask_leaders(self, context: RequestContext, topic: Topic, action: str) -> list[Any]:
        if context.forwarding is not Forwarding.ALLOWED:
            return []
        leaders = {self.router.leader(topic, log.partition) for log in topic.partitions if not log.is_leader}
        leaders -= {NOBODY, self.router.broker_id}
        target = f"/topics/{urllib.parse.quote(topic.name)}/{action}"

        async def ask(leader: int) -> Any:
            try:
                answer = await self.ask(leader, "POST", target, context)
            except PeerUnavailableError as error:
                raise LeaderNotAvailableError(
                    f"Broker {leader} leads partitions of {topic.name}, and does not answer: {error.message}. Try "
                    "again soon."
                ) from error
            told = msgspec.json.decode(b"".join(answer.body))
            if answer.status != _OK:
                raise error_of(told["error_code"], told["message"])
            return told

        return await asyncio.gather(*map(ask, sorted(leaders)))

    async def offsets(self, logs: Sequence[PartitionLog]) -> OffsetsElsewhere:
        # One message goes to each leader, all at once.
        found: dict[Key, PartitionOffsets] = {}
        by_leader: dict[int, list[Key]] = {}
        for one in logs:
            if one.is_leader:
                continue
            key = one.topic_id, one.partition
            found[key] = PartitionOffsets()
            leader = self.router.leader_of(*key)
            if leader not in (NOBODY, self.router.broker_id):
                by_leader.setdefault(leader, []).append(key)

        async def ask(leader: int, keys: Sequence[Key]) -> None:
            body = encode_describe(keys)
            try:
                answer = await self._requests.request(leader, MessageType.DESCRIBE, body, timeout_s=_DESCRIBE_S)
                rows = decode_described(answer)
            except LogStoreError:
                return
            for key, (error, *offsets) in zip(keys, rows, strict=False):
                if not error:
                    found[key] = PartitionOffsets(*offsets)

        await asyncio.gather(*(ask(leader, keys) for leader, keys in by_leader.items()))
        return found

    def with_journals(self, topic_id: UUID, partitions: Iterable[int]) -> set[int]:
        found = {*self._cluster_state.brokers_by_id}
        for partition in partitions:
            found.update(self._cluster_state.partition_state(topic_id, partition).replicas)
        with contextlib.suppress(OSError):
            found.update(int(name) for name in self._filesystem.names(self._data / "brokers") if name.isdecimal())
        return found

    def report_offline(self) -> None:
        self._reporting = asyncio.create_task(self._report_offline())

    async def _report_offline(self) -> None:
        reported: Mapping[str, Sequence[int]] = {}
        while True:
            if (here := self._cluster_state.replicas_here()) != reported:
                try:
                    await self._cluster_state.set_offline(here)
                    reported = here
                    log.error("broker.offline", topics=len(here), reason="the journal has failed: others lead")
                except LogStoreError as error:
                    log.warning("broker.offline_not_told", why=error.message)
            await asyncio.sleep(_OFFLINE_S)

    async def close(self) -> None:
        await super().close()
        if self._reporting is not None:
            self._reporting.cancel()


def _error(answer: Response, bad_request: type[LogStoreError]) -> LogStoreError:
    told = msgspec.json.decode(b"".join(answer.body))
    return error_of(told["error_code"], told["message"], bad_request=bad_request)
