"""A relay of TCP connections that can be cut: half-open, so that nothing passes and nobody is told."""

import asyncio
import contextlib
from typing import Self


class TcpRelay:
    """``async with TcpRelay("host:port") as relay: relay.address``, on one event loop. It listens on ``listen``."""

    def __init__(self, target: str, listen: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._listen = listen
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._open = asyncio.Event()
        self._open.set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, *self._listen)
        host, port, *_ = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    def cut(self) -> None:
        """Bytes and new connections wait from now on."""
        self._open.clear()

    def heal(self) -> None:
        self._open.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        await self._open.wait()
        try:
            up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        self._writers.append(up_writer)
        for one, other in ((reader, up_writer), (up_reader, writer)):
            pump = asyncio.create_task(self._pump(one, other))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        await self._open.wait()  # the end of a connection does not pass either
        writer.close()
