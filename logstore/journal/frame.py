"""The bytes of the journal: file headers, frames and the state in snapshot frames.

Layout (little-endian, final): ``docs/journal-format.md``. Invariants: a frame is believed only if its magic, its own
CRC-32C, its journal position and the random id of its file agree, so that a stale block, a misplaced write, or journal
bytes that a producer sent as a value are never taken for a frame; the payload has a CRC-32C of its own, so that a
header can be believed (its length, its ``durable_end``) where its payload never reached the disk.
"""

import functools
import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from logstore.crc32c import crc32c
from logstore.errors import CorruptionError, DataDirectoryError
from logstore.filesystem import Buffer
from logstore.records.batch_identity import NO_IDENTITY, BatchIdentity, unpack_batches

FORMAT_VERSION: Final = 2
HEADER_BYTES: Final = 128
FRAME_MAGIC: Final = b"LSJF"
FILE_MAGIC: Final = b"LSJH"
PAYLOAD_BYTES_MAX: Final = (1 << 32) - 1

# Magic and the CRC-32C of the other 120 bytes of the header; then those.
_PREFIX: Final = struct.Struct("<4sI")
_FRAME: Final = struct.Struct("<BBHIIiQQQ16sqiiqqQqQh6x")
_STORED_FRAME: Final = struct.Struct("<4sIBBHIIiQQQ16sqiiqqQqQh6x")
_FILE: Final = struct.Struct("<B7xQQq88x")


class FrameType(IntEnum):
    DATA = 1
    """A record batch: one encapsulated Arrow IPC record batch message."""
    SNAPSHOT = 2
    """The state of one partition at the beginning of a file (``PartitionSnapshot``)."""
    MARK = 3
    """A frame without payload at the durable end: all bytes before it are durable. The next frame overwrites it."""
    TRUNCATE = 4
    """The partition's log ends at ``base_offset`` again: frames before this one hold nothing from there on. No payload;
    ``leader_epoch`` is that of the leader who ordered it.
    """


class FrameFlags(IntFlag):
    LOG_APPEND_TIME = 1
    """Every record's timestamp is the append time."""
    RELOCATED = 2
    """Copied forward from an older file: epoch, offset and append time are the original ones."""


# Tuples, not dataclasses: a frozen dataclass of 14 fields takes ten times as long to make (measured: 5 µs against
# 0.5 µs), and a recovery makes one per frame.
class FrameHeader(NamedTuple):
    """A frame's header. Record i has offset ``base_offset + i``; times are milliseconds since the epoch.

    ``inflated_bytes`` is the records' size in memory; a compressed payload may be a thousandth of that.
    """

    type: FrameType
    flags: FrameFlags
    topic_id: UUID
    partition: int
    base_offset: int
    record_count: int
    leader_epoch: int
    append_time_ms: int
    max_timestamp_ms: int
    inflated_bytes: int
    identity: BatchIdentity = NO_IDENTITY

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.record_count


class Frame(NamedTuple):
    header: FrameHeader
    payload: Buffer


class FrameLocation(NamedTuple):
    position: int
    """Journal position of the frame's first byte."""
    length: int
    """Bytes of the whole frame."""


class StoredHeader(NamedTuple):
    """A frame's header as read: with what encoding added to it."""

    header: FrameHeader
    payload_length: int
    payload_crc: int
    durable_end: int


class FileHeader(NamedTuple):
    file_id: int
    """Random, 64 bits; in each frame of the file, too."""
    start: int
    """Journal position of the file's first byte; everything before was durable when the file was made."""
    created_ms: int


def _with_prefix(magic: bytes, body: bytes) -> bytes:
    return _PREFIX.pack(magic, crc32c(body)) + body


def encode_file_header(header: FileHeader) -> bytes:
    return _with_prefix(FILE_MAGIC, _FILE.pack(FORMAT_VERSION, header.file_id, header.start, header.created_ms))


def decode_file_header(data: bytes, start: int) -> FileHeader | None:
    """The header of the file whose name says ``start``; None if these bytes are no such header. Raises
    DataDirectoryError if a newer release wrote it.
    """
    if len(data) < HEADER_BYTES:
        return None
    magic, crc = _PREFIX.unpack_from(data)
    body = data[_PREFIX.size : HEADER_BYTES]
    if magic != FILE_MAGIC or crc32c(body) != crc:
        return None
    version, file_id, stored_start, created_ms = _FILE.unpack(body)
    if version != FORMAT_VERSION:
        raise _unknown_version(version)
    return FileHeader(file_id, stored_start, created_ms) if stored_start == start else None


def encode_frame_header(frame: Frame, *, position: int, durable_end: int, file_id: int) -> bytes:
    """The bytes before the payload. Raises ValueError if the payload is over ``PAYLOAD_BYTES_MAX``."""
    header, payload = frame
    length = len(payload)
    if length > PAYLOAD_BYTES_MAX:
        raise ValueError(f"a journal frame's payload may have {PAYLOAD_BYTES_MAX} bytes, not {length}")
    body = _FRAME.pack(
        FORMAT_VERSION,
        header.type,
        header.flags,
        length,
        crc32c(payload),
        header.partition,
        position,
        durable_end,
        file_id,
        header.topic_id.bytes,
        header.base_offset,
        header.record_count,
        header.leader_epoch,
        header.append_time_ms,
        header.max_timestamp_ms,
        header.identity.owner,
        header.identity.sequence,
        header.inflated_bytes,
        header.identity.epoch,
    )
    return _PREFIX.pack(FRAME_MAGIC, crc32c(body)) + body


_TYPES: Final = {int(t): t for t in FrameType}
_FLAGS: Final = {value: FrameFlags(value) for value in range(4)}
_topic_id = functools.lru_cache(maxsize=4096)(lambda raw: UUID(bytes=raw))


def decode_frame_header(data: bytes, at: int, position: int, file_id: int | None) -> StoredHeader | None:
    """The header at ``data[at:]``, which is at journal position ``position``; None if no frame of this file is there.

    ``file_id`` None accepts frames of any file (for a file whose header is lost). Raises DataDirectoryError if a newer
    release wrote it.
    """
    if len(data) < at + HEADER_BYTES:
        return None
    (
        magic,
        crc,
        version,
        kind,
        flags,
        length,
        payload_crc,
        partition,
        stored_position,
        durable_end,
        stored_file_id,
        topic_id,
        base_offset,
        record_count,
        leader_epoch,
        append_time_ms,
        max_timestamp_ms,
        owner,
        sequence,
        inflated_bytes,
        epoch,
    ) = _STORED_FRAME.unpack_from(data, at)
    if magic != FRAME_MAGIC or stored_position != position or (file_id is not None and stored_file_id != file_id):
        return None
    if crc32c(data[at + 8 : at + HEADER_BYTES]) != crc:
        return None
    if version != FORMAT_VERSION:
        raise _unknown_version(version)
    if kind not in _TYPES or flags not in _FLAGS:
        raise DataDirectoryError(
            f"the journal frame at position {position} has type {kind}, flags {flags:#x}, which this release does not "
            "know: a newer release wrote it; start that one"
        )
    header = (
        _TYPES[kind],
        _FLAGS[flags],
        _topic_id(topic_id),
        partition,
        base_offset,
        record_count,
        leader_epoch,
        append_time_ms,
        max_timestamp_ms,
        inflated_bytes,
        NO_IDENTITY if epoch == -1 else BatchIdentity(owner, epoch, sequence),
    )
    return StoredHeader(FrameHeader._make(header), length, payload_crc, durable_end)


def _unknown_version(version: int) -> DataDirectoryError:
    return DataDirectoryError(
        f"the journal has format version {version}, and this release knows {FORMAT_VERSION}: "
        "start the release that wrote it"
    )


_MARK_HEADER: Final = FrameHeader(FrameType.MARK, FrameFlags(0), UUID(int=0), -1, -1, 0, -1, -1, -1, 0)


def encode_mark(*, durable_end: int, file_id: int) -> bytes:
    return encode_frame_header(Frame(_MARK_HEADER, b""), position=durable_end, durable_end=durable_end, file_id=file_id)


class _SnapshotState(msgspec.Struct):
    """The msgpack map in a snapshot frame. Unknown fields are skipped, so that later releases may add some."""

    sealed_offset: int
    leader_epochs: list[tuple[int, int]]
    # Packed batches, in one string or none.
    producers: list[bytes] = []
    open_transactions: list[msgspec.Raw] = []
    idempotency_keys: list[bytes] = []
    log_end_offset: int = 0
    producers_forgotten_up_to: int = -1


_snapshot_decoder = msgspec.msgpack.Decoder(_SnapshotState)


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """A partition's state at the beginning of a journal file.

    ``producers`` and ``idempotency_keys`` are the batches remembered of the records below ``log_end_offset``, packed
    (``unpack_batches``); of producers up to ``producers_forgotten_up_to`` a part may be missing.
    """

    sealed_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    """(leader epoch, its start offset), rising."""
    log_end_offset: int = 0
    producers: bytes = b""
    idempotency_keys: bytes = b""
    producers_forgotten_up_to: int = -1

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(
            _SnapshotState(
                self.sealed_offset,
                list(self.leader_epochs),
                [self.producers] if self.producers else [],
                [],
                [self.idempotency_keys] if self.idempotency_keys else [],
                self.log_end_offset,
                self.producers_forgotten_up_to,
            )
        )

    @classmethod
    def decode(cls, payload: Buffer) -> "PartitionSnapshot":
        """Raises CorruptionError."""
        try:
            state = _snapshot_decoder.decode(payload)
            packed = b"".join(state.producers), b"".join(state.idempotency_keys)
            for batches in packed:
                unpack_batches(batches)
        except (msgspec.DecodeError, ValueError) as e:
            raise CorruptionError(f"a journal snapshot frame passed its CRC but does not parse: {e}") from e
        return cls(
            state.sealed_offset,
            tuple(state.leader_epochs),
            state.log_end_offset,
            *packed,
            state.producers_forgotten_up_to,
        )
