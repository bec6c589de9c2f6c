"""Jobs keep the columns of a table right: they copy declared ones, derive missing ones, and carry those of others."""

import pyarrow as pa
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from compaction_jobs.jobs import run_job, topics_of
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
