"""A cluster on this machine, from the first process to the end of the last.

Start: reserve ports, then start ZooKeeper, then all brokers at once (a store of one node starts its broker first).
Ready: all brokers know each other, and each partition with a runnable leader has one. A partition without a leader by
then is reported, and does not keep others from being served. A service restarts what ends, and stops if its ZooKeeper
keeps ending. Stop, on SIGINT or SIGTERM: stop the brokers, then ZooKeeper. The second signal kills. Every wait is
bounded.

Invariant: no process outlives this one, however it ends (``logstore.cluster.watched_process``).
"""

import asyncio
import contextlib
import importlib.util
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from logstore.client.admin import Admin
from logstore.cluster_processes.broker_process import BrokerEntry, BrokerProcess
from logstore.cluster_processes.control import controlled
from logstore.cluster_processes.kafka_addresses import NO_KAFKA, KafkaAddress, is_free
from logstore.cluster_processes.ports import ReservedPorts
from logstore.cluster_processes.record import ClusterProcessesError, Directory, Record, check_directory, one_node
from logstore.cluster_processes.zookeeper_process import Restarts, ZooKeeperEntry, ZooKeeperProcess
from logstore.errors import DataDirectoryError, LogStoreError
from logstore.filesystem import local_filesystem
from logstore.lock_file import LockFile
from logstore.settings import address_of

_LOOPBACK: Final = "127.0.0.1"
#: All brokers are registered when they report that they are ready; their views follow.
_AGREE_S: Final = 30.0
_LOOK_S: Final = 0.1
#: A process that has just been killed may not be reaped yet.
_REAP_S: Final = 2.0
#: Seconds before a broker is started again: the first pause, doubled each time up to the second. A broker that ran
#: longer than the second begins again with the first.
_RETRY_S, _RETRY_MAX_S = 1.0, 60.0


class ClusterEntry(msgspec.Struct, frozen=True):
    """The running processes, as reported to programs. ``zookeeper`` is for ``zookeeper.connect``."""

    zookeeper: str
    brokers: tuple[BrokerEntry, ...]


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The cluster to run.

    ``zookeeper`` is the user's; with None it is the former one, else the cluster's own. ``log_dirs`` has a directory
    for each broker; with None it is ``brokers`` in the data directory. ``ports`` are fixed ports by broker; other
    ports, including those of ``kafka``, are chosen and kept. ``shared_port`` is another port, on which all brokers
    listen (0 chooses one). ``environment`` has settings of all brokers, ``environments`` those of single brokers. With
    ``is_service`` brokers write to our stderr instead of files, and a process that dies is started again.
    """

    directory: Directory
    broker_ids: Sequence[int]
    zookeeper: str | None = None
    log_dirs: Path | None = None
    host: str = _LOOPBACK
    ports: Mapping[int, int] = field(default_factory=dict)
    kafka: Mapping[int, KafkaAddress] = field(default_factory=dict)
    shared_port: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    environments: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    is_service: bool = False


#: Called with the running processes and the shared port once everything is ready.
Announce = Callable[[ClusterEntry, int | None], None]


def run(wanted: ClusterOptions, announce: Announce) -> int:
    """Run until SIGINT or SIGTERM. Return the exit code: 1 if a process had to be killed.

    Raises ClusterProcessesError (also if a service's ZooKeeper keeps ending), ZooKeeperServerError, DataDirectoryError,
    OSError.
    """
    directory = wanted.directory
    if importlib.util.find_spec("kazoo") is None:
        raise ClusterProcessesError("A broker of a cluster needs kazoo: pip install 'delta-logstore[cluster]'.")
    record = Record.read(directory)
    check_directory(directory, record, wanted.zookeeper, wanted.broker_ids)
    if record is None:
        _require_stopped(directory)
    directory.home.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as at_end:
        try:
            at_end.callback(LockFile.acquire(directory.home, local_filesystem()).release)
        except DataDirectoryError as error:
            raise ClusterProcessesError(error.message.replace("serving", "running the cluster of", 1)) from None
        reserved = at_end.enter_context(ReservedPorts())
        found, shared_port = _reserve(wanted, record or Record(), reserved)
        return asyncio.run(_Cluster(wanted, found, shared_port, reserved).run(announce))


def _require_stopped(directory: Directory) -> None:
    """Raise DataDirectoryError if the store of one node that is to become a cluster still runs: nothing is made beside
    it.
    """
    for log_directory in sorted((directory.data / "brokers").glob("*/")):
        LockFile.acquire(log_directory, local_filesystem()).release()


def _reserve(wanted: ClusterOptions, record: Record, reserved: ReservedPorts) -> tuple[Record, int | None]:
    """Reserve all ports; those of the last run are used again."""
    where = f"end it, or remove the port from {wanted.directory.record}"

    def reserve(
        what: str,
        port: int,
        *,
        fixed: bool = False,
        shared: bool = False,
        host: str = wanted.host,
        otherwise: str = "",
    ) -> int:
        try:
            return reserved.reserve(host, port, shared=shared)
        except OSError as error:
            remedy = f"end it, or choose another port{otherwise}" if fixed else where
            if isinstance(error, PermissionError) or port == 0:
                raise
            raise ClusterProcessesError(
                f"Port {port} of {what} on {host} cannot be used ({error.strerror}): another process has it; {remedy}."
            ) from None

    shared_port = None
    if wanted.shared_port is not None:
        shared_port = reserve("all brokers", wanted.shared_port, fixed=True, shared=True)
    zookeeper, zookeeper_port = wanted.zookeeper or record.zookeeper, None
    if zookeeper is None:
        zookeeper_port = reserve("ZooKeeper", record.zookeeper_port or 0, host=_LOOPBACK)
    ports = dict(record.ports)
    for broker_id in wanted.broker_ids:
        fixed = wanted.ports.get(broker_id)
        ports[broker_id] = reserve(
            f"broker {broker_id}", ports.get(broker_id, 0) if fixed is None else fixed, fixed=fixed is not None
        )
    kafka_ports = dict(record.kafka_ports)
    for broker_id, address in wanted.kafka.items():
        if address.port:
            reserve(
                f"broker {broker_id} for Kafka's clients",
                address.port,
                fixed=True,
                host=address.host,
                otherwise=" (kafka.listeners, or --kafka-port; 0: free ones)",
            )
        else:
            former = record.kafka_ports.get(broker_id, 0)
            kafka_ports[broker_id] = _reserve_for_kafka(broker_id, address.host, former, reserved)
    found = Record(zookeeper, zookeeper_port, ports, kafka_ports)
    found.write(wanted.directory)
    return found, shared_port


def _reserve_for_kafka(broker_id: int, host: str, former: int, reserved: ReservedPorts) -> int:
    """Reserve the port formerly chosen for the broker (0: none), or a free one if that is taken now."""
    found = reserved.reserve(host, former if former and is_free(host, former) else 0)
    if former and found != former:
        _say(
            f"port {former} of broker {broker_id} for Kafka's clients is taken by another process: it listens on "
            f"{address_of(host, found)}"
        )
    return found


class _Cluster:
    def __init__(
        self, wanted: ClusterOptions, record: Record, shared_port: int | None, reserved: ReservedPorts
    ) -> None:
        self._wanted = wanted
        self._record, self._shared_port = record, shared_port
        self._reserved = reserved
        self._zookeeper: ZooKeeperProcess | None = None
        self._zookeeper_restarts = Restarts()
        self._brokers: dict[int, BrokerProcess] = {}
        self._stopping = asyncio.Event()
        self._watching: set[asyncio.Task[None]] = set()
        self._exit_code = 0
        #: The reason if everything is stopped without a signal.
        self._failure: ClusterProcessesError | None = None

    @property
    def _connect(self) -> str:
        if self._record.zookeeper is not None:
            return self._record.zookeeper
        return f"{_LOOPBACK}:{self._record.zookeeper_port}"

    async def run(self, announce: Announce) -> int:
        with self._signals():
            starting = asyncio.create_task(self._start())
            stopping = asyncio.create_task(self._stopping.wait())
            try:
                await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    await starting
                    async with controlled(self._wanted.directory.control, self.start_broker, self.start_zookeeper):
                        announce(self._entry, self._shared_port)
                        await stopping
            finally:
                for task in (starting, stopping, *self._watching):
                    task.cancel()
                await asyncio.gather(starting, stopping, *self._watching, return_exceptions=True)
                await self._stop()
        if self._failure is not None:
            raise self._failure
        return self._exit_code

    @property
    def _entry(self) -> ClusterEntry:
        running = [broker.entry for _, broker in sorted(self._brokers.items()) if broker.entry is not None]
        return ClusterEntry(self._connect, tuple(running))

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handled = (signal.SIGINT, signal.SIGTERM)
        for number in handled:
            loop.add_signal_handler(number, self._asked_to_stop)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def _asked_to_stop(self) -> None:
        if self._stopping.is_set():
            _say("killing what still runs")
            self._exit_code = 1
            for broker in self._brokers.values():
                broker.signal(signal.SIGKILL)
        self._stopping.set()

    # ---- start ------------------------------------------------------------------------------------------------------

    def _progress(self, line: str) -> None:
        """Print a line of progress. A service does not, because its brokers write to the same stderr."""
        if not self._wanted.is_service:
            _say(line)

    async def _start(self) -> None:
        logs = self._wanted.log_dirs or self._wanted.directory.data / "brokers"
        if self._record.zookeeper_port is not None:
            self._progress(f"starting ZooKeeper on {self._connect}")
            self._zookeeper = ZooKeeperProcess(self._wanted.directory.zookeeper, self._record.zookeeper_port)
            await self._start_zookeeper(self._zookeeper)
        for broker_id in self._wanted.broker_ids:
            self._brokers[broker_id] = BrokerProcess(
                broker_id,
                {
                    **self._wanted.environment,
                    "LOGSTORE_BROKER_ID": str(broker_id),
                    "LOGSTORE_HOST": self._wanted.host,
                    "LOGSTORE_LOG_DIRS": str(logs / str(broker_id)),
                    "LOGSTORE_PORT": str(self._record.ports[broker_id]),
                    "LOGSTORE_ZOOKEEPER_CONNECT": self._connect,
                    **self._kafka_environment(broker_id),
                    **self._wanted.environments.get(broker_id, {}),
                },
                self._wanted.directory.data,
                None if self._wanted.is_service else self._wanted.directory.log(broker_id),
            )
        if (alone := one_node(self._wanted.directory)) is not None:
            # This broker turns the directory into a cluster's before others may use it.
            self._progress(f"starting broker {alone}, whose store becomes a cluster")
            await self._start_one(self._brokers[alone])
        others = [id_ for id_ in self._brokers if id_ != alone]
        if others:
            self._progress(f"starting {_brokers_text(others)}")
        starts = [asyncio.create_task(self._start_one(self._brokers[id_])) for id_ in others]
        try:
            await asyncio.gather(*starts)
        finally:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
        self._progress("waiting until all brokers know each other")
        if (missing := await self._until_seen(_lacks_brokers)) is not None:
            raise ClusterProcessesError(f"The brokers do not agree after {_AGREE_S:.0f} seconds: {missing}.")
        if (missing := await self._until_seen(_lacks_leaders)) is not None:
            _say(f"after {_AGREE_S:.0f} seconds {missing}: see the brokers' logs")

    def _kafka_environment(self, broker_id: int) -> Mapping[str, str]:
        address = self._wanted.kafka.get(broker_id)
        if address is None:
            return NO_KAFKA
        return address.environment(self._kafka_port(broker_id, address))

    def _kafka_port(self, broker_id: int, address: KafkaAddress) -> int:
        return address.port or self._record.kafka_ports[broker_id]

    def _choose_kafka_port_again(self, broker: BrokerProcess) -> None:
        """Choose a free port if another process listens on the broker's chosen one, which can happen while it does not
        run.
        """
        address = self._wanted.kafka.get(broker.id)
        if address is None or address.port or is_free(address.host, self._kafka_port(broker.id, address)):
            return
        found = _reserve_for_kafka(broker.id, address.host, self._kafka_port(broker.id, address), self._reserved)
        self._record = msgspec.structs.replace(self._record, kafka_ports={**self._record.kafka_ports, broker.id: found})
        self._record.write(self._wanted.directory)
        broker.environment |= self._kafka_environment(broker.id)

    async def _start_zookeeper(self, zookeeper: ZooKeeperProcess) -> ZooKeeperEntry:
        entry = await zookeeper.start()
        self._watch(self._watch_zookeeper(zookeeper))
        return entry

    async def _start_one(self, broker: BrokerProcess) -> BrokerEntry:
        self._choose_kafka_port_again(broker)
        shared = [] if self._shared_port is None else ["--shared-port", str(self._shared_port)]
        entry = await broker.start(shared)
        self._progress(f"broker {broker.id} is ready at {entry.url}")
        self._watch(self._watch_broker(broker))
        return entry

    async def _until_seen(self, lacks: "Lacks") -> str | None:
        """Wait until no broker's view lacks anything. Return what is still missing after ``_AGREE_S``."""
        entries = self._entry.brokers
        ids = {entry.id for entry in entries}
        seen: str | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AGREE_S):
                for entry in entries:
                    seen = f"broker {entry.id} has not answered"
                    while (seen := await asyncio.to_thread(_view_of, entry, ids, lacks)) is not None:  # noqa: ASYNC110
                        await asyncio.sleep(_LOOK_S)
        return seen

    # ---- while it runs ----------------------------------------------------------------------------------------------

    def _watch(self, watching: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(watching)
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def _watch_broker(self, broker: BrokerProcess) -> None:
        """Wait until the broker ends. In a service, start it again."""
        loop, delay = asyncio.get_running_loop(), _RETRY_S
        began = loop.time()
        code = await broker.ended()
        how = f"broker {broker.id} has ended, {_in_words(code)}"
        if not self._wanted.is_service:
            data = self._wanted.directory.data
            _say(f"{how}; start it again with: logstore cluster start-broker {broker.id} --data {data}")
            return
        while True:
            delay = _RETRY_S if loop.time() - began > _RETRY_MAX_S else delay
            _say(f"{how}; it is started again in {delay:.0f} s")
            await asyncio.sleep(delay)
            delay = min(_RETRY_MAX_S, 2 * delay)
            began = loop.time()
            async with broker.changing:
                if broker.is_running:  # a command has already started it
                    return
                try:
                    await self._start_one(broker)
                except ClusterProcessesError as error:
                    how = error.message.rstrip(".")
                else:
                    return

    async def _watch_zookeeper(self, zookeeper: ZooKeeperProcess) -> None:
        """Wait until ZooKeeper ends. In a service, start it again; if it keeps ending, stop the service."""
        loop = asyncio.get_running_loop()
        began, directory = loop.time(), self._wanted.directory
        how = f"ZooKeeper has ended, {_in_words(await zookeeper.ended())}"
        if not self._wanted.is_service:
            how += f": no leader is elected any more; its log is in {directory.zookeeper}"
            _say(f"{how}; start it again with: logstore cluster start-zookeeper --data {directory.data}")
            return
        served_s = loop.time() - began
        while (pause := self._zookeeper_restarts.pause(served_s)) is not None:
            _say(f"{how}; it is started again{f' in {pause:.0f} s' if pause else ''}")
            await asyncio.sleep(pause)
            async with zookeeper.changing:
                if zookeeper.is_running:  # a command has already started it
                    return
                try:
                    entry = await self._start_zookeeper(zookeeper)
                except (LogStoreError, OSError) as error:
                    how, served_s = str(error).rstrip("."), 0.0
                else:
                    _say(f"ZooKeeper serves again at {entry.zookeeper}, with pid {entry.pid}")
                    return
        self._failure = ClusterProcessesError(
            f"{how}\nZooKeeper was started again several times, and keeps ending, so that everything was stopped: see "
            f"{directory.zookeeper}, then start again."
        )
        self._stopping.set()

    async def start_zookeeper(self) -> ZooKeeperEntry:
        """Start a ZooKeeper that has ended. Raises ClusterProcessesError, ZooKeeperServerError and OSError."""
        zookeeper = self._zookeeper
        if zookeeper is None:
            raise ClusterProcessesError(
                f"The ZooKeeper of this cluster, {self._connect}, was not started with it: start it where it runs."
            )
        async with zookeeper.changing:
            if zookeeper.is_running:
                entry = zookeeper.entry
                raise ClusterProcessesError(
                    f"ZooKeeper is running at {entry.zookeeper}, with pid {entry.pid}: start-zookeeper starts one that "
                    "has ended."
                )
            return await self._start_zookeeper(zookeeper)

    async def start_broker(self, broker_id: int) -> BrokerEntry:
        """Start a broker that has ended. Raises ClusterProcessesError."""
        broker = self._brokers.get(broker_id)
        if broker is None:
            ids = ", ".join(map(str, sorted(self._brokers)))
            raise ClusterProcessesError(f"There is no broker {broker_id} in this cluster: it has {ids}.")
        async with broker.changing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REAP_S):
                    await broker.ended()
            if broker.is_running:
                raise ClusterProcessesError(f"Broker {broker_id} is running: start-broker starts one that has ended.")
            return await self._start_one(broker)

    # ---- stop -------------------------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        stopped = await asyncio.gather(*(broker.stop() for broker in self._brokers.values()))
        for broker, in_time in zip(self._brokers.values(), stopped, strict=True):
            if not in_time:
                _say(f"broker {broker.id} did not stop in time, and was killed")
                self._exit_code = 1
        if self._zookeeper is not None:
            await self._zookeeper.stop()


#: Describes what a broker's view lacks; None if it is complete. The ids are those of the running brokers.
Lacks = Callable[[Admin, set[int]], str | None]


def _view_of(entry: BrokerEntry, ids: set[int], lacks: Lacks) -> str | None:
    try:
        with Admin(
            entry.url, client_id="logstore-cluster", request_timeout_ms=5_000, default_api_timeout_ms=0
        ) as admin:
            lacking = lacks(admin, ids)
    except LogStoreError as error:
        return f"broker {entry.id} does not answer ({error.message.rstrip('.')})"
    return lacking and f"broker {entry.id} knows of no {lacking}"


def _lacks_brokers(admin: Admin, ids: set[int]) -> str | None:
    cluster = admin.describe_cluster()
    if missing := sorted(ids.difference(broker.broker_id for broker in cluster.brokers)):
        return _brokers_text(missing)
    return "controller" if cluster.controller_id is None else None


def _lacks_leaders(admin: Admin, ids: set[int]) -> str | None:
    """Describe a partition that has no leader although a replica in sync runs; None if there is none."""
    for one in admin.partition_replicas(state="unavailable"):
        if ids.intersection(one.in_sync_replicas):
            return f"leader of {one.topic}-{one.partition}"
    return None


def _brokers_text(ids: Sequence[int]) -> str:
    return f"broker{'s' * (len(ids) != 1)} {', '.join(map(str, ids))}"


def _in_words(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
