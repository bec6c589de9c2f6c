import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.transaction import RemoveAction

from logstore.delta.committer import Committer, Plan, Removal
from logstore.delta.schema import add_action
from logstore.delta.topic_table import TopicTable
from logstore.errors import (
    CommitConflictError,
    CommitRefusedError,
    CommitStateUnknownError,
    CorruptionError,
    StorageFullError,
)
from logstore.limits import COMMIT_ATTEMPTS_MAX
from logstore.table_files import open_table
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.table_paths import path_of
from tests.support.topics import (
    HookedFileSystem,
    create_topic,
    foreign_commit,
    log_entry,
    offsets_in_table,
    overwrite_entry,
    rewrite_files,
    roll,
    roll_part,
    write_segment,
)


def commit(table: TopicTable, plan: Plan) -> int:
    return Committer(table.files).commit(lambda _: plan)


def open_with(table: TopicTable, filesystem: HookedFileSystem) -> TopicTable:
    return TopicTable.open(open_table(path_of(table), filesystem))


# ---- R4: what delta-rs does not check ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [10, 9])
def test_transaction_values_rise(tmp_path: Path, value: int) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    with pytest.raises(CommitRefusedError, match=f"is 10 and cannot become {value}"):
        commit(table, Plan("test", {"logstore/0/sealed": value}))


def test_a_removed_file_must_be_active(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    with pytest.raises(CommitRefusedError, match="not active"):
        commit(table, Plan("test", removes=(Removal("partition=0/x.parquet", 1, 0),)))


def test_an_added_file_must_be_new(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    segment = roll(table, 0, 0, 10).segments[0]
    with pytest.raises(CommitRefusedError, match="active already"):
        commit(table, Plan("test", adds=(segment,)))


def test_a_file_that_was_removed_does_not_come_back(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    segment = roll(table, 0, 0, 10).segments[0]
    rewrite_files(table, 0, [segment.path], [], data_change=True)
    with pytest.raises(CommitRefusedError, match="was removed by a later commit"):
        commit(table, Plan("test", adds=(segment,)))


def test_an_added_file_must_be_on_disk(tmp_path: Path) -> None:
    """Delete the file of an open roll, as a full VACUUM with a short retention does; delta-rs would still commit it."""
    table = create_topic(tmp_path)
    part = roll_part(table, 0, 0, 10)
    (path_of(table) / part.segments[0].path).unlink()
    with pytest.raises(CommitRefusedError, match="not on disk"):
        table.commit_roll([part])
    assert table.snapshot().version == 0


def test_an_added_file_must_have_its_size(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    part = roll_part(table, 0, 0, 10)
    with (path_of(table) / part.segments[0].path).open("ab") as file:
        file.write(b"x")
    with pytest.raises(CorruptionError, match="written were"):
        table.commit_roll([part])
    assert table.snapshot().version == 0


def test_a_table_that_forgets_transactions_is_refused(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    DeltaTable(str(path_of(table))).alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 1 days"}, raise_if_not_exists=False
    )
    with pytest.raises(CommitRefusedError, match=r"UNSET TBLPROPERTIES \('delta.setTransactionRetentionDuration'\)"):
        roll(table, 0, 0, 10)
    assert offsets_in_table(table) == []


def test_a_constraint_that_the_store_cannot_evaluate_is_refused(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    DeltaTable(str(path_of(table))).alter.add_constraint({"positive": "offset >= 0"})
    with pytest.raises(CommitRefusedError, match=r"constraint positive.*logstore topic take-feature-back events"):
        roll(table, 0, 0, 10)


def test_a_roll_over_a_foreign_append_is_refused(tmp_path: Path) -> None:
    table = create_topic(tmp_path, partitions=2)
    foreign_commit(path_of(table), [add_action(write_segment(table, 0, 0, 5), 1, data_change=True)])
    result = table.commit_roll([roll_part(table, p, 0, 10) for p in (0, 1)])
    assert result.committed == (1,)
    assert isinstance(result.refused[0], CorruptionError)


def test_protocol_stays(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    table.alter_config({"retention.ms": "1"})
    table.add_partitions(2)
    protocol = table.snapshot().table.protocol
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


# ---- R5: an exception does not mean that nothing was committed -----------------------------------------------------


def failing_after_commit(monkeypatch: pytest.MonkeyPatch, error: Exception, times: int = 1) -> None:
    """Let the commit succeed and raise ``error`` to its caller, like a failing checkpoint hook."""
    write = Committer._put
    left = [times]

    def write_then_fail(self: Committer, *arguments: object) -> None:
        write(self, *arguments)  # type: ignore[arg-type]
        if left[0]:
            left[0] -= 1
            raise error

    monkeypatch.setattr(Committer, "_put", write_then_fail)


def test_an_exception_after_the_commit_is_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create_topic(tmp_path)
    failing_after_commit(monkeypatch, RuntimeError("checkpoint failed"))
    part = roll(table, 0, 0, 10)
    assert table.snapshot().version == 1
    assert offsets_in_table(table) == list(range(10))
    assert [f.path for f in table.snapshot().segments(0)] == [part.segments[0].path]


def test_a_checkpoint_that_cannot_be_written_touches_no_commit(tmp_path: Path) -> None:
    """Block the checkpoint: with delta-rs' own hooks the commit would raise an error although it is done."""
    table = create_topic(tmp_path)
    DeltaTable(str(path_of(table))).alter.set_table_properties({"delta.checkpointInterval": "1"})
    blocker = path_of(table) / "_delta_log" / f"{2:020d}.checkpoint.parquet"
    (blocker / "x").mkdir(parents=True)
    roll(table, 0, 0, 10)
    shutil.rmtree(blocker)
    assert offsets_in_table(table) == list(range(10))


def test_an_exception_before_the_commit_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create_topic(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Committer, "_put", fail)
        with pytest.raises(StorageFullError, match=r"No space left.*nothing was changed"):
            roll(table, 0, 0, 10)
    assert table.snapshot().version == 0
    roll(table, 0, 0, 10)


@pytest.mark.parametrize("error", [RuntimeError("cut"), None], ids=["with an exception", "silently"])
def test_a_commit_that_was_done_and_overwritten_at_once_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    filesystem = HookedFileSystem()
    table = open_with(create_topic(tmp_path), filesystem)
    filesystem.at("delta.committed", lambda: overwrite_entry(table, 1))
    if error is not None:
        failing_after_commit(monkeypatch, error)
    roll(table, 0, 0, 10)
    assert table.snapshot().version == 2
    assert offsets_in_table(table) == list(range(10))


@pytest.mark.parametrize("gone", ["file", "value"])
def test_a_commit_whose_file_or_value_is_gone_does_not_count_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """Undo the commit before it is looked for: its entry exists, but no longer holds."""
    filesystem = HookedFileSystem()
    table = open_with(create_topic(tmp_path), filesystem)
    part = roll_part(table, 0, 0, 10)
    (segment,) = part.segments
    removal = RemoveAction(segment.path, True, 1, segment.size, {"partition": "0"})
    undo: dict[str, tuple[list[RemoveAction], list[tuple[str, int]]]] = {
        "file": ([removal], []),
        "value": ([], [("logstore/0/sealed", 3)]),
    }
    filesystem.at("delta.committed", lambda: foreign_commit(path_of(table), *undo[gone]))
    failing_after_commit(monkeypatch, RuntimeError("cut"))
    result = table.commit_roll([part])
    assert (result.committed, list(result.refused)) == ((), [0])


def test_an_outcome_that_cannot_be_looked_up_is_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem = HookedFileSystem()
    table = open_with(create_topic(tmp_path), filesystem)
    away = tmp_path / "away"
    filesystem.at("delta.committed", lambda: shutil.move(path_of(table) / "_delta_log", away))
    failing_after_commit(monkeypatch, RuntimeError("the connection was cut"))
    part = roll_part(table, 0, 0, 10)
    with pytest.raises(CommitStateUnknownError, match="the connection was cut"):
        table.commit_roll([part])
    shutil.move(away, path_of(table) / "_delta_log")
    result = table.commit_roll([part])
    assert (result.version, result.committed) == (1, (0,))


def test_losing_every_attempt_is_a_conflict_and_commits_nothing(tmp_path: Path) -> None:
    filesystem = HookedFileSystem()
    table = open_with(create_topic(tmp_path), filesystem)
    other = TopicTable.open(open_table(table.files.uri))
    rivals: list[Callable[[], object]] = [
        lambda n=n: other.alter_config({"retention.ms": str(n)})
        for n in range(COMMIT_ATTEMPTS_MAX)  # type: ignore[misc]
    ]
    filesystem.at("delta.checked", *rivals)
    with pytest.raises(CommitConflictError):
        roll(table, 0, 0, 10)
    assert offsets_in_table(table) == []
    assert filesystem.points.count("delta.opened") == COMMIT_ATTEMPTS_MAX


# ---- R7: durable, and committed again when a foreign commit took it away -------------------------------------------


def roll_next(table: TopicTable) -> Callable[[], object]:
    part = roll_part(table, 0, 20, 30)
    return lambda: table.commit_roll([part])


def recommit_first_file(table: TopicTable) -> Callable[[], object]:
    part = roll(table, 0, 20, 30)
    roll(table, 0, 30, 40)
    overwrite_entry(table, 2)
    table.alter_config({"retention.ms": "7"})  # this makes the foreign entry durable
    return lambda: table.recommit(part.segments)


def rewrite_first_file(table: TopicTable) -> Callable[[], object]:
    (old,) = table.snapshot().paths
    new = write_segment(table, 0, 0, 20, step=2)
    return lambda: rewrite_files(table, 0, [old], [new], data_change=False, cleaned=20)


#: Each way to commit, prepared on a table with a roll of [0, 20).
COMMITS: dict[str, Callable[[TopicTable], Callable[[], object]]] = {
    "roll": roll_next,
    "recommit": recommit_first_file,
    "advance-log-start": lambda table: lambda: table.advance_log_start({0: 5}, {0: 0}),
    "rewrite": rewrite_first_file,
    "alter-config": lambda table: lambda: table.alter_config({"retention.ms": "5"}),
    "add-partitions": lambda table: lambda: table.add_partitions(2),
}


@pytest.mark.parametrize("kind", COMMITS)
def test_the_log_entry_is_durable_before_a_commit_returns(tmp_path: Path, kind: str) -> None:
    synced: list[str] = []

    class Recording(HookedFileSystem):
        def sync_file(self, path: Path) -> None:
            super().sync_file(path)
            synced.append(path.name)

        def reached(self, point: str) -> None:
            super().reached(point)
            synced.append(point)

    table = open_with(create_topic(tmp_path), Recording())
    roll(table, 0, 0, 20)
    do = COMMITS[kind](table)
    newest = table.snapshot().version
    synced.clear()
    do()
    entry = log_entry(table, newest + 1)
    assert f'"{kind}"' in entry.read_text()
    assert synced[-4:] == ["delta.committed", entry.name, "_delta_log", "delta.synced"]


def test_a_failed_fsync_of_the_entry_is_unknown_and_made_good_with_a_copy(tmp_path: Path) -> None:
    """Copy the bytes to a new file: a later fsync of the same one succeeds without writing anything (rule R3)."""
    filesystem = FaultyFileSystem()
    create_topic(tmp_path)
    table = TopicTable.open(open_table(tmp_path / "topics" / "events", filesystem))
    part = roll_part(table, 0, 0, 10)
    filesystem.fail("sync_file")
    with pytest.raises(CommitStateUnknownError, match="fsync failed"):
        table.commit_roll([part])
    before = log_entry(table, 1).stat().st_ino, log_entry(table, 1).read_bytes()
    assert table.commit_roll([part]).committed == (0,)
    after = log_entry(table, 1).stat().st_ino, log_entry(table, 1).read_bytes()
    assert after[0] != before[0]
    assert after[1] == before[1]


@pytest.mark.parametrize("failing", ["sync_file", "sync_directory"])
def test_a_failed_fsync_is_made_good_also_when_others_committed_since(tmp_path: Path, failing: str) -> None:
    filesystem = FaultyFileSystem()
    create_topic(tmp_path, partitions=2)
    table = TopicTable.open(open_table(tmp_path / "topics" / "events", filesystem))
    part = roll_part(table, 0, 0, 10)
    filesystem.fail(failing)
    with pytest.raises(CommitStateUnknownError):
        table.commit_roll([part])
    failed = log_entry(table, 1).stat().st_ino
    roll(TopicTable.open(open_table(table.files.uri)), 1, 0, 10)
    filesystem.hits.clear()
    table.commit_roll([part])
    assert log_entry(table, 1).stat().st_ino != failed
    assert filesystem.hits["sync_file"] == 1


def test_commits_of_others_are_durable_before_anything_stands_on_them(tmp_path: Path) -> None:
    filesystem = FaultyFileSystem()
    create_topic(tmp_path, partitions=2)
    table = TopicTable.open(open_table(tmp_path / "topics" / "events", filesystem))
    roll(table, 0, 0, 10)
    foreign_commit(path_of(table), [], [("somebody", 1)])
    overwrite_entry(table, 1)
    part = roll_part(table, 1, 0, 10)
    for failing in ("sync_file", "sync_directory"):
        filesystem.fail(failing)
        with pytest.raises(CommitStateUnknownError, match="Version 2"):
            table.commit_roll([part])
        assert not log_entry(table, 3).exists()
    filesystem.hits.clear()
    table.commit_roll([part])
    assert filesystem.hits["fdatasync"] == 3  # copies of both, and the new entry
    assert filesystem.hits["sync_file"] == 1  # our entry


def test_a_commit_of_one_writer_syncs_one_entry(tmp_path: Path) -> None:
    filesystem = FaultyFileSystem()
    create_topic(tmp_path)
    table = TopicTable.open(open_table(tmp_path / "topics" / "events", filesystem))
    parts = [roll_part(table, 0, base, base + 10) for base in (0, 10)]
    filesystem.hits.clear()
    for part in parts:
        table.commit_roll([part])
    # The directory is synced once with the entry, and once with the file.
    assert (filesystem.hits["sync_file"], filesystem.hits["sync_directory"]) == (2, 4)


def test_opening_makes_the_shown_version_durable(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    foreign_commit(path_of(table), [], [("somebody", 1)])
    filesystem = FaultyFileSystem()
    TopicTable.open(open_table(path_of(table), filesystem))
    assert filesystem.hits["sync_file"] == 2  # the foreign entry, and ours, on which no later entry of ours builds
    roll(table, 0, 10, 20)
    roll(table, 0, 20, 30)
    filesystem.hits.clear()
    TopicTable.open(open_table(path_of(table), filesystem))
    assert filesystem.hits["sync_file"] == 2  # the foreign entry, and our newest


def test_a_commit_that_was_overwritten_later_is_seen_and_done_again_with_the_same_file(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    part = roll(table, 0, 10, 20)
    overwrite_entry(table, 2)
    assert table.snapshot().partitions[0].sealed == 10
    assert table.commit_roll([part]).version == 3
    assert [f.path for f in table.snapshot().segments(0)][1] == part.segments[0].path
    assert offsets_in_table(table) == list(range(20))


def test_a_roll_on_top_of_an_overwritten_one_is_refused(tmp_path: Path) -> None:
    """Expect a refusal: a handle from before would not see the overwritten entry, and would leave a hole."""
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    overwrite_entry(table, 1)
    with pytest.raises(CommitRefusedError, match="sealed up to 0"):
        roll(table, 0, 10, 20)


def test_a_file_lost_below_later_rolls_is_committed_again(tmp_path: Path) -> None:
    """Let a foreign commit replace the entry after the next roll, so that ``sealed`` does not show the loss."""
    table = create_topic(tmp_path)
    parts = [roll(table, 0, base, base + 10) for base in (0, 10, 20)]
    before = table.snapshot()
    overwrite_entry(table, 2)
    now = table.snapshot()
    assert now.partitions[0].sealed == 30
    assert now.lost_since(before) == (parts[1].segments[0].path,)
    segments = [segment for part in parts for segment in part.segments]
    assert table.recommit(segments) == 4
    assert table.recommit(segments) == 4
    assert offsets_in_table(table) == list(range(30))


def test_recommit_leaves_removed_files_alone(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    part = roll(table, 0, 0, 10)
    path = part.segments[0].path
    foreign_commit(path_of(table), [RemoveAction(path, True, 1, part.segments[0].size, {"partition": "0"})])
    assert table.recommit(part.segments) == 2
    assert offsets_in_table(table) == []


def test_recommit_doubles_nothing(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    lost = roll(table, 0, 0, 10)
    overwrite_entry(table, 1)
    roll(table, 0, 0, 10)
    with pytest.raises(CommitRefusedError, match="overlaps"):
        table.recommit(lost.segments)
    with pytest.raises(CommitRefusedError, match="past sealed"):
        table.recommit([write_segment(table, 0, 10, 20)])
