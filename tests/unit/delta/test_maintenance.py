import os
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from logstore.delta import maintenance
from logstore.delta.log_entries import list_log
from logstore.delta.topic_table import RollPart, TopicTable
from logstore.errors import CorruptionError, StorageError
from tests.support.topics import create_topic, offsets_in_table, roll

DAY_S = 86_400


@pytest.fixture
def every_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "DELTA_CHECKPOINT_INTERVAL", 10)


def make_older(table: TopicTable, days: float) -> None:
    then = time.time() - days * DAY_S
    for entry in (table.path / "_delta_log").iterdir():
        os.utime(entry, (then, then))


def grow(table: TopicTable, commits: int) -> int:
    """Txn-only commits, so that the transactions have nothing to live in but the log."""
    base = table.snapshot().partitions[0].sealed
    for n in range(commits):
        table.commit_roll([RollPart(0, base + n, base + n + 1, 3, ())])
    return base + commits


@pytest.mark.usefixtures("every_ten")
def test_a_checkpoint_every_so_many_versions(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    grow(table, 9)
    table.maintain()
    assert list_log(table.path).checkpoints == {}
    grow(table, 1)
    table.maintain()
    table.maintain()
    assert list(list_log(table.path).checkpoints) == [10]
    grow(table, 10)
    table.maintain()
    assert list(list_log(table.path).checkpoints) == [10, 20]
    assert len(list_log(table.path).entries) == 21


@pytest.mark.usefixtures("every_ten")
def test_everything_survives_the_clean_up_of_old_entries(tmp_path: Path) -> None:
    table = create_topic(tmp_path, partitions=3)
    kept = roll(table, 1, 0, 10, epoch=2)
    table.alter_config({"retention.ms": "77"})
    grow(table, 8)
    table.advance_log_start({0: 4}, {0: 3})
    table.maintain()
    make_older(table, 2)
    sealed = grow(table, 12)
    before = table.snapshot()
    table.maintain()
    entries = list_log(table.path).entries
    assert min(entries) > 0
    after = TopicTable.open(table.path).snapshot()
    assert after.transactions == before.transactions
    assert after.partitions == before.partitions
    assert after.partitions[0].sealed == sealed
    assert after.config_overrides == {"retention.ms": "77"}
    assert [file.path for file in after.segments(1)] == [kept.segments[0].path]
    fresh = DeltaTable(str(table.path))
    assert fresh.version() == before.version
    assert fresh.transaction_version("logstore/0/sealed") == sealed
    assert fresh.transaction_version("logstore/1/sealed") == 10
    roll(table, 1, 10, 20, epoch=2)
    assert offsets_in_table(table, 1) == list(range(20))


@pytest.mark.usefixtures("every_ten")
def test_entries_younger_than_a_day_stay(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    for _ in range(3):
        grow(table, 10)
        table.maintain()
    make_older(table, 0.9)
    grow(table, 10)
    table.maintain()
    assert len(list_log(table.path).entries) == 41


@pytest.mark.usefixtures("every_ten")
def test_a_checkpoint_that_lacks_transactions_is_removed_and_nothing_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Spark writes it where ``delta.setTransactionRetentionDuration`` is set."""
    table = create_topic(tmp_path)
    make_older(table, 2)
    grow(table, 10)
    create = DeltaTable.create_checkpoint

    def create_without_transactions(self: DeltaTable) -> None:
        create(self)
        path = table.path / "_delta_log" / f"{self.version():020d}.checkpoint.parquet"
        rows = pq.read_table(path)
        pq.write_table(rows.filter(rows["txn"].is_null()), path)

    monkeypatch.setattr(DeltaTable, "create_checkpoint", create_without_transactions)
    with pytest.raises(CorruptionError, match="lacks transactions"):
        table.maintain()
    assert list_log(table.path).checkpoints == {}
    assert len(list_log(table.path).entries) == 11
    assert TopicTable.open(table.path).snapshot().partitions[0].sealed == 10


@pytest.mark.usefixtures("every_ten")
def test_a_failing_checkpoint_is_told_and_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create_topic(tmp_path)
    grow(table, 10)

    def fail(_: DeltaTable) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_checkpoint", fail)
        with pytest.raises(StorageError, match="No space left"):
            table.maintain()
    assert grow(table, 1) == 11
    table.maintain()
    assert list(list_log(table.path).checkpoints) == [11]
