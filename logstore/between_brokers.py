"""What a broker of a cluster says to the others, and hears from them: the peer listener with its handlers, connections
to other brokers, and the relay of requests, put together. One node has none of it.
"""

from consumer_offsets.group_coordinator import GroupCoordinator
from ingest_api.http_listener import HttpListener
from ingest_api.peer_http import PeerHttp
from ingest_api.relay import Relay
from logstore.broker.broker import Broker
from logstore.replication.peer_listener import PeerListener, PeerSession
from logstore.replication.peers import Peers
from logstore.replication.protocol import Body, Message, MessageType


class BetweenBrokers:
    """``open`` when the store is ready; ``close`` before it stops."""

    def __init__(self, listener: PeerListener, peers: Peers) -> None:
        self._listener = listener
        self._peers = peers
        self._http = PeerHttp(peers.open_http)

    def open(self, broker: Broker, groups: GroupCoordinator, http: HttpListener) -> None:
        """Answer other brokers, and clients by way of them, from now on."""
        others = broker.join_cluster(self._peers)
        handlers = others.handlers

        async def append(_: PeerSession, message: Message) -> Body:
            return await handlers.append(message.body)

        async def describe(_: PeerSession, message: Message) -> Body:
            return await handlers.describe(message.body)

        self._listener.handlers[MessageType.APPEND] = append
        self._listener.handlers[MessageType.DESCRIBE] = describe
        self._listener.http = lambda session: http.relayed_protocol(session.broker_id)
        http.open(broker, groups, lambda stopping: Relay(others.router, self._http, stopping))

    def close(self) -> None:
        """Ask nothing more of other brokers."""
        self._http.close()
        self._peers.close()
