"""A run on a cluster: brokers and a load on them, faults one after the other, then everything healed, read from every
broker, and checked.

``python -m tests.faults.cluster.bench DIRECTORY --seed 7 --seconds 120``. One broker is impaired at a time, producers
ask for acks=all, and ``min.insync.replicas`` is 2 of three replicas: nothing that was acknowledged may be lost.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.faults.bench.bench import create_topic, read_partition
from tests.faults.bench.checker import check
from tests.faults.bench.delta_observer import READERS, read_version
from tests.faults.bench.evidence import Anomaly
from tests.faults.bench.history import AnyEvent, Fault, Heal, Recorder, read_history
from tests.faults.bench.neighbours import DeltaObserver
from tests.faults.bench.workload import Client, TopicSpec, Workload
from tests.faults.cluster.brokers import LAG_MS, SESSION_MS, BrokerProcess, Brokers

TOPICS = (
    TopicSpec("plain", 3, {"segment.ms": "700"}),
    TopicSpec("keyed", 2, {"segment.ms": "1500"}),
    TopicSpec("tail", 2),
)
_HEALED_S = 90.0
#: Faults under which a broker does not learn that others lead.
_ZOMBIES = {"cut_from_zookeeper", "pause", "zookeeper_killed"}
#: After it goes on, such a broker learns of its successors within that time.
_LEARNS_NS = 2 * 10**9
_LOST_S = (SESSION_MS / 1000, SESSION_MS / 1000 + 4)


@dataclass(slots=True)
class Report:
    seed: int
    seconds: float = 0.0
    acknowledged: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    anomalies: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        return "\n".join(
            [
                f"seed {self.seed}, {self.seconds:.0f} s, records acknowledged: {self.acknowledged:,}",
                f"faults: {self.faults.total()} ({faults})",
                f"anomalies: {len(self.anomalies)}",
                *self.anomalies,
            ]
        )


class Nemesis:
    """Faults of a cluster; each ends healed."""

    def __init__(self, brokers: Brokers, chance: random.Random, recorder: Recorder) -> None:
        self._brokers = brokers
        self._chance = chance
        self._recorder = recorder
        self.kinds: dict[str, Callable[[BrokerProcess], None]] = {
            "kill": self._kill,
            "terminate": self._terminate,
            "pause": self._pause,
            "blink": self._blink,
            "cut_from_zookeeper": self._cut_from_zookeeper,
            "cut_from_brokers": self._cut_from_brokers,
            "zookeeper_killed": self._zookeeper_killed,
            "fsync_fails": self._fsync_fails,
            "disk_full": self._disk_full,
            "slow_disk": self._slow_disk,
            "clock": self._clock,
        }

    def strike(self, kind: str) -> BrokerProcess:
        """One fault on a leader, a follower or the controller, and the way back. RuntimeError if it does not heal."""
        topic = self._chance.choice(TOPICS)
        victim = self._chance.choice(
            [
                lambda: self._brokers.leader_of(topic.name, self._chance.randrange(topic.partitions)),
                self._brokers.controller,
                lambda: self._chance.choice(self._brokers.all),
            ]
        )() or self._chance.choice(self._brokers.all)
        self._recorder.tell("nemesis", "fault", kind=kind, settings={"broker": victim.number})
        self.kinds[kind](victim)
        if not victim.is_running:
            victim.start()
        self._brokers.wait_until_healed(_HEALED_S)
        self._recorder.tell("nemesis", "heal")
        return victim

    def _wait(self, least: float, most: float) -> None:
        time.sleep(self._chance.uniform(least, most))

    def _kill(self, victim: BrokerProcess) -> None:
        victim.server.kill()
        self._wait(0, SESSION_MS / 1000 + 2)

    def _terminate(self, victim: BrokerProcess) -> None:
        if code := victim.server.stop():
            raise RuntimeError(f"SIGTERM ended broker {victim.number} with {code}")
        self._wait(0, 2)

    def _pause(self, victim: BrokerProcess) -> None:
        self._stopped(victim, *_LOST_S)

    def _blink(self, victim: BrokerProcess) -> None:
        self._stopped(victim, 0.1, SESSION_MS / 2000)

    def _stopped(self, victim: BrokerProcess, least: float, most: float) -> None:
        victim.server.process.send_signal(signal.SIGSTOP)
        self._wait(least, most)
        victim.server.process.send_signal(signal.SIGCONT)

    def _cut_from_zookeeper(self, victim: BrokerProcess) -> None:
        self._brokers.links.cut(victim.to_zookeeper)
        self._wait(1, SESSION_MS / 1000 + 4)
        self._brokers.links.heal(victim.to_zookeeper)

    def _cut_from_brokers(self, victim: BrokerProcess) -> None:
        """The others do not reach it; it reaches them."""
        self._brokers.links.cut(victim.from_brokers)
        self._wait(0.5, LAG_MS / 1000 + 3)
        self._brokers.links.heal(victim.from_brokers)

    def _zookeeper_killed(self, victim: BrokerProcess) -> None:
        self._brokers.zookeeper.kill()
        self._wait(1, SESSION_MS / 1000 + 6)
        self._brokers.zookeeper.start()

    def _fsync_fails(self, victim: BrokerProcess) -> None:
        victim.server.control("fail fdatasync EIO path=journal")
        self._wait(2, 5)
        victim.server.kill()

    def _disk_full(self, victim: BrokerProcess) -> None:
        victim.server.control("fill 0")
        self._wait(1, LAG_MS / 1000 + 2)
        victim.server.control("heal")

    def _slow_disk(self, victim: BrokerProcess) -> None:
        victim.server.control(f"slow fdatasync {self._chance.uniform(0.1, 1.0):.2f}")
        self._wait(1, 5)
        victim.server.control("heal")

    def _clock(self, victim: BrokerProcess) -> None:
        victim.server.control(f"clock {self._chance.choice([-1, 1]) * 3_600_000}")
        self._wait(0.5, 3)
        victim.server.control("heal")


def run(directory: Path, seed: int, seconds: float, *, mutant: str = "", kinds: tuple[str, ...] = ()) -> Report:
    """The outcome of a run; the history stays in ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    report = Report(seed)
    began = time.monotonic()
    history = directory / "history.jsonl"
    with Recorder(history) as recorder, Brokers(directory, mutant=mutant) as brokers:
        try:
            _run(brokers, recorder, history, report, began + seconds, kinds)
        except (AssertionError, OSError, RuntimeError, httpx.HTTPError) as error:
            report.anomalies.append(f"the run broke off: {error!r}")
    events = read_history(history)
    report.anomalies += [str(anomaly) for anomaly in check(events) if not _is_stale_read(anomaly, events)]
    report.seconds = time.monotonic() - began
    return report


def _is_stale_read(anomaly: Anomaly, events: Sequence[AnyEvent]) -> bool:
    """Whether a leader that ZooKeeper does not reach has told an end that was true before: as in Kafka, it serves reads
    until it learns of its successor, and an end is promised not to fall on one leader (H4).
    """
    if anomaly.invariant != "B4" or not anomaly.events:
        return False
    read = anomaly.events[0].t
    began = [event.t for event in events if isinstance(event, Fault) and event.kind in _ZOMBIES and event.t <= read]
    healed = [event.t for event in events if isinstance(event, Heal) and event.t + _LEARNS_NS <= read]
    return bool(began) and max(began) > max(healed, default=0)


def _run(
    brokers: Brokers, recorder: Recorder, history: Path, report: Report, until: float, kinds: tuple[str, ...]
) -> None:
    chance = random.Random(report.seed)
    recorder.tell("nemesis", "start")
    for topic in TOPICS:
        create_topic(brokers.urls[0], topic, recorder)
    brokers.wait_until_healed(_HEALED_S)
    brokers.wait_until_known([topic.name for topic in TOPICS], _HEALED_S)
    observer = DeltaObserver(brokers.data, history)
    nemesis = Nemesis(brokers, chance, recorder)
    workload = Workload(
        brokers.urls, recorder, TOPICS, seed=report.seed, producers=4, readers=2, pause_s=0.03, large=0.1, acks=("all",)
    )
    observer.start()
    try:
        with workload:
            while time.monotonic() < until:
                kind = chance.choice(kinds or tuple(nemesis.kinds))
                report.faults[kind] += 1
                victim = nemesis.strike(kind)
                sys.stderr.write(f"{time.monotonic() - until:7.1f} {kind} of broker {victim.number}\n")
                workload.wait_for_an_acknowledgement(seconds=_HEALED_S)
            if stuck := workload.wait_for_progress(seconds=_HEALED_S):
                raise RuntimeError(f"healed, the cluster takes or gives nothing: {stuck}")
        for topic in TOPICS:
            httpx.post(f"{chance.choice(brokers.urls)}/topics/{topic.name}/roll", timeout=60).raise_for_status()
        observer.end()
        _read_everywhere(brokers, recorder, workload, report)
        for broker in brokers.all:
            if code := broker.server.stop():
                report.anomalies.append(f"SIGTERM ended healed broker {broker.number} with {code}")
        _read_tables(brokers, recorder)
    finally:
        observer.kill()
        report.acknowledged = workload.acknowledged.total()


def _read_everywhere(brokers: Brokers, recorder: Recorder, workload: Workload, report: Report) -> None:
    for topic in TOPICS:
        for partition in range(topic.partitions):
            reads = []
            for broker in brokers.all:
                client = Client(broker.url, f"final-{broker.number}", recorder)
                reads.append(read_partition(client, topic.name, partition))
                client.close()
            recorder.tell("final", "final", topic=topic.name, partition=partition, **reads[0])
            if any(read != reads[0] for read in reads):
                report.anomalies.append(f"H: brokers read {topic.name}-{partition} differently")
        client = Client(brokers.urls, "final", recorder)
        for group in workload.groups:
            answer, told = client.committed(group, topic.name)
            if not answer.ok:
                raise RuntimeError(f"offsets of {group}: {answer.reason}")
            recorder.tell("final", "final_commits", group=group, topic=topic.name, **told)
        client.close()


def _read_tables(brokers: Brokers, recorder: Recorder) -> None:
    for topic in TOPICS:
        for reader in READERS:
            told = read_version(brokers.data / "topics" / topic.name, None, reader=reader, partitions=topic.partitions)
            recorder.tell(f"final-{reader}", "final_delta", topic=topic.name, **told)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.cluster.bench", description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?", help="default: a temporary one")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 16))
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--kinds", default="", help="kinds of faults, separated by commas (default: all)")
    given = parser.parse_args()
    kinds = tuple(kind for kind in given.kinds.split(",") if kind)
    with tempfile.TemporaryDirectory() as temporary:
        report = run(given.directory or Path(temporary), given.seed, given.seconds, kinds=kinds)
    sys.stdout.write(f"{report}\n")
    return 1 if report.anomalies else 0


if __name__ == "__main__":
    sys.exit(main())
