"""Blocks of records between the input and the producer: their sources, and the columns added to each."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import numpy as np

    from logstore.cli.csv_reader import CsvFormat
    from logstore.cli.line_reader import Skipped
    from logstore.cli.line_records import LineRecords
    from logstore.cli.record_objects import RecordObjects
    from logstore.cli.table_reader import Fields, Rows

# Batches per second with --rate.
_BATCHES_PER_SECOND = 20


@dataclass(frozen=True, slots=True)
class Block:
    """Records, their numbers in the input (from 1), and how many bytes of it they took."""

    columns: dict[str, Any]
    numbers: "np.ndarray"
    size: int

    def __getitem__(self, rows: slice) -> "Block":
        """Return some of the records, with their share of the bytes."""
        numbers = self.numbers[rows]
        columns = {name: column[rows] for name, column in self.columns.items()}
        count = len(self.numbers)
        start, end, _ = rows.indices(count)
        return Block(columns, numbers, self.size * end // count - self.size * start // count)


def line_blocks(
    stream: BinaryIO, batch_bytes: int, records: "LineRecords | RecordObjects", skipped: "Skipped"
) -> Iterator[Block]:
    """Yield the records. Raises InvalidRecordError at the first line that is not one, after those before it."""
    from logstore.cli.line_reader import first_lines, read_lines

    for block in read_lines(stream, batch_bytes, skipped):
        columns, problem = records.columns(block)
        rows = len(columns["value"])
        if rows:
            lines = block if problem is None else first_lines(rows, block)
            yield Block(columns, lines.numbers, lines.size)
        if problem:
            raise problem


def csv_blocks(stream: BinaryIO, batch_bytes: int, format: "CsvFormat", fields: "Fields") -> Iterator[Block]:
    from logstore.cli.csv_reader import read_csv

    return _filled(read_csv(stream, batch_bytes, format, fields))


def parquet_blocks(file: Path, batch_bytes: int, fields: "Fields") -> Iterator[Block]:
    from logstore.cli.table_reader import read_parquet

    return _filled(read_parquet(file, batch_bytes, fields))


def _filled(rows: "Iterator[Rows]") -> Iterator[Block]:
    return (Block(part.columns, part.numbers, part.size) for part in rows if len(part.numbers))


def with_key(key: bytes, blocks: Iterator[Block]) -> Iterator[Block]:
    import pyarrow as pa

    return _with("key", pa.scalar(key, pa.binary()), blocks)


def with_headers(headers: Sequence[tuple[str, bytes]], blocks: Iterator[Block]) -> Iterator[Block]:
    """Add headers. Raises InvalidRecordError if the records have headers already."""
    import pyarrow as pa

    from logstore.errors import InvalidRecordError
    from logstore.records.schema import HEADERS_TYPE

    pairs = [{"key": name, "value": value} for name, value in headers]

    def checked() -> Iterator[Block]:
        for block in blocks:
            if "headers" in block.columns:
                raise InvalidRecordError("the file has a column of headers: leave out --header")
            yield block

    return _with("headers", pa.scalar(pairs, HEADERS_TYPE), checked())


def with_partition(partition: int, blocks: Iterator[Block]) -> Iterator[Block]:
    import pyarrow as pa

    return _with("partition", pa.scalar(partition, pa.int32()), blocks)


def _with(name: str, value: Any, blocks: Iterator[Block]) -> Iterator[Block]:
    import pyarrow as pa

    for block in blocks:
        columns = {**block.columns, name: pa.repeat(value, len(block.numbers))}
        yield Block(columns, block.numbers, block.size)


def with_tombstones(blocks: Iterator[Block]) -> Iterator[Block]:
    """Turn empty values into null."""
    from logstore.cli.line_records import nulls_for_empty

    for block in blocks:
        columns = {**block.columns, "value": nulls_for_empty(block.columns["value"])}
        yield Block(columns, block.numbers, block.size)


def no_faster(rate: float, blocks: Iterator[Block]) -> Iterator[Block]:
    """Yield blocks in parts, each not before its records are due."""
    began = time.monotonic()
    sent = 0
    rows = max(1, int(rate / _BATCHES_PER_SECOND))
    for block in blocks:
        for start in range(0, len(block.numbers), rows):
            part = block[start : start + rows]
            time.sleep(max(0.0, began + sent / rate - time.monotonic()))
            yield part
            sent += len(part.numbers)


def first_records(count: int, blocks: Iterator[Block]) -> Iterator[Block]:
    """Yield at most ``count`` records, and read no more of the input than they need."""
    for block in blocks:
        part = block[:count]
        yield part
        count -= len(part.numbers)
        if not count:
            return
