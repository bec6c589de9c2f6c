"""The relay cuts, loses, delays and repeats: tests of the bytes that pass it."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from logstore.records.batch_identity import NO_IDENTITY, BatchIdentity
from logstore.replication.peer_auth import ClusterSecret
from logstore.replication.protocol import (
    MESSAGE_HEADER_BYTES,
    Append,
    AppendPart,
    Hello,
    MessageType,
    decode_header,
    encode_append,
    encode_header,
    encode_hello,
)
from tests.support.tcp_relay import Direction, PeerRelay, TcpRelay

pytestmark = pytest.mark.anyio
_SOON_S = 5
_QUIET_S = 0.1


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Echo:
    """A server that echoes the same bytes; ``received`` has all of them."""

    def __init__(self) -> None:
        self.received = bytearray()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                self.received += data
                writer.write(data)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def served(echo: Echo, kind: type[TcpRelay] = TcpRelay) -> AsyncIterator[TcpRelay]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        async with kind(f"{host}:{port}") as relay:
            yield relay
    finally:
        server.close()


@contextlib.asynccontextmanager
async def connected(relay: TcpRelay) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = relay.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def read(reader: asyncio.StreamReader, count: int) -> bytes:
    async with asyncio.timeout(_SOON_S):
        return await reader.readexactly(count)


async def comes_nothing(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_QUIET_S):
            await reader.read(1)
            return False
    return True


async def test_one_direction_is_cut() -> None:
    echo = Echo()
    async with served(echo) as relay, connected(relay) as (reader, writer):
        writer.write(b"a")
        assert await read(reader, 1) == b"a"
        relay.cut(frozenset({Direction.DOWN}))
        writer.write(b"b")
        assert await comes_nothing(reader)
        assert echo.received == b"ab", "the other direction passes"
        relay.heal()
        assert await read(reader, 1) == b"b"
        relay.cut(frozenset({Direction.UP}))
        writer.write(b"c")
        assert await comes_nothing(reader)
        assert echo.received == b"ab"
        relay.heal()
        assert await read(reader, 1) == b"c"


async def test_swallowed_bytes_end_their_connection_when_it_is_healed() -> None:
    echo = Echo()
    async with served(echo) as relay, connected(relay) as (reader, writer):
        writer.write(b"a")
        await read(reader, 1)
        relay.swallow()
        async with connected(relay) as (other_reader, other):
            for one in (writer, other):
                one.write(b"lost")
                await one.drain()
            assert await comes_nothing(reader)
            assert await comes_nothing(other_reader)
            relay.heal()
            for one in (reader, other_reader):
                with pytest.raises((OSError, asyncio.IncompleteReadError)):
                    await read(one, 1)
        assert echo.received == b"a"
        async with connected(relay) as (third_reader, third):
            third.write(b"b")
            assert await read(third_reader, 1) == b"b"


async def test_stranded_bytes_come_late_while_new_connections_pass() -> None:
    echo = Echo()
    async with served(echo) as relay, connected(relay) as (reader, writer):
        writer.write(b"a")
        await read(reader, 1)
        relay.strand()
        writer.write(b"late")
        async with connected(relay) as (other_reader, other):
            other.write(b"new")
            assert await read(other_reader, 3) == b"new"
        assert echo.received == b"anew"
        relay.heal()
        assert await read(reader, 4) == b"late"


async def test_delayed_and_reset() -> None:
    async with served(Echo()) as relay, connected(relay) as (reader, writer):
        relay.delay(0.1)
        began = asyncio.get_running_loop().time()
        writer.write(b"a")
        await read(reader, 1)
        assert asyncio.get_running_loop().time() - began >= 0.2, "both ways"
        relay.reset()
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await read(reader, 1)


def message(kind: MessageType, body: bytes) -> bytes:
    return encode_header(kind, 7, len(body)) + body


def hello(broker: int) -> bytes:
    return message(MessageType.HELLO, encode_hello(Hello("c", broker, 9, 1, bytes(32), "1")))


def append(identity: BatchIdentity) -> bytes:
    part = AppendPart(UUID(int=1), 0, identity, 1, 0, 5, 1, b"x")
    return message(MessageType.APPEND, b"".join(bytes(p) for p in encode_append(Append(-1, 1_000, "p", "c", [part]))))


async def test_a_cut_between_two_brokers_leaves_the_others() -> None:
    echo = Echo()
    async with (
        served(echo, PeerRelay) as relay,
        connected(relay) as (one, to_one),
        connected(relay) as (two, to_two),
    ):
        to_one.write(hello(1))
        to_two.write(hello(2))
        await read(one, len(hello(1)))
        await read(two, len(hello(2)))
        relay.cut(client=1)
        to_one.write(b"x")
        to_two.write(b"y")
        assert await read(two, 1) == b"y"
        assert await comes_nothing(one)
        relay.heal()
        assert await read(one, 1) == b"x"


async def test_fetches_and_idempotent_appends_are_repeated_over_connections_of_their_own() -> None:
    echo = Echo()
    fetch, known = message(MessageType.FETCH, b"rows"), append(BatchIdentity(5, 0, 0))
    async with served(echo, PeerRelay) as relay, connected(relay) as (reader, writer):
        assert isinstance(relay, PeerRelay)
        sent = [hello(1), fetch, append(NO_IDENTITY), known, message(MessageType.HTTP, b""), b"GET / HTTP/1.1"]
        for part in sent:
            writer.write(part)
            await read(reader, len(part))
        assert decode_header(fetch).body_bytes == len(fetch) - MESSAGE_HEADER_BYTES
        del echo.received[:]
        await relay.repeat(10, random.Random(1))
        assert relay.repeated == 2
        proof = ClusterSecret(None).proof_of_connecting(
            hello(1)[MESSAGE_HEADER_BYTES:], hello(1)[MESSAGE_HEADER_BYTES:]
        )
        greeting = hello(1) + encode_header(MessageType.AUTH, 0, len(proof)) + proof
        assert sorted(bytes(echo.received).split(greeting)) == sorted([b"", fetch, known])
