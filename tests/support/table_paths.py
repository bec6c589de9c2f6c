"""Files of tables by their paths, for tests that make, damage or read them with system tools."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from logstore.delta import log_entries
from logstore.delta.topic_table import TopicTable
from logstore.segments import reader
from logstore.segments import row_group_files as whole_row_groups
from logstore.segments.footer import SegmentFooter
from logstore.segments.reader import RowGroup
from logstore.segments.row_group_files import RowGroupFile
from logstore.segments.writer import Segment
from logstore.table_files import find_file, open_table
from logstore.table_root import open_root


def path_of(table: TopicTable) -> Path:
    return Path(table.files.uri)


def create_table(path: Path, filesystem: object = None, **how: object) -> TopicTable:
    """Create ``<data>/topics/<name>``; ``how`` are arguments of ``TopicTable.create``."""
    return TopicTable.create(open_root(path.parent.parent, filesystem), path.name, **how)


# ---- of a segment ---------------------------------------------------------------------------------------------------


def read_footer(path: Path) -> SegmentFooter:
    return reader.read_footer(*find_file(path))


def row_groups(path: Path) -> tuple[RowGroup, ...]:
    return reader.row_groups(*find_file(path))


def read_row_group(path: Path, index: int, *columns: Sequence[str]) -> pa.RecordBatch:
    return reader.read_row_group(*find_file(path), index, *columns)


def row_group_batches(path: Path, group: RowGroup) -> Iterator[pa.RecordBatch]:
    return reader.row_group_batches(*find_file(path), group)


def verify_segment(path: Path) -> None:
    reader.verify_segment(*find_file(path))


def segment_from_file(table: Path, name: str) -> Segment:
    return reader.segment_from_file(open_table(table), name)


def row_group_files(path: Path) -> tuple[RowGroupFile, ...]:
    return whole_row_groups.row_group_files(*find_file(path))


def read_row_group_file(path: Path, file: RowGroupFile) -> memoryview:
    return whole_row_groups.read_row_group_file(*find_file(path), file)


# ---- of a Delta log -------------------------------------------------------------------------------------------------


def entry_path(table: Path, version: int) -> Path:
    return table / log_entries.entry_name(version)


def checksum_path(table: Path, version: int) -> Path:
    return table / log_entries.checksum_name(version)


def checkpoint_parts(table: Path, version: int) -> tuple[Path, ...]:
    return tuple(table / part for part in log_entries.list_log(open_table(table)).checkpoints[version])
