"""Two brokers on loopback over TLS, in both event loops: the messages, HTTP after them, and those that are refused."""

import asyncio
import contextlib
import ssl
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from logstore.clock import SystemClock
from logstore.errors import PeerUnavailableError
from logstore.listening_sockets import SocketBuffers
from logstore.replication.peer_auth import ClusterSecret
from logstore.replication.peer_network import PeerNetwork
from logstore.replication.peer_options import PeerOptions
from logstore.replication.protocol import MessageType
from logstore.tls.contexts import Tls
from logstore.tls.options import ClientAuth, TlsOptions
from tests.support.captured_logs import captured_logs
from tests.support.certificates import Certificates
from tests.support.eventually import eventually_async
from tests.support.peers import connected, listening, options

pytestmark = pytest.mark.anyio


@pytest.fixture(
    params=[("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)
def anyio_backend(request):
    return request.param


def over_tls(made: Certificates, keystore: Path, client_auth: ClientAuth = "required") -> PeerOptions:
    tls = Tls(TlsOptions(keystore, None, made.ca_file, client_auth), SystemClock())
    return options(network=PeerNetwork(tls))


async def test_messages_of_any_size_and_http_travel_over_tls(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    given = over_tls(made, made.keystore())
    async with listening(given=given) as listener:
        listener.handlers[MessageType.APPEND] = _echo
        listener.http = lambda _: _EchoOfBytes()
        async with connected(listener, given) as connection:
            for size in (0, 1, 70_000, 5_000_000):
                assert await connection.request(MessageType.APPEND, b"x" * size) == b"x" * size
            pieces = [b"a" * 50_000, b"b" * 50_000]
            assert await connection.request(MessageType.APPEND, pieces) == b"".join(pieces)
            reader, writer = await connection.become_http()
            writer.write(b"y" * 300_000)
            assert await reader.readexactly(300_000) == b"y" * 300_000
            writer.close()


async def test_a_broker_that_is_not_trusted_is_refused_by_the_other_and_by_itself(tmp_path: Path) -> None:
    made, others = Certificates(tmp_path / "a"), Certificates(tmp_path / "b")
    given = over_tls(made, made.keystore())
    stranger = over_tls(others, others.keystore())
    with captured_logs() as logs:
        async with listening(given=given) as listener:
            # The stranger does not trust the listener ...
            with pytest.raises(PeerUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
                async with connected(listener, stranger):
                    pass
            # ... the listener does not trust a client that trusts it ...
            trusting = over_tls(made, others.keystore())
            with pytest.raises(PeerUnavailableError):
                async with connected(listener, trusting):
                    pass
            # ... and a certificate for another address does not count.
            elsewhere = over_tls(made, made.keystore("elsewhere", "elsewhere.example"))
            async with listening(given=elsewhere) as other:
                with pytest.raises(PeerUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
                    async with connected(other, given):
                        pass
            await eventually_async(lambda: any(line["event"] == "tls.handshake_failed" for line in logs))
    # A broker that refuses the other one says so by its own error, and sends no alert.
    (line,) = [line for line in logs if line["event"] == "tls.handshake_failed"]
    assert (line["listener"], line["peer"]) == ("PEER", "127.0.0.1")
    assert "is not valid by ssl.truststore.location" in line["reason"]


async def test_the_secret_stays_the_proof_within_tls(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    given = over_tls(made, made.keystore())
    async with listening(given=given) as listener:
        with pytest.raises(PeerUnavailableError, match=r"another cluster\.secret"):
            async with connected(listener, replace(given, secret=ClusterSecret("of another cluster, and long"))):
                pass


async def test_without_tls_a_broker_gets_no_answer_and_holds_up_nobody(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    given = over_tls(made, made.keystore(), "none")
    async with listening(given=given) as listener:
        host, _, port = listener.address.rpartition(":")
        idle = await asyncio.open_connection(host, int(port))
        with pytest.raises(PeerUnavailableError):
            async with connected(listener):
                pass
        listener.handlers[MessageType.APPEND] = _echo
        async with connected(listener, given) as connection:
            assert await connection.request(MessageType.APPEND, b"x") == b"x"
        idle[1].close()


async def test_too_many_handshakes_end_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logstore.tls_server.HANDSHAKES_MAX", 3)
    made = Certificates(tmp_path)
    given = over_tls(made, made.keystore(), "none")
    async with listening(given=given) as listener, contextlib.AsyncExitStack() as at_end:
        host, _, port = listener.address.rpartition(":")
        idle = []
        for _ in range(5):
            reader, writer = await asyncio.open_connection(host, int(port))
            at_end.callback(writer.close)
            idle.append(reader)
        assert [await asyncio.wait_for(reader.read(), 30) for reader in idle[:2]] == [b"", b""]
        assert not any(reader.at_eof() for reader in idle[2:])


async def test_a_context_serves_the_connections_that_begin_after_it(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    tls = Tls(TlsOptions(made.keystore(), None, made.ca_file), SystemClock())
    seen: list[bytes] = []
    ended: list[Exception | None] = []

    class Shown(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            at_end.callback(transport.close)
            connection: ssl.SSLObject = transport.get_extra_info("ssl_object")
            seen.append(connection.getpeercert(binary_form=True) or b"")

        def connection_lost(self, exc: Exception | None) -> None:
            ended.append(exc)

    network = PeerNetwork(tls)
    server, port = await network.listen("127.0.0.1", 0, asyncio.Protocol, SocketBuffers())
    with contextlib.ExitStack() as at_end:
        at_end.callback(server.close)
        for _ in range(2):
            await network.connect("127.0.0.1", str(port), Shown, SocketBuffers())
            made.keystore()
            await tls.renew()
        assert len(set(seen)) == 2
        assert not ended
    await eventually_async(lambda: len(ended) == 2)


async def _echo(_session: object, message: object) -> bytes:
    return message.body  # type: ignore[attr-defined, no-any-return]


class _EchoOfBytes(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transport has no class of asyncio

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def eof_received(self) -> bool:
        return False
