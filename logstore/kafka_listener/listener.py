"""The Kafka listener: the socket and all connections, from the moment that the store is ready to its stop.

It stops in this order: no more connections and requests, long waits end, requests in hand get their responses,
connections close.
"""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import structlog

from logstore.broker.tls_identity import identify_by
from logstore.entropy import random_bits
from logstore.kafka_listener.connection import LISTENER, Connection
from logstore.kafka_listener.listening import ConnectionLimits
from logstore.kafka_listener.store import KafkaStore
from logstore.observability import KAFKA_CONNECTIONS, FewLines
from logstore.open_files import connections_within, open_files_limit
from logstore.tls_server import TlsServer, serve

if TYPE_CHECKING:  # Without TLS the parser of certificates is not imported.
    from logstore.tls.contexts import Tls

log = structlog.stdlib.get_logger(__name__)

# After this, requests in hand are cut: their outcome is unknown to the client, as after any lost connection.
_STOP_SECONDS: Final = 10.0
# Connections are checked this often within the shortest of their times, and at least once in five seconds.
_LOOKS: Final = 4
_LOOK_SECONDS_MAX: Final = 5.0


class KafkaListener:
    """``other_connections`` returns the number on other listeners, which ``max.connections`` also counts. With ``tls``
    clients connect over TLS alone.
    """

    def __init__(
        self, store: KafkaStore, other_connections: Callable[[], int] = lambda: 0, tls: "Tls | None" = None
    ) -> None:
        self.store = store
        self.limits = ConnectionLimits.of(store.settings)
        self._connections_max = connections_within(store.settings.max_connections, open_files_limit())
        self._other_connections = other_connections
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tls = tls
        self.identify = identify_by(tls)
        self._server: asyncio.Server | TlsServer | None = None
        self._looking: asyncio.Task[None] | None = None
        self._all_gone = asyncio.Event()
        # A connection's name is the listener's name and a number.
        self._name = f"{random_bits(64):016x}"
        self._accepted = itertools.count(1)
        #: One line for each connection that was ended, except idle ones.
        self.ended = FewLines(log.warning, "kafka.connection_ended")

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def open(self, listening: socket.socket) -> None:
        """Serve ``listening`` from now on; ``stop`` closes it."""
        self._server = await serve(LISTENER, listening, lambda: Connection(self), self._tls)
        self._looking = asyncio.create_task(self._look())

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._connections):
            connection.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._until_all_gone()
                await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self._connections):
            connection.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._until_all_gone()
        await self._server.wait_closed()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _until_all_gone(self) -> None:
        while self._connections:
            self._all_gone.clear()
            await self._all_gone.wait()

    async def _look(self) -> None:
        limits = self.limits
        shortest = min(limits.idle_seconds, limits.request_seconds, limits.answer_seconds)
        while True:
            await asyncio.sleep(min(shortest / _LOOKS, _LOOK_SECONDS_MAX))
            now = asyncio.get_running_loop().time()
            for connection in list(self._connections):
                connection.look(now)

    # ---- connections ------------------------------------------------------------------------------------------------

    def new_name(self) -> str:
        """Return a name for a connection that no other one has."""
        return f"{self._name}{next(self._accepted):x}"

    def arrived(self, connection: Connection) -> bool:
        """Return whether there is room for the connection; ``gone`` is called in any case."""
        self._connections.add(connection)
        KAFKA_CONNECTIONS.set(len(self._connections))
        if len(self._connections) + self._other_connections() > self._connections_max:
            self.ended.add(
                peer=connection.peer,
                reason=f"All {self._connections_max} connections are taken (max.connections)",
            )
            return False
        return self._server is not None and self._server.is_serving()

    def gone(self, connection: Connection) -> None:
        self._connections.discard(connection)
        KAFKA_CONNECTIONS.set(len(self._connections))
        if not self._connections:
            self._all_gone.set()

    def run(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Return a task that is held until it is done."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
