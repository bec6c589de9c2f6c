"""Inspects a journal from outside, and repairs a damaged end: ``logstore journal dump|verify|repair``.

``dump`` and ``verify`` change nothing. ``repair`` is only for a stopped broker, and keeps a copy of every byte that it
removes from the journal.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from uuid import UUID

from logstore.errors import LogStoreError, StorageError
from logstore.filesystem import FileSystem, local_filesystem
from logstore.inspection.observed_journal import ObservedJournal
from logstore.journal.errors import JournalCorruptionError
from logstore.journal.frame import HEADER_BYTES, KNOWN, FrameFlags, FrameType
from logstore.journal.identity import FoundJournal
from logstore.journal.journal_file import JournalFile, PartitionKey, list_files
from logstore.journal.partition_snapshot import PartitionSnapshot
from logstore.journal.scan import WINDOW_BYTES, JournalScan, find_headers, payload_is_good
from logstore.records.batch_identity import NO_IDENTITY, BatchIdentity, RememberedBatch, unpack_batches
from logstore.records.transactions import EndTransactionMarker, Marker, OpenTransaction

CORRUPT_SUFFIX: Final = ".corrupt"


@dataclass(frozen=True, slots=True)
class DumpedSnapshot:
    """A ``PartitionSnapshot`` with its batches unpacked."""

    sealed_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    log_end_offset: int
    producers: tuple[RememberedBatch, ...]
    idempotency_keys: tuple[RememberedBatch, ...]
    producers_forgotten_up_to: int
    open_transactions: tuple[OpenTransaction, ...] = ()
    markers: tuple[Marker, ...] = ()

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Decode a payload. Raises CorruptionError."""
        found = PartitionSnapshot.decode(payload)
        return cls(
            found.sealed_offset,
            found.leader_epochs,
            found.log_end_offset,
            tuple(unpack_batches(found.producers)),
            tuple(unpack_batches(found.idempotency_keys)),
            found.producers_forgotten_up_to,
            found.open_transactions,
            found.markers,
        )


@dataclass(frozen=True, slots=True)
class DumpedControl:
    type: str
    """COMMIT or ABORT."""
    coordinator_epoch: int

    @classmethod
    def decode(cls, payload: bytes, position: int) -> Self:
        """Decode a payload. Raises CorruptionError and DataDirectoryError."""
        found = EndTransactionMarker.decode(payload, f"the journal frame at position {position}")
        return cls(found.type.name, found.coordinator_epoch)


@dataclass(frozen=True, slots=True)
class DumpRow:
    """One frame, flat, for a table or JSON."""

    file: str
    position: int
    length: int
    type: str
    relocated: bool
    log_append_time: bool
    transactional: bool
    topic_id: UUID
    partition: int
    base_offset: int
    record_count: int
    leader_epoch: int
    append_time_ms: int
    max_timestamp_ms: int
    inflated_bytes: int
    identity: BatchIdentity | None
    """None for a batch without an identity."""
    snapshot: DumpedSnapshot | None
    control: DumpedControl | None
    honoured: bool
    """True if this release accepts the frame; a start refuses a journal with other frames."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    files: int
    frames: int
    bytes: int
    end_position: int
    tail_bytes: int
    """Bytes that the next start will cut: no durable frame comes after them."""
    damage: LogStoreError | None
    """Why the broker would refuse the journal; the counts are then those of the good part before the damage."""


@dataclass(frozen=True, slots=True)
class LostRange:
    """Frames of a partition from the damage on, which a repair removes.

    Their table shows whether their records are lost (``logstore.inspection.journal_loss``). A frame whose header is
    unreadable is not among them.
    """

    topic_id: UUID
    partition: int
    first_offset: int
    end_offset: int
    records: int


@dataclass(frozen=True, slots=True)
class RepairReport:
    position: int
    """The journal's end after the repair."""
    copies: tuple[Path, ...]
    """The files with the bytes that were removed."""
    lost: tuple[LostRange, ...]


def dump(directory: Path, filesystem: FileSystem | None = None) -> Iterator[DumpRow]:
    """Yield every good frame in journal order, including those that a start refuses.

    Raises CorruptionError after the last good frame, StorageError, and DataDirectoryError on a frame that this release
    cannot name.
    """
    journal = ObservedJournal(directory, filesystem, KNOWN)
    current = 0
    for header, location, payload in journal.frames():
        while current + 1 < len(journal.files) and journal.files[current + 1][0] <= location.position:
            current += 1
        yield DumpRow(
            journal.files[current][1].name,
            location.position,
            location.length,
            header.type.name,
            FrameFlags.RELOCATED in header.flags,
            FrameFlags.LOG_APPEND_TIME in header.flags,
            FrameFlags.TRANSACTIONAL in header.flags,
            header.topic_id,
            header.partition,
            header.base_offset,
            header.record_count,
            header.leader_epoch,
            header.append_time_ms,
            header.max_timestamp_ms,
            header.inflated_bytes,
            None if header.identity == NO_IDENTITY else header.identity,
            DumpedSnapshot.decode(payload) if payload is not None and header.type is FrameType.SNAPSHOT else None,
            DumpedControl.decode(payload, location.position)
            if payload is not None and header.type is FrameType.CONTROL
            else None,
            header.is_honoured,
        )


def verify(
    directory: Path, filesystem: FileSystem | None = None, check: Callable[[FoundJournal], None] = lambda _: None
) -> VerifyReport:
    """Read every byte and report what a start would find.

    On a running broker's journal the last group may appear as a tail. ``check`` is that of ``ObservedJournal``.
    """
    journal = ObservedJournal(directory, filesystem, check=check)
    frames = 0
    damage: LogStoreError | None = None
    try:
        for _ in journal.frames():
            frames += 1
    except LogStoreError as error:
        damage = error
    return VerifyReport(len(journal.files), frames, journal.frame_bytes, journal.end, journal.tail_bytes, damage)


def repair(directory: Path, filesystem: FileSystem | None = None) -> RepairReport | None:
    """End the journal before its damage; return None if it has none. For a stopped broker.

    The damaged file is copied to ``<name>.corrupt`` and cut, and all later files are renamed in the same way; nothing
    is deleted. The report counts the readable frames in the part that was removed. Raises StorageError; run it again
    then. Raises DataDirectoryError, and changes nothing, if a newer release wrote the journal: repair it with that one.
    """
    filesystem = filesystem or local_filesystem()
    _check_directory(directory, filesystem)
    scan = JournalScan(directory, filesystem)
    try:
        for _ in scan.frames():
            pass
    except JournalCorruptionError as e:
        damage = e
    else:
        _close(scan.verdict.files)
        return None
    try:
        lost = lost_ranges(directory, damage.position, filesystem)
        return RepairReport(damage.position, _cut(directory, damage, filesystem), lost)
    except OSError as e:
        raise StorageError(f"could not repair the journal at {directory}: {e}; check the disk and run it again") from e


def _cut(directory: Path, damage: JournalCorruptionError, filesystem: FileSystem) -> tuple[Path, ...]:
    """Copy the damaged file, rename the later files, newest first, then cut: an interruption loses nothing."""
    copies: list[Path] = []
    files = list_files(directory, filesystem)
    ends = {path: start + filesystem.stat(path).st_size for start, path in files}
    keep = {path: damage.position - start for start, path in files if start < damage.position < ends[path]}
    for path in keep:
        copies.append(_copy_path(path, filesystem))
        _copy(path, copies[-1], filesystem)
        filesystem.sync_directory(directory)
    for start, path in reversed(files):
        if start >= damage.position:
            copies.append(_copy_path(path, filesystem))
            filesystem.rename(path, copies[-1])
            filesystem.sync_directory(directory)
    for path, length in keep.items():
        fd = filesystem.open_write(path)
        try:
            filesystem.truncate(fd, length)
            filesystem.fsync(fd)
        finally:
            filesystem.close(fd)
    return tuple(copies)


def _copy(path: Path, copy: Path, filesystem: FileSystem) -> None:
    """Copy a file. Afterwards the bytes are durable, but the name is not yet."""
    source = filesystem.open_read(path)
    try:
        target = filesystem.create(copy)
        try:
            at = 0
            while chunk := filesystem.read_at(source, WINDOW_BYTES, at):
                at += filesystem.write_at(target, [chunk], at)
            filesystem.fsync(target)
        finally:
            filesystem.close(target)
    finally:
        filesystem.close(source)


def _copy_path(path: Path, filesystem: FileSystem) -> Path:
    """Return a name for a copy that overwrites no earlier copy."""
    copy = path.with_name(path.name + CORRUPT_SUFFIX)
    number = 1
    while filesystem.exists(copy):
        number += 1
        copy = path.with_name(f"{path.name}{CORRUPT_SUFFIX}.{number}")
    return copy


def lost_ranges(directory: Path, position: int, filesystem: FileSystem | None = None) -> tuple[LostRange, ...]:
    """Return the ranges of the frames with offsets from the damage at ``position`` on.

    The damaged frame counts if its header is good, because it was durable; after it only intact frames count. Raises
    OSError and StorageError.
    """
    filesystem = filesystem or local_filesystem()
    lost: dict[PartitionKey, LostRange] = {}
    for start, path in list_files(directory, filesystem):
        file = JournalFile.open(path, start, filesystem)
        try:
            for stored, at in find_headers(file, max(position, start), start + file.allocated):
                header = stored.header
                if not header.takes_offsets:
                    continue
                if at != position and not payload_is_good(file, at + HEADER_BYTES, stored):
                    continue
                key = (header.topic_id, header.partition)
                seen = lost.get(key, LostRange(*key, header.base_offset, header.end_offset, 0))
                lost[key] = LostRange(
                    *key,
                    min(seen.first_offset, header.base_offset),
                    max(seen.end_offset, header.end_offset),
                    seen.records + (header.record_count if header.has_records else 0),
                )
        finally:
            file.close()
    return tuple(lost.values())


def found_journal(directory: Path, filesystem: FileSystem | None = None) -> FoundJournal:
    """Return the journal as a start reads it. Raises the errors of ``JournalScan.frames``."""
    scan = JournalScan(directory, filesystem or local_filesystem())
    for _ in scan.frames():
        pass
    _close(scan.verdict.files)
    return scan.verdict.found(directory)


def headed_journal(directory: Path, filesystem: FileSystem | None = None) -> FoundJournal | None:
    """Return a journal by the headers of its files, without a look at its frames; None if no header is good.

    ``end`` is that of the last file with its reserved bytes, at or after that of the journal. Raises OSError and
    DataDirectoryError.
    """
    filesystem, end = filesystem or local_filesystem(), 0
    good: list[JournalFile] = []
    for start, path in list_files(directory, filesystem):
        file = JournalFile.open(path, start, filesystem)
        file.close()
        end = start + file.allocated
        if file.file_id is not None:
            good.append(file)
    if not good:
        return None
    files = tuple((file.start, file.file_id) for file in good if file.file_id is not None)
    return FoundJournal(directory, end, good[-1].identity, is_empty=False, files=files)


def _check_directory(directory: Path, filesystem: FileSystem) -> None:
    if not filesystem.is_directory(directory):
        raise StorageError(f"there is no journal directory {directory}; name one as <data>/brokers/<id>/journal/0")


def _close(files: tuple[JournalFile, ...]) -> None:
    for file in files:
        file.close()
