"""Finds the records of a table that have no key, which a compaction removes, as in Kafka.

Footers show which row groups have null keys; keys are read only from those. Blocking.
"""

from dataclasses import dataclass

import numpy as np

from logstore.delta.snapshot import TopicSnapshot
from logstore.segments.null_counts import null_values
from logstore.segments.reader import read_row_group
from logstore.table_files import TableFiles


@dataclass(frozen=True, slots=True)
class KeylessRecords:
    """The number of records of a partition that have no key, and the offset of the first one."""

    partition: int
    count: int
    first_offset: int


def keyless_records(files: TableFiles, snapshot: TopicSnapshot) -> list[KeylessRecords]:
    """Return the partitions that have such records, from their log starts on. Raises OSError and CorruptionError."""
    found = []
    for partition in range(snapshot.num_partitions):
        log_start = snapshot.partitions[partition].log_start if partition in snapshot.partitions else 0
        count, first = 0, -1
        for segment in snapshot.segments(partition):
            if segment.end_offset <= log_start or not segment.num_records:
                continue
            for index, nulls in enumerate(null_values(files, segment.path, "key")):
                # Only the first row group with null keys, and the row groups around the log start, need the offsets.
                if nulls and first >= 0 and segment.base_offset >= log_start:
                    count += nulls
                elif nulls != 0:
                    rows = read_row_group(files, segment.path, index, ["offset", "key"])
                    offsets = rows.column("offset").filter(rows.column("key").is_null()).to_numpy()
                    offsets = offsets[np.searchsorted(offsets, log_start) :]
                    count += len(offsets)
                    first = int(offsets[0]) if first < 0 and len(offsets) else first
        if count:
            found.append(KeylessRecords(partition, count, first))
    return found
