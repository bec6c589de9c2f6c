"""A log of plain entries says the same to this project as it says to delta-rs; any other log is left to delta-rs."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.delta.actions import signed
from logstore.delta.log_entries import LogReplay
from logstore.delta.plain_entries import PlainTable
from logstore.delta.snapshot import TopicSnapshot, plain_snapshot, read_snapshot
from logstore.delta.topic_table import RollPart, TopicTable
from logstore.errors import CorruptionError
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


def shown(snapshot: TopicSnapshot) -> dict[str, object]:
    """All that a snapshot says."""
    found: dict[str, object] = {
        "version": snapshot.version,
        "location": snapshot.location,
        "topic_id": snapshot.topic_id,
        "topic_name": snapshot.topic_name,
        "overrides": snapshot.config_overrides,
        "properties": snapshot.properties,
        "protocol": snapshot.protocol,
        "partitions": snapshot.partitions,
        "transactions": snapshot.transactions,
        "paths": snapshot.paths,
        "removals": snapshot.log.removals(),
        "ranges": snapshot.ranges(),
        "foreign": snapshot.foreign_removals(),
    }
    for partition in range(snapshot.num_partitions):
        try:
            found[f"files of {partition}"] = snapshot.segments(partition)
        except CorruptionError as error:
            found[f"files of {partition}"] = str(error)
        found[f"gaps of {partition}"] = snapshot.uncovered(partition, 0)
    return found


def by_delta_rs(table: TopicTable) -> dict[str, object]:
    return shown(read_snapshot(DeltaTable(table.files.uri), LogReplay(table.files).state(), table.files.uri))


def plain(table: TopicTable) -> PlainTable | None:
    return LogReplay(table.files).state().plain


# ---- logs of ours ----------------------------------------------------------------------------------------------------


class Writer:
    """Commits of every kind to one table, as the store and its jobs make them."""

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
        """Compaction of the first file, or of that and the next if they are empty."""
        files = self.table.snapshot().segments(partition)
        old = files[:1] if not files or files[0].num_records else files[:2]
        if not old:
            return
        base, end = old[0].base_offset, old[-1].end_offset
        if len(range(base, end, step)) > sum(file.num_records for file in old) > 0:
            return  # an earlier rewrite kept fewer
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
            found = plain(writer.table)
            assert found is not None
            log = LogReplay(writer.table.files).state()
            expected = by_delta_rs(writer.table)
            assert shown(plain_snapshot(found, log, writer.table.files.uri)) == expected
            assert shown(writer.table.snapshot()) == expected
        assert shown(TopicTable.open(writer.table.files).latest) == by_delta_rs(writer.table)


def test_a_plain_log_is_read_without_delta_rs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    with monkeypatch.context() as without:
        without.setattr("deltalake.DeltaTable", None)
        assert TopicTable.open(table.files).latest.segments(0)[0].end_offset == 10
    roll(table, 0, 10, 20)
    assert table.snapshot().partitions[0].sealed == 20


# ---- logs of others --------------------------------------------------------------------------------------------------


def changed_entry(table: TopicTable, change: Callable[[list[Line]], None], version: int = 2) -> None:
    """Change an entry of ours and sign it again: it is whole, and says something that this release never does."""
    lines = [json.loads(line) for line in log_entry(table, version).read_text().splitlines()]
    change(lines)
    log_entry(table, version).write_bytes(signed(version, "\n".join(map(json.dumps, lines)).encode()))


def set_in(action: str, **fields: object) -> Callable[[list[Line]], None]:
    def change(lines: list[Line]) -> None:
        next(line[action] for line in lines if action in line).update(fields)

    return change


def with_line(line: Line) -> Callable[[list[Line]], None]:
    return lambda lines: lines.append(line)


def with_twice(action: str) -> Callable[[list[Line]], None]:
    return lambda lines: lines.append(next(line for line in lines if action in line))


def join_the_last_two(lines: list[Line]) -> None:
    last = lines.pop()
    lines[-1] |= last


VECTOR = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
OURS = "partition=0/00000000000000000010-00000000000000000020-0-00000000000000000000000000000000.parquet"
STAMP = "2020-01-01T00:00:00.000000Z"
STRANGE: dict[str, tuple[int, Callable[[list[Line]], None]]] = {
    "deletion vector": (2, set_in("add", deletionVector=VECTOR)),
    "tags": (2, set_in("add", tags={"a": "b"})),
    "row id": (2, set_in("add", baseRowId=7)),
    "field of later": (2, set_in("add", later=1)),
    "another name": (2, set_in("add", path="partition=0/part-1.parquet")),
    "encoded name": (2, set_in("add", path=OURS.replace("=", "%3D"))),
    "another partition": (2, set_in("add", partitionValues={"partition": "1"})),
    "partition of null": (2, set_in("add", partitionValues={"partition": None})),
    "no statistics": (2, set_in("add", stats=None)),
    "statistics that are none": (2, set_in("add", stats="{")),
    "no timestamps": (
        2,
        set_in("add", stats='{"numRecords":10,"minValues":{"offset":10},"maxValues":{"offset":19}}'),
    ),
    "no maximum": (
        2,
        set_in("add", stats=json.dumps({"numRecords": 10, "minValues": {"offset": 10, "timestamp": STAMP}})),
    ),
    "file twice": (2, with_twice("add")),
    "added and removed": (2, with_line({"remove": {"path": OURS, "dataChange": True}})),
    "removed of another name": (2, with_line({"remove": {"path": "part-1.parquet", "dataChange": True}})),
    "action of later": (2, with_line({"domainMetadata": {"domain": "d", "configuration": "", "removed": False}})),
    "nothing": (2, with_line({})),
    "two actions in one": (2, join_the_last_two),
    "protocol of features": (
        0,
        set_in("protocol", minReaderVersion=3, minWriterVersion=7, readerFeatures=[], writerFeatures=[]),
    ),
    "another protocol": (0, set_in("protocol", minWriterVersion=3)),
    "protocol twice": (0, with_twice("protocol")),
    "metadata twice": (0, with_twice("metaData")),
    "property of null": (
        0,
        lambda lines: next(line["metaData"] for line in lines if "metaData" in line)["configuration"].update(a=None),
    ),
    "no properties": (0, set_in("metaData", configuration=None)),
    "other partition columns": (0, set_in("metaData", partitionColumns=[])),
    "field of later in the metadata": (0, set_in("metaData", later=1)),
}


def outcome(read: Callable[[], object]) -> object:
    try:
        return read()
    except BaseException as error:  # noqa: BLE001  a Rust panic is no Exception
        return isinstance(error, BaseException)


@pytest.mark.parametrize("what", STRANGE)
def test_an_entry_with_anything_else_is_for_delta_rs_to_read(tmp_path: Path, what: str) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    roll(table, 0, 10, 20)
    if what == "added and removed":
        changed_entry(table, set_in("add", path=OURS))
    assert plain(table) is not None
    version, change = STRANGE[what]
    changed_entry(table, change, version)
    assert plain(table) is None
    files = table.files
    assert outcome(lambda: shown(TopicTable(files).snapshot())) == outcome(lambda: by_delta_rs(table))


def test_logs_that_others_wrote_to_are_for_delta_rs_to_read(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    roll(table, 0, 10, 20)
    assert plain(table) is not None
    foreign_commit(path_of(table), [], [("spark", 7)])
    assert plain(table) is None
    assert shown(table.snapshot()) == by_delta_rs(table)
    overwrite_entry(table, 3)
    assert plain(table) is None
    assert shown(table.snapshot()) == by_delta_rs(table)


def test_an_entry_without_a_digest_is_for_delta_rs_to_read(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    entry = log_entry(table, 1)
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    del lines[0]["commitInfo"]["logstore.digest"]
    entry.write_text("\n".join(map(json.dumps, lines)))
    assert plain(table) is None
    assert shown(table.snapshot()) == by_delta_rs(table)


def test_a_checkpoint_is_for_delta_rs_to_read(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    roll(table, 0, 0, 10)
    DeltaTable(table.files.uri).create_checkpoint()
    roll(table, 0, 10, 20)
    assert plain(table) is None
    assert shown(table.snapshot()) == by_delta_rs(table)


def test_a_name_of_an_earlier_release_is_for_delta_rs_to_read(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    segment = roll(table, 0, 0, 10).segments[0]
    changed_entry(table, set_in("add", path=as_earlier_release(segment)), 1)
    assert plain(table) is None
    assert shown(table.snapshot()) == by_delta_rs(table)
