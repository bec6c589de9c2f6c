"""The chain of a real file, computed here from its bytes alone; tests/faults/test_segment_damage.py tests damage."""

from pathlib import Path

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logstore.segments import checksums
from logstore.segments.writer import SegmentWriter
from logstore.table_files import open_table
from tests.support.topics import log_batch


def written(path: Path, row_groups: int) -> bytes:
    with SegmentWriter(open_table(path), 0, 0, 10 * row_groups, 0) as writer:
        for at in range(row_groups):
            writer.write(log_batch(range(10 * at, 10 * at + 10)))
            writer._flush()  # a separate row group
        return (path / writer.finish().path).read_bytes()


@pytest.mark.parametrize("row_groups", [1, 3, 60])
def test_the_chain_follows_the_documented_format(tmp_path: Path, row_groups: int) -> None:
    content = written(tmp_path, row_groups)
    metadata = pq.read_metadata(pa.BufferReader(content))
    value = metadata.metadata[checksums.KEY.encode()]
    footer_at = len(content) - 8 - metadata.serialized_size
    ends = []
    for group in range(metadata.num_row_groups):
        for column in range(6):  # headers are two columns
            chunk = metadata.row_group(group).column(column)
            ends.append((chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size)
    assert ends == sorted(ends)
    assert len(ends) == 6 * row_groups
    zeroed = content.replace(value, value[:-8] + b"0" * 8)
    crcs = [google_crc32c.value(zeroed[:end]) for end in (*ends, footer_at, len(content))]
    assert value.decode() == "".join(f"{crc:08x}" for crc in crcs)


def test_a_footer_without_a_chain_is_another_writers() -> None:
    assert checksums.check_footer(b"logstore.crc32c but not as a key of Thrift PAR1") is None


def test_text_that_looks_like_a_chain_is_no_chain() -> None:
    """Forge the text of a chain: the JSON of a producer's state may contain anything, but no control character."""
    assert checksums.check_footer(b"logstore.crc32c\\u0018 0" + b"0" * 16 + b"\\u0000") is None


def test_a_footer_is_without_a_chain_only_if_all_of_it_is_there(tmp_path: Path) -> None:
    content = written(tmp_path, 2)
    footer = content[-pq.read_metadata(pa.BufferReader(content)).serialized_size - 8 :]
    renamed = footer.replace(checksums.KEY.encode(), b"logstore.crc32x")
    assert checksums.is_without_chain(renamed)
    assert not checksums.is_without_chain(footer)
    for at in range(1, len(renamed)):
        assert not checksums.is_without_chain(renamed[at:]), f"without its first {at} bytes"
        assert not checksums.is_without_chain(content[len(content) - len(renamed) - at :]), f"{at} bytes more"
