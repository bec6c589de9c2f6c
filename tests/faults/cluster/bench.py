"""A run on a cluster: brokers and a load on them, faults one after the other, then everything healed, read from every
broker, and checked.

``torture`` beside it does one run after the other. Producers ask for acks=all, and ``min.insync.replicas`` is one less
than the replicas, so no acknowledged record may be lost (``nemesis``).
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.faults.bench.bench import create_topic, read_partition
from tests.faults.bench.checker import check
from tests.faults.bench.delta_observer import READERS, read_version
from tests.faults.bench.evidence import Anomaly, Evidence
from tests.faults.bench.groups import (
    CONSUMER,
    COOPERATIVE,
    KAFKA_CONSUMER,
    KAFKA_COOPERATIVE,
    MIXED,
    RANGE,
    Groups,
    GroupSpec,
)
from tests.faults.bench.history import AnyEvent, Assigned, Fault, Heal, Probe, Recorder, read_history
from tests.faults.bench.kafka_load import KafkaLoad
from tests.faults.bench.kafka_producer import IDEMPOTENT, ProducerKind
from tests.faults.bench.neighbours import DeltaObserver, Neighbour
from tests.faults.bench.workload import Client, TopicSpec, Workload
from tests.faults.cluster.brokers import MIN_IN_SYNC, Brokers
from tests.faults.cluster.cluster_checks import check_cluster
from tests.faults.cluster.nemesis import HEALED_S, KINDS, Nemesis, rounds
from tests.faults.cluster.probes import Probes
from tests.faults.cluster.pulse import Pulse
from tests.faults.cluster.registrations import Registrations

TOPICS = (
    TopicSpec("plain", 3, {"segment.ms": "3000"}),
    TopicSpec("keyed", 2, {"segment.ms": "5000"}),
    TopicSpec("tail", 2),
)
#: A topic that the members of groups read.
SHARED = TopicSpec("shared", 3, {"segment.ms": "3000"}, shared=True)
#: A topic that is written with acks=1, by one broker after the other; it promises nothing.
PROBED = TopicSpec("probed", 3, {"segment.ms": "60000"})
#: Other kinds of producers store records twice: with or without retries, librdkafka sends again what is under way to a
#: broker that leaves the metadata.
KAFKA = (IDEMPOTENT,) * 3
GROUPS = (RANGE, COOPERATIVE, CONSUMER)
KAFKA_GROUPS = (MIXED, KAFKA_COOPERATIVE, KAFKA_CONSUMER)
#: Faults during which a broker does not learn of other leaders.
_ZOMBIES = {
    "cut_from_zookeeper",
    "one_way_to_zookeeper",
    "half_open_to_zookeeper",
    "flapping_to_zookeeper",
    "session_expired",
    "pause",
    "blink",
    "fail_point",
    "fail_point_at_a_change",
    "fail_point_at_work",
    "zookeeper_killed",
    "zookeeper_majority_lost",
    "zookeeper_restarted",
}
#: After such a fault the broker learns of its successors within this time.
_LEARNS_NS = 2 * 10**9
#: acks=all without ZooKeeper: no log waits for longer than this.
_GOES_ON_S = 60.0
#: Anomalies that a report shows.
_SHOWN = 30


@dataclass(slots=True)
class Report:
    seed: int
    seconds: float = 0.0
    acknowledged: int = 0
    #: Records among these by producers with Kafka's protocol.
    of_kafkas: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    #: Processes of brokers that were killed, terminated, stopped or cut from power.
    blows: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    #: Partitions that members of groups were assigned.
    moves: int = 0
    anomalies: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"seed {self.seed}, {self.seconds:.0f} s",
                f"records acknowledged: {self.acknowledged:,}, of these with Kafka's protocol {self.of_kafkas:,}",
                f"faults: {self.faults.total()} ({counts(self.faults)})",
                f"processes of brokers: {self.blows.total()} ({counts(self.blows)})",
                f"fail points that were reached: {counts(self.points)}",
                f"partitions assigned to members: {self.moves}",
                f"anomalies: {len(self.anomalies)}",
                *self.anomalies[:_SHOWN],
            ]
        )


def counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items())) or "none"


@dataclass(frozen=True, slots=True)
class Load:
    """The load and its faults: ``kinds`` of faults, all if empty; at most ``faults``; ``long_s``: how long ZooKeeper is
    gone.
    """

    kinds: tuple[str, ...] = ()
    faults: int = 1 << 30
    groups: Sequence[GroupSpec] = ()
    #: Producers with Kafka's protocol, beside a reader with it.
    kafka: Sequence[ProducerKind] = ()
    producers: int = 4
    #: The approximate pause between two requests of a client.
    pause_s: float = 0.1
    long_s: float = 6.0
    inside: bool = True
    zookeepers: int = 3


def run(directory: Path, seed: int, seconds: float, load: Load | None = None, *, mutant: str = "") -> Report:
    """Return the outcome of a run; the history stays in ``directory``."""
    load = load or Load()
    directory.mkdir(parents=True, exist_ok=True)
    report = Report(seed)
    began = time.monotonic()
    history = directory / "history.jsonl"
    with Recorder(history) as recorder, Brokers(directory, zookeepers=load.zookeepers, mutant=mutant) as brokers:
        try:
            _run(brokers, recorder, directory, report, seconds, load)
        except (AssertionError, OSError, RuntimeError, httpx.HTTPError) as error:
            report.anomalies.append(f"the run broke off: {type(error).__name__}: {error}")
    events = read_history(history)
    report.anomalies += judge(events)
    report.moves = sum(len(event.partitions) for event in events if isinstance(event, Assigned))
    report.seconds = time.monotonic() - began
    return report


def judge(events: Sequence[AnyEvent]) -> list[str]:
    """Return the anomalies of a history of a cluster."""
    promised = [one for one in events if not isinstance(one, Probe) and getattr(one, "topic", None) != PROBED.name]
    found = [anomaly for anomaly in check(promised) if not _is_stale_read(anomaly, events)]
    found += check_cluster(Evidence(events), min_in_sync=MIN_IN_SYNC)
    return [str(anomaly) for anomaly in found]


def _is_stale_read(anomaly: Anomaly, events: Sequence[AnyEvent]) -> bool:
    """Return whether the anomaly is a stale end from a leader that ZooKeeper does not reach.

    As in Kafka, it serves reads until it learns of its successor; only on one leader the end is promised not to fall
    (H4).
    """
    if anomaly.invariant != "B4" or not anomaly.events:
        return False
    read = anomaly.events[0].t
    began = [event.t for event in events if isinstance(event, Fault) and event.kind in _ZOMBIES and event.t <= read]
    healed = [event.t for event in events if isinstance(event, Heal) and event.t + _LEARNS_NS <= read]
    return bool(began) and max(began) > max(healed, default=0)


def _run(brokers: Brokers, recorder: Recorder, directory: Path, report: Report, seconds: float, load: Load) -> None:
    """Strike for ``seconds``, which do not include the start of the brokers."""
    chance = random.Random(report.seed)
    recorder.tell("nemesis", "start")
    shared = [SHARED] if load.groups else []
    written = [*TOPICS, *shared]
    for topic in (*written, PROBED):
        create_topic(brokers.urls[0], topic, recorder)
    brokers.wait_until_healed(HEALED_S)
    brokers.wait_until_known([topic.name for topic in (*written, PROBED)], HEALED_S)
    observer = DeltaObserver(brokers.data, recorder.path)
    nemesis = Nemesis(brokers, chance, recorder, written, directory, long_s=load.long_s)
    workload = Workload(
        brokers.urls,
        recorder,
        written,
        seed=report.seed,
        producers=load.producers,
        readers=2,
        pause_s=load.pause_s,
        large=0.1,
        acks=("all",),
    )
    kafka = KafkaLoad(
        brokers.bootstrap,
        recorder,
        written,
        seed=report.seed,
        producers=load.kafka,
        readers=1 if load.kafka else 0,
        pause_s=load.pause_s,
        large=0.1,
    )
    partitions = {topic.name: topic.partitions for topic in shared}
    groups = Groups(brokers.urls, recorder, load.groups, partitions, directory, brokers.bootstrap)

    def require_progress(when: str) -> None:
        if stuck := workload.wait_for_progress(seconds=_GOES_ON_S):
            report.anomalies.append(f"acks=all does not go on {when}: {stuck}")

    nemesis.require_progress = require_progress
    observer.start()
    try:
        groups.start()
        with Registrations(brokers.zookeeper.connect, recorder), Pulse(recorder, directory):
            with workload, kafka, Probes(brokers, recorder, written, PROBED):
                until = time.monotonic() + seconds
                for number, kind in enumerate(rounds(chance, load.kinds or KINDS)):
                    if time.monotonic() > until or number >= load.faults:
                        break
                    began = time.monotonic()
                    victim = nemesis.strike(kind, inside=load.inside)
                    said = f"{kind} of broker {victim.number}, {time.monotonic() - began:.1f} s"
                    sys.stderr.write(f"{time.monotonic() - until:7.1f} {said}\n")
                    workload.wait_for_an_acknowledgement(seconds=HEALED_S)
                if stuck := workload.wait_for_progress(seconds=HEALED_S):
                    raise RuntimeError(f"healed, the cluster takes or gives nothing: {stuck}")
                if waiting := kafka.wait_for_progress(seconds=HEALED_S):
                    raise RuntimeError(f"healed, the cluster takes from or gives Kafka's clients nothing: {waiting}")
            _drain(brokers, groups, shared, report)
            for topic in written:
                answer = httpx.post(f"{chance.choice(brokers.urls)}/topics/{topic.name}/roll", timeout=60)
                answer.raise_for_status()
            observer.end()
            names = [*workload.groups, *kafka.groups, *(spec.name for spec in load.groups)]
            _read_everywhere(brokers, recorder, written, names, report)
            brokers.wait_until_healed(HEALED_S)
        for broker in brokers.all:
            if code := broker.server.stop():
                report.anomalies.append(f"SIGTERM ended healed broker {broker.number} with {code}")
        nemesis.tell_replicas()
        _read_tables(brokers, recorder, written)
    finally:
        groups.abandon()
        Neighbour.kill(observer)
        report.of_kafkas = kafka.acknowledged.total()
        report.acknowledged = workload.acknowledged.total() + report.of_kafkas
        report.faults, report.points = nemesis.faults, nemesis.points
        report.blows = sum((broker.blows for broker in brokers.all), Counter())
        report.anomalies += [*nemesis.broken, *groups.failures]


def _drain(brokers: Brokers, groups: Groups, shared: Sequence[TopicSpec], report: Report) -> None:
    """Let the members process the remaining records, then close them."""
    if not groups.specs:
        return
    ends = {}
    for topic in shared:
        for partition in range(topic.partitions):
            answer = httpx.get(f"{brokers.urls[0]}/topics/{topic.name}/partitions/{partition}/offsets", timeout=60)
            ends[topic.name, partition] = int(answer.raise_for_status().json()["end_offset"])
    report.anomalies += groups.drain(ends, HEALED_S)
    groups.end()


def _read_everywhere(
    brokers: Brokers, recorder: Recorder, topics: Sequence[TopicSpec], groups: Sequence[str], report: Report
) -> None:
    for topic in topics:
        for partition in range(topic.partitions):
            reads = []
            for broker in brokers.all:
                client = Client(broker.url, f"final-{broker.number}", recorder)
                reads.append(read_partition(client, topic.name, partition))
                client.close()
            recorder.tell("final", "final", topic=topic.name, partition=partition, **reads[0])
            if any(read != reads[0] for read in reads):
                report.anomalies.append(f"H6 brokers read {topic.name}-{partition} differently")
        client = Client(brokers.urls, "final", recorder)
        for group in groups:
            answer, told = client.committed(group, topic.name)
            if not answer.ok:
                raise RuntimeError(f"offsets of {group}: {answer.reason}")
            recorder.tell("final", "final_commits", group=group, topic=topic.name, **told)
        client.close()


def _read_tables(brokers: Brokers, recorder: Recorder, topics: Sequence[TopicSpec]) -> None:
    for topic in topics:
        for reader in READERS:
            told = read_version(brokers.data / "topics" / topic.name, None, reader=reader, partitions=topic.partitions)
            recorder.tell(f"final-{reader}", "final_delta", topic=topic.name, **told)
