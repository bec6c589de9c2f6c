"""The node: the parts of a store, put together and run from the sockets to the last response.

With ``zookeeper.connect`` it is a broker of a cluster: it registers with the addresses of its sockets, and before it
stops it hands its partitions to other leaders (``controlled.shutdown.enable``). Only then is any ZooKeeper code
imported.

The parts from the bottom up: settings, cluster state, broker, consumer groups, listeners. The socket comes first (a
busy port touches no data) and responds from then on; ``listening on`` is printed when the store is ready. SIGTERM and
SIGINT end the node from the top down: requests in flight finish, the broker seals its records, and the process ends
with 0. Jobs, if wanted, run in a separate process from the announcement until the store begins to stop.
"""

import asyncio
import contextlib
import functools
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import structlog
import uvloop

from consumer_offsets.group_coordinator import GroupCoordinator
from ingest_api.allowed_hosts import is_loopback
from ingest_api.http_listener import HttpListener
from logstore.background_jobs import background_jobs
from logstore.broker.authorizer import Authorizer
from logstore.broker.broker import Broker
from logstore.broker.opened_journal import OpenedJournal
from logstore.broker.quotas import Quotas
from logstore.clock import Clock, SystemClock
from logstore.cluster.cluster_state import ClusterState
from logstore.cluster.embedded_cluster_state import EmbeddedClusterState
from logstore.endpoint_file import ENDPOINT_FILE, Endpoint
from logstore.errors import InvalidConfigError, LogStoreError
from logstore.filesystem import FileSystem, local_filesystem
from logstore.kafka_listener.listener import KafkaListener
from logstore.kafka_listener.store import KafkaStore
from logstore.limits import RECENT_FRAMES_BYTES
from logstore.listening_sockets import SocketBuffers, bound_socket, listening_socket, shared_socket, url_of
from logstore.observability import configure_logging
from logstore.settings import Settings, address_of

if TYPE_CHECKING:
    from logstore.cluster.kazoo_client import MakeClient
    from logstore.cluster_member import ClusterMember
    from logstore.replication.peer_network import PeerNetwork
    from logstore.tls.contexts import Tls

log = structlog.stdlib.get_logger(__name__)

#: The time for handing partitions to other leaders at a stop. Supervisors lose patience after ten seconds.
_HAND_OVER_S = 5.0
_HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Store:
    """The parts of a store that listeners use."""

    cluster_state: ClusterState
    broker: Broker
    groups: GroupCoordinator
    #: The broker's membership in a cluster; None on one node.
    member: "ClusterMember | None" = None


@contextlib.asynccontextmanager
async def running_store(
    settings: Settings,
    authorizer: Authorizer,
    quotas: Quotas,
    *,
    url: str = "",
    kafka: str | None = None,
    clock: Clock | None = None,
    filesystem: FileSystem | None = None,
    network: "PeerNetwork | None" = None,
    zookeeper: "MakeClient | None" = None,
    tls: "Tls | None" = None,
    new_journal: bool = False,
) -> AsyncIterator[Store]:
    """Run a store without listeners, for as long as the block lasts.

    ``authorizer`` decides which principal may do what in the store, ``quotas`` how much. ``url``, ``kafka``: the
    addresses of a broker of a cluster for clients, over HTTP and with Kafka's protocol (host:port). ``network``
    connects it to other brokers (else the machine's does, with ``tls`` if the settings want that), and ``zookeeper``
    makes its ZooKeeper client. ``new_journal``: see ``EmbeddedClusterState``. Raises the errors of
    ``ClusterState.start``, ``Broker.start`` and ``GroupCoordinator.start``, and InvalidConfigError without the packages
    that a cluster needs.
    """
    clock = clock or SystemClock()
    filesystem = filesystem or local_filesystem()
    async with contextlib.AsyncExitStack() as at_end:
        member: ClusterMember | None = None
        cluster_state: ClusterState
        if settings.zookeeper_connect is None:
            cluster_state = EmbeddedClusterState(settings.data, settings.broker_id, filesystem, new_journal=new_journal)
        else:
            if new_journal:
                raise InvalidConfigError(
                    "--new-journal is for a store of one node: a broker of a cluster whose journal is gone leaves its "
                    "ISRs by itself, and copies its partitions from their leaders."
                )
            member = _cluster_member(settings, filesystem, clock, url, kafka, network, zookeeper, tls)
            cluster_state = member.cluster_state
            await member.start()
            at_end.push_async_callback(member.stop)
        opened = OpenedJournal(settings, filesystem, clock, recent_bytes=0 if member is None else RECENT_FRAMES_BYTES)
        at_end.callback(opened.release)  # a start may fail between the two
        await cluster_state.start(opened.read)
        at_end.push_async_callback(cluster_state.stop)
        broker = await Broker.start(
            settings,
            cluster_state,
            opened,
            authorizer,
            quotas,
            clock=clock,
            filesystem=filesystem,
            links=None if member is None else member.links,
        )
        at_end.push_async_callback(broker.stop)
        groups = await at_end.enter_async_context(GroupCoordinator.running(broker, clock=clock))
        yield Store(cluster_state, broker, groups, member)


def _cluster_member(
    settings: Settings,
    filesystem: FileSystem,
    clock: Clock | None,
    url: str,
    kafka: str | None,
    network: "PeerNetwork | None",
    zookeeper: "MakeClient | None",
    tls: "Tls | None",
) -> "ClusterMember":
    try:
        from logstore.cluster_member import ClusterMember
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "kazoo":
            raise
        raise InvalidConfigError(
            "zookeeper.connect needs the package kazoo: pip install 'delta-logstore[cluster]'"
        ) from None
    if network is None:
        from logstore.replication.peer_network import PeerNetwork

        network = PeerNetwork(tls if settings.peers_are_tls else None)
    return ClusterMember(settings, filesystem, clock, url, kafka, network, zookeeper)


def serve(settings: Settings, shared_port: int | None = None, *, new_journal: bool = False) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code of the process.

    ``shared_port`` is one more port to listen on, once the store is ready, beside other brokers of this machine.
    ``new_journal``: continue with a journal that is not the previous one of this directory. Returns 1 with one line on
    stderr if the port is taken or the data directory cannot be used.
    """
    configure_logging(settings.log_level, settings.log_format)
    if settings.log_level != "debug":
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    try:
        tls = _tls(settings)
        listening = listening_socket(settings.host, settings.port, buffers=_socket_buffers(settings))
    except LogStoreError as error:
        return _fail(f"cannot listen: {error.message}")
    except OSError as error:
        reason = error.strerror or str(error)
        return _fail(
            f"cannot listen on {settings.host}:{settings.port}: {reason}; choose another port (make run PORT=8083, or "
            "logstore serve --port 8083; 0 takes a free one)"
        )
    try:
        kafka = _kafka_socket(settings)
    except OSError as error:
        listening.close()
        return _fail(
            f"cannot listen on {settings.kafka_listeners} for Kafka's clients: {error.strerror or error}; choose "
            "another port (make run KAFKA_PORT=9093, or logstore serve --kafka-port 9093; 0 takes a free one), or none "
            "(LOGSTORE_KAFKA_LISTENERS=)"
        )
    try:
        with (
            listening,
            kafka or contextlib.nullcontext(),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(run(settings, listening, shared_port, kafka, tls, new_journal=new_journal))
    except LogStoreError as error:
        return _fail(f"cannot start: {error.message}")
    except OSError as error:
        is_file = settings.data.exists() and not settings.data.is_dir()
        reason = "it is a file, and data has to be a directory" if is_file else error.strerror or str(error)
        return _fail(f"cannot use {settings.data}: {reason}")
    return 0


def _tls(settings: Settings) -> "Tls | None":
    """Return the TLS contexts; None if no listener uses TLS. Raises InvalidConfigError."""
    options = settings.tls_options
    if options is None:
        return None
    # The parser of certificates takes a tenth of the time of a start.
    from logstore.tls.contexts import Tls

    return Tls(options, SystemClock())


def _kafka_socket(settings: Settings) -> socket.socket | None:
    """Return the socket for Kafka's clients; None if turned off. Raises OSError if another process has the port."""
    if settings.kafka_address is None:
        return None
    return bound_socket(*settings.kafka_address, _socket_buffers(settings))


def _fail(line: str) -> int:
    sys.stderr.write(f"{line}\n")
    return 1


async def run(
    settings: Settings,
    listening: socket.socket,
    shared_port: int | None = None,
    kafka: socket.socket | None = None,
    tls: "Tls | None" = None,
    *,
    new_journal: bool = False,
) -> None:
    """Serve on ``listening`` until a signal; once the store is ready also on ``shared_port``, and for Kafka's clients
    on ``kafka``. ``tls`` has the contexts of the listeners that use TLS by the settings.
    """
    hosts = (
        {settings.host}
        if kafka is None or settings.kafka_address is None
        else {settings.host, settings.kafka_address[0]}
    )
    for host in sorted(hosts):
        if not is_loopback(host):
            log.warning(
                "node.open_to_others",
                reason=f"anyone who reaches {host} may read, write and delete everything: there is no authentication",
            )
    advertised = None if kafka is None else settings.kafka_advertised(kafka.getsockname()[1])
    kafka_address = None if advertised is None else address_of(*advertised)
    if (
        advertised is not None
        and settings.zookeeper_connect is not None
        and is_loopback(advertised[0])
        and not is_loopback(settings.host)
    ):
        log.warning(
            "node.kafka_on_loopback",
            address=kafka_address,
            reason="Kafka's clients on other machines get this address of the broker: set kafka.listeners",
        )
    url = url_of(listening, settings.host, is_tls=settings.http_tls)
    authorizer, quotas = Authorizer(), Quotas()
    listener = HttpListener(settings, authorizer, quotas, tls if settings.http_tls else None)
    stop = _Stop(listener)
    with _signals(stop):
        serving = asyncio.create_task(listener.serve(listening))
        # Objects of the start stay for good: the garbage collector need not look at them.
        gc.disable()
        try:
            public_url = url_of(listening, settings.reachable_host, is_tls=settings.http_tls)
            async with (
                _renewed(tls),
                running_store(
                    settings, authorizer, quotas, url=public_url, kafka=kafka_address, tls=tls, new_journal=new_journal
                ) as store,
            ):
                gc.collect()
                gc.freeze()
                gc.enable()
                if store.member is None:
                    listener.open(store.broker, store.groups)
                else:
                    store.member.open(listener, store.broker, store.groups)
                if settings.zookeeper_connect is not None and settings.controlled_shutdown_enable:
                    stop.hand_over = functools.partial(store.cluster_state.hand_over, _HAND_OVER_S)
                try:
                    if not listener.is_stopping:  # not announced if it was asked to stop while it started
                        if shared_port is not None:
                            await listener.serve_too(_shared_socket(settings, shared_port))
                        async with _kafka_clients(settings, store, listener, kafka, advertised, tls):
                            with _announced(settings, url, kafka_address, kafka):
                                async with background_jobs(settings, url) if settings.jobs_enable else nullcontext():
                                    await listener.until_stopping()
                    await serving
                finally:
                    listener.close()
        finally:  # the store could not start
            if not listener.is_stopping:
                listener.stop()
            await serving


@contextlib.asynccontextmanager
async def _kafka_clients(
    settings: Settings,
    store: Store,
    http: HttpListener,
    listening: socket.socket | None,
    advertised: tuple[str, int] | None,
    tls: "Tls | None",
) -> AsyncIterator[None]:
    """Serve Kafka's clients, for as long as the block lasts."""
    if listening is None or advertised is None:
        yield
        return
    kafka_store = KafkaStore(settings, store.broker, store.groups, store.cluster_state, advertised)
    kafka = KafkaListener(kafka_store, lambda: http.connection_count, tls if settings.kafka_is_tls else None)
    http.count_also(lambda: kafka.connection_count)
    await kafka.open(listening)
    try:
        yield
    finally:
        await kafka.stop()


def _socket_buffers(settings: Settings) -> SocketBuffers:
    return SocketBuffers(settings.socket_send_buffer_bytes, settings.socket_receive_buffer_bytes)


def _shared_socket(settings: Settings, port: int) -> socket.socket:
    try:
        return shared_socket(settings.host, port, _socket_buffers(settings))
    except OSError as error:
        raise InvalidConfigError(
            f"port {port} of all brokers on {settings.host} cannot be used: {error.strerror or error}"
        ) from error


class _Stop:
    """Stops the listener. At the first call a broker of a cluster hands over before that, and serves until then."""

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self.hand_over: Callable[[], Coroutine[object, object, bool]] | None = None
        self._handing_over: asyncio.Task[None] | None = None

    def __call__(self) -> None:
        if self.hand_over is not None and self._handing_over is None and not self._listener.is_stopping:
            self._handing_over = asyncio.create_task(self._hand_over(self.hand_over))
            return
        if self._handing_over is not None:
            self._handing_over.cancel()
        self._listener.stop()

    async def _hand_over(self, hand_over: Callable[[], Coroutine[object, object, bool]]) -> None:
        try:
            if not await hand_over():
                log.warning("node.not_handed_over", seconds=_HAND_OVER_S, reason="others lead when its session ends")
        finally:
            if not self._listener.is_stopping:
                self._listener.stop()


@contextlib.contextmanager
def _announced(settings: Settings, url: str, kafka: str | None, listening: socket.socket | None) -> Iterator[None]:
    """Announce on stdout, and in the file that local tools read, that the store is ready.

    ``kafka``: the advertised host:port for Kafka's clients; ``listening``: the socket for them.
    """
    file = settings.data / "brokers" / str(settings.broker_id) / ENDPOINT_FILE
    local_filesystem().make_directory(file.parent)
    local_filesystem().write_atomically(file, msgspec.json.encode(Endpoint(url, os.getpid(), kafka)))
    log.info("node.listening", url=url, kafka=kafka)
    sys.stdout.write(f"listening on {url}\n")
    if kafka is not None and listening is not None:
        sys.stdout.write(f"Kafka's clients connect to {kafka}{_kafka_remark(settings, kafka, listening)}\n")
    sys.stdout.flush()
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def _kafka_remark(settings: Settings, advertised: str, listening: socket.socket) -> str:
    """Return where the store listens for Kafka's clients if the advertised address differs, and whether others reach
    it.
    """
    assert settings.kafka_address is not None
    host, port = settings.kafka_address[0], listening.getsockname()[1]
    if is_loopback(host) and not is_loopback(settings.host):
        return (
            f", from this machine only: --kafka-port {port} opens it on {settings.host}, kafka.listeners on any address"
        )
    where = address_of(host, port)
    return "" if advertised == where else f"; the store listens for them on {where}"


@contextlib.asynccontextmanager
async def _renewed(tls: "Tls | None") -> AsyncIterator[None]:
    """Take changed certificates, for as long as the block lasts: SIGHUP asks for it at once."""
    if tls is None:
        yield
        return
    loop = asyncio.get_running_loop()
    tasks = {asyncio.create_task(tls.watch())}

    def renew_now() -> None:
        task = asyncio.create_task(tls.renew())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    loop.add_signal_handler(signal.SIGHUP, renew_now)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Stop on SIGTERM or SIGINT, from the moment that recovery begins."""
    loop = asyncio.get_running_loop()
    for number in _HANDLED_SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in _HANDLED_SIGNALS:
            loop.remove_signal_handler(number)
