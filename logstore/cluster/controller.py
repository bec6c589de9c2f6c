"""The controller: the one broker that writes the leaders of partitions.

Any registered broker may become the controller: ``/controller`` (ephemeral) names it, and ``/controller_epoch`` rises
with each election, in the same multi. It decides by ``reconcile`` whenever the view changes. It sends no messages to
other brokers: they watch the documents.

Invariant: each of its writes is in a multi that checks the version of ``/controller_epoch`` (C2), so that a replaced
controller that does not know it yet writes nothing. Decisions over a view also check that no broker has registered
since. A broker that the controller believes dead then has no lease, because a lease begins with a read of the documents
after the registration (C14).
"""

import asyncio
import dataclasses
import itertools
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Final
from uuid import UUID

import structlog
from msgspec.structs import replace

from logstore.cluster import znodes
from logstore.cluster.alter_partition_manager import write_topic
from logstore.cluster.assignment import begin_reassignment, cancel_reassignment
from logstore.cluster.cluster_state import Elected, ElectionType, KnownTopic
from logstore.cluster.reconcile import NEW, Policy, Preferred, TopicWrite, elect, reconcile
from logstore.cluster.view import ClusterView, WatchedView
from logstore.cluster.znodes import ControllerEpoch, ControllerRegistration, TopicRegistration
from logstore.cluster.zookeeper import (
    Check,
    Create,
    Delete,
    MultiRefusedError,
    Operation,
    SessionState,
    Write,
    ZooKeeper,
)
from logstore.errors import (
    ClusterStateError,
    ElectionNotNeededError,
    InvalidReplicaAssignmentError,
    LogStoreError,
    NoReassignmentInProgressError,
    NotControllerError,
    UnknownPartitionError,
    UnknownTopicError,
    ZooKeeperUnavailableError,
)

log = structlog.stdlib.get_logger(__name__)

#: Kafka's `leader.imbalance.check.interval.seconds`.
IMBALANCE_CHECK_INTERVAL_S: Final = 300.0
#: Bounds of one multi. A conflict in one document refuses all of them.
_WRITES_MAX: Final = 50
_BYTES_MAX: Final = 500_000
_RETRY_S: Final = 0.1


class Controller:
    """Elects this broker and decides while it is the controller. ``tables`` is shared with the cluster state, which
    wakes the controller when it changes, and when the broker has registered (``is_registered``).
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        watched: WatchedView,
        broker_id: int,
        tables: Mapping[UUID, KnownTopic],
        policy: Policy,
        *,
        is_registered: Callable[[], bool] = lambda: True,
        imbalance_check_interval_s: float = IMBALANCE_CHECK_INTERVAL_S,
    ) -> None:
        self._zookeeper = zookeeper
        self._watched = watched
        self._broker_id = broker_id
        self._tables = tables
        #: ``preferred`` applies only to the check every ``imbalance_check_interval_s``; otherwise it is NONE.
        self._policy = policy
        self._is_registered = is_registered
        self._interval_s = imbalance_check_interval_s
        #: The version of ``/controller_epoch`` that this broker's election wrote; None while it is not the controller.
        self._epoch_version: int | None = None
        self.epoch = -1
        #: Awaited after an election, before any decision, because others made or removed tables in the meantime.
        self.prepare: Callable[[], Awaitable[None]] | None = None
        self._prepared_epoch = -1
        #: By topic, the reason why its partitions cannot be placed.
        self.refused: Mapping[str, str] = {}
        #: The topics to check; None for all.
        self._changed: set[str] | None = None
        self._wake = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_active(self) -> bool:
        """True if this broker was elected, has prepared since, and knows of no successor."""
        return self._epoch_version is not None and self._prepared_epoch == self.epoch

    def start(self) -> None:
        self._watched.listen(self._view_changed)
        self._zookeeper.listen(self._session_changed)
        self._tasks = [asyncio.create_task(self._keep())]
        if self._policy.preferred is not Preferred.NONE:
            self._tasks.append(asyncio.create_task(self._rebalance()))
        self.wake(None)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def wake(self, topic: str | None) -> None:
        """Check ``topic`` again, or all topics (None)."""
        if topic is None:
            self._changed = None
        elif self._changed is not None:
            self._changed.add(topic)
        self._wake.set()

    def _view_changed(self, before: ClusterView, after: ClusterView, changed: frozenset[str]) -> None:
        if before.brokers != after.brokers or before.controller != after.controller:
            self.wake(None)
        for topic in changed:
            self.wake(topic)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._resign("its session ended")
        self.wake(None)

    def _resign(self, why: str) -> None:
        if self._epoch_version is not None:
            log.info("controller.resigned", broker=self._broker_id, epoch=self.epoch, why=why)
        self._epoch_version = None

    async def _keep(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            changed, self._changed = self._changed, set()
            try:
                async with self._one_at_a_time:
                    await self._elect()
                if self._epoch_version is not None and not self.is_active:
                    await self._prepare()
                async with self._one_at_a_time:
                    if self.is_active:
                        await self._reconcile(dataclasses.replace(self._policy, preferred=Preferred.NONE), changed)
            except (ZooKeeperUnavailableError, NotControllerError) as error:
                log.debug("controller.interrupted", why=error.message)
            except Exception:
                # Without a controller no partition gets a leader, so it checks everything again.
                log.exception("controller.failed")
            else:
                continue
            if self._zookeeper.state is SessionState.CONNECTED:  # otherwise the connection wakes it
                await asyncio.sleep(_RETRY_S)
                self.wake(None)

    async def _rebalance(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            if self.is_active:
                try:
                    await self.elect_leaders(self._policy)
                except LogStoreError as error:
                    log.info("controller.not_rebalanced", why=error.message)

    async def _prepare(self) -> None:
        """Await ``prepare`` outside the lock, because it may wait for a change of the tables that needs the
        controller.
        """
        epoch = self.epoch
        if self.prepare is not None:
            await self.prepare()
        self._prepared_epoch = epoch

    # ---- election ---------------------------------------------------------------------------------------------------

    async def _elect(self) -> None:
        """Become the controller if there is none and this broker is registered."""
        view = self._watched.view
        if view.controller is not None:
            if view.controller.broker_id != self._broker_id:
                self._resign(f"broker {view.controller.broker_id} is the controller")
            elif self._epoch_version is None:
                await self._find_own_election()
            return
        self._resign(f"{znodes.CONTROLLER} is gone")
        # The id in the view may belong to another process.
        if self._broker_id not in view.brokers or not self._is_registered():
            return
        node = await self._zookeeper.get(znodes.CONTROLLER_EPOCH)
        last = -1 if node is None else znodes.decode(znodes.CONTROLLER_EPOCH, node.data, ControllerEpoch).epoch
        epoch = last + 1
        data = znodes.encode(znodes.CONTROLLER_EPOCH, ControllerEpoch(epoch))
        raised: Operation = Create(znodes.CONTROLLER_EPOCH, data)
        if node is not None:
            raised = Write(znodes.CONTROLLER_EPOCH, data, node.version)
        own = znodes.encode(znodes.CONTROLLER, ControllerRegistration(self._broker_id, epoch))
        try:
            await self._zookeeper.multi([raised, Create(znodes.CONTROLLER, own, ephemeral=True)])
        except MultiRefusedError:  # another broker was elected, or an earlier try of this one, whose response was lost
            await self._watched.refresh([znodes.CONTROLLER])
            return
        self._elected(epoch, 0 if node is None else node.version + 1)
        await self._watched.refresh([znodes.CONTROLLER])

    async def _find_own_election(self) -> None:
        """Find an election whose response was lost. An ephemeral node of an earlier session is not ours."""
        node = await self._zookeeper.get(znodes.CONTROLLER)
        raised = await self._zookeeper.get(znodes.CONTROLLER_EPOCH)
        if node is None or raised is None or node.session_id != self._zookeeper.session_id:
            return
        epoch = znodes.decode(znodes.CONTROLLER, node.data, ControllerRegistration).epoch
        if epoch == znodes.decode(znodes.CONTROLLER_EPOCH, raised.data, ControllerEpoch).epoch:
            self._elected(epoch, raised.version)

    def _elected(self, epoch: int, version: int) -> None:
        self.epoch, self._epoch_version = epoch, version
        self._changed = None
        self._wake.set()
        log.info("controller.elected", broker=self._broker_id, epoch=epoch)

    # ---- decisions --------------------------------------------------------------------------------------------------

    async def _reconcile(self, policy: Policy, changed: set[str] | None) -> None:
        """Write until nothing is left to write, or the view has to be read again."""
        # Its own writes come back as changes of the view; another pass checks their consequences.
        view = self._watched.view
        decisions = reconcile(view, self._tables, policy, changed)
        refused = dict(decisions.refused)
        if changed is not None:
            refused = {**{k: v for k, v in self.refused.items() if k not in changed}, **refused}
        for batch in _batches(decisions.writes, refused):
            await self._write(view, batch)
            for write in batch:
                _log(self._watched.view, write)
        for topic, why in refused.items():
            if self.refused.get(topic) != why:
                log.warning("controller.topic_refused", topic=topic, why=why)
        self.refused = refused
        if decisions.writes:
            await self._watched.refresh(znodes.topic_path(write.topic) for write in decisions.writes)

    async def _write(self, view: ClusterView, writes: Sequence[TopicWrite]) -> None:
        """Write all documents or none.

        Raises NotControllerError if another broker was elected, if one has registered since ``view``, or if a document
        has changed.
        """
        operations = [self._check(), _nobody_came(view), *(_operation(write) for write in writes)]
        try:
            await self._zookeeper.multi(operations)
        except MultiRefusedError as refused:
            self._refused(refused)
            await self._watched.refresh([refused.operation.path])
            raise NotControllerError(f"{refused.operation.path} has changed meanwhile: decide again.") from refused

    def _check(self) -> Check:
        if self._epoch_version is None or not self.is_active:
            raise NotControllerError(f"Broker {self._broker_id} is not the controller.")
        return Check(znodes.CONTROLLER_EPOCH, self._epoch_version)

    def _refused(self, refused: MultiRefusedError) -> None:
        """Raise NotControllerError if the check of the epoch was refused."""
        if refused.index == 0:
            self._resign("another broker was elected")
            raise NotControllerError(f"Broker {self._broker_id} is the controller no more.") from refused

    # ---- requests ---------------------------------------------------------------------------------------------------

    async def elect_leaders(self, policy: Policy) -> None:
        """Decide once with another policy: preferred leaders, or unclean elections. Raises NotControllerError."""
        async with self._one_at_a_time:
            self._check()
            await self._reconcile(policy, None)

    async def elect(self, election: ElectionType, partitions: Mapping[str, Collection[int]] | None) -> Elected:
        """Elect leaders as ``ClusterState.elect_leaders`` says, with one write for each topic."""
        self._check()
        view = self._watched.view
        asked = partitions
        if asked is None:
            asked = {name: range(len(node.document.partitions)) for name, node in view.topics.items()}
        found: dict[tuple[str, int], int | LogStoreError] = {}
        for topic, numbers in asked.items():
            try:
                found.update(await self._elect_in(topic, numbers, election))
            except (UnknownTopicError, ClusterStateError) as error:
                found.update({(topic, number): error for number in numbers})
        if partitions is None:
            found = {where: how for where, how in found.items() if not isinstance(how, ElectionNotNeededError)}
        return found

    async def _elect_in(self, topic: str, numbers: Collection[int], election: ElectionType) -> Elected:
        found: dict[tuple[str, int], int | LogStoreError] = {}
        leaders: dict[int, tuple[int, int]] = {}  # by partition: the old and the new one

        def change(document: TopicRegistration) -> TopicRegistration:
            rows = list(document.partitions)
            view = self._watched.view  # ``document`` comes from this view
            leaders.clear()
            for number in numbers:
                try:
                    rows[number] = elect(view, topic, number, election)
                    leaders[number] = document.partitions[number].leader, rows[number].leader
                    found[topic, number] = rows[number].leader
                except LogStoreError as error:
                    found[topic, number] = error
            return replace(document, partitions=tuple(rows))

        node = self._watched.view.topics.get(topic)
        if node is None:
            raise UnknownTopicError(f"Topic {topic!r} not found.")
        await self._change(topic, node.document.topic_id, change, over_brokers=True)
        for number, (before, leader) in leaders.items():
            log.info(
                "controller.leader_elected",
                topic=topic,
                partition=number,
                election=election.value,
                before=before,
                leader=leader,
            )
        return found

    async def mark_deleting(self, topic: str, topic_id: UUID) -> None:
        """Mark the topic as being deleted: its partitions lose their leaders for good. Raises NotControllerError and
        UnknownTopicIdError.
        """
        await self._change(topic, topic_id, lambda document: replace(document, deleting=True))

    async def reassign(self, topic: str, targets: Mapping[int, Sequence[int] | None]) -> None:
        """Move partitions to other replicas; None cancels a move (KIP-455).

        Raises NotControllerError, UnknownTopicError, UnknownPartitionError, InvalidReplicaAssignmentError and
        NoReassignmentInProgressError.
        """
        self._check()
        node = self._watched.view.topics.get(topic)
        if node is None:
            raise UnknownTopicError(f"Topic {topic!r} not found.")
        brokers = self._watched.view.brokers

        def change(document: TopicRegistration) -> TopicRegistration:
            rows = list(document.partitions)
            for partition, target in targets.items():
                if not 0 <= partition < len(rows):
                    raise UnknownPartitionError(f"Topic {topic!r} has no partition {partition}.")
                row = rows[partition]
                if target is None:
                    if row == (cancelled := cancel_reassignment(row)):
                        raise NoReassignmentInProgressError(
                            f"The partition {topic}-{partition} is not being reassigned."
                        )
                    rows[partition] = cancelled
                    continue
                rows[partition] = begin_reassignment(row, target)
                if missing := [one for one in rows[partition].adding if one not in brokers]:
                    raise InvalidReplicaAssignmentError(
                        f"The cluster has no brokers {missing} now: nothing is moved to them."
                    )
            return replace(document, partitions=tuple(rows))

        await self._change(topic, node.document.topic_id, change)

    async def _change(
        self,
        topic: str,
        topic_id: UUID,
        change: Callable[[TopicRegistration], TopicRegistration],
        *,
        over_brokers: bool = False,
    ) -> None:
        """Change the topic's document. ``over_brokers`` is for a ``change`` that depends on the registered brokers."""
        async with self._one_at_a_time:
            while True:
                checks = [self._check(), *([_nobody_came(self._watched.view)] if over_brokers else [])]
                try:
                    await write_topic(self._zookeeper, self._watched, topic, topic_id, change, checks)
                except MultiRefusedError as refused:
                    self._refused(refused)
                    await self._watched.refresh([refused.operation.path])  # a broker has registered, so decide again
                else:
                    return


def _nobody_came(view: ClusterView) -> Check:
    """Return a check that no broker has registered since ``view``."""
    return Check(znodes.BROKER_IDS, view.registrations)


def _operation(write: TopicWrite) -> Operation:
    path = znodes.topic_path(write.topic)
    if write.document is None:
        return Delete(path, write.version)
    data = znodes.encode(path, write.document)
    return Create(path, data) if write.version == NEW else Write(path, data, write.version)


def _batches(writes: Sequence[TopicWrite], refused: dict[str, str]) -> Iterator[list[TopicWrite]]:
    """Yield writes that fit one multi. A document that is too large is refused by itself."""
    batch: list[TopicWrite] = []
    nbytes = 0
    for write in writes:
        try:
            operation = _operation(write)
        except ClusterStateError as error:
            refused[write.topic] = error.message
            continue
        size = 0 if isinstance(operation, (Delete, Check)) else len(operation.data)
        if batch and (len(batch) == _WRITES_MAX or nbytes + size > _BYTES_MAX):
            yield batch
            batch, nbytes = [], 0
        batch.append(write)
        nbytes += size
    if batch:
        yield batch


def _log(view: ClusterView, write: TopicWrite) -> None:
    before = view.topics.get(write.topic)
    if before is None or write.document is None:
        log.info("controller.topic_written", topic=write.topic, removed=write.document is None)
        return
    rows = itertools.zip_longest(before.document.partitions, write.document.partitions)
    moved = sum(old is None or old.leader != new.leader for old, new in rows)
    log.info("controller.topic_written", topic=write.topic, leaders_changed=moved)
