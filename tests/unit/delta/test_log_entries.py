import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from logstore.delta import log_entries
from logstore.delta.log_entries import LogFiles, LogReplay, list_log, read_entry
from logstore.errors import CorruptionError
from logstore.table_files import open_table
from tests.support.table_paths import path_of
from tests.support.topics import create_topic, log_entry, overwrite_entry, rewrite_files, roll, write_segment


def test_a_replay_agrees_with_delta_rs_at_every_version(tmp_path: Path) -> None:
    table = create_topic(tmp_path, partitions=3)
    replay = LogReplay(table.files)
    for turn in range(4):
        for partition in range(3):
            roll(table, partition, turn * 5, turn * 5 + 5, epoch=turn)
        if turn == 2:
            DeltaTable(str(path_of(table))).create_checkpoint()
    for version in range(table.snapshot().version + 1):
        handle = DeltaTable(str(path_of(table)), version=version)
        found = replay.state(version).transactions
        names = [f"logstore/{p}/{fact}" for p in range(3) for fact in ("sealed", "epoch", "start")]
        assert {name: found.get(name) for name in names} == {name: handle.transaction_version(name) for name in names}


def test_a_checkpoint_replaces_the_entries_before_it(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    for base in range(0, 30, 10):
        roll(table, 0, base, base + 10)
    DeltaTable(str(path_of(table))).create_checkpoint()
    roll(table, 0, 30, 40)
    before = table.snapshot().transactions
    for version in range(3):
        log_entry(table, version).unlink()
    assert LogReplay(table.files).state(4).transactions == before
    assert table.snapshot().partitions[0].sealed == 40


def test_a_hole_in_the_log_is_corruption(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    roll(table, 0, 10, 20)
    log_entry(table, 1).unlink()
    with pytest.raises(CorruptionError, match=r"00000000000000000001\.json is missing"):
        LogReplay(table.files).state(2)


def test_a_hole_in_one_listing_only_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return an incomplete listing, because listing a large directory is not atomic."""
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    roll(table, 0, 10, 20)
    whole = list_log(table.files)
    listings = [LogFiles(whole.entries - {1}, {}), whole]
    monkeypatch.setattr(log_entries, "list_log", lambda *_: listings.pop(0))
    assert LogReplay(table.files).state().version == 2
    assert not listings


def test_a_property_of_null_is_none(tmp_path: Path) -> None:
    """Write a property that delta-rs 1 cannot read."""
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    first = [json.loads(line) for line in log_entry(table, 0).read_text().splitlines()]
    metadata = next(action["metaData"] for action in first if "metaData" in action)
    metadata["configuration"]["x"] = None
    foreign = [{"commitInfo": {"operation": "SET TBLPROPERTIES"}}, {"metaData": metadata}]
    log_entry(table, 2).write_text("".join(json.dumps(action) + "\n" for action in foreign))
    assert LogReplay(table.files).state().transactions["logstore/0/sealed"] == 10
    assert "x" not in table.snapshot().properties
    roll(table, 0, 10, 20)


def test_a_torn_entry_is_corruption(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    entry = log_entry(table, 1)
    entry.write_bytes(entry.read_bytes()[:-20])
    with pytest.raises(CorruptionError, match=entry.name):
        LogReplay(table.files).state(1)


def test_an_overwritten_entry_is_read_again(tmp_path: Path) -> None:
    """Rename a foreign commit over ours: the cache of parsed entries must not hide it."""
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    replay = LogReplay(table.files)
    assert replay.state(1).transactions["logstore/0/sealed"] == 10
    overwrite_entry(table, 1)
    assert replay.state(1).transactions["logstore/0/sealed"] == 0


def test_tombstones_end_when_the_path_is_added_again(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    first = roll(table, 0, 0, 10).segments[0]
    merged = write_segment(table, 0, 0, 10)
    rewrite_files(table, 0, [first.path], [merged], data_change=False)
    replay = LogReplay(table.files)
    assert replay.state(1).removals() == {}
    assert replay.state(2).removals().keys() == {first.path}
    DeltaTable(str(path_of(table))).create_checkpoint()
    assert LogReplay(table.files).state(2).removals().keys() == {first.path}


def test_parts_of_a_checkpoint_count_only_together(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    for name in (
        "5.checkpoint.0000000001.0000000002",
        "7.checkpoint.0000000001.0000000002",
        "7.checkpoint.0000000002.0000000002",
        "3.checkpoint",
    ):
        number, rest = name.split(".", 1)
        (log / f"{int(number):020d}.{rest}.parquet").touch()
    (log / f"{8:020d}.json").touch()
    (log / "_last_checkpoint").symlink_to("nowhere")
    files = list_log(open_table(tmp_path))
    assert {version: len(parts) for version, parts in files.checkpoints.items()} == {3: 1, 7: 2}
    assert files.last_version == 8


def test_a_commit_carries_its_id(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    ids = [read_entry(table.files, version).commit_id for version in (0, 1)]
    assert None not in ids
    assert ids[0] != ids[1]
