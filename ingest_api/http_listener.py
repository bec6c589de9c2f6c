"""The HTTP listener: one uvicorn server on the sockets that it is given.

It responds from ``serve`` on; while the store starts, only to the liveness check. ``open`` gives it the store. It stops
in this order: long polls return what they have, requests in flight finish, connections close.
"""

import asyncio
import contextlib
import dataclasses
import functools
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import structlog
import uvicorn

from consumer_offsets.group_coordinator import GroupCoordinator
from ingest_api.app import create_app
from ingest_api.protocol import ConnectionLimits, http_protocol
from ingest_api.state import ApiState
from logstore.broker.authorizer import Authorizer
from logstore.broker.broker import Broker
from logstore.broker.quotas import Quotas
from logstore.broker.tls_identity import identify_by
from logstore.limits import PEER_HTTP_IDLE_S
from logstore.listening_sockets import BACKLOG
from logstore.open_files import connections_within, open_files_limit, open_files_shortage
from logstore.settings import Settings
from logstore.tls_server import serve

if TYPE_CHECKING:  # A single node relays nothing.
    from ingest_api.relay import Relay

    # Without TLS the parser of certificates is not imported.
    from logstore.tls.contexts import Tls

log = structlog.stdlib.get_logger(__name__)

# After this, requests in flight are cut: their outcome is unknown to the client, as after any lost connection.
GRACEFUL_SHUTDOWN_SECONDS = 10
#: The name of the listener in a request's context.
LISTENER = "HTTP"


MakeRelay = Callable[[asyncio.Event], "Relay"]


class HttpListener:
    def __init__(self, settings: Settings, authorizer: Authorizer, quotas: Quotas, tls: "Tls | None" = None) -> None:
        """With ``tls`` clients connect over TLS alone."""
        files = open_files_limit()
        if (shortage := open_files_shortage(files, settings.max_connections)) is not None:
            log.warning("listener.few_open_files", reason=shortage)
        self._settings = settings
        self._app = create_app(settings, authorizer, quotas)
        self._other_connections: Callable[[], int] = lambda: 0
        limits = ConnectionLimits.of(
            settings,
            max_connections=connections_within(settings.max_connections, files),
            other_connections=self._count_others,
        )
        self._accepted = http_protocol(limits, self._app.short_requests, identify_by(tls))
        # The other broker bounds the clients, and appends short requests.
        self._relayed = http_protocol(dataclasses.replace(limits, idle_seconds=PEER_HTTP_IDLE_S))
        self._server = _Server(
            uvicorn.Config(
                self._app,
                http=self._accepted,
                ws="none",
                # The application has no start or stop of its own: the node starts and stops the store.
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_SECONDS,
            ),
            self._begin_to_stop,
            tls,
        )
        self._stopping = asyncio.Event()

    async def serve(self, listener: socket.socket) -> None:
        """Serve ``listener`` until ``stop``, and return after the last response."""
        try:
            await self._server.serve([listener])
        finally:
            self._stopping.set()

    async def serve_too(self, listener: socket.socket) -> None:
        """Serve one more socket, from now on until ``stop``, which closes it."""
        await self._server.serve_on(listener)

    @property
    def connection_count(self) -> int:
        return len(self._server.server_state.connections)

    def _count_others(self) -> int:
        return self._other_connections()

    def count_also(self, other_connections: Callable[[], int]) -> None:
        """Count the connections of another listener as well for ``max.connections``."""
        self._other_connections = other_connections

    async def until_stopping(self) -> None:
        """Wait until no more connections are accepted."""
        await self._stopping.wait()

    def open(self, broker: Broker, groups: GroupCoordinator, make_relay: MakeRelay | None = None) -> None:
        """Respond to all requests from now on. In a cluster, ``make_relay`` gets the event that is set when the
        listener stops.
        """
        state = ApiState(self._settings, broker, groups)
        self._app.open(state, None if make_relay is None else make_relay(state.stopping))

    def relayed_protocol(self, broker_id: int) -> asyncio.Protocol:
        """Return a protocol for HTTP on a connection of broker ``broker_id``, which has authenticated itself."""
        server = self._server
        protocol = self._relayed(
            config=server.config, server_state=server.server_state, app_state=server.lifespan.state
        )
        protocol.relaying_broker = broker_id
        return protocol

    def close(self) -> None:
        """Close the application after ``serve`` has returned."""
        self._app.close()

    def _begin_to_stop(self) -> None:
        self._stopping.set()
        self._app.stop_waiting()

    @property
    def is_stopping(self) -> bool:
        return self._server.should_exit

    def stop(self) -> None:
        """End ``serve``. The second call does not wait for requests in flight either."""
        self._server.force_exit = self._server.should_exit
        self._server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn's server. It notifies the application when it begins to stop, and leaves signals to the node."""

    def __init__(self, config: uvicorn.Config, begin_to_stop: Callable[[], None], tls: "Tls | None") -> None:
        super().__init__(config)
        self._begin_to_stop = begin_to_stop
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn would give its sockets a context that stays.
        await super().startup([])
        for listener in sockets or ():
            await self.serve_on(listener)

    async def serve_on(self, listener: socket.socket) -> None:
        """Serve one more socket."""
        protocol: Any = self.config.http_protocol_class  # uvicorn knows it as any protocol
        make = functools.partial(
            protocol,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        # It has what uvicorn calls of a server.
        self.servers.append(await serve(LISTENER, listener, make, self._tls))  # type: ignore[arg-type]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._begin_to_stop()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn would raise the signal again at the end, and the process would die of it instead of exiting with 0.
        yield
