"""A Delta log is built again from the files: the table is as before, or the report says what cannot be known."""

import contextlib
import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from logstore.delta.snapshot import TopicSnapshot
from logstore.delta.topic_table import TopicTable
from logstore.errors import CommitRefusedError
from logstore.filesystem import FileSystem
from logstore.inspection.table_check import verify_topic
from logstore.inspection.table_rebuild import Known, RebuildPlan, carry_out, plan_rebuild
from logstore.segments.reader import read_row_group, row_groups
from logstore.segments.writer import Segment, SegmentWriter
from logstore.table_files import open_table
from logstore.table_root import TableRoot, open_root
from tests.support import deletion_vectors as vectors
from tests.support.damage import cut, flip_bit
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.topics import create_topic, log_batch, log_entry, offsets_in_table, rewrite_files, roll
from tests.support.typed_topics import declare, roll_values


@pytest.fixture
def root(tmp_path: Path) -> TableRoot:
    return open_root(tmp_path)


@pytest.fixture
def table(tmp_path: Path) -> TopicTable:
    """Create partition 0 with [0, 40) in four rolls, and partition 1 with [0, 10), whose first five records are
    deleted.

    A compaction has made one file of ten records from [0, 20) of partition 0.
    """
    table = create_topic(tmp_path, partitions=2)
    for base in range(0, 40, 10):
        roll(table, 0, base, base + 10, epoch=1)
    roll(table, 1, 0, 10, epoch=1)
    sources = [file.path for file in table.snapshot().segments(0)[:2]]
    compacted = job_file(table, 0, 0, 20, range(0, 20, 2), "key-compaction", cleanings=((20, 5),))
    rewrite_files(table, 0, sources, [compacted], data_change=False, cleaned=20, operation="key-compaction")
    table.advance_log_start({1: 5}, {1: 1})
    table.alter_config({"retention.ms": "777"})
    return table


def job_file(
    table: TopicTable,
    partition: int,
    base: int,
    end: int,
    offsets: range,
    operation: str,
    cleanings: tuple[tuple[int, int], ...] = (),
) -> Segment:
    with SegmentWriter(open_table(table.files.uri), partition, base, end, 1) as writer:
        if offsets:
            writer.write(log_batch(offsets))
        return writer.finish(leader_epochs=((1, 0),), operation=operation, cleanings=cleanings)


def facts(snapshot: TopicSnapshot) -> tuple[object, ...]:
    files = {p: {f._replace(size=0) for f in snapshot.segments(p)} for p in range(snapshot.num_partitions)}
    states = {p: (s.sealed, s.leader_epoch, s.log_start, s.cleaned, s.rewrite) for p, s in snapshot.partitions.items()}
    return snapshot.topic_id, snapshot.config_overrides, files, states


def rebuilt(root: TableRoot, known: Known | None = None, orphans: dict[uuid.UUID, str] | None = None) -> RebuildPlan:
    plan = plan_rebuild(root.open("events"), {}, known or Known(), orphans or {})
    carry_out(root, plan)
    assert verify_topic(root.open("events"), {}).problems == []
    return plan


def log_directory(table: TopicTable) -> Path:
    return Path(table.files.uri) / "_delta_log"


def table_statistics(table: TopicTable) -> list[str]:
    """Return the statistics of declared columns by file."""
    actions = pa.table(DeltaTable(table.files.uri).get_add_actions(flatten=True)).to_pylist()
    return sorted(
        json.dumps({name: value for name, value in action.items() if name.endswith((".n", ".s"))}, sort_keys=True)
        for action in actions
    )


def damage_entry(table: TopicTable, version: int) -> None:
    entry = log_entry(table, version)
    entry.write_bytes(entry.read_bytes().replace(b'"size":', b'"size":1'))


def test_a_log_with_a_damaged_entry_comes_back_whole(root, table):
    expected = facts(table.snapshot())
    damage_entry(table, 2)
    before = {path.name: path.read_bytes() for path in log_directory(table).iterdir()}
    plan = rebuilt(root)
    assert facts(TopicTable.open(root.open("events")).snapshot()) == expected
    assert [len(part.superseded) for part in plan.partitions] == [0, 0]  # the log says which files were removed
    kept = log_directory(table).with_name("_delta_log.set-aside")
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    assert (log_directory(table) / f"{0:020d}.json").exists()


def test_declared_columns_and_those_of_others_stay(root, table):
    declare(table, "n BIGINT FROM user.n, s STRING")
    roll_values(table, [{"user": {"n": 7}, "s": "a"}, {"s": 5}])
    DeltaTable(table.files.uri).alter.add_columns([Field("note", PrimitiveType("string"))])
    fields = json.loads(table.snapshot().table.meta_data.schema_string)["fields"]
    statistics = table_statistics(table)
    damage_entry(table, 2)
    rebuilt(root)
    snapshot = TopicTable.open(root.open("events")).snapshot()
    assert sorted(json.loads(snapshot.table.meta_data.schema_string)["fields"], key=str) == sorted(fields, key=str)
    assert snapshot.config_overrides["table.columns.mode"] == "declared"
    assert table_statistics(table) == statistics
    shutil.rmtree(log_directory(table))
    plan = rebuilt(root, Known(topic_id=snapshot.topic_id))
    assert any("declare them again with logstore topic columns set events" in text for text in plan.warnings)


def test_a_lost_log_comes_back_but_for_what_only_it_knew(root, table):
    state = table.snapshot()
    shutil.rmtree(log_directory(table))
    known = Known(topic_id=state.topic_id, configs={"retention.ms": "777"}, log_starts={1: 5})
    plan = rebuilt(root, known)
    assert facts(TopicTable.open(root.open("events")).snapshot()) == facts(state)
    assert [len(part.superseded) for part in plan.partitions] == [2, 0]
    assert offsets_in_table(table, 0) == [*range(0, 20, 2), *range(20, 40)]
    assert any("number of partitions" in text for text in plan.warnings)


def test_without_a_word_the_log_start_is_the_first_file_and_that_is_said(root, table):
    shutil.rmtree(log_directory(table))
    plan = rebuilt(root)
    assert any("--log-start 1=OFFSET" in text for text in plan.warnings)
    assert any("new id" in text for text in plan.warnings)
    assert TopicTable.open(root.open("events")).snapshot().partitions[1].log_start == 0


def test_a_file_that_was_cut_at_the_log_start_shows_it(root, table):
    (file,) = table.snapshot().segments(1)
    rest = job_file(table, 1, 5, 10, range(5, 10), "retention-boundary")
    rewrite_files(table, 1, [file.path], [rest], data_change=False, operation="retention-boundary")
    shutil.rmtree(log_directory(table))
    assert rebuilt(root).partitions[1].log_start == 5
    assert offsets_in_table(table, 1) == [5, 6, 7, 8, 9]


def test_a_removed_file_never_comes_back_in_the_place_of_its_successor(root, table):
    """Damage the compacted file, not its entry: the records that compaction removed stay away."""
    (compacted, *_) = table.snapshot().segments(0)
    flip_bit(Path(table.files.where(compacted.path)), 100)
    damage_entry(table, 1)
    plan = plan_rebuild(root.open("events"), {}, Known(), {})
    with pytest.raises(CommitRefusedError, match=r"no readable file stands for offsets 0 to 19.*--give-up-missing"):
        carry_out(root, plan)
    given_up = plan_rebuild(root.open("events"), {}, Known(give_up_missing=True), {})
    carry_out(root, given_up)
    assert offsets_in_table(table, 0) == list(range(20, 40))


def test_older_files_stand_in_for_an_unreadable_one_and_that_is_said(root, table):
    (compacted, *_) = table.snapshot().segments(0)
    cut(Path(table.files.where(compacted.path)), 300)
    shutil.rmtree(log_directory(table))
    plan = rebuilt(root, Known(topic_id=table.latest.topic_id))
    assert offsets_in_table(table, 0) == list(range(40))
    assert any("records that a job removed may be back" in text for text in plan.warnings)


def test_the_offsets_of_an_unreadable_last_file_are_not_given_out_again(root, table):
    (*_, last) = table.snapshot().segments(0)
    cut(Path(table.files.where(last.path)), 300)
    shutil.rmtree(log_directory(table))
    with pytest.raises(CommitRefusedError, match=r"no readable file stands for offsets 30 to 39.*--log-start 0=40"):
        rebuilt(root)
    plan = rebuilt(root, Known(give_up_missing=True))
    assert plan.partitions[0].sealed == 40


def test_a_file_of_another_writer_that_the_log_names_stays(root, table):
    path = table.files.uri
    DeltaTable(path).delete("partition = 0 AND offset = 25")
    expected = offsets_in_table(table, 0)
    assert 25 not in expected
    damage_entry(table, 1)
    plan = plan_rebuild(root.open("events"), {}, Known(), {})
    carry_out(root, plan)
    assert offsets_in_table(table, 0) == expected
    assert len(plan.foreign) == 1


def test_rows_that_deletion_vectors_took_out_stay_out(root, table):
    vectors.delete(Path(table.files.uri), [4, 25])
    vectors.update(Path(table.files.uri), [26], b"new")
    damage_entry(table, 1)
    plan = rebuilt(root)
    assert len(plan.vectors) == 2
    rebuilt_table = TopicTable.open(root.open("events"))
    (low, *_), after = rebuilt_table.snapshot().segments(0), {}
    for segment in rebuilt_table.snapshot().segments(0):
        for group in row_groups(rebuilt_table.files, segment.path):
            batch = read_row_group(rebuilt_table.files, segment.path, group.index)
            after |= zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
    assert low.foreign
    assert not {4, 25} & after.keys()
    assert after[26] == b"new"
    assert len(after) == 28


def test_files_of_vectors_that_no_entry_names_are_warned_of(root, table):
    vectors.delete(Path(table.files.uri), [4])
    shutil.rmtree(log_directory(table))
    assert any("deleted records may be there again" in text for text in rebuilt(root).warnings)


@pytest.mark.parametrize("statement", ["compact", "z_order"])
def test_an_optimize_of_another_writer_stays(root, table, statement):
    before = (
        DeltaTable(table.files.uri).to_pyarrow_table().sort_by([("partition", "ascending"), ("offset", "ascending")])
    )
    optimize = DeltaTable(table.files.uri).optimize
    (optimize.compact() if statement == "compact" else optimize.z_order(["value"]))
    roll(table, 0, 40, 50, epoch=1)
    damage_entry(table, 1)
    plan = rebuilt(root)
    assert plan.foreign
    assert not any(part.superseded for part in plan.partitions)
    after = DeltaTable(table.files.uri).to_pyarrow_table(filters=[("offset", "<", 40)])
    assert after.sort_by([("partition", "ascending"), ("offset", "ascending")]).equals(before)


def test_a_file_of_another_writer_that_is_gone_is_asked_for(root, table):
    DeltaTable(table.files.uri).delete("partition = 0 AND offset = 25")
    (foreign,) = [p for p in table.snapshot().paths if not p.split("/")[1].startswith("0000")]
    Path(table.files.where(foreign)).unlink()
    damage_entry(table, 1)
    assert "it cannot be read" in plan_rebuild(root.open("events"), {}, Known(), {}).refusals[0]


def test_a_file_of_another_writer_that_no_log_names_is_left_out(root, table):
    rows = DeltaTable(table.files.uri).to_pyarrow_table(filters=[("partition", "=", 1)])
    write_deltalake(table.files.uri, rows, mode="append")
    shutil.rmtree(log_directory(table))
    plan = rebuilt(root)
    assert len(plan.left_out) == 1
    assert any("another writer's" in text for text in plan.warnings)
    assert offsets_in_table(table, 1) == list(range(10))


def test_the_id_is_asked_for_where_the_journal_has_records_of_an_unknown_topic(root, table):
    topic_id = table.latest.topic_id
    shutil.rmtree(log_directory(table))
    files = root.open("events")
    asked = plan_rebuild(files, {}, Known(), {topic_id: "partitions up to offset 0: 40"})
    assert str(topic_id) in asked.refusals[0]
    assert "--topic-id" in asked.refusals[0]
    assert plan_rebuild(files, {}, Known(new_topic_id=True), {topic_id: ""}).refusals == []
    assert plan_rebuild(files, {}, Known(topic_id=topic_id), {topic_id: ""}).topic_id == topic_id


def test_a_contradiction_to_the_log_is_refused(root, table):
    damage_entry(table, 1)
    files = root.open("events")
    for known, reason in (
        (Known(topic_id=uuid.uuid4()), "leave --topic-id out"),
        (Known(partitions=1), "2 partitions at least"),
    ):
        assert reason in plan_rebuild(files, {}, known, {}).refusals[0]


def test_a_copy_under_another_name_is_refused(root, table, tmp_path):
    damage_entry(table, 1)
    shutil.copytree(tmp_path / "topics" / "events", tmp_path / "topics" / "copy")
    assert "copy of that directory" in plan_rebuild(root.open("copy"), {}, Known(), {}).refusals[0]


def every_crash(tmp_path: Path, act: Callable[[FileSystem, Path], object]) -> int:
    """Run ``act`` on copies of ``tmp_path``, killed at each call and point; return the number of kills."""
    calls = ("make_directory", "create", "write_at", "fdatasync", "close", "sync_directory", "rename", "unlink")
    points = ("rebuild.staged", "rebuild.set_aside", "rebuild.renamed")
    kills = 0
    for call in (*calls, *points):
        for nth in range(1, 20):
            disk = FaultyFileSystem()
            disk.crash_at(call, nth)
            copy = tmp_path.with_name(f"{tmp_path.name}-{call}-{nth}")
            shutil.copytree(tmp_path, copy)
            with contextlib.suppress(OSError):
                act(disk, copy)
            if not disk.crashed:
                shutil.rmtree(copy)
                break
            kills += 1
            after_a_kill(copy)
            shutil.rmtree(copy)
    return kills


def after_a_kill(data: Path) -> None:
    """Check that a kill leaves the old log, in place or set aside, or the new one. The next attempt must succeed."""
    root = open_root(data)
    files = root.open("events")
    if (aside := root.log_set_aside("events")) is not None:
        files.put_back(aside)
    if verify_topic(files, {}).problems:
        assert json.loads((data / "expected").read_text()) == sorted(
            path.name for path in (data / "topics" / "events" / "_delta_log").iterdir()
        )
        carry_out(root, plan_rebuild(files, {}, Known(), {}))
    root.recover()
    assert not list((data / "staging").glob("*"))
    report = verify_topic(files, {})
    assert (report.problems, report.records) == ([], 40)


def test_a_kill_at_any_step_leaves_the_old_log_or_the_new_one(table, tmp_path):
    damage_entry(table, 2)
    (tmp_path / "expected").write_text(json.dumps(sorted(path.name for path in log_directory(table).iterdir())))

    def act(disk: FileSystem, data: Path) -> None:
        root = open_root(data, disk)
        carry_out(root, plan_rebuild(root.open("events"), {}, Known(), {}))

    assert every_crash(tmp_path, act) >= 15


def test_partitions_that_only_the_facts_of_the_log_name_are_made_again(root: TableRoot, table: TopicTable) -> None:
    """Restore a version before the partitions were added, which takes the property back; they have no records."""
    table.add_partitions(4)
    DeltaTable(table.files.uri).restore(table.snapshot().version - 1)
    log_entry(table, 3).unlink()
    assert len(rebuilt(root).partitions) == 4
    assert table.snapshot().properties["logstore.partitions"] == "4"
