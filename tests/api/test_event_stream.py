"""A model of event streams: whatever clients, records and connections do, each client gets every record once."""

import asyncio
import contextlib
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest_api import event_chunks, event_hub
from ingest_api.event_chunks import Form, Reading
from ingest_api.event_hub import EventHub
from ingest_api.event_position import parse_position
from ingest_api.event_stream import EventStream
from ingest_api.routers.events import TopicSelection
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.log.isolation import Isolation
from logstore.log.topic import Topic
from tests.support.event_client import Event, EventParser
from tests.support.eventually import eventually_async
from tests.support.running_broker import CLIENT, records, running_broker

KEYS = (b'"a"', b'"b"', None)


@dataclass
class Client:
    """A client that reconnects with the last id that it has. ``room`` is the number of pieces its connection still
    takes.
    """

    hub: EventHub
    topic: Topic
    key: bytes | None
    isolation: Isolation
    parser: EventParser = field(default_factory=EventParser)
    events: list[Event] = field(default_factory=list)
    running: asyncio.Task[None] | None = None

    def connect(self) -> None:
        selection = TopicSelection(self.topic, None)
        partitions = selection.partitions()
        starts = parse_position(self.parser.last_id, partitions, "id") if self.parser.last_id else {}
        self.stream = EventStream(
            self.hub,
            CLIENT,
            selection,
            Reading(partitions, Form.JSON, self.isolation),
            tuple(starts.get(one, 0) for one in partitions),
            key=self.key,
            keepalive_s=0.05,
        )
        self.room = asyncio.Semaphore(0)
        self.running = asyncio.create_task(self.stream.run(self._take))

    async def _take(self, piece: bytes) -> None:
        await self.room.acquire()
        self.events += self.parser.feed(piece)

    def allow(self, pieces: int) -> None:
        for _ in range(pieces):
            self.room.release()

    async def disconnect(self) -> None:
        """Disconnect, maybe in the middle of a piece: the parser forgets the part of an event that it has."""
        assert self.running is not None
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        self.parser = EventParser(last_id=self.parser.last_id)

    def found(self) -> dict[int, list[int]]:
        """Return the client's offsets by partition, in the order in which they came."""
        offsets: dict[int, list[int]] = {}
        for event in self.events:
            offsets.setdefault(event.json["partition"], []).append(event.json["offset"])
        return offsets


class Store:
    """A topic, and the keys of all its records by partition."""

    def __init__(self, broker: Broker, topic: Topic) -> None:
        self.broker = broker
        self.topic = topic
        self.hub = EventHub(broker, 100)
        self.keys: dict[int, list[bytes | None]] = {}
        self.clients: list[Client] = []

    async def produce(self, number: int) -> None:
        partition = number % len(self.topic.partitions)
        keys = [KEYS[(number + row) % 3] for row in range(1 + number % 7)]
        made = records([b"%d" % number] * len(keys), keys=keys)
        (await self.broker.produce.records.produce(INTERNAL, self.topic, made, partition=partition)).require_stored()
        self.keys.setdefault(partition, []).extend(keys)

    async def roll(self, _: int) -> None:
        await self.broker.topics.tables.roll(INTERNAL, self.topic)

    async def grow(self, _: int) -> None:
        if len(self.topic.partitions) < 4:
            await self.broker.topics.changes.add_partitions(INTERNAL, self.topic.name, len(self.topic.partitions) + 1)

    async def connect(self, number: int) -> None:
        client = Client(self.hub, self.topic, KEYS[number % 3], Isolation(number % 2))
        self.clients.append(client)
        client.connect()

    async def allow(self, number: int) -> None:
        if self.clients:
            self.clients[number % len(self.clients)].allow(1 + number % 7)
            await asyncio.sleep(0.002 * (number % 3))

    async def reconnect(self, number: int) -> None:
        if self.clients:
            client = self.clients[number % len(self.clients)]
            await client.disconnect()
            client.connect()

    async def wait(self, number: int) -> None:
        await asyncio.sleep(0.002 * (number % 4))

    def expected(self, client: Client) -> dict[int, list[int]]:
        kept = {
            partition: [offset for offset, key in enumerate(keys) if client.key in (None, key)]
            for partition, keys in self.keys.items()
        }
        return {partition: offsets for partition, offsets in kept.items() if offsets}


STEPS: tuple[Callable[[Store, int], Awaitable[None]], ...] = (
    *(Store.produce, Store.produce, Store.produce, Store.connect, Store.allow, Store.allow, Store.reconnect),
    *(Store.reconnect, Store.wait, Store.roll, Store.grow),
)


@pytest.mark.long
@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 40)), min_size=20, max_size=80))
def test_each_client_has_each_record_once_and_in_order(steps: list[tuple[Callable[..., Awaitable[None]], int]]) -> None:
    async def schedule(data: Path) -> None:
        async with running_broker(data) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", partitions=2)
            assert topic is not None
            store = Store(broker, topic)
            await store.connect(2)
            for step, number in steps:
                await step(store, number)
            for client in store.clients:
                client.allow(100_000)
            for client in store.clients:
                with contextlib.suppress(AssertionError):  # the comparison below says more
                    await eventually_async(lambda c=client: c.found() == store.expected(c))
                assert client.found() == store.expected(client)
            for client in store.clients:
                await client.disconnect()
            assert not store.hub._broadcasts, "broadcasts outlive their streams"
            assert not broker.admission.answers.reserved

    # These are so small that streams fall behind the kept events, and reads end in the middle.
    small = {"_READ_BYTES": 400, "_RUN_BYTES": 120, "_CHUNK_BYTES": 300}
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch.multiple(event_chunks, **small),
        mock.patch.multiple(event_hub, _KEPT_OF_ONE_BYTES=1_500, _PAUSE_OF_STREAM_S=0.0005),
    ):
        asyncio.run(asyncio.wait_for(schedule(Path(directory) / "data"), 300))
