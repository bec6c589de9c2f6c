"""Upkeep of the tables by the store itself: small segments are merged, and files that have left a table are deleted.

Merging is slow on purpose. One thread of the lowest priority merges one group of neighbours at a time
(``logstore.log.merge`` chooses it), rests as long as it has worked, and waits while a roll is under way. Nothing is
locked while a segment is written; its commit takes the topic's commit lock, as a roll does.

Invariants:

- The table has the same records at the same offsets before and after a merge. A merge that finds one of its files gone
  (a retention, a compaction, another merge) is refused, and its own file is deleted.
- A crash at any step leaves at worst a file that no commit names.
- A replaced file stays on disk for ``file.delete.delay.ms``, for readers of older versions, and at least
  ``OVERWRITES_NOTICED_MS``: another writer's commit may overwrite the merge, and then the old files count again.
- Only partitions that are led here, are served, and lack no record are merged.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from logstore.clock import Clock
from logstore.delta.removed_files import DeletedFiles, delete_removed_files
from logstore.delta.snapshot import TopicSnapshot
from logstore.delta.topic_table import PartsCommit, RewritePart
from logstore.errors import (
    CorruptionError,
    LogStoreError,
    StorageError,
    UnknownTopicError,
)
from logstore.limits import MIB
from logstore.log.merge import MERGE, MergeGroup, count_small, merge_parts, merge_task, plan_merge
from logstore.log.roller import Roller
from logstore.log.topic import Topic
from logstore.observability import DELETED_FILE_BYTES, MERGED_BYTES, MERGED_SEGMENTS, MERGES
from logstore.segments.merge import write_here
from logstore.segments.writer import Segment
from logstore.threads import threads
from logstore.topic_config import TopicConfig

log = structlog.stdlib.get_logger(__name__)

T = TypeVar("T")

#: A partition is merged when it has more small files than this. More would save commits, but at most 50 are allowed.
MERGE_AT = 32
#: Another writer's commit overwrites ours within seconds; by then a follower has seen it.
OVERWRITES_NOTICED_MS = 600_000
_LOOK_S = 5.0
_DELETE_S = 3_600.0
#: The bytes of the sources of one commit: about a second of work. One group may have more.
_STEP_BYTES = 64 * MIB
#: The longest wait for rolls before each row group.
_ROLL_WAIT_S = 1.0
_RETRY_S, _RETRY_MAX_S = 60.0, 3_600.0
_NICENESS = 19


class _StoppedError(Exception):
    """The store stops, so the segment that is being written is given up."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Groups of one topic that become segments in one commit."""

    snapshot: TopicSnapshot
    config: TopicConfig
    groups: tuple[MergeGroup, ...]


@dataclass(slots=True)
class _Known:
    """``at_rest`` is the version at which there was nothing to merge. Groups with one of the ``unreadable`` files are
    skipped until files are next deleted. Times are those of the monotonic clock.
    """

    at_rest: int = -1
    unreadable: set[str] = field(default_factory=set)
    not_before: float = 0.0
    delay_s: float = _RETRY_S / 2
    next_deletion: float = 0.0


class Upkeep:
    """Maintains the tables. ``require_lock`` raises LockLostError once another process may write to them."""

    def __init__(
        self, roller: Roller, clock: Clock, topics: Mapping[str, Topic], require_lock: Callable[[], None]
    ) -> None:
        self._roller = roller
        self._clock = clock
        self._topics = topics
        self._require_lock = require_lock
        self._known: dict[Topic, _Known] = {}
        self._stopping = asyncio.Event()
        self._merge_lock = asyncio.Lock()
        #: The number of callers that wait for the merge under way.
        self._awaited = 0
        self._thread = threads().pool(1, "upkeep", _NICENESS)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._loop())

    async def stop(self) -> None:
        """Give up what is being written; a commit under way ends."""
        self._stopping.set()
        if self._task is not None:
            await self._task
        self._thread.shutdown()

    async def _loop(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _LOOK_S)
            while await self._round() and not self._stopping.is_set():
                pass
            for topic in [topic for topic in self._known if topic.deleted]:
                del self._known[topic]

    async def _round(self) -> bool:
        """Run one step for each topic that needs one. Return True if anything was merged."""
        joined = False
        for topic in list(self._topics.values()):
            known, now = self._known.setdefault(topic, _Known()), self._clock.monotonic()
            if self._stopping.is_set() or topic.deleted or now < known.not_before:
                continue
            try:
                joined |= await self.merge(topic)
                if known.next_deletion <= now:
                    known.next_deletion = now + _DELETE_S
                    known.unreadable.clear()
                    await self.delete_files(topic)
            except _StoppedError:
                break
            except UnknownTopicError:
                continue
            except (LogStoreError, OSError) as error:
                MERGES.count(topic, 1, "failed")
                log.error("upkeep.failed", topic=topic.name, error=str(error))
                known.delay_s = min(_RETRY_MAX_S, 2 * known.delay_s)
                known.not_before = self._clock.monotonic() + known.delay_s
            else:
                known.delay_s = _RETRY_S / 2
        return joined

    # ---- merge ------------------------------------------------------------------------------------------------------

    async def settled(self) -> None:
        """Wait for the merge under way, which does not rest meanwhile.

        Its sources may have left their table since it began to read them.
        """
        self._awaited += 1
        try:
            async with self._merge_lock:
                pass
        finally:
            self._awaited -= 1

    async def merge(self, topic: Topic) -> bool:
        """Merge small segments of the topic in one commit. Return True if there was anything to merge.

        Raises StorageFullError, StorageError, CorruptionError, and the errors of ``Roller.commit``.
        """
        async with self._merge_lock:
            return await self._merge(topic)

    async def _merge(self, topic: Topic) -> bool:
        known = self._known.setdefault(topic, _Known())
        if topic.version == known.at_rest:
            return False
        snapshot, config = topic.snapshot, topic.config
        partitions = [
            p.partition
            for p in topic.partitions
            if p.is_leader
            and p.quarantined is None
            and not p.missing
            and not p.segments.unreadable
            and count_small(p.segments, config) > MERGE_AT
        ]
        step = None
        if partitions:
            step = await self._in_thread(lambda: _plan(snapshot, config, partitions, known.unreadable))
        if step is None:
            known.at_rest = snapshot.version
            return False
        await self._join(topic, step, known)
        return True

    async def _join(self, topic: Topic, step: _Step, known: _Known) -> None:
        began = self._clock.monotonic()
        written = await self._in_thread(lambda: self._write(topic, step))
        known.unreadable |= {f.path for group, segment in written if segment is None for f in group.files}
        joined = [(group, segment) for group, segment in written if segment is not None]
        if not joined:
            return
        done = await self._commit(topic, merge_parts(joined))
        for partition, error in done.refused.items():
            log.info("merge.refused", topic=topic.name, partition=partition, error=str(error))
        committed = [group for group, _ in joined if group.partition in done.committed]
        MERGES.count(topic, 1, "committed" if committed else "refused")
        MERGED_SEGMENTS.count(topic, sum(len(group.files) for group in committed))
        MERGED_BYTES.count(topic, sum(group.size for group in committed))
        log.info(
            "merge.committed",
            topic=topic.name,
            version=done.version,
            segments=sum(len(group.files) for group in committed),
            to=len(committed),
            bytes=sum(group.size for group in committed),
            seconds=round(self._clock.monotonic() - began, 3),
        )

    async def _commit(self, topic: Topic, parts: Sequence[RewritePart]) -> PartsCommit:
        return await self._roller.commit(
            topic, lambda: topic.table.commit_rewrites(parts, data_change=False, operation=MERGE)
        )

    def _write(self, topic: Topic, step: _Step) -> list[tuple[MergeGroup, Segment | None]]:
        """Write the groups of a step. Return them with their segments; None for a group with an unreadable file."""
        written: list[tuple[MergeGroup, Segment | None]] = []
        worked_since = self._clock.monotonic()

        def pace(_: int) -> None:
            nonlocal worked_since
            rested_from = self._clock.monotonic()
            rest_s = rested_from - worked_since
            while not self._stopping.is_set() and not self._awaited:
                rested_s = self._clock.monotonic() - rested_from
                if rested_s >= rest_s and not (self._roller.is_busy and rested_s < rest_s + _ROLL_WAIT_S):
                    break
                self._clock.sleep(min(0.01, max(0.001, rest_s - rested_s)))
            if self._stopping.is_set():
                raise _StoppedError
            worked_since = self._clock.monotonic()

        try:
            self._require_lock()
            for number, group in enumerate(step.groups):
                now_ms = self._clock.now_ms()
                task = merge_task(group, topic.name, topic.table.files.uri, step.snapshot, step.config, now_ms)
                try:
                    written.append((group, write_here(number, task, None, pace, topic.table.files).segment))
                except (CorruptionError, StorageError) as error:
                    log.error("merge.unreadable", topic=topic.name, partition=group.partition, error=str(error))
                    written.append((group, None))
        except BaseException:
            topic.table.files.discard(segment.path for _, segment in written if segment is not None)
            raise
        return written

    # ---- files that have left the table -----------------------------------------------------------------------------

    async def delete_files(self, topic: Topic) -> DeletedFiles:
        """Delete files that a commit removed from the topic's table long ago. Raises OSError, CorruptionError,
        StorageError.
        """
        if not topic.is_maintained_here or topic.partitions[0].quarantined is not None:
            return DeletedFiles()
        files = topic.table.files
        delay_ms = max(topic.config.file_delete_delay_ms, OVERWRITES_NOTICED_MS)

        def delete() -> DeletedFiles:
            self._require_lock()
            # A new snapshot is read, because a RESTORE may have put files back since the store looked.
            snapshot = topic.table.snapshot()
            if not snapshot.log.has_removals:
                return DeletedFiles()
            return delete_removed_files(
                files, snapshot, delay_ms=delay_ms, now_ms=min(self._clock.now_ms(), files.now_ms())
            )

        deleted = await self._in_thread(delete)
        if deleted.names:
            DELETED_FILE_BYTES.count(topic, deleted.bytes)
            log.info("files.deleted", topic=topic.name, files=len(deleted.names), bytes=deleted.bytes)
        return deleted

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _plan(
    snapshot: TopicSnapshot, config: TopicConfig, partitions: Sequence[int], unreadable: Collection[str]
) -> _Step | None:
    groups: list[MergeGroup] = []
    size = 0
    for partition in partitions:
        state = snapshot.partitions[partition]
        for group in plan_merge(partition, state, snapshot.segments(partition), config):
            if unreadable and any(file.path in unreadable for file in group.files):
                continue
            if groups and size + group.size > _STEP_BYTES:
                return _Step(snapshot, config, tuple(groups))
            groups.append(group)
            size += group.size
    return _Step(snapshot, config, tuple(groups)) if groups else None
