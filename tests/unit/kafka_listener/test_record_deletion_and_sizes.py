"""DeleteRecords and DescribeLogDirs at a real broker, through the codecs."""

from pathlib import Path

import pytest

from logstore.broker.authorizer import Authorizer
from logstore.broker.context import INTERNAL
from logstore.errors import StorageError
from logstore.kafka_protocol.apis import APIS
from logstore.kafka_protocol.messages import DeleteRecordsRequest, DescribeLogDirsRequest
from tests.support.authorizer_views import Denied
from tests.support.kafka_handlers import Handlers, kafka_handlers
from tests.support.running_broker import produce
from tests.support.virtual_time import run

DELETE, SIZES = 21, 35
UNKNOWN, OUT_OF_RANGE, NOT_ALLOWED, NOT_ALLOWED_CLUSTER, INVALID_REQUEST, STORAGE = 3, 1, 29, 31, 42, 56


def versions(api_key: int) -> range:
    api = APIS[api_key]
    return range(api.version_min, api.version_max + 1)


async def delete(handlers: Handlers, offsets: dict[str, list[tuple[int, int]]], version: int = 2):
    """Return the low watermark and the error by topic and partition."""
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsRequest.DeleteRecordsTopic(
                name=name,
                partitions=[
                    DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition, offset=offset)
                    for partition, offset in partitions
                ],
            )
            for name, partitions in offsets.items()
        ],
        timeout_ms=30_000,
    )
    answer = await handlers.ask(DELETE, version, request)
    return {
        (topic.name, one.partition_index): (one.low_watermark, one.error_code)
        for topic in answer.topics
        for one in topic.partitions
    }


@pytest.mark.parametrize("version", versions(DELETE))
def test_the_log_start_of_many_partitions_moves_in_one_commit(tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            broker = handlers.broker
            topic = await broker.topics.changes.create(INTERNAL, "t", partitions=5)
            for partition in range(4):
                await produce(broker, topic, [b"a", b"b", b"c"], partition=partition)
            before = topic.version
            asked = {"t": [(0, 2), (1, -1), (2, 4), (3, -2), (4, 0), (7, 1)], "gone": [(0, 0)]}
            assert await delete(handlers, asked, version) == {
                ("t", 0): (2, 0),
                ("t", 1): (3, 0),
                ("t", 2): (-1, OUT_OF_RANGE),
                ("t", 3): (-1, OUT_OF_RANGE),
                ("t", 4): (0, 0),
                ("t", 7): (-1, UNKNOWN),
                ("gone", 0): (-1, UNKNOWN),
            }
            assert [log.log_start_offset for log in topic.partitions] == [2, 3, 0, 0, 0]
            assert topic.version == before + 2, "a roll and a commit of the starts"
            assert await delete(handlers, {"t": [(0, 1)]}) == {("t", 0): (2, 0)}, "it never moves back"
            assert topic.version == before + 2

    run(scenario())


def test_records_that_may_not_be_deleted_stay(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, authorizer=Authorizer(Denied(["hidden"]))) as handlers:
            for name in ("t", "hidden"):
                topic = await handlers.broker.topics.changes.create(INTERNAL, name)
                await produce(handlers.broker, topic, [b"a"])
            assert await delete(handlers, {"hidden": [(0, -1)], "t": [(0, 0), (0, 1)]}) == {
                ("hidden", 0): (-1, NOT_ALLOWED),
                ("t", 0): (-1, INVALID_REQUEST),
            }
            assert all(one.partitions[0].log_start_offset == 0 for one in handlers.broker.topics.served.all(INTERNAL))

    run(scenario())


# ---- sizes -----------------------------------------------------------------------------------------------------------


async def sizes(handlers: Handlers, wanted: dict[str, list[int]] | None = None, version: int = 4):
    topics = wanted and [
        DescribeLogDirsRequest.DescribableLogDirTopic(topic=name, partitions=partitions)
        for name, partitions in wanted.items()
    ]
    return await handlers.ask(SIZES, version, DescribeLogDirsRequest(topics=topics))


@pytest.mark.parametrize("version", versions(SIZES))
def test_sizes_are_those_of_files_and_journal(tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            broker = handlers.broker
            topic = await broker.topics.changes.create(INTERNAL, "t", partitions=2)
            await broker.topics.changes.create(INTERNAL, "u")
            await produce(broker, topic, [b"x" * 1000])
            (directory,) = (await sizes(handlers, version=version)).results
            assert directory.log_dir == str(tmp_path / "brokers" / "0")
            found = {one.name: {each.partition_index: each for each in one.partitions} for one in directory.topics}
            assert {name: sorted(one) for name, one in found.items()} == {"t": [0, 1], "u": [0]}
            assert 1000 < found["t"][0].partition_size < 2000
            assert found["t"][1].partition_size == 0
            assert (found["t"][0].offset_lag, found["t"][0].is_future_key) == (0, False)
            if version >= 4:
                assert 0 < directory.usable_bytes <= directory.total_bytes
            await broker.topics.tables.roll(INTERNAL, topic)
            (directory,) = (await sizes(handlers, {"t": [0, 9], "gone": [0]}, version=version)).results
            (only,) = directory.topics
            (partition,) = only.partitions
            assert (only.name, partition.partition_index) == ("t", 0)
            assert partition.partition_size == topic.partitions[0].segments.size_bytes > 0

    run(scenario())


def test_sizes_are_for_those_who_may_describe_the_cluster(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, authorizer=Authorizer(Denied(["kafka-cluster"]))) as handlers:
            answer = await sizes(handlers)
            assert (answer.error_code, list(answer.results)) == (NOT_ALLOWED_CLUSTER, [])

    run(scenario())


def test_a_directory_whose_journal_has_failed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            with monkeypatch.context() as patched:
                patched.setattr(handlers.broker.journal, "_failed", StorageError("the disk is gone"))
                (directory,) = (await sizes(handlers)).results
            assert (directory.error_code, list(directory.topics)) == (STORAGE, [])

    run(scenario())
