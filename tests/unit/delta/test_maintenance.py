import os
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from logstore.delta import maintenance
from logstore.delta.log_entries import list_log
from logstore.delta.topic_table import RollPart, TopicTable
from logstore.errors import CommitStateUnknownError, CorruptionError, StorageError
from logstore.table_files import open_table
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.table_paths import checkpoint_parts, checksum_path, path_of
from tests.support.topics import create_topic, empty_segment, foreign_commit, offsets_in_table, roll

DAY_S = 86_400


@pytest.fixture
def every_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "DELTA_CHECKPOINT_INTERVAL", 10)


def make_older(table: TopicTable, days: float) -> None:
    then = time.time() - days * DAY_S
    for entry in (path_of(table) / "_delta_log").iterdir():
        os.utime(entry, (then, then))


def grow(table: TopicTable, commits: int) -> int:
    """Commit segments without records, which are written quickly; return the new end."""
    base = table.snapshot().partitions[0].sealed
    for n in range(base, base + commits):
        table.commit_roll([RollPart(0, n, n + 1, 3, (empty_segment(table, 0, n, n + 1, epoch=3),))])
    return base + commits


@pytest.mark.usefixtures("every_ten")
def test_a_checkpoint_is_written_every_few_versions(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    grow(table, 9)
    table.maintain()
    assert list_log(table.files).checkpoints == {}
    grow(table, 1)
    table.maintain()
    table.maintain()
    assert list(list_log(table.files).checkpoints) == [10]
    grow(table, 10)
    table.maintain()
    assert list(list_log(table.files).checkpoints) == [10, 20]
    assert len(list_log(table.files).entries) == 21


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
    checksum_path(path_of(table), 3).write_text("{}")  # of a checkpoint that was removed before
    table.maintain()
    entries = list_log(table.files).entries
    assert min(entries) > 0
    checkpoints = list_log(table.files).checkpoints
    assert set((path_of(table) / "_delta_log").glob("*.crc32c")) == {
        checksum_path(path_of(table), v) for v in checkpoints
    }
    after = TopicTable.open(open_table(table.files.uri)).snapshot()
    assert after.transactions == before.transactions
    assert after.partitions == before.partitions
    assert after.partitions[0].sealed == sealed
    assert after.config_overrides == {"retention.ms": "77"}
    assert [file.path for file in after.segments(1)] == [kept.segments[0].path]
    fresh = DeltaTable(str(path_of(table)))
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
    assert len(list_log(table.files).entries) == 41


@pytest.mark.usefixtures("every_ten")
def test_a_checkpoint_that_lacks_transactions_is_removed_and_nothing_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drop the transactions, as Spark does where ``delta.setTransactionRetentionDuration`` is set."""
    table = create_topic(tmp_path)
    make_older(table, 2)
    grow(table, 10)
    create = DeltaTable.create_checkpoint

    def create_without_transactions(self: DeltaTable) -> None:
        create(self)
        path = path_of(table) / "_delta_log" / f"{self.version():020d}.checkpoint.parquet"
        rows = pq.read_table(path)
        pq.write_table(rows.filter(rows["txn"].is_null()), path)

    monkeypatch.setattr(DeltaTable, "create_checkpoint", create_without_transactions)
    with pytest.raises(CorruptionError, match="lacks transactions"):
        table.maintain()
    assert list_log(table.files).checkpoints == {}
    assert len(list_log(table.files).entries) == 11
    assert TopicTable.open(open_table(table.files.uri)).snapshot().partitions[0].sealed == 10


@pytest.mark.usefixtures("every_ten")
def test_a_failing_checkpoint_is_reported_and_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert list(list_log(table.files).checkpoints) == [11]


@pytest.mark.usefixtures("every_ten")
def test_the_version_of_another_writer_is_not_checkpointed(tmp_path: Path) -> None:
    """Leave the version to Spark, which may write its own checkpoint of it, over ours and after our checksums."""
    table = create_topic(tmp_path)
    grow(table, 9)
    foreign_commit(path_of(table), [], [("somebody", 1)])
    table.maintain()
    assert list_log(table.files).checkpoints == {}
    grow(table, 1)
    table.maintain()
    assert list(list_log(table.files).checkpoints) == [11]


@pytest.mark.usefixtures("every_ten")
def test_a_checkpoint_and_its_checksums_are_durable_before_entries_go(tmp_path: Path) -> None:
    create_topic(tmp_path)
    disk = FaultyFileSystem()
    table = TopicTable.open(open_table(tmp_path / "topics" / "events", disk))
    grow(table, 8)
    table.maintain()
    make_older(table, 2)
    grow(TopicTable.open(open_table(table.files.uri)), 20)  # other writers may not sync
    disk.fail("sync_file", path=".json")
    with pytest.raises(CommitStateUnknownError):
        table.maintain()
    assert list_log(table.files).checkpoints == {}
    for failing, path in (("sync_file", "28.checkpoint"), ("fdatasync", ""), ("link", "crc32c")):
        disk.fail(failing, path=path)
        with pytest.raises(StorageError, match="Checkpoint"):
            table.maintain()
        assert len(list_log(table.files).entries) == 29
        for checkpoint in checkpoint_parts(path_of(table), 28):
            checkpoint.unlink()
    assert len(disk.injected) == 4
