"""The compressed records of a batch: inflated up to a limit, and deflated so that Kafka's own clients can read them.

Arrow's streams inflate step by step, so memory is bounded by the limit, whatever size a batch declares; zstd need not
declare any. Formats that the Java clients do not read are refused, because a batch goes to consumers as it came:

* snappy: a raw block, or blocks with the framing of xerial's snappy-java (SnappyOutputStream), which Java's clients and
  this module write.
* lz4: frames (LZ4 Frame Format 1.6.1) whose blocks are independent, ``KafkaLZ4BlockInputStream``.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

from logstore.errors import InvalidRecordBatchError, RecordBatchTooLargeError
from logstore.filesystem import Buffer
from logstore.kafka_batches.header import Compression
from logstore.limits import KIB

# This is looked up once, because an enumeration's members are slow to find.
_NONE: Final = Compression.NONE
_STEP_BYTES: Final = 64 * KIB
# Most batches inflate to less than this many times their size.
_USUAL_RATIO: Final = 4

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
#: magic, version, oldest version that can read it
_XERIAL_HEADER: Final = struct.Struct(">8sii")
_XERIAL_BLOCK: Final = struct.Struct(">i")
_XERIAL_BLOCK_BYTES: Final = 32 * KIB
# Blocks except the last inflate to at least 1 KiB, and snappy makes at best 50 bytes of that. Tiny ones would cost more
# time than their bytes are worth.
_XERIAL_MEAN_BYTES_MIN: Final = 32
_SNAPPY: Final = pa.Codec("snappy")

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_BLOCKS_INDEPENDENT: Final = 0x20
# Version 1, independent blocks of up to 64 KiB, no checksums and no size; then the byte that is this header's hash.
_LZ4_HEADER: Final = _LZ4_MAGIC + b"\x60\x40\x82"
_LZ4_BLOCK_BYTES: Final = 64 * KIB
_LZ4_BLOCK: Final = struct.Struct("<I")
_LZ4_STORED: Final = 1 << 31
_LZ4_END: Final = _LZ4_BLOCK.pack(0)
_LZ4_RAW: Final = pa.Codec("lz4_raw")


def inflate(compression: Compression, data: memoryview, max_bytes: int) -> Buffer:
    """Inflate the records of a batch. Raises RecordBatchTooLargeError if they have more than ``max_bytes``, and
    InvalidRecordBatchError if ``compression`` did not make them.
    """
    if compression is _NONE:
        if len(data) > max_bytes:
            raise _too_large(max_bytes)
        return data
    try:
        if compression is Compression.SNAPPY:
            return _inflate_snappy(data, max_bytes)
        if compression is Compression.LZ4 and not _blocks_are_independent(data):
            raise InvalidRecordBatchError(
                "The record batch has an lz4 frame with blocks that depend on each other, which Kafka's clients do not "
                "read: have them made independent"
            )
        return _inflate_stream(compression, data, max_bytes)
    except (pa.ArrowException, EOFError, OSError, ValueError, struct.error) as error:
        raise InvalidRecordBatchError(
            f"The record batch cannot be inflated as {compression.name.lower()}: {str(error)[:300]}"
        ) from error


def _too_large(max_bytes: int) -> RecordBatchTooLargeError:
    return RecordBatchTooLargeError(
        f"The records of a record batch have more than {max_bytes} bytes: send them in smaller batches"
    )


def _inflate_stream(compression: Compression, data: memoryview, max_bytes: int) -> bytes:
    pieces = []
    left = max_bytes + 1
    step = max(_STEP_BYTES, _USUAL_RATIO * len(data))
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), compression.name.lower()) as stream:
        while left and (piece := stream.read(min(step, left))):
            pieces.append(piece)
            left -= len(piece)
    if not left:
        raise _too_large(max_bytes)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _blocks_are_independent(frame: memoryview) -> bool:
    """Return whether the frame's descriptor says that its blocks are independent. Bytes that are not a frame count as
    such, as Arrow refuses them.
    """
    return bytes(frame[:4]) != _LZ4_MAGIC or len(frame) < 5 or bool(frame[4] & _LZ4_BLOCKS_INDEPENDENT)


def _inflate_snappy(data: memoryview, max_bytes: int) -> bytes:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _inflate_block(data, _block_size(data, max_bytes))
    pieces = []
    inflated = 0
    blocks_left = 64 + len(data) // _XERIAL_MEAN_BYTES_MIN
    at = _XERIAL_HEADER.size
    while at < len(data):
        (size,) = _XERIAL_BLOCK.unpack_from(data, at)
        at += _XERIAL_BLOCK.size
        blocks_left -= 1
        if not 0 < size <= len(data) - at:
            raise ValueError(f"there is no block of {size} bytes at byte {at}")
        if blocks_left < 0:
            raise ValueError(f"its blocks have less than {_XERIAL_MEAN_BYTES_MIN} bytes on average")
        block = data[at : at + size]
        block_size = _block_size(block, max_bytes - inflated)
        pieces.append(_inflate_block(block, block_size))
        inflated += block_size
        at += size
    return b"".join(pieces)


def _block_size(block: memoryview, max_bytes: int) -> int:
    """Return the inflated size that a raw block of snappy declares: a varint at its beginning."""
    size = 0
    for at, byte in enumerate(block[:5]):
        size |= (byte & 127) << 7 * at
        if byte < 128:
            break
    if size > max_bytes:
        raise _too_large(max_bytes)
    return size


def _inflate_block(block: memoryview, size: int) -> bytes:
    """Inflate a block. Arrow refuses one that inflates to another size than it declares."""
    return _SNAPPY.decompress(block, size, asbytes=True)  # type: ignore[no-any-return]


def deflate(compression: Compression, data: pa.Buffer) -> Buffer:
    """Return ``data`` as the records of a batch with that compression."""
    return _DEFLATE[compression](data)


def _stream(compression: Compression) -> Callable[[pa.Buffer], Buffer]:
    codec = pa.Codec(compression.name.lower())
    return lambda data: memoryview(codec.compress(data))


def _xerial(data: pa.Buffer) -> Buffer:
    pieces = [_XERIAL_HEADER.pack(_XERIAL_MAGIC, 1, 1)]
    for block in _blocks(data, _XERIAL_BLOCK_BYTES):
        deflated = _SNAPPY.compress(block, asbytes=True)
        pieces += (_XERIAL_BLOCK.pack(len(deflated)), deflated)
    return b"".join(pieces)


def _lz4_frame(data: pa.Buffer) -> Buffer:
    """Return a frame with independent blocks, unlike Arrow's frames, whose blocks depend on each other."""
    pieces: list[Buffer] = [_LZ4_HEADER]
    for block in _blocks(data, _LZ4_BLOCK_BYTES):
        deflated = _LZ4_RAW.compress(block, asbytes=True)
        if len(deflated) < len(block):
            pieces += (_LZ4_BLOCK.pack(len(deflated)), deflated)
        else:
            pieces += (_LZ4_BLOCK.pack(len(block) | _LZ4_STORED), memoryview(block))
    return b"".join((*pieces, _LZ4_END))


def _blocks(data: pa.Buffer, size: int) -> Iterator[pa.Buffer]:
    return (data.slice(at, min(size, len(data) - at)) for at in range(0, len(data), size))


_DEFLATE: Final[dict[Compression, Callable[[pa.Buffer], Buffer]]] = {
    Compression.NONE: memoryview,
    Compression.GZIP: _stream(Compression.GZIP),
    Compression.SNAPPY: _xerial,
    Compression.LZ4: _lz4_frame,
    Compression.ZSTD: _stream(Compression.ZSTD),
}
