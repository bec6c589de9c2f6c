"""Declared columns are fields of the table's schema; a change is one metadata commit."""

import datetime as dt
import decimal
import json
import pickle
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from compaction_jobs.segment_tasks import written_from_row
from logstore.delta.columns import ColumnChange, column_fill, layout_of, table_columns
from logstore.delta.topic_table import TopicTable
from logstore.errors import InvalidConfigError
from logstore.records.columns.declaration import parse_columns
from logstore.records.schema import SEGMENT_SCHEMA
from logstore.segments.layout import PLAIN_LAYOUT
from logstore.segments.merge import Written
from logstore.segments.reader import read_footer, segment_from_file
from tests.support.table_paths import path_of
from tests.support.topics import joined, rewrite_files
from tests.support.typed_topics import ALL_KINDS, batch_of, declare, roll_values, segment_of, typed_topic

ONE = {
    "b": True,
    "n": 7,
    "x": 1.5,
    "price": 12.25,
    "s": "é",
    "t": "2024-02-29T12:00:00.123456Z",
    "ms": 1_700_000_000_123,
    "d": "2024-02-29",
    "user": {"city": "Oslo"},
    "who": {"name": "ada", "age": 36},
    "tags": ["a", None],
}
ROW = {
    "b": True,
    "n": 7,
    "x": 1.5,
    "price": decimal.Decimal("12.25"),
    "s": "é",
    "t": dt.datetime(2024, 2, 29, 12, 0, 0, 123_456, dt.UTC),
    "ms": dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, dt.UTC),
    "d": dt.date(2024, 2, 29),
    "city": "Oslo",
    "who": {"name": "ada", "age": 36},
    "tags": ["a", None],
    "value_error": None,
}


def columns_of(table: TopicTable) -> list[dict[str, Any]]:
    """Return the columns beside the log's, by offset."""
    rows = DeltaTable(str(path_of(table))).to_pyarrow_table().sort_by("offset")
    return rows.drop_columns([*SEGMENT_SCHEMA.names, "partition"]).to_pylist()


def metadata(table: TopicTable) -> dict[str, dict[str, Any]]:
    schema = json.loads(table.snapshot().table.meta_data.schema_string or "")
    return {field["name"]: field["metadata"] for field in schema["fields"]}


def stats(table: TopicTable) -> list[dict[str, Any]]:
    """Return the statistics of all add actions."""
    log = [path_of(table) / "_delta_log" / f"{version:020}.json" for version in range(table.snapshot().version + 1)]
    actions = [json.loads(line) for entry in log for line in entry.read_text().splitlines()]
    return [json.loads(action["add"]["stats"]) for action in actions if "add" in action]


def test_columns_of_every_kind_are_read_by_plain_readers(tmp_path: Path) -> None:
    table = typed_topic(tmp_path, ALL_KINDS)
    roll_values(table, [ONE, None, b"no json", {"n": "seven"}, {}])
    nothing = dict.fromkeys(ROW)
    found = columns_of(table)
    assert found[0] == ROW
    assert found[1] == nothing
    assert found[4] == nothing
    assert [set(row.values()) - {None} for row in found[2:4]] == [{row["value_error"]} for row in found[2:4]]
    assert found[3]["value_error"] == "$.n: expected an integer, got a string"
    frame = pl.scan_delta(str(path_of(table))).sort("offset").select(list(ROW)).collect()
    assert frame.to_dicts() == found
    snapshot = table.snapshot()
    assert (snapshot.table.protocol.min_reader_version, snapshot.table.protocol.min_writer_version) == (1, 2)


def test_the_schema_is_the_tables_own(tmp_path: Path) -> None:
    table = typed_topic(tmp_path, "city STRING FROM user.city, offset BIGINT, odd DOUBLE FROM `a.b`.c")
    assert {name: told for name, told in metadata(table).items() if told} == {
        "city": {"logstore.field": "user.city", "logstore.conversion": "string"},
        "value_offset": {"logstore.field": "offset", "logstore.conversion": "bigint"},
        "odd": {"logstore.field": "`a.b`.c", "logstore.conversion": "double"},
        "value_error": {"logstore.conversion": "reason"},
    }
    again = TopicTable.open(table.files).snapshot()
    columns = table_columns("t", again.table.meta_data).columns
    assert [(column.name, column.path) for column in columns] == [
        ("city", ("user", "city")),
        ("value_offset", ("offset",)),
        ("odd", ("a.b", "c")),
    ]
    assert again.config_overrides["table.columns.mode"] == "declared"
    assert again.properties["delta.dataSkippingStatsColumns"] == "offset,timestamp,city,value_offset,odd,value_error"


def test_a_topic_without_columns_has_the_plain_layout(tmp_path: Path) -> None:
    table = typed_topic(tmp_path)
    assert layout_of("t", table.snapshot()) is PLAIN_LAYOUT
    assert roll_values(table, [ONE]).columns == ()


def test_adding_a_column_again_changes_nothing(tmp_path: Path) -> None:
    table = typed_topic(tmp_path, "n BIGINT")
    version = table.snapshot().version
    assert table.change_columns(ColumnChange(parse_columns("n bigint from n"))) is None
    assert table.snapshot().version == version


def test_a_column_never_changes_its_type_or_its_field(tmp_path: Path) -> None:
    table = typed_topic(tmp_path, "n BIGINT, ms EPOCH_MS")
    for other in ("n STRING", "n BIGINT FROM m", "ms EPOCH_S"):
        with pytest.raises(InvalidConfigError, match=r"that never changes. Declare a new column instead: \w+_2 "):
            declare(table, other)


def test_a_retired_column_keeps_its_values_and_its_name(tmp_path: Path) -> None:
    table = typed_topic(tmp_path, "n BIGINT, s STRING")
    roll_values(table, [{"n": 1, "s": "a"}])
    table.change_columns(ColumnChange(retired=("s",)))
    assert table.change_columns(ColumnChange(retired=("s",))) is None
    roll_values(table, [{"n": 2, "s": "b"}])
    expected = [{"n": 1, "s": "a", "value_error": None}, {"n": 2, "s": None, "value_error": None}]
    assert columns_of(table) == expected
    merge(table)
    assert columns_of(table) == expected, "a merge keeps what older files have"
    with pytest.raises(InvalidConfigError, match="column s is s STRING, and that never changes"):
        declare(table, "s DOUBLE")
    declare(table, "s STRING")
    roll_values(table, [{"s": "c"}])
    assert [row["s"] for row in columns_of(table)] == ["a", None, "c"]
    with pytest.raises(InvalidConfigError, match="'x' is not a declared column that can be retired: those are n, s"):
        table.change_columns(ColumnChange(retired=("x",)))


def test_set_retires_what_is_not_declared(tmp_path: Path) -> None:
    table = typed_topic(tmp_path, "n BIGINT, s STRING")
    changed = table.change_columns(ColumnChange(parse_columns("n BIGINT, b BOOLEAN"), is_whole=True))
    assert changed is not None
    assert [column.name for column in changed.added] == ["b"]
    assert [column.name for column in changed.retired] == ["s"]
    told = table_columns("t", table.snapshot().table.meta_data)
    assert [column.name for column in told.columns] == ["n", "b"]
    assert table.snapshot().properties["delta.dataSkippingStatsColumns"] == "offset,timestamp,n,value_error"


def test_without_the_mode_columns_are_not_derived_and_what_is_there_stays(tmp_path: Path) -> None:
    table = typed_topic(tmp_path, "n BIGINT")
    roll_values(table, [{"n": 1}])
    table.alter_config({"table.columns.mode": "none"})
    assert "n" not in pq.read_schema(path_of(table) / roll_values(table, [{"n": 2}]).path).names
    merge(table)
    assert [row["n"] for row in columns_of(table)] == [1, None]


def test_others_columns_of_these_names_are_refused(tmp_path: Path) -> None:
    table = typed_topic(tmp_path)
    add_column(table, "theirs")
    for name in ("theirs", "THEIRS"):
        with pytest.raises(InvalidConfigError, match=r"declare value_(theirs|THEIRS) BIGINT FROM"):
            declare(table, f"{name} BIGINT")
    add_column(table, "value_error")
    with pytest.raises(InvalidConfigError, match="has a column value_error of another writer"):
        declare(table, "n BIGINT")


def test_metadata_that_says_something_impossible_stops_one_column(tmp_path: Path) -> None:
    table = typed_topic(tmp_path, "n BIGINT, s STRING")
    for change in (
        {"logstore.conversion": "string"},
        {"logstore.conversion": "nonsense"},
        {"logstore.field": ""},
        {"logstore.field": 5},
        {"logstore.field": "s"},
    ):
        edit_metadata(table, "n", {"logstore.field": "n", "logstore.conversion": "bigint"} | change)
        told = table_columns("t", table.snapshot().table.meta_data)
        assert [column.name for column in told.columns] in (["s"], ["n"])
        assert len(told.problems) == 1
        assert "is not derived" in told.problems[0]
        roll_values(table, [{"s": "a", "n": 1}])


def test_add_actions_have_the_statistics_of_scalar_columns(tmp_path: Path) -> None:
    table = typed_topic(tmp_path, ALL_KINDS)
    long = "x" * 31 + "é\U0010ffff" + "y" * 10
    segment = roll_values(table, [ONE, {"s": long, "n": -(2**63), "x": -0.0, "d": "0001-01-01"}, None, b"{"])
    (told,) = stats(table)
    assert told["nullCount"] == {
        "offset": 0,
        "timestamp": 0,
        "b": 3,
        "n": 2,
        "x": 2,
        "price": 3,
        "s": 2,
        "t": 3,
        "ms": 3,
        "d": 2,
        "city": 3,
        "who": {"name": 3, "age": 3},
        "tags": 3,
        "value_error": 3,
    }
    assert told["minValues"] | {"offset": 0, "timestamp": ""} == {
        "offset": 0,
        "timestamp": "",
        "n": -(2**63),
        "x": 0.0,
        "price": 12.25,
        "s": "x" * 31 + "é",
        "t": "2024-02-29T12:00:00.123456Z",
        "ms": "2023-11-14T22:13:20.123000Z",
        "d": "0001-01-01",
        "city": "Oslo",
    }
    assert told["maxValues"]["s"] == "é"
    assert told["maxValues"]["x"] == 1.5
    assert "b" not in told["maxValues"]
    assert segment_from_file(table.files, segment.path).columns == tuple(
        column for column in segment.columns if column.path != ("tags",)
    )


@pytest.mark.parametrize("checkpoint", [False, True])
def test_readers_skip_files_by_columns(tmp_path: Path, checkpoint: bool) -> None:
    table = typed_topic(tmp_path, ALL_KINDS)
    values = [
        {"n": n, "s": chr(97 + n) * 40, "price": n + 0.25, "d": f"2024-01-0{n + 1}", "x": n / 2} for n in range(4)
    ]
    for value in values:
        roll_values(table, [value | {"t": f"{value['d']}T00:00:00Z"}, None])
    if checkpoint:
        DeltaTable(str(path_of(table))).create_checkpoint()
    dataset = DeltaTable(str(path_of(table))).to_pyarrow_dataset()
    for condition in (
        ds.field("n") == 2,
        ds.field("s") == "c" * 40,
        ds.field("d") == dt.date(2024, 1, 3),
        ds.field("x") == 1.0,
        ds.field("t") == dt.datetime(2024, 1, 3, tzinfo=dt.UTC),
    ):
        assert len(list(dataset.get_fragments(condition))) == 1, condition
        assert dataset.filter(condition).to_table()["n"].to_pylist() == [2]


def test_a_merge_copies_the_columns_of_files_with_the_same_schema_and_derives_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = typed_topic(tmp_path, "n BIGINT")
    roll_values(table, [{"n": 1, "s": "a"}])
    declare(table, "s STRING")
    roll_values(table, [{"n": 2, "s": "b"}, None, b"{"])
    derived: list[int] = []
    from logstore.segments import layout

    original = layout.derive
    monkeypatch.setattr(
        layout, "derive", lambda schema, values: (derived.append(len(values)), original(schema, values))[1]
    )
    merge(table)
    assert derived == [1], "only the file from before is derived"
    rows = columns_of(table)
    assert [(row["n"], row["s"]) for row in rows] == [(1, "a"), (2, "b"), (None, None), (None, None)]
    assert rows[3]["value_error"]
    (path,) = table.snapshot().paths
    footer = read_footer(table.files, path)
    assert footer.columns == layout_of("t", table.snapshot()).fingerprint
    assert stats(table)[-1]["nullCount"] == {"offset": 0, "timestamp": 0, "n": 2, "s": 2, "value_error": 3}


@pytest.mark.parametrize("columns", ["", "n BIGINT"])
def test_a_merge_carries_the_columns_of_others(tmp_path: Path, columns: str) -> None:
    table = typed_topic(tmp_path, columns)
    roll_values(table, [{"n": 1}, {"n": 2}])
    add_column(table, "note")
    DeltaTable(str(path_of(table))).update(updates={"note": "'seen'"}, predicate='"offset" = 1')
    roll_values(table, [{"n": 3}])
    before = DeltaTable(str(path_of(table))).to_pyarrow_table().sort_by("offset")
    assert before["note"].to_pylist() == [None, "seen", None]
    merge(table)
    assert DeltaTable(str(path_of(table))).to_pyarrow_table().sort_by("offset").equals(before)
    assert len(table.snapshot().paths) == 1
    assert "note" not in stats(table)[-1]["nullCount"]
    roll_values(table, [{"n": 4}])
    merge(table)
    assert columns_of(table)[1]["note"] == "seen"


def test_columns_that_rewrites_cannot_carry_are_named(tmp_path: Path) -> None:
    table = typed_topic(tmp_path, "n BIGINT")
    schema = json.loads(table.snapshot().table.meta_data.schema_string or "")
    for name, kind in (("a.b", "string"), ("", "string"), ("v", "variant"), ("i", "interval")):
        schema["fields"].append({"name": name, "type": kind, "nullable": True, "metadata": {}})
    meta_data = msgspec.structs.replace(table.snapshot().table.meta_data, schema_string=json.dumps(schema))
    told = table_columns("t", meta_data)
    assert (len(told.problems), told.others.names, len(told.columns)) == (4, [], 1)
    assert all("a merge or a compaction drops what it has" in problem for problem in told.problems)


def test_a_segment_and_a_task_travel_to_executors_and_back(tmp_path: Path) -> None:
    table = typed_topic(tmp_path, ALL_KINDS)
    segment = roll_values(table, [ONE, {"n": -(2**63), "s": "x" * 40, "x": 1e300}, b"{"])
    assert written_from_row(3, 1, msgspec.json.encode(segment).decode()) == Written(3, 1, segment)
    layout = layout_of("t", table.snapshot())
    there = pickle.loads(pickle.dumps(layout))
    assert there == layout
    batch = batch_of([ONE, b"{"])
    assert there.with_columns(batch).equals(layout.with_columns(batch))


def test_value_wins_over_an_updated_column_at_the_next_merge(tmp_path: Path) -> None:
    table = typed_topic(tmp_path, "n BIGINT")
    roll_values(table, [{"n": 1}, {"n": 2}])
    roll_values(table, [{"n": 3}])
    DeltaTable(str(path_of(table))).update(updates={"n": "40"}, predicate="n = 2")
    assert [row["n"] for row in columns_of(table)] == [1, 40, 3]
    merge(table)
    assert [row["n"] for row in columns_of(table)] == [1, 2, 3]


def test_a_roll_under_way_with_the_schema_before_is_good(tmp_path: Path) -> None:
    from logstore.delta.topic_table import RollPart

    table = typed_topic(tmp_path, "n BIGINT")
    segment = segment_of(table, [{"n": 1, "s": "a"}], 0)
    declare(table, "s STRING")
    assert table.commit_roll([RollPart(0, 0, 1, 1, (segment,))]).committed == (0,)
    roll_values(table, [{"n": 2, "s": "b"}])
    assert [(row["n"], row["s"]) for row in columns_of(table)] == [(1, None), (2, "b")]
    first, second = stats(table)
    assert "s" not in first["nullCount"]
    assert second["nullCount"]["s"] == 0


def test_a_schema_that_was_restored_counts(tmp_path: Path) -> None:
    table = typed_topic(tmp_path, "n BIGINT")
    roll_values(table, [{"n": 1}])
    version = table.snapshot().version
    declare(table, "s STRING")
    delta = DeltaTable(str(path_of(table)))
    delta.restore(version)
    assert [c.name for c in table_columns("t", table.snapshot().table.meta_data).columns] == ["n"]
    roll_values(table, [{"n": 2, "s": "b"}])
    assert columns_of(table) == [{"n": n, "value_error": None} for n in (1, 2)]


def test_at_most_32_columns_have_bounds(tmp_path: Path) -> None:
    table = typed_topic(tmp_path, ", ".join(f"c{n} BIGINT" for n in range(40)))
    listed = table.snapshot().properties["delta.dataSkippingStatsColumns"].split(",")
    assert len(listed) == 32
    roll_values(table, [{f"c{n}": n for n in range(40)}])
    (told,) = stats(table)
    assert set(told["minValues"]) == set(listed) - {"value_error"}
    assert set(told["nullCount"]) >= {f"c{n}" for n in range(40)}


@pytest.mark.parametrize("structs", [False, True])
def test_the_log_counts_misfits_and_unfilled_files_also_from_a_checkpoint(tmp_path: Path, structs: bool) -> None:
    table = typed_topic(tmp_path)
    roll_values(table, [{"n": 1}])
    declare(table, "n BIGINT, tags ARRAY<STRING>")
    if structs:
        properties = {"delta.checkpoint.writeStatsAsStruct": "true"}
        DeltaTable(str(path_of(table))).alter.set_table_properties(properties, raise_if_not_exists=False)
    roll_values(table, [{"n": 1}, {"n": "1"}, b"{", None])
    before = column_fill("t", table.snapshot())
    assert (before.misfits, before.unfilled_records, len(before.unfilled)) == (2, 1, 1)
    table.checkpoint()
    for entry in (path_of(table) / "_delta_log").glob("*.json"):
        if int(entry.name[:20]) < table.snapshot().version:
            entry.unlink()
    again = column_fill("t", TopicTable.open(table.files).snapshot())
    assert (again.misfits, again.unfilled) == (before.misfits, before.unfilled)


def merge(table: TopicTable) -> None:
    files = table.snapshot().segments(0)
    removes = [path for file in files for path in file.paths]
    rewrite_files(table, 0, [file.path for file in files], [joined(table, files)], data_change=False)
    assert not table.snapshot().paths & set(removes)


def add_column(table: TopicTable, name: str) -> None:
    DeltaTable(str(path_of(table))).alter.add_columns([Field(name, PrimitiveType("string"))])


def edit_metadata(table: TopicTable, name: str, told: dict[str, Any]) -> None:
    """Commit other metadata of a column, as another writer."""
    version = table.snapshot().version
    meta_data = table.snapshot().table.meta_data
    schema = json.loads(meta_data.schema_string or "")
    next(field for field in schema["fields"] if field["name"] == name)["metadata"] = told
    action = {
        "id": meta_data.id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": ["partition"],
        "configuration": meta_data.configuration,
    }
    lines = [{"commitInfo": {"operation": "CHANGE COLUMN"}}, {"metaData": action}]
    entry = path_of(table) / "_delta_log" / f"{version + 1:020}.json"
    entry.write_text("\n".join(map(json.dumps, lines)))
