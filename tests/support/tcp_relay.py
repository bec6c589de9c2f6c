"""A relay of TCP connections that can be cut half-open, so that nothing passes and neither end notices.

Each direction can be cut separately, bytes can be lost or delayed, connections can be reset. ``PeerRelay`` knows which
broker has opened a connection, and sends messages between brokers a second time.
"""

import asyncio
import contextlib
import random
import struct
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Self

from logstore.records.batch_identity import NO_IDENTITY
from logstore.replication.peer_auth import ClusterSecret
from logstore.replication.protocol import MESSAGE_HEADER_BYTES, MessageType, decode_append, decode_header, encode_header

_CHUNK_BYTES: Final = 65_536


class Direction(IntEnum):
    UP = 0
    """From whoever has opened the connection to the target."""
    DOWN = 1


BOTH: Final = frozenset(Direction)
#: The client id of all clients; a ``PeerRelay`` knows clients by the ids of their brokers.
EVERYBODY: Final = -1


@dataclass(eq=False, slots=True)
class _Connection:
    client: int
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    #: Its bytes wait, even when new connections pass.
    is_stranded: bool = False
    #: Bytes are missing, so that the following ones would be meaningless.
    is_holed: bool = False

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class TcpRelay:
    """Use it as ``async with TcpRelay("host:port") as relay: relay.address``, on one event loop. It listens on
    ``listen``.
    """

    def __init__(self, target: str, listen: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._listen = listen
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._held: set[tuple[int, Direction]] = set()
        self._changed = asyncio.Event()
        self._swallows = False
        self._delay_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[_Connection] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, *self._listen)
        host, port, *_ = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    # ---- faults -----------------------------------------------------------------------------------------------------

    def cut(self, directions: frozenset[Direction] = BOTH, client: int = EVERYBODY) -> None:
        """Hold bytes and ends of connections back from now on; with ``UP``, hold new connections back as well."""
        self._held.update((client, direction) for direction in directions)

    def strand(self) -> None:
        """Hold back the bytes of existing connections, which arrive late; new connections pass."""
        for connection in self._connections:
            connection.is_stranded = True

    def swallow(self) -> None:
        """Accept connections and discard all bytes; neither end notices."""
        self._swallows = True

    def delay(self, seconds: float) -> None:
        """Delay bytes by this time from now on."""
        self._delay_s = seconds

    def reset(self) -> None:
        """Reset all connections at once."""
        for connection in list(self._connections):
            connection.abort()

    def heal(self) -> None:
        """Let everything pass that was held back; connections that have lost bytes break."""
        self._held.clear()
        for connection in self._connections:
            connection.is_stranded = False
        self._swallows = False
        self._delay_s = 0.0
        self._changed.set()
        self._changed = asyncio.Event()
        for connection in list(self._connections):
            if connection.is_holed:
                connection.abort()

    # ---- connections ------------------------------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._relay(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(EVERYBODY, [writer])
        self._connections.add(connection)
        try:
            connection.client, begun = await self._client(reader)
            await self._pass(connection, Direction.UP)
            if self._swallows:
                connection.is_holed = True
                while await reader.read(_CHUNK_BYTES):
                    pass
                return
            up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
            connection.writers.append(up_writer)
            self._seen(connection, Direction.UP, begun)
            up_writer.write(begun)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(connection, Direction.UP, reader, up_writer))
                pumps.create_task(self._pump(connection, Direction.DOWN, up_reader, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.discard(connection)
            for one in connection.writers:
                one.close()
            for one in connection.writers:
                with contextlib.suppress(OSError, asyncio.CancelledError):
                    await one.wait_closed()

    async def _client(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        """Return the id of the client that has opened the connection, and the bytes read to find it out."""
        return EVERYBODY, b""

    async def _pass(self, connection: _Connection, direction: Direction) -> None:
        places = {(EVERYBODY, direction), (connection.client, direction)}
        while connection.is_stranded or not self._held.isdisjoint(places):
            await self._changed.wait()

    async def _pump(
        self, connection: _Connection, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._pass(connection, direction)
                if self._swallows:
                    connection.is_holed = True
                    continue
                self._seen(connection, direction, data)
                writer.write(data)
                await writer.drain()
        await self._pass(connection, direction)  # the end of a connection does not pass either
        writer.close()

    def _seen(self, connection: _Connection, direction: Direction, data: bytes) -> None:
        """Note bytes that pass."""


class PeerRelay(TcpRelay):
    """A relay before a broker's peer listener. ``cut`` may name the broker whose connections are cut."""

    def __init__(self, target: str, listen: tuple[str, int] = ("127.0.0.1", 0), secret: str | None = None) -> None:
        super().__init__(target, listen)
        self._parsers: dict[_Connection, _Messages] = {}
        #: HELLO and a request, as one connection carried them.
        self._requests: deque[tuple[bytes, bytes]] = deque(maxlen=200)
        self.repeated = 0
        self._secret = ClusterSecret(secret)

    async def repeat(self, count: int, chance: random.Random) -> None:
        """Send old requests again, each over a new connection, as if they had been delayed: HELLO has the old broker
        epoch. Of APPENDs it sends only those that the leader must recognize as duplicates.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 2
        for hello, request in chance.sample(list(self._requests), min(count, len(self._requests))):
            if loop.time() > deadline:
                return  # the broker is down or stands still
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                async with asyncio.timeout(2):
                    reader, writer = await asyncio.open_connection(self._host, self._port)
                    try:
                        greeted = await _ask(reader, writer, hello)
                        proof = self._secret.proof_of_connecting(hello[MESSAGE_HEADER_BYTES:], greeted)
                        await _ask(reader, writer, encode_header(MessageType.AUTH, 0, len(proof)) + proof)
                        await _ask(reader, writer, request)
                        self.repeated += 1
                    finally:
                        writer.close()
                        await writer.wait_closed()

    async def _client(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        # HELLO begins with the id of the sending broker.
        begun = await reader.readexactly(MESSAGE_HEADER_BYTES + 4)
        return struct.unpack_from("<i", begun, MESSAGE_HEADER_BYTES)[0], begun

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await super()._relay(reader, writer)
        for gone in self._parsers.keys() - self._connections:
            del self._parsers[gone]

    def _seen(self, connection: _Connection, direction: Direction, data: bytes) -> None:
        if direction is not Direction.UP:
            return
        messages = self._parsers.get(connection)
        if messages is None:
            messages = self._parsers[connection] = _Messages()
        for request in messages.feed(data):
            if messages.hello and _may_be_repeated(request):
                self._requests.append((messages.hello, request))


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    """Send a request and return the body of the response."""
    writer.write(request)
    await writer.drain()
    header = decode_header(await reader.readexactly(MESSAGE_HEADER_BYTES))
    return await reader.readexactly(header.body_bytes)


class _Messages:
    """Splits the bytes of a connection into whole messages, until it continues as HTTP."""

    def __init__(self) -> None:
        self.hello = b""
        self._left = bytearray()
        self._is_over = False

    def feed(self, data: bytes) -> list[bytes]:
        if self._is_over:
            return []
        self._left += data
        found = []
        while len(self._left) >= MESSAGE_HEADER_BYTES:
            header = decode_header(self._left)
            end = MESSAGE_HEADER_BYTES + header.body_bytes
            if header.type == MessageType.HTTP:
                self._is_over = True
                self._left.clear()
                break
            if len(self._left) < end:
                break
            message = bytes(self._left[:end])
            del self._left[:end]
            if header.type == MessageType.HELLO:
                self.hello = message
            else:
                found.append(message)
        return found


def _may_be_repeated(message: bytes) -> bool:
    header = decode_header(message)
    if header.type == MessageType.FETCH:
        return True
    if header.type != MessageType.APPEND:
        return False
    # A batch without an identity is another batch if it comes again.
    parts = decode_append(memoryview(message)[MESSAGE_HEADER_BYTES:]).parts
    return all(part.identity != NO_IDENTITY for part in parts)
