"""Any reader reads a file of one row group like the row group; tests/faults/test_segment_damage.py tests damage."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logstore.errors import CorruptionError
from logstore.limits import RECORD_OVERHEAD_BYTES
from logstore.records.batch import record_sizes
from logstore.records.log_batches import WireBatch, to_log_batch
from logstore.records.offset_record import OFFSETS_TOPIC, OffsetKey, encode_offset_records
from logstore.records.schema import LOG_SCHEMA, SEGMENT_SCHEMA
from logstore.segments import reader
from logstore.segments import row_group_files as whole
from logstore.segments.deletion_vectors import DeletionVector
from logstore.segments.foreign_names import masked_name
from logstore.segments.layout import layout_of
from logstore.segments.writer import SegmentWriter
from logstore.table_files import open_table
from tests.support import deletion_vectors as vectors
from tests.support.table_paths import read_row_group, read_row_group_file, row_group_files, row_groups
from tests.support.topics import TIMESTAMP_MS, log_batch

CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize("codec", CODECS)
def test_each_is_a_parquet_file_with_the_records_of_its_row_group(tmp_path: Path, codec: str) -> None:
    with SegmentWriter(open_table(tmp_path), 3, 0, 3000, 0, codec) as writer:
        for base in range(0, 3000, 1000):
            writer.write(log_batch(range(base, base + 1000, 3), value_bytes=2000))  # several pages of values
            writer._flush()  # a separate row group
        path = tmp_path / writer.finish().path
    found = row_group_files(path)
    assert [one.row_group for one in found] == [0, 1, 2]
    for one in found:
        expected = read_row_group(path, one.row_group)
        with pq.ParquetFile(pa.BufferReader(bytes(read_row_group_file(path, one)))) as file:
            assert (file.num_row_groups, file.metadata.num_rows) == (1, expected.num_rows)
            assert file.schema_arrow.names == SEGMENT_SCHEMA.names
            assert file.read().cast(LOG_SCHEMA).combine_chunks().to_batches() == [expected]


def test_a_row_group_without_deleted_rows_goes_as_it_is_stored(tmp_path: Path) -> None:
    """Delete rows of the first row group, and the whole second one, by a deletion vector."""
    files = open_table(tmp_path)
    with SegmentWriter(files, 0, 0, 3000, 0) as writer:
        for base in range(0, 3000, 1000):
            writer.write(log_batch(range(base, base + 1000)))
            writer._flush()
        path = writer.finish().path
    told = vectors.stored_vector(tmp_path, [7, *range(1000, 2000)])
    vector = DeletionVector(
        *(told[name] for name in ("storageType", "pathOrInlineDv", "sizeInBytes", "cardinality", "offset"))
    )
    name = masked_name(path, vector)
    groups = reader.row_groups(files, name)
    assert [(group.first_offset, group.num_rows) for group in groups] == [(0, 999), (2000, 1000)]
    first, last = whole.row_group_files(files, name)
    assert [one.row_group for one in (first, last)] == [0, 2]
    assert first.has_deleted
    assert last == whole.row_group_files(files, path)[2]
    with pq.ParquetFile(pa.BufferReader(bytes(whole.read_row_group_file(files, name, last)))) as file:
        assert file.read()["offset"].to_pylist() == list(range(2000, 3000))


def test_a_row_group_file_has_the_columns_of_its_topic_without_the_metadata(tmp_path: Path) -> None:
    layout, key = layout_of(OFFSETS_TOPIC), OffsetKey("g", "t", 0)
    with SegmentWriter(open_table(tmp_path), 0, 0, 1, 0, layout=layout) as writer:
        writer.write(to_log_batch([WireBatch(encode_offset_records([(key, None)]), 0, TIMESTAMP_MS, False)]))
        path = tmp_path / writer.finish(leader_epochs=((0, 0),)).path
    assert pq.read_metadata(path).metadata
    (one,) = row_group_files(path)
    file = pa.BufferReader(bytes(read_row_group_file(path, one)))
    assert pq.read_metadata(file).metadata is None
    assert pq.read_table(file).column_names == layout.segment_schema.names


def test_its_decoded_size_is_that_of_its_records_however_little_parquet_needs_for_them(tmp_path: Path) -> None:
    rows = 5_000
    batch = log_batch(range(rows))
    key = pa.array([b"k" * 1_000] * rows, pa.binary())
    batch = batch.set_column(2, LOG_SCHEMA.field("key"), key)
    with SegmentWriter(open_table(tmp_path), 0, 0, rows, 0) as writer:
        writer.write(batch)
        path = tmp_path / writer.finish().path
    (one,) = row_group_files(path)
    (group,) = row_groups(path)
    size = int(record_sizes(batch).sum()) + rows * RECORD_OVERHEAD_BYTES
    assert group.encoded_bytes < size / 10
    assert 0.9 * size < one.decoded_bytes < 1.1 * size


def test_a_file_of_another_writer_has_none(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_batches([log_batch([1, 2])]).cast(SEGMENT_SCHEMA), tmp_path / "x.parquet")
    assert row_group_files(tmp_path / "x.parquet") == ()


def test_changed_bytes_are_refused_with_their_offsets(tmp_path: Path) -> None:
    with SegmentWriter(open_table(tmp_path), 0, 10, 15, 0) as writer:
        writer.write(log_batch(range(10, 15)))
        path = tmp_path / writer.finish().path
    (one,) = row_group_files(path)
    content = path.read_bytes()
    path.write_bytes(content[: one.begin] + bytes([content[one.begin] ^ 1]) + content[one.begin + 1 :])
    with pytest.raises(CorruptionError, match=r"row group 0 \(offsets 10 to 14\) is damaged: the checksum"):
        read_row_group_file(path, one)
    path.write_bytes(content[: one.end - 1])
    with pytest.raises(CorruptionError, match="is damaged: its end"):
        read_row_group_file(path, one)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_row_group_file(path, one)
