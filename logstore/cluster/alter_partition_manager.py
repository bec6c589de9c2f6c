"""The writes of leaders: the ISR of their partitions, and the end of a recovery.

Changes of a topic within 50 ms are one write of its document, a compare-and-set. Invariants: a change is written only
over the state that its leader decided on, in its leader's epoch (C5). A replica that joins is registered, runs, and has
the journal of the registration that the leader knows: the write checks the version of that broker's record (C4, C12).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from logstore.cluster import znodes
from logstore.cluster.cluster_state import PartitionState
from logstore.cluster.view import ClusterView, TopicNode, WatchedView
from logstore.cluster.znodes import PartitionRegistration, TopicRegistration
from logstore.cluster.zookeeper import Check, MultiRefusedError, Operation, Write, ZooKeeper
from logstore.errors import (
    BrokerNotReadyError,
    ClusterStateError,
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidUpdateVersionError,
    LogStoreError,
    UnknownTopicIdError,
)

#: Changes that come within this time of the first are written together.
LINGER_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class _Change:
    topic_id: UUID
    partition: int
    seen: PartitionState
    isr: tuple[int, ...]
    broker_epochs: Mapping[int, int]
    recovering: bool
    done: asyncio.Future[PartitionState]

    def refuse(self, error: LogStoreError) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def row(self, view: ClusterView, document: TopicRegistration, leader: int) -> PartitionRegistration:
        """Return the row to write.

        Raises FencedLeaderEpochError, InvalidUpdateVersionError and IneligibleReplicaError.
        """
        what = f"partition {self.partition} of the topic {self.topic_id}"
        if document.topic_id != self.topic_id or document.deleting:
            raise FencedLeaderEpochError(f"The topic of {what} was deleted: step down.")
        row = document.partitions[self.partition]
        if (row.leader, row.leader_epoch) != (leader, self.seen.leader_epoch):
            raise FencedLeaderEpochError(
                f"Broker {row.leader} leads {what} in epoch {row.leader_epoch}, not broker {leader} in epoch "
                f"{self.seen.leader_epoch}: step down."
            )
        if row.state != self.seen:
            raise InvalidUpdateVersionError(f"The state of {what} is {row.state} by now: decide again.")
        for broker_id in self.joining:
            if not view.may_join(broker_id, self.broker_epochs.get(broker_id, -1)):
                raise IneligibleReplicaError(
                    f"Broker {broker_id} does not join the ISR of {what}: it is not registered, it stops, or it was "
                    "started again."
                )
        return replace(row, isr=self.isr, recovering=row.recovering and self.recovering)

    @property
    def joining(self) -> list[int]:
        return [broker_id for broker_id in self.isr if broker_id not in self.seen.in_sync_replicas]


class AlterPartitionManager:
    def __init__(self, zookeeper: ZooKeeper, watched: WatchedView, broker_id: int) -> None:
        self._zookeeper = zookeeper
        self._watched = watched
        self._broker_id = broker_id
        #: By topic and partition, the changes that wait, or are being written.
        self._waiting: dict[str, dict[int, _Change]] = {}
        self._writing: dict[asyncio.Task[None], None] = {}
        #: Topics whose last write has an unknown outcome, or one that the view may not show.
        self._open: set[str] = set()

    async def alter(
        self,
        topic: str,
        topic_id: UUID,
        partition: int,
        seen: PartitionState,
        isr: Sequence[int],
        broker_epochs: Mapping[int, int],
        *,
        recovering: bool,
    ) -> PartitionState:
        """Change a partition as ``ClusterState.alter_partition`` says."""
        waiting = self._waiting.setdefault(topic, {})
        if partition in waiting:
            # The other change is written within this time. Without the pause the leader would ask again and again until
            # then.
            await asyncio.sleep(LINGER_S)
            raise InvalidUpdateVersionError(
                f"A change of partition {partition} of {topic} was under way: decide again."
            )
        done: asyncio.Future[PartitionState] = asyncio.get_running_loop().create_future()
        waiting[partition] = _Change(topic_id, partition, seen, tuple(isr), broker_epochs, recovering, done)
        if len(waiting) == 1:
            task = asyncio.create_task(self._write_soon(topic))
            self._writing[task] = None
            task.add_done_callback(self._writing.pop)
        return await done

    async def _write_soon(self, topic: str) -> None:
        await asyncio.sleep(LINGER_S)
        changes = self._waiting.pop(topic)
        try:
            await self._write(topic, list(changes.values()))
        except LogStoreError as error:
            _refuse(changes.values(), error)
        except BaseException:
            _refuse(changes.values(), BrokerNotReadyError("The broker leaves the cluster: the outcome is open."))
            raise

    async def _write(self, topic: str, changes: list[_Change]) -> None:
        """Write until each change is written or refused. Raises ZooKeeperUnavailableError for the rest."""
        path = znodes.topic_path(topic)
        if topic in self._open:
            # The write may have been done. A refusal based on an older view would end a proposal that holds.
            await self._zookeeper.sync()
            await self._watched.refresh([path])
            self._open.discard(topic)
        while True:
            view = self._watched.view
            node = view.topics.get(topic)
            rows = self._rows(view, node, changes)
            if node is None or not rows:
                return
            changes = [change for change in changes if change.partition in rows]
            partitions = tuple(rows.get(number, row) for number, row in enumerate(node.document.partitions))
            joining = {broker_id for change in changes for broker_id in change.joining}
            operations: list[Operation] = [
                *(
                    Check(znodes.record_path(one), view.brokers[one].registration.record_version)
                    for one in sorted(joining)
                ),
                Write(path, znodes.encode(path, replace(node.document, partitions=partitions)), node.version),
            ]
            try:
                await self._zookeeper.multi(operations)
                # The leader's next change must find this one in the view.
                await self._watched.refresh([path])
            except MultiRefusedError as refused:
                if refused.index == len(operations) - 1:
                    await self._watched.refresh([path])
                    if path in self._watched.view.damaged:
                        raise ClusterStateError(self._watched.view.damaged[path]) from refused
                    continue
                restarted = sorted(joining)[refused.index]
                error = IneligibleReplicaError(f"Broker {restarted} was started again: it does not join the ISR.")
                _refuse((change for change in changes if restarted in change.joining), error)
                changes = [change for change in changes if restarted not in change.joining]
                continue
            except BaseException:
                # The view may not show whether it was done.
                self._open.add(topic)
                raise
            for change in changes:
                if not change.done.done():
                    change.done.set_result(rows[change.partition].state)
            return

    def _rows(
        self, view: ClusterView, node: TopicNode | None, changes: Iterable[_Change]
    ) -> dict[int, PartitionRegistration]:
        """Return the rows to write, by partition; the other changes are refused."""
        rows: dict[int, PartitionRegistration] = {}
        for change in changes:
            try:
                if node is None:
                    raise FencedLeaderEpochError(f"The topic {change.topic_id} was deleted: step down.")
                rows[change.partition] = change.row(view, node.document, self._broker_id)
            except LogStoreError as error:
                change.refuse(error)
        return rows

    async def bump_version(self, topic: str, topic_id: UUID) -> None:
        """Make all brokers read the changed configuration in the topic's table."""
        await write_topic(
            self._zookeeper,
            self._watched,
            topic,
            topic_id,
            lambda document: replace(document, version=document.version + 1),
        )

    async def stop(self) -> None:
        for task in self._writing:
            task.cancel()
        await asyncio.gather(*self._writing, return_exceptions=True)


async def write_topic(
    zookeeper: ZooKeeper,
    watched: WatchedView,
    topic: str,
    topic_id: UUID,
    change: Callable[[TopicRegistration], TopicRegistration],
    checks: Sequence[Check] = (),
) -> None:
    """Write one document by compare-and-set, again until no other write comes between; the view shows it on return.

    Raises UnknownTopicIdError, MultiRefusedError for one of the ``checks``, ClusterStateError and
    ZooKeeperUnavailableError.
    """
    path = znodes.topic_path(topic)
    while True:
        node = watched.view.topics.get(topic)
        if node is None or node.document.topic_id != topic_id:
            raise UnknownTopicIdError(f"Topic '{topic}' is not the one with the id {topic_id}, or was deleted.")
        changed = change(node.document)
        if changed == node.document:
            return
        try:
            await zookeeper.multi([*checks, Write(path, znodes.encode(path, changed), node.version)])
        except MultiRefusedError as refused:
            if refused.index < len(checks):
                raise
            await watched.refresh([path])
            if path in watched.view.damaged:
                raise ClusterStateError(watched.view.damaged[path]) from refused
            continue
        await watched.refresh([path])
        return


def _refuse(changes: Iterable[_Change], error: LogStoreError) -> None:
    for change in changes:
        change.refuse(error)
