"""The roles of this broker's partitions: each event of the cluster state makes it a partition's leader or a follower.

A leader takes appends at once, and changes the ISR of its partition: followers that have caught up join, those that
stay behind leave (``replica.lag.time.max.ms``). A follower fetches from its leader.

Invariants: a partition changes its role only while no frame of it is on its way to the disk, and stops leading in the
same step as the event. An ISR is written over the state that it was decided on, or not at all (C5). An unclean leader
reads the table before it takes or serves a record (C11).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Final

import structlog

from logstore.clock import Clock
from logstore.cluster.cluster_state import ClusterState, PartitionState
from logstore.errors import (
    BrokerNotReadyError,
    ClusterStateError,
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidUpdateVersionError,
    LogStoreError,
    UnknownTopicIdError,
)
from logstore.journal.journal import Journal
from logstore.journal.journal_file import PartitionKey
from logstore.log.in_sync_replicas import InSyncReplicas
from logstore.log.leadership import Leadership
from logstore.log.newest_footers import newest_epoch
from logstore.log.partition_log import PartitionLog
from logstore.log.replica_bootstrap import reset_to_table
from logstore.log.roller import Roller
from logstore.log.topic import Topic
from logstore.log.truncation import truncate
from logstore.replication.replica_fetcher import Connection, FetcherSettings, ReplicaFetcher

log = structlog.stdlib.get_logger(__name__)

_RETRY_S: Final = 0.2
_QUIET_S: Final = 0.001


class ReplicaManager:
    """``connect`` opens a connection to a broker. ``session_s`` is how long a follower counts as one after its last
    fetch. ``changed`` is called with a partition whose leader changed here, or that can now be rolled.
    """

    def __init__(
        self,
        cluster_state: ClusterState,
        journal: Journal,
        roller: Roller,
        clock: Clock,
        connect: Callable[[int], Awaitable[Connection]],
        settings: FetcherSettings,
        *,
        fetchers_per_broker: int,
        lag_max_s: float,
        session_s: float,
        changed: Callable[[Topic, int], None],
    ) -> None:
        self._cluster_state = cluster_state
        self._journal = journal
        self._roller = roller
        self._clock = clock
        self._connect = connect
        self._settings = settings
        self._fetchers_per_broker = fetchers_per_broker
        self._lag_max_s = lag_max_s
        self._session_s = session_s
        self._changed = changed
        #: The newest state of each partition.
        self._states: dict[PartitionKey, PartitionState] = {}
        self._topics: dict[PartitionKey, Topic] = {}
        #: Role changes that wait for frames on their way to the disk.
        self._waiting: dict[PartitionKey, asyncio.Task[None]] = {}
        #: By leader and a number, connections; below, the connection over which each partition is fetched.
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._fetched_by: dict[PartitionKey, ReplicaFetcher] = {}
        #: Partitions led here that have other replicas.
        self._replicated: dict[PartitionKey, PartitionLog] = {}
        #: The replicated partitions whose leader is not settled.
        self._unsettled: set[PartitionKey] = set()
        self._altering: dict[PartitionKey, asyncio.Task[None]] = {}
        #: Topics with a new leader here, whose tables are about to be read.
        self._to_refresh: set[Topic] = set()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_stopped = False
        self._checking: asyncio.Task[None] | None = None
        self.isr_shrinks = self.isr_expands = 0
        cluster_state.listen_to_brokers(self._brokers_changed)

    async def stop(self) -> None:
        self._is_stopped = True
        tasks = [*self._waiting.values(), *self._altering.values(), *self._tasks]
        if self._checking is not None:
            tasks.append(self._checking)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(fetcher.stop() for fetcher in self._fetchers.values()))

    # ---- roles ------------------------------------------------------------------------------------------------------

    def partition_changed(self, topic: Topic, partition_log: PartitionLog, state: PartitionState) -> None:
        """Apply the cluster state's event."""
        key = _key(partition_log)
        self._states[key] = state
        self._topics[key] = topic
        me = self._cluster_state.broker_id
        leads = state.leader == me and not state.recovering
        if leads and partition_log.is_leader and partition_log.leader_epoch == state.leader_epoch:
            self._commit(key, partition_log, state)
            return
        if partition_log.is_leader:
            self._resign(key, partition_log, partition_log.leader_epoch)
        self._unfollow(key)
        if leads and partition_log.is_quiet:
            self._lead(topic, partition_log, state)
        elif state.leader == me:
            if (waiting := self._waiting.pop(key, None)) is not None:
                waiting.cancel()
            self._waiting[key] = asyncio.create_task(self._lead_when_ready(topic, partition_log, state))
        else:
            partition_log.resign(state.leader_epoch)
            if me not in state.replicas:
                self._run(self._drop_stray(key, partition_log, state))
            elif state.leader >= 0:
                self._follow(topic, partition_log, state)

    def _resign(self, key: PartitionKey, partition_log: PartitionLog, epoch: int) -> None:
        partition_log.resign(epoch)
        self._replicated.pop(key, None)
        self._unsettled.discard(key)
        if (topic := self._topics.get(key)) is not None:  # it may have been deleted
            self._changed(topic, partition_log.partition)

    def forget(self, topic: Topic) -> None:
        """Forget the topic, which was deleted."""
        for partition_log in topic.partitions:
            key = _key(partition_log)
            self._unfollow(key)
            for known in (self._states, self._topics, self._replicated):
                known.pop(key, None)
            self._unsettled.discard(key)

    def let_go(self, topic: Topic) -> None:
        """Stop leading and following the topic, which is no longer registered. The records of its partitions are
        kept.
        """
        for partition_log in topic.partitions:
            key = _key(partition_log)
            if partition_log.is_leader:
                self._resign(key, partition_log, partition_log.leader_epoch)
            self._unfollow(key)
            self._states.pop(key, None)
            partition_log.leader_epoch = -1  # a registration begins above the epochs of records

    def _lead(self, topic: Topic, partition_log: PartitionLog, state: PartitionState) -> None:
        key = _key(partition_log)
        in_table = topic.snapshot.partitions.get(partition_log.partition)
        try:
            if in_table is not None and in_table.leader_epoch > state.leader_epoch:
                raise FencedLeaderEpochError(f"Epoch {in_table.leader_epoch} has written to the table already.")
            partition_log.state.forget_producers(self._cluster_state.producer_ids_begin)
            partition_log.become_leader(
                state.leader_epoch, self._in_sync_replicas(topic, state), self._has_lease, self._is_followed
            )
        except FencedLeaderEpochError as error:
            # It can also mean that ZooKeeper's data was restored to an older state: a leader by it may lack records.
            log.error("replica.old_epoch", partition=str(partition_log), epoch=state.leader_epoch, why=error.message)
            return
        self._watch(key, partition_log)
        is_behind = in_table is not None and in_table.sealed < partition_log.sealed_offset
        if (is_behind or len(state.replicas) > 1) and topic not in self._to_refresh:
            self._to_refresh.add(topic)
            self._run(self._refresh(topic))
        self._changed(topic, partition_log.partition)

    def _in_sync_replicas(self, topic: Topic, state: PartitionState) -> InSyncReplicas | None:
        me = self._cluster_state.broker_id
        if state.replicas == (me,):
            return None
        return InSyncReplicas(
            me,
            state.replicas,
            state.in_sync_replicas,
            min_in_sync=lambda: topic.config.min_insync_replicas,
            now=self._clock.monotonic(),
        )

    @property
    def not_ready_reason(self) -> str | None:
        """The reason why requests should go elsewhere: other brokers may lead all partitions with several replicas that
        this one leads. None otherwise.
        """
        if self._cluster_state.has_lease or not self._replicated:
            return None
        if not all(log.is_leader and log.require_leader().is_cut_off for log in self._replicated.values()):
            return None
        return (
            f"broker {self._cluster_state.broker_id} reaches neither ZooKeeper nor the other replicas in sync, so that "
            "other brokers may lead its partitions by now"
        )

    def _has_lease(self) -> bool:
        return self._cluster_state.has_lease

    def _is_followed(self, in_sync: InSyncReplicas) -> bool:
        return in_sync.all_fetch(self._clock.monotonic() - self._session_s)

    def _watch(self, key: PartitionKey, partition_log: PartitionLog) -> None:
        """Watch the ISR of a partition that is led here, if it has other replicas."""
        leadership = partition_log.require_leader()
        if leadership.in_sync_replicas is None:
            self._replicated.pop(key, None)
            self._unsettled.discard(key)
            return
        self._replicated[key] = partition_log
        if not leadership.is_settled:
            self._unsettled.add(key)
        if self._checking is None:
            self._checking = asyncio.create_task(self._check_for_ever())

    async def _lead_when_ready(self, topic: Topic, partition_log: PartitionLog, state: PartitionState) -> None:
        """Lead once no frame is on its way; after an unclean election, once the table was read."""
        key = _key(partition_log)
        while self._states.get(key) is state and not partition_log.is_closed:
            if not partition_log.is_quiet:
                await asyncio.sleep(_QUIET_S)
                continue
            if not state.recovering:
                self._waiting.pop(key, None)
                self._lead(topic, partition_log, state)
                return
            try:
                await self._recover_unclean(topic, partition_log, state)
            except FencedLeaderEpochError:
                return
            except LogStoreError as error:
                log.warning("replica.not_recovered", partition=str(partition_log), why=str(error))
            await asyncio.sleep(_RETRY_S)

    async def _recover_unclean(self, topic: Topic, partition_log: PartitionLog, state: PartitionState) -> None:
        """Fence former leaders in the table, drop what disagrees with the table, and report that this is done."""
        partition = partition_log.partition
        await self._roller.commit(topic, lambda: topic.table.begin_epoch(partition, state.leader_epoch))
        sealed = topic.snapshot.partitions[partition].sealed
        agrees = sealed <= partition_log.log_end_offset and await self._agrees(topic, partition_log, sealed)
        if agrees:
            partition_log.follow_leader(sealed, sealed, partition_log.log_start_offset)
            self._journal.release(partition_log.topic_id, partition, partition_log.sealed_offset)
        elif not await reset_to_table(
            self._journal, topic, partition_log, self._cluster_state.producer_ids_begin, lambda: partition_log.is_quiet
        ):
            return
        log.warning("replica.recovered_unclean", partition=str(partition_log), epoch=state.leader_epoch, agrees=agrees)
        await self._cluster_state.alter_partition(
            topic.topic_id, partition, state, state.in_sync_replicas, broker_epochs={}, recovering=False
        )

    async def _agrees(self, topic: Topic, partition_log: PartitionLog, sealed: int) -> bool:
        """Return True if the tail continues the table: both have the previous record from the same leader."""
        if sealed == 0 or sealed < partition_log.sealed_offset:
            return True
        in_table = await asyncio.to_thread(newest_epoch, topic, partition_log)
        return in_table is not None and in_table == partition_log.state.leader_epochs.epoch_of(sealed - 1)

    async def _drop_stray(self, key: PartitionKey, partition_log: PartitionLog, state: PartitionState) -> None:
        """Free the frames of a partition that now belongs to other brokers (C19)."""
        while self._states.get(key) is state and not partition_log.is_closed:
            if partition_log.is_quiet:
                if partition_log.log_end_offset == partition_log.sealed_offset:
                    return
                try:
                    await truncate(self._journal, partition_log, partition_log.sealed_offset, state.leader_epoch)
                except LogStoreError as error:
                    log.warning("replica.not_dropped", partition=str(partition_log), why=str(error))
                    await asyncio.sleep(_RETRY_S)
                else:
                    log.info("replica.dropped", partition=str(partition_log))
                    return
            await asyncio.sleep(_QUIET_S)

    # ---- following --------------------------------------------------------------------------------------------------

    def _follow(self, topic: Topic, partition_log: PartitionLog, state: PartitionState) -> None:
        key = _key(partition_log)
        number = hash(key) % self._fetchers_per_broker
        fetcher = self._fetchers.get((state.leader, number))
        if fetcher is None:
            connect, leader = self._connect, state.leader
            fetcher = ReplicaFetcher(leader, lambda: connect(leader), self._journal, self._reset, self._settings)
            self._fetchers[leader, number] = fetcher
        self._fetched_by[key] = fetcher
        fetcher.follow(topic, partition_log, state.leader_epoch)

    def _unfollow(self, key: PartitionKey) -> None:
        if (fetcher := self._fetched_by.pop(key, None)) is not None:
            fetcher.unfollow(key)
        if (waiting := self._waiting.pop(key, None)) is not None:
            waiting.cancel()

    async def _reset(self, topic: Topic, partition_log: PartitionLog, is_wanted: Callable[[], bool]) -> bool:
        """Begin a follower's log again at the end of the table."""
        await self._roller.refresh(topic)
        begin = self._cluster_state.producer_ids_begin
        done = is_wanted() and await reset_to_table(self._journal, topic, partition_log, begin, is_wanted)
        if done:
            log.info("replica.begins_at_table", partition=str(partition_log))
        return done

    # ---- in-sync replicas -------------------------------------------------------------------------------------------

    def _commit(self, key: PartitionKey, partition_log: PartitionLog, state: PartitionState) -> None:
        """Apply changed replicas or a changed ISR of a partition that is led here, in the same epoch."""
        leadership = partition_log.require_leader()
        if leadership.in_sync_replicas is None:
            leadership.replicate(self._in_sync_replicas(self._topics[key], state))
        elif state.replicas == (self._cluster_state.broker_id,):
            leadership.replicate(None)
            leadership.advance(partition_log.log_end_offset)
        else:
            leadership.commit(state.replicas, state.in_sync_replicas, self._clock.monotonic())
        self._watch(key, partition_log)
        self._settle(key, partition_log)
        self._expand(key, partition_log)

    def followed(self, partition_log: PartitionLog, broker_id: int) -> None:
        """Let a follower that has reported its position join the ISR if it may."""
        key = _key(partition_log)
        if key in self._unsettled:
            self._settle(key, partition_log)
        in_sync = partition_log.require_leader().in_sync_replicas
        if in_sync is not None and broker_id not in in_sync.committed:
            self._expand(key, partition_log)

    def _expand(self, key: PartitionKey, partition_log: PartitionLog) -> None:
        """Take followers that have caught up into the ISR. Also called after each change, because a follower that has
        everything reports its position once.
        """
        if key in self._altering or not partition_log.is_leader:
            return
        leadership = partition_log.require_leader()
        in_sync = leadership.in_sync_replicas
        if in_sync is None:
            return
        high_watermark, epoch_start = partition_log.high_watermark, leadership.epoch_start
        # A proposal is refused as a whole if one follower may not join.
        joining = [
            one
            for one, follower in in_sync.followers.items()
            if in_sync.may_join(one, high_watermark, epoch_start)
            and self._cluster_state.may_join(one, follower.broker_epoch)
        ]
        if joining:
            self._alter(key, partition_log, (*in_sync.committed, *joining))

    def _brokers_changed(self) -> None:
        """Expand the ISRs again: a follower may have reported its position before its registration was known here."""
        for key, partition_log in list(self._replicated.items()):
            self._expand(key, partition_log)

    def _settle(self, key: PartitionKey, partition_log: PartitionLog) -> None:
        if key in self._unsettled and partition_log.require_leader().is_settled:
            self._unsettled.discard(key)
            self._changed(self._topics[key], partition_log.partition)

    async def _check_for_ever(self) -> None:
        """Remove followers that stay behind from the ISR; check twice in ``replica.lag.time.max.ms``, as Kafka does."""
        while True:
            await asyncio.sleep(self._lag_max_s / 2)
            now = self._clock.monotonic()
            for key, partition_log in list(self._replicated.items()):
                if not partition_log.is_leader:
                    continue
                in_sync = partition_log.require_leader().in_sync_replicas
                if in_sync is None:
                    continue
                behind = in_sync.behind(now, self._lag_max_s, partition_log.log_end_offset)
                if behind and key not in self._altering:
                    kept = tuple(broker for broker in in_sync.committed if broker not in behind)
                    self._alter(key, partition_log, kept)

    def _alter(self, key: PartitionKey, partition_log: PartitionLog, in_sync_replicas: Iterable[int]) -> None:
        """Begin to write an ISR. It counts from this step on: a task runs later, and a high watermark that rises in the
        meantime would leave a joining replica behind (C4).
        """
        leadership, seen = partition_log.require_leader(), self._states[key]
        in_sync = leadership.in_sync_replicas
        if in_sync is None or (seen.leader_epoch, seen.in_sync_replicas) != (leadership.epoch, in_sync.committed):
            return
        wanted = tuple(in_sync_replicas)
        epochs = {one: in_sync.followers[one].broker_epoch for one in wanted if one not in in_sync.committed}
        leadership.propose(wanted)
        task = asyncio.create_task(self._write_isr(key, partition_log, leadership, seen, wanted, epochs))
        self._altering[key] = task

        def ended(_: asyncio.Task[None]) -> None:
            del self._altering[key]
            if not task.cancelled():
                self._expand(key, partition_log)

        task.add_done_callback(ended)

    async def _write_isr(
        self,
        key: PartitionKey,
        partition_log: PartitionLog,
        leadership: Leadership,
        seen: PartitionState,
        wanted: tuple[int, ...],
        epochs: Mapping[int, int],
    ) -> None:
        """Write the proposed ISR until the outcome is known; meanwhile both count (C3)."""
        topic = self._topics[key]
        delay_s = 0.0
        try:
            while True:
                try:
                    await self._cluster_state.alter_partition(
                        topic.topic_id, partition_log.partition, seen, wanted, broker_epochs=epochs
                    )
                except (BrokerNotReadyError, ClusterStateError):  # the outcome is open; the next try learns it
                    await asyncio.sleep(_RETRY_S)
                    if not self._leads_still(partition_log, leadership):
                        return
                    continue
                except InvalidUpdateVersionError:
                    return  # an event brings the other state
                except IneligibleReplicaError:
                    delay_s = _RETRY_S
                    return
                except (FencedLeaderEpochError, UnknownTopicIdError):
                    # Skip it if this broker was elected again, with another epoch.
                    if self._leads_still(partition_log, leadership):
                        self._resign(key, partition_log, seen.leader_epoch)
                    return
                if len(wanted) < len(seen.in_sync_replicas):
                    self.isr_shrinks += 1
                else:
                    self.isr_expands += 1
                log.info(
                    "replica.isr",
                    partition=f"{partition_log.topic}-{partition_log.partition}",
                    before=seen.in_sync_replicas,
                    after=wanted,
                )
                return
        finally:
            # A cancelled task knows no outcome, because the broker stops.
            task = asyncio.current_task()
            if leadership.in_sync_replicas is not None and not (task is not None and task.cancelling()):
                leadership.end_proposal()
            if delay_s:
                await asyncio.sleep(delay_s)

    @staticmethod
    def _leads_still(partition_log: PartitionLog, leadership: Leadership) -> bool:
        return partition_log.is_leader and partition_log.require_leader() is leadership

    # ---- history ----------------------------------------------------------------------------------------------------

    async def _refresh(self, topic: Topic) -> None:
        """Read what the former leader has rolled; readers of history wait for it. Also read what it has deleted
        (DeleteRecords), which followers learn later.
        """
        self._to_refresh.discard(topic)
        try:
            await self._roller.refresh(topic)
        except LogStoreError as error:
            log.warning("replica.not_refreshed", topic=topic.name, why=str(error))

    def _run(self, work: Coroutine[None, None, None]) -> None:
        if self._is_stopped:  # events come until the cluster state has stopped
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)


def _key(partition_log: PartitionLog) -> PartitionKey:
    return partition_log.topic_id, partition_log.partition
