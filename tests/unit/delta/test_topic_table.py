from pathlib import Path

import pytest
from deltalake import DeltaTable

from logstore.delta.topic_table import RollPart
from logstore.errors import (
    CommitRefusedError,
    FencedLeaderEpochError,
    InvalidPartitionsError,
    TopicExistsError,
    UnknownPartitionError,
)
from logstore.records.schema import TABLE_SCHEMA
from tests.support.table_paths import create_table, path_of
from tests.support.topics import (
    HookedFileSystem,
    create_topic,
    empty_segment,
    log_entry,
    offsets_in_table,
    rewrite_files,
    roll,
    roll_part,
    write_segment,
)


def test_a_topic_is_one_commit(tmp_path: Path) -> None:
    table = create_table(tmp_path / "topics" / "t", num_partitions=3, config_overrides={"retention.ms": "5", "x.y": ""})
    handle = DeltaTable(str(path_of(table)))
    assert handle.version() == 0
    assert handle.metadata().partition_columns == ["partition"]
    assert (handle.protocol().min_reader_version, handle.protocol().min_writer_version) == (1, 2)
    assert [f.name for f in handle.schema().fields] == TABLE_SCHEMA.names
    assert [handle.transaction_version(f"logstore/{p}/sealed") for p in range(3)] == [0, 0, 0]
    assert table.snapshot().config_overrides == {"retention.ms": "5", "x.y": ""}
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_crash_while_creating_leaves_no_topic(tmp_path: Path) -> None:
    filesystem = HookedFileSystem()

    def crash() -> None:
        raise KeyboardInterrupt

    filesystem.at("delta.staged", crash)
    with pytest.raises(KeyboardInterrupt):
        create_topic(tmp_path, filesystem=filesystem)
    assert not (tmp_path / "topics" / "events").exists()
    create_topic(tmp_path, filesystem=filesystem)


def test_a_topic_that_exists(tmp_path: Path) -> None:
    create_topic(tmp_path)
    with pytest.raises(TopicExistsError):
        create_topic(tmp_path)


@pytest.mark.parametrize("count", [0, -1, 10_001])
def test_partition_counts(tmp_path: Path, count: int) -> None:
    with pytest.raises(InvalidPartitionsError):
        create_topic(tmp_path, partitions=count)


def test_a_roll_of_several_partitions_is_one_commit(tmp_path: Path) -> None:
    table = create_topic(tmp_path, partitions=3)
    result = table.commit_roll([roll_part(table, p, 0, 10 + p, epoch=4) for p in (0, 2)])
    assert (result.version, result.committed, result.refused) == (1, (0, 2), {})
    states = table.snapshot().partitions
    assert [(s.sealed, s.leader_epoch) for s in states.values()] == [(10, 4), (0, 0), (12, 4)]
    assert offsets_in_table(table, 2) == list(range(12))


def test_several_segments_of_one_partition(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    segments = (write_segment(table, 0, 0, 10), write_segment(table, 0, 10, 15))
    table.commit_roll([RollPart(0, 0, 15, 0, segments)])
    assert offsets_in_table(table) == list(range(15))
    for wrong in (segments[::-1], segments[:1], segments[1:]):
        with pytest.raises(ValueError, match="do not make up"):
            table.commit_roll([RollPart(0, 0, 15, 0, wrong)])


def test_an_aborted_range_is_a_segment_without_records(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    with pytest.raises(ValueError, match="do not make up"):
        table.commit_roll([RollPart(0, 0, 10, 0, ())])
    part = RollPart(0, 0, 10, 0, (empty_segment(table, 0, 0, 10),))
    assert table.commit_roll([part]).version == 1
    assert table.commit_roll([part]).committed == (0,), "it is there already"
    roll(table, 0, 10, 20)
    assert offsets_in_table(table) == list(range(10, 20))
    snapshot = table.snapshot()
    assert snapshot.partitions[0].sealed == 20
    assert [(f.base_offset, f.end_offset, f.num_records) for f in snapshot.segments(0)] == [(0, 10, 0), (10, 20, 10)]


def test_one_bad_partition_does_not_keep_the_others_back(tmp_path: Path) -> None:
    """Commit the good partitions (rule R6)."""
    table = create_topic(tmp_path, partitions=4)
    roll(table, 1, 0, 5)
    roll(table, 2, 0, 5, epoch=9)
    parts = [roll_part(table, p, 0, 10) for p in range(3)]
    parts.append(roll_part(table, 3, 5, 10))
    result = table.commit_roll(parts)
    assert result.committed == (0,)
    assert {p: type(error) for p, error in result.refused.items()} == {
        1: CommitRefusedError,
        2: FencedLeaderEpochError,
        3: CommitRefusedError,
    }
    assert [s.sealed for s in table.snapshot().partitions.values()] == [10, 5, 5, 0]


def test_a_roll_where_all_fail_commits_nothing(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    result = table.commit_roll([roll_part(table, 0, 5, 10)])
    assert (result.version, result.committed) == (0, ())
    assert table.snapshot().version == 0


def test_an_unknown_partition_is_refused(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    assert isinstance(table.commit_roll([roll_part(table, 1, 0, 5)]).refused[1], UnknownPartitionError)
    with pytest.raises(UnknownPartitionError):
        table.advance_log_start({1: 0}, {1: 0})


def test_a_repeated_roll_is_the_same_roll(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    part = roll(table, 0, 0, 10)
    result = table.commit_roll([part])
    assert (result.version, result.committed, result.refused) == (1, (0,), {})


def test_the_log_start_moves_forward_only(tmp_path: Path) -> None:
    table = create_topic(tmp_path, partitions=2)
    table.commit_roll([roll_part(table, p, 0, 10, epoch=2) for p in (0, 1)])
    assert table.advance_log_start({0: 7, 1: 10}, {0: 2, 1: 3}) == 2
    assert [(s.log_start, s.leader_epoch) for s in table.snapshot().partitions.values()] == [(7, 2), (10, 3)]
    for start in (7, 6, 0):
        assert table.advance_log_start({0: start}, {0: 2}) == 2
    with pytest.raises(CommitRefusedError, match="cannot become 11"):
        table.advance_log_start({0: 11}, {0: 2})
    with pytest.raises(FencedLeaderEpochError):
        table.advance_log_start({0: 8}, {0: 1})
    assert table.snapshot().version == 2


def test_configuration_changes(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    assert table.alter_config({"retention.ms": "5", "segment.bytes": "7"}) == 1
    assert table.alter_config({"retention.ms": "5"}) == 1
    assert table.alter_config({"retention.ms": None}) == 2
    snapshot = table.snapshot()
    assert snapshot.config_overrides == {"retention.ms": "", "segment.bytes": "7"}
    assert snapshot.num_partitions == 1
    with pytest.raises(ValueError, match="add_partitions"):
        table.alter_config({"partitions": "5"})


def test_partitions_are_added_in_one_commit_and_never_removed(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    assert table.add_partitions(3) == 2
    assert table.add_partitions(3) == 2
    assert [s.sealed for s in table.snapshot().partitions.values()] == [10, 0, 0]
    roll(table, 2, 0, 10)
    with pytest.raises(InvalidPartitionsError, match="never removed"):
        table.add_partitions(2)


def test_a_rewrite_replaces_files_and_counts(tmp_path: Path) -> None:
    table = create_topic(tmp_path, partitions=2)
    old = [roll(table, 0, base, base + 10).segments[0].path for base in (0, 10, 20)]
    merged = write_segment(table, 0, 0, 20, step=2)
    version = rewrite_files(table, 0, old[:2], [merged], data_change=False, cleaned=20)
    state = table.snapshot().partitions[0]
    assert (version, state.rewrite, state.cleaned, state.sealed) == (4, 1, 20, 30)
    assert offsets_in_table(table) == [*range(0, 20, 2), *range(20, 30)]
    entry = log_entry(table, 4).read_text()
    assert entry.count('"dataChange":false') == 3
    assert '"dataChange":true' not in entry


def test_retention_removes_files_and_moves_the_start(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    old = [roll(table, 0, base, base + 10).segments[0].path for base in (0, 10)]
    rewrite_files(table, 0, old[:1], [], data_change=True, log_start=10, operation="retention")
    state = table.snapshot().partitions[0]
    assert (state.log_start, state.rewrite) == (10, 1)
    assert offsets_in_table(table) == list(range(10, 20))
    with pytest.raises(CommitRefusedError, match="not active"):
        rewrite_files(table, 0, old[:1], [], data_change=True)
    with pytest.raises(CommitRefusedError, match="beyond sealed"):
        rewrite_files(table, 0, old[1:], [], data_change=True, log_start=21)


def test_a_rewrite_never_mixes_data_changing_removes_with_adds(tmp_path: Path) -> None:
    """Refuse such a rewrite (rule R6): plain streams with skipChangeCommits would lose the adds."""
    table = create_topic(tmp_path)
    old = roll(table, 0, 0, 10).segments[0].path
    with pytest.raises(ValueError, match="never mixes"):
        rewrite_files(table, 0, [old], [write_segment(table, 0, 0, 10)], data_change=True)


def test_a_rewrite_invents_nothing(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    old = [roll(table, 0, base, base + 10).segments[0].path for base in (0, 10, 20)]
    for adds, message in (
        ([write_segment(table, 0, 0, 11)], "does not fit"),
        ([write_segment(table, 0, 0, 6), write_segment(table, 0, 5, 9)], "overlaps"),
    ):
        with pytest.raises(CommitRefusedError, match=message):
            rewrite_files(table, 0, old[:1], adds, data_change=False)
    with pytest.raises(CommitRefusedError, match="overlaps"):
        rewrite_files(table, 0, [old[0], old[2]], [write_segment(table, 0, 0, 15)], data_change=False)
    sparse = write_segment(table, 0, 0, 10, step=2)
    rewrite_files(table, 0, old[:1], [sparse], data_change=False)
    with pytest.raises(CommitRefusedError, match="would add records"):
        rewrite_files(table, 0, [sparse.path], [write_segment(table, 0, 0, 9)], data_change=False)


def test_the_history_of_the_table_names_the_operations(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    table.alter_config({"retention.ms": "1"})
    table.advance_log_start({0: 5}, {0: 0})
    operations = [commit.get("logstore.operation") for commit in DeltaTable(str(path_of(table))).history()]
    assert operations == ["advance-log-start", "alter-config", "roll", "create"]
