import errno
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logstore.errors import CorruptionError
from logstore.limits import ROW_GROUP_BYTES_MAX, ROW_GROUP_ROWS_MAX, TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN
from logstore.records.batch_identity import RememberedBatch
from logstore.records.schema import SEGMENT_SCHEMA
from logstore.segments.footer import FORMAT_VERSION, FORMAT_WITH_TRANSACTIONS
from logstore.segments.writer import SegmentWriter
from logstore.table_files import open_table
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.table_paths import read_footer, read_row_group, row_groups, segment_from_file
from tests.support.topics import TIMESTAMP_MS, HookedFileSystem, log_batch

BATCH = RememberedBatch(
    owner=5 << 32, epoch=1, sequence=7, record_count=52, base_offset=100, append_time_ms=TIMESTAMP_MS
)
KEYED = RememberedBatch(
    owner=2**64 - 1, epoch=-1, sequence=-5, record_count=52, base_offset=100, append_time_ms=TIMESTAMP_MS
)


def files(path: Path) -> list[str]:
    return sorted(p.name for p in path.rglob("*.parquet"))


def test_a_segment_describes_its_records(tmp_path: Path) -> None:
    with SegmentWriter(open_table(tmp_path), 3, 100, 180, 7) as writer:
        writer.write(log_batch(range(100, 150)))
        writer.write(log_batch([155, 170]))
        segment = writer.finish(leader_epochs=((5, 0), (7, 120)), producers=[BATCH], idempotency_keys=[KEYED])
    assert (segment.partition, segment.base_offset, segment.end_offset, segment.leader_epoch) == (3, 100, 180, 7)
    assert (segment.num_records, segment.min_offset, segment.max_offset) == (52, 100, 170)
    assert segment.min_timestamp_us == (TIMESTAMP_MS + 100) * 1000
    assert segment.max_timestamp_us == (TIMESTAMP_MS + 170) * 1000
    assert segment.size == (tmp_path / segment.path).stat().st_size
    footer = read_footer(tmp_path / segment.path)
    assert footer.leader_epochs == ((5, 0), (7, 120))
    assert footer.producers == (BATCH,)
    assert footer.idempotency_keys == (KEYED,)
    assert segment_from_file(tmp_path, segment.path) == segment


def test_records_read_back_as_written(tmp_path: Path) -> None:
    batch = log_batch(range(1000))
    with SegmentWriter(open_table(tmp_path), 0, 0, 1000, 0) as writer:
        writer.write(batch.slice(0, 0))
        writer.write(batch.slice(0, 10))
        writer.write(batch.slice(10))
        segment = writer.finish()
    assert read_row_group(tmp_path / segment.path, 0).equals(batch)


def test_the_columns_are_the_tables(tmp_path: Path) -> None:
    with SegmentWriter(open_table(tmp_path), 0, 0, 10, 0) as writer:
        writer.write(log_batch(range(10)))
        segment = writer.finish()
    parquet = pq.ParquetFile(tmp_path / segment.path)
    assert parquet.schema_arrow.remove_metadata().equals(SEGMENT_SCHEMA)
    offset = parquet.metadata.row_group(0).column(0)
    assert offset.has_offset_index
    assert offset.has_column_index
    assert offset.compression == "ZSTD"


@pytest.mark.parametrize(
    ("codec", "stored"),
    [("uncompressed", "UNCOMPRESSED"), ("gzip", "GZIP"), ("snappy", "SNAPPY"), ("lz4", "LZ4"), ("zstd", "ZSTD")],
)
def test_every_codec_of_compression_type(tmp_path: Path, codec: str, stored: str) -> None:
    with SegmentWriter(open_table(tmp_path), 0, 0, 10, 0, codec) as writer:
        writer.write(log_batch(range(10)))
        segment = writer.finish()
    assert pq.ParquetFile(tmp_path / segment.path).metadata.row_group(0).column(3).compression == stored
    assert read_row_group(tmp_path / segment.path, 0).equals(log_batch(range(10)))


def test_row_groups_are_bounded_by_rows(tmp_path: Path) -> None:
    end = 2 * ROW_GROUP_ROWS_MAX + 5
    offsets = pa.array(range(end), pa.int64())
    nulls = pa.nulls(end, pa.binary())
    small = log_batch([0])
    batch = pa.record_batch(
        [offsets, offsets.cast(pa.timestamp("ms", "UTC")), nulls, nulls, pa.nulls(end, small.column("headers").type)],
        schema=small.schema,
    )
    with SegmentWriter(open_table(tmp_path), 0, 0, end, 0) as writer:
        for start in range(0, end, 50_000):
            writer.write(batch.slice(start, 50_000))
        segment = writer.finish()
    groups = row_groups(tmp_path / segment.path)
    assert [group.num_rows for group in groups] == [ROW_GROUP_ROWS_MAX, ROW_GROUP_ROWS_MAX, 5]
    assert [(g.first_offset, g.last_offset) for g in groups][1] == (ROW_GROUP_ROWS_MAX, 2 * ROW_GROUP_ROWS_MAX - 1)


def test_row_groups_are_bounded_by_bytes(tmp_path: Path) -> None:
    batch = log_batch([o for o in range(1, 100) if o % 5], value_bytes=500_000)
    with SegmentWriter(open_table(tmp_path), 0, 0, 100, 0) as writer:
        writer.write(batch)
        segment = writer.finish()
    read = [read_row_group(tmp_path / segment.path, group.index) for group in row_groups(tmp_path / segment.path)]
    assert len(read) >= batch.nbytes / ROW_GROUP_BYTES_MAX
    assert max(part.nbytes for part in read) <= ROW_GROUP_BYTES_MAX
    assert pa.Table.from_batches(read).equals(pa.Table.from_batches([batch]))


def test_a_record_beyond_the_bound_has_a_row_group_of_its_own(tmp_path: Path) -> None:
    with SegmentWriter(open_table(tmp_path), 0, 1, 4, 0) as writer:
        writer.write(log_batch([1]))
        writer.write(log_batch([2], value_bytes=ROW_GROUP_BYTES_MAX + 1))
        writer.write(log_batch([3]))
        segment = writer.finish()
    assert [group.num_rows for group in row_groups(tmp_path / segment.path)] == [1, 1, 1]


def test_extreme_timestamps(tmp_path: Path) -> None:
    for timestamp in (TIMESTAMP_MS_MIN, -1, 0, TIMESTAMP_MS_MAX):
        with SegmentWriter(open_table(tmp_path), 0, 0, 1, 0) as writer:
            writer.write(log_batch([0], timestamp_ms=timestamp))
            segment = writer.finish()
        assert (segment.min_timestamp_us, segment.max_timestamp_us) == (timestamp * 1000, timestamp * 1000)
        (group,) = row_groups(tmp_path / segment.path)
        assert (group.min_timestamp_ms, group.max_timestamp_ms) == (timestamp, timestamp)
        assert read_row_group(tmp_path / segment.path, 0).equals(log_batch([0], timestamp_ms=timestamp))


@pytest.mark.parametrize("offsets", [[5, 5], [6, 5], [4], [9, 10, 10]])
def test_offsets_that_do_not_rise_are_refused_and_nothing_stays(tmp_path: Path, offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="must rise"), SegmentWriter(open_table(tmp_path), 0, 5, 10, 0) as writer:
        writer.write(log_batch(offsets))
    assert files(tmp_path) == []


def test_offsets_rise_over_batches(tmp_path: Path) -> None:
    with SegmentWriter(open_table(tmp_path), 0, 0, 10, 0) as writer:
        writer.write(log_batch(range(5)))
        with pytest.raises(ValueError, match="must rise"):
            writer.write(log_batch(range(4, 8)))


def test_an_offset_beyond_the_end_is_refused(tmp_path: Path) -> None:
    with SegmentWriter(open_table(tmp_path), 0, 0, 4, 0) as writer:
        writer.write(log_batch(range(4)))
        with pytest.raises(ValueError, match="is beyond it"):
            writer.write(log_batch([4]))


@pytest.mark.parametrize(("base", "end"), [(5, 5), (5, 4), (-1, 4)])
def test_a_range_without_offsets_is_refused(tmp_path: Path, base: int, end: int) -> None:
    with pytest.raises(ValueError, match="a segment of"):
        SegmentWriter(open_table(tmp_path), 0, base, end, 0)
    assert files(tmp_path) == []


def test_another_schema_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="LOG_SCHEMA"), SegmentWriter(open_table(tmp_path), 0, 0, 10, 0) as writer:
        writer.write(log_batch(range(3)).select(["offset", "value"]))


def test_leaving_without_finish_leaves_no_file(tmp_path: Path) -> None:
    with SegmentWriter(open_table(tmp_path), 0, 0, 100, 0) as writer:
        writer.write(log_batch(range(100)))
    assert files(tmp_path) == []


def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    filesystem = FaultyFileSystem()
    with SegmentWriter(open_table(tmp_path, filesystem), 0, 0, 4, 0) as writer:
        writer.write(log_batch(range(1, 4), value_bytes=1000))
        filesystem.fill(50)
        with pytest.raises(OSError, match="No space"):
            writer.finish()
    assert files(tmp_path) == []


def test_a_failed_fsync_fails_the_segment(tmp_path: Path) -> None:
    filesystem = FaultyFileSystem()
    filesystem.fail("fdatasync", errno.EIO)
    with SegmentWriter(open_table(tmp_path, filesystem), 0, 0, 3, 0) as writer:
        writer.write(log_batch(range(3)))
        with pytest.raises(OSError, match="Input/output"):
            writer.finish()
    assert files(tmp_path) == []


def test_file_and_name_are_durable_when_it_is_finished(tmp_path: Path) -> None:
    """Check that files named by a commit survive a power cut (the first half of rule R7)."""

    class Recording(HookedFileSystem):
        def __init__(self) -> None:
            super().__init__()
            self.synced: list[str] = []

        def fdatasync(self, fd: int) -> None:
            super().fdatasync(fd)
            self.synced.append(f"file of {self.size(fd)} bytes")

        def sync_directory(self, path: Path) -> None:
            super().sync_directory(path)
            self.synced.append(path.name)

        def reached(self, point: str) -> None:
            self.synced.append(point)

    filesystem = Recording()
    with SegmentWriter(open_table(tmp_path, filesystem), 0, 0, 3, 0) as writer:
        writer.write(log_batch(range(3)))
        segment = writer.finish()
    assert filesystem.synced[-3:] == [f"file of {segment.size} bytes", "partition=0", "segment.finished"]


@pytest.mark.parametrize("version", [FORMAT_VERSION - 1, FORMAT_WITH_TRANSACTIONS + 1])
def test_another_format_is_refused(tmp_path: Path, version: int) -> None:
    table = pa.table({"offset": [1]}).replace_schema_metadata({"logstore.format": str(version)})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(CorruptionError, match=f"segment format {version}, and this release knows"):
        read_footer(tmp_path / "x.parquet")
