"""The parts of a store that only a broker of a cluster has: cluster state, listener for other brokers, connections to
them.

It is imported only with ``zookeeper.connect``. The listener's socket is bound before the broker registers, because the
registration has its address; it serves other brokers when the store has started.
"""

from consumer_offsets.group_coordinator import GroupCoordinator
from ingest_api.http_listener import HttpListener
from ingest_api.relay import Relay
from logstore.broker.broker import Broker
from logstore.broker.elsewhere.nobody import Links
from logstore.broker.elsewhere.peer_handlers import PeerHandlers
from logstore.clock import Clock
from logstore.cluster.kazoo_client import MakeClient, kazoo_client
from logstore.cluster.zookeeper_cluster_state import ZooKeeperClusterState
from logstore.errors import InvalidConfigError
from logstore.filesystem import FileSystem
from logstore.replication.fetch_session import FetchHandler
from logstore.replication.peer_http import PeerHttp
from logstore.replication.peer_listener import PeerListener
from logstore.replication.peer_network import PeerNetwork
from logstore.replication.peer_options import PeerOptions
from logstore.replication.peers import Peers
from logstore.replication.protocol import MessageType
from logstore.settings import Settings


class ClusterMember:
    """A broker's membership in a cluster. ``start`` it before the cluster state starts, ``open`` it when the store has
    started, ``stop`` it after the store has stopped.
    """

    def __init__(
        self,
        settings: Settings,
        filesystem: FileSystem,
        clock: Clock | None,
        url: str,
        kafka: str | None,
        network: PeerNetwork | None = None,
        make_client: MakeClient | None = None,
    ) -> None:
        self._settings = settings
        options = PeerOptions.of(settings, network)
        self.cluster_state = ZooKeeperClusterState.of(
            settings, filesystem, url=url, kafka=kafka, clock=clock, make_client=make_client or kazoo_client
        )
        self._listener = PeerListener(self.cluster_state, options)
        self._peers = Peers(self.cluster_state, options, self._address_of)
        self._http = PeerHttp(self._peers.open_http)
        self.links = Links(self._peers.connect, self._peers, self._http)

    def _address_of(self, broker_id: int) -> str | None:
        broker = self.cluster_state.view.brokers.get(broker_id)
        return None if broker is None else broker.registration.peer

    async def start(self) -> None:
        """Listen for other brokers. Raises InvalidConfigError if that is not possible."""
        settings = self._settings
        try:
            await self._listener.start(settings.host, settings.inter_broker_port, settings.reachable_host)
        except OSError as error:
            raise InvalidConfigError(
                f"cannot listen on {settings.host}:{settings.inter_broker_port} for other brokers: "
                f"{error.strerror or error}; choose another inter.broker.port (0 takes a free one)"
            ) from error
        self.cluster_state.registration.advertise(self._listener.address)

    def open(self, listener: HttpListener, broker: Broker, groups: GroupCoordinator) -> None:
        """Serve clients and other brokers, and forward the requests that other brokers must answer."""
        self.answer_brokers(broker)
        self._listener.relay(lambda session: listener.relayed_protocol(session.broker_id))
        listener.open(broker, groups, lambda stopping: Relay(broker.elsewhere.router, self._http, stopping))

    def answer_brokers(self, broker: Broker) -> None:
        """Serve other brokers from now on, except for requests that they relay over HTTP."""
        fetches = FetchHandler(broker.fetch_session)
        discovery = broker.elsewhere.discovery
        handlers = PeerHandlers(
            broker.produce.records, broker.topics.served, discovery, broker.admission, broker.authorizer
        )
        # These are plain functions, so that only the handlers themselves hold the body of a request.
        self._listener.handlers.update(
            {
                MessageType.FETCH: fetches.fetch,
                MessageType.APPEND: lambda _, message: handlers.append(message.body),
                MessageType.DESCRIBE: lambda _, message: handlers.describe(message.body),
            }
        )

    async def stop(self) -> None:
        self._http.close()
        self._peers.close()
        await self._listener.stop()
