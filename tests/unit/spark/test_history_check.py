"""The later versions of a topic's table that a DataFrame may read."""

import pytest
from deltalake import DeltaTable

from compaction_jobs.jobs import run_job, topics_of
from logstore.delta.actions import OWN_PREFIX
from logstore.spark.history_check import HistoryReadError, KnownHistory, changed, history_check
from logstore.table_root import open_root
from tests.support import foreign_writers as others
from tests.support.job_context import job_context
from tests.support.keyed_topics import KeyedTopic, Record
from tests.support.table_paths import create_table, path_of
from tests.support.topics import joined, rewrite_files, roll


@pytest.fixture
def table(tmp_path):
    """Create two segments of ten records."""
    made = create_table(tmp_path / "topics" / "flights", num_partitions=1, config_overrides={})
    for base in (0, 10):
        roll(made, 0, base, base + 10)
    return made


def known(table, *ranges: tuple[int, int, int], has_refused_files: bool = False) -> KnownHistory:
    snapshot = table.snapshot()
    table_id = str(snapshot.topic_id)
    return KnownHistory("flights", table_id, table.files.uri, snapshot.version, has_refused_files, OWN_PREFIX, ranges)


def test_commits_of_rolls_and_merges_are_read(table):
    before = known(table)
    assert changed(before) is None
    roll(table, 0, 20, 30)
    files = table.snapshot().segments(0)
    rewrite_files(table, 0, [file.path for file in files], (joined(table, files),), data_change=False)
    assert changed(before) is None
    assert list(history_check(before)(iter([]))) == []


@pytest.mark.parametrize(
    ("change", "operation"),
    [
        (lambda path: others.append(path, [3, 4]), "WRITE"),
        (lambda path: others.overwrite(path, others.rows_of([])), "WRITE"),
        (lambda path: others.delete(path, '"offset" = 3'), "DELETE"),
        (lambda path: others.update(path, '"offset" = 3', "new"), "UPDATE"),
        (lambda path: others.restore(path, 1), "RESTORE"),
    ],
    ids=["append", "overwrite", "delete", "update", "restore"],
)
def test_records_that_another_writer_changed_need_a_new_frame(table, change, operation):
    before = known(table)
    change(path_of(table))
    assert changed(before) == f"topic flights: another writer changed the table ({operation} in version 3)"
    roll(table, 0, 20, 30)
    with pytest.raises(HistoryReadError, match=r"version 3\) since this DataFrame was made; make the DataFrame again"):
        list(history_check(before)(iter([None])))
    assert changed(known(table)) is None


def test_rows_that_others_only_rewrote_are_read_unless_refused_ones_may_be_among_them(table):
    before = known(table), known(table, has_refused_files=True)
    DeltaTable(str(path_of(table))).alter.set_table_properties({"delta.logRetentionDuration": "interval 2 days"})
    assert [changed(frame) for frame in before] == [None, None]
    others.optimize(path_of(table))
    assert changed(before[0]) is None
    assert "OPTIMIZE in version 4" in str(changed(before[1]))


def test_a_log_without_the_entries_since_then_shows_nothing(table):
    before = known(table)
    for base in (20, 30):
        roll(table, 0, base, base + 10)
    (path_of(table) / f"_delta_log/{before.version + 1:020}.json").unlink()
    assert changed(before) == "topic flights: the Delta log no longer says who changed the table"


def test_a_compaction_that_took_records_out_of_the_ranges_needs_a_new_frame(tmp_path):
    topic = KeyedTopic.create(
        tmp_path, "flights", 2, cleanup_policy="compact", min_cleanable_dirty_ratio=0, segment_bytes=1
    )

    def compact() -> None:
        with job_context(1_700_000_000_000) as context:
            (report,) = run_job("compact", topics_of("compact", open_root(tmp_path), ["flights"], {}), context).topics
        assert report.error is None

    for at in range(3):
        topic.roll({0: [Record(b"k", b"%d" % at, 1), Record(b"l%d" % at, b"v", 1)]})
    table = topic.table
    all_of_it, others_range, first, chose_files = (
        known(table, *ranges) for ranges in ([(0, 0, 6), (1, 0, 0)], [(1, 0, 9)], [(0, 0, 1)], [])
    )
    compact()
    version = table.snapshot().version
    assert len(topic.contents()) == 4
    assert (
        changed(all_of_it) == changed(first) == (f"topic flights: key compaction removed records (version {version})")
    )
    assert changed(others_range) is changed(chose_files) is None
    # A compaction that removes no record changes no rows.
    topic.roll({0: [Record(b"m", b"v", 1)]})
    unchanged = known(table, (0, 0, 7))
    compact()
    assert changed(unchanged) is None
    assert table.snapshot().version > unchanged.version
