"""The connections of clients of the simulated world to the listeners of its nodes."""

import asyncio

from logstore.listening_sockets import SocketBuffers
from tests.simulation.listeners import HOST
from tests.simulation.network import Network
from tests.simulation.node import NoConnectionError

#: What arrives, and where requests are written. A StreamWriter would warn of each client that is cancelled.
Streams = tuple[asyncio.StreamReader, asyncio.Transport]

#: Seconds until a client gives up a connection that is not accepted.
_CONNECT_S = 10.0
_READ_BYTES = 2**17


class Ways:
    """The connections of one client, one to each port; ``name`` is its place in the network."""

    def __init__(self, network: Network, name: str) -> None:
        self._network = network.of(name)
        self._open: dict[int, Streams] = {}

    async def to(self, port: int) -> Streams:
        """The connection there, or a new one. NoConnectionError."""
        if (found := self._open.get(port)) is not None:
            reader, transport = found
            if not (reader.at_eof() or reader.exception() or transport.is_closing()):
                return found
            self.close(port)
        protocol = _Protocol(asyncio.get_running_loop())
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._network.connect(HOST, str(port), lambda: protocol, SocketBuffers())
        except OSError:
            raise NoConnectionError from None
        found = self._open[port] = protocol.streams()
        return found

    def close(self, port: int) -> None:
        """End the connection, whatever is on its way."""
        if found := self._open.pop(port, None):
            found[1].abort()


class _Protocol(asyncio.StreamReaderProtocol):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._reader = asyncio.StreamReader(_READ_BYTES, loop)
        super().__init__(self._reader, loop=loop)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._made = transport

    def streams(self) -> Streams:
        return self._reader, self._made  # type: ignore[return-value]
