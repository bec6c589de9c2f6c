"""Reads a journal from its first byte to its end, and decides where that end is (rule R1). Changes nothing.

Rule R1: a bad frame is corruption only if later bytes show that its place was durable: a later frame whose
``durable_end`` is beyond its position, or a later file (a file is only begun after the previous one is synced to its
end). Otherwise the bad frame and all bytes after it are the tail that a crash left (the kernel may have written a later
page but not an earlier one), and the journal ends before it. A file may have such a tail after the start of the next
file, written by a process that had lost its lock. That tail is ignored.

Memory is bounded by ``WINDOW_BYTES``, whatever the size of a file or frame; the payloads of data frames are checked,
not kept. A frame of a kind that is not among ``kinds`` is refused, as is a control record that this release does not
know: frames of a newer release are neither cut nor skipped.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from logstore.crc32c import crc32c
from logstore.errors import CorruptionError, StorageError
from logstore.filesystem import FileSystem
from logstore.journal import format_1
from logstore.journal.errors import JournalCorruptionError
from logstore.journal.frame import (
    FRAME_MAGIC,
    HEADER_BYTES,
    HONOURED,
    VERSION_AT,
    FrameHeader,
    FrameLocation,
    FrameType,
    Kinds,
    StoredHeader,
    decode_frame_header,
)
from logstore.journal.identity import FoundJournal
from logstore.journal.journal_file import JournalFile, list_files
from logstore.limits import MIB
from logstore.records.transactions import OFFSET_MAX, PRODUCER_ID_MAX, EndTransactionMarker

WINDOW_BYTES: Final = 4 * MIB
# The types of frames whose payloads a recovery decodes; they are small.
_KEPT: Final = (FrameType.SNAPSHOT, FrameType.CONTROL)
_VERSION_1: Final = bytes((format_1.VERSION,))


class RecoveredFrame(NamedTuple):
    header: FrameHeader
    location: FrameLocation
    payload: bytes | None
    """The payload of a snapshot or control frame; None for others, which are read by their location."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a journal."""

    files: tuple[JournalFile, ...]
    """Open files; the caller closes them."""
    end: int
    """Journal position after the last good frame."""
    attested_end: int
    """Everything before it is known to be durable; the bytes from here to ``end`` exist, but may not be durable."""
    unborn: Path | None
    """The last file, if a crash left it before its header was durable; it is not among ``files``."""
    tail_bytes: int
    """Bytes other than zero after ``end``: the un-synced tail of a crash."""

    def found(self, directory: Path) -> FoundJournal:
        """Return the journal in the form that is compared with the expected one of ``directory``."""
        identity = self.files[-1].identity if self.files else None
        files = tuple((file.start, file.file_id) for file in self.files if file.file_id is not None)
        return FoundJournal(directory, self.end, identity, is_empty=not self.files, files=files)


def payload_is_good(file: JournalFile, position: int, stored: StoredHeader) -> bool:
    """Return whether the payload at ``position`` matches its header; it is read in pieces."""
    end = position + stored.payload_length
    crc = 0
    while position < end:
        chunk = file.read(position, min(WINDOW_BYTES, end - position))
        if not chunk:
            return False
        crc = crc32c(chunk, crc)
        position += len(chunk)
    return crc == stored.payload_crc


def good_frames(file: JournalFile, limit: int, kinds: Kinds = HONOURED) -> Iterator[tuple[StoredHeader, int]]:
    """Yield the headers and positions of a file's good frames, up to the first bad one, before ``limit``.

    Raises StorageError, JournalRangeFreedError and DataDirectoryError.
    """
    position = window_at = file.start + HEADER_BYTES
    window = b""
    while position < limit:
        at = position - window_at
        if at + HEADER_BYTES > len(window):
            window, window_at, at = file.read(position, min(WINDOW_BYTES, limit - position)), position, 0
        stored = decode_frame_header(window, at, position, file.file_id, kinds)
        if stored is None:
            return
        payload_at = at + HEADER_BYTES
        payload_end = payload_at + stored.payload_length
        if payload_end <= len(window):
            good = crc32c(window[payload_at:payload_end]) == stored.payload_crc
        else:
            good = payload_is_good(file, position + HEADER_BYTES, stored)
        if not good:
            return
        yield stored, position
        position = window_at + payload_end


def find_headers(
    file: JournalFile, position: int, limit: int, kinds: Kinds = HONOURED
) -> Iterator[tuple[StoredHeader, int]]:
    """Yield frame headers anywhere from ``position`` on, even with bad payloads, and their positions.

    Raises StorageError, JournalRangeFreedError and DataDirectoryError.
    """
    while position < limit:
        chunk = file.read(position, min(WINDOW_BYTES, limit - position))
        index = chunk.find(FRAME_MAGIC)
        while index >= 0:
            stored = decode_frame_header(chunk, index, position + index, file.file_id, kinds)
            if stored is not None:
                yield stored, position + index
            index = chunk.find(FRAME_MAGIC, index + 1)
        if len(chunk) < WINDOW_BYTES:
            return
        # The next piece overlaps this one, because a header may lie across the border.
        position += len(chunk) - HEADER_BYTES + 1


def _attested_end(file: JournalFile, position: int, kinds: Kinds) -> tuple[int, int]:
    """Return the highest ``durable_end`` in the frames from ``position`` on, and that frame's position; -1 without one.

    A header counts without its payload: its ``durable_end`` was true when it was written.
    """
    headers = find_headers(file, position, file.start + file.allocated, kinds)
    return max(((stored.durable_end, at) for stored, at in headers), default=(-1, -1))


def _used_bytes(file: JournalFile, position: int) -> int:
    """Return the number of bytes from ``position`` to the last one that is not zero."""
    begin = used_end = position
    while chunk := file.read(position, WINDOW_BYTES):
        if used := len(chunk.rstrip(b"\0")):
            used_end = position + used
        position += len(chunk)
    return used_end - begin


class JournalScan:
    """One pass over a journal directory: exhaust ``frames()``, then read ``verdict``."""

    def __init__(self, directory: Path, filesystem: FileSystem, kinds: Kinds = HONOURED) -> None:
        self._kinds = kinds
        self._directory = directory
        self._filesystem = filesystem
        self._verdict: Verdict | None = None

    @property
    def verdict(self) -> Verdict:
        if self._verdict is None:
            raise RuntimeError("frames() has not been read to its end")
        return self._verdict

    def frames(self) -> Iterator[RecoveredFrame]:
        """Yield all good frames in journal order. Raises JournalCorruptionError, StorageError, DataDirectoryError."""
        files: list[JournalFile] = []
        try:
            for start, path in list_files(self._directory, self._filesystem):
                try:
                    files.append(JournalFile.open(path, start, self._filesystem))
                except OSError as e:
                    raise StorageError(f"cannot open journal file {path}: {e.strerror}; check the disk") from e
            yield from self._frames(files)
        finally:
            kept = self._verdict.files if self._verdict else ()
            for file in files:
                if file not in kept:
                    file.close()

    def _frames(self, files: list[JournalFile]) -> Iterator[RecoveredFrame]:
        unborn = files[-1] if files and files[-1].file_id is None else None
        if unborn is not None:
            _check_unborn(unborn, self._kinds, alone=len(files) == 1)
        end = attested_end = tail_bytes = 0
        for file, following in itertools.zip_longest(files, files[1:]):
            if file is unborn:
                break
            if file.file_id is None:
                raise JournalCorruptionError(file.path, file.start, "its header is damaged, and later files exist")
            limit = file.start + file.allocated
            if following is not None:
                limit = min(limit, following.start)
            end = file.start + HEADER_BYTES
            attested_end = file.start
            tail = end
            for stored, position in good_frames(file, limit, self._kinds):
                header, length, _, durable_end = stored
                attested_end = max(attested_end, durable_end)
                tail = position + HEADER_BYTES + length
                if header.type is FrameType.MARK:
                    break
                end = tail
                file.add(header, {})
                if header.has_records or header.type is FrameType.TRUNCATE:
                    _check_offsets(header, position)
                payload = _payload(file, position, length) if header.type in _KEPT else None
                if header.type is FrameType.CONTROL and payload is not None:
                    _check_control(header, payload, f"the journal frame at position {position}")
                yield RecoveredFrame(header, FrameLocation(position, HEADER_BYTES + length), payload)
            file.size = end - file.start
            if following is not None:
                _check_finished(file, following, self._kinds)
                attested_end = end
            else:
                tail_bytes = _check_tail(file, tail, self._kinds)
        kept = tuple(file for file in files if file is not unborn)
        self._verdict = Verdict(kept, end, attested_end, unborn.path if unborn else None, tail_bytes)


def _payload(file: JournalFile, position: int, length: int) -> bytes:
    """Return the payload of a snapshot or control frame, in the form of the current version. Raises CorruptionError."""
    frame = file.read(position, HEADER_BYTES + length)
    payload = frame[HEADER_BYTES:]
    # Format 1 has no control frames.
    return format_1.snapshot_payload(payload) if frame.startswith(_VERSION_1, VERSION_AT) else payload


def _check_offsets(header: FrameHeader, position: int) -> None:
    """Raise CorruptionError for impossible offsets, before a log is built on them."""
    count = header.record_count
    if not 0 <= count <= OFFSET_MAX - header.base_offset <= OFFSET_MAX or (count and header.type is FrameType.TRUNCATE):
        raise CorruptionError(
            f"the journal frame at position {position} ({header.type.name}) takes {count} offsets from "
            f"{header.base_offset} on: no release wrote that. Restore the journal from a backup"
        )


def _check_control(header: FrameHeader, payload: bytes, where: str) -> None:
    """Refuse a marker that does not take exactly one offset, or that does not fit into the next file's snapshot.

    Raises CorruptionError and DataDirectoryError.
    """
    EndTransactionMarker.decode(payload, where)
    owner, epoch, _ = header.identity
    takes_one = header.record_count == 1 and 0 <= header.base_offset < OFFSET_MAX
    if not takes_one or owner > PRODUCER_ID_MAX or epoch < 0:
        raise CorruptionError(
            f"{where} is no control record: it takes {header.record_count} offsets from {header.base_offset} on, of "
            f"producer {owner} with epoch {epoch}"
        )


def _check_unborn(file: JournalFile, kinds: Kinds, *, alone: bool) -> None:
    """Check that a last file without a good header was never begun: no other bytes show that it was durable."""
    if _attested_end(file, file.start, kinds)[0] > file.start:
        raise JournalCorruptionError(file.path, file.start, "its header is damaged, and frames in it were durable")
    if alone and file.start > 0:
        raise JournalCorruptionError(
            file.path, file.start, "its header is damaged, and the files before it were freed because it was durable"
        )


def _check_finished(file: JournalFile, following: JournalFile, kinds: Kinds) -> None:
    """Check the bytes of a file after the start of the next file.

    The file was cut and synced exactly to that start. Later bytes were written by a process that had lost its lock. It
    acknowledged none of them, and its frames say that they are durable only if they were.
    """
    durable_end, witness = _attested_end(file, following.start, kinds)
    if file.end == following.start and durable_end <= following.start:
        return
    if file.end == following.start:
        reason = (
            f"the next file, {following.path.name}, begins there, and the frame at {witness} says that everything "
            f"before {durable_end} was durable"
        )
    elif file.size == file.allocated and file.end < following.start:
        reason = (
            f"it ends there, and the next file, {following.path.name}, begins later: a file is missing or cut short"
        )
    else:
        reason = f"a bad frame, and the next file, {following.path.name}, says that everything before it was durable"
    raise JournalCorruptionError(file.path, min(file.end, following.start), reason)


def _check_tail(file: JournalFile, tail: int, kinds: Kinds) -> int:
    """Apply rule R1 to the last file, and return the number of bytes to cut.

    Its good frames end at its ``end``, and with a mark at ``tail``.
    """
    durable_end, witness = _attested_end(file, tail, kinds)
    if durable_end > file.end:
        raise JournalCorruptionError(
            file.path,
            file.end,
            f"a bad frame, and the later frame at {witness} says that everything before {durable_end} was durable",
        )
    return _used_bytes(file, tail)
