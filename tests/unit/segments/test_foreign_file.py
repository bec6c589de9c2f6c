"""Files of other writers are read as segments."""

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import CorruptionError
from logstore.records.schema import LOG_SCHEMA, SEGMENT_SCHEMA
from logstore.segments import foreign_file
from logstore.segments.foreign_file import read_offset_runs
from logstore.segments.foreign_names import joined_name
from logstore.segments.reader import read_footer, read_row_group, row_group_batches, row_groups
from logstore.segments.row_group_files import row_group_files
from logstore.segments.writer import SegmentWriter
from logstore.table_files import TableFiles, open_table
from tests.support.topics import log_batch


@pytest.fixture
def files(tmp_path: Path) -> TableFiles:
    (tmp_path / "partition=0").mkdir()
    return open_table(tmp_path)


def write(files: TableFiles, name: str, rows: pa.Table, **options) -> str:
    path = f"partition=0/{name}.parquet"
    pq.write_table(rows, Path(files.uri) / path, **options)
    return path


def rows_of(offsets: list[int]) -> pa.Table:
    return pa.Table.from_batches([log_batch(offsets)])


def read(files: TableFiles, name: str) -> pa.Table:
    """Return all records, after checking that a read in parts and the index agree with them."""
    whole, parts = [], []
    for group in row_groups(files, name):
        batch = read_row_group(files, name, group.index)
        offsets = batch["offset"].to_pylist()
        assert (group.first_offset, group.last_offset, group.num_rows) == (offsets[0], offsets[-1], len(offsets))
        times = batch["timestamp"].cast(pa.int64()).to_pylist()
        assert (group.min_timestamp_ms, group.max_timestamp_ms) == (min(times), max(times))
        whole.append(batch)
        parts += row_group_batches(files, name, group)
    table = pa.Table.from_batches(whole, LOG_SCHEMA)
    assert pa.Table.from_batches(parts, LOG_SCHEMA).equals(table)
    return table


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=60, unique=True), min_size=1, max_size=3),
    st.integers(1, 40),
    st.integers(1, 30),
    st.integers(0, 200),
    st.integers(1, 200),
)
def test_records_of_any_order_are_read_by_rising_offset(
    tmp_path_factory, groups: list[list[int]], row_group_size: int, run_rows: int, start: int, length: int
) -> None:
    root = tmp_path_factory.mktemp("t")
    (root / "partition=0").mkdir()
    files = open_table(root)
    seen: set[int] = set()
    names = []
    for number, offsets in enumerate(groups):
        own = [offset for offset in offsets if offset not in seen]
        seen.update(own)
        if own:
            names.append(write(files, str(number), rows_of(own), row_group_size=row_group_size))
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(foreign_file, "ROW_GROUP_ROWS_MAX", run_rows)
                assert read(files, names[-1]).equals(rows_of(sorted(own)))
            runs = read_offset_runs(files, names[-1])
            held = {o for a, b in zip(runs.starts.tolist(), runs.ends.tolist(), strict=True) for o in range(a, b)}
            assert held == set(own)
    inside = sorted(offset for offset in seen if start <= offset < start + length)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(foreign_file, "ROW_GROUP_ROWS_MAX", run_rows)
        assert read(files, joined_name(tuple(names), start, start + length)).equals(rows_of(inside))


@pytest.mark.parametrize("bounds", [None, (0, 10)])
def test_an_offset_that_a_file_has_twice_is_refused(files: TableFiles, bounds: tuple[int, int] | None) -> None:
    path = write(files, "x", rows_of([3, 4, 5, 4]))
    with pytest.raises(CorruptionError, match=r"x\.parquet was written by another writer.* offset 4 twice"):
        row_groups(files, path if bounds is None else joined_name((path,), *bounds))
    with pytest.raises(CorruptionError, match="offset 4 twice"):
        read_offset_runs(files, path)


def test_timestamps_and_text_of_other_writers(files: TableFiles) -> None:
    """Read INT96 and a partition column, as Spark writes them, and files with missing columns or with text."""
    moment = dt.datetime(2026, 11, 22, 1, 2, 3, 456_789, tzinfo=dt.UTC)
    spark = pa.table(
        {
            "timestamp": pa.array([moment], pa.timestamp("us", "UTC")),
            "value": ["text"],
            "offset": pa.array([7], pa.int64()),
            "partition": pa.array([0], pa.int32()),
            "another": [1],
        }
    )
    path = write(files, "x", spark, use_deprecated_int96_timestamps=True)
    (row,) = read(files, path).to_pylist()
    assert row == {
        "offset": 7,
        "timestamp": moment.replace(microsecond=456_000),
        "key": None,
        "value": b"text",
        "headers": None,
    }


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"offset": pa.array([1, None], pa.int64())}, "offset is null"),
        ({"timestamp": pa.nulls(2, pa.timestamp("us", "UTC"))}, "timestamp is null"),
        ({"offset": None}, "no column offset"),
        ({"timestamp": None}, "no column timestamp"),
        ({"offset": pa.array(["a", "b"])}, "damaged"),
        ({"key": pa.array([[1], [2]])}, "damaged"),
    ],
    ids=["null offset", "null timestamp", "no offset", "no timestamp", "offsets of text", "keys of lists"],
)
def test_rows_that_are_no_records_are_refused_by_the_files_name(files: TableFiles, change, why: str) -> None:
    columns = dict(zip(SEGMENT_SCHEMA.names, rows_of([1, 2]).columns, strict=True)) | change
    path = write(files, "x", pa.table({name: column for name, column in columns.items() if column is not None}))
    with pytest.raises(CorruptionError, match=rf"x\.parquet.*{why}"):
        read(files, path)


def test_more_rows_in_no_order_than_the_store_sorts_are_refused_and_rising_ones_are_read(
    files: TableFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_file, "FOREIGN_ROWS_MAX", 9)
    rising = write(files, "rising", rows_of(list(range(100))), row_group_size=7)
    assert read(files, rising).num_rows == 100
    shuffled = write(files, "shuffled", rows_of([*range(5, 10), *range(5)]))
    with pytest.raises(CorruptionError, match=r"shuffled\.parquet has 10 rows .*maxFileSize"):
        row_groups(files, shuffled)


def test_only_segments_are_handed_out_as_they_are_stored(files: TableFiles) -> None:
    path = write(files, "x", rows_of([1, 2]))
    assert row_group_files(files, path) == ()
    assert row_group_files(files, joined_name((path,), 0, 2)) == ()


def test_the_number_of_runs_is_bounded_and_the_largest_holes_stay(
    files: TableFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_file, "RUNS_MAX", 3)
    monkeypatch.setattr(foreign_file, "_RUNS_MIN", 3)
    path = write(files, "x", rows_of([0, 2, 4, 50, 52, 100, 103]))
    runs = read_offset_runs(files, path)
    assert list(zip(runs.starts.tolist(), runs.ends.tolist(), strict=True)) == [(0, 5), (50, 53), (100, 104)]
    assert runs.num_records == 7


# ---- the state behind a file ----------------------------------------------------------------------------------------


def segment(files: TableFiles, base: int, end: int, epoch: int) -> str:
    with SegmentWriter(files, 0, base, end, epoch) as writer:
        writer.write(log_batch(range(base, end)))
        return writer.finish(leader_epochs=((epoch, base),), append_time_ms=end).path


def test_a_file_has_the_state_of_the_last_segment_up_to_its_end(files: TableFiles) -> None:
    segment(files, 0, 10, 1)
    segment(files, 10, 20, 2)
    segment(files, 20, 30, 3)
    path = write(files, "x", rows_of([*range(10, 20), *range(10)]))
    footer = read_footer(files, path)
    assert (footer.partition, footer.base_offset, footer.end_offset) == (0, 0, 20)
    assert (footer.leader_epoch, footer.append_time_ms) == (2, 20)
    # The last records of this file were deleted.
    shorter = write(files, "y", rows_of([11, 12, 10]))
    assert (read_footer(files, shorter).leader_epoch, read_footer(files, shorter).end_offset) == (2, 13)


def test_a_file_whose_segments_were_vacuumed_has_the_state_of_those_before_it_or_none(files: TableFiles) -> None:
    path = write(files, "x", rows_of([15, 12]))
    assert (read_footer(files, path).leader_epochs, read_footer(files, path).producers) == ((), ())
    segment(files, 0, 10, 1)
    assert read_footer(files, path).leader_epochs == ((1, 0),)
