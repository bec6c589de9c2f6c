"""From the bytes of a segment to Parquet: nothing is parsed that was not compared with its checksum.

Invariants: of a file with checksums all but the column chunks is checked when it is opened, and a column chunk before
it is decoded; a file under a segment's name is that segment. Files of another writer have no
checksums of ours; Parquet's own, of pages, are verified if they are there.
"""

import os
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from logstore.crc32c import crc32c
from logstore.errors import CorruptionError
from logstore.limits import ROW_GROUP_ROWS_MAX
from logstore.segments import checksums
from logstore.segments.footer import SegmentFooter, decode_footer, is_segment
from logstore.segments.names import parse_segment_name

#: Larger than most footers, so that one read gets a whole footer.
_TAIL_BYTES = 64 * 1024
#: Exceptions of Arrow for bad bytes.
BAD_BYTES = (pa.ArrowException, OSError, ValueError, KeyError)


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """``chain``: (place, CRC-32C of the file up to there) at the ends of the magic number, of each column chunk, and of
    the page index; empty without checksums. ``footer_bytes`` are what ``metadata`` was parsed from, in Thrift; empty
    without checksums.
    """

    path: Path
    metadata: pq.FileMetaData
    chain: tuple[tuple[int, int], ...]
    footer_bytes: bytes

    @property
    def footer(self) -> SegmentFooter:
        """CorruptionError if it is not a segment's."""
        return decode_footer(self.metadata.metadata or {}, str(self.path))

    def read(self, row_group: int, columns: Collection[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Columns of one row group, decoded ``rows`` at a time; its checked bytes are held meanwhile. OSError;
        CorruptionError if they have changed since they were written.
        """
        try:
            if self.chain:
                image = self._checked(row_group, columns)
                parquet = pq.ParquetFile(pa.BufferReader(image), metadata=self.metadata, pre_buffer=False)
            else:
                parquet = pq.ParquetFile(self.path, page_checksum_verification=True)
            # One column has nearly all of the bytes: threads would gain little, and each keeps memory of its own.
            yield from parquet.iter_batches(rows, row_groups=[row_group], columns=list(columns), use_threads=False)
        except BAD_BYTES as error:
            raise self.damaged_in(row_group, error) from error

    def verify(self) -> None:
        """Read the whole file. OSError; CorruptionError if a byte has changed since it was written."""
        columns = {self._column(leaf).split(".")[0] for leaf in range(self.metadata.num_columns)}
        for row_group in range(self.metadata.num_row_groups):
            if not self.chain:
                deque(self.read(row_group, columns, ROW_GROUP_ROWS_MAX), maxlen=0)
                continue
            try:
                self._checked(row_group, columns)
            except BAD_BYTES as error:
                raise self.damaged_in(row_group, error) from error

    def where(self, row_group: int) -> str:
        """For messages: its offsets, too, if they can be relied on."""
        where = f"{self.path}, row group {row_group}"
        if not self.chain:
            return where
        at = next(leaf for leaf in range(self.metadata.num_columns) if self._column(leaf) == "offset")
        offsets = self.metadata.row_group(row_group).column(at).statistics
        return f"{where} (offsets {offsets.min} to {offsets.max})"

    def damaged_in(self, row_group: int, error: Exception) -> Exception:
        """As ``damaged``, with the place in the file."""
        return damaged(self.where(row_group), error)

    def _checked(self, row_group: int, columns: Collection[str]) -> pa.Buffer:
        """An image of the file with these columns of a row group and nothing else. ValueError if they are damaged."""
        leaves = self.metadata.num_columns
        # Memory pages of it that are never written take no memory.
        image = np.empty(self.chain[(row_group + 1) * leaves][0], dtype=np.uint8)
        with self.path.open("rb", buffering=0) as source:
            for leaf in range(leaves):
                if self._column(leaf).split(".")[0] in columns:
                    (begin, before), (end, after) = self.chain[row_group * leaves + leaf :][:2]
                    data = image[begin:end].data
                    if not read_as_written(source.fileno(), data, begin, before, after):
                        raise ValueError(f"the checksum of column {self._column(leaf)} does not match")
        return pa.py_buffer(image)

    def _column(self, leaf: int) -> str:
        return str(self.metadata.schema.column(leaf).path)


def read_as_written(fd: int, into: memoryview, begin: int, crc_before: int, crc_after: int) -> bool:
    """Fill ``into`` from the place ``begin`` of a file; whether the CRC-32C up to there leads to that up to its end."""
    return os.preadv(fd, [into], begin) == len(into) and crc32c(into, crc_before) == crc_after


def open_parquet(path: Path) -> ParquetFile:
    """FileNotFoundError, OSError; CorruptionError if the file is not whole, or another segment than its name says."""
    try:
        file = _open_checked(path) or _open_unchecked(path)
    except BAD_BYTES as error:
        raise damaged(path, error) from error
    name = parse_segment_name("/".join(path.parts[-2:]))
    if name is not None:
        footer = file.footer
        told = footer.partition, footer.base_offset, footer.leader_epoch, footer.end_offset
        end_offset = footer.end_offset if name.end_offset is None else name.end_offset
        if told != (name.partition, name.base_offset, name.leader_epoch, end_offset):
            what = "it is the segment of partition {}, offset {}, epoch {}, up to offset {}".format(*told)
            raise damaged(path, ValueError(what))
    return file


def _open_checked(path: Path) -> ParquetFile | None:
    """None for a file without checksums. Raises BAD_BYTES."""
    with path.open("rb", buffering=0) as source:
        fd, size = source.fileno(), os.fstat(source.fileno()).st_size
        tail = os.pread(fd, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        footer_bytes = int.from_bytes(tail[-8:-4], "little") + checksums.TRAILER_BYTES
        if not tail.endswith(checksums.MAGIC) or footer_bytes > size:
            raise ValueError("its end is not that of a Parquet file")
        footer_at = size - footer_bytes
        footer = tail[-footer_bytes:] if footer_bytes <= len(tail) else os.pread(fd, footer_bytes, footer_at)
        crcs = checksums.check_footer(footer)
        if crcs is None:
            # In a small file these bytes include data, and a user's data may contain the key.
            if checksums.KEY.encode() in tail and not checksums.is_without_chain(footer):
                raise ValueError("its checksums are not as they were written")
            return None
        metadata = pq.read_metadata(pa.BufferReader(footer))
        chain = tuple(zip(checksums.places(metadata, footer_at), crcs, strict=True))
        (data_end, before), (_, after) = chain[-2:]
        if os.pread(fd, len(checksums.MAGIC), 0) != checksums.MAGIC:
            raise ValueError("its begin is not that of a Parquet file")
        if crc32c(os.pread(fd, footer_at - data_end, data_end), before) != after:
            raise ValueError("the checksum of the page index does not match")
    return ParquetFile(path, metadata, chain, footer[: -checksums.TRAILER_BYTES])


def _open_unchecked(path: Path) -> ParquetFile:
    metadata = pq.ParquetFile(path, page_checksum_verification=True).metadata
    if is_segment(metadata.metadata or {}, str(path)):
        raise ValueError("its checksums are missing")
    return ParquetFile(path, metadata, (), b"")


def damaged(where: object, error: Exception) -> Exception:
    """CorruptionError; the error itself if it is the system's: no such file, no descriptors."""
    # Arrow raises OSError for bad bytes, too, without a number.
    if isinstance(error, OSError) and error.errno is not None:
        return error
    return CorruptionError(f"{where} is damaged: {error}. It is not served as it is: restore the file from a backup.")
