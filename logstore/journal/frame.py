"""The bytes of the journal: file headers and frames.

Layout (little-endian, final): ``docs/journal-format.md``. Invariants: a frame is valid only if its magic, its own
CRC-32C, its journal position and the random id of its file agree, so that a stale block, a misplaced write, or journal
bytes that a producer sent as a value are never taken for a frame; the payload has a separate CRC-32C, so that a header
(its length, its ``durable_end``) is valid even if its payload never reached the disk. A frame whose version, type or
flags this release does not honour is refused by name, never skipped.
"""

import functools
import struct
from collections.abc import Mapping
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple, Self
from uuid import UUID

from logstore.crc32c import crc32c
from logstore.errors import DataDirectoryError
from logstore.filesystem import Buffer
from logstore.journal import format_1
from logstore.journal.identity import JournalIdentity
from logstore.records.batch_identity import NO_IDENTITY, BatchIdentity

#: The version that is written; earlier versions are still read.
FORMAT_VERSION: Final = 4
HEADER_BYTES: Final = 128
#: The position of the version byte in the headers of files and frames.
VERSION_AT: Final = 8
FRAME_MAGIC: Final = b"LSJF"
FILE_MAGIC: Final = b"LSJH"
PAYLOAD_BYTES_MAX: Final = (1 << 32) - 1

# Magic, and the CRC-32C of the other 120 bytes of the header, which follow.
_PREFIX: Final = struct.Struct("<4sI")
_FRAME: Final = struct.Struct("<BBHIIiQQQ16sqiiqqQqQh6x")
# The same fields with the prefix; version, type and flags are one number.
_STORED_FRAME: Final = struct.Struct("<4sIIIIiQQQ16sqiiqqQqQh6x")
_FILE: Final = struct.Struct("<B7xQQq16sQ64x")


class FrameType(IntEnum):
    DATA = 1
    """A record batch: one encapsulated Arrow IPC record batch message."""
    SNAPSHOT = 2
    """The state of one partition at the beginning of a file (``PartitionSnapshot``)."""
    MARK = 3
    """A frame without payload at the durable end: all bytes before it are durable. The next frame overwrites it."""
    TRUNCATE = 4
    """The partition's log ends at ``base_offset`` again: frames before this one do not count from there on. No payload;
    ``leader_epoch`` is that of the leader that ordered it.
    """
    KAFKA_BATCH = 5
    """A record batch of a Kafka client (magic 2), verbatim except for append times."""
    CONTROL = 6
    """A transaction marker: it takes one offset and holds no record. The header has the producer's id and epoch, the
    payload is an ``EndTransactionMarker``.
    """


class FrameFlags(IntFlag):
    LOG_APPEND_TIME = 1
    """Every record's timestamp is the append time."""
    RELOCATED = 2
    """Copied forward from an older file: epoch, offset and append time are the original ones."""
    TRANSACTIONAL = 4
    """All records belong to a transaction of the producer in the header. Reserved: this release neither writes nor
    honours it.
    """


# These are tuples, not dataclasses: a frozen dataclass of 14 fields takes ten times as long to make (measured: 5 µs
# against 0.5 µs), and a recovery makes one per frame.
class FrameHeader(NamedTuple):
    """A frame's header. Record i has offset ``base_offset + i``; times are milliseconds since the epoch.

    ``record_count`` is the number of offsets that the frame takes. Each has a record if ``has_records``; a CONTROL
    frame takes one and has none. ``inflated_bytes`` is the records' size in memory; a compressed payload may be a
    thousandth of that. The frame has one ``identity`` and one set of flags, so its records have one producer, and are
    all transactional or all plain.
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

    @property
    def is_honoured(self) -> bool:
        """True if this release accepts such a frame; it refuses others at a start and in reads."""
        return not _unhonoured(self.flags)

    @property
    def takes_offsets(self) -> bool:
        """True if the frame is part of the log; other frames describe the log."""
        return self.has_records or self.type is _CONTROL

    @property
    def has_records(self) -> bool:
        return self.type is _DATA or self.type is _KAFKA_BATCH


# These are looked up once, because an enumeration's members are slow to find, and to hash.
_DATA: Final = FrameType.DATA
_KAFKA_BATCH: Final = FrameType.KAFKA_BATCH
_CONTROL: Final = FrameType.CONTROL


class Frame(NamedTuple):
    header: FrameHeader
    payload: Buffer

    @property
    def payload_crc(self) -> int:
        """CRC-32C of the payload."""
        return crc32c(self.payload)


class CheckedFrame(Frame):
    """A frame whose payload arrived with its CRC and was checked: the copy keeps the CRC of the original (C15)."""

    _payload_crc: int

    @classmethod
    def of(cls, header: FrameHeader, payload: Buffer, payload_crc: int) -> Self:
        frame = cls(header, payload)
        frame._payload_crc = payload_crc
        return frame

    @property
    def payload_crc(self) -> int:
        return self._payload_crc


class FrameLocation(NamedTuple):
    position: int
    """Journal position of the frame's first byte."""
    length: int
    """Bytes of the whole frame."""


class StoredHeader(NamedTuple):
    """A header that was read, with the fields that encoding added."""

    header: FrameHeader
    payload_length: int
    payload_crc: int
    durable_end: int


class FileHeader(NamedTuple):
    file_id: int
    """Random, 64 bits; every frame of the file also has it."""
    start: int
    """Journal position of the file's first byte; everything before it was durable when the file was made."""
    created_ms: int
    identity: JournalIdentity | None
    """None in a file of a version before 4."""


def _with_prefix(magic: bytes, body: bytes) -> bytes:
    return _PREFIX.pack(magic, crc32c(body)) + body


def encode_file_header(header: FileHeader) -> bytes:
    """Return the first bytes of a file; ``header.identity`` is not None."""
    assert header.identity is not None
    directory_id, incarnation = header.identity
    return _with_prefix(
        FILE_MAGIC,
        _FILE.pack(FORMAT_VERSION, header.file_id, header.start, header.created_ms, directory_id.bytes, incarnation),
    )


def decode_file_header(data: bytes, start: int) -> FileHeader | None:
    """Return the header of the file whose name says ``start``; None if these bytes are not such a header.

    Raises DataDirectoryError if a newer release wrote it.
    """
    if len(data) < HEADER_BYTES:
        return None
    magic, crc = _PREFIX.unpack_from(data)
    body = data[_PREFIX.size : HEADER_BYTES]
    if magic != FILE_MAGIC or crc32c(body) != crc:
        return None
    version, file_id, stored_start, created_ms, directory_id, incarnation = _FILE.unpack(body)
    if version not in _FORMATS:
        raise _unknown_version(f"the journal file at position {start}", version)
    if stored_start != start:
        return None
    identity = JournalIdentity(UUID(bytes=directory_id), incarnation) if version >= _WITH_IDENTITY else None
    return FileHeader(file_id, stored_start, created_ms, identity)


def encode_frame_header(frame: Frame, *, position: int, durable_end: int, file_id: int) -> bytes:
    """Return the bytes before the payload. Raises ValueError if the payload exceeds ``PAYLOAD_BYTES_MAX``."""
    (
        (
            frame_type,
            flags,
            topic_id,
            partition,
            base_offset,
            record_count,
            leader_epoch,
            append_time_ms,
            max_timestamp_ms,
            inflated_bytes,
            (owner, epoch, sequence),
        ),
        payload,
    ) = frame
    length = len(payload)
    if length > PAYLOAD_BYTES_MAX:
        raise ValueError(f"a journal frame's payload may have {PAYLOAD_BYTES_MAX} bytes, not {length}")
    body = _FRAME.pack(
        FORMAT_VERSION,
        frame_type,
        flags,
        length,
        frame.payload_crc,
        partition,
        position,
        durable_end,
        file_id,
        topic_id.bytes,
        base_offset,
        record_count,
        leader_epoch,
        append_time_ms,
        max_timestamp_ms,
        owner,
        sequence,
        inflated_bytes,
        epoch,
    )
    return _PREFIX.pack(FRAME_MAGIC, crc32c(body)) + body


Kinds = Mapping[int, tuple[FrameType, FrameFlags]]
"""Types and flags by the four bytes of version, type and flags in a header, read as one number."""


def _kind(version: int, kind: int, flags: int) -> int:
    return version | kind << 8 | flags << 16


# The types of each version, and all its flags together.
_FIRST_TYPES: Final = (FrameType.DATA, FrameType.SNAPSHOT, FrameType.MARK)
_FORMATS: Final[Mapping[int, tuple[tuple[FrameType, ...], int]]] = {
    1: (_FIRST_TYPES, FrameFlags.LOG_APPEND_TIME | FrameFlags.RELOCATED),
    2: (_FIRST_TYPES, FrameFlags.LOG_APPEND_TIME | FrameFlags.RELOCATED),
    3: (tuple(FrameType), FrameFlags.LOG_APPEND_TIME | FrameFlags.RELOCATED | FrameFlags.TRANSACTIONAL),
    4: (tuple(FrameType), FrameFlags.LOG_APPEND_TIME | FrameFlags.RELOCATED | FrameFlags.TRANSACTIONAL),
}
#: The first version whose file headers have an identity.
_WITH_IDENTITY: Final = 4

#: The frames that this release can name.
KNOWN: Final[Kinds] = {
    _kind(version, kind, flags): (kind, FrameFlags(flags))
    for version, (kinds, all_flags) in _FORMATS.items()
    for kind in kinds
    for flags in range(all_flags + 1)
}


def _unhonoured(flags: int) -> str:
    """Return the flags that this release does not honour, in words. It honours all types."""
    return f"has the flag TRANSACTIONAL ({int(FrameFlags.TRANSACTIONAL)})" if flags & FrameFlags.TRANSACTIONAL else ""


#: The kinds of frame that this release honours: a log with any other kind cannot be served.
HONOURED: Final[Kinds] = {key: known for key, known in KNOWN.items() if not _unhonoured(known[1])}
_topic_id = functools.lru_cache(maxsize=4096)(lambda raw: UUID(bytes=raw))


def decode_frame_header(
    data: Buffer, at: int, position: int | None, file_id: int | None, kinds: Kinds = HONOURED
) -> StoredHeader | None:
    """Return the header at ``data[at:]``, at journal position ``position``; None if it is not a frame of this file.

    If ``file_id`` is None, frames of any file are accepted (for a file whose header is lost); if ``position`` is None,
    frames of any position (for another broker's journal). Raises DataDirectoryError on a frame whose kind is not among
    ``kinds``: a newer release wrote it.
    """
    if len(data) < at + HEADER_BYTES:
        return None
    (
        magic,
        crc,
        kind,
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
    if magic != FRAME_MAGIC or (file_id is not None and stored_file_id != file_id):
        return None
    if position is not None and stored_position != position:
        return None
    if crc32c(data[at + 8 : at + HEADER_BYTES]) != crc:
        return None
    known = kinds.get(kind)
    if known is None:
        raise _refusal(kind & 0xFF, kind >> 8 & 0xFF, kind >> 16, stored_position)
    frame_type, flags = known
    identity = BatchIdentity(owner, epoch, sequence) if owner or epoch != -1 else NO_IDENTITY
    if kind & 0xFF == format_1.VERSION:
        identity, inflated_bytes = format_1.sender(data, at)
    header = (
        frame_type,
        flags,
        _topic_id(topic_id),
        partition,
        base_offset,
        record_count,
        leader_epoch,
        append_time_ms,
        max_timestamp_ms,
        inflated_bytes,
        identity,
    )
    return StoredHeader(FrameHeader._make(header), length, payload_crc, durable_end)


def _refusal(version: int, kind: int, flags: int, position: int) -> DataDirectoryError:
    """Return the error that says why a frame with a good header is refused."""
    where = f"the journal frame at position {position}"
    if version not in _FORMATS:
        return _unknown_version(where, version)
    types, known_flags = _FORMATS[version]
    if kind not in types or flags & ~int(known_flags):
        return DataDirectoryError(
            f"{where} (format version {version}) has type {kind}, flags {flags:#x}, which this release does not know "
            "in that version: a newer release wrote it; start that one"
        )
    return DataDirectoryError(
        f"{where} {_unhonoured(flags)}, which this release does not serve. A newer release wrote it: start that one. "
        "Nothing was changed"
    )


def _unknown_version(where: str, version: int) -> DataDirectoryError:
    *earlier, last = _FORMATS
    return DataDirectoryError(
        f"{where} has format version {version}, and this release knows {', '.join(map(str, earlier))} and {last}: "
        "start the release that wrote it"
    )


_MARK_HEADER: Final = FrameHeader(FrameType.MARK, FrameFlags(0), UUID(int=0), -1, -1, 0, -1, -1, -1, 0)


def encode_mark(*, durable_end: int, file_id: int) -> bytes:
    return encode_frame_header(Frame(_MARK_HEADER, b""), position=durable_end, durable_end=durable_end, file_id=file_id)
