"""ZooKeeper for an event loop: kazoo behind typed, asynchronous methods.

kazoo works in its own threads; its responses, watches and session changes come to the event loop here, in kazoo's
order. While there is no connection, requests are refused at once. A write whose response was lost
(ZooKeeperUnavailableError) may have been done: the caller reads before it writes again.

kazoo drops its watches when the connection breaks, and calls each of them then: a watch means "read again".
"""

import asyncio
import contextlib
import enum
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooState

from logstore.clock import Clock, SystemClock
from logstore.cluster.kazoo_client import MakeClient, kazoo_client
from logstore.errors import InvalidConfigError, LogStoreError, ZooKeeperUnavailableError

#: Kafka's `zookeeper.session.timeout.ms`.
SESSION_TIMEOUT_MS: Final = 18_000
#: The pause before kazoo's thread is started again: a thread that ends at once must not keep the broker busy.
_RESTART_S: Final = 0.2

log = structlog.stdlib.get_logger(__name__)

_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?")

#: Called on the event loop with the path that may have changed.
Watch = Callable[[str], None]


class SessionState(enum.Enum):
    CONNECTED = "connected"
    #: No connection; the session may still exist.
    SUSPENDED = "suspended"
    #: ZooKeeper has ended the session, and its ephemeral nodes with it.
    EXPIRED = "expired"


class NoNodeError(LogStoreError):
    """The node of the request, or its parent, does not exist."""


class NodeExistsError(LogStoreError):
    """The node to be created exists already."""


class VersionConflictError(LogStoreError):
    """The node has another version than the request names."""


class MultiRefusedError(LogStoreError):
    """Nothing of the multi was done. ``operation`` at ``index`` was the first to be refused, for ``reason``."""

    def __init__(self, index: int, operation: "Operation", reason: LogStoreError) -> None:
        super().__init__(f"{type(operation).__name__} {operation.path}: {reason.message}")
        self.index = index
        self.operation = operation
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Node:
    """A node as it was read. ``session_id`` owns it; 0 if it is persistent. ``mzxid`` orders its contents."""

    data: bytes
    version: int
    czxid: int
    mzxid: int
    session_id: int


@dataclass(frozen=True, slots=True)
class Check:
    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """Replaces the data of ``version``; -1 is any."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int


Operation = Check | Create | Write | Delete


@dataclass(frozen=True, slots=True)
class Servers:
    """The parts of ``zookeeper.connect``: ``host:port,host:port/chroot``. Raises InvalidConfigError for anything
    else.
    """

    hosts: str
    chroot: str

    @classmethod
    def parse(cls, connect: str) -> "Servers":
        hosts, slash, chroot = connect.strip().partition("/")
        for server in hosts.split(","):
            match = _SERVER.fullmatch(server)
            if match is None or not 0 < int(match["port"] or 2181) < 2**16:
                raise InvalidConfigError(
                    f"zookeeper.connect names the server {server!r}: it takes host:port,host:port and, if the cluster "
                    "does not begin at the root, a path, as in zk1:2181,zk2:2181/logstore."
                )
        if slash and any(part in {"", ".", ".."} for part in chroot.split("/")):
            raise InvalidConfigError(f"zookeeper.connect ends in the path '/{chroot}': write it as in /logstore/one.")
        return cls(hosts, slash + chroot)

    def __str__(self) -> str:
        return self.hosts + self.chroot


class ZooKeeper:
    """One session after another, from ``start`` to ``stop``. All methods belong to the event loop of ``start``.

    Requests raise ZooKeeperUnavailableError without a connection, and when no response comes.
    """

    def __init__(
        self,
        servers: Servers,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        clock: Clock | None = None,
        make_client: MakeClient = kazoo_client,
    ) -> None:
        self.servers = servers
        self._clock = clock or SystemClock()
        # A listener to kazoo's states would not notice every end of its thread, hence the callback.
        self._client: Any = make_client(
            str(servers), session_timeout_ms / 1000, self._granted, lambda: self._call(self._thread_ended)
        )
        #: The timeout that ZooKeeper has granted; known from its first response on.
        self.session_timeout_s = session_timeout_ms / 1000
        #: The session's first request was sent after this time of the monotonic clock.
        self.session_began = 0.0
        self.session_id = 0
        self.state = SessionState.SUSPENDED
        self._listeners: list[Callable[[SessionState], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False
        self._restarting: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()

    def _granted(self, session_timeout_s: float) -> None:
        self.session_timeout_s = session_timeout_s

    # ---- session ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect. Raises ZooKeeperUnavailableError after a session timeout, InvalidConfigError for a missing
        chroot.
        """
        self._loop = asyncio.get_running_loop()
        self._client.add_listener(self._state_changed)
        self.session_began = self._clock.monotonic()
        try:
            await asyncio.to_thread(self._client.start_async)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._connected.wait(), self.session_timeout_s)
            if (client_id := self._client.client_id) is None:  # not connected
                raise ZooKeeperUnavailableError(
                    f"ZooKeeper at {self.servers.hosts} (zookeeper.connect) does not answer: start it, or correct the "
                    "addresses."
                )
            self._settle_state(SessionState.CONNECTED, client_id[0], self.session_began)
            if self.servers.chroot and await self.exists("/") is None:
                raise InvalidConfigError(
                    f"ZooKeeper at {self.servers.hosts} has no node {self.servers.chroot}, with which "
                    "zookeeper.connect ends: create it there, or correct the path."
                )
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the session, and its ephemeral nodes with it."""
        self._is_stopping = True
        self._client.remove_listener(self._state_changed)
        if self._restarting is not None:
            await asyncio.gather(self._restarting, return_exceptions=True)
        await asyncio.to_thread(self._client.stop)
        await asyncio.to_thread(self._client.close)
        self.state = SessionState.EXPIRED

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        """Call ``listener`` on each change of state, on the event loop. A new session begins with CONNECTED."""
        self._listeners.append(listener)

    def _state_changed(self, state: str) -> None:
        # This runs in kazoo's thread.
        if state == KazooState.CONNECTED:
            self._call(self._settle_state, SessionState.CONNECTED, self._client.client_id[0], None)
        elif state == KazooState.SUSPENDED:
            self._call(self._settle_state, SessionState.SUSPENDED, None, None)
        else:
            self._call(self._settle_state, SessionState.EXPIRED, 0, self._clock.monotonic())

    def _thread_ended(self) -> None:
        if self._is_stopping:
            return
        self._restarting = asyncio.create_task(self._start_again())
        log.error("zookeeper.client_ended", servers=self.servers.hosts, then="a new session begins")

    async def _start_again(self) -> None:
        while True:
            await asyncio.sleep(_RESTART_S)
            if self._is_stopping:
                return
            try:
                await asyncio.to_thread(self._client.start_async)
            except Exception as error:
                log.exception("zookeeper.not_started", servers=self.servers.hosts, why=str(error))
            else:
                return

    def _settle_state(self, state: SessionState, session_id: int | None, session_began: float | None) -> None:
        if session_began is not None:
            self.session_began = session_began
        if session_id is not None:
            self.session_id = session_id
        if state is SessionState.CONNECTED:
            self._connected.set()
        if state != self.state:
            self.state = state
            log.info("zookeeper.session", state=state.value, servers=self.servers.hosts)
            for listener in self._listeners:
                listener(state)

    def _call(self, callback: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(callback, *args)

    # ---- requests ---------------------------------------------------------------------------------------------------

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        """Return the node; None if it does not exist, and then it is not watched."""
        try:
            data, stat = await self._ask(self._client.get_async, path, self._watcher(path, watch))
        except NoNodeError:
            return None
        return Node(data, stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner)

    async def exists(self, path: str, watch: Watch | None = None) -> Node | None:
        """Return the node without its data; None if it does not exist. It is watched either way."""
        stat = await self._ask(self._client.exists_async, path, self._watcher(path, watch))
        return stat and Node(b"", stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names below ``path``, in no order. Raises NoNodeError."""
        return (await self.children_and_version(path, watch))[0]

    async def children_and_version(self, path: str, watch: Watch | None = None) -> tuple[list[str], int]:
        """Return the names below ``path``, in no order, and its data's version, as of one moment. Raises
        NoNodeError.
        """
        children, stat = await self._ask(
            self._client.get_children_async, path, self._watcher(path, watch), include_data=True
        )
        return list(children), stat.version

    async def sync(self, path: str = "/") -> None:
        """Return once later reads show at least what the leader of the ensemble had when it answered."""
        await self._ask(self._client.sync_async, path)

    async def renew(self, path: str) -> Node | None:
        """Send ``sync`` and ``exists`` together. Return the node as ``exists`` does."""
        _, node = await asyncio.gather(self.sync(path), self.exists(path))
        return node

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> Node:
        """Create a node. Raises NodeExistsError, and NoNodeError for its parent."""
        _, stat = await self._ask(self._client.create_async, path, data, None, ephemeral, include_data=True)
        return Node(data, stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner)

    async def write(self, path: str, data: bytes, version: int) -> Node:
        """Replace the data of ``version``. Raises VersionConflictError and NoNodeError."""
        stat = await self._ask(self._client.set_async, path, data, version)
        return Node(data, stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner)

    async def delete(self, path: str, version: int = -1) -> None:
        """Delete a node; -1 is any version. Raises VersionConflictError and NoNodeError."""
        await self._ask(self._client.delete_async, path, version)

    async def multi(self, operations: Sequence[Operation]) -> None:
        """Do all operations or none. Raises MultiRefusedError."""
        transaction = self._client.transaction()
        for operation in operations:
            match operation:
                case Check(path, version):
                    transaction.check(path, version)
                case Create(path, data, ephemeral):
                    transaction.create(path, data, ephemeral=ephemeral)
                case Write(path, data, version):
                    transaction.set_data(path, data, version)
                case Delete(path, version):
                    transaction.delete(path, version)
        results = await self._ask(transaction.commit_async)
        for index, (operation, result) in enumerate(zip(operations, results, strict=True)):
            if isinstance(result, Exception) and not isinstance(
                result, (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)
            ):
                raise MultiRefusedError(index, operation, _error(result, operation.path))

    def _watcher(self, path: str, watch: Watch | None) -> Callable[[object], None] | None:
        return None if watch is None else _Watcher(self._call, watch, path)

    async def _ask(self, ask: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if self.state is not SessionState.CONNECTED:
            raise ZooKeeperUnavailableError(f"There is no connection to ZooKeeper at {self.servers.hosts}.")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def settle(result: Any) -> None:
            # This runs in kazoo's thread.
            self._call(_settle, answer, result)

        subject = args[0] if args and isinstance(args[0], str) else "the multi"
        result = ask(*args, **named)
        result.rawlink(settle)
        try:
            async with asyncio.timeout(self.session_timeout_s):
                return await answer
        except TimeoutError:
            raise ZooKeeperUnavailableError(
                f"ZooKeeper at {self.servers.hosts} did not answer about {subject} within the session timeout."
            ) from None
        except Exception as error:
            # kazoo's exceptions are not the only ones: a response that its thread cannot read, or does not expect,
            # raises others.
            raise _error(error, subject) from error


@dataclass(frozen=True, slots=True)
class _Watcher:
    """Equal watchers count as one, because kazoo keeps a set of them for each path."""

    call: Callable[..., None]
    watch: Watch
    path: str

    def __call__(self, _event: object) -> None:
        # This runs in kazoo's thread.
        self.call(self.watch, self.path)


def _settle(answer: asyncio.Future[Any], result: Any) -> None:
    if answer.done():  # the caller has given up
        return
    if result.exception is None:
        answer.set_result(result.value)
    else:
        answer.set_exception(result.exception)


def _error(error: BaseException, subject: str) -> LogStoreError:
    match error:
        case kazoo_errors.NoNodeError():
            return NoNodeError(f"ZooKeeper has no node {subject}.")
        case kazoo_errors.NodeExistsError():
            return NodeExistsError(f"ZooKeeper has a node {subject} already.")
        case kazoo_errors.BadVersionError():
            return VersionConflictError(f"{subject} in ZooKeeper has changed meanwhile.")
        case _:
            what = str(error) or type(error).__name__
            return ZooKeeperUnavailableError(f"ZooKeeper gave no answer about {subject}: {what}.")
