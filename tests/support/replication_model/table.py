"""The topic's table: committed state with the real preconditions, and rolls that write no files."""

import asyncio
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from logstore.delta.preconditions import RollPart, check_epoch, is_rolled
from logstore.delta.snapshot import PartitionState, SegmentFile
from logstore.delta.topic_table import PartsCommit
from logstore.errors import CommitRefusedError, FencedLeaderEpochError
from logstore.journal.frame import Frame
from logstore.log.roller import Roller
from logstore.log.table_follower import TableFollower
from logstore.log.topic import Topic
from logstore.records.batch_identity import unpack_batches
from logstore.segments.footer import SegmentFooter
from logstore.segments.writer import Segment
from logstore.topic_config import TopicConfig

_CONFIG = TopicConfig.parse({})


class Snapshot:
    def __init__(self, topic_id: UUID, version: int, state: PartitionState, files: tuple[SegmentFile, ...]) -> None:
        self.topic_id = topic_id
        self.version = version
        self.partitions = {0: state}
        self.num_partitions = 1
        self.config_overrides: dict[str, str] = {}
        self._files = files

    @property
    def paths(self) -> set[str]:
        return {file.path for file in self._files}

    def segments(self, partition: int) -> tuple[SegmentFile, ...]:
        del partition
        return self._files

    def refused(self, partition: int) -> tuple[()]:
        del partition
        return ()

    def check(self, partition: int) -> None: ...


class Table:
    """The table of the only partition, shared by all brokers. It replaces ``TopicTable`` and its ``TableFiles``."""

    name = "t"

    def __init__(self, topic_id: UUID) -> None:
        self.current = Snapshot(topic_id, 0, PartitionState(0, -1, 0, 0, 0), ())
        #: The sealed frames, and the footers and frames of files by path.
        self.frames: list[Frame] = []
        self.written: dict[str, tuple[SegmentFooter, list[Frame]]] = {}
        self._unique = itertools.count()

    def __str__(self) -> str:
        return "t"

    @property
    def files(self) -> "Table":
        return self

    @property
    def sealed(self) -> int:
        return self.current.partitions[0].sealed

    def new_path(self) -> str:
        return f"{next(self._unique)}"

    def snapshot(self) -> Snapshot:
        return self.current

    def _commit(self, epoch: int, parts: Sequence[RollPart] = ()) -> int:
        before = self.current
        state, files = before.partitions[0], before.segments(0)
        sealed = state.sealed
        for part in parts:
            sealed = part.end_offset
            for segment in part.segments:
                self.frames += self.written[segment.path][1]
                first, end = segment.base_offset, segment.end_offset
                files += (SegmentFile(segment.path, 1, end - first, first, end, first, end - 1, 0, 0),)
        state = dataclasses.replace(state, sealed=sealed, leader_epoch=max(state.leader_epoch, epoch))
        self.current = Snapshot(before.topic_id, before.version + 1, state, files)
        return before.version + 1

    def begin_epoch(self, partition: int, leader_epoch: int) -> int:
        check_epoch(self.current, partition, leader_epoch, self)  # type: ignore[arg-type]
        return self._commit(leader_epoch)

    def commit_roll(self, parts: Sequence[RollPart], *, found: bool = False) -> PartsCommit:
        (part,) = parts
        try:
            present = is_rolled(part, self.current, self)  # type: ignore[arg-type]
        except (CommitRefusedError, FencedLeaderEpochError) as error:
            return PartsCommit(self.current.version, (), {0: error})
        if not present:
            self._commit(part.leader_epoch, parts)
        return PartsCommit(self.current.version, (0,), {})

    def remove(self, paths: Any, *, durable: bool) -> None: ...

    def is_maintenance_due(self) -> bool:
        return False

    def maintain(self) -> None: ...


def read_footer(files: Any, path: str, partition: int | None = None) -> SegmentFooter:
    footer: SegmentFooter = files.written[path][0]
    return footer


class ModelTopic(Topic):
    min_insync_replicas = 1

    def _follow_config(self, snapshot: Any) -> None:
        del snapshot
        self.config = dataclasses.replace(_CONFIG, min_insync_replicas=self.min_insync_replicas)


def topic_of(table: Table, clock: Any, min_insync_replicas: int) -> ModelTopic:
    topic = ModelTopic.__new__(ModelTopic)
    topic.min_insync_replicas = min_insync_replicas
    topic.__init__(  # type: ignore[misc]
        "t",
        table,  # type: ignore[arg-type]
        table.current,  # type: ignore[arg-type]
        location="t",
        defaults={},
        clock=clock,
        producer_id_expiration_ms=10**12,
    )
    return topic


class _Follower(TableFollower):
    def __init__(self) -> None: ...

    async def follow(self, topic: Topic, *, at_start: bool = False) -> None:
        del at_start
        table: Any = topic.table
        snapshot = await asyncio.to_thread(table.snapshot)
        topic.follow(snapshot)
        for partition_log in topic.partitions:
            self._adopt(partition_log, snapshot)


class ModelRoller(Roller):
    def __init__(self, journal: Any, clock: Any) -> None:
        super().__init__(journal, clock, None)  # type: ignore[arg-type]
        self._follower = _Follower()

    async def _left_over(self, topic: Topic) -> list[RollPart]:
        return [
            p for p in self._uncommitted.pop(topic, {}).values() if p.base_offset == topic.partitions[0].sealed_offset
        ]

    def _write(self, topic: Topic, spans: Sequence[Any]) -> list[RollPart]:
        (span,) = spans
        table: Any = topic.table
        segments = []
        for piece in span.pieces:
            frames = self._journal.read_many([frame.location for frame in piece.frames])
            base, end = piece.base_offset, piece.end_offset
            footer = SegmentFooter(
                0,
                base,
                end,
                span.leader_epoch,
                tuple(entry for entry in span.leader_epochs if entry[1] < end),
                tuple(b for b in unpack_batches(span.producers) if b.base_offset < end),
                tuple(b for b in unpack_batches(span.idempotency_keys) if base <= b.base_offset < end),
                append_time_ms=max(frame.header.append_time_ms for frame in frames),
                producers_forgotten_up_to=span.producers_forgotten_up_to,
            )
            path = table.new_path()
            table.written[path] = footer, frames
            segments.append(Segment(path, 1, 0, base, end, span.leader_epoch, end - base, base, end - 1, 0, 0))
        return [RollPart(0, span.base_offset, span.end_offset, span.leader_epoch, tuple(segments))]
