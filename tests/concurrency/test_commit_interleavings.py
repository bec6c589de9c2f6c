"""Two committers stepped phase by phase (rules R4 and R6).

Whatever one does between two phases of the other, no range is in the table twice, none is missing, and no change is
lost.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from logstore.delta.topic_table import TopicTable
from logstore.errors import CommitRefusedError, FencedLeaderEpochError
from logstore.segments.reader import read_row_group, row_groups
from logstore.table_files import open_table
from tests.support import deletion_vectors as vectors
from tests.support import table_features as features
from tests.support.table_paths import path_of
from tests.support.topics import (
    HookedFileSystem,
    create_topic,
    offsets_in_table,
    rewrite_files,
    roll,
    roll_part,
    write_segment,
)

PHASES = ["delta.opened", "delta.checked"]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[TopicTable, TopicTable, HookedFileSystem]:
    """Return the stepped committer, its rival, and the hooks of the first. Partitions 0 and 1 hold [0, 10)."""
    create_topic(tmp_path, partitions=2)
    filesystem = HookedFileSystem()
    stepped = TopicTable.open(open_table(tmp_path / "topics" / "events", filesystem))
    rival = TopicTable.open(open_table(stepped.files.uri))
    for partition in (0, 1):
        roll(rival, partition, 0, 10)
    return stepped, rival, filesystem


Pair = tuple[TopicTable, TopicTable, HookedFileSystem]


@pytest.mark.parametrize("phase", PHASES)
def test_roll_against_roll_of_the_same_range(pair: Pair, phase: str) -> None:
    stepped, rival, hooks = pair
    hooks.at(phase, lambda: roll(rival, 0, 10, 20))
    result = stepped.commit_roll([roll_part(stepped, 0, 10, 20)])
    assert isinstance(result.refused[0], CommitRefusedError)
    assert offsets_in_table(stepped) == list(range(20))
    assert stepped.snapshot().partitions[0].sealed == 20


@pytest.mark.parametrize("phase", PHASES)
def test_roll_against_roll_of_another_partition(pair: Pair, phase: str) -> None:
    stepped, rival, hooks = pair
    hooks.at(phase, lambda: roll(rival, 1, 10, 20))
    part = roll(stepped, 0, 10, 20)
    assert offsets_in_table(stepped, 0) == offsets_in_table(stepped, 1) == list(range(20))
    assert [f.path for f in stepped.snapshot().segments(0)][1:] == [part.segments[0].path]
    assert hooks.points.count("delta.opened") == 2


@pytest.mark.parametrize("phase", PHASES)
def test_the_rest_of_a_roll_continues_with_the_same_files(pair: Pair, phase: str) -> None:
    stepped, rival, hooks = pair
    hooks.at(phase, lambda: roll(rival, 0, 10, 15))
    parts = [roll_part(stepped, p, 10, 20) for p in (0, 1)]
    result = stepped.commit_roll(parts)
    assert (result.committed, list(result.refused)) == ((1,), [0])
    assert [f.path for f in stepped.snapshot().segments(1)][1:] == [parts[1].segments[0].path]
    assert offsets_in_table(stepped, 0) == list(range(15))


@pytest.mark.parametrize("phase", PHASES)
def test_a_zombie_against_the_new_leader(pair: Pair, phase: str) -> None:
    stepped, rival, hooks = pair
    hooks.at(phase, lambda: roll(rival, 0, 10, 12, epoch=2))
    result = stepped.commit_roll([roll_part(stepped, 0, 10, 20, epoch=1)])
    assert isinstance(result.refused[0], FencedLeaderEpochError)
    assert offsets_in_table(stepped) == list(range(12))


@pytest.mark.parametrize("phase", PHASES)
def test_a_leader_that_commits_its_epoch_first_fences_the_zombie(pair: Pair, phase: str) -> None:
    stepped, rival, hooks = pair
    hooks.at(phase, lambda: rival.advance_log_start({0: 1}, {0: 2}))
    result = stepped.commit_roll([roll_part(stepped, 0, 10, 20, epoch=1)])
    assert isinstance(result.refused[0], FencedLeaderEpochError)


@pytest.mark.parametrize("phase", PHASES)
def test_roll_against_compaction(pair: Pair, phase: str) -> None:
    stepped, rival, hooks = pair
    (old,) = rival.snapshot().segments(0)
    compacted = write_segment(rival, 0, 0, 10, step=2)
    hooks.at(phase, lambda: rewrite_files(rival, 0, [old.path], [compacted], data_change=False))
    roll(stepped, 0, 10, 20)
    assert offsets_in_table(stepped) == [*range(0, 10, 2), *range(10, 20)]
    state = stepped.snapshot().partitions[0]
    assert (state.sealed, state.rewrite) == (20, 1)


@pytest.mark.parametrize("phase", PHASES)
def test_compaction_against_roll_does_not_starve(pair: Pair, phase: str) -> None:
    stepped, rival, hooks = pair
    (old,) = stepped.snapshot().segments(0)
    hooks.at(phase, *(lambda n=n: roll(rival, 1, n, n + 10) for n in range(10, 60, 10)))  # type: ignore[misc]
    rewrite_files(stepped, 0, [old.path], [write_segment(stepped, 0, 0, 10, step=2)], data_change=False)
    assert offsets_in_table(stepped, 0) == list(range(0, 10, 2))
    assert offsets_in_table(stepped, 1) == list(range(60))


@pytest.mark.parametrize("phase", PHASES)
def test_compaction_against_retention_of_the_same_file(pair: Pair, phase: str) -> None:
    """Delta-rs would accept both commits, and records removed by retention would come back."""
    stepped, rival, hooks = pair
    (old,) = stepped.snapshot().segments(0)
    hooks.at(phase, lambda: rewrite_files(rival, 0, [old.path], [], data_change=True, log_start=10))
    with pytest.raises(CommitRefusedError, match="not active"):
        rewrite_files(stepped, 0, [old.path], [write_segment(stepped, 0, 0, 10)], data_change=False)
    assert offsets_in_table(stepped) == []


@pytest.mark.parametrize("phase", PHASES)
def test_compaction_against_compaction(pair: Pair, phase: str) -> None:
    stepped, rival, hooks = pair
    (old,) = stepped.snapshot().segments(0)
    one, two = (write_segment(stepped, 0, 0, 10) for _ in range(2))
    hooks.at(phase, lambda: rewrite_files(rival, 0, [old.path], [one], data_change=False))
    with pytest.raises(CommitRefusedError, match="not active"):
        rewrite_files(stepped, 0, [old.path], [two], data_change=False)
    assert offsets_in_table(stepped) == list(range(10))


def served(table: TopicTable, partition: int = 0) -> dict[int, bytes | None]:
    """Return the offsets and values of the records that the log serves."""
    found: dict[int, bytes | None] = {}
    for segment in table.snapshot().segments(partition):
        for group in row_groups(table.files, segment.path):
            batch = read_row_group(table.files, segment.path, group.index)
            found |= zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
    return found


@pytest.mark.parametrize("phase", PHASES)
def test_roll_against_a_delete_with_vectors(pair: Pair, phase: str) -> None:
    stepped, rival, hooks = pair
    hooks.at(phase, lambda: vectors.delete(path_of(rival), [3, 4]))
    roll(stepped, 0, 10, 20)
    assert list(served(stepped)) == [0, 1, 2, *range(5, 20)]
    assert stepped.snapshot().partitions[0].sealed == 20
    assert hooks.points.count("delta.opened") == 2


@pytest.mark.parametrize("phase", PHASES)
def test_compaction_against_a_delete_with_vectors_of_the_same_file(pair: Pair, phase: str) -> None:
    """Check that the new file has the row that was deleted meanwhile."""
    stepped, rival, hooks = pair
    (old,) = stepped.snapshot().segments(0)
    hooks.at(phase, lambda: vectors.delete(path_of(rival), [3]))
    with pytest.raises(CommitRefusedError, match="not active"):
        rewrite_files(stepped, 0, [old.path], [write_segment(stepped, 0, 0, 10)], data_change=False)
    assert list(served(stepped)) == [0, 1, 2, *range(4, 10)]


@pytest.mark.parametrize("phase", PHASES)
def test_a_merge_of_a_masked_file_against_an_update_of_its_rows(pair: Pair, phase: str) -> None:
    stepped, rival, hooks = pair
    vectors.delete(path_of(rival), [3])
    (masked,) = stepped.snapshot().segments(0)
    hooks.at(phase, lambda: vectors.update(path_of(rival), [5], b"new"))
    with pytest.raises(CommitRefusedError, match="not active"):
        rewrite_files(stepped, 0, [masked.path], [write_segment(stepped, 0, 0, 10, step=2)], data_change=False)
    found = served(stepped)
    assert (list(found), found[5]) == ([0, 1, 2, *range(4, 10)], b"new")
    (both,) = stepped.snapshot().segments(0)
    rewrite_files(stepped, 0, [both.path], [write_segment(stepped, 0, 0, 10, step=2)], data_change=False)
    assert (list(served(stepped)), stepped.snapshot().vectors) == (list(range(0, 10, 2)), ())


@pytest.mark.parametrize("phase", PHASES)
def test_row_ids_of_two_committers(pair: Pair, phase: str) -> None:
    stepped, rival, hooks = pair
    features.turn_on(path_of(rival), "rowTracking")
    hooks.at(phase, lambda: roll(rival, 1, 10, 20))
    roll(stepped, 0, 10, 20)
    given = [file.row_ids[0] for file in stepped.snapshot().table.files if file.row_ids[0] is not None]
    assert sorted(given) == [60, 70]
    assert stepped.snapshot().table.domains["delta.rowTracking"] == '{"rowIdHighWaterMark": 79}'


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.alter_config({"b": "2"}),
        lambda t: t.add_partitions(3),
        lambda t: t.advance_log_start({0: 5}, {0: 0}),
        lambda t: DeltaTable(t.files.uri).alter.set_table_properties({"user.note": "1"}, raise_if_not_exists=False),
        lambda t: DeltaTable(t.files.uri).create_checkpoint(),
    ],
    ids=["alter", "add-partitions", "log-start", "foreign-alter", "checkpoint"],
)
def test_administration_against_roll_and_alter(pair: Pair, phase: str, change: Callable[[TopicTable], object]) -> None:
    stepped, rival, hooks = pair
    hooks.at(phase, lambda: change(rival))
    roll(stepped, 0, 10, 20)
    hooks.at(phase, lambda: roll(rival, 0, 20, 30))
    stepped.alter_config({"a": "1"})
    assert stepped.snapshot().config_overrides["a"] == "1"
    assert offsets_in_table(stepped) == list(range(30))


@pytest.mark.parametrize("phase", PHASES)
def test_two_changes_of_configuration_keep_both(pair: Pair, phase: str) -> None:
    """Alter the configuration on an old handle: an ALTER writes all metadata, so it could undo the other change."""
    stepped, rival, hooks = pair
    hooks.at(phase, lambda: rival.alter_config({"b": "2"}))
    stepped.alter_config({"a": "1"})
    assert stepped.snapshot().config_overrides == {"a": "1", "b": "2"}


@pytest.mark.parametrize("phase", PHASES)
def test_adding_partitions_twice_forgets_none(pair: Pair, phase: str) -> None:
    stepped, rival, hooks = pair

    def grow_and_roll() -> None:
        rival.add_partitions(4)
        roll(rival, 3, 0, 10)

    hooks.at(phase, grow_and_roll)
    stepped.add_partitions(6)
    assert [s.sealed for s in stepped.snapshot().partitions.values()] == [10, 10, 0, 10, 0, 0]


@pytest.mark.parametrize("phase", PHASES)
def test_the_log_start_never_falls_behind_a_rival(pair: Pair, phase: str) -> None:
    stepped, rival, hooks = pair
    hooks.at(phase, lambda: rival.advance_log_start({0: 8}, {0: 0}))
    stepped.advance_log_start({0: 5}, {0: 0})
    assert stepped.snapshot().partitions[0].log_start == 8
