"""A broker's place in the cluster: the agreement on its identity, its registration, its lease.

``begin`` runs once for each start, before anyone can count on the broker:

1. The ids of the cluster agree (C19): ZooKeeper's, the data directory's, the log directory's. The directory of a store
   of one node becomes that of a cluster, which keeps its id: see ``is_migration``.
2. A registration under the same id has ended, or the start is refused: two brokers never have one id.
3. The broker leads nothing. What it led before its crash needs a new epoch, since it no longer remembers that one.
4. A broker whose journal is not the one registered last leaves every ISR (C12): the directory is another one, its
   incarnation is older, or the journal in it is gone, older or another's (``ExpectedJournal``), and then gets a new
   directory id. Meanwhile the broker's record names no directory. After a crash in between the next start begins here.
   A leader that had decided to take the former journal into an ISR is refused, as each such write checks the version
   of the record.
5. The incarnation is durable on disk, and then in ZooKeeper.

``register`` runs for each session. It creates the ephemeral node, whose czxid is the broker epoch, and raises the
version of ``/brokers/ids`` in the same multi. It reads the leaders afterwards, and then the lease begins. A controller
that found the broker dead earlier has written by then, or that version refuses its write.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import structlog
from msgspec.structs import replace

from logstore.clock import Clock
from logstore.cluster import checked_file, znodes
from logstore.cluster.embedded_cluster_state import FORMAT_VERSION, brokers_of, home_of
from logstore.cluster.lease import RENEWAL, Lease
from logstore.cluster.log_directory import REPLICAS_ARE_COPIED, DirectoryRecord, LogDirectory, OneNodeDirectory
from logstore.cluster.znodes import (
    NO_LEADER,
    BrokerRecord,
    BrokerRegistration,
    ClusterIdentity,
    PartitionRegistration,
    TopicRegistration,
)
from logstore.cluster.zookeeper import (
    Create,
    MultiRefusedError,
    Node,
    NodeExistsError,
    NoNodeError,
    VersionConflictError,
    Write,
    ZooKeeper,
)
from logstore.entropy import new_uuid
from logstore.errors import ClusterStateError, DataDirectoryError, LogStoreError
from logstore.filesystem import FileSystem
from logstore.journal.errors import JournalDiffersError
from logstore.journal.identity import FoundJournal
from logstore.journal.journal_file import list_files
from logstore.lock_file import LockFile

log = structlog.stdlib.get_logger(__name__)

_COORDINATOR: Final = "zookeeper"
_CLUSTER_FILE: Final = "cluster.json"
_GIVE_UP: Final = f"write it again: the id of the cluster is that of {znodes.CLUSTER_ID} in ZooKeeper"
#: A former registration may last up to this factor times the session timeout: ZooKeeper rounds up to a tick.
_EXPIRY_SLACK: Final = 1.5


class BrokerIdInUseError(DataDirectoryError):
    """Another process is registered under the broker's id."""


class Registration:
    def __init__(
        self,
        zookeeper: ZooKeeper,
        data: Path,
        log_directory: Path,
        broker_id: int,
        filesystem: FileSystem,
        clock: Clock,
        *,
        url: str,
        peer: str,
        rack: str | None,
        kafka: str | None = None,
    ) -> None:
        self._zookeeper = zookeeper
        self._data = data
        self._log_directory = log_directory
        self._broker_id = broker_id
        self._filesystem = filesystem
        self._clock = clock
        self._path = znodes.broker_path(broker_id)
        self._wanted = BrokerRegistration(
            url=url, kafka=kafka, peer=peer, rack=rack, state="running", record_version=-1
        )
        self.cluster_id = ""
        self.lease = Lease(clock)
        #: The node of this session; None while there is none.
        self._node: Node | None = None
        #: Reads the decisions made while there was no node. A later session has no lease before that.
        self.read_view: Callable[[], Awaitable[None]] | None = None
        self._writing = asyncio.Lock()
        #: Keeps the store of one node from starting during a migration.
        self._data_lock: LockFile | None = None
        #: The identity of the store of one node that this broker was; None if it was not one.
        self._one_node: OneNodeDirectory | None = None
        self._directory: LogDirectory | None = None
        #: True if the journal is not the expected one. It stays true if a start that found this ended before it began a
        #: journal file.
        self.may_lack_frames = False

    @property
    def is_migration(self) -> bool:
        """True if the directory is still that of one node. Its topics have to be registered before
        ``end_migration``.
        """
        return self._data_lock is not None

    @property
    def last_epoch_of_one_node(self) -> int:
        """The leader epoch of the store of one node that this broker was; 0 if it was not one."""
        return 0 if self._one_node is None else self._one_node.leader_epoch

    @property
    def broker_epoch(self) -> int:
        """The czxid of the node; -1 while the broker is not registered."""
        return -1 if self._node is None else self._node.czxid

    def advertise(self, peer: str) -> None:
        """Set the host:port for other brokers, before the broker registers."""
        self._wanted = replace(self._wanted, peer=peer)

    # ---- once for each start ----------------------------------------------------------------------------------------

    async def begin(self, found: FoundJournal) -> None:
        """Agree on the broker's identity, with the journal that was found in its directory.

        Raises DataDirectoryError, ClusterStateError and ZooKeeperUnavailableError.
        """
        for path in znodes.PARENTS:
            with contextlib.suppress(NodeExistsError):
                await self._zookeeper.create(path, b"")
        self.cluster_id = await self._agree()
        directory = await asyncio.to_thread(self._open_directory, found)
        self.may_lack_frames = not self.is_migration and not directory.expected.is_begun_in(found)
        await self._await_former_registration()
        path = znodes.record_path(self._broker_id)
        node = await self._zookeeper.get(path)
        record = None if node is None else znodes.decode(path, node.data, BrokerRecord)
        # During a migration only this broker has the records, whatever an earlier try has registered.
        is_known = self.is_migration or (
            record is not None
            and directory.directory_id in record.directories
            and directory.incarnation >= record.incarnation
        )
        last = max(0 if record is None else record.incarnation, found.incarnation)
        if not is_known:
            node = await self._write_record(node, BrokerRecord((), last, self._wanted.rack))
            if record is not None:
                log.warning("cluster.journal_replaced", broker=self._broker_id, directory=str(self._log_directory))
        await self._change_topics(self._leave if not is_known else self._resign)
        directory = await asyncio.to_thread(directory.begun, self._log_directory, self._filesystem, last)
        self._directory = directory
        record = BrokerRecord((directory.directory_id,), directory.incarnation, self._wanted.rack)
        node = await self._write_record(node, record)
        self._wanted = replace(self._wanted, record_version=node.version)

    def _open_directory(self, found: FoundJournal) -> LogDirectory:
        """Return the log directory's identity, a new one if its journal is not the expected one."""
        directory = LogDirectory.open(self._log_directory, self._filesystem, self.cluster_id, self._broker_id)
        if self._one_node is not None:  # the store of one node may have served since an interrupted migration
            directory = dataclasses.replace(
                directory,
                directory_id=self._one_node.directory_id,
                durable_end=self._one_node.durable_end,
                file_id=self._one_node.file_id,
                begin=self._one_node.begin,
            )
        difference = (self._one_node or directory).expected.difference(found)
        if difference is None:
            return directory if directory.durable_end is not None else directory.with_journal(found)
        if self.is_migration:
            raise JournalDiffersError(
                found.directory,
                difference,
                "Nothing was changed. Put it back; or start the store once without zookeeper.connect, with "
                "--new-journal, to continue without the records that it lacks.",
            )
        if not directory.is_own(found):
            raise JournalDiffersError(
                found.directory,
                difference,
                "Nothing was changed, because another broker may need this journal: mount the one that belongs here. "
                f"If it is lost, move this one away; {REPLICAS_ARE_COPIED}",
            )
        log.warning("cluster.journal_differs", broker=self._broker_id, directory=str(found.directory), why=difference)
        return directory.with_new_journal().with_journal(found)

    @property
    def journal_record(self) -> DirectoryRecord:
        """The file beside the journal for this start."""
        assert self._directory is not None
        return self._directory.record(self._log_directory, self._filesystem)

    async def _agree(self) -> str:
        """Return the id of the cluster: ZooKeeper's, the data directory's, or a new one."""
        content = await asyncio.to_thread(checked_file.read, self._filesystem, self._data / _CLUSTER_FILE, _GIVE_UP)
        one_node = self.is_migration
        if content and not one_node and "coordinator" not in content:
            raise DataDirectoryError(f"A store of one node has begun to use {self._data}: stop it, and start again.")
        if content and (
            content.get("format_version") != FORMAT_VERSION or content.get("coordinator", _COORDINATOR) != _COORDINATOR
        ):
            upgrade = " Start it once without zookeeper.connect." if one_node else ""
            raise DataDirectoryError(
                f"{self._data} has format version {content.get('format_version')}; this release reads {FORMAT_VERSION}."
                f"{upgrade}"
            )
        here = str(content["cluster_id"]) if content else None
        there = await self._zookeeper_cluster_id()
        if there is None:
            if here is not None and not one_node:
                raise ClusterStateError(
                    f"ZooKeeper at {self._zookeeper.servers} has no cluster, and {self._data} belongs to the cluster "
                    f"{here}: correct zookeeper.connect, or restore ZooKeeper's data."
                )
            identity = ClusterIdentity(here or new_uuid().hex)
            with contextlib.suppress(NodeExistsError):  # another broker also starts
                await self._zookeeper.create(znodes.CLUSTER_ID, znodes.encode(znodes.CLUSTER_ID, identity))
            there = await self._zookeeper_cluster_id()
            assert there is not None
        if here is None:
            if await self._zookeeper.children(znodes.TOPICS):
                raise DataDirectoryError(
                    f"{self._data} is empty, and the cluster {there} in ZooKeeper has topics: give the directory that "
                    "its brokers share, or correct zookeeper.connect."
                )
            await asyncio.to_thread(self._filesystem.make_directory, self._data)
            await asyncio.to_thread(write_cluster_file, self._filesystem, self._data, there)
        elif here != there and one_node:
            raise DataDirectoryError(
                f"{self._data} belongs to a store of one node, and ZooKeeper at {self._zookeeper.servers} to another "
                f"cluster, {there}: give the store its own path in zookeeper.connect, or start it without."
            )
        elif here != there:
            raise DataDirectoryError(
                f"{self._data} belongs to the cluster {here}, and ZooKeeper at {self._zookeeper.servers} to {there}: "
                "correct --data or zookeeper.connect."
            )
        return there

    def look_at_data(self) -> None:
        """Lock out a store of one node, and check that its journal is this broker's, before anything is made in the
        directory.

        It blocks. Raises DataDirectoryError.
        """
        filesystem = self._filesystem
        content = checked_file.read(filesystem, self._data / _CLUSTER_FILE, _GIVE_UP)
        if not content or "coordinator" in content:
            return
        lock = LockFile.acquire(self._data, filesystem)
        home = home_of(self._data, self._broker_id)
        try:
            others = [name for name in brokers_of(self._data, filesystem) if name != home.name]
            if others:
                raise DataDirectoryError(
                    f"{self._data} belongs to a store of one node, broker {others[0]}: start the cluster with the "
                    f"broker whose broker.id is {others[0]}, and no other until it listens."
                )
            one_node = OneNodeDirectory.open(home, filesystem)
            # A refused start of one node leaves a lock there and no file. ``begin`` then compares the journal in
            # ``log.dirs``, if its durable end is known.
            is_left = _has_journal(home, filesystem, with_files=one_node.durable_end is not None)
            if is_left and filesystem.real_path(home) != filesystem.real_path(self._log_directory):
                raise DataDirectoryError(
                    f"The journal of the store of one node is in {home}: move {home / 'journal'} into "
                    f"{self._log_directory} (log.dirs), or leave log.dirs out."
                )
            self._one_node = one_node
        except BaseException:
            lock.release()
            raise
        self._data_lock = lock

    async def end_migration(self) -> None:
        """Make the directory a cluster's, once the topics of the one node are registered."""
        await asyncio.to_thread(write_cluster_file, self._filesystem, self._data, self.cluster_id)
        self.release()
        log.info("cluster.migrated", data=str(self._data), cluster_id=self.cluster_id)

    def release(self) -> None:
        """Let the store of one node start again if the migration has not ended."""
        if self._data_lock is not None:
            self._data_lock.release()
            self._data_lock = None

    async def _zookeeper_cluster_id(self) -> str | None:
        node = await self._zookeeper.get(znodes.CLUSTER_ID)
        return None if node is None else znodes.decode(znodes.CLUSTER_ID, node.data, ClusterIdentity).cluster_id

    async def _await_former_registration(self) -> None:
        """Wait for the end of a former registration: after a crash it ends with its session.

        Raises BrokerIdInUseError if it does not.
        """
        changed = asyncio.Event()
        deadline = self._clock.monotonic() + _EXPIRY_SLACK * self._zookeeper.session_timeout_s
        while await self._zookeeper.exists(self._path, lambda _: changed.set()) is not None:
            try:
                async with asyncio.timeout(deadline - self._clock.monotonic()):
                    await changed.wait()
            except TimeoutError:
                node = await self._zookeeper.get(self._path)
                if node is None:
                    return
                other = znodes.decode(self._path, node.data, BrokerRegistration)
                raise BrokerIdInUseError(
                    f"Broker {self._broker_id} of the cluster is another process, at {other.url}: stop it, or set "
                    "broker.id to an id of this broker's own."
                ) from None
            changed.clear()

    async def _write_record(self, node: Node | None, record: BrokerRecord) -> Node:
        """Write the broker's record. A version conflict means that another process starts with this id, so both are
        refused.
        """
        path = znodes.record_path(self._broker_id)
        data = znodes.encode(path, record)
        try:
            if node is None:
                return await self._zookeeper.create(path, data)
            return await self._zookeeper.write(path, data, node.version)
        except (NodeExistsError, VersionConflictError) as error:
            raise BrokerIdInUseError(
                f"Another process starts as broker {self._broker_id}: set broker.id to an id of this broker's own."
            ) from error

    async def _change_topics(self, change: Callable[[PartitionRegistration], PartitionRegistration]) -> None:
        """Compare-and-set every document that ``change`` changes. No other process writes those rows."""
        for topic in sorted(await self._zookeeper.children(znodes.TOPICS)):
            path = znodes.topic_path(topic)
            while (node := await self._zookeeper.get(path)) is not None:
                try:
                    document = znodes.decode(path, node.data, TopicRegistration)
                except ClusterStateError:
                    if change == self._leave:
                        raise
                    break  # the view of this broker shows no such topic, so it leads nothing of it
                changed = replace(document, partitions=tuple(change(row) for row in document.partitions))
                if changed == document:
                    break
                try:
                    await self._zookeeper.write(path, znodes.encode(path, changed), node.version)
                    break
                except (VersionConflictError, NoNodeError):
                    continue

    def _resign(self, row: PartitionRegistration) -> PartitionRegistration:
        if row.leader != self._broker_id:
            return row
        return replace(row, leader=NO_LEADER, leader_epoch=row.leader_epoch + 1)

    def _leave(self, row: PartitionRegistration) -> PartitionRegistration:
        resigned = self._resign(row)
        return replace(resigned, isr=tuple(one for one in resigned.isr if one != self._broker_id))

    # ---- once for each session --------------------------------------------------------------------------------------

    async def register(self) -> None:
        """Create the node of this session. Raises BrokerIdInUseError and ZooKeeperUnavailableError."""
        async with self._writing:
            await self._register()

    async def _register(self) -> None:
        self._node = None
        began = self._zookeeper.session_began
        self._node = node = await self._own_node()
        if self.read_view is not None:
            try:
                await self.read_view()
            except BaseException:
                self._node = None  # the node counts as missing; the next try finds it
                raise
        if self._node is not node:
            return  # the session has ended in the meantime
        self.lease.begin(began, self._zookeeper.session_timeout_s)
        log.info("cluster.registered", broker=self._broker_id, epoch=node.czxid)

    async def _own_node(self) -> Node:
        """Return this session's node, created by this or an earlier try; wait until a node of another session is
        gone.
        """
        own = Create(self._path, znodes.encode(self._path, self._wanted), ephemeral=True)
        while True:
            # The node may exist: the response to an earlier try was lost, or a session is ending.
            try:
                await self._zookeeper.multi([own, Write(znodes.BROKER_IDS, b"", -1)])
            except MultiRefusedError as refused:
                if not isinstance(refused.reason, NodeExistsError):
                    raise refused.reason from refused
            found = await self._zookeeper.get(self._path)
            if found is not None and found.session_id == self._zookeeper.session_id:
                return found
            await self._await_former_registration()

    async def update(self, changes: Callable[[BrokerRegistration], BrokerRegistration]) -> None:
        """Change the broker's registration, now and for later sessions. Raises ZooKeeperUnavailableError."""
        async with self._writing:
            self._wanted = changes(self._wanted)
            if self._node is not None:
                try:
                    self._node = await self._zookeeper.write(
                        self._path, znodes.encode(self._path, self._wanted), self._node.version
                    )
                except (VersionConflictError, NoNodeError):
                    # An earlier try lost its response, a user edited the node, or the session has ended.
                    found = await self._zookeeper.get(self._path)
                    if found is not None and found.czxid == self._node.czxid:
                        data = znodes.encode(self._path, self._wanted)
                        self._node = await self._zookeeper.write(self._path, data, found.version)

    def session_ended(self) -> None:
        self._node = None
        self.lease.end()

    async def keep_lease(self, lost: Callable[[], Awaitable[None]]) -> None:
        """Renew the lease until cancelled. ``lost`` is called when the node was removed during its session."""
        while True:
            timeout_s = self._zookeeper.session_timeout_s
            # The pause is a little longer, so that two renewals are never too close to count.
            await asyncio.sleep(timeout_s * RENEWAL * 1.01)
            if (node := self._node) is None:
                continue
            sent = self._clock.monotonic()
            try:
                found = await self._zookeeper.renew(self._path)
            except LogStoreError:
                continue
            if self._node is not node and self.broker_epoch != node.czxid:
                continue
            if found is not None and found.czxid == node.czxid:
                if self.lease.has_begun:
                    self.lease.renewed(sent, self._zookeeper.session_timeout_s)
            else:
                self.session_ended()
                log.error("cluster.registration_removed", broker=self._broker_id)
                await lost()


def _has_journal(home: Path, filesystem: FileSystem, *, with_files: bool) -> bool:
    """Return True if a log directory has a journal; with ``with_files``, only if the journal has files."""
    journal = home / "journal"
    if not filesystem.is_directory(journal) or not with_files:
        return filesystem.is_directory(journal)
    directories = [path for name in filesystem.names(journal) if filesystem.is_directory(path := journal / name)]
    return any(list_files(directory, filesystem) for directory in directories)


def write_cluster_file(filesystem: FileSystem, data: Path, cluster_id: str) -> None:
    """Make the data directory that of a cluster. Raises OSError.

    The brokers of a new cluster may do so at the same time, so each has its own temporary file.
    """
    content = {"cluster_id": cluster_id, "format_version": FORMAT_VERSION, "coordinator": _COORDINATOR}
    made = data / f"{_CLUSTER_FILE}.{new_uuid().hex}"
    checked_file.write(filesystem, made, content)
    filesystem.rename(made, data / _CLUSTER_FILE)
    filesystem.sync_directory(data)
