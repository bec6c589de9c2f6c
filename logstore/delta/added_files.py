"""Add actions as columns: a table of many files is looked at without an object for each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from logstore.delta.foreign_ranges import ForeignAdd
from logstore.delta.plain_entries import AddedFile
from logstore.segments.names import Flags, NameColumns, Numbers, parse_segment_names

#: -1 ms.
_NO_TIMESTAMP_US = -1000
_OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Added:
    """Add actions as columns in any order, with what the names say; -1 and ``_NO_TIMESTAMP_US`` stand for no value."""

    paths: pa.StringArray
    names: NameColumns
    partition: Numbers
    size: Numbers
    num_records: Numbers
    min_offset: Numbers
    max_offset: Numbers
    min_timestamp_us: Numbers
    max_timestamp_us: Numbers
    #: All statistics are there.
    complete: Flags
    #: When the files were written, by their writers.
    modified_ms: Numbers


def added_of_actions(actions: pa.Table) -> Added:
    """Of the add actions that delta-rs hands out."""
    paths = actions.column("path").combine_chunks()
    complete = np.ones(len(paths), dtype=bool)
    for name in ("num_records", "min.offset", "max.offset", "min.timestamp", "max.timestamp"):
        complete &= actions.column(name).is_valid().to_numpy() if name in actions.column_names else False
    return Added(
        paths,
        parse_segment_names(paths),
        _numbers(actions, "partition.partition"),
        _numbers(actions, "size_bytes", 0),
        _numbers(actions, "num_records"),
        _numbers(actions, "min.offset"),
        _numbers(actions, "max.offset"),
        _numbers(actions, "min.timestamp", _NO_TIMESTAMP_US),
        _numbers(actions, "max.timestamp", _NO_TIMESTAMP_US),
        complete,
        _numbers(actions, "modification_time"),
    )


def added_of_files(files: Sequence[AddedFile]) -> Added:
    """Of the files in plain entries: their names are known, and of this release's form."""
    every = np.ones(len(files), dtype=bool)

    def numbers(missing: int, values: Iterable[int | None]) -> Numbers:
        return np.array([missing if value is None else value for value in values], dtype=np.int64)

    return Added(
        pa.array([file.path for file in files], pa.string()),
        NameColumns(
            ours=every,
            unknown=~every,
            has_range=every,
            base=numbers(-1, (file.base_offset for file in files)),
            end=numbers(-1, (file.end_offset for file in files)),
        ),
        numbers(-1, (file.partition for file in files)),
        numbers(0, (file.size for file in files)),
        numbers(-1, (file.num_records for file in files)),
        numbers(-1, (file.min_offset for file in files)),
        numbers(-1, (file.max_offset for file in files)),
        numbers(_NO_TIMESTAMP_US, (file.min_timestamp_us for file in files)),
        numbers(_NO_TIMESTAMP_US, (file.max_timestamp_us for file in files)),
        np.array([file.min_offset is not None for file in files], dtype=bool),
        np.zeros(len(files), dtype=np.int64),  # asked of other writers' files only
    )


class FileColumns:
    """Add actions as numpy columns, ordered by partition and base offset: rows of a partition are adjacent."""

    def __init__(self, added: Added) -> None:
        names, first, last = added.names, added.min_offset, added.max_offset
        base = np.where(names.has_range, names.base, first)
        order = np.lexsort((base, added.partition))
        self.partition = added.partition[order]
        self.paths = added.paths.take(pa.array(order))
        self.size = added.size[order]
        self.num_records = added.num_records[order]
        self.base = base[order]
        # Behind the largest int64 there is none.
        self.end = np.where(names.has_range, names.end, np.minimum(last, _OFFSET_MAX - 1) + 1)[order]
        self.min_offset, self.max_offset = first[order], last[order]
        self.min_timestamp_us = added.min_timestamp_us[order]
        self.max_timestamp_us = added.max_timestamp_us[order]
        empty = names.has_range & (added.num_records == 0)
        self.unknown = names.unknown[order]
        #: The name tells the range.
        self.named = names.has_range[order]
        self.foreign = ~names.ours[order]
        #: Neither known records nor an empty range.
        self.incomplete = ~(added.complete | empty)[order]
        self.modified_ms = added.modified_ms[order]
        #: Records outside the file's range.
        self.misnamed = (names.has_range & ~empty & ((first < names.base) | (last >= names.end)))[order]

    def rows_of(self, partition: int) -> Numbers:
        low, high = np.searchsorted(self.partition, [partition, partition + 1])
        return np.arange(low, high)

    def foreign_adds(self, rows: Numbers) -> list[ForeignAdd]:
        return [
            ForeignAdd(
                self.path(row),
                int(self.size[row]),
                int(self.modified_ms[row]),
                int(self.num_records[row]),
                None if self.incomplete[row] else (int(self.min_offset[row]), int(self.max_offset[row])),
                (int(self.min_timestamp_us[row] // 1000), int(-(-self.max_timestamp_us[row] // 1000))),
            )
            for row in rows.tolist()
        ]

    def path(self, row: int) -> str:
        return str(self.paths[int(row)].as_py())


def _numbers(actions: pa.Table, name: str, missing: int = -1) -> Numbers:
    if name not in actions.column_names:
        return np.full(actions.num_rows, missing, dtype=np.int64)
    column = actions.column(name)
    # With few files each of these steps takes longer than plain numbers, even with nothing to do.
    if pa.types.is_timestamp(column.type) and column.type.unit != "us":
        column = column.cast(pa.timestamp("us", "UTC"))
    if column.type != pa.int64():
        column = column.cast(pa.int64())
    if column.null_count:
        column = column.fill_null(missing)
    values: Numbers = column.to_numpy()
    return values
