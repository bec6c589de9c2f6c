"""An application behind our protocol, on a socket of the test's own process."""

import asyncio
import contextlib
import socket

import uvicorn
from uvicorn.server import ServerState

from ingest_api.protocol import ConnectionLimits, http_protocol


@contextlib.asynccontextmanager
async def listening(app, **limits):
    """The port, and the state of uvicorn's server."""
    protocol = http_protocol(ConnectionLimits(**limits), app.short_requests)
    config = uvicorn.Config(app, http=protocol, ws="none", lifespan="off", log_config=None)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    listener = socket.create_server(("127.0.0.1", 0))
    # Little, so that what a client does not take stays with the protocol; a connection inherits it.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    server = await loop.create_server(lambda: protocol(config=config, server_state=state, app_state={}), sock=listener)
    try:
        yield server.sockets[0].getsockname()[1], state
    finally:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.gather(*state.tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def connected(port: int):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
