"""The broker's rules: requests that it refuses, what it waits for, and configurations that change while it runs."""

import asyncio
import errno
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from logstore.broker.authorizer import Operation
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.delta.committer import Committer
from logstore.delta.topic_table import TopicTable
from logstore.errors import (
    BrokerNotReadyError,
    DataDirectoryError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidRecordError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    StorageError,
    StorageFullError,
    ThrottledError,
    UnknownPartitionError,
    UnknownTopicError,
)
from logstore.filesystem import FileSystem
from logstore.journal.errors import JournalRangeFreedError
from logstore.journal.frame import Frame, FrameLocation
from logstore.journal.journal import Journal
from logstore.log.topic import Topic
from logstore.observability import render_metrics
from logstore.records.batch import DecodedRecords
from logstore.records.batch_identity import IdempotencyKey
from logstore.records.schema import WIRE_SCHEMA
from logstore.settings import Settings
from logstore.table_files import open_table
from tests.support.data_directory import copy_of_one_moment
from tests.support.eventually import eventually_async, loop_turns
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.manual_clock import ManualClock
from tests.support.records import compressed_payload
from tests.support.running_broker import produce, read_all, records, running_broker, start_broker
from tests.support.table_paths import path_of
from tests.support.virtual_time import run

NEVER = {"segment.ms": "100000000"}


async def new_topic(broker: Broker, name: str = "t", partitions: int = 1, **configs: str) -> Topic:
    given = {key.replace("_", "."): value for key, value in configs.items()}
    topic = await broker.topics.changes.create(INTERNAL, name, partitions=partitions, configs={**NEVER, **given})
    assert topic is not None
    return topic


async def fetch(
    broker: Broker, topic: Topic, offset: int, *, wait_ms: int = 0, min_bytes: int = 1, max_bytes: int = 10**6
) -> list[bytes]:
    result = await broker.fetch.partition(
        INTERNAL, topic, 0, offset, max_bytes=max_bytes, min_bytes=min_bytes, max_wait_ms=wait_ms
    )
    return list(result.records["value"].to_pylist())


async def sealed(topic: Topic) -> None:
    """Wait until Delta has a record of partition 0."""
    await eventually_async(lambda: topic.partition(0).sealed_offset)


# ---- appending ------------------------------------------------------------------------------------------------------


def test_a_request_is_split_by_key_and_rows_show_which_record_is_where(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker, partitions=4)
            keys = [b"k%d" % (n % 7) for n in range(50)]
            result = await broker.produce.records.produce(
                INTERNAL, topic, records([b"%d" % n for n in range(50)], keys=keys)
            )
            assert result.count == sum(r.count for r in result.partitions) == 50
            for found in result.partitions:
                assert found.rows is not None
                values = [value for _, value in await read_all(broker, topic, found.partition)]
                assert values == [b"%d" % row for row in found.rows]
            by_key = {
                keys[row]: r.partition for r in result.partitions for row in (r.rows if r.rows is not None else [])
            }
            again = await broker.produce.records.produce(INTERNAL, topic, records([b"x"], keys=[b"k3"]))
            assert again.partitions[0].partition == by_key[b"k3"]

    run(scenario())


def test_records_without_a_key_stay_together_and_requests_take_turns(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker, partitions=3)
            results = [await broker.produce.records.produce(INTERNAL, topic, records([b"a", b"b"])) for _ in range(3)]
            assert all(len(r.partitions) == 1 for r in results)
            assert {r.partitions[0].partition for r in results} == {0, 1, 2}

    run(scenario())


def test_topics_that_are_sent_to_in_turns_use_all_of_their_partitions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topics = [await broker.topics.changes.create(INTERNAL, name, partitions=2) for name in ("a", "b")]
            for _ in range(4):
                for topic in topics:
                    await broker.produce.records.produce(INTERNAL, topic, records([b"x"]))
            assert [[log.high_watermark for log in topic.partitions] for topic in topics] == [[2, 2], [2, 2]]

    run(scenario())


def test_a_compacted_topic_refuses_null_keys_and_stores_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker, cleanup_policy="compact")
            with pytest.raises(InvalidRecordError, match="Record 1 has no key"):
                await broker.produce.records.produce(INTERNAL, topic, records([b"a", b"b"], keys=[b"k", None]))
            assert topic.partition(0).next_offset == 0

    run(scenario())


def test_partitions_that_are_not_there_or_disagree(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker, partitions=2)
            with pytest.raises(UnknownPartitionError, match="partitions 0 to 1"):
                await broker.produce.records.produce(INTERNAL, topic, records([b"a"]), partition=2)
            import numpy as np

            named = DecodedRecords(records([b"a", b"b"]).batch, np.array([-1, 1], dtype=np.int32))
            with pytest.raises(InvalidRequestError, match="Record 1 names partition 1"):
                await broker.produce.records.produce(INTERNAL, topic, named, partition=0)
            assert [p.next_offset for p in topic.partitions] == [0, 0]

    run(scenario())


def test_append_time_fills_missing_timestamps_and_never_goes_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock(wall_ms=5_000)
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await new_topic(broker)
            log_append_time = await new_topic(broker, "l", message_timestamp_type="LogAppendTime")
            for t in (topic, log_append_time):
                await broker.produce.records.produce(INTERNAL, t, records([b"a"], timestamp=77))
                await broker.produce.records.produce(INTERNAL, t, records([b"b"]))
            clock.step_wall(-3_000)
            for t in (topic, log_append_time):
                await broker.produce.records.produce(INTERNAL, t, records([b"c"]))
            await broker.topics.tables.roll(INTERNAL, log_append_time)

            async def timestamps(t: Topic) -> list[int]:
                result = await broker.fetch.partition(INTERNAL, t, 0, 0, max_bytes=10**6, min_bytes=1, max_wait_ms=0)
                return list(result.records["timestamp"].cast(pa.int64()).to_pylist())

            assert await timestamps(topic) == [77, 5_000, 5_000]
            assert await timestamps(log_append_time) == [5_000, 5_000, 5_000]

    run(scenario())


def test_a_roll_honours_the_compression_type(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker, compression_type="snappy")
            await broker.produce.records.produce(INTERNAL, topic, records([b"a"]))
            await broker.topics.tables.roll(INTERNAL, topic)
            (segment,) = topic.partition(0).segments
            value = pq.ParquetFile(path_of(topic.table) / segment.path).metadata.row_group(0).column(3)
            assert value.compression == "SNAPPY"

    run(scenario())


def test_acks_0_answers_before_the_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            result = await broker.produce.records.produce(INTERNAL, topic, records([b"a"]), acks=0)
            assert result.partitions[0].base_offset == 0
            assert topic.partition(0).log_end_offset == 0
            assert await fetch(broker, topic, 0, wait_ms=5_000) == [b"a"]

    run(scenario())


class SlowDisk(FileSystem):
    """A file system whose syncs wait until the test lets them continue."""

    def __init__(self) -> None:
        super().__init__()
        import threading

        self.go = threading.Event()
        self.go.set()
        #: Set when a sync has begun to wait.
        self.syncing = threading.Event()

    def fdatasync(self, fd: int) -> None:
        if not self.go.is_set():
            self.syncing.set()
        self.go.wait(30)
        super().fdatasync(fd)


@pytest.mark.parametrize("acks", [1, -1])
def test_acks_1_and_all_answer_after_the_disk(tmp_path: Path, acks: int) -> None:
    async def scenario() -> None:
        disk = SlowDisk()
        async with running_broker(tmp_path, filesystem=disk) as broker:
            topic = await new_topic(broker)
            disk.go.clear()
            answer = asyncio.create_task(broker.produce.records.produce(INTERNAL, topic, records([b"a"]), acks=acks))
            assert await asyncio.to_thread(disk.syncing.wait, 30)
            await loop_turns()
            assert not answer.done()
            disk.go.set()
            assert (await answer).partitions[0].base_offset == 0

    run(scenario())


def test_a_timeout_says_that_the_outcome_is_open_and_the_records_come(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = SlowDisk()
        async with running_broker(tmp_path, filesystem=disk) as broker:
            topic = await new_topic(broker)
            disk.go.clear()
            with pytest.raises(RequestTimedOutError):
                await broker.produce.records.produce(INTERNAL, topic, records([b"a"]), timeout_ms=20)
            assert await fetch(broker, topic, 0) == []
            disk.go.set()
            assert await fetch(broker, topic, 0, wait_ms=5_000) == [b"a"]

    asyncio.run(scenario())  # on real time, which continues while a thread is held


def test_bytes_that_wait_for_the_disk_are_bounded_also_with_acks_0(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = SlowDisk()
        limits = {"queued_max_request_bytes": 4_000_000, "max_request_size": 2_000_000}
        async with running_broker(tmp_path, filesystem=disk, **limits) as broker:
            topic = await new_topic(broker)
            disk.go.clear()

            async def fill() -> None:
                for _ in range(100):
                    await broker.produce.records.produce(INTERNAL, topic, records([b"x" * 500_000]), acks=0)

            with pytest.raises(ThrottledError, match="wait for the disk"):
                await fill()
            assert broker.journal.queued_bytes <= 4_000_000
            disk.go.set()
            await eventually_async(lambda: not broker.journal.queued_bytes, "the disk does not catch up")
            await produce(broker, topic, [b"y"])

    run(scenario())


def test_appends_wait_for_one_fsync_together(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FaultyFileSystem()
        async with running_broker(tmp_path, filesystem=disk) as broker:
            topic = await new_topic(broker, partitions=50)
            before = disk.hits["fdatasync"]
            await asyncio.gather(
                *(broker.produce.records.produce(INTERNAL, topic, records([b"x"]), partition=p) for p in range(50))
            )
            # The first append is alone; the other 49 partitions share the next sync.
            assert disk.hits["fdatasync"] - before <= 3

    run(scenario())


def test_a_full_disk_refuses_appends_keeps_reads_and_recovers(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FaultyFileSystem()
        async with running_broker(tmp_path, filesystem=disk) as broker:
            topic = await new_topic(broker)
            await produce(broker, topic, [b"a"])
            disk.fill()
            big = [b"x" * 900_000] * 8
            refused = await asyncio.gather(
                *(broker.produce.records.produce(INTERNAL, topic, records(big)) for _ in range(3)),
                return_exceptions=True,
            )
            assert [type(r) for r in refused] == [StorageFullError] * 3
            assert await fetch(broker, topic, 0) == [b"a"]
            assert broker.not_ready_reason is None
            disk.heal()
            assert await produce(broker, topic, [b"b"]) == 1
            assert await fetch(broker, topic, 0) == [b"a", b"b"]
        async with running_broker(tmp_path) as broker:
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "t")) == [(0, b"a"), (1, b"b")]

    run(scenario())


def test_a_failed_fsync_ends_appends_until_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FaultyFileSystem()
        async with running_broker(tmp_path, filesystem=disk) as broker:
            topic = await new_topic(broker)
            await produce(broker, topic, [b"a"])
            disk.fail("fdatasync", errno.EIO)
            for _ in range(2):
                with pytest.raises(StorageError):
                    await produce(broker, topic, [b"b"])
            assert broker.not_ready_reason is not None
            assert broker.not_ready_reason
            assert await fetch(broker, topic, 0) == [b"a"]
        async with running_broker(tmp_path) as broker:
            found = await read_all(broker, broker.topics.served.topic(INTERNAL, "t"))
            assert found in ([(0, b"a")], [(0, b"a"), (1, b"b")])

    run(scenario())


def test_a_full_journal_throttles_and_a_roll_makes_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path, journal_max_bytes=8 * 1024 * 1024) as broker:
            topic = await new_topic(broker)
            values = [b"x" * 500_000]
            written = 0
            while written < 30:
                try:
                    await produce(broker, topic, values)
                    written += 1
                except ThrottledError:
                    await asyncio.sleep(0.05)
                assert broker.journal.retained_bytes <= 8 * 1024 * 1024
            assert len(await read_all(broker, topic, max_bytes=10**8)) == written

    run(scenario())


def test_the_journal_of_a_slow_topic_is_copied_forward(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path, journal_max_bytes=64 * 1024 * 1024) as broker:
            slow, fast = await new_topic(broker, "slow"), await new_topic(broker, "fast")
            await produce(broker, slow, [b"pinned"])
            for _ in range(28):
                await produce(broker, fast, [b"x" * 900_000])
                if fast.partition(0).unsealed_bytes > 5_000_000:
                    await broker.topics.tables.roll(INTERNAL, fast)
            assert len(broker.journal.files) > 5
            await broker._schedule._unpin_journal()
            await eventually_async(lambda: len(broker.journal.files) <= 5)
            assert slow.partition(0).sealed_offset == 0
            assert await read_all(broker, slow) == [(0, b"pinned")]
        async with running_broker(tmp_path) as broker:
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "slow")) == [(0, b"pinned")]

    run(scenario())


def test_files_that_are_needed_as_a_whole_are_not_copied_forward(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path, journal_max_bytes=32 * 1024 * 1024) as broker:
            topic = await new_topic(broker)
            for _ in range(8):
                await produce(broker, topic, [b"x" * 900_000])
            assert len(broker.journal.files) > 5
            end = broker.journal.end_position
            await asyncio.wait_for(broker._schedule._unpin_journal(), 30)
            assert broker.journal.end_position == end

    run(scenario())


# ---- reading --------------------------------------------------------------------------------------------------------


def test_a_reader_at_the_end_waits_for_the_next_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            waiting = asyncio.create_task(fetch(broker, topic, 0, wait_ms=20_000))
            await loop_turns()
            assert not waiting.done()
            await produce(broker, topic, [b"a"])
            assert await waiting == [b"a"]
            assert await fetch(broker, topic, 1, wait_ms=10) == []

    run(scenario())


def test_a_reader_waits_for_min_bytes_and_takes_fewer_when_its_time_is_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            await produce(broker, topic, [b"a" * 100])
            waiting = asyncio.create_task(fetch(broker, topic, 0, wait_ms=20_000, min_bytes=250))
            await loop_turns()
            assert not waiting.done()
            await produce(broker, topic, [b"b" * 200])
            assert [len(v) for v in await waiting] == [100, 200]
            assert [len(v) for v in await fetch(broker, topic, 0, wait_ms=10, min_bytes=10**5)] == [100, 200]

    run(scenario())


def test_waiting_readers_of_a_deleted_topic_are_notified(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            waiting = asyncio.create_task(fetch(broker, topic, 0, wait_ms=20_000))
            await loop_turns()
            await broker.topics.changes.delete(INTERNAL, "t")
            with pytest.raises(UnknownTopicError):
                await waiting
            with pytest.raises(UnknownTopicError):
                await produce(broker, topic, [b"a"])

    run(scenario())


def test_a_request_that_ends_after_its_topic_does_not_bring_its_metrics_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FaultyFileSystem()
        async with running_broker(tmp_path, filesystem=disk) as broker:
            topic = await new_topic(broker, "late-metrics")
            for number in range(3):
                await produce(broker, topic, [b"%d" % number])
                await broker.topics.tables.roll(INTERNAL, topic)
            assert await fetch(broker, topic, 0)
            assert b'"late-metrics"' in render_metrics()
            disk.slow("journal.fdatasync", 0.3)
            identity = IdempotencyKey.of("k", b"", broker.idempotency_secret)
            pending = [
                asyncio.create_task(broker.produce.records.produce(INTERNAL, topic, records([b"x"]))),
                asyncio.create_task(
                    broker.produce.records.produce(INTERNAL, topic, records([b"y"]), identity=identity)
                ),
            ]
            await loop_turns()
            await broker.topics.changes.delete(INTERNAL, "late-metrics")
            await asyncio.gather(*pending)
            assert b'"late-metrics"' not in render_metrics()
            # A new topic of the same name has its own count.
            disk.heal()
            again = await new_topic(broker, "late-metrics")
            await produce(broker, again, [b"z"])
            assert b'logstore_produced_records_total{topic="late-metrics"} 1.0' in render_metrics()
            await broker.topics.changes.delete(INTERNAL, "late-metrics")

    run(scenario())


@pytest.mark.parametrize("rolled", [True, False])
def test_the_offset_for_a_timestamp_is_the_first_at_or_after_it(tmp_path: Path, rolled: bool) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            for timestamp in (100, 300, 200, 400):
                await broker.produce.records.produce(INTERNAL, topic, records([b"x", b"y"], timestamp=timestamp))
                if rolled:
                    await broker.topics.tables.roll(INTERNAL, topic)
            found = [
                await broker.fetch.offset_for_timestamp(INTERNAL, topic, 0, t)
                for t in (0, 100, 101, 250, 301, 400, 401)
            ]
            assert found == [(0, 100), (0, 100), (2, 300), (2, 300), (6, 400), (6, 400), None]
            await broker.topics.tables.delete_records(INTERNAL, topic, 0, 3)
            assert await broker.fetch.offset_for_timestamp(INTERNAL, topic, 0, 0) == (3, 300)

    run(scenario())


def test_deleting_records_that_a_job_has_deleted_meanwhile_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            await produce(broker, topic, [b"x"] * 10)
            await broker.topics.tables.roll(INTERNAL, topic)
            job = TopicTable.open(open_table(topic.table.files.uri))
            version = job.advance_log_start({0: 7}, {0: topic.partition(0).leader_epoch})
            assert topic.partition(0).log_start_offset == 0
            assert await broker.topics.tables.delete_records(INTERNAL, topic, 0, 3) == 7
            assert job.snapshot().version == version

    run(scenario())


def test_deleting_records_beyond_the_sealed_offset_rolls_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            await produce(broker, topic, [b"a", b"b", b"c"])
            assert await broker.topics.tables.delete_records(INTERNAL, topic, 0, 2) == 2
            assert topic.partition(0).sealed_offset == 3
            with pytest.raises(OffsetOutOfRangeError, match="offsets 2 to 3"):
                await fetch(broker, topic, 1)
            assert await fetch(broker, topic, 2) == [b"c"]
            assert await broker.topics.tables.delete_records(INTERNAL, topic, 0, 1) == 2
            assert await broker.topics.tables.delete_records(INTERNAL, topic, 0, -1) == 3
            for wrong in (4, -2):
                with pytest.raises(OffsetOutOfRangeError):
                    await broker.topics.tables.delete_records(INTERNAL, topic, 0, wrong)
        async with running_broker(tmp_path) as broker:
            assert broker.topics.served.topic(INTERNAL, "t").partition(0).log_start_offset == 3

    run(scenario())


# ---- topics ---------------------------------------------------------------------------------------------------------


def test_a_deleted_topic_of_the_same_name_begins_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            await produce(broker, await new_topic(broker), [b"old"])
            await broker.topics.changes.delete(INTERNAL, "t")
            topic = await new_topic(broker)
            await produce(broker, topic, [b"new"])
            assert await read_all(broker, topic) == [(0, b"new")]
        async with running_broker(tmp_path) as broker:
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "t")) == [(0, b"new")]

    run(scenario())


def test_added_partitions_take_records_and_survive_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker, partitions=2)
            await broker.topics.changes.add_partitions(INTERNAL, "t", 4)
            assert len(topic.partitions) == 4
            await produce(broker, topic, [b"a"], partition=3)
            for wrong in (3, 0, 10_001):
                with pytest.raises(InvalidPartitionsError):
                    await broker.topics.changes.add_partitions(INTERNAL, "t", wrong)
        async with running_broker(tmp_path) as broker:
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "t"), 3) == [(0, b"a")]

    run(scenario())


def test_configuration_changes_while_running_and_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path, topic_defaults={"retention.ms": "7"}) as broker:
            topic = await new_topic(broker)
            assert (topic.config.retention_ms, topic.config.retention_bytes) == (7, -1)
            await broker.topics.changes.alter_configs(INTERNAL, "t", {"retention.ms": "9", "retention.bytes": "5"})
            assert (topic.config.retention_ms, topic.config.retention_bytes) == (9, 5)
            await broker.topics.changes.alter_configs(INTERNAL, "t", {"retention.ms": None})
            assert topic.config.retention_ms == 7
            for wrong in ({"retention.ms": "x"}, {"no.such.key": "1"}, {"no.such.key": None}):
                with pytest.raises(InvalidConfigError):
                    await broker.topics.changes.alter_configs(INTERNAL, "t", wrong)
            await broker.topics.changes.alter_configs(INTERNAL, "t", {"retention.ms": "11"}, validate_only=True)
            assert topic.config.retention_ms == 7
        async with running_broker(tmp_path) as broker:
            config = broker.topics.served.topic(INTERNAL, "t").config
            assert (config.retention_ms, config.retention_bytes) == (-1, 5)

    run(scenario())


def test_a_bad_property_set_past_us_leaves_the_topic_as_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            table = DeltaTable(path_of(topic.table))
            table.alter.set_table_properties({"logstore.retention.ms": "soon"}, raise_if_not_exists=False)
            await broker._roller.refresh(topic)
            assert topic.config.retention_ms == -1
            await produce(broker, topic, [b"a"])

    run(scenario())


def test_topics_are_created_on_first_produce_only_if_the_setting_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path / "off") as broker:
            with pytest.raises(UnknownTopicError):
                await broker.topics.changes.find_or_create(INTERNAL, "t", Operation.WRITE)
        async with running_broker(tmp_path / "on", auto_create_topics_enable=True, num_partitions=3) as broker:
            topics = await asyncio.gather(
                *(broker.topics.changes.find_or_create(INTERNAL, "t", Operation.WRITE) for _ in range(5))
            )
            assert {id(t) for t in topics} == {id(topics[0])}
            assert len(topics[0].partitions) == 3

    run(scenario())


def test_replication_needs_more_brokers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            with pytest.raises(InvalidReplicationFactorError):
                await broker.topics.changes.create(INTERNAL, "t", replication_factor=3)
            assert await broker.topics.changes.create(INTERNAL, "t", validate_only=True) is None
            assert broker.topics.served.all(INTERNAL) == []

    run(scenario())


# ---- the process ----------------------------------------------------------------------------------------------------


def test_a_second_broker_on_one_directory_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path):
            with pytest.raises(DataDirectoryError, match="Another process is serving"):
                await start_broker(Settings(data=tmp_path))

    run(scenario())


def test_a_stopped_broker_refuses_and_has_sealed_everything(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            await produce(broker, topic, [b"a"])
            waiting = asyncio.create_task(fetch(broker, topic, 1, wait_ms=20_000))
            await loop_turns()
        with pytest.raises(BrokerNotReadyError):
            await waiting
        with pytest.raises(BrokerNotReadyError):
            await produce(broker, topic, [b"b"])
        assert topic.partition(0).sealed_offset == 1

    run(scenario())


def test_records_roll_by_age_and_by_size(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running_broker(tmp_path, clock=clock) as broker:
            old = await broker.topics.changes.create(INTERNAL, "old", configs={"segment.ms": "60000"})
            big = await broker.topics.changes.create(
                INTERNAL, "big", configs={"segment.ms": "60000", "segment.bytes": "5000"}
            )
            assert old
            assert big
            await produce(broker, old, [b"a"])
            await produce(broker, big, [b"x" * 6000])
            await sealed(big)
            assert old.partition(0).sealed_offset == 0
            clock.step_wall(-10_000_000)  # a clock that is set back delays nothing
            clock.advance(60_001)
            await sealed(old)

    run(scenario())


def test_a_fetch_holds_no_more_compressed_frames_than_it_was_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            given = records([bytes(100_000)])
            payload = compressed_payload(given.batch, "zstd")
            assert len(payload) < 1_000
            for _ in range(5):
                await broker.produce.records.produce(
                    INTERNAL, topic, DecodedRecords(given.batch, None, payload), partition=0
                )
            index = topic.partition(0).index
            assert [frame.base_offset for frame in index.frames_by_bytes(0, 5, 150_000)] == [0, 1]
            assert await fetch(broker, topic, 0, max_bytes=150_000) == [bytes(100_000)]

    run(scenario())


def test_a_batch_sent_in_the_wire_schema_is_stored_verbatim(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            given = records([b"a"])
            payload = pa.RecordBatch.from_pydict(
                {"timestamp": [1], "key": [b"k"], "value": [b"verbatim"], "headers": [None]}, schema=WIRE_SCHEMA
            ).serialize()
            await broker.produce.records.produce(
                INTERNAL, topic, DecodedRecords(given.batch, None, payload), partition=0
            )
            assert await fetch(broker, topic, 0) == [b"verbatim"]

    run(scenario())


# ---- what a disk or a table that takes no writes leads to -----------------------------------------------------------


def test_a_commit_that_fails_leaves_its_files_to_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker, partitions=2)
            for partition in range(2):
                await produce(broker, topic, [b"a", b"b"], partition=partition)
            with monkeypatch.context() as patch:
                patch.setattr(Committer, "_put", _full_disk)
                for _ in range(3):
                    with pytest.raises(StorageFullError, match="nothing was changed"):
                        await broker.topics.tables.roll(INTERNAL, topic)
                    await produce(broker, topic, [b"more"], partition=0)
            files = sorted(path_of(topic.table).glob("*/*.parquet"))
            assert len(files) == 2
            assert (await broker.topics.tables.roll(INTERNAL, topic)).sealed == {0: 5, 1: 2}
            assert [value for _, value in await read_all(broker, topic)] == [b"a", b"b", b"more", b"more", b"more"]
            active = {path_of(topic.table) / path for path in topic.snapshot.paths}
            assert active == set(path_of(topic.table).glob("*/*.parquet")), "no file is left that nobody commits"
            assert set(files) < active

    run(scenario())


def test_a_roll_that_cannot_be_written_leaves_no_files(tmp_path: Path) -> None:
    async def scenario() -> None:
        filesystem = FaultyFileSystem()
        async with running_broker(tmp_path, filesystem=filesystem) as broker:
            topic = await new_topic(broker, partitions=2)
            for partition in range(2):
                await produce(broker, topic, [b"a"], partition=partition)
            create = filesystem.create
            filesystem.create = _second_fails(create)  # type: ignore[method-assign]
            with pytest.raises(StorageFullError):
                await broker.topics.tables.roll(INTERNAL, topic)
            filesystem.create = create  # type: ignore[method-assign]
            assert not list(path_of(topic.table).glob("*/*.parquet"))
            assert (await broker.topics.tables.roll(INTERNAL, topic)).sealed == {0: 1, 1: 1}

    run(scenario())


def test_a_roll_that_fails_for_no_known_reason_is_tried_again_later_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[float] = []

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            broken = await new_topic(broker, "broken", segment_ms="1")
            healthy = await new_topic(broker, "healthy")
            roll = broker._roller.roll

            async def fail(topic: Topic, *given: object) -> object:
                if topic is not broken:
                    return await roll(topic, *given)  # type: ignore[arg-type]
                attempts.append(broker.clock.monotonic())
                raise ValueError("a bug")

            monkeypatch.setattr(broker._roller, "roll", fail)
            await produce(broker, broken, [b"a"])
            await produce(broker, healthy, [b"b"])
            await eventually_async(lambda: len(attempts) == 2)
            assert attempts[1] - attempts[0] > 0.9, "a second apart at least"
        assert healthy.partition(0).sealed_offset == 1
        assert len(attempts) == 3, "the stop tried, too"

    run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own there")
def test_a_roll_leaves_the_processor_to_appends(tmp_path: Path) -> None:
    niceness: dict[str, int] = {}

    class Watched(FileSystem):
        def reached(self, point: str) -> None:
            niceness[point] = os.getpriority(os.PRIO_PROCESS, 0)  # of the calling thread

    async def scenario() -> None:
        async with running_broker(tmp_path, filesystem=Watched()) as broker:
            topic = await new_topic(broker)
            for value in (b"a", b"b"):
                await produce(broker, topic, [value])
                await broker.topics.tables.roll(INTERNAL, topic)

    before = os.getpriority(os.PRIO_PROCESS, 0)
    run(scenario())
    assert niceness["segment.half"] > before
    assert niceness["journal.synced"] == niceness["produce.durable"] == before
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_a_roll_finds_records_that_were_copied_forward_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            await produce(broker, topic, [b"a"])
            read_many, calls = Journal.read_many, []

            def freed_at_first(journal: Journal, locations: Sequence[FrameLocation]) -> list[Frame]:
                calls.append(locations)
                if len(calls) == 1:
                    raise JournalRangeFreedError("freed")
                return read_many(journal, locations)

            monkeypatch.setattr(Journal, "read_many", freed_at_first)
            assert (await broker.topics.tables.roll(INTERNAL, topic)).sealed == {0: 1}
            assert len(calls) == 2

    run(scenario())


def _no_space(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def _full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _second_fails(create: Callable[[Path], int]) -> Callable[[Path], int]:
    calls = iter([False, True])

    def wrapped(path: Path) -> int:
        if next(calls):
            _full_disk()
        return create(path)

    return wrapped


def test_a_full_disk_refuses_administration_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            await produce(broker, topic, [b"a"])
            await broker.topics.tables.roll(INTERNAL, topic)
            monkeypatch.setattr(Committer, "_put", _full_disk)
            monkeypatch.setattr(FileSystem, "create", _no_space)
            for change in (
                broker.topics.changes.create(INTERNAL, "u"),
                broker.topics.changes.alter_configs(INTERNAL, "t", {"retention.ms": "5"}),
                broker.topics.changes.add_partitions(INTERNAL, "t", 3),
                broker.topics.tables.delete_records(INTERNAL, topic, 0, 1),
            ):
                with pytest.raises(StorageFullError, match="Free some space"):
                    await change
            assert [t.name for t in broker.topics.served.all(INTERNAL)] == ["t"]
            assert not list((tmp_path / "staging").glob("*"))

    run(scenario())


# ---- configuration as a whole ---------------------------------------------------------------------------------------


def test_a_change_must_fit_the_configuration_before_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker, max_compaction_lag_ms="100", cleanup_policy="compact")
            for validate_only in (True, False):
                with pytest.raises(InvalidConfigError, match="above"):
                    await broker.topics.changes.alter_configs(
                        INTERNAL, "t", {"min.compaction.lag.ms": "200"}, validate_only=validate_only
                    )
            assert topic.version == 0
            await broker.topics.changes.alter_configs(
                INTERNAL, "t", {"min.compaction.lag.ms": "200", "max.compaction.lag.ms": None}
            )
            assert topic.config.min_compaction_lag_ms == 200

    run(scenario())


def test_a_property_set_past_the_store_does_not_take_the_others_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker, cleanup_policy="compact", max_message_bytes="1000")
            topic.table.alter_config({"retention.ms": "soon"})
        async with running_broker(tmp_path) as broker:
            config = broker.topics.served.topic(INTERNAL, "t").config
            assert config.compacted
            assert (config.max_message_bytes, config.retention_ms) == (1000, -1)

    run(scenario())


@pytest.mark.parametrize("row", [0, 3, 4])
def test_a_row_that_somebody_deletes_with_delta_rs_is_gone_and_all_else_is_served(tmp_path: Path, row: int) -> None:
    """Delete a row as docs/table-format.md describes."""

    async def scenario() -> None:
        left = [(offset, b"%d" % offset) for offset in range(10) if offset != row]
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            for first in (0, 5):
                await produce(broker, topic, [b"%d" % offset for offset in range(first, first + 5)])
                await broker.topics.tables.roll(INTERNAL, topic)
            DeltaTable(tmp_path / "topics" / "t").delete(f'"offset" = {row}')
            await broker.topics.tables.refresh(INTERNAL, topic)
            assert await read_all(broker, topic) == left
            await produce(broker, topic, [b"10"])
            await broker.topics.tables.roll(INTERNAL, topic)
        async with running_broker(tmp_path) as broker:
            topic = broker.topics.served.topic(INTERNAL, "t")
            assert await read_all(broker, topic) == [*left, (10, b"10")]
            assert broker.topics.problems.all(INTERNAL) == []
            await produce(broker, topic, [b"11"])
            assert (await broker.topics.tables.roll(INTERNAL, topic)).sealed == {0: 12}

    run(scenario())


# ---- whose data directory it is -------------------------------------------------------------------------------------


def test_a_data_directory_belongs_to_one_broker_at_a_time_and_for_ever(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            with pytest.raises(DataDirectoryError, match="Another process"):
                await start_broker(Settings(data=tmp_path, broker_id=1))
            await produce(broker, await new_topic(broker), [b"a"])
        with pytest.raises(DataDirectoryError, match="belongs to broker 0"):
            await start_broker(Settings(data=tmp_path, broker_id=1))

    run(scenario())


def test_records_of_a_topic_that_is_missing_are_not_given_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path / "data") as broker:
            topic = await new_topic(broker)
            await produce(broker, topic, [b"a"])
            copy_of_one_moment(tmp_path / "data", tmp_path / "after")  # the state of the disk after a kill
        data, topic_id = tmp_path / "after", topic.topic_id
        (data / "topics" / "t").rename(tmp_path / "unmounted")
        async with running_broker(data) as broker:
            (problem,) = broker.topics.problems.all(INTERNAL)
            assert problem.topic == str(topic_id)
            assert f"1 records of the topic with id {topic_id}" in problem.reason
        (tmp_path / "unmounted").rename(data / "topics" / "t")
        async with running_broker(data) as broker:
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "t")) == [(0, b"a")]

        (data / "topics" / "t").rename(tmp_path / "unmounted")
        (data / "deleted" / str(topic_id)).mkdir(parents=True)
        async with running_broker(data) as broker:
            assert broker.topics.served.all(INTERNAL) == []

    run(scenario())


def test_a_deleted_topic_is_not_missed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            await produce(broker, topic, [b"a"])
            await broker.topics.changes.delete(INTERNAL, "t")
        for remembered in ([topic.topic_id], []):
            async with running_broker(tmp_path) as broker:
                assert broker.topics.served.all(INTERNAL) == []
                assert list((tmp_path / "deleted").iterdir()) == [tmp_path / "deleted" / str(i) for i in remembered]

    run(scenario())


@pytest.mark.parametrize("directory", ["deleted", "topics"])
@pytest.mark.parametrize("by", ["itself", "a new topic"])
def test_a_delete_that_could_not_be_synced_is_finished_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: str, by: str
) -> None:
    """Finish a deletion: otherwise its records stay in the journal, and the store throttles all clients until a
    restart.
    """
    monkeypatch.setattr("logstore.broker.topics.removals.RETRY_S", 0.2 if by == "itself" else 1000.0)
    filesystem = FaultyFileSystem()

    async def scenario() -> None:
        async with running_broker(tmp_path, filesystem=filesystem, journal_max_bytes=3_000_000) as broker:
            told: list[Topic] = []

            async def listener(topic: Topic) -> None:
                told.append(topic)

            broker.topics.served.removals.listeners.append(listener)
            other, topic = await new_topic(broker, "other"), await new_topic(broker)
            await produce(broker, topic, [bytes(2_900_000)])
            filesystem.fail("sync_directory", path=str(tmp_path / directory), times=10**6)
            with pytest.raises(StorageError, match="may be there again"):
                await broker.topics.changes.delete(INTERNAL, "t")
            with pytest.raises(UnknownTopicError):
                await broker.topics.changes.delete(INTERNAL, "t")
            for name in ("t", "T"):
                with pytest.raises(StorageError, match="may be there again"):
                    await broker.topics.changes.create(INTERNAL, name)
            with pytest.raises(ThrottledError):  # a power cut may bring the topic back, so its records are still needed
                await produce(broker, other, [bytes(200_000)])
            assert (told, broker.topics.served.all(INTERNAL)) == ([], [other])
            asked = filesystem.hits["sync_directory"]
            if by == "itself":
                await eventually_async(lambda: filesystem.hits["sync_directory"] >= asked + 2)
            filesystem.heal()
            if by == "itself":
                await eventually_async(lambda: told)
            new = await new_topic(broker)
            assert (told, broker.journal.needed_bytes) == ([topic], 0)
            assert list((tmp_path / "deleted" / str(topic.topic_id)).iterdir()) == []
            await produce(broker, other, [bytes(200_000)])
            await produce(broker, new, [b"new"])
        async with running_broker(tmp_path) as broker:
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "t")) == [(0, b"new")]

    run(scenario())


def test_a_delete_that_could_not_be_synced_is_finished_by_the_next_start(tmp_path: Path) -> None:
    filesystem = FaultyFileSystem()

    async def scenario() -> None:
        async with running_broker(tmp_path, filesystem=filesystem) as broker:
            await produce(broker, await new_topic(broker), [b"old"])
            filesystem.fail("sync_directory", path="deleted")
            with pytest.raises(StorageError):
                await broker.topics.changes.delete(INTERNAL, "t")
        again = FaultyFileSystem()
        async with running_broker(tmp_path, filesystem=again) as broker:
            assert again.hits["catalog.sync_directory"] >= 2
            assert broker.topics.served.all(INTERNAL) == []
            assert broker.journal.needed_bytes == 0
            await produce(broker, await new_topic(broker), [b"new"])

    run(scenario())


def test_a_journal_whose_records_are_all_in_delta_takes_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path, journal_max_bytes=3_000_000) as broker:
            topic = await new_topic(broker)
            for _ in range(4):
                await produce(broker, topic, [bytes(2_000_000)])
                with pytest.raises(ThrottledError):
                    await produce(broker, topic, [bytes(2_000_000)])
                await broker.topics.tables.roll(INTERNAL, topic)

    run(scenario())


def test_a_bad_name_and_a_missing_topic_have_different_errors(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path, auto_create_topics_enable=True) as broker:
            assert (await broker.topics.changes.find_or_create(INTERNAL, "made", Operation.WRITE)).name == "made"
            for name in ("bad name", "MADE", "__audit"):
                with pytest.raises(InvalidTopicError):
                    await broker.topics.changes.find_or_create(INTERNAL, name, Operation.WRITE)

    run(scenario())
