"""Reads the frame of an Arrow IPC stream before Arrow itself opens any of it (rule R2).

Arrow allocates the size that a compressed buffer *says* it inflates to (19 KB of zstd became 600 MB), and some counts
in a message's metadata determine the size of its own tables. So the stream is cut into messages here, the sizes in the
flatbuffer of each are read, and the sum that all batches declare is compared with a limit. Nothing is allocated by a
declared size.

Sources: https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc,
``format/Message.fbs`` and ``format/Schema.fbs`` of Arrow, https://flatbuffers.dev/internals/.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from logstore.errors import InvalidRequestError, RequestTooLargeError
from logstore.limits import ARROW_BATCHES_PER_REQUEST_MAX, ARROW_METADATA_BYTES_MAX

_CONTINUATION = 0xFFFFFFFF
_ALIGNMENT = 8
_METADATA_V5 = 4
_HEADER_SCHEMA, _HEADER_DICTIONARY_BATCH, _HEADER_RECORD_BATCH = 1, 2, 3
_ENDIANNESS_LITTLE = 0
_PREFIX_BYTES = 8


@dataclass(frozen=True, slots=True)
class BatchMessage:
    """The place of a record batch message in the stream, prefix and body included, and the sizes that it declares.
    ``partition`` is the value of that key in the message's metadata.
    """

    start: int
    end: int
    num_rows: int
    metadata_bytes: int
    partition: bytes | None


@dataclass(frozen=True, slots=True)
class StreamLayout:
    """The layout of a stream: its schema message ``[0, schema_end)``, then the batches, and the inflated size of all
    buffers.
    """

    schema_end: int
    batches: tuple[BatchMessage, ...]
    inflated_bytes: int


def read_layout(stream: memoryview, max_bytes: int) -> StreamLayout:
    """Cut ``stream`` into messages and check everything that they declare.

    Raises RequestTooLargeError if the buffers of all batches together inflate to more than ``max_bytes``, and
    InvalidRequestError for anything that is not a stream of one schema and record batches.
    """
    try:
        return _read_layout(stream, max_bytes)
    except (struct.error, _OutOfBoundsError) as error:
        raise InvalidRequestError("The Arrow stream is malformed: a message points outside of itself") from error


def _read_layout(stream: memoryview, max_bytes: int) -> StreamLayout:
    schema_end = 0
    batches: list[BatchMessage] = []
    inflated = 0
    for start, body_start, message in _messages(stream):
        header_type = message.scalar(1, "B", 0)
        header = message.table(2)
        body_length = message.scalar(3, "q", 0)
        end = body_start + body_length
        if not 0 <= body_length <= len(stream) - body_start or body_length % _ALIGNMENT:
            raise InvalidRequestError(
                f"The Arrow stream is cut short or malformed: the message at byte {start} declares a body of "
                f"{body_length} bytes, {len(stream) - body_start} follow"
            )
        # Only V5 fixes where the compression is declared (V4 has a second, experimental place).
        if message.scalar(0, "h", 0) != _METADATA_V5:
            raise InvalidRequestError("The Arrow stream is of an old format: write it with metadata version V5")
        if header is None:
            raise InvalidRequestError(f"The Arrow message at byte {start} has no header")
        if start == 0:
            if header_type != _HEADER_SCHEMA:
                raise InvalidRequestError("The Arrow stream does not begin with a schema message")
            if header.scalar(0, "h", _ENDIANNESS_LITTLE) != _ENDIANNESS_LITTLE:
                raise InvalidRequestError("The Arrow stream is big-endian: write it little-endian")
            schema_end = end
        elif header_type == _HEADER_DICTIONARY_BATCH:
            raise InvalidRequestError("The Arrow stream has dictionary batches: cast dictionary columns to plain ones")
        elif header_type != _HEADER_RECORD_BATCH:
            raise InvalidRequestError(f"The Arrow message at byte {start} is not a record batch")
        else:
            num_rows, declared = _read_record_batch(header, stream[body_start:end], max_bytes)
            inflated += declared
            if inflated > max_bytes:
                raise RequestTooLargeError(
                    f"The Arrow batches declare more than max.request.size = {max_bytes} bytes when inflated: "
                    "send several smaller requests"
                )
            if len(batches) == ARROW_BATCHES_PER_REQUEST_MAX:
                raise InvalidRequestError(
                    f"The Arrow stream has more than {ARROW_BATCHES_PER_REQUEST_MAX} batches: combine them"
                )
            partition = message.key_value(4, b"partition")
            batches.append(BatchMessage(start, end, num_rows, body_start - start, partition))
    if not schema_end:
        raise InvalidRequestError("The body is empty: send an Arrow IPC stream with at least one record")
    return StreamLayout(schema_end, tuple(batches), inflated)


def _messages(stream: memoryview) -> Iterator[tuple[int, int, "_Table"]]:
    """Yield (start, start of the body, Message table) of each message; the consumer has checked the previous one."""
    position = 0
    while position < len(stream):
        if len(stream) - position < _PREFIX_BYTES:
            raise InvalidRequestError(f"The Arrow stream is cut short at byte {position}")
        continuation, length = struct.unpack_from("<Ii", stream, position)
        if continuation != _CONTINUATION:
            raise InvalidRequestError(
                f"No Arrow IPC message at byte {position}: send the stream format, not the file format or Parquet"
            )
        start, position = position, position + _PREFIX_BYTES
        if length == 0:
            if position != len(stream):
                raise InvalidRequestError(f"The Arrow stream ends at byte {position}, the body goes on after it")
            return
        if not 0 < length <= min(ARROW_METADATA_BYTES_MAX, len(stream) - position) or length % _ALIGNMENT:
            raise InvalidRequestError(
                f"The Arrow message at byte {start} declares {length} bytes of metadata: the stream is cut short or "
                f"malformed, or has more than {ARROW_METADATA_BYTES_MAX} bytes of schema metadata"
            )
        body_start = position + length
        message = _Table.root(stream[position:body_start])
        yield start, body_start, message
        position = body_start + message.scalar(3, "q", 0)


def _read_record_batch(header: "_Table", body: memoryview, max_bytes: int) -> tuple[int, int]:
    """Return (rows, inflated bytes of all buffers) that a RecordBatch declares."""
    num_rows = header.scalar(0, "q", 0)
    nodes = header.structs(1, "<qq")
    buffers = header.structs(2, "<qq")
    compressed = header.table(3) is not None
    # A row of a ``value`` column takes at least the 4 bytes of its offset.
    if not 0 <= num_rows <= max_bytes // 4:
        raise InvalidRequestError(f"An Arrow batch declares {num_rows} rows, which its size cannot hold")
    if any(not 0 <= null_count <= length <= max_bytes for length, null_count in nodes):
        raise InvalidRequestError("An Arrow batch declares impossible lengths or null counts")
    if any(not 0 <= count <= len(buffers) for (count,) in header.structs(4, "<q")):
        raise InvalidRequestError("An Arrow batch declares impossible numbers of variadic buffers")
    declared = 0
    for offset, length in buffers:
        if offset < 0 or length < 0 or offset + length > len(body) or offset % _ALIGNMENT:
            raise InvalidRequestError(
                f"An Arrow buffer of {length} bytes at {offset} is outside its message's body of {len(body)} bytes"
            )
        if not compressed or not length:
            declared += length
            continue
        if length < _PREFIX_BYTES:
            raise InvalidRequestError("A compressed Arrow buffer is too short for its length prefix")
        (inflated,) = struct.unpack_from("<q", body, offset)
        if inflated < -1:
            raise InvalidRequestError(f"A compressed Arrow buffer declares {inflated} bytes")
        # The number -1 means stored as it is.
        declared += length - _PREFIX_BYTES if inflated == -1 else inflated
    return num_rows, declared


class _OutOfBoundsError(Exception):
    """A flatbuffer offset leaves its buffer."""


class _Table:
    """A flatbuffer table, read with every position checked; absent fields read as their defaults."""

    __slots__ = ("_data", "_position", "_vtable", "_vtable_bytes")

    def __init__(self, data: memoryview, position: int) -> None:
        self._data = data
        self._position = position
        self._vtable = position - self._unpack("i", position)
        self._vtable_bytes = self._unpack("H", self._vtable)

    @classmethod
    def root(cls, data: memoryview) -> "_Table":
        return cls(data, struct.unpack_from("<I", data, 0)[0])

    def scalar(self, field: int, code: str, default: int) -> int:
        position = self._field(field)
        return default if position is None else self._unpack(code, position)

    def table(self, field: int) -> "_Table | None":
        position = self._field(field)
        return None if position is None else _Table(self._data, position + self._unpack("I", position))

    def structs(self, field: int, layout: str) -> list[tuple[int, ...]]:
        """Return a vector of structs; its length is checked against the bytes that exist."""
        position = self._field(field)
        if position is None:
            return []
        position += self._unpack("I", position)
        size = struct.calcsize(layout) * self._unpack("I", position)
        position += 4
        if position + size > len(self._data):
            raise _OutOfBoundsError
        return list(struct.iter_unpack(layout, self._data[position : position + size]))

    def key_value(self, field: int, wanted: bytes) -> bytes | None:
        """Return the value of a key in a vector of KeyValue tables; the last one if the key occurs more than once."""
        found = None
        position = self._field(field)
        if position is not None:
            position += self._unpack("I", position)
            for entry in range(position + 4, position + 4 + 4 * self._unpack("I", position), 4):
                pair = _Table(self._data, entry + self._unpack("I", entry))
                if pair._text(0) == wanted:
                    found = pair._text(1)
        return found

    def _text(self, field: int) -> bytes:
        position = self._field(field)
        if position is None:
            return b""
        position += self._unpack("I", position)
        end = position + 4 + self._unpack("I", position)
        if end > len(self._data):
            raise _OutOfBoundsError
        return bytes(self._data[position + 4 : end])

    def _field(self, field: int) -> int | None:
        entry = 4 + 2 * field
        if entry + 2 > self._vtable_bytes:
            return None
        offset = self._unpack("H", self._vtable + entry)
        return self._position + offset if offset else None

    def _unpack(self, code: str, position: int) -> int:
        # struct counts negative positions from the end.
        if position < 0:
            raise _OutOfBoundsError
        value: int = struct.unpack_from("<" + code, self._data, position)[0]
        return value
