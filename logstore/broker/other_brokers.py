"""The other brokers, as the rooms of this one use them: put together by ``Broker.join_cluster``, in a cluster only."""

from collections.abc import Sequence

from logstore.broker.admission import Admission
from logstore.broker.authorizer import Authorizer
from logstore.broker.forwarding import Router
from logstore.broker.partition_offsets import OffsetsElsewhere, offsets_elsewhere
from logstore.broker.peer_handlers import PeerHandlers
from logstore.broker.producing import Producing
from logstore.broker.remote_appends import PeerRequests, RemoteAppends
from logstore.broker.remote_fetches import RemoteFetches
from logstore.broker.topics import Topics
from logstore.cluster.coordinator import Coordinator
from logstore.log.partition_log import PartitionLog
from logstore.replication.peer_http import PeerHttp
from logstore.settings import Settings


class OtherBrokers:
    """``router`` says who answers what; ``appends`` and ``fetches`` are ways to other leaders, ``http`` to any broker;
    ``handlers`` answer what others ask of this one.
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
        self.router = Router(coordinator, topics.get)
        self.appends = RemoteAppends(self.router, peers, settings.queued_max_request_bytes)
        self.fetches = RemoteFetches(self.router, http)
        self.handlers = PeerHandlers(producing, topics.by_id, admission, authorizer)
        self.http = http
        self._peers = peers

    async def offsets(self, logs: Sequence[PartitionLog]) -> OffsetsElsewhere:
        """As ``offsets_elsewhere``."""
        return await offsets_elsewhere(self.router, self._peers, logs)
