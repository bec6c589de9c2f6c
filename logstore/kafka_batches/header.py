"""The header of a record batch of magic 2, and the changes that a broker makes in it.

https://kafka.apache.org/documentation/#recordbatch; all integers are big-endian. The CRC-32C covers everything from the
attributes on: base offset and leader epoch come before it, so a batch gets its place in the log without another CRC.
"""

import struct
from enum import IntEnum
from typing import Final, NamedTuple, Self

import pyarrow as pa

from logstore.crc32c import crc32c
from logstore.errors import CorruptRecordBatchError, InvalidRecordBatchError, UnsupportedCompressionTypeError
from logstore.filesystem import Buffer

MAGIC: Final = 2
HEADER_BYTES: Final = 61
#: base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base timestamp, max timestamp, producer
#: id, producer epoch, base sequence, number of records
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
#: base offset, length, leader epoch
_PLACE: Final = struct.Struct(">qii")
_CRC: Final = struct.Struct(">I")
#: The fields from the attributes to the max timestamp.
_TIMES: Final = struct.Struct(">hiqq")
#: The length in the header counts from the leader epoch on.
LENGTH_END: Final = 12
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21

_COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
#: The timestamp of a record that has none.
NO_TIMESTAMP: Final = -1


class Compression(IntEnum):
    """The compression types: the low three bits of the attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# Looking one up by its number in the class takes ten times as long.
_COMPRESSIONS: Final = tuple(Compression)


class BatchHeader(NamedTuple):
    """The header of a batch. Record i of a producer's batch has the offset ``base_offset`` + i; times are milliseconds
    since the epoch.
    """

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The bytes of the whole batch."""
        return LENGTH_END + self.length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def compression(self) -> Compression:
        """The compression in the attributes. Raises UnsupportedCompressionTypeError for an unknown one."""
        kind = self.attributes & _COMPRESSION_MASK
        if kind >= len(_COMPRESSIONS):
            raise UnsupportedCompressionTypeError(
                f"The record batch has compression type {kind}: send none, gzip, snappy, lz4 or zstd"
            )
        return _COMPRESSIONS[kind]

    @property
    def is_log_append_time(self) -> bool:
        """True if every record's timestamp is ``max_timestamp``."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """True if the records are markers, which only brokers write."""
        return bool(self.attributes & CONTROL)

    @classmethod
    def read(cls, data: memoryview, at: int = 0) -> Self:
        """Read the header of the batch that begins at ``data[at]`` and is whole.

        Raises CorruptRecordBatchError if it is cut, and InvalidRecordBatchError if it has another magic.
        """
        left = len(data) - at
        # Older formats have the magic in the same place, and shorter headers.
        if left > _MAGIC_AT and (magic := data[at + _MAGIC_AT]) != MAGIC:
            raise InvalidRecordBatchError(
                f"The record batch at byte {at} has magic {magic}: send batches of magic {MAGIC} (Kafka 0.11 and newer)"
            )
        if left < HEADER_BYTES:
            raise CorruptRecordBatchError(
                f"The record batch at byte {at} is cut: {left} bytes are there, and its header alone has {HEADER_BYTES}"
            )
        header = cls._make(_HEADER.unpack_from(data, at))
        if not HEADER_BYTES <= (size := header.size) <= left:
            raise CorruptRecordBatchError(
                f"The record batch at byte {at} has {size} bytes by its length, and {left} are there"
            )
        return header


def bytes_of(data: Buffer | pa.Buffer) -> memoryview:
    """Return a view of unsigned bytes: those of Arrow's buffers are signed."""
    return memoryview(data).cast("B")


def check_crc(data: memoryview, header: BatchHeader, at: int = 0) -> None:
    """Raise CorruptRecordBatchError unless the batch with ``header`` at ``data[at]`` is as its writer wrote it."""
    if crc32c(data[at + _ATTRIBUTES_AT : at + header.size]) != header.crc:
        raise CorruptRecordBatchError(f"The record batch at byte {at} has a wrong CRC-32C: it was damaged on the way")


def write_header(batch: memoryview, header: BatchHeader) -> None:
    """Write ``header`` with its CRC to the front of ``batch``, a whole batch that can be written."""
    _HEADER.pack_into(batch, 0, *header)
    _CRC.pack_into(batch, _CRC_AT, crc32c(batch[_ATTRIBUTES_AT:]))


def placed(batch: Buffer | pa.Buffer, base_offset: int, leader_epoch: int) -> tuple[bytes, memoryview]:
    """Return ``batch`` with its place in the log, in two pieces: 16 bytes, and the rest as it is."""
    view = bytes_of(batch)
    _, length, _ = _PLACE.unpack_from(view)
    return _PLACE.pack(base_offset, length, leader_epoch), view[_PLACE.size :]


def with_max_timestamp(batch: Buffer | pa.Buffer, max_timestamp_ms: int, *, log_append_time: bool) -> bytes:
    """Return a copy of ``batch`` with that max timestamp and the new CRC; with ``log_append_time`` it is the timestamp
    of every record (message.timestamp.type = LogAppendTime). The records stay as they are.
    """
    changed = bytearray(batch)
    attributes, last_offset_delta, base_timestamp, _ = _TIMES.unpack_from(changed, _ATTRIBUTES_AT)
    attributes = attributes & ~LOG_APPEND_TIME | (LOG_APPEND_TIME if log_append_time else 0)
    _TIMES.pack_into(changed, _ATTRIBUTES_AT, attributes, last_offset_delta, base_timestamp, max_timestamp_ms)
    view = memoryview(changed)
    _CRC.pack_into(view, _CRC_AT, crc32c(view[_ATTRIBUTES_AT:]))
    return bytes(changed)
