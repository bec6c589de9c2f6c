"""The broker: the facade that listeners and consumer groups call. It starts and stops the rooms of a store.

Everything runs on one event loop; disk work runs in threads. The rooms: ``topics`` (create, delete, alter, grow),
``topic_tables`` (roll, refresh, delete records), ``erasing``, ``producing``, ``batcher`` (small requests),
``fetching``, ``admission``, ``roll_schedule`` and ``upkeep``. They check permissions themselves with ``authorizer``.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

import structlog

from logstore.broker.admission import Admission
from logstore.broker.authorizer import Authorizer
from logstore.broker.erasing import Erasing
from logstore.broker.fetch.fetching import Fetching
from logstore.broker.opened_journal import OpenedJournal
from logstore.broker.produce.batcher import Batcher
from logstore.broker.produce.batches import BatchProducing
from logstore.broker.produce.records import Producing
from logstore.broker.produce.result import PartitionResponse, ProduceResult
from logstore.broker.produce.secret import load_secret, load_shared_secret
from logstore.broker.quotas import Quotas
from logstore.broker.replicas import Replicas
from logstore.broker.roll_schedule import RollSchedule
from logstore.broker.topics.catalog import TopicCatalog
from logstore.broker.topics.changes import TopicChanges
from logstore.broker.topics.leaders import Cluster
from logstore.broker.topics.served import Topics
from logstore.broker.topics.tables import TopicTables
from logstore.broker.upkeep import Upkeep
from logstore.clock import Clock
from logstore.cluster.coordinator import BrokerEndpoint, Coordinator, PartitionState
from logstore.cluster.log_directory_record import record_log_directory
from logstore.errors import BrokerNotReadyError, LogStoreError
from logstore.filesystem import FileSystem
from logstore.lock_file import require_all
from logstore.log.erasures import ErasureLog
from logstore.log.log_reader import FetchResult
from logstore.log.partition_log import PartitionLog
from logstore.log.roller import Roller, RollResult, roll_threads
from logstore.log.topic import Topic
from logstore.replication.fetch_session import FetchSession
from logstore.replication.replica_fetcher import Connection, FetcherSettings
from logstore.settings import Settings
from logstore.table_root import TableRoot

if TYPE_CHECKING:  # one node imports nothing of the traffic between brokers
    from logstore.broker.elsewhere.other_brokers import OtherBrokers
    from logstore.broker.elsewhere.partition_offsets import OffsetsElsewhere
    from logstore.broker.elsewhere.remote_appends import PeerRequests
    from logstore.replication.peer_http import PeerHttp

log = structlog.stdlib.get_logger(__name__)

#: Opens a connection to the broker with that id.
Connect = Callable[[int], Awaitable[Connection]]
#: Seconds between two checks for new partitions of a broker whose journal has failed.
_OFFLINE_S = 1.0


class Broker:
    """A running broker; ``start`` makes one. Every method raises the errors of ``logstore.errors`` that its docstring
    names.
    """

    def __init__(
        self,
        settings: Settings,
        coordinator: Coordinator,
        catalog: TopicCatalog,
        opened: OpenedJournal,
        authorizer: Authorizer,
        quotas: Quotas,
        clock: Clock,
        filesystem: FileSystem,
        connect: Connect | None,
    ) -> None:
        self.settings = settings
        self.cluster_id = coordinator.cluster_id
        self.broker_id = coordinator.broker_id
        if settings.zookeeper_connect is None:
            self.idempotency_secret = load_secret(settings.log_directory, filesystem)
        else:
            one_node = settings.data / "brokers" / str(self.broker_id)
            self.idempotency_secret = load_shared_secret(settings.data, one_node, filesystem)
        self._coordinator = coordinator
        self.journal = journal = opened.journal
        journal.on_failure = self._journal_failed
        self._telling_offline: asyncio.Task[None] | None = None
        #: Every room asks it, and a listener asks it before it reads a body.
        self.authorizer = authorizer
        self.quotas = quotas
        self._opened = opened
        locks = opened.locks
        self.clock = clock
        self.filesystem = filesystem
        by_name: dict[str, Topic] = {}
        self._writers = roll_threads()
        erasures = ErasureLog()
        self._roller = roller = Roller(
            journal, clock, self._writers, functools.partial(require_all, locks), coordinator.table_lock, erasures
        )
        self._schedule = RollSchedule(roller, journal, clock, settings, by_name)
        self.admission = Admission(settings, journal, locks, self._schedule.press, quotas, clock)
        self._upkeep = Upkeep(roller, clock, by_name, functools.partial(require_all, locks))
        #: Called with a topic and a partition when this broker begins to lead it, at each new epoch, and when it stops
        #: leading it (``PartitionLog.is_leader`` is the state).
        self.leadership_listeners: list[Callable[[Topic, int], None]] = []
        self.replicas = Replicas(
            coordinator,
            journal,
            roller,
            clock,
            connect,
            FetcherSettings(
                wait_max_ms=settings.replica_fetch_wait_max_ms,
                partition_bytes_max=settings.replica_fetch_max_bytes,
                response_bytes_max=settings.replica_fetch_response_max_bytes,
                backoff_s=settings.replica_fetch_backoff_ms / 1000,
                timeout_s=settings.replica_socket_timeout_ms / 1000,
            ),
            fetchers_per_broker=settings.num_replica_fetchers,
            lag_max_s=settings.replica_lag_time_max_ms / 1000,
            session_s=settings.zookeeper_session_timeout_ms / 1000,
            changed=self._leadership_changed,
        )
        self._topics = Topics(
            by_name,
            settings,
            coordinator,
            catalog,
            journal,
            roller,
            self._schedule,
            self.replicas,
            self.admission,
            authorizer,
            clock,
        )
        self._topics.appeared = self._topic_appeared
        self._changes = TopicChanges(
            self._topics, settings, coordinator, roller, self._schedule, self.admission, authorizer
        )
        self._cluster = Cluster(coordinator, authorizer)
        self._tables = TopicTables(roller, self.admission, authorizer, self._schedule.rolled)
        self._producing = Producing(
            journal, self.admission, authorizer, coordinator, filesystem, self._schedule.appended
        )
        self._batch_producing = BatchProducing(
            self._producing, self._topics, self.admission, authorizer, settings.max_request_size
        )
        self._batcher = Batcher(self._producing.produce, authorizer, self.admission)
        self.erasing = Erasing(
            self._topics,
            self._changes,
            self._producing,
            roller,
            journal,
            self._schedule,
            self._upkeep,
            self.admission,
            authorizer,
            coordinator,
            erasures,
            settings,
            clock,
            filesystem,
        )
        self._topics.load_erasures = self.erasing.load
        self._fetching = Fetching(journal, roller.refresh, self._topics.get, self.admission, authorizer)
        #: None on one node.
        self.others: OtherBrokers | None = None
        self._delegate()

    def _delegate(self) -> None:
        """Publish the rooms' methods under the names that callers know."""
        topics, changes, tables = self._topics, self._changes, self._tables
        producing, fetching = self._producing, self._fetching
        self.topics = topics.all
        self.topic = topics.topic
        self.topic_by_id = topics.topic_by_id
        self.partition_state = topics.partition_state
        self.partition_states = self._cluster.partition_states
        self.elect_leaders = self._cluster.elect_leaders
        self.reassign = self._cluster.reassign
        self.problems = topics.problems
        self.was_deleted = topics.was_deleted
        self.topic_deleted_listeners = topics.removals.listeners
        self.create_topic = changes.create
        self.internal_topic = changes.internal
        self.find_topic = changes.find
        self.find_or_create_topic = changes.find_or_create
        self.delete_topic = changes.delete
        self.alter_configs = changes.alter_configs
        self.add_partitions = changes.add_partitions
        self.roll = tables.roll
        self.refresh = tables.refresh
        self.keyless_records = tables.keyless_records
        self.delete_records = tables.delete_records
        self.delete_all_records = tables.delete_all_records
        self.drop_foreign_files = tables.drop_foreign_files
        self.produce = producing.produce
        self.produce_all = producing.produce_all
        self.produce_batches = self._batch_producing.produce_batches
        self.produce_small = self._batcher.produce
        self.begin_produce_small = self._batcher.begin
        self.init_producer = producing.init_producer
        self.fetch = fetching.fetch
        self.fetch_records = fetching.fetch_records
        self.fetch_stored = fetching.fetch_stored
        self.fetch_batches = fetching.fetch_batches
        self.count_records = fetching.count_records
        self.offset_for_timestamp = fetching.offset_for_timestamp
        self.offset_of_max_timestamp = fetching.offset_of_max_timestamp

    @classmethod
    async def start(
        cls,
        settings: Settings,
        coordinator: Coordinator,
        opened: OpenedJournal,
        authorizer: Authorizer,
        quotas: Quotas,
        *,
        clock: Clock,
        filesystem: FileSystem,
        connect: Connect | None = None,
    ) -> Self:
        """Recover the data directory, and begin to serve.

        ``coordinator`` has started, and has read the journal ``opened``; it stops after the broker. ``connect`` opens a
        connection to another broker, in a cluster. Raises DataDirectoryError, and CorruptionError if stored bytes have
        changed since they were written.
        """
        try:
            record_log_directory(filesystem, settings.data, settings.broker_id, settings.log_directory)
            in_cluster = settings.zookeeper_connect is not None
            root = TableRoot(settings.data, filesystem, coordinator.broker_id if in_cluster else None, clock)
            catalog = TopicCatalog(root, is_shared=in_cluster)
            broker = cls(settings, coordinator, catalog, opened, authorizer, quotas, clock, filesystem, connect)
            await broker._recover()
        except BaseException:
            opened.release()
            raise
        return broker

    async def _recover(self) -> None:
        began = self.clock.monotonic()
        bases = {key: tail.index.base_offset for key, tail in self._opened.tails.items()}
        await self._topics.recover(self.filesystem, self._opened.tails)
        self._opened.tails = {}
        await self.erasing.recover(bases)
        self._schedule.start()
        self._upkeep.start()
        self.admission.not_ready = None
        self.erasing.start()
        seconds = round(self.clock.monotonic() - began, 3)
        log.info("broker.started", data=str(self.settings.data), seconds=seconds, **self._topics.facts())

    def _journal_failed(self) -> None:
        if self.settings.zookeeper_connect is not None:
            self._telling_offline = asyncio.create_task(self._tell_offline())

    async def _tell_offline(self) -> None:
        """Let others lead what a failed journal cannot serve, now and for partitions that come later, until the process
        ends.
        """
        told: Mapping[str, Sequence[int]] = {}
        while True:
            if (here := self._coordinator.replicas_here()) != told:
                try:
                    await self._coordinator.set_offline(here)
                    told = here
                    log.error("broker.offline", topics=len(here), reason="the journal has failed: others lead")
                except LogStoreError as error:
                    log.warning("broker.offline_not_told", why=error.message)
            await asyncio.sleep(_OFFLINE_S)

    async def stop(self) -> None:
        """Refuse new appends, seal as much as ``ROLL_AT_STOP_S`` allows, and release the data directory."""
        self.admission.not_ready = "the store is stopping"
        if self.others is not None:
            await self.others.appends.close()
        if self._telling_offline is not None:
            self._telling_offline.cancel()
        await self.erasing.stop()
        await self._upkeep.stop()
        await self._schedule.stop()
        await self._topics.stop()
        await self.replicas.stop()
        if self.admission.lost_lock is None:  # without its locks another process may be writing to the tables
            await self._schedule.roll_at_stop()
        await self._roller.drain()
        self._topics.close(BrokerNotReadyError("The store is stopping. Try again in a few seconds."))
        try:
            await self.journal.close()
        finally:
            self._producing.close()
            self._batch_producing.close()
            self._fetching.close()
            self._writers.shutdown()
            self._opened.release()
        log.info("broker.stopped")

    def _topic_appeared(self, topic: Topic) -> None:
        """Call the leadership listeners: they follow topics even if other brokers lead all partitions."""
        for partition_log in topic.partitions:
            for listener in self.leadership_listeners:
                listener(topic, partition_log.partition)

    def _leadership_changed(self, topic: Topic, partition: int) -> None:
        self._topics.leadership_changed(topic)
        self._schedule.touch(topic)
        for listener in self.leadership_listeners:
            listener(topic, partition)

    def fetch_session(self, broker_id: int, broker_epoch: int) -> FetchSession:
        """Return a session for the fetches of a follower over one connection; the caller closes it."""
        return FetchSession(
            broker_id, broker_epoch, self.journal, self.clock, self._topics.partition_log, self.replicas.followed
        )

    async def offsets_elsewhere(self, logs: Sequence[PartitionLog]) -> "OffsetsElsewhere":
        """Return the leaders' offsets of those ``logs`` that other brokers lead; -1 if a leader does not answer."""
        return {} if self.others is None else await self.others.offsets(logs)

    async def ends_in_doubt(self, offsets: Iterable[tuple[PartitionLog, int]]) -> "OffsetsElsewhere":
        """Return ``offsets_elsewhere`` of the partitions whose end, as far as this broker knows, is below the
        offset.
        """
        logs = [log for log, offset in offsets if not log.is_leader and offset > log.high_watermark]
        return await self.offsets_elsewhere(logs) if logs else {}

    async def until_known(self, topics: Iterable[str]) -> None:
        """Wait, in a cluster, for those of these topics that another broker has just made."""
        if self.others is not None:
            await self.others.router.until_known(topics)

    def join_cluster(self, peers: "PeerRequests", http: "PeerHttp") -> "OtherBrokers":
        """Connect the rooms to the other brokers, which from now on get and serve the records of the partitions they
        lead.

        Call it once, after the start.
        """
        from logstore.broker.elsewhere.other_brokers import OtherBrokers

        self.others = others = OtherBrokers(
            self._coordinator,
            self._topics,
            peers,
            http,
            self._producing,
            self.admission,
            self.authorizer,
            self.settings,
        )
        self._producing.remote = others.appends
        self._fetching.remote = others.fetches
        self._changes.create_at_controller = others.create_topic
        self.erasing.others = others
        return others

    @property
    def brokers_by_id(self) -> Mapping[int, BrokerEndpoint]:
        """The registered brokers of the cluster, in the order of their ids."""
        return self._coordinator.brokers_by_id

    @property
    def is_controller(self) -> bool:
        """True if this broker makes, changes and deletes topics, as far as it knows."""
        return self._coordinator.controller_id == self.broker_id

    @property
    def controller_id(self) -> int | None:
        """The broker that decides on leaders; None while there is none."""
        found = self._coordinator.controller_id
        return None if found < 0 else found

    @property
    def not_ready_reason(self) -> str | None:
        """The reason why requests should go elsewhere, or come later: appends are refused, or others lead. None
        otherwise.
        """
        return self.admission.not_ready_reason or self._coordinator.not_ready_reason or self.replicas.not_ready_reason


__all__ = [
    "Broker",
    "FetchResult",
    "PartitionLog",
    "PartitionResponse",
    "PartitionState",
    "ProduceResult",
    "RollResult",
    "Topic",
]
