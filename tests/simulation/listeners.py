"""The HTTP and Kafka listeners of a node on the simulated network, set up around a store as ``logstore.node`` does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from ingest_api.http_listener import HttpListener
from logstore.broker.authorizer import Authorizer
from logstore.broker.quotas import Quotas
from logstore.kafka_listener.listener import KafkaListener
from logstore.kafka_listener.store import KafkaStore
from logstore.listening_sockets import SocketBuffers, url_on
from logstore.node import Store
from logstore.settings import Settings, address_of
from tests.simulation.network import NodeNetwork

HOST = "127.0.0.1"
#: The ports of broker 0; the next brokers have the next ports.
HTTP_PORT, KAFKA_PORT = 8_000, 9_000

#: A function of authorizer, quotas, the URL of the node and its address for Kafka's clients; it makes the store.
MakeStore = Callable[[Authorizer, Quotas, str, str], AbstractAsyncContextManager[Store]]


class _Ordered(dict[Any, None]):
    """A set whose order is the same in every run."""

    def add(self, one: Any) -> None:
        self[one] = None

    def discard(self, one: Any) -> None:
        self.pop(one, None)


class PlayedSocket:
    """The socket that listeners get; ``SimulatedLoop.create_server`` makes it listen. It is its own server."""

    def __init__(self, network: NodeNetwork, port: int) -> None:
        self._network, self._port = network, port
        self._listening: Any = None

    def getsockname(self) -> tuple[str, int]:
        return HOST, self._port

    async def listen(self, make_protocol: Callable[[], asyncio.BaseProtocol]) -> "PlayedSocket":
        self._listening, _ = await self._network.listen(HOST, self._port, make_protocol, SocketBuffers())
        return self

    def is_serving(self) -> bool:
        return self._listening is not None

    def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def wait_closed(self) -> None: ...


@contextlib.asynccontextmanager
async def listening_store(settings: Settings, network: NodeNetwork, make_store: MakeStore) -> AsyncIterator[Store]:
    """Run the store with its listeners while the block lasts. Raises what ``make_store`` raises."""
    authorizer, quotas = Authorizer(), Quotas()
    kafka_address = HOST, KAFKA_PORT + settings.broker_id
    http_port = HTTP_PORT + settings.broker_id
    http = HttpListener(settings, authorizer, quotas)
    state = http._server.server_state
    state.connections, state.tasks = _Ordered(), _Ordered()  # type: ignore[assignment]
    serving = asyncio.create_task(http.serve(PlayedSocket(network, http_port)))  # type: ignore[arg-type]
    try:
        async with make_store(authorizer, quotas, url_on(HOST, http_port), address_of(*kafka_address)) as store:
            if store.member is None:
                http.open(store.broker, store.groups)
            else:
                store.member.open(http, store.broker, store.groups)
            kafka = KafkaListener(
                KafkaStore(settings, store.broker, store.groups, store.cluster_state, kafka_address),
                lambda: http.connection_count,
            )
            kafka._connections, kafka._tasks = _Ordered(), _Ordered()  # type: ignore[assignment]
            await kafka.open(PlayedSocket(network, kafka_address[1]))  # type: ignore[arg-type]
            try:
                yield store
            finally:
                await kafka.stop()
                http.stop()
                await serving
                http.close()
    finally:  # the store may have failed to start
        http.stop()
        await serving
