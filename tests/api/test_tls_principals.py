"""The certificate of a client gives each of its requests a principal, over HTTP and over Kafka's protocol."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingest_api.http_listener import HttpListener
from logstore.broker.authorizer import Authorizer, Operation, ResourceType
from logstore.broker.context import ANONYMOUS, Principal
from logstore.broker.quotas import Quotas
from logstore.clock import SystemClock
from logstore.kafka_listener.dispatch import PRODUCE
from logstore.kafka_listener.listener import KafkaListener
from logstore.kafka_listener.store import KafkaStore
from logstore.listening_sockets import SocketBuffers, bound_socket
from logstore.node import running_store
from logstore.settings import Settings
from logstore.tls.contexts import Tls
from logstore.tls.options import TlsOptions
from tests.support.captured_logs import captured_logs
from tests.support.certificates import Certificates
from tests.support.kafka_client import KafkaConnection, batch_of, produce_request

pytestmark = pytest.mark.anyio


@pytest.fixture(
    params=[("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)
def anyio_backend(request):
    return request.param


class Seen:
    """Allows everything, and remembers who writes to topics."""

    version = 1

    def __init__(self) -> None:
        self.writers: set[Principal] = set()

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        if operation is Operation.WRITE:
            self.writers.add(principal)
        return True


@dataclass(frozen=True, slots=True)
class Listening:
    made: Certificates
    seen: Seen
    url: str
    kafka_port: int
    logs: list[MutableMapping[str, Any]]

    def context(self, common_name: str | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.made.ca_file))
        if common_name is not None:
            context.load_cert_chain(self.made.keystore("client", "client.example", common_name=common_name))
        return context

    async def post(self, common_name: str | None, body: dict[str, object]) -> httpx.Response:
        async with httpx.AsyncClient(verify=self.context(common_name), timeout=30) as client:
            return await client.post(f"{self.url}/topics/t", json=body)

    @contextlib.asynccontextmanager
    async def kafka(self, common_name: str | None) -> AsyncIterator[KafkaConnection]:
        opened = await asyncio.open_connection("127.0.0.1", self.kafka_port, ssl=self.context(common_name))
        connection = KafkaConnection(*opened)
        try:
            yield connection
        finally:
            await connection.close()


@pytest.fixture(name="store")
async def _store(tmp_path: Path, anyio_backend: object) -> AsyncIterator[Listening]:
    with captured_logs() as logs:
        async with listening(tmp_path, logs) as store:
            yield store


@contextlib.asynccontextmanager
async def listening(tmp_path: Path, logs: list[MutableMapping[str, Any]]) -> AsyncIterator[Listening]:
    made, seen = Certificates(tmp_path / "tls"), Seen()
    options = TlsOptions(
        made.keystore(),
        None,
        made.ca_file,
        "requested",
        principal_mapping_rules="RULE:CN=([a-z]+),.*/$1/U",
    )
    tls, authorizer, quotas = Tls(options, SystemClock()), Authorizer(seen), Quotas()
    settings = Settings(data=tmp_path / "data", auto_create_topics_enable=True)
    sockets = [bound_socket("127.0.0.1", 0, SocketBuffers()) for _ in range(2)]
    ports = [one.getsockname()[1] for one in sockets]
    http = HttpListener(settings, authorizer, quotas, tls)
    serving = asyncio.create_task(http.serve(sockets[0]))
    async with running_store(settings, authorizer, quotas) as store:
        http.open(store.broker, store.groups)
        kafka_store = KafkaStore(settings, store.broker, store.groups, store.cluster_state, ("127.0.0.1", ports[1]))
        kafka = KafkaListener(kafka_store, tls=tls)
        await kafka.open(sockets[1])
        try:
            yield Listening(made, seen, f"https://127.0.0.1:{ports[0]}", ports[1], logs)
        finally:
            await kafka.stop()
            http.stop()
            await serving
            http.close()


async def test_requests_have_the_principal_of_their_connections_certificate(store: Listening) -> None:
    # A short request, a long one, and Kafka's.
    small: dict[str, object] = {"records": [{"value": 1}]}
    large: dict[str, object] = {"records": [{"value": "x" * 200_000}]}
    shop = Principal("User", "SHOP", mechanism="SSL")
    assert (await store.post("shop", large)).status_code == 200  # makes the topic
    assert store.seen.writers == {shop}
    store.seen.writers.clear()
    assert (await store.post("billing", small)).status_code == 200
    assert store.seen.writers == {Principal("User", "BILLING", mechanism="SSL")}
    assert (await store.post(None, small)).status_code == 200
    assert ANONYMOUS in store.seen.writers
    store.seen.writers.clear()
    async with store.kafka("depot") as connection:
        answer = await connection.ask(PRODUCE, 9, produce_request({0: batch_of(b"a")}))
        assert answer.responses[0].partition_responses[0].error_code == 0
    assert store.seen.writers == {Principal("User", "DEPOT", mechanism="SSL")}


async def test_a_subject_without_a_rule_gets_no_connection(store: Listening) -> None:
    with pytest.raises(httpx.TransportError):
        await store.post("UPPER", {"records": [{"value": 1}]})
    async with store.kafka("UPPER") as connection:
        assert await connection.is_closed()
    lines = [line for line in store.logs if line["event"] == "tls.client_refused"]
    assert len(lines) == 2
    assert all("ssl.principal.mapping.rules has no rule" in line["reason"] for line in lines)
    assert all(line["subject"].startswith("CN=UPPER") for line in lines)
    assert store.seen.writers == set()
