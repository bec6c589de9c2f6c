"""The broker: the facade that listeners and consumer groups call. It starts and stops the rooms of a store.

Everything runs on one event loop; disk work runs in threads. The rooms: ``topics`` (create, delete, alter, grow),
``topic_tables`` (roll, refresh, delete records), ``producing``, ``batcher`` (small requests), ``fetching``,
``admission``, ``roll_schedule`` and ``upkeep``. They ask ``authorizer`` themselves who may do what.
"""

import functools
from collections.abc import Sequence
from typing import Self

import structlog

from logstore.broker.admission import Admission
from logstore.broker.authorizer import Authorizer
from logstore.broker.batcher import Batcher
from logstore.broker.fetching import Fetching
from logstore.broker.produce_result import PartitionResponse, ProduceResult
from logstore.broker.producing import Producing
from logstore.broker.quotas import Quotas
from logstore.broker.roll_schedule import RollSchedule
from logstore.broker.secret import load_secret
from logstore.broker.topic_catalog import TopicCatalog
from logstore.broker.topic_tables import TopicTables
from logstore.broker.topics import Topics
from logstore.broker.upkeep import Upkeep
from logstore.clock import Clock, SystemClock
from logstore.cluster.coordinator import BrokerEndpoint, Coordinator
from logstore.errors import BrokerNotReadyError
from logstore.filesystem import FileSystem, local_filesystem
from logstore.journal.journal import Journal
from logstore.limits import JOURNAL_FILE_BYTES, MIB
from logstore.lock_file import LockFile, require_all
from logstore.log.log_reader import FetchResult
from logstore.log.partition_log import PartitionLog
from logstore.log.roller import Roller, RollResult, roll_threads
from logstore.log.topic import Topic
from logstore.settings import Settings
from logstore.table_root import TableRoot

log = structlog.stdlib.get_logger(__name__)


class Broker:
    """Make one with ``start``. Every method raises the errors of ``logstore.errors`` that its docstring names."""

    def __init__(
        self,
        settings: Settings,
        coordinator: Coordinator,
        catalog: TopicCatalog,
        journal: Journal,
        journal_lock: LockFile,
        authorizer: Authorizer,
        quotas: Quotas,
        clock: Clock,
        filesystem: FileSystem,
    ) -> None:
        self.settings = settings
        self.cluster_id = coordinator.cluster_id
        self.broker_id = coordinator.broker_id
        self.idempotency_secret = load_secret(settings.data / "brokers" / str(self.broker_id), filesystem)
        self._coordinator = coordinator
        self.journal = journal
        #: Asked by every room, and by a listener before it reads a body.
        self.authorizer = authorizer
        self.quotas = quotas
        self._journal_lock = journal_lock
        locks = [*coordinator.locks, journal_lock]
        self.clock = clock
        self._filesystem = filesystem
        by_name: dict[str, Topic] = {}
        self._writers = roll_threads()
        self._roller = roller = Roller(journal, clock, self._writers, functools.partial(require_all, locks))
        self._schedule = RollSchedule(roller, journal, clock, settings, by_name)
        self.admission = Admission(settings, journal, locks, self._schedule.press, quotas, clock)
        self._upkeep = Upkeep(roller, clock, by_name, functools.partial(require_all, locks))
        self._topics = Topics(
            by_name, settings, coordinator, catalog, journal, roller, self._schedule, self.admission, authorizer, clock
        )
        self._tables = TopicTables(roller, self.admission, authorizer, self._schedule.rolled)
        self._producing = Producing(journal, self.admission, authorizer, coordinator, filesystem, self._schedule.touch)
        self._batcher = Batcher(self._producing.produce, authorizer, self.admission)
        self._fetching = Fetching(journal, roller.refresh, self._topics.get, self.admission, authorizer)
        self._delegate()

    def _delegate(self) -> None:
        """The rooms' methods under the names that callers know."""
        topics, tables, producing, fetching = self._topics, self._tables, self._producing, self._fetching
        self.topics = topics.all
        self.topic = topics.topic
        self.partition_state = topics.partition_state
        self.problems = topics.problems
        self.was_deleted = topics.was_deleted
        self.topic_deleted_listeners = topics.removals.listeners
        self.leadership_listeners = topics.leadership_listeners
        self.create_topic = topics.create
        self.internal_topic = topics.internal
        self.find_topic_for_produce = topics.find_for_produce
        self.topic_for_produce = topics.for_produce
        self.delete_topic = topics.delete
        self.alter_configs = topics.alter_configs
        self.add_partitions = topics.add_partitions
        self.roll = tables.roll
        self.refresh = tables.refresh
        self.delete_records = tables.delete_records
        self.drop_foreign_files = tables.drop_foreign_files
        self.produce = producing.produce
        self.produce_all = producing.produce_all
        self.produce_small = self._batcher.produce
        self.begin_produce_small = self._batcher.begin
        self.init_producer = producing.init_producer
        self.fetch = fetching.fetch
        self.fetch_records = fetching.fetch_records
        self.fetch_stored = fetching.fetch_stored
        self.offset_for_timestamp = fetching.offset_for_timestamp

    @classmethod
    async def start(
        cls,
        settings: Settings,
        coordinator: Coordinator,
        authorizer: Authorizer,
        quotas: Quotas,
        *,
        clock: Clock | None = None,
        filesystem: FileSystem | None = None,
    ) -> Self:
        """Lock the journal, recover the data directory, and begin to serve.

        ``coordinator`` has started, and stops after the broker. Raises DataDirectoryError if another process has the
        journal, CorruptionError if stored bytes have changed since they were written.
        """
        clock = clock or SystemClock()
        filesystem = filesystem or local_filesystem()
        journal_directory = settings.data / "brokers" / str(coordinator.broker_id) / "journal" / "0"
        filesystem.make_directory(journal_directory)
        # The broker's own lock: no other process has the journal, even if the coordinator's lock was removed.
        journal_lock = LockFile.acquire(journal_directory)
        locks = [*coordinator.locks, journal_lock]
        try:
            catalog = TopicCatalog(TableRoot(settings.data, filesystem))
            file_bytes = min(JOURNAL_FILE_BYTES, max(MIB, settings.journal_max_bytes // 32))
            journal = Journal(
                journal_directory,
                filesystem=filesystem,
                clock=clock,
                file_bytes=file_bytes,
                require_lock=functools.partial(require_all, locks),
            )
            broker = cls(settings, coordinator, catalog, journal, journal_lock, authorizer, quotas, clock, filesystem)
            await broker._recover()
        except BaseException:
            journal_lock.release()
            raise
        return broker

    async def _recover(self) -> None:
        began = self.clock.monotonic()
        await self._topics.recover(self._filesystem)
        self._schedule.start()
        self._upkeep.start()
        self.admission.not_ready = None
        seconds = round(self.clock.monotonic() - began, 3)
        log.info("broker.started", data=str(self.settings.data), seconds=seconds, **self._topics.facts())

    async def stop(self) -> None:
        """Refuse new appends, seal as much as ``ROLL_AT_STOP_S`` allows, and release the data directory."""
        self.admission.not_ready = "the store is stopping"
        await self._upkeep.stop()
        await self._schedule.stop()
        await self._topics.stop()
        if self.admission.lost_lock is None:  # without its locks another process may be writing to the tables
            await self._schedule.roll_at_stop()
        await self._roller.drain()
        self._topics.close(BrokerNotReadyError("The store is stopping. Try again in a few seconds."))
        try:
            await self.journal.close()
        finally:
            self._producing.close()
            self._fetching.close()
            self._writers.shutdown()
            self._journal_lock.release()
        log.info("broker.stopped")

    @property
    def brokers(self) -> Sequence[int]:
        """Ids of the brokers of the cluster that are there now, sorted."""
        return sorted(self._coordinator.brokers)

    @property
    def endpoints(self) -> Sequence[BrokerEndpoint]:
        """The same brokers, with the addresses at which clients find them."""
        return list(self._coordinator.brokers_by_id.values())

    @property
    def controller_id(self) -> int:
        """Id of the broker that decides who leads; -1 while there is none."""
        return self._coordinator.controller_id

    @property
    def not_ready_reason(self) -> str | None:
        """Why appends are refused; None while they are taken."""
        return self.admission.not_ready_reason


__all__ = ["Broker", "FetchResult", "PartitionLog", "PartitionResponse", "ProduceResult", "RollResult", "Topic"]
