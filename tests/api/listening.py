"""An application behind our protocol, on a socket in the test's own process."""

import asyncio
import contextlib
import functools
import socket
import ssl

import trustme
import uvicorn
from uvicorn.server import ServerState

from ingest_api.protocol import ConnectionLimits, http_protocol

#: True if connections use TLS. The fixture ``transport`` sets it.
over_tls = False


def server_tls() -> ssl.SSLContext | None:
    return _tls_contexts()[0] if over_tls else None


def client_tls() -> ssl.SSLContext | None:
    return _tls_contexts()[1] if over_tls else None


@functools.cache
def _tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return a server's context, with a certificate of our own authority, and a client's context that trusts it."""
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    return server, client


@contextlib.asynccontextmanager
async def listening(app, **limits):
    """Serve the application, over TLS in a test with the fixture ``transport``; yield the port and uvicorn's state."""
    protocol = http_protocol(ConnectionLimits(**limits), app.short_requests)
    config = uvicorn.Config(app, http=protocol, ws="none", lifespan="off", log_config=None)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    listener = socket.create_server(("127.0.0.1", 0))
    # The buffer is small, so that bytes that a client does not take stay with the protocol. Connections inherit it.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    server = await loop.create_server(
        lambda: protocol(config=config, server_state=state, app_state={}),
        sock=listener,
        ssl=server_tls(),
    )
    try:
        yield server.sockets[0].getsockname()[1], state
    finally:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.gather(*state.tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def connected(port: int, *, receive_buffer: int | None = None):
    """Yield a client's reader and writer; its kernel and its reader hold at most ``receive_buffer`` unread bytes."""
    client = socket.socket()
    if receive_buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    name = "localhost" if over_tls else None
    reader, writer = await asyncio.open_connection(
        sock=client, ssl=client_tls(), server_hostname=name, limit=receive_buffer or 2**16
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def read_nothing(writer: asyncio.StreamWriter) -> None:
    """Stop reading from the client's socket; TLS would still fill its own buffer, so the transport below it pauses."""
    transport = writer.transport
    if over_tls:
        transport = transport._ssl_protocol._transport
    transport.pause_reading()
