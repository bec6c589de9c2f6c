"""The broker: it puts the rooms of a store together once, and starts and stops them. Listeners and consumer groups call
the rooms.

Everything runs on one event loop; disk work runs in threads. ``Broker.produce``, ``fetch``, ``topics`` and
``elsewhere`` (the other brokers) are the folders beside this module. The rooms check permissions themselves with
``authorizer``. This module alone knows whether there is a cluster.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import structlog

from logstore.broker.admission import Admission
from logstore.broker.authorizer import Authorizer
from logstore.broker.elsewhere.forwarding import Router
from logstore.broker.elsewhere.nobody import Appends, Discovery, Elsewhere, Fetches, Links, connect_to_nobody
from logstore.broker.erasing import Erasing
from logstore.broker.fetch.fetching import Fetching
from logstore.broker.opened_journal import OpenedJournal
from logstore.broker.produce.batcher import Batcher
from logstore.broker.produce.batches import BatchProducing
from logstore.broker.produce.records import Producing
from logstore.broker.produce.secret import load_secret, load_shared_secret
from logstore.broker.quotas import Quotas
from logstore.broker.replica_manager import ReplicaManager
from logstore.broker.roll_schedule import RollSchedule
from logstore.broker.topics.catalog import TopicCatalog
from logstore.broker.topics.changes import TopicChanges
from logstore.broker.topics.columns import Columns
from logstore.broker.topics.leaders import Leaders
from logstore.broker.topics.problems import Problems
from logstore.broker.topics.served import Topics
from logstore.broker.topics.tables import TopicTables
from logstore.broker.upkeep import Upkeep
from logstore.clock import Clock
from logstore.cluster.cluster_state import BrokerEndpoint, ClusterState
from logstore.cluster.log_directory_record import record_log_directory
from logstore.errors import BrokerNotReadyError
from logstore.filesystem import FileSystem
from logstore.lock_file import require_all
from logstore.log.erasures import ErasureLog
from logstore.log.roller import Roller, roll_threads
from logstore.log.topic import Topic
from logstore.replication.fetch_session import FetchSession
from logstore.replication.replica_fetcher import FetcherSettings
from logstore.settings import Settings
from logstore.table_root import TableRoot

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Produce:
    """The ways for records into the log: records as columns, Kafka's record batches, and small requests that are
    appended together.
    """

    records: Producing
    batches: BatchProducing
    batcher: Batcher


@dataclass(frozen=True, slots=True)
class TopicRooms:
    """The topics that are served, and requests that change them, their tables, their leaders."""

    served: Topics
    changes: TopicChanges
    tables: TopicTables
    leaders: Leaders
    problems: Problems
    columns: Columns


class Broker:
    """A running broker; ``start`` makes one. Every method raises the errors of ``logstore.errors`` that its docstring
    names.
    """

    def __init__(
        self,
        settings: Settings,
        cluster_state: ClusterState,
        opened: OpenedJournal,
        authorizer: Authorizer,
        quotas: Quotas,
        clock: Clock,
        filesystem: FileSystem,
        links: Links | None,
    ) -> None:
        self.settings = settings
        self.cluster_id = cluster_state.cluster_id
        self.broker_id = broker_id = cluster_state.broker_id
        if links is None:
            catalog = TopicCatalog(TableRoot(settings.data, filesystem, None, clock))
            self.idempotency_secret = load_secret(settings.log_directory, filesystem)
        else:
            catalog = TopicCatalog(TableRoot(settings.data, filesystem, broker_id, clock), is_shared=True)
            one_node = settings.data / "brokers" / str(broker_id)
            self.idempotency_secret = load_shared_secret(settings.data, one_node, filesystem)
        self._cluster_state = cluster_state
        self.journal = journal = opened.journal
        #: Every room asks it, and a listener asks it before it reads a body.
        self.authorizer = authorizer
        self.quotas = quotas
        self._opened = opened
        self.clock = clock
        self.filesystem = filesystem
        by_name: dict[str, Topic] = {}
        require_locks = functools.partial(require_all, opened.locks)
        self._writers = roll_threads()
        erasures = ErasureLog()
        self._roller = roller = Roller(journal, clock, self._writers, require_locks, cluster_state.table_lock, erasures)
        self._schedule = schedule = RollSchedule(roller, journal, clock, settings, by_name)
        self.admission = admission = Admission(settings, journal, opened.locks, schedule.press, quotas, clock)
        self._upkeep = Upkeep(roller, clock, by_name, require_locks)
        #: Called with a topic and a partition when this broker begins to lead it, at each new epoch, and when it stops
        #: leading it (``PartitionLog.is_leader`` is the state).
        self.leadership_listeners: list[Callable[[Topic, int], None]] = []
        self.replica_manager = ReplicaManager(
            cluster_state,
            journal,
            roller,
            clock,
            connect_to_nobody if links is None else links.connect,
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
        served = Topics(
            by_name,
            settings,
            cluster_state,
            catalog,
            journal,
            roller,
            schedule,
            self.replica_manager,
            authorizer,
            clock,
            self._topic_appeared,
        )
        self.elsewhere = elsewhere = _elsewhere(cluster_state, served, links, settings, filesystem)
        journal.on_failure(elsewhere.report_offline)
        changes = TopicChanges(served, settings, cluster_state, roller, schedule, admission, authorizer, elsewhere)
        self.fetch = Fetching(journal, roller.refresh, served.get, admission, authorizer, elsewhere)
        self.topics = TopicRooms(
            served,
            changes,
            TopicTables(roller, admission, authorizer, schedule.rolled),
            Leaders(cluster_state, authorizer),
            Problems(by_name, served, schedule, cluster_state, elsewhere.discovery, admission, authorizer),
            Columns(changes, self.fetch, authorizer),
        )
        records = Producing(journal, admission, authorizer, cluster_state, filesystem, elsewhere, schedule.appended)
        self.produce = Produce(
            records,
            BatchProducing(records, served, admission, authorizer, settings.max_request_size),
            Batcher(records.produce, authorizer, admission),
        )
        self.erasing = Erasing(
            served,
            changes,
            records,
            roller,
            journal,
            schedule,
            self._upkeep,
            admission,
            authorizer,
            cluster_state,
            erasures,
            settings,
            clock,
            filesystem,
            elsewhere,
        )

    @classmethod
    async def start(
        cls,
        settings: Settings,
        cluster_state: ClusterState,
        opened: OpenedJournal,
        authorizer: Authorizer,
        quotas: Quotas,
        *,
        clock: Clock,
        filesystem: FileSystem,
        links: Links | None = None,
    ) -> Self:
        """Recover the data directory, and begin to serve.

        ``cluster_state`` has started, and has read the journal ``opened``; it stops after the broker. ``links`` lead to
        the other brokers of a cluster; None on one node. Raises DataDirectoryError, and CorruptionError if stored bytes
        have changed since they were written.
        """
        try:
            record_log_directory(filesystem, settings.data, settings.broker_id, settings.log_directory)
            broker = cls(settings, cluster_state, opened, authorizer, quotas, clock, filesystem, links)
            await broker._recover()
        except BaseException:
            opened.release()
            raise
        return broker

    async def _recover(self) -> None:
        began = self.clock.monotonic()
        tails = self._opened.take_tails()
        bases = {key: tail.index.base_offset for key, tail in tails.items()}
        served = self.topics.served
        await served.recover(self.filesystem, tails, self.elsewhere.discovery, self.erasing.load)
        del tails
        await self.erasing.recover(bases)
        self._schedule.start()
        self._upkeep.start()
        self.admission.open()
        self.erasing.start()
        seconds = round(self.clock.monotonic() - began, 3)
        log.info("broker.started", data=str(self.settings.data), seconds=seconds, **served.facts())

    async def stop(self) -> None:
        """Refuse new appends, seal as much as ``ROLL_AT_STOP_S`` allows, and release the data directory."""
        self.admission.close("the store is stopping")
        await self.elsewhere.close()
        await self.erasing.stop()
        await self._upkeep.stop()
        await self._schedule.stop()
        await self.elsewhere.discovery.stop()
        await self.topics.served.stop()
        await self.replica_manager.stop()
        if self.admission.lost_lock is None:  # without its locks another process may be writing to the tables
            await self._schedule.roll_at_stop()
        await self._roller.drain()
        self.topics.served.close(BrokerNotReadyError("The store is stopping. Try again in a few seconds."))
        try:
            await self.journal.close()
        finally:
            self.produce.records.close()
            self.produce.batches.close()
            self.fetch.close()
            self._writers.shutdown()
            self._opened.release()
        log.info("broker.stopped")

    def _topic_appeared(self, topic: Topic) -> None:
        """Call the leadership listeners: they follow topics even if other brokers lead all partitions."""
        for partition_log in topic.partitions:
            for listener in self.leadership_listeners:
                listener(topic, partition_log.partition)

    def _leadership_changed(self, topic: Topic, partition: int) -> None:
        self.elsewhere.discovery.leadership_changed(topic)
        self._schedule.touch(topic)
        for listener in self.leadership_listeners:
            listener(topic, partition)

    def fetch_session(self, broker_id: int, broker_epoch: int) -> FetchSession:
        """Return a session for the fetches of a follower over one connection; the caller closes it."""
        find = self.topics.served.partition_log
        return FetchSession(broker_id, broker_epoch, self.journal, self.clock, find, self.replica_manager.followed)

    @property
    def brokers_by_id(self) -> Mapping[int, BrokerEndpoint]:
        """The registered brokers of the cluster, in the order of their ids."""
        return self._cluster_state.brokers_by_id

    @property
    def is_controller(self) -> bool:
        """True if this broker makes, changes and deletes topics, as far as it knows."""
        return self._cluster_state.controller_id == self.broker_id

    @property
    def controller_id(self) -> int | None:
        """The broker that decides on leaders; None while there is none."""
        found = self._cluster_state.controller_id
        return None if found < 0 else found

    @property
    def not_ready_reason(self) -> str | None:
        """The reason why requests should go elsewhere, or come later: appends are refused, or others lead. None
        otherwise.
        """
        return (
            self.admission.not_ready_reason
            or self._cluster_state.not_ready_reason
            or self.replica_manager.not_ready_reason
        )


def _elsewhere(
    cluster_state: ClusterState, served: Topics, links: Links | None, settings: Settings, filesystem: FileSystem
) -> Elsewhere:
    if links is None:
        discovery = Discovery()
        return Elsewhere(Router(cluster_state, served, discovery), Appends(), Fetches(), discovery)
    from logstore.broker.elsewhere.other_brokers import OtherBrokers

    return OtherBrokers(cluster_state, served, links, settings, filesystem)
