"""A ZooKeeper and brokers as processes of their own, whose disks, clocks and links take orders."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import httpx

from logstore.cluster.zookeeper_server import Ports, ZooKeeperServer
from tests.support.server_process import FaultyServerProcess, free_port
from tests.support.tcp_relay import TcpRelay

SESSION_MS = 4_000
#: Replicas that do not follow for so long leave the ISR.
LAG_MS = 3_000
_TICK_MS = 1_000
_ENVIRONMENT = {
    "LOGSTORE_ZOOKEEPER_SESSION_TIMEOUT_MS": str(SESSION_MS),
    "LOGSTORE_DEFAULT_REPLICATION_FACTOR": "3",
    "LOGSTORE_MIN_INSYNC_REPLICAS": "2",
    "LOGSTORE_REPLICA_LAG_TIME_MAX_MS": str(LAG_MS),
    "LOGSTORE_REPLICA_FETCH_BACKOFF_MS": "200",
    "LOGSTORE_OFFSETS_TOPIC_NUM_PARTITIONS": "4",
    "LOGSTORE_JOURNAL_MAX_BYTES": str(32 << 20),
    "LOGSTORE_LOG_LEVEL": "info",
}


class Links:
    """Relays on an event loop of a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._at_end = contextlib.AsyncExitStack()

    def open(self, target: str, listen: tuple[str, int] = ("127.0.0.1", 0)) -> TcpRelay:
        return self._do(self._at_end.enter_async_context(TcpRelay(target, listen)))

    def cut(self, relay: TcpRelay) -> None:
        self._loop.call_soon_threadsafe(relay.cut)

    def heal(self, relay: TcpRelay) -> None:
        self._loop.call_soon_threadsafe(relay.heal)

    def close(self) -> None:
        self._do(self._at_end.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


class BrokerProcess:
    """A broker; its connections to ZooKeeper, and those of other brokers to it, go over links that can be cut."""

    def __init__(self, data: Path, number: int, zookeeper: str, links: Links, mutant: str) -> None:
        self.number = number
        peer_port = free_port()
        self.to_zookeeper = links.open(zookeeper)
        self.from_brokers = links.open(f"127.0.0.1:{peer_port}", (f"127.0.1.{number}", peer_port))
        self._data = data
        self._port = free_port()
        self._mutant = mutant
        self._environment = {
            **_ENVIRONMENT,
            "LOGSTORE_BROKER_ID": str(number),
            "LOGSTORE_ZOOKEEPER_CONNECT": self.to_zookeeper.address,
            "LOGSTORE_INTER_BROKER_PORT": str(peer_port),
            "LOGSTORE_ADVERTISED_HOST": f"127.0.1.{number}",
        }
        self._server: FaultyServerProcess | None = None

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


class Brokers:
    """``with Brokers(directory) as brokers``: all of them run, and know each other."""

    def __init__(self, directory: Path, count: int = 3, *, mutant: str = "") -> None:
        self.data = directory / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        self.links = Links()
        self.zookeeper = ZooKeeperServer(directory / "zookeeper", 1, [Ports.free()], tick_ms=_TICK_MS)
        self.zookeeper.start()
        self.all = [
            BrokerProcess(self.data, number, self.zookeeper.address, self.links, mutant)
            for number in range(1, count + 1)
        ]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self) -> None:
        """Those that do not run, all at once."""
        stopped = [broker for broker in self.all if not broker.is_running]
        with ThreadPoolExecutor(len(self.all)) as pool:
            list(pool.map(BrokerProcess.start, stopped))

    def __exit__(self, *_: object) -> None:
        for broker in self.all:
            broker.close()
        self.zookeeper.kill()
        self.links.close()

    @property
    def urls(self) -> Sequence[str]:
        return [broker.url for broker in self.all]

    def partitions(self) -> list[Mapping[str, Any]]:
        """Of all topics, as the first broker that answers has them. RuntimeError if none does."""
        for url in self.urls:
            with contextlib.suppress(httpx.HTTPError):
                answer = httpx.get(f"{url}/cluster/partitions", timeout=5)
                if answer.is_success:
                    return list(answer.json()["partitions"])
        raise RuntimeError("no broker answers")

    def leader_of(self, topic: str, partition: int) -> BrokerProcess | None:
        for row in self.partitions():
            if (row["topic"], row["partition"]) == (topic, partition):
                return next((broker for broker in self.all if broker.number == row["leader"]), None)
        return None

    def controller(self) -> BrokerProcess | None:
        for url in self.urls:
            with contextlib.suppress(httpx.HTTPError):
                answer = httpx.get(f"{url}/cluster", timeout=5)
                if answer.is_success:
                    number = answer.json()["controller_id"]
                    return next((broker for broker in self.all if broker.number == number), None)
        return None

    def unhealed(self) -> list[Mapping[str, Any]]:
        """Partitions without a leader, or with fewer replicas in sync than they have."""
        return [
            row
            for row in self.partitions()
            if row["leader"] in {-1, None} or len(row["in_sync_replicas"]) < len(row["replicas"])
        ]

    def wait_until_known(self, topics: Sequence[str], seconds: float) -> None:
        """Until each broker knows the topics. RuntimeError if one does not after that time."""
        deadline = time.monotonic() + seconds
        for url in self.urls:
            for topic in topics:
                while not httpx.get(f"{url}/topics/{topic}", timeout=5).is_success:
                    if time.monotonic() > deadline:
                        raise RuntimeError(f"{url} does not know {topic}")
                    time.sleep(0.05)

    def wait_until_healed(self, seconds: float) -> None:
        """RuntimeError if a partition lacks a leader or a replica in sync after that time."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                unhealed = self.unhealed()
            except RuntimeError:
                unhealed = [{}]
            if not unhealed:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"not healed: {unhealed[:5]}")
            time.sleep(0.1)
