"""The requested ranges, and the slices of them that tasks of Spark read."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from logstore.delta.snapshot import SegmentFile


@dataclass(frozen=True, slots=True)
class TopicRange:
    """Offsets ``start <= offset < end`` of a partition of the topic with ``topic_id``."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The times of the requested records: ``first_ms <= timestamp <= last_ms``; None is no bound."""

    first_ms: int | None = None
    last_ms: int | None = None

    def touches(self, file: "SegmentFile") -> bool:
        return (self.first_ms is None or file.max_timestamp_ms >= self.first_ms) and (
            self.last_ms is None or file.min_timestamp_ms <= self.last_ms
        )


@dataclass(frozen=True)
class Slice(InputPartition):
    """Offsets ``start <= offset < end`` of a partition that one task reads: from ``files`` of the ``table`` (a
    ``TableFiles.uri``) in its ``version``, or if there are none from the leader at one of ``urls``.
    """

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    table: str = ""
    files: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    #: 0 is CreateTime, 1 LogAppendTime.
    timestamp_type: int = 0
    version: int = -1
