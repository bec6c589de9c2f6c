"""Rolls of a leader, and how it maintains the log of the table."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from logstore.broker.context import INTERNAL
from logstore.errors import ZooKeeperUnavailableError
from logstore.observability import COLUMN_MISFITS
from tests.support.captured_logs import captured_logs
from tests.support.running_broker import produce, running_broker
from tests.support.topics import roll
from tests.support.virtual_time import run


def test_the_first_roll_of_an_epoch_continues_where_the_table_ends(tmp_path: Path):
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(
                INTERNAL, "orders", partitions=1, configs={"segment.ms": "100000000"}
            )
            for count in (4, 6):  # a roll ends where a batch ends
                await produce(broker, topic, [b"v"] * count)
            (log,) = topic.partitions
            assert topic.snapshot.partitions[0].leader_epoch < log.leader_epoch
            roll(topic.table, 0, 0, 4)
            result = await broker.topics.tables.roll(INTERNAL, topic)
            assert result.sealed == {0: 10}

    with captured_logs() as logs:
        run(scenario())
    assert not [line for line in logs if line["event"] == "roll.refused"]


def test_a_checkpoint_is_written_under_the_lock_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("logstore.delta.maintenance.DELTA_CHECKPOINT_INTERVAL", 3)
    asked: list[str] = []

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "orders", partitions=1)
            log_directory = Path(topic.table.files.uri.removeprefix("file://")) / "_delta_log"

            def checkpoints() -> list[str]:
                return [path.name for path in log_directory.glob("*.checkpoint.parquet")]

            @contextlib.asynccontextmanager
            async def away(name: str) -> AsyncIterator[None]:
                asked.append(name)
                raise ZooKeeperUnavailableError("away")
                yield

            @contextlib.asynccontextmanager
            async def held(name: str) -> AsyncIterator[None]:
                before = checkpoints()
                yield
                asked.append(f"{name} {len(before)} {len(checkpoints())}")

            broker._roller._table_lock = away
            for _ in range(4):
                await produce(broker, topic, [b"v"])
                await broker.topics.tables.roll(INTERNAL, topic)  # a roll needs no lock
            await broker._roller.refresh(topic)
            assert asked == ["orders"]
            assert checkpoints() == []
            broker._roller._table_lock = held
            await broker._roller.refresh(topic)
            assert asked == ["orders", "orders 0 1"]
            await broker._roller.refresh(topic)
            assert len(asked) == 2, "nothing is due"

    run(scenario())


def test_records_that_do_not_fit_are_rolled_counted_and_logged_once_a_minute(tmp_path: Path):
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "orders", partitions=1)
            await broker.topics.columns.declare(INTERNAL, "orders", "n BIGINT", is_whole=False, dry_run=False)
            before = COLUMN_MISFITS.labels("orders")._value.get()
            for values in ([b'{"n": 1}', b'{"n": "1"}'], [b"no json"], [b'{"n": 2}']):
                await produce(broker, topic, values)
                await broker.topics.tables.roll(INTERNAL, topic)
            assert COLUMN_MISFITS.labels("orders")._value.get() == before + 2
            assert topic.snapshot.misfits == 2
            _, fill = broker.topics.columns.describe(INTERNAL, topic)
            assert (fill.misfits, fill.unfilled) == (2, ())

    with captured_logs() as logs:
        run(scenario())
    assert [line["records"] for line in logs if line["event"] == "roll.misfits"] == [1]
