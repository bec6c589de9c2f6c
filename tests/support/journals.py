"""Frames and running journals for tests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from logstore.filesystem import FileSystem
from logstore.journal.frame import (
    HEADER_BYTES,
    Frame,
    FrameFlags,
    FrameHeader,
    FrameLocation,
    FrameType,
)
from logstore.journal.identity import JournalIdentity, JournalRecord
from logstore.journal.journal import Journal, NeededFile
from logstore.journal.partition_snapshot import PartitionSnapshot
from logstore.journal.scan import RecoveredFrame, good_frames
from logstore.records.batch_identity import BatchIdentity
from logstore.records.transactions import NO_SEQUENCE, ControlType, EndTransactionMarker
from tests.support.manual_clock import ManualClock

TOPIC = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


def data_frame(
    base_offset: int, payload: bytes = b"payload", *, partition: int = 0, count: int = 1, topic: UUID = TOPIC
) -> Frame:
    header = FrameHeader(
        FrameType.DATA, FrameFlags(0), topic, partition, base_offset, count, 0, 1_000, 900, len(payload)
    )
    return Frame(header, payload)


def snapshot_frame(sealed_offset: int = 0, *, partition: int = 0) -> Frame:
    snapshot = PartitionSnapshot(sealed_offset, ((0, 0),))
    header = FrameHeader(FrameType.SNAPSHOT, FrameFlags(0), TOPIC, partition, sealed_offset, 0, 0, 1_000, -1, 0)
    return Frame(header, snapshot.encode())


def truncate_frame(end_offset: int, *, leader_epoch: int = 0) -> Frame:
    header = FrameHeader(FrameType.TRUNCATE, FrameFlags(0), TOPIC, 0, end_offset, 0, leader_epoch, 1_000, -1, 0)
    return Frame(header, b"")


def control_frame(
    offset: int, *, kind: ControlType = ControlType.COMMIT, producer_id: int = 5, epoch: int = 2, partition: int = 0
) -> Frame:
    """Return a transaction marker of the coordinator with epoch 7."""
    identity = BatchIdentity(producer_id, epoch, NO_SEQUENCE)
    header = FrameHeader(FrameType.CONTROL, FrameFlags(0), TOPIC, partition, offset, 1, 0, 1_000, 1_000, 0, identity)
    return Frame(header, EndTransactionMarker(kind, 7).encode())


def kafka_frame(base_offset: int, payload: bytes = b"a record batch") -> Frame:
    frame = data_frame(base_offset, payload)
    return frame._replace(header=frame.header._replace(type=FrameType.KAFKA_BATCH))


def transactional_frame(base_offset: int) -> Frame:
    frame = data_frame(base_offset)
    header = frame.header._replace(flags=FrameFlags.TRANSACTIONAL, identity=BatchIdentity(5, 2, 0))
    return frame._replace(header=header)


class MemoryRecord:
    """The file beside a journal, in memory."""

    def __init__(self, directory_id: UUID = TOPIC, incarnation: int = 1) -> None:
        self.identity = JournalIdentity(directory_id, incarnation)
        self.durable_ends: list[int] = []
        #: The last file id and begin.
        self.file_id = self.begin = 0

    def record(self, durable_end: int, file_id: int, begin: int) -> None:
        self.durable_ends.append(durable_end)
        self.file_id, self.begin = file_id, begin


def new_journal(directory: Path, filesystem: FileSystem | None = None, *, file_bytes: int = 1 << 20) -> Journal:
    return Journal(directory, filesystem=filesystem or FileSystem(), clock=ManualClock(), file_bytes=file_bytes)


@asynccontextmanager
async def running(
    directory: Path,
    filesystem: FileSystem | None = None,
    *,
    file_bytes: int = 1 << 20,
    snapshots: Callable[[], Sequence[Frame]] = tuple,
    record: JournalRecord | None = None,
) -> AsyncIterator[tuple[Journal, list[RecoveredFrame]]]:
    """Start a journal, and yield it with what it recovered; it is closed at the end."""
    journal = new_journal(directory, filesystem, file_bytes=file_bytes)
    recovered = list(journal.recover())
    await journal.start(snapshots, record or MemoryRecord())
    try:
        yield journal, recovered
    finally:
        await journal.close()


def recovered_frames(directory: Path) -> list[RecoveredFrame]:
    """Return the frames that a start recovers now; this cuts the journal's tail. Not inside a running event loop."""
    journal = new_journal(directory)
    frames = list(journal.recover())
    journal.establish_end()
    asyncio.run(journal.close())
    return frames


def offsets(frames: Sequence[RecoveredFrame], partition: int = 0) -> list[int]:
    """Return the base offsets of a partition's data frames, in journal order."""
    return [f.header.base_offset for f in frames if f.header.type is FrameType.DATA and f.header.partition == partition]


async def relocate_oldest(journal: Journal) -> list[tuple[FrameHeader, FrameLocation]]:
    """Copy forward the needed frames of the oldest file, as found by a scan of it: for journals whose partitions have
    no index, and are never truncated.
    """
    oldest = journal.oldest_needed
    if oldest is None:
        return []
    needed = [
        (stored.header, FrameLocation(position, HEADER_BYTES + stored.payload_length))
        for stored, position in good_frames(journal._files[0], oldest.end)
        if stored.header.takes_offsets and _is_needed(journal, oldest, stored.header)
    ]
    frames = await asyncio.to_thread(journal.read_many, [location for _, location in needed])
    locations = await journal.relocate(frames) if frames else []
    journal.relocated(oldest)
    headers = [header._replace(flags=header.flags | FrameFlags.RELOCATED) for header, _ in needed]
    return list(zip(headers, locations, strict=True))


def _is_needed(journal: Journal, oldest: NeededFile, header: FrameHeader) -> bool:
    key = (header.topic_id, header.partition)
    return key in oldest.needed_by and header.end_offset > journal._sealed.get(key, 0)
