"""Watches the state of the cluster in ZooKeeper (brokers, controller and topics), and reports each change as an event.

``WatchedView`` reads a node again when its watch fires, and everything after each new connection, because kazoo has
dropped the watches by then. It reads one node for each topic, many at a time. Invariants: ``view`` is complete (every
topic, or an error in ``damaged``); a node's content never goes back to an older one; listeners are called on the event
loop, in the order of the changes, with the views before and after.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from logstore.cluster import znodes
from logstore.cluster.znodes import BrokerRegistration, ControllerRegistration, TopicRegistration
from logstore.cluster.zookeeper import NoNodeError, SessionState, ZooKeeper
from logstore.errors import ClusterStateError, ZooKeeperUnavailableError

log = structlog.stdlib.get_logger(__name__)

#: The number of reads in progress at once.
_READS_AT_ONCE: Final = 100
_RETRY_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class LiveBroker:
    registration: BrokerRegistration
    #: The czxid of its node, which rises with each registration.
    epoch: int

    @property
    def is_running(self) -> bool:
        """True if the broker may be given partitions to lead."""
        return self.registration.state == "running"


@dataclass(frozen=True, slots=True)
class TopicNode:
    """A topic's document, with the version for a compare-and-set."""

    document: TopicRegistration
    version: int
    mzxid: int = 0


@dataclass(frozen=True, slots=True)
class ClusterView:
    controller: ControllerRegistration | None = None
    brokers: Mapping[int, LiveBroker] = dataclasses.field(default_factory=dict)
    topics: Mapping[str, TopicNode] = dataclasses.field(default_factory=dict)
    #: By path, the reason why a document was rejected. Its last valid content stays in force.
    damaged: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: The version of ``/brokers/ids``. Each registration raises it: while ZooKeeper has this version, ``brokers`` has
    #: every registered broker.
    registrations: int = -1

    def is_replica_live(self, broker_id: int, topic: str, partition: int) -> bool:
        """Return whether the broker is registered, and its disk serves the partition."""
        broker = self.brokers.get(broker_id)
        return broker is not None and partition not in broker.registration.offline.get(topic, ())

    def may_join(self, broker_id: int, broker_epoch: int) -> bool:
        """Return whether the broker may join an ISR with the journal of that registration (C4, KIP-903)."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.is_running and broker.epoch == broker_epoch


#: Called with the views before and after, and the names of the topics whose nodes were changed, added or removed.
ViewListener = Callable[[ClusterView, ClusterView, frozenset[str]], None]


class WatchedView:
    """Watches a ZooKeeper that was started; ``start`` reads everything once, ``stop`` ends the watch."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper
        self.view = ClusterView()
        self._listeners: list[ViewListener] = []
        #: Paths that have to be read.
        self._unread: set[str] = set()
        self._all_unread = True
        self._wake = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        #: The reason why the last pass failed; kept so that it is logged once.
        self._failure: str | None = None

    def listen(self, listener: ViewListener) -> None:
        self._listeners.append(listener)

    async def start(self) -> None:
        """Read everything and begin to watch.

        Raises ZooKeeperUnavailableError, and ClusterStateError if ZooKeeper has no cluster.
        """
        self._zookeeper.listen(self._session_changed)
        await self._read_unread()
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for waiting in self._waiting:
            waiting.cancel()

    async def refresh(self, paths: Iterable[str]) -> None:
        """Read the nodes now, and return when the view shows them and the listeners were called.

        Raises ZooKeeperUnavailableError.
        """
        self._unread.update(paths)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self._wake.set()
        await done

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._all_unread = True
            self._wake.set()

    def _changed(self, path: str) -> None:
        self._unread.add(path)
        self._wake.set()

    async def _keep(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            waiting, self._waiting = self._waiting, []
            try:
                await self._read_unread()
            except asyncio.CancelledError:
                _settle(waiting, ZooKeeperUnavailableError("The broker leaves the cluster."))
                raise
            except Exception as error:
                _settle(waiting, error)
                if not isinstance(error, ZooKeeperUnavailableError):
                    # A view that is never updated is worse than one that is read again from the start.
                    if str(error) != self._failure:
                        log.exception("cluster.view_failed")
                    self._failure = str(error)
                    self._all_unread = True
                if self._zookeeper.state is SessionState.CONNECTED:
                    await asyncio.sleep(_RETRY_S)
                    self._wake.set()
            else:
                self._failure = None
                _settle(waiting, None)

    # ---- reading ----------------------------------------------------------------------------------------------------

    async def _read_unread(self) -> None:
        """Read all unread nodes. If this fails, they stay unread."""
        unread, self._unread = self._unread, set()
        everything, self._all_unread = self._all_unread, False
        try:
            if everything:
                await self._zookeeper.sync()  # a server that lags behind would show an older state
                unread = {znodes.CONTROLLER, znodes.BROKER_IDS, znodes.TOPICS}
                unread.update(znodes.broker_path(broker_id) for broker_id in self.view.brokers)
                unread.update(znodes.topic_path(topic) for topic in self.view.topics)
            before = self.view
            read = _Changes(before)
            for parent in (znodes.BROKER_IDS, znodes.TOPICS):
                if parent in unread:
                    unread.remove(parent)
                    unread.update(await self._read_children(parent, read))
            await self._read_nodes(unread, read)
        except BaseException:
            self._unread |= unread
            self._all_unread |= everything
            raise
        self.view = read.view()
        changed = frozenset(
            name
            for name in before.topics.keys() | self.view.topics.keys()
            if before.topics.get(name) is not self.view.topics.get(name)
        )
        for listener in self._listeners:
            listener(before, self.view, changed)

    async def _read_children(self, parent: str, read: "_Changes") -> set[str]:
        """Read the names of a node's children, and return the paths of new ones."""
        try:
            names, version = await self._zookeeper.children_and_version(parent, self._changed)
        except NoNodeError:
            raise ClusterStateError(f"ZooKeeper has no node {parent}: it was removed by hand.") from None
        if parent == znodes.BROKER_IDS:
            read.registrations = version
        known = {str(name) for name in (read.brokers if parent == znodes.BROKER_IDS else read.topics)}
        return {f"{parent}/{name}" for name in names if name not in known}

    async def _read_nodes(self, paths: Iterable[str], read: "_Changes") -> None:
        """Read nodes. If a read fails, its error is raised once the other reads have ended."""
        paths = sorted(paths)
        for at in range(0, len(paths), _READS_AT_ONCE):
            reads = [self._read_node(path, read) for path in paths[at : at + _READS_AT_ONCE]]
            for error in await asyncio.gather(*reads, return_exceptions=True):
                if isinstance(error, BaseException):
                    raise error

    async def _read_node(self, path: str, read: "_Changes") -> None:
        node = await self._zookeeper.get(path, self._changed)
        if node is None and path == znodes.CONTROLLER:
            # No watch on children covers this node, so only a watch of its own reports its creation.
            if await self._zookeeper.exists(path, self._changed) is not None:
                return await self._read_node(path, read)
            read.controller = None
            return None
        parent, _, name = path.rpartition("/")
        try:
            if path == znodes.CONTROLLER:
                assert node is not None
                read.controller = znodes.decode(path, node.data, ControllerRegistration)
            elif parent == znodes.BROKER_IDS:
                broker_id = _broker_id(path, name)
                if node is None:
                    read.brokers.pop(broker_id, None)
                else:
                    registration = znodes.decode(path, node.data, BrokerRegistration)
                    read.brokers[broker_id] = LiveBroker(registration, node.czxid)
            elif node is None:
                read.topics.pop(name, None)
            elif name not in read.topics or read.topics[name].mzxid < node.mzxid:
                document = znodes.decode(path, node.data, TopicRegistration)
                read.topics[name] = TopicNode(document, node.version, node.mzxid)
        except ClusterStateError as error:
            if path not in read.damaged:
                log.error("cluster.document_damaged", path=path, why=error.message)
            read.damaged[path] = error.message
        else:
            read.damaged.pop(path, None)


class _Changes:
    """The parts of a view that is being made from the previous one."""

    def __init__(self, before: ClusterView) -> None:
        self.controller = before.controller
        self.brokers = dict(before.brokers)
        self.topics = dict(before.topics)
        self.damaged = dict(before.damaged)
        self.registrations = before.registrations

    def view(self) -> ClusterView:
        return ClusterView(self.controller, self.brokers, self.topics, self.damaged, self.registrations)


def _broker_id(path: str, name: str) -> int:
    if not name.isdecimal():
        raise ClusterStateError(f"{path} in ZooKeeper is not a broker's: remove it.")
    return int(name)


def _settle(waiting: Iterable[asyncio.Future[None]], error: Exception | None) -> None:
    for one in waiting:
        if one.done():
            continue
        if error is None:
            one.set_result(None)
        else:
            one.set_exception(error)
