"""Lines of a stream as columns: blocks of bounded size, whole lines only.

As in NDJSON bodies of the HTTP interface, a line's bytes are the value, one CR at its end belongs to the line end, and
empty lines are skipped. Memory is bounded by a block and one line.
"""

import io
import select
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import InvalidRecordError
from logstore.limits import MIB

LINE_BYTES_MAX = 32 * MIB
# How long a block that is not full waits for more of a pipe before it goes out.
_LINGER_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Lines:
    """``values``: the lines that are not empty; ``numbers``: where they stand in the input, from 1. ``size``: bytes
    read for them.
    """

    values: pa.BinaryArray
    numbers: np.ndarray
    size: int


def read_lines(stream: BinaryIO, block_bytes: int) -> Iterator[Lines]:
    """Blocks of about ``block_bytes`` (at least one line); what a slow pipe or a terminal has is not held back.

    InvalidRecordError for a line over LINE_BYTES_MAX.
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
            yield _lines(whole, next_number, len(whole) + 1)
            next_number += whole.count(b"\n") + 1
        waiting, size = [rest], len(rest)
    if size:
        yield _lines(b"".join(waiting), next_number, size)


class JsonLines:
    """Checks that every line is JSON, and takes the keys out of ``key_field`` of objects.

    A key is that field's JSON text, a text with its quotes, as when the record is posted as JSON: both go to one
    partition. With ``key_raw`` a text key is its bytes. No such field, or null: no key.
    """

    def __init__(self, key_field: str | None, *, key_raw: bool) -> None:
        self._key_field, self._key_raw = key_field, key_raw
        kind: Any = Any
        if key_field is not None:
            field = ("key", msgspec.Raw, msgspec.Raw(b"null"))
            kind = msgspec.defstruct("Line", [field], rename={"key": key_field})
        self._decode = msgspec.json.Decoder(kind).decode

    def check(self, lines: Lines) -> tuple[Lines, pa.BinaryArray | None, InvalidRecordError | None]:
        """The lines before the first that is not JSON, their keys (None without a key field), and what to say of it."""
        keys: list[bytes | None] = []
        for row, line in enumerate(lines.values.to_pylist()):
            try:
                decoded = self._decode(line)
                if self._key_field is not None:
                    keys.append(self._key(bytes(decoded.key)))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                expected = "JSON" if self._key_field is None else "a JSON object"
                problem = InvalidRecordError(f"line {lines.numbers[row]} is not {expected}: {error}")
                return _first(row, lines), self._array(keys), problem
        return lines, self._array(keys), None

    def _array(self, keys: list[bytes | None]) -> pa.BinaryArray | None:
        return None if self._key_field is None else pa.array(keys, pa.binary())

    def _key(self, text: bytes) -> bytes | None:
        if text == b"null":
            return None
        if self._key_raw and text.startswith(b'"'):
            return msgspec.json.decode(text, type=str).encode()
        return text


def _first(rows: int, lines: Lines) -> Lines:
    values = lines.values[:rows]
    return Lines(values, lines.numbers[:rows], (pc.sum(pc.binary_length(values)).as_py() or 0) + rows)


def _lines(text: bytes, first_number: int, size: int) -> Lines:
    split = pc.split_pattern(pa.scalar(text, pa.large_binary()), pattern=b"\n").values.cast(pa.binary())
    if b"\r" in text:
        with_cr = pc.ends_with(split, pattern=b"\r")
        split = pc.if_else(with_cr, pc.binary_slice(split, 0, -1), split)
    filled = pc.greater(pc.binary_length(split), 0)
    numbers = first_number + np.flatnonzero(filled.to_numpy(zero_copy_only=False))
    return Lines(split.filter(filled), numbers, size)


def _read(stream: BinaryIO, limit: int) -> bytes:
    """What is there, at least one byte; b"" at the end. Never more than is there: a terminal's line comes at once."""
    reader = getattr(stream, "read1", stream.read)
    return bytes(reader(limit))


def _more_is_there(stream: BinaryIO) -> bool:
    try:
        ready, _, _ = select.select([stream], [], [], _LINGER_SECONDS)
    except (io.UnsupportedOperation, ValueError):
        # Not a file of the operating system: reading does not wait.
        return True
    return bool(ready)
