"""Names of segment files.

``partition=<p>/<base offset, 20 digits>-<leader epoch>-<unique>.parquet``, relative to the table: files of a partition
sort by offset, the directory is Delta's (Hive's) for the partition column, and no two attempts ever share a name.
"""

import re
import uuid
from dataclasses import dataclass

_PATTERN = re.compile(r"partition=(0|[1-9]\d{0,9})/(\d{20})-(0|[1-9]\d{0,9})-([0-9a-f]{32})\.parquet")


@dataclass(frozen=True, slots=True)
class SegmentName:
    partition: int
    base_offset: int
    leader_epoch: int
    unique: str


def new_unique() -> str:
    """32 hexadecimal digits that no other attempt has."""
    return uuid.uuid4().hex


def partition_directory(partition: int) -> str:
    return f"partition={partition}"


def segment_name(partition: int, base_offset: int, leader_epoch: int, unique: str) -> str:
    """The path of a segment, relative to its table."""
    return f"{partition_directory(partition)}/{base_offset:020d}-{leader_epoch}-{unique}.parquet"


def parse_segment_name(path: str) -> SegmentName | None:
    """The parts of the relative ``path``; None if it is not a name of ours (another writer's file)."""
    match = _PATTERN.fullmatch(path)
    if match is None:
        return None
    return SegmentName(int(match[1]), int(match[2]), int(match[3]), match[4])
