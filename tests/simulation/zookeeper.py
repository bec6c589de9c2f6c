"""A ZooKeeper of the simulated world: an ensemble in memory, and the part of kazoo's client that the product calls.

``Ensemble`` has a leader and followers. The leader decides on all writes and ends sessions. Each server applies the
writes in order, some time after the leader, and answers reads from what it has applied; ``sync`` waits until the server
has applied all that the leader had. A client's requests are answered in order, and a watch arrives before a response
that shows its change (ZooKeeper's guarantees). Every half tick followers report to the leader which sessions were
active.

Faults: ``cut`` blocks one or both directions of a client; ``isolate`` separates a server, which continues to answer
reads
until it notices; ``stop`` ends the ensemble's quorum, and ``elect`` replaces its leader; ``lost_answers`` is the share
of
responses that are lost after the request was done; ``end_client`` ends a client's thread. Requests that a killed
process
has sent are still done, and its session ends when it times out.
"""

import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from typing import Any

from kazoo import exceptions as errors
from kazoo.client import KazooState

from tests.simulation.loop import PROCESS, PlayedProcess, SimulatedLoop
from tests.simulation.pipe import Pipe

TICK_S = 1.0
#: An isolated server notices that after about this many seconds, and ends its connections.
_NOTICES_S = 4.0
_SERVERS = 3
#: Mean seconds until kazoo's threads see a completed request, a watch or a state.
_SEEN_S = 0.0001
#: Seconds between two attempts to connect (least, most).
_RECONNECT_S = (0.05, 0.4)
#: Mean seconds that a write takes to reach a server.
_SPREAD_S = 0.0005
_SLOW_SPREAD_S = 0.3
_SLOW_SPREADS = 0.01
#: Rare watches arrive up to this many seconds later than usual.
_LATE_WATCH_S = 0.2
_LATE_WATCHES = 0.02


@dataclass(frozen=True, slots=True)
class _Node:
    """A node, which is also its stat."""

    data: bytes
    version: int
    czxid: int
    mzxid: int
    ephemeralOwner: int  # noqa: N815 - ZooKeeper's name


#: The changes of a write: paths with their new nodes, or None for deleted nodes.
_Changes = Sequence[tuple[str, _Node | None]]


@dataclass(slots=True)
class _Session:
    id: int
    #: The name of its client's node.
    name: str
    timeout_s: float
    expires_at: float = 0.0
    #: The current connection.
    connection: "_Connection | None" = None


class _Tree:
    def __init__(self) -> None:
        self.nodes: dict[str, _Node] = {"/": _Node(b"", 0, 0, 0, 0)}
        self.children: dict[str, dict[str, None]] = {"/": {}}
        self.zxid = 0

    def apply(self, zxid: int, changes: _Changes) -> None:
        self.zxid = zxid
        for path, node in changes:
            parent, name = _split(path)
            if node is not None:
                self.nodes[path] = node
                self.children.setdefault(path, {})
                if path != "/":
                    self.children[parent][name] = None
            elif self.nodes.pop(path, None) is not None:
                del self.children[path], self.children[parent][name]


class _Multi:
    """The operations of one write; each sees the result of those before it."""

    def __init__(self, tree: _Tree, zxid: int, session_id: int) -> None:
        self.changes: dict[str, _Node | None] = {}
        self._tree, self._zxid, self._session_id = tree, zxid, session_id

    def add(self, kind: str, path: str, *rest: Any) -> Any:
        """Return the result of one operation. Raises ZooKeeper's error if it is refused."""
        found = self._node_at(path)
        if kind == "create":
            parent = self._node_at(_split(path)[0])
            if parent is None:
                raise errors.NoNodeError
            if parent.ephemeralOwner:
                raise errors.NoChildrenForEphemeralsError
            if found is not None:
                raise errors.NodeExistsError
            data, ephemeral = rest
            made = self.changes[path] = _Node(data, 0, self._zxid, self._zxid, self._session_id if ephemeral else 0)
            return path, made
        if found is None:
            raise errors.NoNodeError
        if rest[-1] not in {-1, found.version}:
            raise errors.BadVersionError
        if kind == "set":
            written = replace(found, data=rest[0], version=found.version + 1, mzxid=self._zxid)
            self.changes[path] = written
            return written
        if kind == "delete":
            if self._has_children(path):
                raise errors.NotEmptyError
            self.changes[path] = None
        return True

    def _node_at(self, path: str) -> _Node | None:
        return self.changes[path] if path in self.changes else self._tree.nodes.get(path)

    def _has_children(self, path: str) -> bool:
        below = [f"{path}/{name}" for name in self._tree.children.get(path, ())]
        below += [one for one in self.changes if _split(one)[0] == path]
        return any(self._node_at(one) is not None for one in below)


class _Server:
    """A server: what it has applied, and the watches of the clients that are connected to it."""

    def __init__(self, number: int, ensemble: "Ensemble") -> None:
        self.number = number
        self.tree = _Tree()
        self.is_isolated = False
        self.connections: dict[_Connection, None] = {}
        #: Sessions with requests since the last report to the leader.
        self.heard: dict[int, None] = {}
        self._ensemble = ensemble
        self._data_watches: dict[str, dict[_Connection, None]] = {}
        self._child_watches: dict[str, dict[_Connection, None]] = {}
        self._unapplied: deque[tuple[int, _Changes]] = deque()
        self._applies_at = 0.0
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    def spread(self, zxid: int, changes: _Changes) -> None:
        """Take a write from the leader, and apply it after a while."""
        self._unapplied.append((zxid, changes))
        if not self.is_isolated:
            self._apply_later()

    def _apply_later(self) -> None:
        self._applies_at = max(self._applies_at, self._ensemble.loop.time()) + self._ensemble.spread_s()
        self._ensemble.later(self._applies_at, self._apply_next)

    def _apply_next(self) -> None:
        if self.is_isolated or not self._unapplied:
            return
        zxid, changes = self._unapplied.popleft()
        was_there = [path in self.tree.nodes for path, _ in changes]
        self.tree.apply(zxid, changes)
        for there, (path, node) in zip(was_there, changes, strict=True):
            self._fire(path, there, node)
        due = [told for at, told in self._waiting if at <= zxid]
        self._waiting = [(at, told) for at, told in self._waiting if at > zxid]
        for told in due:
            told()

    def catch_up(self) -> None:
        """Apply all writes at once, when the server was isolated or the ensemble starts again."""
        self.is_isolated = False
        while self._unapplied:
            self._apply_next()

    def when_applied(self, zxid: int, told: Callable[[], None]) -> None:
        if self.tree.zxid >= zxid:
            told()
        else:
            self._waiting.append((zxid, told))

    def forget(self, connection: "_Connection") -> None:
        self.connections.pop(connection, None)
        for watches in (self._data_watches, self._child_watches):
            for watching in watches.values():
                watching.pop(connection, None)

    # ---- watches ----------------------------------------------------------------------------------------------------

    def watch_data(self, path: str, connection: "_Connection") -> None:
        self._data_watches.setdefault(path, {})[connection] = None

    def watch_children(self, path: str, connection: "_Connection") -> None:
        self._child_watches.setdefault(path, {})[connection] = None

    def _fire(self, path: str, was_there: bool, node: _Node | None) -> None:
        data = self._data_watches.pop(path, {})
        children = self._child_watches.pop(path, {}) if node is None else {}
        for connection in data:
            connection.tell_watch(path, of_children=False)
        for connection in children:
            connection.tell_watch(path, of_children=True)
        if was_there != (node is not None):
            parent, _ = _split(path)
            for connection in self._child_watches.pop(parent, {}):
                connection.tell_watch(parent, of_children=True)


class Ensemble:
    """A ZooKeeper ensemble. ``note`` is called for each write and each beginning or end of a session."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, note: Callable[..., None]) -> None:
        self.loop, self.rng, self.note = loop, rng, note
        #: The share of requests whose connection breaks after they are done.
        self.lost_answers = 0.0
        self.is_up = True
        self._tree = _Tree()
        self.servers = [_Server(number, self) for number in range(_SERVERS)]
        self._leader = self.servers[0]
        self._sessions: dict[int, _Session] = {}
        self._session_ids = itertools.count(1)
        self._zxid = 0
        #: The blocked directions: the name of a node, and True for its way to the ensemble.
        self._cuts: set[tuple[str, bool]] = set()
        self._clients: dict[PlayedClient, None] = {}
        #: The context of code that belongs to no process.
        self.context = Context()
        self._ticking = False

    # ---- clients ----------------------------------------------------------------------------------------------------

    def client_of(self, name: str) -> Callable[..., "PlayedClient"]:
        """Return a function that makes clients of the node ``name`` (``logstore.cluster.kazoo_client.MakeClient``)."""

        def make(
            servers: str, session_timeout_s: float, granted: Callable[[float], None], ended: Callable[[], None]
        ) -> PlayedClient:
            client = PlayedClient(self, name, servers, session_timeout_s, granted, ended)
            self._clients = {one: None for one in (*self._clients, client) if not one.is_dead}
            return client

        return make

    def sessions_of(self, name: str) -> list[int]:
        return [session.id for session in self._sessions.values() if session.name == name]

    # ---- faults -----------------------------------------------------------------------------------------------------

    def cut(self, name: str, *, requests: bool = True, answers: bool = True) -> None:
        """Block the chosen directions between the node and the ensemble."""
        self._cuts.update((name, way) for way, chosen in ((True, requests), (False, answers)) if chosen)

    def heal(self) -> None:
        """End all cuts, isolations and outages."""
        self._cuts.clear()
        for server in self.servers:
            if server.is_isolated:
                server.catch_up()
        for client in list(self._clients):
            if client.connection is not None:
                client.connection.resume()
        if not self.is_up:
            self.start()

    def is_cut(self, name: str, *, to_ensemble: bool) -> bool:
        return (name, to_ensemble) in self._cuts

    def drop_connections(self, name: str) -> None:
        """Break the connections of a node; its sessions continue."""
        for client in list(self._clients):
            if client.name == name and client.connection is not None:
                client.connection.broken()

    def expire(self, name: str) -> None:
        """End the sessions of a node now."""
        for session_id in self.sessions_of(name):
            self._end_session(session_id, "expired")

    def end_client(self, name: str) -> None:
        """End the threads of the node's clients, as a response that kazoo does not expect does."""
        for client in list(self._clients):
            if client.name == name:
                client.end_thread()

    def isolate(self, number: int) -> None:
        """Cut a server off from the leader: it still answers reads, but reports no sessions and does no writes."""
        server = self.servers[number]
        if server is self._leader or server.is_isolated:
            return
        server.is_isolated = True
        self.later(self.loop.time() + self.rng.uniform(0.5, 1.5) * _NOTICES_S, lambda: self._noticed(server))

    def _noticed(self, server: _Server) -> None:
        if server.is_isolated:
            for connection in list(server.connections):
                connection.broken()

    def stop(self) -> None:
        """End the quorum: all connections break, and no session ends."""
        self.is_up = False
        for server in self.servers:
            for connection in list(server.connections):
                connection.broken()

    def start(self) -> None:
        """Restore the quorum with a leader; the timeouts of all sessions begin again."""
        self.is_up = True
        self._leader = self.rng.choice(self.servers)
        self._leader.catch_up()
        for session in self._sessions.values():
            self._touch(session)

    def elect(self) -> None:
        """Elect a leader at once."""
        self.stop()
        self.start()

    # ---- time -------------------------------------------------------------------------------------------------------

    def later(self, when: float, work: Callable[[], None]) -> None:
        self.loop.call_at(when, work, context=self.context)

    def spread_s(self) -> float:
        if self.rng.random() < _SLOW_SPREADS:
            return self.rng.uniform(0, _SLOW_SPREAD_S)
        return self.rng.expovariate(1 / _SPREAD_S)

    def pipe(self, name: str, context: Context, *, to_ensemble: bool) -> Pipe:
        return Pipe(self.loop, self.rng, lambda: self.is_cut(name, to_ensemble=to_ensemble), context)

    # ---- sessions ---------------------------------------------------------------------------------------------------

    def granted_s(self, asked_s: float) -> float:
        return min(max(asked_s, 2 * TICK_S), 20 * TICK_S)

    def attach(self, connection: "_Connection", session_id: int, asked_s: float) -> "_Session | None":
        """Attach a connection to its session, or to a new one for the id 0. Return None if the session has ended."""
        if session_id == 0:
            session = _Session(next(self._session_ids), connection.client.name, self.granted_s(asked_s))
            self._sessions[session.id] = session
            self._touch(session)
            self._wait_for_end(session)
            self.note("zookeeper", "session", session.id, connection.client.name)
        elif (found := self._sessions.get(session_id)) is None:
            return None
        else:
            session = found
            self._touch(session)
        if session.connection is not None and session.connection is not connection:
            session.connection.broken()
        session.connection = connection
        return session

    def heard(self, server: _Server, session_id: int) -> None:
        """Note that a client has sent a request to a server."""
        if server is self._leader:
            if (session := self._sessions.get(session_id)) is not None:
                self._touch(session)
            return
        server.heard[session_id] = None
        if not self._ticking:
            self._ticking = True
            self.later(self.loop.time() + TICK_S / 2, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        for server in self.servers:
            if server.is_isolated or not self.is_up:
                server.heard.clear()
                continue
            for session_id in server.heard:
                if (session := self._sessions.get(session_id)) is not None:
                    self._touch(session)
            server.heard.clear()

    def _touch(self, session: _Session) -> None:
        session.expires_at = (math.floor((self.loop.time() + session.timeout_s) / TICK_S) + 1) * TICK_S

    def _wait_for_end(self, session: _Session) -> None:
        if session.id not in self._sessions:
            return
        if self.loop.time() >= session.expires_at and self.is_up:
            self._end_session(session.id, "expired")
            return
        self.later(max(session.expires_at, self.loop.time() + TICK_S / 10), lambda: self._wait_for_end(session))

    def _end_session(self, session_id: int, why: str) -> int:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return self._zxid
        self.note("zookeeper", why, session_id)
        gone = [path for path, node in self._tree.nodes.items() if node.ephemeralOwner == session_id]
        self._commit([(path, None) for path in gone])
        if session.connection is not None and why == "expired":
            session.connection.broken()
        return self._zxid

    # ---- writes -----------------------------------------------------------------------------------------------------

    def write(self, connection: "_Connection", operations: Sequence[tuple[Any, ...]]) -> tuple[list[Any], int]:
        """Decide on a write at the leader. Return the result of each operation, or the errors, and the zxid after it.

        Raises SessionExpiredError and SessionMovedError.
        """
        session = self._sessions.get(connection.session_id)
        if session is None:
            raise errors.SessionExpiredError
        if session.connection is not connection:
            raise errors.SessionMovedError
        done = _Multi(self._tree, self._zxid + 1, session.id)
        results: list[Any] = []
        for at, operation in enumerate(operations):
            try:
                results.append(done.add(*operation))
            except errors.ZookeeperError as error:
                before: list[Any] = [errors.RolledBackError() for _ in range(at)]
                behind = [errors.RuntimeInconsistency() for _ in range(len(operations) - at - 1)]
                return [*before, error, *behind], self._zxid
        self.note("zookeeper", connection.client.name, [(kind, path) for kind, path, *_ in operations])
        self._commit(list(done.changes.items()))
        return results, self._zxid

    def _commit(self, changes: _Changes) -> None:
        self._zxid += 1
        self._tree.apply(self._zxid, changes)
        for server in self.servers:
            server.spread(self._zxid, changes)

    @property
    def zxid(self) -> int:
        return self._zxid

    def close_session(self, session_id: int) -> int:
        return self._end_session(session_id, "closed")


class _Connection:
    """A client's connection to a server: two pipes, and the requests that the server has not answered yet."""

    def __init__(self, client: "PlayedClient", server: _Server) -> None:
        self.client, self.server = client, server
        self.session_id = 0
        self._ensemble = ensemble = client.ensemble
        self._to_server = ensemble.pipe(client.name, ensemble.context, to_ensemble=True)
        self._to_client = ensemble.pipe(client.name, client.context, to_ensemble=False)
        #: The unanswered requests in order; the first is being done.
        self._requests: deque[Callable[[], None]] = deque()
        self._is_broken = False

    # ---- the client's end -------------------------------------------------------------------------------------------

    def send(self, request: Callable[[], None]) -> None:
        self._to_server.send(lambda: self._come(request))

    def resume(self) -> None:
        self._to_server.resume()
        self._to_client.resume()

    def leave(self, session_id: int) -> None:
        """Close the connection and the session of this id; what was sent before may still arrive, completely or in
        part.
        """

        def left() -> None:
            if session_id and not self._is_broken:
                self._ensemble.close_session(session_id)
            self.broken()

        if not session_id:
            self._to_server.lose_rest()
        self._to_server.send(left)

    # ---- the server's end -------------------------------------------------------------------------------------------

    def broken(self) -> None:
        """Break the connection: what has not arrived is lost, and the client notices if it can."""
        if self._is_broken:
            return
        self._is_broken = True
        self._to_server.close()
        self._requests.clear()
        self.server.forget(self)
        self._to_client.lose_rest()
        self._to_client.send(lambda: self.client.lost(self))

    def _come(self, request: Callable[[], None]) -> None:
        if self._is_broken:
            return
        self._ensemble.heard(self.server, self.session_id)
        self._requests.append(request)
        if len(self._requests) == 1:
            request()

    def answer(self, arrive: Callable[[], None]) -> None:
        """Answer the first request, and do the next one."""
        if self._is_broken:
            return
        if self._ensemble.rng.random() < self._ensemble.lost_answers:
            self.broken()
            return
        self._to_client.send(arrive)
        self._requests.popleft()
        if self._requests:
            self._requests[0]()

    def tell_watch(self, path: str, *, of_children: bool) -> None:
        if not self._is_broken:
            late_s = _LATE_WATCH_S if self._ensemble.rng.random() < _LATE_WATCHES else 0.0
            self._to_client.send(lambda: self.client.watch_fired(path, of_children=of_children), late_s=late_s)

    def shake(self) -> None:
        """Connect the client at the server, when its request to connect arrives."""
        ensemble, client, server = self._ensemble, self.client, self.server
        if not ensemble.is_up or server.is_isolated or server.tree.zxid < client.last_zxid:
            self._to_client.send(lambda: client.lost(self))
            return
        # The leader knows a new session at once; a server answers when the leader has begun the session.
        session = ensemble.attach(self, client.session_id, client.asked_s)
        if session is None:
            self._to_client.send(lambda: client.expired(self))
            return
        self.session_id = session.id
        server.connections[self] = None
        granted_s = session.timeout_s
        self._to_client.send(lambda: client.connected(self, self.session_id, granted_s))

    def knock(self) -> None:
        self._to_server.send(self.shake)

    # ---- requests, at the server ------------------------------------------------------------------------------------

    def read(self, result: "Result", work: Callable[[], Any]) -> None:
        value: Any
        try:
            value = work()
        except errors.ZookeeperError as error:
            value = error
        zxid = self.server.tree.zxid
        self.answer(lambda: self.client.answered(result, value, zxid))

    def ask_leader(self, result: "Result", decide: Callable[[], tuple[Any, int]]) -> None:
        """Let the leader decide, and answer when this server has applied the outcome."""
        ensemble, server = self._ensemble, self.server

        def at_leader() -> None:
            if not ensemble.is_up or server.is_isolated:
                return  # the request never arrives, and the connection ends when the server notices its isolation
            value, zxid = decide()
            server.when_applied(zxid, lambda: self.answer(lambda: self.client.answered(result, value, zxid)))

        if server.is_isolated:
            return
        ensemble.later(ensemble.loop.time() + ensemble.spread_s(), at_leader)


class Result:
    """The result of a request (``kazoo.interfaces.IAsyncResult``)."""

    def __init__(self, client: "PlayedClient", remember: Callable[[], None] | None = None) -> None:
        """Make a result; ``remember`` is called when it arrives without an error."""
        self.value: Any = None
        self.exception: BaseException | None = None
        self._client = client
        self._remember = remember
        self._is_ready = False
        self._linked: list[Callable[[Result], None]] = []

    def rawlink(self, callback: Callable[["Result"], None]) -> None:
        if self._is_ready:
            self._client.dispatch("completions", callback, self)
        else:
            self._linked.append(callback)

    def settle(self, value: Any) -> None:
        if self._is_ready:
            return
        self._is_ready = True
        if isinstance(value, BaseException):
            self.exception = value
        else:
            self.value = value
            if self._remember is not None:
                self._remember()
        for callback in self._linked:
            self._client.dispatch("completions", callback, self)


class _Transaction:
    def __init__(self, client: "PlayedClient") -> None:
        self._client = client
        self._operations: list[tuple[Any, ...]] = []

    def check(self, path: str, version: int) -> None:
        self._operations.append(("check", self._client.path(path), version))

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        self._operations.append(("create", self._client.path(path), data, ephemeral))

    def set_data(self, path: str, data: bytes, version: int) -> None:
        self._operations.append(("set", self._client.path(path), data, version))

    def delete(self, path: str, version: int) -> None:
        self._operations.append(("delete", self._client.path(path), version))

    def commit_async(self) -> Result:
        return self._client.write(self._operations, lambda results: results)


@dataclass(slots=True)
class _Watchers:
    """The watchers of a client; unlike kazoo's sets they keep the order in which watches were set."""

    data: dict[str, dict[Callable[[object], None], None]] = field(default_factory=dict)
    children: dict[str, dict[Callable[[object], None], None]] = field(default_factory=dict)


class PlayedClient:
    """``kazoo.client.KazooClient``, as far as ``logstore.cluster.zookeeper`` calls it."""

    def __init__(
        self,
        ensemble: Ensemble,
        name: str,
        servers: str,
        session_timeout_s: float,
        granted: Callable[[float], None],
        ended: Callable[[], None],
    ) -> None:
        _, slash, chroot = servers.partition("/")
        self.ensemble, self.name, self.asked_s = ensemble, name, session_timeout_s
        self.session_id = 0
        self.last_zxid = 0
        self.context = copy_context()
        self.connection: _Connection | None = None
        self._process: PlayedProcess | None = PROCESS.get()
        self._loop, self._rng = ensemble.loop, ensemble.rng
        self._chroot = slash + chroot
        self._timeout_s = session_timeout_s
        self._granted, self._ended = granted, ended
        self._listeners: list[Callable[[str], None]] = []
        self._state: str = KazooState.LOST
        self._is_running = False
        #: True if the connection has a session; otherwise requests wait for the next connection.
        self._is_live = False
        self._queue: list[tuple[Result, Callable[[_Connection], None]]] = []
        self._pending: dict[Result, None] = {}
        self._watchers = _Watchers()
        self._seen_at = {"completions": 0.0, "watches": 0.0, "states": 0.0}
        self._ping_outstanding = False
        self._life = 0

    def path(self, path: str) -> str:
        return self._chroot + path if path != "/" or not self._chroot else self._chroot

    @property
    def is_dead(self) -> bool:
        return self._process is not None and self._process.is_dead

    # ---- kazoo's ----------------------------------------------------------------------------------------------------

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        return (self.session_id, b"") if self._is_live else None

    def add_listener(self, listener: Callable[[str], None]) -> None:
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[str], None]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def start_async(self) -> None:
        if not self._is_running and not self.is_dead:
            self._is_running = True
            self._connect()

    def stop(self) -> None:
        if not self._is_running or self.is_dead:
            return
        self._end(self.session_id)

    def close(self) -> None: ...

    def get_async(self, path: str, watch: Callable[[object], None] | None = None) -> Result:
        full = self.path(path)

        def read(connection: _Connection) -> Any:
            node = _found(connection.server.tree, full)
            if watch is not None:
                connection.server.watch_data(full, connection)
            return node.data, node

        return self._read(read, full, watch)

    def exists_async(self, path: str, watch: Callable[[object], None] | None = None) -> Result:
        full = self.path(path)

        def read(connection: _Connection) -> Any:
            if watch is not None:
                connection.server.watch_data(full, connection)
            return connection.server.tree.nodes.get(full)

        return self._read(read, full, watch)

    def get_children_async(
        self, path: str, watch: Callable[[object], None] | None = None, *, include_data: bool = False
    ) -> Result:
        full = self.path(path)
        assert include_data

        def read(connection: _Connection) -> Any:
            node = _found(connection.server.tree, full)
            if watch is not None:
                connection.server.watch_children(full, connection)
            names = list(connection.server.tree.children[full])
            self._rng.shuffle(names)  # ZooKeeper returns them in no particular order
            return names, node

        return self._read(read, full, watch, of_children=True)

    def sync_async(self, path: str) -> Result:
        result = Result(self)
        ensemble = self.ensemble
        self._ask(result, lambda connection: connection.ask_leader(result, lambda: (path, ensemble.zxid)))
        return result

    def create_async(
        self, path: str, data: bytes, acl: None = None, ephemeral: bool = False, *, include_data: bool = False
    ) -> Result:
        assert acl is None
        assert include_data
        return self.write([("create", self.path(path), data, ephemeral)], _first)

    def set_async(self, path: str, data: bytes, version: int = -1) -> Result:
        return self.write([("set", self.path(path), data, version)], _first)

    def delete_async(self, path: str, version: int = -1) -> Result:
        return self.write([("delete", self.path(path), version)], _first)

    def transaction(self) -> _Transaction:
        return _Transaction(self)

    # ---- requests ---------------------------------------------------------------------------------------------------

    def write(self, operations: Sequence[tuple[Any, ...]], told: Callable[[list[Any]], Any]) -> Result:
        result = Result(self)

        def ask(connection: _Connection) -> None:
            def decide() -> tuple[Any, int]:
                try:
                    results, zxid = self.ensemble.write(connection, operations)
                except errors.ZookeeperError as error:
                    return error, self.ensemble.zxid
                return told(results), zxid

            connection.ask_leader(result, decide)

        self._ask(result, ask)
        return result

    def _read(
        self,
        read: Callable[[_Connection], Any],
        path: str,
        watch: Callable[[object], None] | None,
        *,
        of_children: bool = False,
    ) -> Result:
        def remember() -> None:
            if watch is not None:
                watchers = self._watchers.children if of_children else self._watchers.data
                watchers.setdefault(path, {})[watch] = None

        result = Result(self, remember)
        self._ask(result, lambda connection: connection.read(result, lambda: read(connection)))
        return result

    def _ask(self, result: Result, ask: Callable[[_Connection], None]) -> None:
        if not self._is_running:
            result.settle(errors.ConnectionClosedError())
        elif self._is_live and self.connection is not None:
            self._send(self.connection, result, ask)
        else:
            self._queue.append((result, ask))

    def _send(self, connection: _Connection, result: Result, ask: Callable[[_Connection], None]) -> None:
        self._pending[result] = None
        connection.send(lambda: ask(connection))

    def answered(self, result: Result, value: Any, zxid: int) -> None:
        """Receive a response from the server."""
        if result in self._pending and not self.is_dead:
            del self._pending[result]
            self.last_zxid = max(self.last_zxid, zxid)
            result.settle(value)

    # ---- the connection ---------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        if self.is_dead or not self._is_running:
            return
        self._life += 1
        life = self._life
        connection = self.connection = _Connection(self, self._rng.choice(self.ensemble.servers))
        connection.knock()
        self._later(self._timeout_s / 3, lambda: self._give_up(connection, life))

    def _give_up(self, connection: _Connection, life: int) -> None:
        if self._life == life and not self._is_live:
            self.lost(connection)

    def connected(self, connection: _Connection, session_id: int, granted_s: float) -> None:
        if connection is not self.connection or self.is_dead:
            return
        self.session_id, self._timeout_s, self._is_live = session_id, granted_s, True
        self._granted(granted_s)
        self._tell(KazooState.CONNECTED)
        self._ping_outstanding = False
        life = self._life
        self._later(granted_s / 3, lambda: self._beat(connection, life))
        queue, self._queue = self._queue, []
        for result, ask in queue:
            self._send(connection, result, ask)

    def _beat(self, connection: _Connection, life: int) -> None:
        """Ping; a ping without a response ends the connection."""
        if self._life != life or not self._is_live:
            return
        if self._ping_outstanding:
            self.lost(connection)
            return
        self._ping_outstanding = True
        connection.send(lambda: connection.answer(self._pinged))
        self._later(self._timeout_s / 3, lambda: self._beat(connection, life))

    def _pinged(self) -> None:
        self._ping_outstanding = False

    def lost(self, connection: _Connection) -> None:
        """Handle a broken connection, or a failed attempt to connect."""
        if connection is not self.connection or self.is_dead:
            return
        was_live, self._is_live = self._is_live, False
        self.connection = None
        self._life += 1
        connection.leave(0)
        if was_live:
            self._fail_all(errors.ConnectionLoss())
            self._tell(KazooState.SUSPENDED)
            self._reset_watchers()
        self._later(self._rng.uniform(*_RECONNECT_S), self._connect)

    def expired(self, connection: _Connection) -> None:
        """Handle the end of the session to which the client wanted to return."""
        if connection is not self.connection or self.is_dead:
            return
        self.connection, self._is_live = None, False
        self._life += 1
        self._tell(KazooState.LOST)
        self._fail_all(errors.SessionExpiredError())
        self._reset_watchers()
        self.session_id = self.last_zxid = 0
        self._later(self._rng.uniform(*_RECONNECT_S), self._connect)

    def end_thread(self) -> None:
        if self._is_running and not self.is_dead:
            self._end(0)

    def _end(self, session_id: int) -> None:
        """End the thread, and the session of this id."""
        connection = self.connection
        self._is_running = self._is_live = False
        self.connection = None
        self._life += 1
        self._tell(KazooState.LOST)
        self._fail_all(errors.ConnectionClosedError())
        self._reset_watchers()
        self.session_id = self.last_zxid = 0
        self._later(0.0, self._ended)
        if connection is not None:
            connection.leave(session_id)

    def _fail_all(self, error: BaseException) -> None:
        pending, self._pending = self._pending, {}
        queue, self._queue = self._queue, []
        for result in itertools.chain(pending, (one for one, _ in queue)):
            result.settle(error)

    # ---- watches and states -----------------------------------------------------------------------------------------

    def watch_fired(self, path: str, *, of_children: bool) -> None:
        watchers = self._watchers.children if of_children else self._watchers.data
        self._call_watchers(watchers.pop(path, {}))

    def _reset_watchers(self) -> None:
        watchers, self._watchers = self._watchers, _Watchers()
        for watching in (*watchers.children.values(), *watchers.data.values()):
            self._call_watchers(watching)

    def _call_watchers(self, watching: Iterable[Callable[[object], None]]) -> None:
        for watch in watching:
            self.dispatch("watches", watch, None)

    def _tell(self, state: str) -> None:
        if state == self._state:
            return
        self._state = state
        for listener in list(self._listeners):
            listener(state)  # kazoo's own thread calls it, and waits for it

    def dispatch(self, thread: str, callback: Callable[..., object], *args: Any) -> None:
        """Call ``callback`` in one of kazoo's threads, which keeps the order of its calls."""
        when = max(self._seen_at[thread] + 1e-8, self._loop.time() + self._rng.expovariate(1 / _SEEN_S))
        self._seen_at[thread] = when
        self._loop.call_at(when, self._alive, callback, *args, context=self.context)

    def _later(self, seconds: float, work: Callable[[], None]) -> None:
        self._loop.call_later(seconds, self._alive, work, context=self.context)

    def _alive(self, work: Callable[..., object], *args: Any) -> None:
        if not self.is_dead:
            work(*args)


def _found(tree: _Tree, path: str) -> _Node:
    node = tree.nodes.get(path)
    if node is None:
        raise errors.NoNodeError
    return node


def _first(results: list[Any]) -> Any:
    return results[0]


def _split(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition("/")
    return parent or "/", name
