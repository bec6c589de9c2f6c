"""Delta readers that know nothing of this project see every record once, with the documented types."""

import datetime as dt
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from logstore.delta.topic_table import RollPart, TopicTable
from tests.support.table_paths import path_of
from tests.support.topics import create_topic, empty_segment, expected_row, rewrite_files, roll, write_segment

EXPECTED = [expected_row(offset, partition) for partition in (0, 1) for offset in range(40)]
MIDDLE = dt.datetime(2023, 11, 14, 22, 13, 20, 25_000, dt.UTC)


@pytest.fixture(params=[False, True], ids=["records", "with empty segments"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> TopicTable:
    """Create a table that also has ranges without records: behind the others, and in a whole partition."""
    table = create_topic(tmp_path, partitions=3)
    for partition in (0, 1):
        for base in (0, 20):
            roll(table, partition, base, base + 20)
    if request.param:
        for partition, base in ((0, 40), (1, 40), (2, 0)):
            segment = empty_segment(table, partition, base, base + 20)
            table.commit_roll([RollPart(partition, base, base + 20, 0, (segment,))])
    table.alter_config({"retention.ms": "1"})
    return table


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


@pytest.mark.parametrize("checkpoint", [False, True])
def test_delta_rs(table: TopicTable, checkpoint: bool) -> None:
    if checkpoint:
        DeltaTable(str(path_of(table))).create_checkpoint()
    rows = DeltaTable(str(path_of(table))).to_pyarrow_table().to_pylist()
    assert ordered(rows) == EXPECTED


def test_delta_rs_skips_by_offset_and_time(table: TopicTable) -> None:
    dataset = DeltaTable(str(path_of(table))).to_pyarrow_dataset()
    for condition in (ds.field("offset") >= 20, ds.field("timestamp") >= MIDDLE):
        paths = {fragment.path for fragment in dataset.get_fragments(condition)}
        with_records = {f.path for p in (0, 1) for f in table.snapshot().segments(p) if f.num_records}
        assert len(paths & with_records) == 2
    assert dataset.filter(ds.field("timestamp") >= MIDDLE).count_rows() == 30


def test_polars(table: TopicTable) -> None:
    frame = pl.scan_delta(str(path_of(table)))
    assert ordered(frame.collect().to_dicts()) == EXPECTED
    assert frame.filter(pl.col("timestamp") >= MIDDLE).collect().height == 30
    assert frame.filter((pl.col("offset") == 7) & (pl.col("partition") == 1)).collect().to_dicts() == [
        expected_row(7, 1)
    ]


def test_duckdb(table: TopicTable) -> None:
    topic = DeltaTable(str(path_of(table))).to_pyarrow_dataset()
    connection = duckdb.connect()
    connection.register("topic", topic)
    connection.execute("SET TimeZone = 'UTC'")
    rows = connection.sql(
        'SELECT "offset", epoch_ms("timestamp"), key, value, headers, partition FROM topic ORDER BY partition, "offset"'
    ).fetchall()
    assert [row[0] for row in rows] == [row["offset"] for row in EXPECTED]
    for got, want in zip(rows, EXPECTED, strict=True):
        assert got[1] == round(want["timestamp"].timestamp() * 1000)  # type: ignore[attr-defined]
        assert (got[2], got[3], got[4], got[5]) == (want["key"], want["value"], want["headers"], want["partition"])
    found = connection.execute('SELECT count(*) FROM topic WHERE "timestamp" >= ?', [MIDDLE]).fetchone()
    assert found == (30,)


def test_a_rewrite_is_seen_as_one(table: TopicTable) -> None:
    old = [file.path for file in table.snapshot().segments(0)]
    rewrite_files(table, 0, old[:2], [write_segment(table, 0, 0, 40)], data_change=False)
    assert ordered(DeltaTable(str(path_of(table))).to_pyarrow_table().to_pylist()) == EXPECTED


def test_a_table_of_empty_segments_alone(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    table.commit_roll([RollPart(0, 0, 20, 0, (empty_segment(table, 0, 0, 20),))])
    for checkpoint in (False, True):
        if checkpoint:
            DeltaTable(str(path_of(table))).create_checkpoint()
        plain = DeltaTable(str(path_of(table)))
        assert plain.to_pyarrow_table().num_rows == 0
        assert pl.scan_delta(str(path_of(table))).filter(pl.col("offset") >= 0).collect().height == 0
        topic = plain.to_pyarrow_dataset()
        assert duckdb.connect().register("topic", topic).execute("SELECT count(*) FROM topic").fetchone() == (0,)
        assert [f.num_records for f in table.snapshot().segments(0)] == [0]
