"""Brokers that speak the peer protocol to each other on loopback, and one whose every byte a test writes itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from logstore.replication.message_stream import pieces_of
from logstore.replication.peer_auth import ClusterSecret, new_nonce
from logstore.replication.peer_connection import PeerConnection
from logstore.replication.peer_listener import PeerListener
from logstore.replication.peer_options import PeerOptions
from logstore.replication.protocol import (
    MESSAGE_HEADER_BYTES,
    Body,
    Hello,
    Message,
    MessageType,
    decode_header,
    encode_auth,
    encode_header,
    encode_hello,
)

CLUSTER = "0123456789abcdef0123456789abcdef"
SECRET = ClusterSecret("a secret of the cluster")


@dataclass
class Local:
    """A broker as ``LocalBroker`` requires it."""

    broker_id: int
    cluster_id: str = CLUSTER
    broker_epoch: int = 7


def options(timeout_s: float = 30.0, **changes) -> PeerOptions:
    return replace(PeerOptions(secret=SECRET, timeout_s=timeout_s), **changes)


@contextlib.asynccontextmanager
async def listening(
    broker_id: int = 2, given: PeerOptions | None = None, **listener_options
) -> AsyncIterator[PeerListener]:
    listener = PeerListener(Local(broker_id), given or options(), **listener_options)
    await listener.start("127.0.0.1", 0)
    try:
        yield listener
    finally:
        await listener.stop()


@contextlib.asynccontextmanager
async def connected(
    to: PeerListener | str, given: PeerOptions | None = None, *, peer_id: int = 2, local: Local | None = None
) -> AsyncIterator[PeerConnection]:
    """Connect broker 1 to a listener, or to an address."""
    address = to if isinstance(to, str) else to.address
    connection = await PeerConnection.connect(address, peer_id, local or Local(1), given or options())
    try:
        yield connection
    finally:
        connection.close()


class RawBroker:
    """One TCP connection that sends raw bytes, as broker 1 or as no broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, message_type: int, correlation: int = 0, body: Body = b"", error: int = 0) -> None:
        body = b"".join(pieces_of(body))
        self.writer.write(encode_header(message_type, correlation, len(body), error) + body)
        await self.writer.drain()

    async def receive(self) -> Message:
        """Receive a message. Raises IncompleteReadError at the end of the connection."""
        header = decode_header(await self.reader.readexactly(MESSAGE_HEADER_BYTES))
        return Message(header, await self.reader.readexactly(header.body_bytes))

    async def until_end(self) -> bytes:
        """Return the bytes that come before the connection ends, in whatever way it ends."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    async def shake(self, secret: ClusterSecret = SECRET, hello: Hello | None = None) -> None:
        sent = encode_hello(hello or Hello(CLUSTER, 1, 2, 7, new_nonce(), "test"))
        await self.send(MessageType.HELLO, 1, sent)
        answer = await self.receive()
        assert answer.header.error == 0
        await self.send(MessageType.AUTH, 2, encode_auth(secret.proof_of_connecting(sent, answer.body)))
        assert (await self.receive()).header.error == 0


@contextlib.asynccontextmanager
async def raw(address: str) -> AsyncIterator[RawBroker]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield RawBroker(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
