"""Jobs keep the columns of a table right: they copy declared ones, derive missing ones, and carry those of others."""

import json

import pyarrow as pa
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from compaction_jobs.jobs import run_job, topics_of
from logstore.delta.columns import column_fill
from logstore.records.schema import SEGMENT_SCHEMA
from logstore.table_root import open_root
from tests.support.job_context import job_context
from tests.support.keyed_topics import KeyedTopic, Record
from tests.support.table_paths import path_of
from tests.support.typed_topics import declare

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def typed(tmp_path, hours: int = 1, **config: object) -> KeyedTopic:
    """Create a topic with files from before the columns, from between, and from after; others have added a column."""
    topic = KeyedTopic.create(tmp_path, "events", **config)
    at = NOW_MS - hours * HOUR_MS
    topic.roll({0: [Record(b"a", b'{"n": 1, "s": "x"}', at), Record(b"b", b'{"n": 2}', at)]})
    declare(topic.table, "n BIGINT")
    topic.roll({0: [Record(b"b", b'{"n": 3, "s": "y"}', at), Record(b"c", None, at), Record(b"d", b"{", at)]})
    declare(topic.table, "s STRING")
    topic.roll({0: [Record(b"e", b'{"n": 4, "s": "z"}', at), Record(b"f", b'{"n": "4"}', at)]})
    DeltaTable(str(path_of(topic.table))).alter.add_columns([Field("note", PrimitiveType("string"))])
    DeltaTable(str(path_of(topic.table))).update(updates={"note": "'seen'"}, predicate='"offset" in (1, 4)')
    for _ in range(6):
        topic.roll({0: [Record(b"g", b'{"n": 5, "s": "w"}', NOW_MS)]})
    return topic


def run(topic: KeyedTopic, job: str) -> None:
    with job_context(NOW_MS) as context:
        (report,) = run_job(job, topics_of(job, open_root(topic.data), [], {}), context).topics
    assert report.error is None
    assert report.versions


def rows_of(topic: KeyedTopic) -> dict[int, tuple[object, ...]]:
    table = DeltaTable(str(path_of(topic.table))).to_pyarrow_table().sort_by("offset")
    offsets = table["offset"].to_pylist()
    rows = table.drop_columns([*SEGMENT_SCHEMA.names, "partition"]).select(["n", "s", "value_error", "note"])
    return {at: tuple(row.values()) for at, row in zip(offsets, rows.to_pylist(), strict=True)}


MISFIT = "$.n: expected an integer, got a string"


def test_a_merge_fills_what_it_joins(tmp_path):
    topic = typed(tmp_path)
    assert rows_of(topic)[0] == (None, None, None, None), "the file is from before the columns"
    run(topic, "merge")
    rows = rows_of(topic)
    no_json = rows[4][2]
    assert no_json
    assert [rows[at] for at in range(7)] == [
        (1, "x", None, None),
        (2, None, None, "seen"),
        (3, "y", None, None),
        (None, None, None, None),
        (None, None, no_json, "seen"),
        (4, "z", None, None),
        (None, None, MISFIT, None),
    ]
    assert len(topic.table.snapshot().paths) < 9


def test_a_compaction_fills_what_it_keeps(tmp_path):
    topic = typed(tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    run(topic, "compact")
    rows = rows_of(topic)
    assert (rows[0], rows[2], rows[5]) == ((1, "x", None, None), (3, "y", None, None), (4, "z", None, None))
    assert rows[4][3] == "seen"
    assert rows[6] == (None, None, MISFIT, None)
    assert 1 not in rows


def test_the_boundary_of_retention_keeps_the_columns(tmp_path):
    topic = typed(tmp_path)
    topic.table.advance_log_start({0: 1}, {0: 1})
    run(topic, "retention")
    rows = rows_of(topic)
    assert min(rows) == 1
    assert rows[1] == (2, None, None, "seen")


def test_values_and_columns_agree_in_every_file(tmp_path):
    topic = typed(tmp_path)
    run(topic, "merge")
    table = DeltaTable(str(path_of(topic.table))).to_pyarrow_table()
    assert pa.compute.sum(table["n"]).as_py() == 1 + 2 + 3 + 4 + 6 * 5


def filled_by_job(topic: KeyedTopic, *, dry_run: bool = False):
    with job_context(NOW_MS, dry_run=dry_run) as context:
        (report,) = run_job("columns", topics_of("columns", open_root(topic.data), [], {}), context).topics
    assert report.error is None
    return report


def test_the_job_fills_every_file_newest_first_and_then_has_nothing_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("compaction_jobs.merge._LOCAL_COMMIT_BYTES", 1)
    topic = KeyedTopic.create(tmp_path, "events")
    for n in range(3):
        topic.roll({0: [Record(b"k", b'{"n": %d}' % n, NOW_MS + n)]})
    assert filled_by_job(topic).waiting[0].reason == "policy"
    declare(topic.table, "n BIGINT, tags ARRAY<STRING>, who STRUCT<name: STRING>")
    topic.roll({0: [Record(b"k", b'{"n": 3}', NOW_MS + 3)]})
    before = topic.table.snapshot()
    planned = filled_by_job(topic, dry_run=True)
    assert (planned.partitions, planned.versions) == ((0,), ())
    assert planned.bytes_needed_max == sum(file.size for file in before.segments(0)[:3])
    assert len(filled_by_job(topic).versions) == 3
    after = topic.table.snapshot()
    written = []
    for version in range(before.version + 1, after.version + 1):
        actions = [json.loads(line) for line in topic.log_entry(version)]
        (added,) = [action["add"] for action in actions if "add" in action]
        assert added["dataChange"] is False
        written.append(after.ranges()[added["path"]][1])
    assert written == [2, 1, 0]
    assert column_fill("events", after).unfilled == ()
    table = DeltaTable(str(path_of(topic.table))).to_pyarrow_table().sort_by("offset")
    assert table["n"].to_pylist() == [0, 1, 2, 3]
    again = filled_by_job(topic)
    assert (again.versions, again.waiting[0].reason) == ((), "filled")


def test_the_job_derives_files_of_other_writers_again(tmp_path):
    topic = typed(tmp_path)
    fill = column_fill("events", topic.table.snapshot())
    assert fill.unfilled_records == 5, "an UPDATE has written them"
    filled_by_job(topic)
    assert column_fill("events", topic.table.snapshot()).unfilled == ()
    rows = rows_of(topic)
    assert (rows[0], rows[1], rows[4][3]) == ((1, "x", None, None), (2, None, None, "seen"), "seen")
    assert topic.contents(0).keys() == set(range(13))
