"""Divides offset ranges into slices, one for each task of Spark."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logstore.spark.source.options import ReadOptions

if TYPE_CHECKING:
    from logstore.spark.source.slice_reader import Slice


@dataclass(frozen=True, slots=True)
class TopicRange:
    """Offsets ``start <= offset < end`` of a partition of the topic with ``topic_id``."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int


class Planner:
    """Plans reads by ``options``; it keeps the newest snapshot of each topic's table for the next plan of a stream."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def slices(self, ranges: Sequence[TopicRange]) -> list["Slice"]:
        """Input partitions for Spark that cover ``ranges``, each offset once; none for empty ranges."""
        raise NotImplementedError
