"""Bytes to a server and responses from it, over many sockets at once, for requests that no HTTP library sends."""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Self

# It is longer than any limit of a server under test: a wait this long is a hang.
HANGS_AFTER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def check(self) -> Self:
        """Check that an error is a JSON object of a code and a message, without a traceback, and that nothing else is a
        5xx.
        """
        if self.status >= 400:
            assert self.headers["content-type"] == "application/json", self
            error = self.json
            assert set(error) == {"error_code", "message"}, self
            assert error["message"], self
            assert b"Traceback" not in self.body, self
        assert self.status < 500 or self.status == 503, self
        return self


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.port: int = writer.get_extra_info("sockname")[1]

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(cls, port: int, *, receive_bytes: int = 0) -> AsyncIterator[Self]:
        """Connect; ``receive_bytes`` are the bytes that the kernel may buffer for this client, 0 for the default."""
        raw = socket.socket()
        if receive_bytes:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        raw.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
            client = cls(*await asyncio.open_connection(sock=raw, limit=2**16))
        except BaseException:
            raw.close()
            raise
        try:
            yield client
        finally:
            client.close()

    async def send(self, data: bytes) -> None:
        """Send bytes. It is no error if the server accepts no more of them: its response counts."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(data)
            async with asyncio.timeout(HANGS_AFTER_SECONDS):
                await self._writer.drain()

    async def answer(self) -> Answer | None:
        """Return the next response, checked; None if the server closed the connection instead of a (whole) response.

        A stream of events has no end, so its response has an empty body.
        """
        try:
            async with asyncio.timeout(HANGS_AFTER_SECONDS):
                status_line, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines) if name}
                status = int(status_line.split(" ")[1])
                if headers.get("transfer-encoding") == "chunked":
                    endless = headers["content-type"].startswith("text/event-stream")
                    body = b"" if endless else await self._chunks()
                else:
                    size = 0 if status < 200 or status == 204 else int(headers["content-length"])
                    body = await self._reader.readexactly(size)
                return Answer(status, headers, body).check()
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def _chunks(self) -> bytes:
        found = bytearray()
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            found += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)
        return bytes(found)

    async def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes, or a few more."""
        found = bytearray()
        async with asyncio.timeout(HANGS_AFTER_SECONDS):
            while len(found) < count and (piece := await self._reader.read(2**16)):
                found += piece
        return bytes(found)

    async def rest(self) -> bytes:
        """Return all bytes until the server closes the connection."""
        found = bytearray()
        async with asyncio.timeout(HANGS_AFTER_SECONDS):
            with contextlib.suppress(ConnectionError):
                while piece := await self._reader.read(2**16):
                    found += piece
        return bytes(found)

    def half_close(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    def reset(self) -> None:
        """Close with RST instead of FIN; unsent bytes are dropped."""
        raw = self._writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()
