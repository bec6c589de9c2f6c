"""The frames of each partition in the journals of stopped brokers, read from their disks."""

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec
import pyarrow as pa

from logstore.errors import LogStoreError
from logstore.filesystem import local_filesystem
from logstore.inspection.observed_journal import ObservedJournal
from logstore.journal.frame import HEADER_BYTES, Frame, FrameFlags, FrameHeader, FrameLocation, FrameType
from logstore.journal.journal_file import JournalFile
from logstore.log.frame_records import frame_records
from tests.faults.bench.history import Recorder, ReplicaFrame, Row
from tests.faults.bench.records import rows_of_table

_Found = tuple[FrameHeader, FrameLocation]
_DIGEST: Final = 16
#: No topic of the bench has this many partitions.
_PARTITIONS_MAX: Final = 16


def rows_digest(rows: Sequence[Row] | Sequence[list[object]]) -> str:
    return _digest(msgspec.json.encode([list(row) for row in rows]))


def tell_replicas(
    log_directories: dict[int, Path], topics: dict[UUID, str], sealed: dict[tuple[str, int], int], recorder: Recorder
) -> None:
    """Record all partitions of the topics as they are on the disks of brokers that do not run."""
    look = time.monotonic_ns()
    for broker, directory in log_directories.items():
        journal = directory / "journal" / "0"
        if not journal.is_dir():
            continue
        try:
            found = _partitions(journal, topics)
        except LogStoreError as error:
            told = {"topic": "", "partition": 0, "sealed": 0, "look": look, "error": error.message}
            recorder.tell("disks", "replica", broker=broker, **told)
            continue
        for (topic, partition), (frames, removed) in found.items():
            where = {"broker": broker, "topic": topic, "partition": partition, "look": look}
            below = sealed.get((topic, partition), 0)
            recorder.tell("disks", "replica", **where, sealed=below, frames=frames, removed=removed)


def _partitions(
    directory: Path, topics: dict[UUID, str]
) -> dict[tuple[str, int], tuple[list[ReplicaFrame], list[ReplicaFrame]]]:
    """Return the frames of each log, and the truncated ones. Raises LogStoreError for a damaged journal.

    A log that begins again at the end of the table has a truncation, followed by a snapshot from there: its frames
    below are in the table, and do not count as truncated.
    """
    kept: dict[tuple[str, int], dict[int, _Found]] = {}
    removed: dict[tuple[str, int], list[_Found]] = {}
    before: dict[tuple[str, int], FrameType] = {}
    journal = ObservedJournal(directory)
    for header, location, _ in journal.frames():
        name = topics.get(header.topic_id)
        if name is None:
            continue
        frames = kept.setdefault((name, header.partition), {})
        dropped = removed.setdefault((name, header.partition), [])
        if header.type is FrameType.TRUNCATE:
            for base in [base for base, (other, _) in frames.items() if other.end_offset > header.base_offset]:
                dropped.append(frames.pop(base))
        elif header.type is FrameType.SNAPSHOT and before.get((name, header.partition)) is FrameType.TRUNCATE:
            dropped[:] = [found for found in dropped if found[0].end_offset > header.base_offset]
        elif header.takes_offsets and (FrameFlags.RELOCATED not in header.flags or header.base_offset not in frames):
            frames[header.base_offset] = header, location
        before[name, header.partition] = header.type
    reader = _Reader(journal.files)
    try:
        return {
            at: (
                [reader.told(*frames[base]) for base in sorted(frames)],
                [reader.told(*found) for found in removed[at]],
            )
            for at, frames in kept.items()
        }
    finally:
        reader.close()


class _Reader:
    def __init__(self, files: Sequence[tuple[int, Path]]) -> None:
        self._files = {start: JournalFile.open(path, start, local_filesystem()) for start, path in files}

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def told(self, header: FrameHeader, location: FrameLocation) -> ReplicaFrame:
        start = max(start for start in self._files if start <= location.position)
        payload = self._files[start].read(location.position + HEADER_BYTES, location.length - HEADER_BYTES)
        # These fields are the same on all replicas (C15).
        logical = header._replace(flags=header.flags & ~FrameFlags.RELOCATED)
        text = f"{logical.type.value} {logical.flags.value} {logical[4:]}".encode()
        digest = _digest(text + bytes(payload))
        return header.base_offset, header.record_count, header.leader_epoch, digest, _rows(Frame(header, payload))


def _rows(frame: Frame) -> str:
    return rows_digest(
        [row for batch in frame_records([frame]) for row in rows_of_table(pa.Table.from_batches([batch]))]
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGEST]


def topic_facts(data: Path, names: Sequence[str]) -> tuple[dict[UUID, str], dict[tuple[str, int], int]]:
    """Return names by topic id, and the sealed offset of each partition, as the tables have them."""
    from deltalake import DeltaTable

    ids: dict[UUID, str] = {}
    sealed: dict[tuple[str, int], int] = {}
    for name in names:
        table: Any = DeltaTable(data / "topics" / name)
        ids[UUID(str(table.metadata().id))] = name
        for partition in range(_PARTITIONS_MAX):
            sealed[name, partition] = table.transaction_version(f"logstore/{partition}/sealed") or 0
    return ids, sealed
