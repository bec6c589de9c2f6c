"""Rule R8: a record is in the history or in the tail, whichever rolls happen during a read."""

import asyncio
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from logstore.broker.context import INTERNAL
from logstore.client.admin import Admin
from logstore.client.consumer import Consumer
from logstore.client.metadata import TopicPartition
from logstore.client.producer import Producer
from logstore.delta.schema import FORBIDDEN_PROPERTY
from logstore.errors import CommitRefusedError
from logstore.limits import MIB
from logstore.protocol.messages.topics import Topic
from logstore.spark import read_plan, topic_view
from logstore.spark.offset_ranges import resolve
from tests.support.running_broker import produce, read_all, running_broker
from tests.support.server_process import ServerProcess
from tests.support.table_paths import path_of
from tests.support.virtual_time import run

NEVER = {"segment.ms": "100000000"}


class RollingAdmin(Admin):
    """An admin client whose store appends and rolls right after each of its answers."""

    producer: Producer

    def describe_topic(self, topic: str) -> Topic:
        described = super().describe_topic(topic)
        append(self.producer, topic, 3)
        self.roll(topic)
        append(self.producer, topic, 2)
        return described


def append(producer: Producer, topic: str, count: int) -> None:
    for _ in range(count):
        producer.send(topic, value=b"v", partition=0)
    producer.flush()


def offsets_read(view: topic_view.TopicView) -> list[int]:
    """Read a view as Spark does, without Spark: a later version of the table, and the tail over HTTP."""
    ranges = resolve(view.topic, "earliest", "latest", view.bounds)
    plan = view.plan(ranges)
    found: list[int] = []
    for r in [r for scan in plan.history for r in scan.ranges]:
        rows = DeltaTable(view.files.uri).to_pyarrow_table(columns=["offset"])["offset"]
        found += rows.filter(pc.and_(pc.greater_equal(rows, r.start), pc.less(rows, r.end))).to_pylist()
    for r in plan.fetched:
        with Consumer(*view.urls) as consumer:
            partition = TopicPartition(view.topic, r.partition)
            consumer.assign([partition])
            consumer.seek(partition, r.start)
            while consumer.position(partition) < r.end:
                if batch := consumer.poll_arrow():
                    found += batch.before(r.end).batch.column("offset").to_pylist()
    return found


@pytest.mark.system
def test_a_view_takes_the_ends_before_it_looks_at_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_plan, "FETCHED_BYTES_MAX", -1)  # otherwise this little is not read from the table
    with (
        ServerProcess(tmp_path / "data") as server,
        RollingAdmin(server.url) as admin,
        Producer(server.url) as producer,
    ):
        admin.producer = producer
        admin.create_topic("t", partitions=1, configs=NEVER)
        append(producer, "t", 4)
        for _ in range(3):
            view = topic_view.view_through_store(admin, "t")
            (bounds,) = view.bounds
            # Records that were rolled after the ends were reported are in the snapshot.
            assert view.snapshot.partitions[0].sealed > bounds.end_offset
            assert sorted(offsets_read(view)) == list(range(bounds.end_offset))
        # The opposite also holds: ends far above the offset that was sealed then.
        append(producer, "t", 6)
        with Admin(server.url) as quiet:
            view = topic_view.view_through_store(quiet, "t")
        assert view.snapshot.partitions[0].sealed < view.bounds[0].end_offset
        for _ in range(2):
            assert sorted(offsets_read(view)) == list(range(view.bounds[0].end_offset))
            admin.roll("t")  # the roll comes between two evaluations


def test_readers_of_the_store_notice_no_roll(tmp_path: Path) -> None:
    """Check that a reader that passes the border while it moves gets each record once."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            written: list[bytes] = []

            async def write_and_roll() -> None:
                for number in range(12):
                    values = [f"{number}.{n}".encode() for n in range(5)]
                    written.extend(values)
                    await produce(broker, topic, list(values))
                    await broker.topics.tables.roll(INTERNAL, topic)

            async def read() -> int:
                rounds = 0
                while not writer.done():
                    found = await read_all(broker, topic, max_bytes=200)
                    assert found == list(enumerate(written[: len(found)]))
                    rounds += 1
                    await asyncio.sleep(0)
                return rounds

            async def read_newest() -> int:
                rounds = 0
                while not writer.done():
                    if at := topic.partition(0).high_watermark:
                        fetched = await broker.fetch.partition(
                            INTERNAL, topic, 0, at - 1, max_bytes=200, min_bytes=1, max_wait_ms=0
                        )
                        assert fetched.records["offset"].to_pylist()[:1] == [at - 1]
                        rounds += 1
                    await asyncio.sleep(0)
                return rounds

            writer = asyncio.create_task(write_and_roll())
            rounds = await asyncio.gather(read(), read(), read_newest())
            await writer
            assert all(rounds)
            assert await read_all(broker, topic) == list(enumerate(written))

    run(scenario())


def test_records_that_could_not_be_sealed_stay_in_the_journal(tmp_path: Path) -> None:
    """Check rule R7: a range is freed after its commit, not with the attempt."""

    async def scenario() -> None:
        async with running_broker(tmp_path, journal_max_bytes=32 * MIB) as broker:  # journal files are of 1 MiB
            topics = [
                await broker.topics.changes.create(INTERNAL, name, configs=NEVER) for name in ("refused", "rolled")
            ]
            refused, rolled = (topic for topic in topics if topic)
            values = [bytes([n]) * 200_000 for n in range(8)]
            for value in values:
                await produce(broker, refused, [value])
            DeltaTable(path_of(refused.table)).alter.set_table_properties(
                {FORBIDDEN_PROPERTY: "interval 1 days"}, raise_if_not_exists=False
            )
            with pytest.raises(CommitRefusedError, match=FORBIDDEN_PROPERTY):
                await broker.topics.tables.roll(INTERNAL, refused)
            first = broker.journal.files[0]
            for _ in range(3):
                for value in values:
                    await produce(broker, rolled, [value])
                await broker.topics.tables.roll(INTERNAL, rolled)
            assert broker.journal.files[0] == first
            broker.fetch._reader._slices._begun.clear()
            assert await read_all(broker, refused) == list(enumerate(values))

    run(scenario())
