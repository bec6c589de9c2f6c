"""Two brokers on loopback: handshake, requests, and everything that strangers and faulty brokers send."""

import asyncio
import contextlib
import random
import resource
import struct
import weakref

import pytest
import uvicorn

from logstore.errors import (
    BrokerNotReadyError,
    IdempotencyKeyReusedError,
    IllegalStateError,
    InvalidConfigError,
    LogStoreError,
    MalformedMessageError,
    NotLeaderOrFollowerError,
    PeerUnavailableError,
    RequestTooLargeError,
    UnsupportedVersionError,
)
from logstore.limits import MIB
from logstore.listening_sockets import SocketBuffers
from logstore.replication import peer_listener
from logstore.replication.peer_auth import ClusterSecret, new_nonce
from logstore.replication.peer_listener import REQUESTS_IN_HAND_MAX, STRANGERS_MAX, PeerListener
from logstore.replication.protocol import (
    ANSWER_TYPES,
    HANDSHAKE_BYTES_MAX,
    MESSAGE_HEADER_BYTES,
    Hello,
    MessageType,
    decode_error,
    encode_auth,
    encode_header,
    encode_hello,
)
from tests.support.captured_logs import captured_logs
from tests.support.eventually import eventually_async, loop_turns
from tests.support.peers import CLUSTER, SECRET, Local, RawBroker, connected, listening, options, raw
from tests.support.tcp_relay import TcpRelay
from tests.support.virtual_time import ON_VIRTUAL_TIME

pytestmark = pytest.mark.anyio

APPEND, DESCRIBE, FETCH, HTTP = MessageType.APPEND, MessageType.DESCRIBE, MessageType.FETCH, MessageType.HTTP
# The timeout of a peer that does nothing, in tests that wait for its end.
SHORT_S = 0.4
#: A busy machine answers within this time.
USED_S = 6.0


@pytest.fixture(params=[ON_VIRTUAL_TIME, ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    return request.param


async def echo(_session, message):
    return message.body


class Held:
    """A handler to which a test gives the answers, in any order."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.ended: list[bytes] = []
        self._answers: dict[bytes, asyncio.Future] = {}

    async def __call__(self, _session, message):
        name = bytes(message.body)
        self.begun.append(name)
        answer = await self._answer(name)
        self.ended.append(name)
        return answer

    def _answer(self, name: bytes) -> asyncio.Future:
        return self._answers.setdefault(name, asyncio.get_running_loop().create_future())

    def give(self, name: bytes) -> None:
        self._answer(name).set_result(b"answer to " + name)


# ---- handshake -------------------------------------------------------------------------------------------------------


async def test_both_sides_know_each_other_after_the_handshake():
    async with listening() as listener, connected(listener, local=Local(1, broker_epoch=11)) as connection:
        (session,) = listener.sessions
        assert (session.broker_id, session.broker_epoch) == (1, 11)
        assert (connection.peer_id, connection.peer_epoch, connection.local_epoch) == (2, 7, 11)
        assert session.release == connection.peer_release
        assert session.address.startswith("127.0.0.1:")


async def test_the_address_has_the_port_and_the_advertised_host():
    async with listening() as listener:
        assert listener.address.startswith("127.0.0.1:")
    listener = PeerListener(Local(2), options())
    await listener.start("127.0.0.1", 0, "store-2.example")
    assert listener.address.startswith("store-2.example:")
    await listener.stop()


async def test_the_listener_also_speaks_ipv6():
    listener = PeerListener(Local(2), options())
    await listener.start("::1", 0)
    assert listener.address.startswith("[::1]:")
    async with connected(listener) as connection:
        listener.handlers[APPEND] = echo
        assert await connection.request(APPEND, b"x") == b"x"
    await listener.stop()


async def test_brokers_without_a_secret_speak_on_loopback():
    without = options(secret=ClusterSecret(None))
    async with listening(given=without) as listener, connected(listener, without) as connection:
        assert not connection.is_closed


async def test_a_listener_that_other_machines_reach_does_not_start_without_a_secret():
    listener = PeerListener(Local(2), options(secret=ClusterSecret(None)))
    with pytest.raises(InvalidConfigError, match=r"reach 0\.0\.0\.0.*set cluster\.secret"):
        await listener.start("0.0.0.0", 0)
    await listener.stop()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(SECRET, ClusterSecret("another secret")), (ClusterSecret(None), SECRET), (SECRET, ClusterSecret(None))],
)
async def test_another_secret_is_refused(ours, theirs):
    with captured_logs() as logs:
        async with listening(given=options(secret=theirs)) as listener:
            with pytest.raises(PeerUnavailableError, match=r"another cluster\.secret, or none") as raised:
                async with connected(listener, options(secret=ours)):
                    pass
            assert raised.value.nothing_sent
            assert listener.sessions == []
    (line,) = [line for line in logs if line["event"] == "peer.refused"]
    assert (line["log_level"], line["broker"]) == ("warning", 1)
    assert "cluster.secret" in line["reason"]


@pytest.mark.parametrize(
    ("local", "peer_id", "reason"),
    [
        (Local(1, cluster_id="f" * 32), 2, "is of the cluster 'ffff"),
        (Local(1), 3, "broker 1 looks for broker 3, and this is 2"),
        (Local(2), 2, "cannot be at both ends"),
    ],
)
async def test_another_cluster_and_another_broker_are_refused(local, peer_id, reason):
    with captured_logs() as logs:
        async with listening() as listener:
            with pytest.raises(PeerUnavailableError, match=reason):
                async with connected(listener, local=local, peer_id=peer_id):
                    pass
    assert [reason in line["reason"] for line in logs if line["event"] == "peer.refused"] == [True]


async def test_a_broker_that_has_no_cluster_yet_says_so():
    listener = PeerListener(Local(2, cluster_id=""), options())
    await listener.start("127.0.0.1", 0)
    with pytest.raises(PeerUnavailableError, match="has not joined its cluster yet"):
        async with connected(listener):
            pass
    await listener.stop()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Hello("f" * 32, 2, 1, 0, bytes(32), "1"), "of the cluster 'ffff"),
        (Hello(CLUSTER, 3, 1, 0, bytes(32), "1"), "broker 3 answers there"),
        (Hello(CLUSTER, 2, 5, 0, bytes(32), "1"), "to broker 5 instead of 1"),
    ],
)
async def test_a_connecting_broker_checks_which_broker_answers(answer, reason):
    async def other(broker):
        await broker.receive()
        await broker.send(MessageType.HELLO, 0, encode_hello(answer))
        await broker.until_end()

    async with serving(other) as address:
        with pytest.raises(PeerUnavailableError, match=reason):
            async with connected(address):
                pass


@contextlib.asynccontextmanager
async def serving(talk):
    """Run a server that talks as ``talk(broker)`` says, and yield its address."""
    talks = set()

    async def connect(reader, writer):
        talks.add(asyncio.current_task())
        await talk(RawBroker(reader, writer))
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.wait_for(asyncio.gather(*talks), 10)


async def test_a_proof_that_is_sent_back_is_worthless():
    """Reflect messages at broker 2's address, without the secret."""

    async def reflecting(broker):
        hello = await broker.receive()
        await broker.send(MessageType.HELLO, 0, encode_hello(Hello(CLUSTER, 2, 1, 7, new_nonce(), "1")))
        assert hello.header.type == MessageType.HELLO
        proof = await broker.receive()
        await broker.send(MessageType.AUTH, 1, proof.body)
        await broker.until_end()

    async with serving(reflecting) as address:
        with pytest.raises(PeerUnavailableError, match="does not know the cluster's secret"):
            async with connected(address):
                pass


async def test_messages_that_are_sent_back_as_they_are_are_refused():
    async def mirror(broker):
        with contextlib.suppress(OSError):
            while data := await broker.reader.read(4096):
                broker.writer.write(data)

    async with serving(mirror) as address:
        with pytest.raises(PeerUnavailableError, match="broker 1 answers there"):
            async with connected(address):
                pass


async def test_a_proof_for_another_connection_is_worthless():
    """Pass nonces and a proof on, between broker 1, which connects here, and broker 1's listener."""
    outcome = asyncio.get_running_loop().create_future()

    async with listening(1) as listener:

        async def between(victim):
            theirs = (await victim.receive()).body
            nonce = bytes(theirs[16:48])
            async with raw(listener.address) as back:
                await back.send(MessageType.HELLO, 0, encode_hello(Hello(CLUSTER, 2, 1, 7, nonce, "1")))
                challenge = (await back.receive()).body
                answer = Hello(CLUSTER, 2, 1, 7, bytes(challenge[16:48]), "1")
                await victim.send(MessageType.HELLO, 0, encode_hello(answer))
                await back.send(MessageType.AUTH, 1, (await victim.receive()).body)
                outcome.set_result((await back.receive()).header.error)

        async with serving(between) as address:
            with pytest.raises(PeerUnavailableError):
                async with connected(address):
                    pass
            assert await outcome == 58
            assert listener.sessions == []


async def test_a_recorded_handshake_is_worthless():
    hello = encode_hello(Hello(CLUSTER, 1, 2, 7, bytes(32), "1"))
    async with listening() as listener:
        async with raw(listener.address) as honest:
            await honest.send(MessageType.HELLO, 0, hello)
            proof = encode_auth(SECRET.proof_of_connecting(hello, (await honest.receive()).body))
            await honest.send(MessageType.AUTH, 1, proof)
            assert (await honest.receive()).header.error == 0
        async with raw(listener.address) as replaying:
            await replaying.send(MessageType.HELLO, 0, hello)
            await replaying.receive()
            await replaying.send(MessageType.AUTH, 1, proof)
            assert (await replaying.receive()).header.error == 58
            assert await replaying.until_end() == b""


@pytest.mark.parametrize("first", [MessageType.AUTH, FETCH, APPEND, DESCRIBE, HTTP, MessageType.ENLIST, 99])
async def test_nothing_comes_before_the_handshake(first):
    async with listening() as listener, raw(listener.address) as stranger:
        listener.handlers[FETCH] = listener.handlers[APPEND] = listener.handlers[DESCRIBE] = echo
        await stranger.send(first, 5, bytes(32))
        header, body = await stranger.receive()
        assert (header.correlation, header.error) == (5, 42)
        assert "before HELLO and AUTH" in decode_error(42, body).message
        assert await stranger.until_end() == b""


async def test_a_second_hello_does_not_change_who_proves():
    async with listening() as listener, raw(listener.address) as stranger:
        await stranger.send(MessageType.HELLO, 0, encode_hello(Hello(CLUSTER, 1, 2, 7, bytes(32), "1")))
        await stranger.receive()
        await stranger.send(MessageType.HELLO, 1, encode_hello(Hello(CLUSTER, 3, 2, 7, bytes(32), "1")))
        assert (await stranger.receive()).header.error == 42


# ---- strangers -------------------------------------------------------------------------------------------------------


async def test_http_on_the_port_ends_with_one_line_of_the_log():
    with captured_logs() as logs:
        async with listening() as listener, raw(listener.address) as browser:
            browser.writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = await browser.receive()
            assert answer.header.error == 42
            assert await browser.until_end() == b""
    (line,) = [line for line in logs if line["event"] == "peer.refused"]
    assert "it begins with b'GET / HTTP/1" in line["reason"]


@pytest.mark.parametrize("seed", range(5))
async def test_random_bytes_end_their_connection_and_no_other(seed):
    noise = random.Random(seed).randbytes(10_000)
    async with listening(given=options(timeout_s=5)) as listener, connected(listener) as connection:
        listener.handlers[APPEND] = echo
        async with raw(listener.address) as stranger:
            with contextlib.suppress(ConnectionError):
                stranger.writer.write(noise)
                await stranger.writer.drain()
            await stranger.until_end()
        assert await connection.request(APPEND, b"still here") == b"still here"


async def test_a_stranger_is_refused_by_the_length_alone():
    """Refuse it before a byte of the body has come."""
    async with listening() as listener, raw(listener.address) as stranger:
        stranger.writer.write(encode_header(MessageType.HELLO, 3, HANDSHAKE_BYTES_MAX - MESSAGE_HEADER_BYTES + 1))
        header, body = await stranger.receive()
        assert (header.correlation, header.error) == (3, 42)
        assert "4097 bytes is over 4096" in decode_error(42, body).message


async def test_silence_is_ended():
    with captured_logs() as logs:
        async with listening(given=options(timeout_s=SHORT_S)) as listener, raw(listener.address) as stranger:
            assert await stranger.until_end() == b""
            async with raw(listener.address) as half:
                await half.send(MessageType.HELLO, 0, encode_hello(Hello(CLUSTER, 1, 2, 7, bytes(32), "1")))
                await half.receive()
                assert await half.until_end() == b""
    reasons = [line["reason"] for line in logs if line["event"] == "peer.refused"]
    assert reasons == [f"HELLO and AUTH did not come within {SHORT_S} s"] * 2


async def test_a_flood_of_strangers_keeps_no_broker_out():
    async with listening() as listener, contextlib.AsyncExitStack() as at_end:
        listener.handlers[APPEND] = echo
        strangers = [await at_end.enter_async_context(raw(listener.address)) for _ in range(STRANGERS_MAX + 50)]
        connection = await at_end.enter_async_context(connected(listener))
        assert await connection.request(APPEND, b"x") == b"x"
        ends = [asyncio.create_task(stranger.until_end()) for stranger in strangers]
        # The connection of the broker is among those that came.
        await eventually_async(lambda: sum(end.done() for end in ends) >= 50)
        await loop_turns()
        assert [end.done() for end in ends] == [True] * 51 + [False] * (STRANGERS_MAX - 1)
        for end in ends:
            end.cancel()


async def test_a_flood_of_refusals_does_not_fill_the_log():
    with captured_logs() as logs:
        async with listening() as listener:
            for _ in range(60):
                async with raw(listener.address) as stranger:
                    stranger.writer.write(b"GET / HTTP/1.1\r\n\r\n")
                    await stranger.until_end()
    lines = [line for line in logs if line["event"] == "peer.refused"]
    assert len(lines) < 60
    assert sum(line["others_before"] for line in lines) <= 60 - len(lines)


async def test_a_broker_has_its_own_limit_of_connections():
    async with listening(connections_max=2) as listener, connected(listener), connected(listener) as second:
        with pytest.raises(PeerUnavailableError, match="broker 1 has 2 connections here already"):
            async with connected(listener):
                pass
        async with connected(listener, local=Local(3)):
            assert [session.broker_id for session in listener.sessions].count(1) == 2
        second.close()
        await eventually_async(lambda: len(listener.sessions) == 1)
        async with connected(listener):
            pass


# ---- requests --------------------------------------------------------------------------------------------------------


async def test_a_request_is_answered_by_the_handler_of_its_type():
    async with listening() as listener, connected(listener) as connection:
        listener.handlers[APPEND] = echo

        async def told(session, message):
            return [b"broker %d " % session.broker_id, message.body]

        listener.handlers[DESCRIBE] = told
        assert await connection.request(APPEND, [b"in ", bytearray(b"pieces")]) == b"in pieces"
        assert await connection.request(DESCRIBE, b"asked") == b"broker 1 asked"
        assert await connection.request(DESCRIBE) == b"broker 1 "


@pytest.mark.parametrize("size", [0, 1, 4083, 4084, 4085, 65_523, 65_524, 65_525, 200_000, 8 * MIB])
async def test_messages_of_all_sizes_arrive_whole(size):
    body = random.Random(size).randbytes(size)
    async with listening() as listener, connected(listener) as connection:
        listener.handlers[APPEND] = echo
        # Several requests at once meet in one buffer.
        answers = await asyncio.gather(*(connection.request(APPEND, body + bytes([n])) for n in range(3)))
        assert [bytes(answer) for answer in answers] == [body + bytes([n]) for n in range(3)]


async def test_bytes_that_come_one_by_one_are_read():
    async with listening() as listener, raw(listener.address) as broker:
        listener.handlers[APPEND] = echo
        await broker.shake()
        for byte in encode_header(APPEND, 9, 3) + b"abc":
            broker.writer.write(bytes([byte]))
            await broker.writer.drain()
            await loop_turns(3)
        header, body = await broker.receive()
        assert (header.type, header.correlation, body) == (MessageType.APPENDED, 9, b"abc")


async def test_requests_begin_in_their_order_and_each_answer_comes_when_it_is_ready():
    held = Held()
    async with listening() as listener, raw(listener.address) as broker:
        listener.handlers[APPEND] = held
        listener.handlers[DESCRIBE] = echo
        await broker.shake()
        for number, name in enumerate((b"a", b"b", b"c")):
            await broker.send(APPEND, number, name)
        await broker.send(DESCRIBE, 3, b"quick")
        header, body = await broker.receive()
        assert (header.correlation, body) == (3, b"quick")
        assert held.begun == [b"a", b"b", b"c"]
        for number, name in ((2, b"c"), (1, b"b"), (0, b"a")):
            held.give(name)
            header, body = await broker.receive()
            assert (header.correlation, body) == (number, b"answer to " + name)


async def test_several_requests_wait_at_a_time():
    held = Held()
    async with listening() as listener, connected(listener) as connection:
        listener.handlers[APPEND] = held
        names = [b"%d" % number for number in range(20)]
        asked = [asyncio.create_task(connection.request(APPEND, name)) for name in names]
        await eventually_async(lambda: held.begun == names)
        for name in reversed(names):
            held.give(name)
        assert await asyncio.gather(*asked) == [b"answer to " + name for name in names]


async def test_a_request_that_cannot_be_read_ends_nothing_before_it():
    held = Held()
    async with listening() as listener, connected(listener) as connection:
        listener.handlers[APPEND], listener.handlers[DESCRIBE] = held, unreadable
        first = asyncio.create_task(connection.request(APPEND, b"first"))
        await eventually_async(lambda: held.begun == [b"first"])
        second = asyncio.create_task(connection.request(DESCRIBE, b"x"))
        await loop_turns(20)
        assert not second.done()
        held.give(b"first")
        assert await first == b"answer to first"
        with pytest.raises(MalformedMessageError):
            await second


async def unreadable(_session, _message):
    raise MalformedMessageError("it makes no sense")


@pytest.mark.parametrize(
    "error", [NotLeaderOrFollowerError("broker 3 leads it"), IdempotencyKeyReusedError("used for another request")]
)
async def test_the_peers_own_error_is_raised_here(error):
    async def failing(_session, _message):
        raise error

    async with listening() as listener, connected(listener) as connection:
        listener.handlers[APPEND], listener.handlers[DESCRIBE] = failing, echo
        with pytest.raises(type(error), match=str(error)):
            await connection.request(APPEND)
        assert await connection.request(DESCRIBE, b"goes on") == b"goes on"


async def test_a_handler_that_breaks_is_one_answer_and_one_line():
    async def broken(_session, _message):
        raise ZeroDivisionError("of a handler")

    with captured_logs() as logs:
        async with listening() as listener, connected(listener) as connection:
            listener.handlers[APPEND], listener.handlers[DESCRIBE] = broken, echo
            with pytest.raises(LogStoreError, match="APPEND failed: ZeroDivisionError: of a handler") as raised:
                await connection.request(APPEND)
            assert raised.value.kafka_code == -1
            assert await connection.request(DESCRIBE, b"goes on") == b"goes on"
    assert [line["request"] for line in logs if line["event"] == "peer.request_failed"] == ["APPEND"]


async def test_a_request_whose_handler_lets_it_go_takes_no_memory_while_it_waits():
    go_on = asyncio.Event()
    bodies = []

    async def waiting(body):
        bodies.append(weakref.ref(body.obj))
        del body
        await go_on.wait()
        return b""

    async with listening() as listener, connected(listener) as connection:
        listener.handlers[APPEND] = lambda _session, message: waiting(message.body)
        asked = asyncio.create_task(connection.request(APPEND, bytes(200_000)))
        await eventually_async(lambda: bodies)
        await loop_turns()
        assert bodies[0]() is None
        go_on.set()
        await asked


async def test_without_a_handler_the_broker_is_not_ready():
    async with listening() as listener, connected(listener) as connection:
        for message_type in (FETCH, APPEND, DESCRIBE, HTTP):
            with pytest.raises(BrokerNotReadyError, match=f"takes no {message_type.name} yet"):
                await connection.request(message_type)
        listener.handlers[APPEND] = echo
        assert await connection.request(APPEND, b"x") == b"x"


async def test_a_body_that_a_handler_cannot_read_ends_the_connection():
    async def unreadable(_session, _message):
        raise MalformedMessageError("APPEND ends after 3 bytes")

    with captured_logs() as logs:
        async with listening() as listener, connected(listener) as connection:
            listener.handlers[APPEND] = unreadable
            with pytest.raises(MalformedMessageError, match="ends after 3 bytes"):
                await connection.request(APPEND, b"abc")
            await eventually_async(lambda: connection.is_closed and not listener.sessions)
    assert [line["reason"] for line in logs if line["event"] == "peer.refused"] == ["APPEND ends after 3 bytes"]


@pytest.mark.parametrize(
    ("sent", "error", "reason"),
    [
        (encode_header(MessageType.ENLIST, 4, 0), 35, "ENLIST (10) is reserved"),
        (encode_header(MessageType.WRITE_MARKERS, 4, 0), 35, "WRITE_MARKERS (11) is reserved"),
        (encode_header(MessageType.INIT_PRODUCER, 4, 0), 35, "INIT_PRODUCER (12) is reserved"),
        (encode_header(MessageType.FETCHED, 4, 0), 35, "no requests of type 4"),
        (encode_header(200, 4, 0), 35, "no requests of type 200"),
        (encode_header(MessageType.HELLO, 4, 0), 42, "HELLO came after the handshake"),
        (struct.pack("<IBBhI", 8, APPEND, 2, 0, 4), 35, "version 1 in this release, not 2"),
        (encode_header(APPEND, 4, 2**31), 42, "is over"),
        (struct.pack("<IBBhI", 3, APPEND, 1, 0, 4), 42, "shorter than its header"),
    ],
)
async def test_a_message_that_is_not_served_is_answered_behind_the_others_and_ends_the_connection(sent, error, reason):
    held = Held()
    with captured_logs() as logs:
        async with listening() as listener, raw(listener.address) as broker:
            listener.handlers[APPEND] = held
            await broker.shake()
            await broker.send(APPEND, 3, b"before")
            broker.writer.write(sent + encode_header(APPEND, 5, 5) + b"after")
            await eventually_async(lambda: held.begun == [b"before"])
            await loop_turns()
            held.give(b"before")
            assert (await broker.receive()).body == b"answer to before"
            header, body = await broker.receive()
            assert header.error == error
            assert reason in decode_error(error, body).message
            assert await broker.until_end() == b""
            assert held.begun == [b"before"]
    assert [reason in line["reason"] for line in logs if line["event"] == "peer.refused"] == [True]


async def test_a_refusal_closes_the_connection_of_our_own_client():
    async with listening() as listener, connected(listener) as connection:
        with pytest.raises(UnsupportedVersionError, match="reserved"):
            await connection.request(MessageType.ENLIST)
        await eventually_async(lambda: connection.is_closed)


async def test_a_request_that_no_peer_takes_is_not_sent():
    small = options(message_bytes_max=100_000)
    async with listening(given=small) as listener, connected(listener, small) as connection:
        listener.handlers[APPEND] = echo
        with pytest.raises(RequestTooLargeError):
            await connection.request(APPEND, bytes(100_000 - MESSAGE_HEADER_BYTES + 1))
        body = bytes(100_000 - MESSAGE_HEADER_BYTES)
        assert await connection.request(APPEND, body) == body


async def test_an_answer_that_is_too_long_is_an_error():
    async def large(_session, _message):
        return bytes(200_000)

    small = options(message_bytes_max=100_000)
    async with listening(given=small) as listener, connected(listener, small) as connection:
        listener.handlers[APPEND] = large
        with pytest.raises(RequestTooLargeError, match="ask for less"):
            await connection.request(APPEND)


async def test_a_promised_body_takes_no_memory_before_it_comes():
    given = options(message_bytes_max=1 << 30)
    async with listening(given=given) as listener, contextlib.AsyncExitStack() as at_end:
        listener.handlers[APPEND] = echo
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(4):
            broker = await at_end.enter_async_context(raw(listener.address))
            await broker.shake()
            await broker.send(APPEND, 1, b"x")
            assert (await broker.receive()).body == b"x"
            broker.writer.write(encode_header(APPEND, 2, 900 * MIB) + bytes(100_000))
            await broker.writer.drain()
        await loop_turns()
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 100 * MIB


# ---- sick brokers ----------------------------------------------------------------------------------------------------


async def test_requests_without_end_are_not_taken_without_end():
    held = Held()
    async with listening() as listener, raw(listener.address) as broker:
        listener.handlers[APPEND] = held
        await broker.shake()
        names = [b"%d" % number for number in range(3 * REQUESTS_IN_HAND_MAX)]
        for number, name in enumerate(names):
            await broker.send(APPEND, number, name)
        await eventually_async(lambda: len(held.begun) == REQUESTS_IN_HAND_MAX)
        await loop_turns()
        assert held.begun == names[:REQUESTS_IN_HAND_MAX]
        for name in names:
            held.give(name)
        assert [(await broker.receive()).header.correlation for _ in names] == list(range(len(names)))
        assert held.begun == names


async def test_large_requests_are_taken_up_to_their_bytes():
    begun = []
    go_on = asyncio.Event()

    async def waiting(_session, message):
        begun.append(len(message.body))
        await go_on.wait()
        return b""

    given = options(message_bytes_max=1 * MIB)
    async with listening(given=given) as listener, connected(listener, given) as connection:
        listener.handlers[APPEND] = waiting
        asked = [asyncio.create_task(connection.request(APPEND, bytes(400_000))) for _ in range(10)]
        await eventually_async(lambda: len(begun) == 3)
        await loop_turns()
        assert len(begun) == 3
        go_on.set()
        assert await asyncio.gather(*asked) == [b""] * 10


async def test_one_fetch_waits_at_a_time():
    held = Held()
    async with listening() as listener, raw(listener.address) as broker:
        listener.handlers[FETCH] = held
        await broker.shake()
        await broker.send(FETCH, 0, b"a")
        held.give(b"a")
        assert (await broker.receive()).header.type == MessageType.FETCHED
        await broker.send(FETCH, 1, b"b")
        await broker.send(FETCH, 2, b"c")
        await eventually_async(lambda: held.begun == [b"a", b"b"])
        held.give(b"b")
        assert (await broker.receive()).header.error == 0
        header, body = await broker.receive()
        assert (header.correlation, header.error) == (2, 42)
        assert "a second FETCH" in decode_error(42, body).message
        assert await broker.until_end() == b""


async def test_a_slow_reader_is_sent_no_more_than_it_takes_and_is_cut():
    sent = []

    async def large(_session, _message):
        sent.append(1)
        return bytes(MIB)

    given = options(timeout_s=SHORT_S, accepted_buffers=SocketBuffers(send=65_536))
    with captured_logs() as logs:
        async with listening(given=given) as listener, raw(listener.address) as broker:
            listener.handlers[DESCRIBE] = large
            await broker.shake()
            (session,) = listener.sessions
            for number in range(5 * REQUESTS_IN_HAND_MAX):
                broker.writer.write(encode_header(DESCRIBE, number, 0))
            await eventually_async(lambda: session.is_closed)
            # These fit in the kernel, in the test's stream, and among the requests in hand.
            assert len(sent) <= REQUESTS_IN_HAND_MAX + 16
    reasons = [line["reason"] for line in logs if line["event"] == "peer.refused"]
    assert reasons == [f"it took nothing of an answer for {SHORT_S} s"]


async def test_a_reader_that_is_slow_but_takes_something_is_kept():
    async def large(_session, _message):
        return bytes(4 * MIB)

    given = options(timeout_s=SHORT_S, accepted_buffers=SocketBuffers(send=65_536))
    async with listening(given=given) as listener, raw(listener.address) as broker:
        listener.handlers[DESCRIBE] = large
        await broker.shake()
        await broker.send(DESCRIBE, 0)
        left = 4 * MIB + MESSAGE_HEADER_BYTES
        began = asyncio.get_running_loop().time()
        while left:
            left -= len(await broker.reader.read(256 * 1024))
            await asyncio.sleep(SHORT_S / 8)
        assert asyncio.get_running_loop().time() - began > 2 * SHORT_S


async def test_a_broker_that_is_gone_without_a_word_ends_on_both_sides():
    """Cut the network between them, so that neither end is notified."""
    given = options(timeout_s=USED_S)
    async with listening(given=given) as listener, TcpRelay(listener.address) as relay:
        listener.handlers[APPEND] = echo
        async with connected(relay.address, given) as connection:
            assert await connection.request(APPEND, b"x") == b"x"
            (session,) = listener.sessions
            closed = []
            session.on_close(lambda: closed.append(session.broker_id))
            relay.cut()
            began = asyncio.get_running_loop().time()
            with pytest.raises(PeerUnavailableError, match=f"APPEND was not answered within {USED_S:g} s") as raised:
                await connection.request(APPEND, b"y")
            assert (asyncio.get_running_loop().time() - began) < 20
            assert not raised.value.nothing_sent
            assert connection.is_closed
            await eventually_async(lambda: session.is_closed)
            assert closed == [1]
            session.on_close(lambda: closed.append("at once"))
            assert closed == [1, "at once"]
            relay.heal()


async def test_a_request_that_has_its_time_ends_the_connection_and_others_with_it():
    held = Held()
    async with listening() as listener, connected(listener) as connection:
        listener.handlers[APPEND] = held
        other = asyncio.create_task(connection.request(APPEND, b"other"))
        with pytest.raises(PeerUnavailableError, match=r"APPEND was not answered within 0\.1 s"):
            await connection.request(APPEND, b"slow", timeout_s=0.1)
        with pytest.raises(PeerUnavailableError, match=r"APPEND was not answered within 0\.1 s") as raised:
            await other
        assert not raised.value.nothing_sent
        with pytest.raises(PeerUnavailableError) as raised:
            await connection.request(APPEND, b"later")
        assert raised.value.nothing_sent
        held.give(b"other")
        held.give(b"slow")


async def test_a_request_that_is_given_up_leaves_the_connection_as_it_was():
    held = Held()
    async with listening() as listener, connected(listener) as connection:
        listener.handlers[APPEND] = held
        given_up = asyncio.create_task(connection.request(APPEND, b"given up"))
        other = asyncio.create_task(connection.request(APPEND, b"other"))
        await eventually_async(lambda: len(held.begun) == 2)
        given_up.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await given_up
        held.give(b"given up")
        held.give(b"other")
        assert await other == b"answer to other"
        assert not connection.is_closed


async def test_handlers_continue_when_their_connection_has_ended():
    held = Held()
    async with listening() as listener:
        listener.handlers[APPEND] = held
        async with connected(listener) as connection:
            asked = asyncio.create_task(connection.request(APPEND, b"a"))
            await eventually_async(lambda: held.begun == [b"a"])
        with pytest.raises(PeerUnavailableError, match="closed here"):
            await asked
        await eventually_async(lambda: not listener.sessions)
        held.give(b"a")
        await eventually_async(lambda: held.ended == [b"a"])


async def test_a_listener_that_is_killed_fails_requests_with_an_open_outcome():
    held = Held()
    async with listening() as listener, TcpRelay(listener.address) as relay:
        listener.handlers[APPEND] = held
        async with connected(relay.address) as connection:
            asked = asyncio.create_task(connection.request(APPEND, b"a"))
            await eventually_async(lambda: held.begun == [b"a"])
            (peer,) = listener._peers
            peer.stream.abort()
            with pytest.raises(PeerUnavailableError) as raised:
                await asked
            assert (raised.value.nothing_sent, raised.value.retriable, raised.value.kafka_code) == (False, True, 13)
        held.give(b"a")


async def test_an_address_without_a_broker_is_unavailable():
    async with serving(RawBroker.until_end) as address:
        pass
    with pytest.raises(PeerUnavailableError, match=r"broker 2 at 127\.0\.0\.1:\d+ is unavailable: ") as raised:
        async with connected(address):
            pass
    assert raised.value.nothing_sent
    for wrong in ("nowhere.invalid:1", "127.0.0.1", "", "127.0.0.1:http2000"):
        with pytest.raises(PeerUnavailableError):
            async with connected(wrong):
                pass


async def test_a_peer_that_takes_connections_and_says_nothing_is_unavailable():
    async def silent(broker):
        await broker.until_end()

    async with serving(silent) as address:
        with pytest.raises(PeerUnavailableError, match=f"no handshake within {SHORT_S} s") as raised:
            async with connected(address, options(timeout_s=SHORT_S)):
                pass
        assert raised.value.nothing_sent


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n",
        encode_header(MessageType.HELLO, 0, 3) + b"abc",
        encode_header(MessageType.HELLO, 0, 3, 42) + b"abc",
        encode_header(MessageType.AUTH, 0, 32) + bytes(32),
        encode_header(MessageType.HELLO, 77, 0),
        struct.pack("<IBBhI", 8, MessageType.HELLO, 9, 0, 0),
        b"",
    ],
)
async def test_an_answer_that_is_none_makes_the_peer_unavailable(answer):
    async def other(broker):
        await broker.reader.read(10)
        broker.writer.write(answer)

    async with serving(other) as address:
        with pytest.raises(PeerUnavailableError):
            async with connected(address):
                pass


@contextlib.asynccontextmanager
async def connected_to_a_deaf_broker():
    """Connect to a broker that reads nothing after the handshake until an event is set.

    Yield the connection, the event, and the messages that the broker reads.
    """
    hears = asyncio.Event()
    heard = []

    async def deaf(broker):
        hello = (await broker.receive()).body
        answer = encode_hello(Hello(CLUSTER, 2, 1, 7, new_nonce(), "1"))
        await broker.send(MessageType.HELLO, 0, answer)
        await broker.receive()
        await broker.send(MessageType.AUTH, 1, SECRET.proof_of_asked(hello, answer))
        broker.reader._transport.pause_reading()
        await hears.wait()
        broker.reader._transport.resume_reading()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                header, body = await broker.receive()
                heard.append(bytes(body[:10]))
                await broker.send(ANSWER_TYPES[header.type], header.correlation)

    given = options(made_buffers=SocketBuffers(send=65_536))
    async with serving(deaf) as address, connected(address, given) as connection:
        yield connection, hears, heard


async def test_a_peer_that_does_not_read_holds_requests_back_until_their_time_is_over():
    """Limit what is kept for the peer, and report requests that were not sent as such."""
    async with connected_to_a_deaf_broker() as (connection, hears, _):
        asked = [asyncio.create_task(connection.request(APPEND, bytes(MIB), SHORT_S)) for _ in range(20)]
        failures = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(failure) for failure in failures} == {PeerUnavailableError}
        assert sum(not failure.nothing_sent for failure in failures) < 10
        assert failures[-1].nothing_sent
        hears.set()


async def test_requests_that_have_to_wait_are_sent_in_the_order_of_their_calls():
    async with connected_to_a_deaf_broker() as (connection, hears, heard):
        names = [b"request %02d" % number for number in range(20)]
        asked = [asyncio.create_task(connection.request(APPEND, name + bytes(MIB))) for name in names[:-1]]
        await loop_turns()
        # One more request begins, and runs before the waiting ones learn that they may continue.
        asked.append(asyncio.create_task(connection.request(APPEND, names[-1])))
        connection._stream.resume_writing()
        await loop_turns()
        hears.set()
        await asyncio.gather(*asked)
        assert heard == names


async def test_a_connection_that_is_not_used_ends_here_first():
    given = options(timeout_s=SHORT_S)
    with captured_logs() as logs:
        async with listening(given=given) as listener, connected(listener, given) as connection:
            await eventually_async(lambda: connection.is_closed)
            with pytest.raises(PeerUnavailableError, match="nothing was asked for a while") as raised:
                await connection.request(APPEND)
            assert raised.value.nothing_sent
            await eventually_async(lambda: not listener.sessions)
    assert not [line for line in logs if line["event"] == "peer.refused"]


async def test_a_connection_that_is_used_does_not_end():
    given = options(timeout_s=USED_S)
    async with listening(given=given) as listener, connected(listener, given) as connection:

        async def after_a_while(_session, _message):
            await asyncio.sleep(USED_S / 4)
            return b""

        listener.handlers[FETCH] = after_a_while
        for _ in range(5):
            await connection.request(FETCH)
        assert not connection.is_closed


# ---- stop ------------------------------------------------------------------------------------------------------------


async def test_a_stop_answers_what_it_has_in_hand_and_takes_nothing_more():
    held = Held()
    async with listening() as listener, connected(listener) as connection, raw(listener.address) as stranger:
        listener.handlers[APPEND] = held
        asked = asyncio.create_task(connection.request(APPEND, b"a"))
        await eventually_async(lambda: held.begun == [b"a"])
        stopping = asyncio.create_task(listener.stop())
        await eventually_async(lambda: stranger.reader.at_eof() or stranger.reader.exception())
        late = asyncio.create_task(connection.request(APPEND, b"late"))
        await loop_turns()
        assert not stopping.done()
        held.give(b"a")
        assert await asked == b"answer to a"
        with pytest.raises(PeerUnavailableError):
            await late
        await stopping
        assert held.begun == [b"a"]
        with pytest.raises(PeerUnavailableError):
            async with connected(listener):
                pass


async def test_a_stop_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(peer_listener, "_STOP_SECONDS", 0.2)
    held = Held()
    async with listening() as listener, connected(listener) as connection:
        listener.handlers[APPEND] = held
        asked = asyncio.create_task(connection.request(APPEND, b"a"))
        await eventually_async(lambda: held.begun == [b"a"])
        await listener.stop()
        with pytest.raises(PeerUnavailableError):
            await asked


# ---- HTTP ------------------------------------------------------------------------------------------------------------


def uvicorn_protocols(listener: PeerListener) -> list:
    """Serve HTTP as the store does, with an application that names the relaying broker; return the protocols made so
    far.
    """
    made = []

    async def application(scope, receive, send):
        body = b""
        while (event := await receive()).get("more_body"):
            body += event["body"]
        body += event["body"]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    config = uvicorn.Config(application, http="httptools", lifespan="off", log_config=None)
    config.load()
    state = uvicorn.server.ServerState()

    def http(session):
        made.append((session, config.http_protocol_class(config=config, server_state=state, app_state={})))
        return made[-1][1]

    listener.http = http
    return made


async def test_a_connection_continues_as_http():
    async with listening() as listener:
        made = uvicorn_protocols(listener)
        listener.handlers[APPEND] = echo
        async with connected(listener) as connection:
            assert await connection.request(APPEND, b"before") == b"before"
            reader, writer = await connection.become_http()
            (session, protocol) = made[0]
            assert session.broker_id == 1
            for size in (5, 300_000):
                writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size)
                await writer.drain()
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200")
                assert await reader.readexactly(size) == b"x" * size
            with pytest.raises(IllegalStateError):
                await connection.request(APPEND)
            assert listener.sessions == [session]
            writer.close()
            await writer.wait_closed()
            await eventually_async(lambda: session.is_closed)
            assert protocol not in protocol.connections
            assert listener.sessions == []


async def test_http_begins_when_all_before_it_is_answered():
    held = Held()
    async with listening() as listener, raw(listener.address) as broker:
        made = uvicorn_protocols(listener)
        listener.handlers[APPEND] = held
        await broker.shake()
        await broker.send(APPEND, 0, b"a")
        await broker.send(HTTP, 1)
        await eventually_async(lambda: held.begun == [b"a"])
        await loop_turns()
        assert not made
        held.give(b"a")
        assert [(await broker.receive()).header.type for _ in range(2)] == [MessageType.APPENDED, HTTP]
        broker.writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await broker.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_bytes_before_the_answer_to_http_end_the_connection():
    async with listening() as listener, raw(listener.address) as broker:
        uvicorn_protocols(listener)
        await broker.shake()
        (session,) = listener.sessions
        broker.writer.write(encode_header(HTTP, 1, 0) + encode_header(APPEND, 2, 1) + b"x")
        await broker.until_end()
        await eventually_async(lambda: session.is_closed)


async def test_http_has_its_own_bounds_in_time_and_ends_with_the_listener():
    given = options(timeout_s=SHORT_S)
    async with listening(given=given) as listener, connected(listener, given) as connection:
        uvicorn_protocols(listener)
        reader, writer = await connection.become_http()
        await asyncio.sleep(2 * SHORT_S)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await listener.stop()
        assert await reader.read() == b""
        writer.close()


async def test_http_is_not_asked_for_beside_other_requests():
    held = Held()
    async with listening() as listener, connected(listener) as connection:
        listener.handlers[APPEND] = held
        asked = asyncio.create_task(connection.request(APPEND, b"a"))
        await eventually_async(lambda: held.begun == [b"a"])
        with pytest.raises(IllegalStateError):
            await connection.become_http()
        held.give(b"a")
        await asked


async def test_a_slow_reader_of_http_holds_up_its_writer():
    """Check that the transport's flow control reaches the protocol that answers HTTP."""
    paused = asyncio.Event()

    class Answers(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            self.transport.write(bytes(32 * MIB))

        def pause_writing(self):
            paused.set()

    async with listening() as listener, connected(listener) as connection:
        listener.http = lambda _session: Answers()
        reader, writer = await connection.become_http()
        writer.write(b"GET /")
        await asyncio.wait_for(paused.wait(), 10)
        assert len(await reader.readexactly(32 * MIB)) == 32 * MIB
        writer.close()
