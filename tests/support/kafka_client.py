"""A store with a listener for Kafka's clients in the test's own event loop, and a client that may send anything."""

import asyncio
import contextlib
import itertools
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logstore.broker.authorizer import Authorizer
from logstore.broker.context import INTERNAL
from logstore.broker.quotas import Quotas
from logstore.clock import Clock
from logstore.kafka_batches.encoding import encode_batch
from logstore.kafka_listener.listener import KafkaListener
from logstore.kafka_listener.listening import ConnectionLimits
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.messages import ProduceRequest
from logstore.kafka_protocol.requests import write_request
from logstore.kafka_protocol.responses import read_response
from logstore.listening_sockets import SocketBuffers, bound_socket
from logstore.log.topic import Topic
from logstore.node import Store, running_store
from logstore.settings import Settings
from tests.support.kafka_batches import log_batch
from tests.support.records import Row
from tests.support.virtual_time import clock_of_loop

PRODUCE, FETCH, METADATA, API_VERSIONS, INIT_PRODUCER_ID, DESCRIBE_CLUSTER = 0, 1, 3, 18, 22, 60

_WITHIN_S = 20.0


class KafkaConnection:
    """One connection, whose waits are all bounded."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation_ids = itertools.count(1)

    def send(self, api_key: int, version: int, message: Any, client_id: str | None = "test") -> int:
        """Send a request and return its correlation id."""
        correlation_id = next(self._correlation_ids)
        self.writer.writelines(map(bytes, write_request(api_key, version, correlation_id, client_id, message)))
        return correlation_id

    async def frame(self) -> bytes:
        async with asyncio.timeout(_WITHIN_S):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def receive(self, api_key: int, version: int) -> tuple[int, Any]:
        """Return the correlation id and the message of the next response."""
        return read_response(api_key, version, await self.frame())

    async def ask(self, api_key: int, version: int, message: Any) -> Any:
        sent = self.send(api_key, version, message)
        received, answer = await self.receive(api_key, version)
        assert received == sent
        return answer

    async def is_closed(self) -> bool:
        """Return whether the other end closes the connection soon, without sending anything first."""
        try:
            async with asyncio.timeout(_WITHIN_S):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


@dataclass(frozen=True, slots=True)
class KafkaServer:
    store: Store
    kafka: KafkaStore
    listener: KafkaListener
    port: int
    _opened: list[KafkaConnection]

    async def topic(self, name: str = "t", partitions: int = 1, **configs: str) -> Topic:
        """Create a topic; in ``configs``, ``_`` means ``.``"""
        named = {key.replace("_", "."): value for key, value in configs.items()}
        topic = await self.store.broker.topics.changes.create(INTERNAL, name, partitions=partitions, configs=named)
        assert topic is not None
        return topic

    async def connect(self) -> KafkaConnection:
        """Open a connection, which is closed with the server."""
        connection = KafkaConnection(*await asyncio.open_connection("127.0.0.1", self.port))
        self._opened.append(connection)
        return connection


def batch_of(*values: bytes, **options: Any) -> bytes:
    """Return a record batch as a producer sends it."""
    rows = [Row(1_700_000_000_000, b"k", value, None) for value in values]
    return bytes(encode_batch(log_batch(rows, range(len(rows))), leader_epoch=-1, **options))


def produce_request(
    batches: dict[int, bytes | None], *, topic: str | bytes = "t", acks: int = -1, timeout_ms: int = 10_000
) -> ProduceRequest:
    """Return a request for one topic, given by name or id."""
    named = {"topic_id": topic} if isinstance(topic, bytes) else {"name": topic}
    data = [ProduceRequest.PartitionProduceData(index=at, records=records) for at, records in batches.items()]
    return ProduceRequest(
        acks=acks, timeout_ms=timeout_ms, topic_data=[ProduceRequest.TopicProduceData(partition_data=data, **named)]
    )


@contextlib.asynccontextmanager
async def kafka_server(
    data: Path,
    *,
    quotas: Quotas | None = None,
    clock: Clock | None = None,
    limits: ConnectionLimits | None = None,
    **settings: Any,
) -> AsyncIterator[KafkaServer]:
    """Run a store with a listener; ``limits`` replace those of the settings."""
    wanted = Settings(data=data, **settings)
    listening = bound_socket("127.0.0.1", 0, SocketBuffers())
    port = listening.getsockname()[1]
    async with running_store(wanted, Authorizer(), quotas or Quotas(), clock=clock or clock_of_loop()) as store:
        kafka = KafkaStore(wanted, store.broker, store.groups, store.cluster_state, ("127.0.0.1", port))
        listener = KafkaListener(kafka)
        if limits is not None:
            listener.limits = limits
        await listener.open(listening)
        opened: list[KafkaConnection] = []
        try:
            yield KafkaServer(store, kafka, listener, port, opened)
        finally:
            await listener.stop()
            for connection in opened:
                await connection.close()
