"""A real Apache Kafka from Maven artifacts: its jars, one broker on loopback or three, and its own tools.

The jars are fetched once into ``.cache/kafka-peer`` (``KAFKA_PEER_HOME`` names another place, which may already have
them in ``libs/``). The broker gets free ports and a separate data directory.
"""

import base64
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from benchmarks.free_port import free_port
from benchmarks.server import ROOT, BenchmarkError, Server, SingleServer, Store, run_command

_PEER = ROOT / "benchmarks/kafka-peer"
_START_SECONDS = 120
_PATIENCE_MS = 3_600_000
# These are the options of Kafka's own scripts.
_BROKER_OPTIONS = [
    *("-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
    *("-Dpeer.level=info", "-Dpeer.target=SYSTEM_OUT"),
]
_TOOL_OPTIONS = ["-Xms512M", "-Xmx512M", "-XX:+UseG1GC"]


@dataclass(frozen=True, slots=True)
class Kafka:
    """Java and Kafka's jars."""

    java: str
    libs: Path

    @property
    def version(self) -> str:
        found = sorted(path.stem for path in self.libs.glob("kafka-clients-*.jar"))
        return found[0].removeprefix("kafka-clients-") if found else "unknown"

    def command(self, options: list[str], main_class: str, *arguments: str) -> list[str]:
        log4j = f"-Dlog4j2.configurationFile={_PEER / 'log4j2.properties'}"
        return [self.java, *options, log4j, "-cp", f"{self.libs}/*", main_class, *arguments]

    def tool(self, main_class: str, *arguments: str, timeout: float = 120) -> str:
        """Run one of Kafka's own tools; return its output."""
        return run_command(self.command(_TOOL_OPTIONS, main_class, *arguments), timeout=timeout)


def find_java() -> str | None:
    java_home = os.environ.get("JAVA_HOME")
    return f"{java_home}/bin/java" if java_home else shutil.which("java")


def find_kafka() -> Kafka | str:
    """Return Kafka, fetched if needed; or a sentence on what is missing."""
    java = find_java()
    if not java:
        return "Java is missing (sudo apt-get install default-jre-headless)"
    libs = _fetch("libs", "pom.xml")
    return libs if isinstance(libs, str) else Kafka(java, libs)


def find_spark_source() -> tuple[Path, ...] | str:
    """Return the jars of Spark's own Kafka source, fetched if needed; or a sentence on what is missing."""
    jars = _fetch("spark-jars", "spark-pom.xml")
    return jars if isinstance(jars, str) else tuple(sorted(jars.glob("*.jar")))


def find_connect() -> Kafka | str:
    """Return Kafka Connect, MirrorMaker 2 and the file connectors, fetched if needed; or what is missing."""
    java = find_java()
    if not java:
        return "Java is missing (sudo apt-get install default-jre-headless)"
    libs = _fetch("connect-libs", "connect-pom.xml")
    return libs if isinstance(libs, str) else Kafka(java, libs)


def _fetch(name: str, pom: str) -> Path | str:
    """Return the directory of the jars of a ``pom``; or a sentence on what is missing."""
    home = Path(os.environ.get("KAFKA_PEER_HOME") or ROOT / ".cache/kafka-peer").absolute()
    jars = home / name
    if not jars.is_dir():
        maven = shutil.which("mvn")
        if not maven:
            return "Maven is missing, which fetches Kafka's jars (sudo apt-get install maven)"
        home.mkdir(parents=True, exist_ok=True)
        # Tests in several processes come here at once. The first one fetches, the others wait for it.
        with FileLock(home / f"{name}.lock"):
            if not jars.is_dir():
                return _copy(maven, pom, jars)
    return jars


def _copy(maven: str, pom: str, jars: Path) -> Path | str:
    """Return the directory ``jars`` with the artifacts of the ``pom``; or a sentence on what is missing."""
    arriving = jars.with_name(f"{jars.name}.arriving")
    # It may remain from a run that was killed.
    shutil.rmtree(arriving, ignore_errors=True)
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={arriving}"]
    try:
        run_command([maven, "-q", "-B", "-f", str(_PEER / pom), *goal], timeout=900)
    except BenchmarkError as error:
        return f"Maven could not fetch Kafka's jars: {str(error).strip().splitlines()[-1]}"
    arriving.rename(jars)
    return jars


class KafkaServer(Server):
    """A server for Kafka's clients. ``bootstrap`` has its addresses."""

    kafka: Kafka
    bootstrap: str
    #: Replicas of a new topic.
    replicas = 1
    #: The topic that all readers share, once it exists.
    filled: str | None = None

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        options = [text for name, value in (configs or {}).items() for text in ("--config", f"{name}={value}")]
        with self.awake():
            self.kafka.tool(
                "org.apache.kafka.tools.TopicCommand",
                "--bootstrap-server",
                self.bootstrap,
                "--create",
                "--topic",
                topic,
                "--partitions",
                str(partitions),
                "--replication-factor",
                str(self.replicas),
                *options,
            )


class Broker(SingleServer, KafkaServer):
    """One node in KRaft mode on an empty ``directory``: broker and controller, or the broker ``node_id`` of the cluster
    of ``first``.

    It is paused while others have their turn, which must not count as a failure: hence the length of its session. For
    the same reason, after a kill and a restart, it would wait as long for the end of its former session.
    """

    def __init__(
        self,
        kafka: Kafka,
        directory: Path,
        *,
        session_timeout_ms: int = _PATIENCE_MS,
        properties: Mapping[str, str] | None = None,
        node_id: int = 1,
        first: "Broker | None" = None,
    ) -> None:
        self.kafka = kafka
        self._directory = directory
        directory.mkdir(parents=True)
        port, controller_port = free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        self._properties = directory / "server.properties"
        listeners = f"PLAINTEXT://{self.bootstrap}"
        if first is None:
            # An id may not begin with a dash, which the tool takes for an option.
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
            self.cluster_id = f"L{cluster_id[1:]}"
            self.controller = f"127.0.0.1:{controller_port}"
            listeners += f",CONTROLLER://{self.controller}"
        else:
            self.cluster_id, self.controller = first.cluster_id, first.controller
        template = (_PEER / "server.properties").read_text(encoding="utf-8")
        filled = template.format(
            roles="broker,controller" if first is None else "broker",
            node_id=node_id,
            listeners=listeners,
            address=self.bootstrap,
            controller=self.controller,
            data=directory / "data",
            session_timeout_ms=session_timeout_ms,
        )
        more = "".join(f"{name}={value}\n" for name, value in (properties or {}).items())
        self._properties.write_text(filled + more, encoding="utf-8")
        kafka.tool("kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", str(self._properties))
        self.start()

    def start(self) -> None:
        """Start the broker, and wait until it reports that; ``ready_s`` is how long it took."""
        log = self._directory / "broker.log"
        command = self.kafka.command(_BROKER_OPTIONS, "kafka.Kafka", str(self._properties))
        began = time.monotonic()
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=self._directory
            )
        while b"Kafka Server started" not in log.read_bytes():
            if self.process.poll() is not None or time.monotonic() > began + _START_SECONDS:
                self.kill()
                raise BenchmarkError(f"Kafka did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)
        self.ready_s = time.monotonic() - began


class KafkaCluster(KafkaServer):
    """A cluster of ``count`` brokers, the first of them with the controller. A topic has a replica on each."""

    def __init__(self, kafka: Kafka, directory: Path, count: int) -> None:
        self.kafka = kafka
        self.replicas = count
        self._brokers: list[Broker] = []
        # As with the session: no broker fetches while all are paused.
        patient = {"replica.lag.time.max.ms": str(_PATIENCE_MS), "replica.socket.timeout.ms": str(_PATIENCE_MS)}
        try:
            for node_id in range(1, count + 1):
                first = self._brokers[0] if self._brokers else None
                broker = Broker(kafka, directory / str(node_id), properties=patient, node_id=node_id, first=first)
                self._brokers.append(broker)
        except BaseException:
            self.kill()
            raise
        self.bootstrap = ",".join(broker.bootstrap for broker in self._brokers)

    @property
    def pids(self) -> Sequence[int]:
        return [pid for broker in self._brokers for pid in broker.pids]

    def kill(self) -> None:
        for broker in self._brokers:
            broker.kill()


class ListeningStore(Store, KafkaServer):
    """Our store with a Kafka listener, for Kafka's own clients. Topics are created over HTTP."""

    def __init__(self, kafka: Kafka, data: Path, settings: Mapping[str, str] | None = None) -> None:
        self.kafka = kafka
        self.bootstrap = f"127.0.0.1:{free_port()}"
        super().__init__(data, {**(settings or {}), "KAFKA_LISTENERS": self.bootstrap})

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        with self.awake():
            super().create_topic(topic, partitions, configs)
