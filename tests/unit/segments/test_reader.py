from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logstore.errors import CorruptionError
from logstore.records.batch_identity import RememberedBatch
from logstore.records.schema import SEGMENT_SCHEMA
from logstore.segments import checksums, reader
from logstore.segments.footer import SegmentFooter, encode_footer
from logstore.segments.reader import FoundSegments, find_segments
from logstore.segments.writer import Segment, SegmentWriter
from logstore.table_files import open_table
from tests.support.table_paths import (
    read_footer,
    read_row_group,
    row_group_batches,
    row_groups,
    segment_from_file,
    verify_segment,
)
from tests.support.topics import log_batch


def write(path: Path, base: int, end: int, epoch: int = 0) -> Segment:
    with SegmentWriter(open_table(path), 0, base, end, epoch) as writer:
        writer.write(log_batch(range(base, end)))
        return writer.finish()


def write_foreign(
    path: Path, offsets: list[int], *, row_group_size: int = 100, statistics: bool = True, checksum: bool = False
) -> None:
    table = pa.Table.from_batches([log_batch(offsets)]).cast(SEGMENT_SCHEMA)
    pq.write_table(
        table,
        path,
        row_group_size=row_group_size,
        write_statistics=statistics,
        write_page_checksum=checksum,
        compression="none" if checksum else "snappy",
    )


def test_a_file_of_another_writer_reads_if_it_is_sorted(tmp_path: Path) -> None:
    write_foreign(tmp_path / "x.parquet", [1, 2, 3, 9])
    assert read_row_group(tmp_path / "x.parquet", 0).equals(log_batch([1, 2, 3, 9]))
    (group,) = row_groups(tmp_path / "x.parquet")
    assert (group.first_offset, group.last_offset, group.num_rows) == (1, 9, 4)


def test_a_file_of_another_writer_cannot_be_committed_again(tmp_path: Path) -> None:
    write_foreign(tmp_path / "x.parquet", [1])
    with pytest.raises(CorruptionError, match="not written by logstore"):
        segment_from_file(tmp_path, "x.parquet")


def test_a_row_group_in_parts_has_the_records_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_BATCH_BYTES", 200)
    batch = log_batch(range(0, 300, 3))
    with SegmentWriter(open_table(tmp_path), 0, 0, 300, 1) as writer:
        writer.write(batch)
        path = tmp_path / writer.finish().path
    (group,) = row_groups(path)
    batches = list(row_group_batches(path, group))
    assert len(batches) > 3
    assert pa.Table.from_batches(batches).combine_chunks().to_batches() == [batch]


def test_a_file_with_other_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
    with pytest.raises(CorruptionError, match="no column offset"):
        row_groups(tmp_path / "x.parquet")


def test_a_missing_file(tmp_path: Path) -> None:
    for read in (read_footer, row_groups, lambda path: read_row_group(path, 0)):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "x.parquet")


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_torn_file_is_corruption(tmp_path: Path, keep: int) -> None:
    path = tmp_path / write(tmp_path, 0, 100).path
    path.write_bytes(path.read_bytes()[:keep])
    for read in (read_footer, row_groups, lambda p: read_row_group(p, 0)):
        with pytest.raises(CorruptionError, match=path.name):
            read(path)


def test_only_a_file_of_another_writer_reads_without_our_checksums(tmp_path: Path) -> None:
    batch = log_batch(range(5))
    table = pa.Table.from_batches([batch]).cast(SEGMENT_SCHEMA)
    footer = encode_footer(SegmentFooter(0, 0, 5, 0, (), (), ()))
    ours, foreign = tmp_path / "ours.parquet", tmp_path / "foreign.parquet"
    pq.write_table(table.replace_schema_metadata(footer), ours, write_page_checksum=True)
    pq.write_table(table, foreign, write_page_checksum=True)
    assert read_row_group(foreign, 0).equals(batch)
    verify_segment(foreign)
    with pytest.raises(CorruptionError, match="its checksums are missing"):
        read_row_group(ours, 0)


@pytest.mark.parametrize("statistics", [True, ["offset"]])
@pytest.mark.parametrize("in_metadata", [True, False])
def test_records_that_name_the_key_of_the_checksums_read(
    tmp_path: Path, statistics: bool | list[str], in_metadata: bool
) -> None:
    name = checksums.KEY.encode()
    for at, value in enumerate([name, b"\x18\x0f" + name, name + b"\x18", b"\x18\x0f" + name + b"\x18"]):
        batch = log_batch(range(5))
        values = pa.array([value] * 5, batch.schema.field("value").type)
        batch = batch.set_column(batch.schema.get_field_index("value"), batch.schema.field("value"), values)
        table = pa.Table.from_batches([batch]).cast(SEGMENT_SCHEMA)
        if in_metadata:
            table = table.replace_schema_metadata({"comment": name.decode()})
        path = tmp_path / f"{at}.parquet"
        pq.write_table(table, path, write_page_checksum=True, write_statistics=statistics, compression="none")
        assert path.read_bytes().count(name) > 0
        assert read_row_group(path, 0).equals(batch)
        verify_segment(path)


def test_a_damaged_page_of_format_1_is_not_served(tmp_path: Path) -> None:
    write_foreign(tmp_path / "x.parquet", [1, 2, 3], checksum=True)
    content = bytearray((tmp_path / "x.parquet").read_bytes())
    content[content.index(b"k1")] ^= 1  # a byte in the dictionary of the keys
    (tmp_path / "x.parquet").write_bytes(content)
    for read in (verify_segment, lambda path: read_row_group(path, 0)):
        with pytest.raises(CorruptionError, match=r"x\.parquet"):
            read(tmp_path / "x.parquet")


def test_some_columns_of_a_row_group(tmp_path: Path) -> None:
    path = tmp_path / write(tmp_path, 0, 20).path
    assert read_row_group(path, 0, ["key", "offset"]).equals(log_batch(range(20)).select(["offset", "key"]))


def test_segments_on_disk_are_found_without_a_log(tmp_path: Path) -> None:
    write(tmp_path, 0, 10)
    old = write(tmp_path, 10, 20, epoch=1)
    new = write(tmp_path, 10, 25, epoch=2)
    torn = write(tmp_path, 25, 30)
    (tmp_path / torn.path).write_bytes(b"PAR1")
    write_foreign(tmp_path / "partition=0" / "part-0.parquet", [10])
    assert find_segments(open_table(tmp_path), 0, 10, 30) == FoundSegments((new, old), (torn.path,))
    assert find_segments(open_table(tmp_path), 0, 10, 24) == FoundSegments((old,), ())
    assert find_segments(open_table(tmp_path), 1, 0, 30) == FoundSegments((), ())
    later = f"partition=0/{10:020d}-v3-{20:020d}-1-{'a' * 32}.parquet"
    (tmp_path / old.path).rename(tmp_path / later)
    assert find_segments(open_table(tmp_path), 0, 10, 24) == FoundSegments((), (later,)), "its range is not known"


def test_a_segment_without_records_reads_as_one(tmp_path: Path) -> None:
    with SegmentWriter(open_table(tmp_path), 0, 10, 30, 4) as writer:
        segment = writer.finish(((4, 10),), producers=[RememberedBatch(7, 0, 0, 1, 5, 1)], append_time_ms=3)
    assert (segment.num_records, segment.min_offset, segment.max_offset) == (0, -1, -1)
    assert segment_from_file(tmp_path, segment.path) == segment
    verify_segment(tmp_path / segment.path)
    assert row_groups(tmp_path / segment.path) == ()
    footer = read_footer(tmp_path / segment.path)
    assert (footer.base_offset, footer.end_offset, len(footer.producers), footer.append_time_ms) == (10, 30, 1, 3)
    assert pq.read_table(tmp_path / segment.path, partitioning=None).schema.equals(SEGMENT_SCHEMA)
    # A checksum covers every byte of it, as in other segments.
    data = (tmp_path / segment.path).read_bytes()
    for at in range(len(data)):
        (tmp_path / segment.path).write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(CorruptionError):
            verify_segment(tmp_path / segment.path)


@pytest.mark.parametrize("end", [19, 21])
def test_a_file_under_the_name_of_another_range_is_refused(tmp_path: Path, end: int) -> None:
    segment = write(tmp_path, 0, 20)
    path = tmp_path / segment.path.replace(f"-{20:020d}-", f"-{end:020d}-")
    (tmp_path / segment.path).rename(path)
    with pytest.raises(CorruptionError, match="up to offset 20"):
        row_groups(path)


def test_a_file_with_a_name_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    segment = write(tmp_path, 0, 20)
    old = segment.path.replace(f"-{20:020d}-", "-")
    (tmp_path / segment.path).rename(tmp_path / old)
    assert segment_from_file(tmp_path, old) == replace(segment, path=old)
    assert find_segments(open_table(tmp_path), 0, 0, 20).segments == (replace(segment, path=old),)
    assert find_segments(open_table(tmp_path), 0, 0, 19).segments == (), "its footer tells its end"
