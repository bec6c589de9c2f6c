"""Lines of a stream as columns: blocks of bounded size, whole lines only.

As in NDJSON bodies of the HTTP interface, a line's bytes are the value, and one CR at its end belongs to the line end.
``Skipped`` selects the lines to skip. A byte order mark at the start is dropped. Memory is bounded by a block and one
line.
"""

import io
import select
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import InvalidRecordError
from logstore.limits import MIB
from logstore.records.byte_order_mark import without_byte_order_mark

LINE_BYTES_MAX = 32 * MIB
_BLANKS = (b" ", b"\t", b"\r")
# Seconds that a block that is not full waits for more from a pipe.
_LINGER_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Lines:
    """A block: ``values`` are the lines, ``numbers`` their numbers in the input, from 1, ``size`` the bytes read."""

    values: pa.BinaryArray
    numbers: np.ndarray
    size: int


class Skipped(Enum):
    """The lines that are not records: no line, empty lines, or lines with only JSON's white space."""

    none = auto()
    empty = auto()
    blank = auto()


def read_lines(stream: BinaryIO, block_bytes: int, skipped: Skipped = Skipped.empty) -> Iterator[Lines]:
    """Yield blocks of about ``block_bytes`` (at least one line). Lines of a slow pipe or a terminal are not held back.

    Raises InvalidRecordError for a line over LINE_BYTES_MAX.
    """
    next_number = 1
    waiting: list[bytes] = []
    size = 0
    while chunk := _read(stream, block_bytes - size if size < block_bytes else MIB):
        waiting.append(chunk)
        size += len(chunk)
        if b"\n" not in chunk and size > LINE_BYTES_MAX:
            raise InvalidRecordError(f"line {next_number} or one soon after has more than {LINE_BYTES_MAX} bytes")
        if size < block_bytes and _more_is_there(stream):
            continue
        whole, newline, rest = b"".join(waiting).rpartition(b"\n")
        if newline:
            text = without_byte_order_mark(whole) if next_number == 1 else whole
            yield _lines(text, next_number, len(whole) + 1, skipped)
            next_number += whole.count(b"\n") + 1
        waiting, size = [rest], len(rest)
    if size:
        rest = b"".join(waiting).removesuffix(b"\n")
        text = without_byte_order_mark(rest) if next_number == 1 else rest
        yield _lines(text, next_number, size, skipped)


def first_lines(rows: int, lines: Lines) -> Lines:
    """Return the first ``rows`` of them."""
    values = lines.values[:rows]
    return Lines(values, lines.numbers[:rows], (pc.sum(pc.binary_length(values)).as_py() or 0) + rows)


def _lines(text: bytes, first_number: int, size: int, skipped: Skipped) -> Lines:
    split = pc.split_pattern(pa.scalar(text, pa.large_binary()), pattern=b"\n").values.cast(pa.binary())
    if b"\r" in text:
        with_cr = pc.ends_with(split, pattern=b"\r")
        split = pc.if_else(with_cr, pc.binary_slice(split, 0, -1), split)
    if skipped is Skipped.none:
        return Lines(split, np.arange(first_number, first_number + len(split)), size)
    filled = pc.greater(pc.binary_length(split), 0)
    if skipped is Skipped.blank and any(text.startswith(blank) or b"\n" + blank in text for blank in _BLANKS):
        filled = pc.match_substring_regex(split, r"[^ \t\r]")
    numbers = first_number + np.flatnonzero(filled.to_numpy(zero_copy_only=False))
    return Lines(split.filter(filled), numbers, size)


def _read(stream: BinaryIO, limit: int) -> bytes:
    """Return the available bytes, at least one, without waiting for more (a line on a terminal); b"" at the end."""
    reader = getattr(stream, "read1", stream.read)
    return bytes(reader(limit))


def _more_is_there(stream: BinaryIO) -> bool:
    try:
        ready, _, _ = select.select([stream], [], [], _LINGER_SECONDS)
    except (io.UnsupportedOperation, ValueError):
        # It is not a file of the operating system, so reading does not wait.
        return True
    return bool(ready)
