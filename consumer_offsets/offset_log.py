"""The committed offsets of all groups: read from memory, stored in ``__consumer_offsets``.

Invariants: an offset that is read here is durable. Of two records of one key the later one in the log counts, in
whatever order their acknowledgements come. All records of a group are in one partition, and those of one ``append`` in
one frame of the journal: after a crash all of them are there, or none.

A commit costs one frame, never a Delta commit of its own; the topic rolls every few seconds, like any other.
"""

import asyncio
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from logstore.broker.broker import Broker, PartitionLog, Topic
from logstore.broker.context import INTERNAL
from logstore.errors import (
    CorruptionError,
    LogStoreError,
    MissingRecordsError,
    QuarantinedError,
    RequestTimedOutError,
    UnknownTopicError,
)
from logstore.limits import MIB
from logstore.records.batch import DecodedRecords
from logstore.records.murmur2 import murmur2
from logstore.records.offset_record import (
    OFFSETS_TOPIC,
    OffsetCommit,
    OffsetKey,
    decode_offset_record,
    encode_offset_records,
)

log = structlog.stdlib.get_logger(__name__)

#: Readers of the table see commits that are this old; compaction leaves the latest of each key.
OFFSETS_TOPIC_CONFIGS = {"cleanup.policy": "compact", "segment.ms": "5000"}

_LOAD_BYTES = 8 * MIB
# An append runs to its end, so that memory always follows the log. Callers have a time-out of their own.
_UNTIL_KNOWN_MS = 2**31


class TopicPartition(NamedTuple):
    topic: str
    partition: int


@dataclass(slots=True)
class _Latest:
    """The latest ``commit`` of a key, of the record at ``log_offset``, and how many later records are on their way."""

    log_offset: int = -1
    commit: OffsetCommit | None = None
    pending: int = 0


class OffsetLog:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._groups: dict[str, dict[TopicPartition, _Latest]] = {}
        #: Why the offsets of some groups are not known, by partition of the topic; None stands for all partitions.
        self._unloaded: dict[int | None, LogStoreError] = {}
        self._num_partitions = 1
        self._running: set[asyncio.Task[None]] = set()

    async def load(self) -> None:
        """Read all committed offsets; to be called before anything else.

        Groups whose offsets cannot be read are refused until a restart finds the topic mended; others are served.
        """
        try:
            topic = self._broker.topic(INTERNAL, OFFSETS_TOPIC)
        except UnknownTopicError:
            return
        except QuarantinedError as error:
            self._unloaded[None] = error
            return
        self._num_partitions = len(topic.partitions)
        for partition_log in topic.partitions:
            try:
                partition_log.require_served()
                await self._load(topic, partition_log)
            except (QuarantinedError, MissingRecordsError, CorruptionError) as error:
                self._unloaded[partition_log.partition] = error
                log.error("group_offsets.not_loaded", partition=partition_log.partition, error=str(error))
        log.info("group_offsets.loaded", groups=len(self._groups))

    async def _load(self, topic: Topic, partition_log: PartitionLog) -> None:
        partition, at = partition_log.partition, partition_log.log_start_offset
        latest: dict[bytes, tuple[int, bytes | None]] = {}
        while at < partition_log.high_watermark:
            fetched = await self._broker.fetch(
                INTERNAL, topic, partition, at, max_bytes=_LOAD_BYTES, min_bytes=1, max_wait_ms=0
            )
            offsets, keys, values = (fetched.records.column(name).to_pylist() for name in ("offset", "key", "value"))
            latest.update(zip(keys, zip(offsets, values, strict=True), strict=True))
            at = fetched.next_offset
        for text, (log_offset, value) in latest.items():
            if value is not None:
                try:
                    key, commit = decode_offset_record(text, value)
                except CorruptionError as error:
                    raise CorruptionError(f"{OFFSETS_TOPIC}-{partition}, offset {log_offset}: {error}") from error
                by_partition = self._groups.setdefault(key.group, {})
                by_partition[TopicPartition(key.topic, key.partition)] = _Latest(log_offset, commit)

    async def close(self) -> None:
        """Wait for the appends that are on their way."""
        while self._running:
            await asyncio.wait(self._running)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def groups(self) -> Iterator[str]:
        """Groups with a commit or one on its way."""
        return iter(list(self._groups))

    def require_loaded(self, group: str) -> None:
        """Raise QuarantinedError if the offsets of ``group`` could not be loaded."""
        if self._unloaded:
            error = self._unloaded.get(None) or self._unloaded.get(_partition_of(group, self._num_partitions))
            if error is not None:
                raise QuarantinedError(
                    f"The offsets of group {group!r} cannot be read: {error}", "Then restart the store"
                )

    def commits(self, group: str) -> dict[TopicPartition, OffsetCommit]:
        """The durable commits of the group. Raises as ``require_loaded``."""
        self.require_loaded(group)
        found = self._groups.get(group, {})
        return {key: latest.commit for key, latest in found.items() if latest.commit is not None}

    def keys(self, group: str) -> list[TopicPartition]:
        """All keys to delete so that the group has no offsets: of durable commits, and of those on their way."""
        return list(self._groups.get(group, ()))

    # ---- writing ----------------------------------------------------------------------------------------------------

    async def open_topic(self) -> Topic:
        """The internal topic, made when it is first needed."""
        return await self._broker.internal_topic(
            INTERNAL,
            OFFSETS_TOPIC,
            partitions=self._broker.settings.offsets_topic_num_partitions,
            configs=OFFSETS_TOPIC_CONFIGS,
        )

    async def append(
        self, topic: Topic, group: str, commits: Mapping[TopicPartition, OffsetCommit | None], *, timeout_ms: int
    ) -> None:
        """Commit, or delete (None), all or nothing; returns when that is durable.

        Appends are in the order of the calls, of whatever groups. An append goes on if the caller is cancelled. Raises
        RequestTimedOutError (the append may still succeed), and as ``Broker.produce``.
        """
        self.require_loaded(group)
        for key in commits:
            self._groups.setdefault(group, {}).setdefault(key, _Latest()).pending += 1
        task = asyncio.create_task(self._append(topic, group, commits))
        self._running.add(task)
        task.add_done_callback(self._finished)
        await asyncio.wait([task], timeout=timeout_ms / 1000)
        if not task.done():
            raise RequestTimedOutError(
                f"The offsets of group {group!r} were not acknowledged within {timeout_ms} ms; "
                "they may or may not be committed."
            )
        task.result()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and isinstance(task.exception(), LogStoreError):
            # The caller may have given up: say it in the log.
            log.warning("group_offsets.not_committed", error=str(task.exception()))

    async def _append(self, topic: Topic, group: str, commits: Mapping[TopicPartition, OffsetCommit | None]) -> None:
        by_partition = self._groups[group]
        try:
            records = [(OffsetKey(group, *key), commit) for key, commit in commits.items()]
            produced = await self._broker.produce(
                INTERNAL,
                topic,
                DecodedRecords(encode_offset_records(records), None),
                partition=_partition_of(group, len(topic.partitions)),
                timeout_ms=_UNTIL_KNOWN_MS,
            )
            produced.require_stored()
            base = produced.partitions[0].base_offset
            for log_offset, (key, commit) in enumerate(commits.items(), start=base):
                latest = by_partition[key]
                if log_offset > latest.log_offset:
                    latest.log_offset, latest.commit = log_offset, commit
        finally:
            self._let_go(group, commits)

    def _let_go(self, group: str, keys: Mapping[TopicPartition, object]) -> None:
        """Forget deleted keys. A key is kept while an older commit of it may still be on its way."""
        by_partition = self._groups[group]
        for key in keys:
            latest = by_partition[key]
            latest.pending -= 1
            if not latest.pending and latest.commit is None:
                del by_partition[key]
        if not by_partition:
            del self._groups[group]


# ``murmur2`` is made for columns: for one name it takes half as long as the rest of a commit.
@functools.lru_cache(maxsize=10_000)
def _partition_of(group: str, num_partitions: int) -> int:
    return (murmur2(group.encode()) & 0x7FFFFFFF) % num_partitions
