"""A run: a store, a load on it and a schedule of faults; then everything is healed, read once more, and checked.

Invariants: the history holds everything that any client or reader was shown. The last reads come after all producers,
readers and jobs have ended and nothing fails any more: over HTTP first, then, after a clean stop, by independent Delta
readers. Beyond the checker's invariants a run requires that the store recovers, that jobs succeed once healed, and that
every Delta reader could read every version.
"""

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.free_port import free_port
from logstore.records.offset_record import OFFSETS_TOPIC
from tests.faults.bench.checker import check
from tests.faults.bench.delta_observer import READERS, committed_offsets, read_version
from tests.faults.bench.groups import ENVIRONMENT as GROUP_ENVIRONMENT
from tests.faults.bench.groups import Groups, GroupSpec
from tests.faults.bench.history import (
    AnyEvent,
    Assigned,
    Commit,
    Committed,
    Delta,
    Fetch,
    Job,
    Produce,
    Recorder,
    Statement,
    Stream,
    read_history,
)
from tests.faults.bench.kafka_load import KafkaLoad
from tests.faults.bench.kafka_producer import ProducerKind
from tests.faults.bench.neighbours import DeltaObserver, JobLoop, Neighbour, StreamingReader
from tests.faults.bench.nemesis import READY_S, StoreBrokenError
from tests.faults.bench.nemesis import Neighbour as Killed
from tests.faults.bench.rebalancing import Rebalancer
from tests.faults.bench.schedule import HOUR_MS, Fault
from tests.faults.bench.workload import Client, TopicSpec, Workload, tell_topic
from tests.support.server_process import FaultyServerProcess

_COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"}
TOPICS = (
    TopicSpec("plain", 3, {"segment.ms": "400"}),
    TopicSpec("bounded", 2, {"segment.ms": "600", "retention.bytes": "60000"}),
    TopicSpec("compacted", 2, {"segment.ms": "500", **_COMPACT}),
    TopicSpec("appended", 1, {"segment.ms": "800", "message.timestamp.type": "LogAppendTime"}),
)
#: Compaction leaves little: this small bound removes records while compaction works on them.
BOTH = TopicSpec(
    "both", 2, {**_COMPACT, "segment.ms": "700", "cleanup.policy": "compact,delete", "retention.bytes": "3000"}
)
#: Topics that members of groups read.
SHARED = (
    TopicSpec("shared", 4, {"segment.ms": "500"}, shared=True),
    TopicSpec("shared-too", 2, {"segment.ms": "700"}, shared=True),
)
#: Journal files are small, so that they are begun and freed many times.
_ENVIRONMENT = {"LOGSTORE_JOURNAL_MAX_BYTES": str(32 << 20), "LOGSTORE_LOG_LEVEL": "info", **GROUP_ENVIRONMENT}
#: Within this time each job finds work on each of its own topics, and does it.
_JOBS_S = 300.0
_CALLS = (Produce, Fetch, Commit, Committed, Delta, Job)


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a run beside its faults; ``large`` is the share of requests with large values.

    The job ``compact`` starts Spark.
    """

    topics: Sequence[TopicSpec] = TOPICS
    producers: int = 4
    readers: int = 2
    pause_s: float = 0.03
    large: float = 0.15
    jobs: Sequence[str] = ("retention",)
    job_pause_s: float = 0.5
    deletes: Sequence[str] = ()
    #: Job and topic: the load continues until each has committed.
    commits: Sequence[tuple[str, str]] = ()
    observed: bool = True
    #: Topics on which Spark runs streaming queries; these start a JVM.
    streamed: Sequence[str] = ()
    #: Their members are processes that read all shared topics.
    groups: Sequence[GroupSpec] = ()
    #: Producers that use Kafka's protocol, beside those that use HTTP, and readers.
    kafka_producers: Sequence[ProducerKind] = ()
    kafka_readers: int = 0
    #: True if most producers send a request again while its outcome is open.
    sent_again: bool = True
    #: A healed store has this much time until every log takes and serves records.
    patience_s: float = READY_S


@dataclass(slots=True)
class Report:
    seed: int
    seconds: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    #: Records among these by producers with Kafka's protocol.
    of_kafkas: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    job_commits: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Records that each kind of streaming query received, by topic.
    streamed: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Partitions that members of each group were assigned.
    moves: Counter[str] = field(default_factory=Counter)
    anomalies: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        def counts(counter: Mapping[Any, int]) -> str:
            named = {" ".join(key) if isinstance(key, tuple) else key: n for key, n in counter.items()}
            return ", ".join(f"{name} {n:,}" for name, n in sorted(named.items())) or "none"

        lines = [
            f"seed {self.seed}, {self.seconds:.0f} s",
            f"records acknowledged: {self.acknowledged:,}, of these with Kafka's protocol {self.of_kafkas:,}",
            f"calls: {counts(self.calls)}",
            f"commits of jobs: {counts(self.job_commits)}",
            f"records streamed: {counts(self.streamed)}",
            f"partitions assigned to members: {counts(self.moves)}",
            f"faults: {counts(self.faults)}",
            f"of the disk, as they struck: {counts(self.injected)}",
            f"anomalies: {len(self.anomalies)}",
            *self.anomalies,
        ]
        return "\n".join(lines)


class BenchedServer(FaultyServerProcess):
    """A server that keeps its addresses over restarts, also the one for Kafka's clients."""

    def __init__(self, data: Path, *, mutant: str = "") -> None:
        self.bootstrap = f"127.0.0.1:{free_port()}"
        environment = {**_ENVIRONMENT, "LOGSTORE_KAFKA_LISTENERS": self.bootstrap}
        super().__init__(data, port=free_port(), environment=environment, mutant=mutant)


class Bench:
    """One run in ``directory``; the history stays there."""

    def __init__(self, directory: Path, seed: int, load: Load, *, mutant: str = "") -> None:
        self._directory = directory
        self._seed = seed
        self._load = load
        self._mutant = mutant
        directory.mkdir(parents=True, exist_ok=True)
        self.history = directory / "history.jsonl"
        self._data = directory / "data"
        self.report = Report(seed)
        #: The topics with the partitions that they have at the end.
        self._topics = list(load.topics)

    def run(self, schedule: Iterable[Fault], *, seconds: float = math.inf) -> Report:
        """Strike the faults one by one under load, until none is left or the time is over; return the report."""
        began = time.monotonic()
        report = self.report
        with (
            Recorder(self.history) as recorder,
            BenchedServer(self._data, mutant=self._mutant) as server,
        ):
            try:
                self._run(server, recorder, schedule, began + seconds)
            except (AssertionError, OSError, RuntimeError, StoreBrokenError, httpx.HTTPError) as error:
                report.anomalies.append(f"the run broke off: {error!r}\n{server.log[-2000:]}")
                if server.process.poll() is None:
                    server.kill()
        events = read_history(self.history)
        report.anomalies += [str(anomaly) for anomaly in check(events)]
        self._count(events)
        report.seconds = time.monotonic() - began
        return report

    def _run(self, server: "BenchedServer", recorder: Recorder, schedule: Iterable[Fault], until: float) -> None:
        load = self._load
        recorder.tell("nemesis", "start")
        for topic in load.topics:
            create_topic(server.url, topic, recorder)
        jobs = JobLoop(self._data, self.history, load.jobs, pause_s=load.job_pause_s) if load.jobs else None
        observer = DeltaObserver(self._data, self.history) if load.observed else None
        streams = StreamingReader(self._data, self.history, server.url, load.streamed) if load.streamed else None
        neighbours: list[Killed] = [neighbour for neighbour in (jobs, observer, streams) if neighbour]
        shared = {topic.name: topic.partitions for topic in load.topics if topic.shared}
        groups = Groups(server.url, recorder, load.groups, shared, self._directory, server.bootstrap)
        neighbours.append(groups)
        workload = Workload(
            server.url,
            recorder,
            [topic for topic in load.topics if not topic.by_hand],
            seed=self._seed,
            producers=load.producers,
            readers=load.readers,
            pause_s=load.pause_s,
            large=load.large,
            deletes=load.deletes,
            sent_again=load.sent_again,
        )
        kafka = KafkaLoad(
            server.bootstrap,
            recorder,
            [topic for topic in load.topics if not topic.by_hand],
            seed=self._seed,
            producers=load.kafka_producers,
            readers=load.kafka_readers,
            pause_s=load.pause_s,
            large=load.large,
        )
        nemesis = Rebalancer(
            server,
            recorder,
            load.topics,
            neighbours,
            jobs,
            groups,
            workload,
            streams=streams,
            patience_s=load.patience_s,
        )
        try:
            for neighbour in neighbours:
                neighbour.start()
            with workload, kafka:
                for fault in schedule:
                    if time.monotonic() > until:
                        break
                    time.sleep(fault.quiet)
                    # On a slow machine the faults would otherwise come before there is a record to lose.
                    workload.wait_for_an_acknowledgement(seconds=load.patience_s)
                    nemesis.strike(fault)
                self._wait_for_jobs(jobs)
                nemesis.write_by_hand()
                if stuck := workload.wait_for_progress(seconds=load.patience_s):
                    raise StoreBrokenError(f"healed, the store takes or gives nothing: {stuck}")
                if waiting := kafka.wait_for_progress(seconds=load.patience_s):
                    raise StoreBrokenError(f"healed, the store takes from or gives Kafka's clients nothing: {waiting}")
            self._topics = [*(topic for topic in load.topics if not topic.shared), *nemesis.shared]
            self._drain(server, groups, nemesis.shared)
            self._roll_all(server)
            if jobs:
                jobs.end()
                # After a roll the store looks at its tables; otherwise it looks only every few seconds.
                self._roll_all(server)
            if observer:
                observer.end()
            if streams:
                streams.end()
            names = [*workload.groups, *kafka.groups, *(spec.name for spec in load.groups)]
            self._read_over_http(server, recorder, names)
            if code := server.stop():
                self.report.anomalies.append(f"SIGTERM ended the healed server with {code}")
            self._read_tables(recorder, names)
        finally:
            groups.abandon()
            for neighbour in (jobs, observer, streams):
                if neighbour:
                    Neighbour.kill(neighbour)
            nemesis.close()
            self.report.of_kafkas = kafka.acknowledged.total()
            self.report.acknowledged = workload.acknowledged.total() + self.report.of_kafkas
            self.report.faults, self.report.injected = nemesis.faults, nemesis.injected
            self.report.anomalies += [*nemesis.broken, *groups.failures]
            self.report.job_commits = jobs.commits if jobs else Counter()

    def _drain(self, server: FaultyServerProcess, groups: Groups, shared: Sequence[TopicSpec]) -> None:
        """Let the members process the remaining records, then close them."""
        if not groups.specs:
            return
        logs = [(topic.name, partition) for topic in shared for partition in range(topic.partitions)]
        ends = {}
        for topic, partition in logs:
            answer = httpx.get(f"{server.url}/topics/{topic}/partitions/{partition}/offsets", timeout=READY_S)
            ends[topic, partition] = int(answer.raise_for_status().json()["end_offset"])
        self.report.anomalies += groups.drain(ends, self._load.patience_s)
        groups.end()

    def _wait_for_jobs(self, jobs: JobLoop | None) -> None:
        deadline = time.monotonic() + _JOBS_S
        while jobs and (idle := [wanted for wanted in self._load.commits if not jobs.commits[wanted]]):
            if time.monotonic() > deadline:
                raise RuntimeError(f"never committed: {idle}\n{jobs.log[-2000:]}")
            time.sleep(0.2)

    def _roll_all(self, server: FaultyServerProcess) -> None:
        for topic in self._topics:
            httpx.post(f"{server.url}/topics/{topic.name}/roll", timeout=READY_S).raise_for_status()

    def _read_over_http(self, server: FaultyServerProcess, recorder: Recorder, groups: Sequence[str]) -> None:
        client = Client(server.url, "final", recorder)
        for topic in self._topics:
            for partition in range(topic.partitions):
                told = read_partition(client, topic.name, partition)
                recorder.tell("final", "final", topic=topic.name, partition=partition, **told)
            for group in groups:
                answer, told = client.committed(group, topic.name)
                if not answer.ok:
                    raise RuntimeError(f"offsets of {group}: {answer.reason}")
                recorder.tell("final", "final_commits", group=group, topic=topic.name, **told)
        client.close()

    def _read_tables(self, recorder: Recorder, groups: Sequence[str]) -> None:
        for topic in self._topics:
            for reader in READERS:
                told = read_version(
                    self._data / "topics" / topic.name, None, reader=reader, partitions=topic.partitions
                )
                recorder.tell(f"final-{reader}", "final_delta", topic=topic.name, **told)
        offsets = self._data / "topics" / OFFSETS_TOPIC
        committed = committed_offsets(offsets) if offsets.is_dir() else {}
        for group, topic in itertools.product(groups, self._topics):
            of_topic = committed.get((group, topic.name), {})
            recorder.tell("final-delta-rs", "final_commits", group=group, topic=topic.name, offsets=of_topic)

    def _count(self, events: Sequence[AnyEvent]) -> None:
        for event in events:
            if event.phase != "invoke" and isinstance(event, _CALLS):
                self.report.calls[f"{type(event).__struct_config__.tag} {event.phase}"] += 1
            if isinstance(event, Assigned):
                self.report.moves[event.group] += len(event.partitions)
            if isinstance(event, Stream):
                self.report.streamed[event.query, event.topic] += len(event.rows)
            if isinstance(event, Delta) and event.phase != "ok" and not _is_erased(events, event):
                self.report.anomalies.append(
                    f"no Delta reader can read version {event.version} of {event.topic}: {event.error}"
                )
            if isinstance(event, Job) and event.phase == "info" and event.process == "final-jobs":
                self.report.anomalies.append(f"a job fails though nothing is wrong any more: {event}")
        for streamed in itertools.product(("logstore", "delta"), self._load.streamed):
            if not self.report.streamed[streamed]:
                self.report.anomalies.append(f"no record came to the stream {' '.join(streamed)}")


#: A clock that is set forward by hours does not end the time in which a request may be sent again.
_REMEMBER = {"idempotency.window.ms": str(24 * HOUR_MS)}


def create_topic(url: str, topic: TopicSpec, recorder: Recorder, *, replicas: int | None = None) -> None:
    """Create a topic; repeat the request for ``READY_S``, because brokers that have just started may refuse it.

    Raises RuntimeError if it is still refused then.
    """
    body = {
        "topic_name": topic.name,
        "partitions_count": topic.partitions,
        "replication_factor": replicas,
        "configs": [{"name": name, "value": value} for name, value in {**_REMEMBER, **topic.configs}.items()],
    }
    deadline = time.monotonic() + READY_S
    may_be_there = False
    while True:
        answer = httpx.get(f"{url}/v3/clusters", timeout=60)
        if answer.is_success:
            cluster = answer.json()["data"][0]["cluster_id"]
            answer = httpx.post(f"{url}/v3/clusters/{cluster}/topics", json=body, timeout=60)
        may_be_there |= answer.status_code == httpx.codes.GATEWAY_TIMEOUT
        # A broker on a busy machine may be away for a moment.
        is_early = answer.status_code == httpx.codes.BAD_REQUEST and "larger than the number of brokers" in answer.text
        if not (is_early or answer.status_code in (503, 504)) or time.monotonic() > deadline:
            break
        time.sleep(1)
    if answer.is_error and not (may_be_there and answer.status_code == httpx.codes.CONFLICT):
        raise RuntimeError(f"topic {topic.name} is not created: {answer.status_code} {answer.text}")
    tell_topic(recorder, topic)


def read_partition(client: Client, topic: str, partition: int) -> dict[str, Any]:
    """Read all records of the partition in pages, from the log start on."""
    path = f"/topics/{topic}/partitions/{partition}/offsets"
    at = start = client.get(path)["beginning_offset"]
    rows: list[Any] = []
    while True:
        answer, told = client.fetch(topic, partition, at, form="arrow", max_bytes=8 << 20, max_wait_ms=0)
        if not answer.ok:
            raise RuntimeError(f"reading {topic}-{partition} at {at}: {answer.reason}")
        rows += told["records"]
        at = told["next_offset"]
        if at >= told["high_watermark"]:
            return {"log_start": start, "high_watermark": told["high_watermark"], "rows": rows}


def _is_erased(events: Sequence[AnyEvent], look: Delta) -> bool:
    """Return whether an erasure removed the files: those of earlier versions go at once with it."""
    asked: dict[str, Statement] = {}
    told: dict[str, Statement] = {}
    for event in events:
        if isinstance(event, Statement) and event.how == "erase" and event.topic == look.topic:
            (asked if event.phase == "invoke" else told)[event.id] = event
    return any(
        begun.t < look.t and (one not in told or look.version < told[one].version) for one, begun in asked.items()
    )
