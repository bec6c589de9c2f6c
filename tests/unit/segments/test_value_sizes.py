"""Values that a codec makes no smaller, and what writers do with them."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logstore.segments.layout import PLAIN_LAYOUT
from logstore.segments.merge import Source, WriteTask, write_segment
from logstore.segments.reader import read_row_group, verify_segment
from logstore.segments.value_sizes import are_incompressible
from logstore.segments.writer import Segment, SegmentWriter
from logstore.table_files import TableFiles, open_table
from tests.support.topics import log_batch

ROWS = 500


@pytest.fixture
def files(tmp_path: Path) -> TableFiles:
    (tmp_path / "_delta_log").mkdir()
    return open_table(tmp_path)


def rows(base: int, *, random: bool) -> pa.RecordBatch:
    batch = log_batch(range(base, base + ROWS))
    values = pa.array([os.urandom(100) if random else b"text" * 25 for _ in range(ROWS)], pa.binary())
    return batch.set_column(batch.schema.get_field_index("value"), batch.schema.field("value"), values)


def segment(files: TableFiles, base: int, *, random: bool, codec: str = "zstd", raw: bool = False) -> Segment:
    with SegmentWriter(files, 0, base, base + ROWS, 0, codec, raw_values=raw) as writer:
        writer.write(rows(base, random=random))
        return writer.finish(((0, 0),))


def chunks(files: TableFiles, path: str) -> dict[str, pq.ColumnChunkMetaData]:
    group = pq.read_metadata(f"{files.uri}/{path}").row_group(0)
    return {group.column(leaf).path_in_schema: group.column(leaf) for leaf in range(group.num_columns)}


def joined(files: TableFiles, segments: list[Segment], delete_retention_ms: int | None = None) -> Segment:
    sources = tuple(Source(0, s.path, s.num_records, s.base_offset) for s in segments)
    base, end = segments[0].base_offset, segments[-1].end_offset
    task = WriteTask(
        "t",
        files.uri,
        0,
        sources,
        base,
        end,
        0,
        "zstd",
        "merge",
        0,
        delete_retention_ms=delete_retention_ms,
        layout=PLAIN_LAYOUT,
    )
    written = write_segment(0, task, None, files=files).segment
    verify_segment(files, written.path)
    return written


def test_random_values_are_incompressible_and_text_is_not(files: TableFiles) -> None:
    noise, text = segment(files, 0, random=True).path, segment(files, ROWS, random=False).path
    assert are_incompressible(files, [noise], "zstd")
    assert not are_incompressible(files, [text], "zstd")
    assert not are_incompressible(files, [noise, text, text], "zstd")


def test_another_codec_reports_nothing(files: TableFiles) -> None:
    for codec in ("lz4", "uncompressed"):
        assert not are_incompressible(files, [segment(files, 0, random=True, codec=codec).path], "zstd")
    # The topic's compression was off, and its text must be compressed from now on.
    text = segment(files, 0, random=False, codec="none")
    assert chunks(files, joined(files, [text]).path)["value"].compression == "ZSTD"


def test_incompressible_values_are_written_raw_again_and_again(files: TableFiles) -> None:
    segments = [segment(files, base, random=True) for base in (0, ROWS)]
    once = joined(files, segments)
    twice = joined(files, [once])
    for path in (once.path, twice.path):
        stored = chunks(files, path)
        assert stored["value"].compression == "UNCOMPRESSED"
        assert {chunk.compression for name, chunk in stored.items() if name != "value"} == {"ZSTD"}
    expected = pa.Table.from_batches([read_row_group(files, s.path, 0) for s in segments])
    assert pa.Table.from_batches([read_row_group(files, twice.path, 0)]).equals(expected)


def test_values_that_shrink_are_compressed_beside_raw_ones(files: TableFiles) -> None:
    raw, text = segment(files, 0, random=True, raw=True), segment(files, ROWS, random=False)
    assert chunks(files, joined(files, [raw, text]).path)["value"].compression == "ZSTD"


def test_a_compaction_writes_no_dictionary_of_keys_and_a_merge_does(files: TableFiles) -> None:
    source = segment(files, 0, random=False)
    assert chunks(files, joined(files, [source], delete_retention_ms=1_000).path)["key"].has_dictionary_page is False
    assert chunks(files, joined(files, [source]).path)["key"].has_dictionary_page is True
