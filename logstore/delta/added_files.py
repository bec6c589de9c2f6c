"""Add actions as columns: a table of many files is examined without an object for each file."""

from collections.abc import Iterable, Sequence

import numpy as np

from logstore.delta.foreign_ranges import ForeignAdd
from logstore.delta.table_state import AddedFile
from logstore.segments.deletion_vectors import DeletionVector
from logstore.segments.foreign_names import masked_name
from logstore.segments.names import Numbers

#: The value is -1 ms.
_NO_TIMESTAMP_US = -1000
_OFFSET_MAX = 2**63 - 1
_NO_ROW_IDS = (None, None)


class FileColumns:
    """Add actions as numpy columns, ordered by partition and base offset: rows of a partition are adjacent.

    -1 and ``_NO_TIMESTAMP_US`` mean no value. ``vectors`` has the deletion vectors by row, and ``row_ids`` the ids of
    row tracking; both are empty for most tables.
    """

    def __init__(self, files: Sequence[AddedFile]) -> None:
        def numbers(missing: int, values: Iterable[int | None]) -> Numbers:
            return np.array([missing if value is None else value for value in values], dtype=np.int64)

        has_range = np.array([file.base_offset is not None for file in files], dtype=bool)
        first = numbers(-1, (file.min_offset for file in files))
        last = numbers(-1, (file.max_offset for file in files))
        name_base = numbers(-1, (file.base_offset for file in files))
        base = np.where(has_range, name_base, first)
        self.partition = numbers(-1, (file.partition for file in files))
        order = np.lexsort((base, self.partition))
        in_order = [files[at] for at in order.tolist()]
        self.vectors: dict[int, DeletionVector] = {
            row: file.vector for row, file in enumerate(in_order) if file.vector is not None
        }
        self.row_ids = {row: file.row_ids for row, file in enumerate(in_order) if file.row_ids != _NO_ROW_IDS}
        self.partition = self.partition[order]
        self.paths = [file.path for file in in_order]
        self.size = numbers(0, (file.size for file in in_order))
        self.num_records = numbers(-1, (file.num_records for file in in_order))
        self.base = base[order]
        # The largest int64 has no successor.
        name_end = numbers(-1, (file.end_offset for file in files))
        self.end = np.where(has_range, name_end, np.minimum(last, _OFFSET_MAX - 1) + 1)[order]
        self.min_offset, self.max_offset = first[order], last[order]
        self.min_timestamp_us = numbers(_NO_TIMESTAMP_US, (file.min_timestamp_us for file in in_order))
        self.max_timestamp_us = numbers(_NO_TIMESTAMP_US, (file.max_timestamp_us for file in in_order))
        #: True if the name contains the range.
        self.named = has_range[order]
        empty = self.named & (self.num_records == 0)
        self.unknown = np.array([file.unknown for file in in_order], dtype=bool)
        #: True for records of other writers, and for records that they have left of a segment.
        self.foreign = np.array([not file.ours or file.vector is not None for file in in_order], dtype=bool)
        complete = np.array([_is_complete(file) for file in in_order], dtype=bool)
        #: True for files with neither known records nor an empty range.
        self.incomplete = ~(complete | empty)
        self.modified_ms = numbers(0, (file.modified_ms for file in in_order))
        #: True for files with records outside the file's range.
        self.misnamed = self.named & ~empty & ((self.min_offset < self.base) | (self.max_offset >= self.end))

    def rows_of(self, partition: int) -> Numbers:
        low, high = np.searchsorted(self.partition, [partition, partition + 1])
        return np.arange(low, high)

    def foreign_adds(self, rows: Numbers) -> list[ForeignAdd]:
        return [self._foreign_add(row) for row in rows.tolist()]

    def _foreign_add(self, row: int) -> ForeignAdd:
        vector = self.vectors.get(row)
        bounds = None if self.incomplete[row] else (int(self.min_offset[row]), int(self.max_offset[row]))
        if vector is not None and self.named[row]:
            # A segment covers its range, whatever rows the vector has left.
            bounds = int(self.base[row]), int(self.end[row]) - 1
        records = int(self.num_records[row])
        return ForeignAdd(
            masked_name(self.paths[row], vector),
            int(self.size[row]),
            int(self.modified_ms[row]),
            records if vector is None else max(0, records - vector.cardinality),
            bounds,
            (int(self.min_timestamp_us[row] // 1000), int(-(-self.max_timestamp_us[row] // 1000))),
            is_segment=vector is not None and bool(self.named[row]),
        )


def _is_complete(file: AddedFile) -> bool:
    return None not in (
        file.num_records,
        file.min_offset,
        file.max_offset,
        file.min_timestamp_us,
        file.max_timestamp_us,
    )
