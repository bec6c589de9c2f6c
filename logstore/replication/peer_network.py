"""The network between brokers: TCP, with TLS or without, in one place, so that a simulation can replace it."""

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from logstore.listening_sockets import SocketBuffers, bound_socket
from logstore.tls_server import serve

if TYPE_CHECKING:  # Without TLS the parser of certificates is not imported.
    from logstore.tls.contexts import Tls


class Listening(Protocol):
    """Accepts connections, as ``asyncio.Server`` does."""

    def close(self) -> None:
        """Accept no more connections; accepted ones continue."""


class PeerNetwork:
    """Connects brokers by TCP sockets of the machine, over TLS unless ``tls`` is None."""

    def __init__(self, tls: "Tls | None" = None) -> None:
        self._tls = tls

    async def connect(
        self, host: str, port: str, make_protocol: Callable[[], asyncio.BaseProtocol], buffers: SocketBuffers
    ) -> None:
        """Connect a protocol to the first address of ``host`` that answers. Raises the last one's OSError if none
        does, also if the certificate there is not one of ``host`` that the trust store vouches for.
        """
        loop = asyncio.get_running_loop()
        context, name = (None, None) if self._tls is None else (self._tls.client, host)
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for at, (family, kind, number, _, where) in enumerate(found, start=1):
            connecting = socket.socket(family, kind, number)
            try:
                connecting.setblocking(False)
                buffers.apply(connecting)
                await loop.sock_connect(connecting, where)
                await loop.create_connection(make_protocol, sock=connecting, ssl=context, server_hostname=name)
                return
            except BaseException as error:
                connecting.close()
                if not isinstance(error, OSError) or at == len(found):
                    raise

    async def listen(
        self, host: str, port: int, make_protocol: Callable[[], asyncio.BaseProtocol], buffers: SocketBuffers
    ) -> tuple[Listening, int]:
        """Listen on ``port`` (0: a free one). Return the listening object and the port. Raises OSError if the port is
        taken.
        """
        listening = bound_socket(host, port, buffers)
        bound_port = listening.getsockname()[1]
        return await serve("PEER", listening, make_protocol, self._tls), bound_port
