"""One topic: its Delta table, its configuration and its partition logs, kept in step with the table.

The table is authoritative for history; ``follow`` takes over the state of a snapshot. All commits of this broker to one
topic happen under ``commit_lock``, so that its own commits never race each other.
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import structlog

from logstore.clock import Clock
from logstore.delta.snapshot import TopicSnapshot
from logstore.delta.topic_table import TopicTable
from logstore.errors import (
    CorruptionError,
    InvalidConfigError,
    InvalidTopicError,
    NewerFormatError,
    UnknownPartitionError,
    UnknownTopicError,
)
from logstore.log.active_segment import JournalBytes
from logstore.log.partition_log import PartitionLog
from logstore.names import is_internal
from logstore.topic_config import TopicConfig

log = structlog.stdlib.get_logger(__name__)


class Topic:
    def __init__(
        self,
        name: str,
        table: TopicTable,
        snapshot: TopicSnapshot,
        *,
        location: str,
        defaults: dict[str, str],
        clock: Clock,
        producer_id_expiration_ms: int,
    ) -> None:
        self.name = name
        self.is_internal = is_internal(name)
        self.table = table
        self.location = location
        self.topic_id: uuid.UUID = snapshot.topic_id
        #: Sealed offsets that no file holds, by partition, as of ``snapshot``.
        self.gaps: dict[int, list[tuple[int, int]]] = {}
        self.partitions: list[PartitionLog] = []
        self._journal_bytes = JournalBytes()
        self.commit_lock = asyncio.Lock()
        self.deleted = False
        #: The brokers that a user has chosen for the replicas of each partition; () where the controller chooses.
        self.assignments: tuple[tuple[int, ...], ...] = ()
        self.config_overrides: dict[str, str] = {}
        self._defaults = defaults
        self._clock = clock
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._bad_property_version = -1
        self._changed: Callable[[Topic], None] = lambda _: None
        self.config = TopicConfig.parse({}, defaults)
        self.follow(snapshot)

    def on_change(self, changed: Callable[["Topic"], None]) -> None:
        """Call ``changed`` when the cluster state has to know: the table has new partitions, which have no leader yet,
        or its setting for unclean elections has changed.
        """
        self._changed = changed

    def require_not_internal(self) -> None:
        """Raise InvalidTopicError for one of the store's own topics."""
        if self.is_internal:
            raise InvalidTopicError(
                f"Topic {self.name!r} is the store's own: it can be read and rolled, but not written, changed or "
                "deleted."
            )

    def assign(self, first: int, assignments: Sequence[Sequence[int]]) -> None:
        """Choose the brokers of new partitions, from ``first`` on, before the cluster state learns of them."""
        before = (*self.assignments, *[()] * first)[:first]
        self.assignments = (*before, *map(tuple, assignments))

    def partition(self, partition: int) -> PartitionLog:
        if 0 <= partition < len(self.partitions):
            return self.partitions[partition]
        raise UnknownPartitionError(
            f"Partition {partition} not found: topic {self.name!r} has partitions 0 to {len(self.partitions) - 1}."
        )

    @property
    def journal_bytes(self) -> int:
        """The bytes that are in the journal, or being written to it, and not in Delta."""
        return self._journal_bytes.num_bytes

    @property
    def version(self) -> int:
        """The version of the newest snapshot seen."""
        return self.snapshot.version

    @property
    def has_unsealed(self) -> bool:
        """True if a roll would have something to seal."""
        return any(p.has_unsealed for p in self.partitions)

    @property
    def is_maintained_here(self) -> bool:
        """True if this broker maintains and repairs the table's log: the leader of partition 0 does."""
        return self.partitions[0].is_leader

    def follow(self, snapshot: TopicSnapshot, lost: Mapping[int, str] | None = None) -> None:
        """Take over a snapshot's configuration, partitions, log starts and segments. ``lost`` has, by partition, the
        reason why sealed records are neither in the table nor on disk.
        """
        self.snapshot = snapshot
        unclean, min_in_sync = self.config.unclean_leader_election_enable, self.config.min_insync_replicas
        self._follow_config(snapshot)
        before = len(self.partitions)
        for partition in range(len(self.partitions), snapshot.num_partitions):
            new = PartitionLog(
                self.name,
                self.topic_id,
                partition,
                clock=self._clock,
                producer_id_expiration_ms=self._producer_id_expiration_ms,
                journal_bytes=self._journal_bytes,
                location=str(self.table.files),
            )
            self.partitions.append(new)
        for partition_log in self.partitions:
            self._follow_segments(partition_log, snapshot, (lost or {}).get(partition_log.partition))
            partition_log.state.idempotency_keys.remembered_ms = self.config.idempotency_window_ms
            partition_log.state.idempotency_keys.keys_max = self.config.idempotency_keys_max
            state = snapshot.partitions[partition_log.partition]
            partition_log.log_start_offset = max(partition_log.log_start_offset, state.log_start)
            if self.config.min_insync_replicas != min_in_sync:
                partition_log.count_replicas()
        if len(self.partitions) > before or self.config.unclean_leader_election_enable != unclean:
            self._changed(self)

    def _follow_segments(self, partition_log: PartitionLog, snapshot: TopicSnapshot, lost: str | None) -> None:
        why, remedy = lost, "It is served again when the store finds them"
        try:
            partition = partition_log.partition
            before = partition_log.segments.refused
            partition_log.segments.follow(snapshot.segments(partition), snapshot.refused(partition))
            for file in partition_log.segments.refused:
                if file not in before:
                    log.error("partition.foreign_file", topic=self.name, partition=partition, **asdict(file))
        except CorruptionError as error:
            why, remedy = str(error), "Restore the table to the version before, or _delta_log from a backup"
            if isinstance(error, NewerFormatError):
                remedy = "Start the release that wrote it"
        if why is not None:
            # Only this partition is refused.
            if partition_log.quarantined is None:
                log.error("partition.quarantined", topic=self.name, partition=partition_log.partition, why=why)
            partition_log.quarantine(why, remedy)
            return
        if partition_log.quarantined is not None:
            partition_log.end_quarantine()
            if partition_log.quarantined is None:
                log.info("partition.mended", topic=self.name, partition=partition_log.partition)

    def quarantine(self, reason: str, remedy: str) -> None:
        """Refuse readers and writers of all partitions, until ``follow`` finds the table repaired."""
        for partition_log in self.partitions:
            partition_log.quarantine(reason, remedy)

    def config_with(self, changes: Mapping[str, str | None]) -> TopicConfig:
        """Return the configuration that results from ``changes`` (None: back to the default). Raises
        InvalidConfigError.
        """
        wanted = {**self.config_overrides, **changes}
        return TopicConfig.parse({key: value for key, value in wanted.items() if value}, self._defaults)

    def _follow_config(self, snapshot: TopicSnapshot) -> None:
        # delta-rs cannot remove a property, so an empty one counts as removed.
        overrides = {key: value for key, value in snapshot.config_overrides.items() if value}
        try:
            self.config = TopicConfig.parse(overrides, self._defaults)
        except InvalidConfigError as error:
            # A property was set with ALTER TABLE in Spark, and is not valid. The others count.
            overrides = TopicConfig.usable(overrides, self._defaults)
            self.config = TopicConfig.parse(overrides, self._defaults)
            if snapshot.version != self._bad_property_version:
                self._bad_property_version = snapshot.version
                log.error("topic.bad_table_property", topic=self.name, version=snapshot.version, error=str(error))
        self.config_overrides = overrides

    def delete(self) -> None:
        self.deleted = True
        for partition_log in self.partitions:
            partition_log.close(UnknownTopicError(f"Topic {self.name!r} was deleted."))
