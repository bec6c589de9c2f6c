"""A broker's process: the parts of a real broker that replication needs, composed as ``Broker`` does it."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from logstore.broker.replica_manager import ReplicaManager
from logstore.broker.topics.recovery import end_at_holes, recover_partitions
from logstore.cluster.cluster_state import PartitionState
from logstore.log.journal_tail import collect_tails
from logstore.log.partition_log import PartitionLog
from logstore.replication.fetch_session import FetchSession
from logstore.replication.replica_fetcher import Connection, FetcherSettings
from tests.support.replication_model.memory_journal import MemoryJournal
from tests.support.replication_model.step_loop import Owner
from tests.support.replication_model.table import ModelRoller, topic_of
from tests.support.replication_model.zookeeper import PlayedClusterState, Session

if TYPE_CHECKING:
    from tests.support.replication_model.cluster import Cluster

LAG_MAX_S = 0.3


class Process(Owner):
    def __init__(self, cluster: "Cluster", broker_id: int) -> None:
        super().__init__()
        self.cluster = cluster
        self.broker_id = broker_id
        self.disk = cluster.disks[broker_id]
        self.journal = MemoryJournal(self.disk, cluster.clock, cluster.file_bytes, cluster.recent_bytes)
        self.session = Session(cluster.zookeeper, cluster.requests, self.run)
        self.cluster_state = PlayedClusterState(broker_id, self.session, cluster.topic_id, cluster.next_producer_id)
        #: -1 while there is no registration.
        self.broker_epoch = -1
        self.topic = topic_of(cluster.table, cluster.clock, cluster.min_insync_replicas)
        self.log: PartitionLog = self.topic.partitions[0]
        self.roller = ModelRoller(self.journal, cluster.clock)
        self.replica_manager = ReplicaManager(
            self.cluster_state,  # type: ignore[arg-type]
            self.journal,
            self.roller,
            cluster.clock,
            self._connect,
            FetcherSettings(
                wait_max_ms=50,
                partition_bytes_max=cluster.fetched_bytes,
                response_bytes_max=1_000,
                backoff_s=0.02,
                timeout_s=10.0,
            ),
            fetchers_per_broker=1,
            lag_max_s=LAG_MAX_S,
            session_s=LAG_MAX_S,
            changed=lambda _, __: None,
        )
        #: True if recovery has ended, so that others may connect; ``is_ready``: records are accepted.
        self.is_recovered = self.is_ready = False
        #: The offsets of the last check.
        self.checked: tuple[int, ...] = ()
        #: The end up to which readers of this leader have read, in its epoch.
        self.shown = (-1, 0)

    async def boot(self) -> None:
        """Recover as ``Topics.recover`` does."""
        topics: dict[UUID, Any] = {self.topic.topic_id: self.topic}
        tails = collect_tails(self.journal.recover())
        ended = end_at_holes(tails, topics, lambda *_: True) if self.disk.may_lack_frames else []
        await asyncio.to_thread(
            recover_partitions,
            self.journal,
            tails,
            topics,
            (),
            producer_ids_begin=lambda: self.cluster_state.producer_ids_begin,
        )
        assert self.log.quarantined is None, self.log.quarantined
        self.is_recovered = True
        self.cluster_state.listen(self._partition_changed)
        truncations = [log.truncation(log.log_end_offset, 0) for log in ended]
        await self.journal.start(lambda: [self.log.snapshot_frame()], self.disk, truncations)
        await self.roller.refresh(self.topic, at_start=True)
        self.journal.release(self.topic.topic_id, 0, self.log.sealed_offset)
        self.is_ready = True

    def _partition_changed(self, topic_id: UUID, partition: int, state: PartitionState) -> None:
        del topic_id, partition
        self.replica_manager.partition_changed(self.topic, self.log, state)

    def fetch_session(self, broker_id: int, broker_epoch: int) -> FetchSession:
        return FetchSession(
            broker_id, broker_epoch, self.journal, self.cluster.clock, self._find, self.replica_manager.followed
        )

    def _find(self, topic_id: UUID, partition: int) -> PartitionLog | None:
        del topic_id, partition
        return self.log

    async def _connect(self, leader: int) -> Connection:
        return self.cluster.connect(self, leader)

    def start(self, work: Callable[..., Any], *args: Any) -> "asyncio.Task[Any]":
        """Run a coroutine in this process."""
        task: asyncio.Task[Any] = self.run(lambda: asyncio.get_running_loop().create_task(work(*args)))
        return task
