"""A log means the same to this project and to delta-rs, whichever program wrote to it."""

import datetime as dt
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.delta.actions import signed
from logstore.delta.log_entries import LogReplay
from logstore.delta.topic_table import RollPart, TopicTable
from logstore.spark.history_check import table_id
from tests.support import foreign_writers as others
from tests.support import table_features as features
from tests.support.table_paths import path_of
from tests.support.topics import (
    as_earlier_release,
    create_topic,
    empty_segment,
    foreign_commit,
    log_entry,
    overwrite_entry,
    rewrite_files,
    roll,
    write_segment,
)

Line = dict[str, Any]


def by_delta_rs(table: TopicTable) -> dict[str, object]:
    """Return the table as delta-rs reads it; None is a field that the action lacks."""
    read = DeltaTable(table.files.uri)
    columns = ["path", "size_bytes", "num_records", "partition.partition"]
    columns += [f"{bound}.{name}" for bound in ("min", "max") for name in ("offset", "timestamp")]
    rows = pa.table(read.get_add_actions(flatten=True)).to_pylist()
    return {
        "version": read.version(),
        "id": str(read.metadata().id),
        "properties": dict(read.metadata().configuration),
        "protocol": (read.protocol().min_reader_version, read.protocol().min_writer_version),
        "files": sorted([row.get(name) for name in columns] for row in rows),
    }


def replayed(table: TopicTable) -> dict[str, object]:
    log = LogReplay(table.files).state()
    state = log.table
    assert state is not None
    files = [
        [
            *(f.path, f.size, f.num_records, f.partition),
            *(f.min_offset, moment(f.min_timestamp_us), f.max_offset, moment(f.max_timestamp_us)),
        ]
        for f in state.files
    ]
    return {
        "version": log.version,
        "id": state.meta_data.id,
        "properties": state.properties,
        "protocol": (state.protocol.min_reader_version, state.protocol.min_writer_version),
        "files": sorted(files),
    }


def moment(timestamp_us: int | None) -> dt.datetime | None:
    return (
        None
        if timestamp_us is None
        else dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=timestamp_us)
    )


# ---- logs of ours ----------------------------------------------------------------------------------------------------


class Writer:
    """A writer of all kinds of commits to one table, as the store and its jobs make them."""

    def __init__(self, directory: Path) -> None:
        self.table = create_topic(directory, partitions=2)
        self.epoch = 0

    def roll(self, partition: int, size: int, *, records: bool) -> None:
        begin = self.table.snapshot().partitions[partition].sealed
        self.epoch += 1
        if records:
            roll(self.table, partition, begin, begin + size, self.epoch)
            return
        segment = empty_segment(self.table, partition, begin, begin + size, self.epoch)
        self.table.commit_roll([RollPart(partition, begin, begin + size, self.epoch, (segment,))])

    def rewrite(self, partition: int, step: int) -> None:
        """Compact the first file, or that and the next if they are empty."""
        files = self.table.snapshot().segments(partition)
        old = files[:1] if not files or files[0].num_records else files[:2]
        if not old:
            return
        base, end = old[0].base_offset, old[-1].end_offset
        if len(range(base, end, step)) > sum(file.num_records for file in old) > 0:
            return  # an earlier rewrite kept fewer records
        if all(file.num_records for file in old):
            new = write_segment(self.table, partition, base, end, self.epoch, step=step)
        elif any(file.num_records for file in old):
            return
        else:
            new = empty_segment(self.table, partition, base, end, self.epoch)
        rewrite_files(self.table, partition, [file.path for file in old], [new], data_change=False)

    def retire(self, partition: int) -> None:
        files = self.table.snapshot().segments(partition)
        if len(files) > 1:
            end = files[0].end_offset
            rewrite_files(
                self.table, partition, [files[0].path], [], data_change=True, log_start=end, operation="retention"
            )

    def alter(self, key: str, value: str | None) -> None:
        self.table.alter_config({key: value})

    def grow(self) -> None:
        self.table.add_partitions(self.table.snapshot().num_partitions + 1)

    def advance(self, partition: int) -> None:
        sealed = self.table.snapshot().partitions[partition].sealed
        self.table.advance_log_start({partition: sealed // 2}, {partition: self.epoch})


partitions = st.integers(0, 1)
changes = st.lists(
    st.one_of(
        st.builds(
            lambda p, size, records: lambda w: w.roll(p, size, records=records),
            partitions,
            st.integers(1, 40),
            st.booleans(),
        ),
        st.builds(lambda p, step: lambda w: w.rewrite(p, step), partitions, st.integers(1, 50)),
        st.builds(lambda p: lambda w: w.retire(p), partitions),
        st.builds(
            lambda key, value: lambda w: w.alter(key, value),
            st.sampled_from(["retention.ms", "segment.bytes"]),
            st.sampled_from(["1000000", 'a "quoted" ß', None]),
        ),
        st.just(Writer.grow),
        st.builds(lambda p: lambda w: w.advance(p), partitions),
    ),
    max_size=10,
)


@settings(max_examples=25, deadline=None)
@given(changes=changes)
def test_a_log_of_ours_says_the_same_as_to_delta_rs(changes: list[Callable[[Writer], None]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        writer = Writer(Path(directory))
        for change in changes:
            change(writer)
            assert replayed(writer.table) == by_delta_rs(writer.table)
        assert TopicTable.open(writer.table.files).latest.table == LogReplay(writer.table.files).state().table


# ---- logs of others --------------------------------------------------------------------------------------------------


def changed_entry(table: TopicTable, change: Callable[[list[Line]], None], version: int = 2) -> None:
    """Change an entry of ours and sign it again: it is whole, but says something that this release never writes."""
    lines = [json.loads(line) for line in log_entry(table, version).read_text().splitlines()]
    change(lines)
    log_entry(table, version).write_bytes(signed(version, "\n".join(map(json.dumps, lines)).encode()))


def set_in(action: str, **fields: object) -> Callable[[list[Line]], None]:
    def change(lines: list[Line]) -> None:
        next(line[action] for line in lines if action in line).update(fields)

    return change


def with_times(low: str, high: str) -> str:
    bounds = {"minValues": {"offset": 10, "timestamp": low}, "maxValues": {"offset": 19, "timestamp": high}}
    return json.dumps({"numRecords": 10, **bounds})


def with_line(line: Line) -> Callable[[list[Line]], None]:
    return lambda lines: lines.append(line)


OURS = "partition=0/00000000000000000010-00000000000000000020-0-00000000000000000000000000000000.parquet"
STAMP = "2020-01-01T00:00:00.000000Z"
STRANGE: dict[str, tuple[int, Callable[[list[Line]], None]]] = {
    "tags": (2, set_in("add", tags={"a": "b"})),
    "row id": (2, set_in("add", baseRowId=7)),
    "field of later": (2, set_in("add", later=1)),
    "another name": (2, set_in("add", path="partition=0/part-1.parquet")),
    "another partition": (2, set_in("add", partitionValues={"partition": "1"})),
    "no statistics": (2, set_in("add", stats=None)),
    "timestamp in a zone": (
        2,
        set_in("add", stats=with_times("2020-01-01T02:00:00.123456+02:00", "2020-01-01T00:00:01Z")),
    ),
    "timestamp of milliseconds": (2, set_in("add", stats=with_times("2020-01-01T00:00:00.120Z", STAMP))),
    "no timestamps": (
        2,
        set_in("add", stats='{"numRecords":10,"minValues":{"offset":10},"maxValues":{"offset":19}}'),
    ),
    "removed of another name": (2, with_line({"remove": {"path": "part-1.parquet", "dataChange": True}})),
    "action of later": (2, with_line({"domainMetadata": {"domain": "d", "configuration": "", "removed": False}})),
    "protocol of features": (
        0,
        set_in("protocol", minReaderVersion=3, minWriterVersion=7, readerFeatures=[], writerFeatures=[]),
    ),
    "another protocol": (0, set_in("protocol", minWriterVersion=3)),
    "field of later in the metadata": (0, set_in("metaData", later=1)),
}


@pytest.mark.parametrize("what", STRANGE)
def test_an_entry_with_anything_else_says_the_same_as_to_delta_rs(tmp_path: Path, what: str) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    roll(table, 0, 10, 20)
    version, change = STRANGE[what]
    changed_entry(table, change, version)
    assert replayed(table) == by_delta_rs(table)


def test_logs_that_restwrote_to_say_the_same_as_to_delta_rs(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    roll(table, 0, 10, 20)
    foreign_commit(path_of(table), [], [("spark", 7)])
    others.delete(path_of(table), "offset = 3")
    others.append(path_of(table), [30, 31])
    assert replayed(table) == by_delta_rs(table)
    DeltaTable(table.files.uri).create_checkpoint()
    assert replayed(table) == by_delta_rs(table)
    overwrite_entry(table, 2)
    others.optimize(path_of(table))
    assert replayed(table) == by_delta_rs(table)


@pytest.mark.parametrize("ours", [True, False], ids=["of ours", "of others"])
def test_a_checkpoint_says_the_same_as_to_delta_rs(tmp_path: Path, ours: bool) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    DeltaTable(table.files.uri).create_checkpoint()
    if ours:
        TopicTable.recover(table.files)
    log_entry(table, 0).unlink()
    roll(table, 0, 10, 20)
    assert replayed(table) == by_delta_rs(table)


def test_statistics_of_a_checkpoint_that_has_them_as_columns(tmp_path: Path) -> None:
    """Write statistics as Spark does with ``delta.checkpoint.writeStatsAsStruct``."""
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    expected = replayed(table)
    DeltaTable(table.files.uri).create_checkpoint()
    path = path_of(table) / "_delta_log" / f"{1:020d}.checkpoint.parquet"
    rows = pq.read_table(path).to_pylist(maps_as_pydicts="strict")
    for row in rows:
        if (add := row["add"]) is not None:
            add["stats_parsed"] = json.loads(add.pop("stats"))
            for bounds in (add["stats_parsed"]["minValues"], add["stats_parsed"]["maxValues"]):
                bounds["timestamp"] = dt.datetime.fromisoformat(bounds["timestamp"])
        for name in ("add", "metaData", "remove"):
            for field in ("partitionValues", "configuration", "options"):
                if row.get(name) and isinstance(row[name].get(field), dict):
                    row[name][field] = list(row[name][field].items())
    schema = pq.read_schema(path)
    bounds = pa.struct([("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC"))])
    parsed = pa.struct([("numRecords", pa.int64()), ("minValues", bounds), ("maxValues", bounds)])
    fields = [field for field in schema.field("add").type if field.name != "stats"]
    adds = pa.struct([*fields, pa.field("stats_parsed", parsed)])
    schema = schema.set(schema.get_field_index("add"), pa.field("add", adds))
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    assert replayed(table) == expected


@pytest.mark.parametrize("top", ["json", "parquet"])
def test_a_v2_checkpoint_with_sidecars_says_the_same(tmp_path: Path, top: str) -> None:
    """Write a checkpoint as Spark does with ``delta.checkpointPolicy`` = v2, and clean the log up."""
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    roll(table, 0, 10, 20)
    features.turn_on(path_of(table), "v2Checkpoint")
    expected = table.snapshot()
    log = path_of(table) / "_delta_log"
    DeltaTable(table.files.uri).create_checkpoint()
    (classic,) = log.glob("*.checkpoint.parquet")
    rows = pq.read_table(classic)
    sidecar = log / "_sidecars" / "s1.parquet"
    sidecar.parent.mkdir()
    pq.write_table(rows.filter(rows["add"].is_valid()), sidecar)
    rest = rows.filter(rows["add"].is_null()).select([name for name in rows.column_names if name != "sidecar"])
    part = {"path": "s1.parquet", "sizeInBytes": sidecar.stat().st_size, "modificationTime": 1, "tags": None}
    name = log / f"{3:020d}.checkpoint.{'0' * 8}-0000-4000-8000-{'0' * 12}.{top}"
    if top == "json":
        lines = [
            {key: _plain(value) for key, value in row.items() if value is not None and key != "remove"}
            for row in rest.to_pylist(maps_as_pydicts="strict")
        ]
        name.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"sidecar": part}]))
    else:
        kind = pa.struct([("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64())])
        column = pa.array([None] * rest.num_rows + [part], kind)
        blank = pa.Table.from_pylist([{}], rest.schema)
        pq.write_table(pa.concat_tables([rest, blank]).append_column("sidecar", column), name)
    classic.unlink()
    (log / "_last_checkpoint").unlink()
    for entry in log.glob("*.json"):
        if len(entry.name) == 25:
            entry.unlink()
    again = TopicTable.open(table.files)
    assert again.latest.segments(0) == expected.segments(0)
    assert again.latest.partitions == expected.partitions
    assert again.latest.properties == expected.properties
    assert table_id(table.files.uri) == str(expected.topic_id)


def _plain(value: Any) -> Any:
    """Return ``value`` without nulls."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items() if part is not None}
    return value


def test_a_name_of_an_earlier_release(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    segment = roll(table, 0, 0, 10).segments[0]
    changed_entry(table, set_in("add", path=as_earlier_release(segment)), 1)
    assert replayed(table) == by_delta_rs(table)
    (path_of(table) / segment.path).rename(path_of(table) / as_earlier_release(segment))
    assert [file.end_offset for file in table.snapshot().segments(0)] == [10]
