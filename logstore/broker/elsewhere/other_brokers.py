"""The other brokers, as the rooms of this one use them. ``Broker.join_cluster`` assembles it, in a cluster only."""

import asyncio
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from logstore.broker.admission import Admission
from logstore.broker.authorizer import Authorizer
from logstore.broker.context import INTERNAL, Forwarding, RequestContext
from logstore.broker.elsewhere.forwarding import NOBODY, Router, Target
from logstore.broker.elsewhere.partition_offsets import OffsetsElsewhere, offsets_elsewhere
from logstore.broker.elsewhere.peer_handlers import PeerHandlers
from logstore.broker.elsewhere.remote_appends import PeerRequests, RemoteAppends
from logstore.broker.elsewhere.remote_fetches import RemoteFetches
from logstore.broker.produce.records import Producing
from logstore.broker.topics.served import Topics
from logstore.cluster.coordinator import Coordinator
from logstore.errors import (
    InvalidConfigError,
    LeaderNotAvailableError,
    LogStoreError,
    PeerUnavailableError,
    RequestTimedOutError,
    TopicExistsError,
)
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.protocol.error_codes import error_of
from logstore.records.erasure_record import ErasedBroker
from logstore.replication.peer_http import Answer, PeerHttp
from logstore.settings import Settings

_OK: Final = 200
_CREATED: Final = 201
_NO_CONTENT: Final = 204


class OtherBrokers:
    """``router`` finds the broker that answers a request; ``appends`` and ``fetches`` lead to other leaders, ``http``
    to any broker; ``handlers`` answer other brokers.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        topics: Topics,
        peers: PeerRequests,
        http: PeerHttp,
        producing: Producing,
        admission: Admission,
        authorizer: Authorizer,
        settings: Settings,
    ) -> None:
        self.router = Router(coordinator, topics)
        self.appends = RemoteAppends(self.router, peers, settings.queued_max_request_bytes)
        self.fetches = RemoteFetches(self.router, http)
        self.handlers = PeerHandlers(producing, topics, admission, authorizer)
        self.http = http
        self._cluster_id = coordinator.cluster_id
        self._peers = peers

    async def create_topic(self, context: RequestContext, name: str) -> None:
        """Make a topic with the defaults of the store, at the controller.

        Raises TopicExistsError, NotControllerError, RequestTimedOutError, and the controller's own errors.
        """
        answer = await self._ask_controller(context, "topics", {"topic_name": name}, f"has made topic {name!r}")
        if answer.status != _CREATED:
            raise _error(answer, TopicExistsError)

    async def alter_configs(
        self, context: RequestContext, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Call ``TopicChanges.alter_configs`` at the controller.

        Raises NotControllerError, RequestTimedOutError, and the controller's own errors.
        """
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

    async def _ask_controller(self, context: RequestContext, resource: str, body: Any, doubt: str) -> Answer:
        """POST to a ``resource`` of the cluster at the controller. Raises NotControllerError, and RequestTimedOutError
        when it is unknown whether it did what ``doubt`` says.
        """
        controller = self.router.controller()
        target = f"/v3/clusters/{self._cluster_id}/{resource}"
        try:
            return await self.http.ask(controller, "POST", target, context.encode(), body=msgspec.json.encode(body))
        except PeerUnavailableError as error:
            if error.nothing_sent:
                raise self.router.unreachable(Target.CONTROLLER, controller, error.message) from error
            raise RequestTimedOutError(
                f"The controller, broker {controller}, did not answer: whether it {doubt} is unknown."
            ) from error

    async def make_topic_of_erasures(self) -> None:
        """Ask the controller to make the topic. Raises NotControllerError, RequestTimedOutError, PeerUnavailableError,
        and the controller's own errors.
        """
        controller = self.router.controller()
        answer = await self.http.ask(controller, "POST", "/erasures", INTERNAL.encode())
        if answer.status != _OK:
            raise _error(answer, InvalidConfigError)

    async def erase_from_journal(self, broker: int, erasure_id: str) -> ErasedBroker:
        """Ask another broker to erase from its journal. Raises PeerUnavailableError, and the broker's own errors."""
        target = f"/erasures/{urllib.parse.quote(erasure_id)}/journal"
        answer = await self.http.ask(broker, "POST", target, INTERNAL.encode())
        if answer.status != _OK:
            raise _error(answer, InvalidConfigError)
        return msgspec.json.decode(b"".join(answer.body), type=ErasedBroker)

    async def make_topic_of_groups(self, context: RequestContext, group: str) -> None:
        """Let the controller make the topic of groups, by asking it for the coordinator of ``group``.

        Raises NotControllerError and PeerUnavailableError.
        """
        target = f"/metadata?{urllib.parse.urlencode({'group': group})}"
        await self.http.ask(self.router.controller(), "GET", target, context.encode())

    async def ask_leaders(self, context: RequestContext, topic: Topic, action: str) -> list[Any]:
        """POST ``/topics/<topic>/<action>`` at each other broker that leads partitions of the topic. Return the
        responses, decoded JSON. If another broker has forwarded the request, ask none.

        Raises LeaderNotAvailableError, and the errors with which the leaders answer.
        """
        if context.forwarding is not Forwarding.ALLOWED:
            return []
        leaders = {self.router.leader(topic, log.partition) for log in topic.partitions if not log.is_leader}
        leaders -= {NOBODY, self.router.broker_id}
        target = f"/topics/{urllib.parse.quote(topic.name)}/{action}"

        async def ask(leader: int) -> Any:
            try:
                answer = await self.http.ask(leader, "POST", target, context.encode())
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
        """Return the offsets as ``offsets_elsewhere`` does."""
        return await offsets_elsewhere(self.router, self._peers, logs)


def _error(answer: Answer, bad_request: type[LogStoreError]) -> LogStoreError:
    told = msgspec.json.decode(b"".join(answer.body))
    return error_of(told["error_code"], told["message"], bad_request=bad_request)
