"""Finds the offset for a time in sealed history, without a store. Delta's statistics give the file."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from logstore.delta.snapshot import SegmentFile
    from logstore.table_files import TableFiles


def first_offset_at(
    files: "TableFiles", segments: Iterable["SegmentFile"], log_start: int, timestamp_ms: int
) -> int | None:
    """Return the smallest offset from ``log_start`` on with a timestamp of at least ``timestamp_ms``, or None.

    Raises CorruptionError; FileNotFoundError if retention has just removed a file.
    """
    from logstore.records.log_batches import int64_values
    from logstore.segments.reader import read_row_group, row_groups

    for segment in segments:
        if not segment.num_records or segment.end_offset <= log_start or segment.max_timestamp_ms < timestamp_ms:
            continue
        for group in row_groups(files, segment.path):
            if group.last_offset >= log_start and group.max_timestamp_ms >= timestamp_ms:
                rows = read_row_group(files, segment.path, group.index, ("offset", "timestamp"))
                offsets, times = (int64_values(rows.column(name)) for name in ("offset", "timestamp"))
                found = np.flatnonzero((offsets >= log_start) & (times >= timestamp_ms))
                if len(found):
                    return int(offsets[found[0]])
    return None
