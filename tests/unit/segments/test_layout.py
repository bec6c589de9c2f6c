from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from logstore.records.log_batches import WireBatch, to_log_batch
from logstore.records.offset_record import OFFSETS_TOPIC, OffsetCommit, OffsetKey, encode_offset_records
from logstore.records.schema import SEGMENT_SCHEMA, TABLE_SCHEMA
from logstore.segments.layout import PLAIN_LAYOUT, new_layout
from logstore.segments.writer import SegmentWriter
from logstore.table_files import open_table
from tests.support.table_paths import read_row_group


def offsets_batch(count: int, base_offset: int) -> pa.RecordBatch:
    records = [
        (OffsetKey(f"g{n}", "t", n), OffsetCommit(10 * n, 1, "é", -1, str(UUID(int=n)), 5) if n % 3 else None)
        for n in range(base_offset, base_offset + count)
    ]
    return to_log_batch([WireBatch(encode_offset_records(records), base_offset, 1_700_000_000_000, False)])


def test_a_users_topic_has_the_logs_columns_alone():
    assert new_layout("t") is PLAIN_LAYOUT
    assert (PLAIN_LAYOUT.segment_schema, PLAIN_LAYOUT.table_schema) == (SEGMENT_SCHEMA, TABLE_SCHEMA)


def test_a_segment_of_group_offsets_has_typed_columns_and_reads_back_as_any_other(tmp_path: Path):
    layout = new_layout(OFFSETS_TOPIC)
    batches = [offsets_batch(4, 0), offsets_batch(0, 4), offsets_batch(3, 4)]
    with SegmentWriter(open_table(tmp_path), 0, 0, 7, 0, layout=layout) as writer:
        for batch in batches:
            writer.write(batch)
        segment = writer.finish()
    parquet = pq.ParquetFile(tmp_path / segment.path)
    assert parquet.schema_arrow.remove_metadata().equals(layout.segment_schema)
    rows = parquet.read(columns=["group", "topic", "topic_partition", "committed_offset", "metadata"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (f"g{n}", "t", n, *((10 * n, "é") if n % 3 else (None, None))) for n in range(7)
    ]
    log_batch = read_row_group(tmp_path / segment.path, 0)
    assert pa.Table.from_batches([log_batch]).equals(pa.Table.from_batches(batches))
