"""A complete check of files: ours, another writer's, and those of a writer with wrong metadata."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logstore.errors import CorruptionError
from logstore.segments import checking
from logstore.segments.checking import check_file
from logstore.segments.reader import row_groups
from logstore.table_files import open_table
from tests.support.damage import flip_bit
from tests.support.topics import TIMESTAMP_MS, create_topic, empty_segment, write_segment


@pytest.fixture
def table(tmp_path):
    return create_topic(tmp_path)


def test_a_segment_of_ours(table):
    segment = write_segment(table, 0, 10, 20, step=2)
    found = check_file(table.files, segment.path)
    assert found.footer is not None
    assert (found.size, found.num_records, found.min_offset, found.max_offset) == (segment.size, 5, 10, 18)
    assert (found.min_timestamp_us, found.max_timestamp_us) == (segment.min_timestamp_us, segment.max_timestamp_us)


def test_a_segment_without_records(table):
    found = check_file(table.files, empty_segment(table, 0, 0, 5).path)
    assert (found.num_records, found.min_offset, found.max_timestamp_us) == (0, None, None)


@pytest.mark.parametrize("at", [4, 100, 400, -30, -1])
def test_a_flipped_bit_anywhere(table, at):
    segment = write_segment(table, 0, 0, 50)
    flip_bit(Path(table.files.where(segment.path)), at)
    with pytest.raises(CorruptionError):
        check_file(table.files, segment.path)


@pytest.mark.parametrize(
    "lie",
    [
        {"num_rows": 9},
        {"first_offset": 1},
        {"last_offset": 8},
        {"min_timestamp_ms": TIMESTAMP_MS - 1},
        {"max_timestamp_ms": TIMESTAMP_MS + 99},
    ],
    ids=str,
)
def test_statistics_that_are_not_those_of_the_records(table, monkeypatch, lie):
    segment = write_segment(table, 0, 0, 10)
    groups = tuple(replace(group, **lie) for group in row_groups(table.files, segment.path))
    monkeypatch.setattr(checking, "row_groups", lambda files, name: groups)
    with pytest.raises(CorruptionError, match="its statistics are not those of its records"):
        check_file(table.files, segment.path)


def foreign(tmp_path: Path, **columns: object) -> tuple[object, str]:
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "t" / "part-0.parquet", write_page_checksum=True)
    return open_table(tmp_path / "t"), "part-0.parquet"


def test_a_file_of_another_writer_need_not_be_sorted(tmp_path):
    times = pa.array([3, 1, 2], pa.timestamp("us", "UTC"))
    files, name = foreign(tmp_path, offset=[7, 5, 6], timestamp=times, key=[b"a", None, b"b"])
    found = check_file(files, name)
    assert (found.footer, found.num_records, found.min_offset, found.max_offset) == (None, 3, 5, 7)
    assert (found.min_timestamp_us, found.max_timestamp_us) == (1, 3)


def test_the_values_of_a_file_of_another_writer_are_read(tmp_path):
    times = pa.array([1], pa.timestamp("us", "UTC"))
    files, name = foreign(tmp_path, offset=[1], timestamp=times, value=[b"a value" * 50])
    path = tmp_path / "t" / name
    flip_bit(path, path.read_bytes().find(b"a value") + 3)
    with pytest.raises(CorruptionError):
        check_file(files, name)


@pytest.mark.parametrize(
    ("offsets", "reason"), [([1, 1], "the same offset"), ([1, None], "without an offset")], ids=["twice", "null"]
)
def test_a_file_of_another_writer_with_offsets_that_cannot_be(tmp_path, offsets, reason):
    times = pa.array([1, 2], pa.timestamp("us", "UTC"))
    with pytest.raises(CorruptionError, match=reason):
        check_file(*foreign(tmp_path, offset=pa.array(offsets, pa.int64()), timestamp=times))


def test_a_file_of_other_things(tmp_path):
    with pytest.raises(CorruptionError, match="no column offset"):
        check_file(*foreign(tmp_path, price=[1.5], timestamp=pa.array([1], pa.timestamp("us", "UTC"))))
