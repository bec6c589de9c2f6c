"""Whole brokers of a cluster in one process: HTTP listeners, peer listeners and real connections between them. The
state of partitions is a dictionary (``tests.support.replicas``).
"""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from consumer_offsets.group_coordinator import GroupCoordinator
from consumer_offsets.group_shards import OFFSETS_TOPIC_CONFIGS
from ingest_api.http_listener import HttpListener
from ingest_api.relay import Relay
from logstore.broker.authorizer import Authorizer
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.broker.elsewhere.nobody import Links
from logstore.broker.elsewhere.peer_handlers import PeerHandlers
from logstore.broker.opened_journal import OpenedJournal
from logstore.broker.produce.secret import load_secret
from logstore.broker.quotas import Quotas
from logstore.broker.topics.catalog import TopicCatalog
from logstore.cluster.cluster_state import BrokerEndpoint, PartitionState
from logstore.filesystem import FileSystem
from logstore.limits import RECENT_FRAMES_BYTES
from logstore.listening_sockets import listening_socket, url_of
from logstore.log.topic import Topic
from logstore.records.offset_record import OFFSETS_TOPIC
from logstore.replication.peer_http import PeerHttp
from logstore.replication.peer_listener import PeerListener
from logstore.replication.peer_options import PeerOptions
from logstore.replication.peers import Peers
from logstore.replication.protocol import MessageType
from logstore.settings import Settings
from logstore.table_root import TableRoot
from tests.support.replicas import MemoryCluster, MemoryClusterState
from tests.support.virtual_time import clock_of_loop


class ListeningClusterState(MemoryClusterState):
    """A cluster state that knows where the others listen, and that shows them this broker (``LocalBroker``)."""

    broker_epoch = 1

    def __init__(self, cluster: "RelayingCluster", broker_id: int) -> None:
        super().__init__(cluster, broker_id)
        self._relaying = cluster

    @property
    def controller_id(self) -> int:
        return self._relaying.controller

    @controller_id.setter
    def controller_id(self, _: int) -> None: ...

    @property
    def brokers_by_id(self):
        return {number: BrokerEndpoint(number, self._relaying.urls.get(number)) for number in self.brokers}


class RelayingBroker:
    def __init__(self, broker: Broker, url: str, listener: HttpListener, peer: PeerListener) -> None:
        self.broker = broker
        self.listener = listener
        self.peer = peer
        self.http = httpx.AsyncClient(base_url=url, timeout=30)


class RelayingCluster(MemoryCluster):
    def __init__(self, data: Path, placement: tuple[int, ...]) -> None:
        super().__init__(data, placement)
        self.urls: dict[int, str] = {}
        self.peer_addresses: dict[int, str] = {}
        self.controller = placement[0]
        self.running: dict[int, RelayingBroker] = {}
        self._ends: dict[int, contextlib.AsyncExitStack] = {}

    def topic(self, name: str, broker: int | None = None) -> Topic:
        return self.brokers[broker or self.placement[0]].topics.served.topic(INTERNAL, name)

    def lead(self, name: str, *leaders: int, replicated: bool = False) -> None:
        """Let ``leaders[p]`` lead partition p of the topic, as its only replica unless ``replicated``."""
        topic_id = self.topic(name).topic_id
        for partition, leader in enumerate(leaders):
            epoch = self.states[topic_id, partition].leader_epoch + 1
            replicas = (leader, *(one for one in self.placement if one != leader)) if replicated else (leader,)
            self.set(topic_id, partition, PartitionState(leader, epoch, replicas, replicas))

    async def serve(self, broker_id: int, **settings: Any) -> RelayingBroker:
        async with contextlib.AsyncExitStack() as at_end:
            wanted = Settings(data=self.data, broker_id=broker_id, port=0, **settings)
            # Brokers of a cluster share one secret.
            wanted.log_directory.mkdir(parents=True, exist_ok=True)
            load_secret(self.data, FileSystem())
            shutil.copy(self.data / "secret", wanted.log_directory / "secret")
            cluster_state = self.cluster_states[broker_id] = ListeningClusterState(self, broker_id)
            at_end.callback(self.cluster_states.pop, broker_id, None)
            options = PeerOptions()
            peer = PeerListener(cluster_state, options)
            await peer.start("127.0.0.1", 0)
            at_end.push_async_callback(peer.stop)
            self.peer_addresses[broker_id] = peer.address
            peers = Peers(cluster_state, options, self.peer_addresses.get)
            http = PeerHttp(peers.open_http)
            authorizer, quotas = Authorizer(), Quotas()
            listening = listening_socket("127.0.0.1", 0)
            url = self.urls[broker_id] = url_of(listening, "127.0.0.1")
            listener = HttpListener(wanted, authorizer, quotas)
            serving = asyncio.create_task(listener.serve(listening))

            async def stop() -> None:
                listener.stop()
                listener.stop()
                await serving
                listener.close()
                listening.close()

            opened = OpenedJournal(wanted, FileSystem(), clock_of_loop(), recent_bytes=RECENT_FRAMES_BYTES)
            opened.read(())
            broker = await Broker.start(
                wanted,
                cluster_state,  # type: ignore[arg-type]
                opened,
                authorizer,
                quotas,
                clock=clock_of_loop(),
                filesystem=FileSystem(),
                links=Links(lambda leader: self.connect(broker_id, leader), peers, http),
            )
            at_end.push_async_callback(broker.stop)
            self.brokers[broker_id] = broker
            at_end.callback(self.brokers.pop, broker_id, None)
            groups = await at_end.enter_async_context(GroupCoordinator.running(broker, clock=clock_of_loop()))
            at_end.callback(peers.close)
            at_end.callback(http.close)
            at_end.push_async_callback(stop)
            served, discovery = broker.topics.served, broker.elsewhere.discovery
            handlers = PeerHandlers(broker.produce.records, served, discovery, broker.admission, authorizer)
            peer.handlers[MessageType.APPEND] = lambda _, message: handlers.append(message.body)
            peer.handlers[MessageType.DESCRIBE] = lambda _, message: handlers.describe(message.body)
            peer.http = lambda session: listener.relayed_protocol(session.broker_id)
            listener.open(broker, groups, lambda stopping: Relay(broker.elsewhere.router, http, stopping))
            found = self.running[broker_id] = RelayingBroker(broker, url, listener, peer)
            at_end.push_async_callback(found.http.aclose)
            self._ends[broker_id] = at_end.pop_all()
            return found

    async def end(self, broker_id: int) -> None:
        self.running.pop(broker_id, None)
        await self._ends.pop(broker_id).aclose()

    async def end_all(self) -> None:
        for broker_id in list(self._ends):
            await self.end(broker_id)


@contextlib.asynccontextmanager
async def relaying_cluster(
    data: Path,
    *brokers: int,
    partitions: int = 3,
    configs: dict[str, str] | None = None,
    replicated: bool = False,
    **settings: Any,
) -> AsyncIterator[RelayingCluster]:
    """Run brokers with a topic ``t``, whose partitions the ``brokers`` lead in turn, as their only replicas unless
    ``replicated``. The offsets topic is distributed in the same way.
    """
    catalog = TopicCatalog(TableRoot(data, FileSystem()))
    catalog.create("t", num_partitions=partitions, config_overrides=configs or {})
    catalog.create(OFFSETS_TOPIC, num_partitions=len(brokers), config_overrides=OFFSETS_TOPIC_CONFIGS)
    cluster = RelayingCluster(data, brokers)
    try:
        for broker in brokers:
            await cluster.serve(broker, **settings)
        leaders = [brokers[number % len(brokers)] for number in range(partitions)]
        cluster.lead("t", *leaders, replicated=replicated)
        cluster.lead(OFFSETS_TOPIC, *brokers, replicated=replicated)
        yield cluster
    finally:
        await cluster.end_all()
