"""Reads the records of ``__erasures`` that were added to its table since the last call. Blocking.

A broker that starts learns only from the table what was erased, so an erasure continues only when its record is in the
table.
"""

from logstore.delta.snapshot import TopicSnapshot
from logstore.log.topic import Topic
from logstore.records.erasure_record import Erasure, decode_erasure
from logstore.segments.reader import read_row_group, row_groups
from logstore.table_files import TableFiles


class ErasuresTable:
    def __init__(self) -> None:
        self._next_offset = 0
        self._version = -1

    def read(self, topic: Topic) -> list[Erasure]:
        """Return the records since the last call, in their order. Raises CorruptionError and OSError."""
        snapshot, files = topic.snapshot, topic.table.files
        if snapshot.version == self._version:
            return []
        sealed = snapshot.partitions[0].sealed
        if sealed < self._next_offset:
            self._next_offset = 0  # an older table was restored
        found = _records(files, snapshot, self._next_offset)
        self._next_offset, self._version = sealed, snapshot.version
        return found


def _records(files: TableFiles, snapshot: TopicSnapshot, start: int) -> list[Erasure]:
    found = []
    for segment in snapshot.segments(0):
        if segment.end_offset <= start:
            continue
        for group in row_groups(files, segment.path):
            if group.last_offset < start:
                continue
            batch = read_row_group(files, segment.path, group.index, ["offset", "value"])
            for offset, value in zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True):
                if offset >= start and value is not None:
                    found.append(decode_erasure(value))
    return found
