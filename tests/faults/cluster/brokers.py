"""A ZooKeeper and brokers as separate processes, whose disks, clocks and links can be controlled."""

import contextlib
import logging
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import httpx
from kazoo.client import KazooClient

from benchmarks.free_port import free_port
from logstore.cluster.zookeeper_server import ZooKeeperEnsemble, ZooKeeperServer
from tests.faults.bench.groups import ENVIRONMENT as GROUP_ENVIRONMENT
from tests.faults.cluster.links import Links
from tests.support.server_process import FaultyServerProcess
from tests.support.tcp_relay import PeerRelay, TcpRelay

#: A broker's loop may be two seconds late beside other tests on two cores: its lease has to outlast that.
SESSION_MS = 5_000
#: Replicas that do not follow for this long leave the ISR.
LAG_MS = 4_000
REPLICAS, MIN_IN_SYNC = 3, 2
_TICK_MS = 500
_ENVIRONMENT = {
    "LOGSTORE_ZOOKEEPER_SESSION_TIMEOUT_MS": str(SESSION_MS),
    "LOGSTORE_DEFAULT_REPLICATION_FACTOR": str(REPLICAS),
    "LOGSTORE_MIN_INSYNC_REPLICAS": str(MIN_IN_SYNC),
    "LOGSTORE_REPLICA_LAG_TIME_MAX_MS": str(LAG_MS),
    "LOGSTORE_REPLICA_FETCH_BACKOFF_MS": "200",
    "LOGSTORE_REPLICA_SOCKET_TIMEOUT_MS": "3000",
    "LOGSTORE_OFFSETS_TOPIC_NUM_PARTITIONS": "4",
    "LOGSTORE_JOURNAL_MAX_BYTES": str(32 << 20),
    "LOGSTORE_LOG_LEVEL": "info",
    **GROUP_ENVIRONMENT,
}
#: Each look is six requests.
_POLL_S = 0.2
#: Brokers that have started know each other within this time.
_KNOWN_S = 60.0
#: A broker behind a cut link, or without ZooKeeper, has no session.
_SESSION_COMES_S = 10.0
#: Lines of the brokers' log that an error shows.
_LOG_LINES = 100
#: kazoo logs every broken connection, and here they are meant to break.
QUIET = logging.getLogger("tests.kazoo")
QUIET.setLevel(logging.CRITICAL)


class BrokerProcess:
    """A broker; its connections to ZooKeeper, and those of other brokers to it, use links that can be cut."""

    def __init__(self, data: Path, number: int, zookeepers: Iterable[str], links: Links, mutant: str) -> None:
        self.number = number
        peer_port = free_port()
        self.to_zookeeper = [links.open(TcpRelay(address)) for address in zookeepers]
        self.from_brokers = links.open(PeerRelay(f"127.0.0.1:{peer_port}", (f"127.0.1.{number}", peer_port)))
        self.log_directory = data / "brokers" / str(number)
        self._data = data
        self._port = free_port()
        # Clients that learn of the broker use the address that other brokers have for it.
        links.open(TcpRelay(f"127.0.0.1:{self._port}", (f"127.0.1.{number}", self._port)))
        self._mutant = mutant
        #: The address for Kafka's clients.
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self._environment = {
            **_ENVIRONMENT,
            "LOGSTORE_BROKER_ID": str(number),
            "LOGSTORE_ZOOKEEPER_CONNECT": ",".join(relay.address for relay in self.to_zookeeper),
            "LOGSTORE_INTER_BROKER_PORT": str(peer_port),
            "LOGSTORE_ADVERTISED_HOST": f"127.0.1.{number}",
            "LOGSTORE_KAFKA_LISTENERS": self.bootstrap,
            "LOGSTORE_INSTALL": "tests.faults.cluster.fail_points.install",
        }
        self._server: FaultyServerProcess | None = None
        #: The kinds of blows that its processes have received so far.
        self.blows: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def server(self) -> FaultyServerProcess:
        assert self._server is not None
        return self._server

    @property
    def is_running(self) -> bool:
        return self._server is not None and self._server.process.poll() is None

    def start(self) -> None:
        if self._server is None:
            self._server = FaultyServerProcess(
                self._data, port=self._port, environment=self._environment, mutant=self._mutant
            )
        else:
            self._server.start()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    # ---- blows, each counted ----------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the broker with kill -9; do nothing if it does not run."""
        if self.is_running:
            self.blows["kill"] += 1
        self.server.kill()

    def terminate(self) -> int:
        """Send SIGTERM; return the exit code."""
        self.blows["terminate"] += 1
        return self.server.stop()

    def pause(self) -> None:
        self.blows["pause"] += 1
        self.server.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.server.process.send_signal(signal.SIGCONT)

    def power_cut(self, seed: int) -> None:
        self.blows["power cut"] += 1
        self.server.power_cut(seed)

    def end_session(self, zookeeper: str) -> None:
        """Let another client take over the broker's session and end it.

        The session expires, and the broker is not stopped for a moment. Raises TimeoutError for a broker without a
        session.
        """
        deadline = time.monotonic() + _SESSION_COMES_S
        while (session := self.server.control("session")) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"broker {self.number} has no session with ZooKeeper")
            time.sleep(0.1)
        number, password = session
        client = KazooClient(
            zookeeper, client_id=(number, bytes.fromhex(password)), timeout=SESSION_MS / 1000, logger=QUIET
        )
        client.start(15)
        client.stop()
        client.close()

    def keep_image(self, image: Path) -> None:
        """Copy the disk in its current state; the broker does not run."""
        shutil.rmtree(image, ignore_errors=True)
        shutil.copytree(self.log_directory, image)

    def put_image_back(self, image: Path) -> None:
        shutil.rmtree(self.log_directory)
        shutil.copytree(image, self.log_directory)

    def lose_disk(self) -> None:
        shutil.rmtree(self.log_directory)


class Brokers:
    """All brokers: ``with Brokers(directory) as brokers`` starts them, and waits until they know each other."""

    def __init__(self, directory: Path, count: int = REPLICAS, *, zookeepers: int = 3, mutant: str = "") -> None:
        self.data = directory / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        self.links = Links()
        self._http = httpx.Client(timeout=5)
        self.zookeeper = ZooKeeperEnsemble(directory / "zookeeper", zookeepers, tick_ms=_TICK_MS)
        self.zookeeper.start()
        addresses = [server.address for server in self.zookeeper.servers]
        self.all = [BrokerProcess(self.data, number, addresses, self.links, mutant) for number in range(1, count + 1)]

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_until_healed(_KNOWN_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self) -> None:
        """Start the brokers that do not run, all at once."""
        stopped = [broker for broker in self.all if not broker.is_running]
        with ThreadPoolExecutor(len(self.all)) as pool:
            list(pool.map(BrokerProcess.start, stopped))

    def kill(self) -> None:
        """Kill all brokers at once."""
        for broker in self.all:
            if broker.is_running:
                broker.blows["kill"] += 1
                broker.server.process.kill()
        for broker in self.all:
            broker.kill()

    def __exit__(self, *_: object) -> None:
        for broker in self.all:
            broker.close()
        self.zookeeper.stop()
        self.links.close()
        self._http.close()

    @property
    def urls(self) -> Sequence[str]:
        return [broker.url for broker in self.all]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.all)

    # ---- ZooKeeper --------------------------------------------------------------------------------------------------

    def cut_from_zookeeper(self, broker: BrokerProcess, cut: Any) -> None:
        """Cut the broker from ZooKeeper; ``cut`` is a method of ``Links``, perhaps with more arguments."""
        for relay in broker.to_zookeeper:
            cut(relay)

    def start_zookeeper(self, servers: Iterable[ZooKeeperServer]) -> None:
        started = [server for server in servers if not server.is_running]
        for server in started:
            server.start()
        for server in started:
            server.wait_until_serving()

    # ---- what the cluster says --------------------------------------------------------------------------------------

    def partitions(self) -> list[Mapping[str, Any]]:
        """Return the partitions of all topics from the first broker that answers. Raises RuntimeError if none does."""
        for url in self.urls:
            if (answer := self._get(f"{url}/cluster/partitions")) is not None:
                return list(answer["partitions"])
        raise RuntimeError("no broker answers")

    def leader_of(self, topic: str, partition: int) -> BrokerProcess | None:
        for row in self.partitions():
            if (row["topic"], row["partition"]) == (topic, partition):
                return self.by_number(row["leader"])
        return None

    def controller(self) -> BrokerProcess | None:
        for url in self.urls:
            if (answer := self._get(f"{url}/cluster")) is not None:
                return self.by_number(answer["controller_id"])
        return None

    def by_number(self, number: int | None) -> BrokerProcess | None:
        return next((broker for broker in self.all if broker.number == number), None)

    def unhealed(self) -> list[str]:
        """Return brokers that do not know all brokers, and partitions that are not whole.

        Such a partition has no leader or fewer in-sync replicas than replicas, in the metadata of any broker.
        """
        found = []
        views: set[tuple[tuple[str, int, int], ...]] = set()
        for broker in self.all:
            cluster, answer = self._get(f"{broker.url}/cluster"), self._get(f"{broker.url}/cluster/partitions")
            if cluster is None or answer is None:
                found.append(f"broker {broker.number} does not {'answer' if broker.is_running else 'run'}")
                continue
            if len(cluster["brokers"]) < len(self.all):
                found.append(f"broker {broker.number} knows {[one['broker_id'] for one in cluster['brokers']]}")
            rows = answer["partitions"]
            views.add(tuple((row["topic"], row["partition"], row["leader_epoch"]) for row in rows))
            found += [
                f"{row['topic']}-{row['partition']} has the leader {row['leader']} of epoch {row['leader_epoch']} and "
                f"{row['in_sync_replicas']} in sync, as broker {broker.number} knows it"
                for row in rows
                if row["leader"] in {-1, None} or len(row["in_sync_replicas"]) < len(row["replicas"])
            ]
        if len(views) > 1:
            found.append("brokers know different epochs")
        return found

    def wait_until_known(self, topics: Sequence[str], seconds: float) -> None:
        """Wait until each broker knows the topics. Raises RuntimeError if one does not within that time."""
        deadline = time.monotonic() + seconds
        for url in self.urls:
            for topic in topics:
                while self._get(f"{url}/topics/{topic}") is None:
                    if time.monotonic() > deadline:
                        raise RuntimeError(f"{url} does not know {topic}")
                    time.sleep(_POLL_S)

    def wait_until_healed(self, seconds: float) -> None:
        """Wait until the cluster is whole. Raises RuntimeError if it is not within that time."""
        deadline = time.monotonic() + seconds
        while unhealed := self.unhealed():
            if time.monotonic() > deadline:
                log = self.all[0].server.log  # all brokers write to one log
                said = [line for line in log.splitlines() if " http.answered " not in line][-_LOG_LINES:]
                raise RuntimeError("\n".join(["not healed:", *unhealed, "the brokers said at last:", *said]))
            time.sleep(_POLL_S)

    def _get(self, url: str) -> Any:
        """Return the JSON of an answer, or None for an error or no answer."""
        with contextlib.suppress(httpx.HTTPError):
            answer = self._http.get(url)
            if answer.is_success:
                return answer.json()
        return None
