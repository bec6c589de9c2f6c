"""A real broker in the test's own event loop, and short ways to write to it and read from it."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from logstore.broker.authorizer import Authorizer
from logstore.broker.broker import Broker
from logstore.broker.context import ANONYMOUS, INTERNAL, RequestContext
from logstore.broker.opened_journal import OpenedJournal
from logstore.broker.quotas import Quotas
from logstore.clock import Clock
from logstore.cluster.embedded_cluster_state import EmbeddedClusterState
from logstore.errors import QuarantinedError
from logstore.filesystem import FileSystem, local_filesystem
from logstore.log.topic import Topic
from logstore.records.batch import DecodedRecords
from logstore.records.schema import WIRE_SCHEMA
from logstore.settings import Settings
from tests.support.virtual_time import clock_of_loop

#: The context of a client outside the store.
CLIENT = RequestContext("1", "test", "HTTP", "127.0.0.1", None, ANONYMOUS)


async def start_broker(
    settings: Settings,
    *,
    authorizer: Authorizer | None = None,
    clock: Clock | None = None,
    filesystem: FileSystem | None = None,
    new_journal: bool = False,
) -> Broker:
    """Start a broker and its cluster state; ``stop_broker`` ends both."""
    filesystem, clock = filesystem or local_filesystem(), clock or clock_of_loop()
    cluster_state = EmbeddedClusterState(settings.data, settings.broker_id, filesystem, new_journal=new_journal)
    opened = OpenedJournal(settings, filesystem, clock)
    try:
        await cluster_state.start(opened.read)
    except BaseException:
        opened.release()
        raise
    try:
        return await Broker.start(
            settings, cluster_state, opened, authorizer or Authorizer(), Quotas(), clock=clock, filesystem=filesystem
        )
    except BaseException:
        await cluster_state.stop()
        raise


async def stop_broker(broker: Broker) -> None:
    try:
        await broker.stop()
    finally:
        await broker._cluster_state.stop()


@contextlib.asynccontextmanager
async def running_broker(
    data: Path,
    *,
    clock: Clock | None = None,
    filesystem: FileSystem | None = None,
    new_journal: bool = False,
    **settings: Any,
) -> AsyncIterator[Broker]:
    """Run a broker without a listener.

    At the end the frames of its topics must be in files that the journal needs, or on their way there, even after
    faults: ``Admission.has_room`` relies on that.
    """
    wanted = Settings(data=data, **settings)
    broker = await start_broker(wanted, clock=clock, filesystem=filesystem, new_journal=new_journal)
    try:
        yield broker
        in_topics = sum(topic.journal_bytes for topic in broker.topics.served.all(INTERNAL, include_internal=True))
        assert in_topics <= broker.journal.needed_bytes + broker.journal.queued_bytes
    finally:
        await stop_broker(broker)


async def quarantined(data: Path, name: str = "t", **settings: Any) -> str:
    """Return the reason why a broker that starts on ``data`` refuses the topic to readers and writers."""
    async with running_broker(data, **settings) as broker:
        (problem,) = [problem for problem in broker.topics.problems.all(INTERNAL) if problem.topic == name]
        with pytest.raises(QuarantinedError):
            await produce(broker, broker.topics.served.topic(INTERNAL, name), [b"refused"])
        with pytest.raises(QuarantinedError):
            await broker.fetch.partition(
                INTERNAL, broker.topics.served.topic(INTERNAL, name), 0, 0, max_bytes=1, min_bytes=1, max_wait_ms=0
            )
        return problem.reason


def records(
    values: list[bytes | None],
    *,
    keys: list[bytes | None] | None = None,
    timestamp: int | None = None,
    headers: list[tuple[str, bytes | None]] | None = None,
) -> DecodedRecords:
    """Return records as a produce request has them; ``headers`` are those of each record."""
    count = len(values)
    batch = pa.RecordBatch.from_pydict(
        {
            "timestamp": [timestamp] * count,
            "key": keys or [None] * count,
            "value": values,
            "headers": [headers and [{"key": key, "value": value} for key, value in headers]] * count,
        },
        schema=WIRE_SCHEMA,
    )
    return DecodedRecords(batch, None)


async def produce(broker: Broker, topic: Topic, values: list[bytes | None], *, partition: int = 0) -> int:
    """Produce the values and return their base offset. Raises the error of their partition."""
    result = await broker.produce.records.produce(INTERNAL, topic, records(values), partition=partition)
    result.require_stored()
    return result.partitions[0].base_offset


async def read_all(
    broker: Broker, topic: Topic, partition: int = 0, *, max_bytes: int = 1 << 20
) -> list[tuple[int, bytes | None]]:
    """Return (offset, value) from the log start to the high watermark, as a consumer pages through them."""
    partition_log = topic.partition(partition)
    at = partition_log.log_start_offset
    found: list[tuple[int, bytes | None]] = []
    while at < partition_log.high_watermark:
        fetched = await broker.fetch.partition(
            INTERNAL, topic, partition, at, max_bytes=max_bytes, min_bytes=1, max_wait_ms=0
        )
        assert fetched.next_offset > at
        found += zip(fetched.records["offset"].to_pylist(), fetched.records["value"].to_pylist(), strict=True)
        at = fetched.next_offset
    return found
