"""The store for the handlers of Kafka's APIs: its parts, its settings, the addresses of its brokers."""

import asyncio

from consumer_offsets.group_coordinator import GroupCoordinator
from logstore.broker.broker import Broker
from logstore.cluster.cluster_state import BrokerEndpoint, ClusterState
from logstore.kafka_listener.fetch_sessions import FetchSessions
from logstore.settings import Settings, host_and_port


class KafkaStore:
    """The handlers' view of the store. State that outlives a request and a connection is also here: nothing is in
    globals.
    """

    def __init__(
        self,
        settings: Settings,
        broker: Broker,
        groups: GroupCoordinator,
        cluster_state: ClusterState,
        advertised: tuple[str, int],
    ) -> None:
        self.settings = settings
        self.broker = broker
        self.groups = groups
        self.cluster_state = cluster_state
        self.node_id = broker.broker_id
        self.fetch_sessions = FetchSessions(broker.clock)
        #: Requests that name very many things take turns, so that others come between them.
        self.long_requests = asyncio.Lock()
        self._advertised = advertised

    def endpoint(self, broker_id: int) -> tuple[str, int] | None:
        """Return the host and port of a broker for Kafka's clients; None if it is not live, or has none for them."""
        if broker_id == self.node_id:
            return self._advertised
        broker = self.broker.brokers_by_id.get(broker_id)
        if broker is None or broker.kafka is None:
            return None
        return host_and_port(broker.kafka)

    def reachable_brokers(self) -> list[tuple[BrokerEndpoint, tuple[str, int]]]:
        """Return the brokers that Kafka's clients can reach, with host and port."""
        endpoints = ((one, self.endpoint(one.id)) for one in self.broker.brokers_by_id.values())
        return [(one, endpoint) for one, endpoint in endpoints if endpoint is not None]
