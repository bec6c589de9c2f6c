"""Rule R7: a foreign commit replaces one of ours on a local file system; the broker commits the same files again."""

import json
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from logstore.broker.broker import Broker
from logstore.errors import CorruptionError
from logstore.log.topic import Topic
from logstore.settings import Settings
from tests.support.running_broker import produce, read_all, run, running_broker

NEVER = {"segment.ms": "100000000"}


def overwrite(topic_path: Path, version: int) -> None:
    """What delta-spark does when it checked before our commit and renames after it: version N is now another's."""
    entry = topic_path / "_delta_log" / f"{version:020}.json"
    info = {"commitInfo": {"timestamp": 1, "operation": "SET TBLPROPERTIES", "operationParameters": {}}}
    entry.write_text(json.dumps(info) + "\n")


def offsets_in_delta(topic_path: Path, partition: int) -> list[int]:
    table = DeltaTable(topic_path).to_pyarrow_dataset().to_table(["partition", "offset"])
    pairs = zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
    return sorted(offset for p, offset in pairs if p == partition)


async def rolled(broker: Broker, topic: Topic, values: list[bytes | None], partition: int = 0) -> int:
    await produce(broker, topic, values, partition=partition)
    return (await broker.roll(topic)).version


def test_the_last_roll_is_committed_again_with_the_same_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.create_topic("t", configs=NEVER)
            assert topic
            await rolled(broker, topic, [b"a", b"b"])
            version = await rolled(broker, topic, [b"c", b"d"])
            files = {s.path for s in topic.partition(0).segments}
            overwrite(topic.table.path, version)
            assert offsets_in_delta(topic.table.path, 0) == [0, 1]
            await produce(broker, topic, [b"e"])
            await broker._roller.refresh(topic)
            assert offsets_in_delta(topic.table.path, 0) == [0, 1, 2, 3]
            assert {s.path for s in topic.partition(0).segments} == files
            await broker.roll(topic)
            assert await read_all(broker, topic) == list(enumerate([b"a", b"b", b"c", b"d", b"e"]))
        assert offsets_in_delta(tmp_path / "topics" / "t", 0) == [0, 1, 2, 3, 4]

    run(scenario())


def test_a_roll_that_comes_before_the_refresh_does_not_build_on_the_hole(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.create_topic("t", configs=NEVER)
            assert topic
            overwrite(topic.table.path, await rolled(broker, topic, [b"a", b"b"]))
            await produce(broker, topic, [b"c"])
            with pytest.raises(Exception, match="sealed up to 0"):
                await broker.roll(topic)
            await broker.roll(topic)
        assert offsets_in_delta(tmp_path / "topics" / "t", 0) == [0, 1, 2]

    run(scenario())


def test_an_older_roll_is_restored_beneath_later_ones(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.create_topic("t", configs=NEVER)
            assert topic
            first = await rolled(broker, topic, [b"a", b"b"])
            await rolled(broker, topic, [b"c"])
            overwrite(topic.table.path, first)
            await broker._roller.refresh(topic)
            assert offsets_in_delta(topic.table.path, 0) == [0, 1, 2]

    run(scenario())


@pytest.mark.parametrize("overwritten", [0, 1])
def test_a_start_restores_what_was_overwritten_while_nothing_ran(tmp_path: Path, overwritten: int) -> None:
    versions = []

    async def before() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.create_topic("t", configs=NEVER)
            assert topic
            versions.append(await rolled(broker, topic, [b"a", b"b"]))
            versions.append(await rolled(broker, topic, [b"c"]))

    async def after() -> None:
        async with running_broker(tmp_path) as broker:
            topic = broker.topic("t")
            assert topic.partition(0).sealed_offset == 3
            assert await read_all(broker, topic) == [(0, b"a"), (1, b"b"), (2, b"c")]

    run(before())
    run(asyncio_start_and_stop(tmp_path))  # a new journal file: its snapshot frames remember what was sealed
    overwrite(tmp_path / "topics" / "t", versions[overwritten])
    run(after())
    assert offsets_in_delta(tmp_path / "topics" / "t", 0) == [0, 1, 2]


async def asyncio_start_and_stop(data: Path) -> None:
    async with running_broker(data):
        pass


def test_sealed_records_that_are_nowhere_refuse_the_start(tmp_path: Path) -> None:
    versions = []

    async def before() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.create_topic("t", configs=NEVER)
            assert topic
            versions.append(await rolled(broker, topic, [b"a", b"b"]))

    run(before())
    run(asyncio_start_and_stop(tmp_path))
    overwrite(tmp_path / "topics" / "t", versions[0])
    shutil.rmtree(tmp_path / "topics" / "t" / "partition=0")

    async def after() -> None:
        with pytest.raises(CorruptionError, match="had sealed offsets 0 to 2"):
            await Broker.start(Settings(data=tmp_path))

    run(after())
