"""Turns the bytes of a segment into Parquet data: bytes are compared with their checksum before they are parsed.

Invariants: a file with checksums is checked when it is opened, except its column chunks, and a column chunk before it
is decoded; a file under a segment's name is that segment. Files of another writer have no checksums of ours; Parquet's
own page checksums are verified if they exist.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from logstore.crc32c import crc32c
from logstore.errors import CorruptionError
from logstore.limits import ROW_GROUP_ROWS_MAX
from logstore.segments import checksums
from logstore.segments.chunk_memory import Bytes, ChunkMemory
from logstore.segments.footer import SegmentFooter, decode_footer, is_segment
from logstore.segments.names import parse_segment_name
from logstore.table_files import TableFiles

#: This is larger than most footers, so that one read gets a whole footer.
_TAIL_BYTES = 64 * 1024
#: Exceptions of Arrow for bad bytes.
BAD_BYTES = (pa.ArrowException, OSError, EOFError, ValueError, KeyError)


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """An open Parquet file. ``size`` is in bytes. ``chain``: (place, CRC-32C of the file up to there) at the ends of
    the magic number, of each column chunk, and of the page index. ``footer_bytes`` are the Thrift bytes of
    ``metadata``. Both are empty without checksums.
    """

    files: TableFiles
    name: str
    size: int
    metadata: pq.FileMetaData
    chain: tuple[tuple[int, int], ...]
    footer_bytes: bytes

    @property
    def place(self) -> str:
        """The file, for messages."""
        return self.files.where(self.name)

    @property
    def footer(self) -> SegmentFooter:
        """The segment's footer. Raises CorruptionError if it is not a segment's."""
        return decode_footer(self.metadata.metadata or {}, self.place)

    def read(self, row_group: int, columns: Collection[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Read columns of one row group, decoded ``rows`` at a time; its checked bytes are held meanwhile. Raises
        OSError, and CorruptionError if they have changed since they were written.
        """
        try:
            image = self._checked(row_group, columns) if self.chain else self._unchecked(row_group, columns)
            parquet = pq.ParquetFile(
                pa.BufferReader(image),
                metadata=self.metadata,
                pre_buffer=False,
                page_checksum_verification=not self.chain,
                # Spark writes timestamps this way.
                coerce_int96_timestamp_unit="us",
            )
            # One column has nearly all of the bytes: threads would gain little, and each keeps additional memory.
            yield from parquet.iter_batches(rows, row_groups=[row_group], columns=list(columns), use_threads=False)
        except BAD_BYTES as error:
            raise self.damaged_in(row_group, error) from error

    def read_chunk(self, row_group: int, column: str, memory: ChunkMemory) -> Bytes:
        """Read the bytes of a column chunk of a file with checksums into ``memory``. Raises OSError, and
        CorruptionError if they have changed since they were written.
        """
        (leaf,) = self._leaves([column])
        first = row_group * self.metadata.num_columns + leaf
        (begin, _), (end, _) = self.chain[first : first + 2]
        chunk = memory.take(end - begin)
        try:
            self._read_checked(row_group, [(leaf, chunk.data)])
        except BAD_BYTES as error:
            raise self.damaged_in(row_group, error) from error
        return chunk

    def verify(self) -> None:
        """Read the whole file. Raises OSError, and CorruptionError if a byte has changed since it was written."""
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
        """Describe the row group for messages, with its offsets if they are reliable."""
        where = f"{self.place}, row group {row_group}"
        if not self.chain:
            return where
        at = next(leaf for leaf in range(self.metadata.num_columns) if self._column(leaf) == "offset")
        offsets = self.metadata.row_group(row_group).column(at).statistics
        return f"{where} (offsets {offsets.min} to {offsets.max})"

    def damaged_in(self, row_group: int, error: Exception) -> Exception:
        """Return the error of ``damaged``, with the place in the file."""
        return damaged(self.where(row_group), error)

    def _checked(self, row_group: int, columns: Collection[str]) -> pa.Buffer:
        """Return an image of the file with only these columns of a row group. Raises ValueError if they are damaged."""
        first = row_group * self.metadata.num_columns
        # Memory pages of the image that are never written take no memory.
        image = np.empty(self.chain[first + self.metadata.num_columns][0], dtype=np.uint8)
        self._read_checked(
            row_group,
            [
                (leaf, image[self.chain[first + leaf][0] : self.chain[first + leaf + 1][0]].data)
                for leaf in self._leaves(columns)
            ],
        )
        return pa.py_buffer(image)

    def _read_checked(self, row_group: int, chunks: Sequence[tuple[int, memoryview]]) -> None:
        """Fill a buffer with each column chunk. Raises ValueError if one is damaged."""
        first = row_group * self.metadata.num_columns
        self.files.read_ranges(self.name, [(self.chain[first + leaf][0], buffer) for leaf, buffer in chunks])
        for leaf, buffer in chunks:
            (_, before), (_, after) = self.chain[first + leaf : first + leaf + 2]
            if crc32c(buffer, before) != after:
                raise ValueError(f"the checksum of column {self._column(leaf)} does not match")

    def _unchecked(self, row_group: int, columns: Collection[str]) -> pa.Buffer:
        """Return the same image of another writer's file: its column chunks are where its footer says."""
        group = self.metadata.row_group(row_group)
        chunks = [
            group.column(leaf) for leaf in range(group.num_columns) if self._column(leaf).split(".")[0] in columns
        ]
        bounds = [checksums.bounds(chunk) for chunk in chunks]
        if any(not 0 <= begin <= end <= self.size for begin, end in bounds):
            raise ValueError("a column chunk is said to be outside of the file")
        image = np.empty(max((end for _, end in bounds), default=0), dtype=np.uint8)
        self.files.read_ranges(self.name, [(begin, image[begin:end].data) for begin, end in bounds])
        return pa.py_buffer(image)

    def _leaves(self, columns: Collection[str]) -> list[int]:
        return [leaf for leaf in range(self.metadata.num_columns) if self._column(leaf).split(".")[0] in columns]

    def _column(self, leaf: int) -> str:
        return str(self.metadata.schema.column(leaf).path)


def open_parquet(files: TableFiles, name: str) -> ParquetFile:
    """Open a file. Raises FileNotFoundError, OSError, and CorruptionError if it is damaged or not the segment that its
    name says.
    """
    place = files.where(name)
    try:
        file = _open(files, name)
    except BAD_BYTES as error:
        raise damaged(place, error) from error
    known = parse_segment_name(name)
    if known is not None:
        footer = file.footer
        told = footer.partition, footer.base_offset, footer.leader_epoch, footer.end_offset
        end_offset = footer.end_offset if known.end_offset is None else known.end_offset
        if told != (known.partition, known.base_offset, known.leader_epoch, end_offset):
            what = "it is the segment of partition {}, offset {}, epoch {}, up to offset {}".format(*told)
            raise damaged(place, ValueError(what))
    return file


def _open(files: TableFiles, name: str) -> ParquetFile:
    """Open a file. Raises BAD_BYTES."""
    size = files.head(name).size
    begin, end = bytearray(min(size, len(checksums.MAGIC))), bytearray(min(size, _TAIL_BYTES))
    files.read_ranges(name, [(0, memoryview(begin)), (size - len(end), memoryview(end))])
    tail = _Tail(files, name, size, bytes(end))
    footer_bytes = int.from_bytes(tail.content[-8:-4], "little") + checksums.TRAILER_BYTES
    if not tail.content.endswith(checksums.MAGIC) or footer_bytes > size:
        raise ValueError("its end is not that of a Parquet file")
    footer_at = size - footer_bytes
    footer = tail.read(footer_at, size)
    crcs = checksums.check_footer(footer)
    if crcs is None:
        # In a small file these bytes include data, and a user's data may contain the key.
        if checksums.KEY.encode() in tail.content and not checksums.is_without_chain(footer):
            raise ValueError("its checksums are not as they were written")
        metadata = pq.read_metadata(pa.BufferReader(footer))
        if is_segment(metadata.metadata or {}, files.where(name)):
            raise ValueError("its checksums are missing")
        return ParquetFile(files, name, size, metadata, (), b"")
    metadata = pq.read_metadata(pa.BufferReader(footer))
    chain = tuple(zip(checksums.places(metadata, footer_at), crcs, strict=True))
    (data_end, before), (_, after) = chain[-2:]
    if begin != checksums.MAGIC:
        raise ValueError("its begin is not that of a Parquet file")
    if crc32c(tail.read(data_end, footer_at), before) != after:
        raise ValueError("the checksum of the page index does not match")
    return ParquetFile(files, name, size, metadata, chain, footer[: -checksums.TRAILER_BYTES])


@dataclass(frozen=True, slots=True)
class _Tail:
    """A file whose last bytes are ``content``."""

    files: TableFiles
    name: str
    size: int
    content: bytes

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes [begin, end) of the file; they are read from the disk only if ``content`` does not have
        them.
        """
        first = self.size - len(self.content)
        if begin >= first:
            return self.content[begin - first : end - first]
        content = bytearray(max(0, end - begin))
        self.files.read_ranges(self.name, [(begin, memoryview(content))])
        return bytes(content)


def damaged(where: object, error: Exception) -> Exception:
    """Return a CorruptionError, or the error itself if it is the system's: no such file, no descriptors."""
    # Arrow also raises OSError for bad bytes, without a number.
    if isinstance(error, OSError) and error.errno is not None:
        return error
    return CorruptionError(f"{where} is damaged: {error}. It is not served as it is: restore the file from a backup.")
