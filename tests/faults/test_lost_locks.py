"""``data/lock`` is removed while a store runs: two stores never acknowledge records of one journal."""

import itertools
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from logstore.broker.context import INTERNAL
from logstore.errors import DataDirectoryError, LockLostError
from tests.support.data_directory import copy_of_one_moment
from tests.support.running_broker import produce, read_all, running_broker
from tests.support.virtual_time import run

NEVER = {"segment.ms": "100000000"}


def documents(data: Path) -> list[Path]:
    return sorted(data.rglob("*.json"))


def test_a_second_store_is_refused_by_the_lock_of_the_journal(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            (tmp_path / "lock").unlink()
            with pytest.raises(DataDirectoryError, match=r"Another process is serving .*journal/0"):
                async with running_broker(tmp_path):
                    pass

    run(scenario())


@pytest.mark.parametrize("locks", [["lock"], ["brokers/0/journal/0/lock"], ["lock", "brokers/0/journal/0/lock"]])
def test_a_store_that_lost_a_lock_acknowledges_nothing_more_and_says_why(tmp_path: Path, locks: list[str]) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            await produce(broker, topic, [b"kept"])
            for lock in locks:
                (tmp_path / lock).unlink()
            assert "was removed or replaced" in str(broker.not_ready_reason)
            with pytest.raises(LockLostError, match="was removed or replaced"):
                await produce(broker, topic, [b"refused"])
            with pytest.raises(LockLostError):
                await produce(broker, topic, [b"refused"])

    run(scenario())


def test_the_younger_of_two_stores_without_locks_alone_acknowledges_and_has_everything(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as older:
            topic = await older.topics.changes.create(INTERNAL, "t", configs=NEVER)
            for n in range(10):
                await produce(older, topic, [b"%d" % n])
            (tmp_path / "lock").unlink()
            (tmp_path / "brokers/0/journal/0/lock").unlink()
            async with running_broker(tmp_path) as younger:
                with pytest.raises(LockLostError):
                    await produce(older, topic, [b"refused"])
                acknowledged = [b"%d" % n for n in range(10)]
                for n in itertools.count(10):
                    await produce(younger, younger.topics.served.topic(INTERNAL, "t"), [b"%d" % n])
                    acknowledged.append(b"%d" % n)
                    if n == 20:
                        break
                found = [value for _, value in await read_all(younger, younger.topics.served.topic(INTERNAL, "t"))]
                assert found == acknowledged

    run(scenario())


def test_a_store_that_lost_its_lock_commits_no_roll_at_its_stop(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            await produce(broker, topic, [b"a"])
            (tmp_path / "lock").unlink()
        assert topic.table.snapshot().version == 0
        async with running_broker(tmp_path) as broker:
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "t")) == [(0, b"a")]

    run(scenario())


@pytest.mark.parametrize("writes", [True, False])
def test_bytes_of_the_older_of_two_stores_in_the_journal_are_passed_over_at_the_next_start(
    tmp_path: Path, writes: bool
) -> None:
    data = tmp_path / "data"

    async def scenario() -> None:
        async with AsyncExitStack() as younger:
            async with running_broker(data) as older:
                topic = await older.topics.changes.create(INTERNAL, "t", configs=NEVER)
                await produce(older, topic, [b"a"])
                (data / "lock").unlink()
                (data / "brokers/0/journal/0/lock").unlink()
                broker = await younger.enter_async_context(running_broker(data))
                if writes:
                    # The older store writes behind the place where the younger has begun its own file.
                    with pytest.raises(LockLostError):
                        await produce(older, topic, [b"refused"])
                await produce(broker, broker.topics.served.topic(INTERNAL, "t"), [b"b"])
                copy_of_one_moment(data, tmp_path / "meanwhile")
            await produce(broker, broker.topics.served.topic(INTERNAL, "t"), [b"c"])
            copy_of_one_moment(data, tmp_path / "after")
        for copy, acknowledged in (("meanwhile", [b"a", b"b"]), ("after", [b"a", b"b", b"c"])):
            async with running_broker(tmp_path / copy) as broker:
                assert [
                    value for _, value in await read_all(broker, broker.topics.served.topic(INTERNAL, "t"))
                ] == acknowledged

    run(scenario())


@pytest.mark.parametrize(
    "change",
    [
        lambda broker, topic: broker.topics.tables.roll(INTERNAL, topic),
        lambda broker, _: broker.topics.changes.create(INTERNAL, "u"),
        lambda broker, _: broker.topics.changes.delete(INTERNAL, "t"),
        lambda broker, _: broker.topics.changes.add_partitions(INTERNAL, "t", 3),
        lambda broker, _: broker.topics.changes.alter_configs(INTERNAL, "t", {"retention.ms": "7"}),
        lambda broker, topic: broker.topics.tables.delete_records(INTERNAL, topic, 0, 1),
        lambda broker, topic: broker.topics.tables.refresh(INTERNAL, topic),
        lambda broker, topic: broker.topics.tables.drop_foreign_files(INTERNAL, topic),
    ],
    ids=["roll", "create", "delete", "grow", "alter", "delete-records", "refresh", "drop-foreign-files"],
)
def test_a_store_that_lost_its_lock_changes_no_topic(tmp_path: Path, change) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            await produce(broker, topic, [b"a"])
            before = documents(tmp_path)
            (tmp_path / "lock").unlink()
            with pytest.raises(LockLostError):
                await change(broker, topic)
            assert documents(tmp_path) == before

    run(scenario())


def test_a_store_that_lost_its_lock_removes_no_file_of_the_journal(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path, journal_max_bytes=1 << 25) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            for _ in range(4):
                await produce(broker, topic, [b"x" * 600_000])
            files = sorted((tmp_path / "brokers/0/journal/0").glob("*.log"))
            assert len(files) > 1
            (tmp_path / "lock").unlink()
            with pytest.raises(LockLostError):
                await broker.topics.tables.roll(INTERNAL, topic)
        assert sorted((tmp_path / "brokers/0/journal/0").glob("*.log")) == files

    run(scenario())
