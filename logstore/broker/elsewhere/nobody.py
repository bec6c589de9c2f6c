"""The other brokers as a store of one node has them: there are none.

The rooms of a broker use these classes alone, and never ask whether there is a cluster. ``OtherBrokers`` and its parts
override each method for a broker of a cluster; they are imported only there.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol
from uuid import UUID

from logstore.broker.context import RequestContext
from logstore.broker.elsewhere.forwarding import Router
from logstore.broker.elsewhere.partition_offsets import NOTHING_ELSEWHERE, OffsetsElsewhere
from logstore.errors import LogStoreError, PeerUnavailableError
from logstore.filesystem import Buffer
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.records.erasure_record import ErasedBroker
from logstore.replication.protocol import Body, MessageType
from logstore.replication.replica_fetcher import Connection

if TYPE_CHECKING:  # one node imports nothing of the traffic between brokers
    from logstore.broker.elsewhere.divided_fetch import DividedFetch
    from logstore.broker.elsewhere.division import Division
    from logstore.broker.fetch.forms import FetchPartition
    from logstore.broker.fetch.purgatory import WantedPartition
    from logstore.broker.produce.appends import PreparedRequest
    from logstore.replication.peer_http import PeerHttp, Response

#: Opens a connection to the broker with that id.
Connect = Callable[[int], Awaitable[Connection]]


class PeerRequests(Protocol):
    async def request(self, broker_id: int, message_type: MessageType, body: Body, *, timeout_s: float) -> Buffer:
        """Return the body of the response; requests go out in the order of the calls.

        Raises PeerUnavailableError, or the error with which the other broker answers.
        """
        ...


class Links(NamedTuple):
    """The ways from a broker of a cluster to the others: connections of followers, messages, and HTTP."""

    connect: Connect
    requests: PeerRequests
    http: "PeerHttp"


class Appends:
    """Appends for partitions that other brokers lead."""

    def divide(
        self,
        context: RequestContext,  # noqa: ARG002
        requests: "Sequence[PreparedRequest]",  # noqa: ARG002
    ) -> "Division | None":
        """Divide the requests by leader. Return None if this broker leads every partition of them."""
        return None

    def not_led(self, requests: "Sequence[PreparedRequest]") -> Collection[PartitionLog]:  # noqa: ARG002
        """Return the partitions of the requests that this broker does not lead now."""
        return ()

    async def close(self) -> None:
        """Wait until everything is sent."""


class Fetches:
    """Fetches of partitions that other brokers lead."""

    def unknown(self, partitions: "Sequence[FetchPartition]") -> Sequence[str]:  # noqa: ARG002
        """Return the topics that this broker does not know, and that another one may have just made."""
        return ()

    def divide(
        self,
        context: RequestContext,  # noqa: ARG002
        found: "list[WantedPartition | LogStoreError]",  # noqa: ARG002
    ) -> "DividedFetch | None":
        """Return the partitions of ``found`` that others lead; None if there are none. In ``found``, replace a
        partition that has no leader, or must not be forwarded, with its error.
        """
        return None

    def leader(self, context: RequestContext, log: PartitionLog) -> int | None:  # noqa: ARG002
        """Return the broker to ask about a partition that this one does not lead; None if it answers all the same.

        Raises LeaderNotAvailableError.
        """
        return None

    async def offset_for_timestamp(
        self, leader: int, context: RequestContext, log: PartitionLog, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """Call ``Fetching.offset_for_timestamp`` at the leader. Raises LeaderNotAvailableError, and the leader's own
        errors.
        """
        raise nobody(leader, context, log, timestamp_ms)


class Discovery:
    """Topics that other brokers make and delete, and partitions that this broker is about to lead."""

    #: True if this broker leads its partitions before the journal begins a file, so that their snapshots have its
    #: epoch. A follower appends to the journal as soon as it follows, and so begins later.
    leads_before_journal: ClassVar[bool] = True

    def start(self) -> None:
        """Begin, once the tables were read."""

    async def stop(self) -> None: ...

    def leadership_changed(self, topic: Topic) -> None:
        """Check the topic's table again, as its leader."""

    def is_adopted(self, name: str) -> bool:  # noqa: ARG002
        """Return True if the topic's partitions can have leaders: no registration is missing."""
        return True

    async def until(self, reached: Callable[[], bool], timeout_s: float) -> bool:  # noqa: ARG002
        """Wait for a change by another broker that makes ``reached`` true. Return True if it came in time."""
        return True

    async def until_known(self, name: str, partitions: int = 1) -> None:
        """Wait for a topic, or this many partitions of it, that another broker may have just made. Afterwards
        ``ServedTopics.get`` reports it as missing only if it is.
        """

    async def until_ids_known(self, topic_ids: Collection[UUID], timeout_s: float) -> None:
        """Wait as ``until_known`` does, for topics that another broker already knows."""

    async def until_led(self, logs: Collection[PartitionLog]) -> None:
        """Wait for partitions that this broker was just elected to lead, and does not lead yet; for some seconds at
        most.
        """


class Elsewhere:
    """The other brokers, as the rooms of a broker use them. ``router`` finds the broker that answers a request."""

    #: True if this broker answers everything, because no other one can come.
    is_alone: ClassVar[bool] = True

    def __init__(self, router: Router, appends: Appends, fetches: Fetches, discovery: Discovery) -> None:
        self.router = router
        self.appends = appends
        self.fetches = fetches
        self.discovery = discovery

    async def until_known(self, topics: Iterable[str]) -> None:
        """Wait for those of these topics that another broker has just made."""

    async def offsets(self, logs: Sequence[PartitionLog]) -> OffsetsElsewhere:  # noqa: ARG002
        """Return the leaders' offsets of those ``logs`` that other brokers lead; -1 if a leader does not answer."""
        return NOTHING_ELSEWHERE

    async def ends_in_doubt(self, offsets: Iterable[tuple[PartitionLog, int]]) -> OffsetsElsewhere:
        """Return ``offsets`` of the partitions whose end, as far as this broker knows, is below the offset."""
        logs = [log for log, offset in offsets if not log.is_leader and offset > log.high_watermark]
        return await self.offsets(logs) if logs else NOTHING_ELSEWHERE

    async def ask_leaders(self, context: RequestContext, topic: Topic, action: str) -> list[Any]:  # noqa: ARG002
        """POST ``/topics/<topic>/<action>`` at each other broker that leads partitions of the topic. Return the
        responses, decoded JSON. If another broker has forwarded the request, ask none.

        Raises LeaderNotAvailableError, and the errors with which the leaders answer.
        """
        return []

    async def ask(
        self, broker_id: int, method: str, target: str, context: RequestContext, body: bytes = b""
    ) -> "Response":
        """Return another broker's response to a request over HTTP. Raises PeerUnavailableError."""
        raise nobody(broker_id, method, target, context, body)

    async def create_topic(self, context: RequestContext, name: str) -> None:
        """Make a topic with the defaults of the store, at the controller.

        Raises TopicExistsError, NotControllerError, RequestTimedOutError, and the controller's own errors.
        """
        raise nobody(context, name)

    async def alter_configs(
        self, context: RequestContext, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Call ``TopicChanges.alter_configs`` at the controller.

        Raises NotControllerError, RequestTimedOutError, and the controller's own errors.
        """
        raise nobody(context, name, changes, validate_only)

    async def make_topic_of_groups(self, context: RequestContext, group: str) -> None:
        """Let the controller make the topic of groups, by asking it for the coordinator of ``group``.

        Raises NotControllerError and PeerUnavailableError.
        """
        raise nobody(context, group)

    async def make_topic_of_erasures(self) -> None:
        """Ask the controller to make the topic. Raises NotControllerError, RequestTimedOutError, PeerUnavailableError,
        and the controller's own errors.
        """
        raise nobody()

    async def erase_from_journal(self, broker_id: int, erasure_id: str) -> ErasedBroker:
        """Ask another broker to erase from its journal. Raises PeerUnavailableError, and the broker's own errors."""
        raise nobody(broker_id, erasure_id)

    def with_journals(self, topic_id: UUID, partitions: Iterable[int]) -> set[int]:  # noqa: ARG002
        """Return the other brokers whose journals may have records of the partitions: live brokers, replicas, and
        brokers that have a directory in the store.
        """
        return set()

    def report_offline(self) -> None:
        """Let others lead what the failed journal of this broker cannot serve, until the process ends."""

    async def close(self) -> None:
        """End what this broker does for and with the others, except to answer them."""
        await self.appends.close()


def nobody(*_: object) -> PeerUnavailableError:
    """Return the error of a request to another broker, which one node never makes."""
    return PeerUnavailableError("there is no other broker", nothing_sent=True)


async def connect_to_nobody(broker_id: int) -> Connection:
    """Refuse to connect: one node follows nobody."""
    raise nobody(broker_id)
