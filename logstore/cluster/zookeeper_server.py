"""A ZooKeeper on this machine, alone or as an ensemble, from the jars of PySpark: for a cluster on one machine, and for
tests. It listens on the loopback address only.

A server is a separate process, which ends with the process that started it, however that ends.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from logstore.cluster.watched_process import watched
from logstore.errors import LogStoreError

_HOST: Final = "127.0.0.1"
#: The parts of PySpark's jars that ZooKeeper uses.
_JARS: Final = (
    "commons-cli-",
    "commons-io-",
    "log4j-api-",
    "log4j-core-",
    "log4j-slf4j2-impl-",
    "metrics-core-",
    "netty-",
    "slf4j-api-",
    "snappy-java-",
    "zookeeper-",
)
_JVM: Final = (
    "-Xmx96m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # Only a server that ends is started again, so it ends when it has no memory left.
    "-XX:+ExitOnOutOfMemoryError",
    "-Dzookeeper.admin.enableServer=false",
)
_START_S: Final = 60.0
_STOP_S: Final = 10.0
#: Another process may take a port between the choice and the start.
_ATTEMPTS: Final = 5


class ZooKeeperServerError(LogStoreError):
    """ZooKeeper could not be started; the message says what is missing, or ends in the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one server: for clients, for followers, for elections."""

    client: int
    peer: int
    election: int

    @classmethod
    def free(cls) -> "Ports":
        with contextlib.ExitStack() as open_sockets:
            found = [open_sockets.enter_context(socket.create_server((_HOST, 0))) for _ in range(3)]
            return cls(*(one.getsockname()[1] for one in found))


class ZooKeeperServer:
    """One server; ``start`` and ``kill`` may be called again and again. Its data stays in ``directory``."""

    def __init__(self, directory: Path, server_id: int, ensemble: Sequence[Ports], *, tick_ms: int = 2000) -> None:
        self.directory = directory
        self._id = server_id
        self._ensemble = ensemble
        self._tick_ms = tick_ms
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{_HOST}:{self._ensemble[self._id - 1].client}"

    @property
    def pid(self) -> int:
        """The process id. Raises ZooKeeperServerError if it does not run."""
        if self._process is None:
            raise ZooKeeperServerError(f"ZooKeeper at {self.address} does not run.")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True if its process runs."""
        return self._process is not None and self._process.poll() is None

    def wait_until_ended(self) -> int:
        """Wait for the end of the current process. Return its exit code, negative for a signal. Other threads may start
        the next one in the meantime. Raises ZooKeeperServerError if it does not run.
        """
        if (process := self._process) is None:
            raise ZooKeeperServerError(f"ZooKeeper at {self.address} does not run.")
        return process.wait()

    @property
    def mode(self) -> str | None:
        """Its role (standalone, leader, follower); None while it does not serve."""
        try:
            with socket.create_connection((_HOST, self._ensemble[self._id - 1].client), timeout=2) as asking:
                asking.sendall(b"srvr")
                answer = b"".join(iter(lambda: asking.recv(4096), b"")).decode(errors="replace")
        except OSError:
            return None
        return next((line.split()[1] for line in answer.splitlines() if line.startswith("Mode: ")), None)

    def start(self) -> None:
        """Start it and return at once; ``wait_until_serving`` waits. Raises ZooKeeperServerError without Java or the
        jars.
        """
        self.kill()  # closes the pipe of a process that has ended by itself
        self.directory.mkdir(parents=True, exist_ok=True)
        configuration = self.directory / "zoo.cfg"
        configuration.write_text("".join(f"{key}={value}\n" for key, value in self._settings()))
        (self.directory / "myid").write_text(f"{self._id}\n")
        main = "quorum.QuorumPeerMain" if len(self._ensemble) > 1 else "ZooKeeperServerMain"
        command = [_java(), *_JVM, "-cp", _class_path(), f"org.apache.zookeeper.server.{main}", str(configuration)]
        with (self.directory / "zookeeper.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the command is made here
                watched(command, str(configuration)),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Ctrl-C in the terminal is for the process that started the server, which still needs it for a while.
                start_new_session=True,
            )

    def _settings(self) -> Iterator[tuple[str, object]]:
        yield "dataDir", self.directory
        yield "clientPort", self._ensemble[self._id - 1].client
        yield "clientPortAddress", _HOST
        yield "tickTime", self._tick_ms
        yield "initLimit", 20
        yield "syncLimit", 10
        yield "maxClientCnxns", 0
        yield "4lw.commands.whitelist", "srvr"
        yield "autopurge.purgeInterval", 1
        if len(self._ensemble) > 1:
            for number, ports in enumerate(self._ensemble, 1):
                yield f"server.{number}", f"{_HOST}:{ports.peer}:{ports.election}"

    def wait_until_serving(self, timeout_s: float = _START_S) -> None:
        """Wait until it serves. Raises ZooKeeperServerError if it ends, or takes longer."""
        deadline = time.monotonic() + timeout_s
        while self.mode is None:
            if not self.is_running or time.monotonic() > deadline:
                self.kill()
                raise ZooKeeperServerError(f"ZooKeeper at {self.address} did not start.\n{self._last_lines()}")
            time.sleep(0.02)

    def _last_lines(self) -> str:
        """Return the last lines of the log, without stack frames: these are more than the shown lines and follow the
        error.
        """
        log = self.directory / "zookeeper.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return "\n".join([line for line in lines if not line.startswith("\tat ")][-10:])

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if that does not help."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL, and return when the process is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process = None

    def signal(self, number: signal.Signals) -> None:
        """Send SIGSTOP or SIGCONT. Raises ZooKeeperServerError if it does not run."""
        os.kill(self.pid, number)


class ZooKeeperEnsemble:
    """``count`` servers (1: without an ensemble) below ``directory``."""

    def __init__(self, directory: Path, count: int = 1, *, tick_ms: int = 2000) -> None:
        self._directory = directory
        self._count = count
        self._tick_ms = tick_ms
        self.servers: list[ZooKeeperServer] = []

    @property
    def connect(self) -> str:
        """The value for ``zookeeper.connect``."""
        return ",".join(server.address for server in self.servers)

    def start(self) -> None:
        """Start all servers, and return when they serve. Raises ZooKeeperServerError."""
        for attempt in range(1, _ATTEMPTS + 1):
            ensemble = [Ports.free() for _ in range(self._count)]
            self.servers = [
                ZooKeeperServer(self._directory / str(number), number, ensemble, tick_ms=self._tick_ms)
                for number in range(1, self._count + 1)
            ]
            try:
                for server in self.servers:
                    server.start()
                for server in self.servers:
                    server.wait_until_serving()
            except ZooKeeperServerError as error:
                self.stop()
                if attempt == _ATTEMPTS or "BindException" not in error.message:
                    raise
            except BaseException:
                self.stop()
                raise
            else:
                return

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    @property
    def leader(self) -> ZooKeeperServer | None:
        """The server that leads the ensemble now."""
        return next((server for server in self.servers if server.mode in {"leader", "standalone"}), None)


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not Path(java).is_file():
        raise ZooKeeperServerError("ZooKeeper needs Java 17: install it, or set JAVA_HOME.")
    return java


def _class_path() -> str:
    spark = importlib.util.find_spec("pyspark")
    jars = Path(spark.origin).parent / "jars" if spark and spark.origin else None
    found = [str(jar) for jar in sorted(jars.glob("*.jar")) if jar.name.startswith(_JARS)] if jars else []
    if not any("zookeeper-" in jar for jar in found):
        raise ZooKeeperServerError(
            "ZooKeeper is taken from the jars of PySpark, which are not here: pip install 'delta-logstore[spark]', or "
            "name a ZooKeeper that runs."
        )
    return os.pathsep.join(found)
