"""The run of a case: every contender in turn, round after round, alone on the machine during its turn."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.cluster import REPLICAS, Cluster
from benchmarks.kafka import Broker, Kafka, KafkaCluster, ListeningStore
from benchmarks.measure import METRICS, Finding, Sample, Target, find
from benchmarks.server import ROOT, BenchmarkError, Storage, Store, Turn

#: The measures of a turn that are printed at once.
_TOLD = ("records_s", "p99_ms", "ready_s", "joined_s", "outage_s", "longest_ms", "errors", "rest_percent")


@dataclass(frozen=True, slots=True)
class Peers:
    """Tools of this machine, None if missing. ``confluent``, ``wrk`` and ``zookeeper`` (its Java) are paths."""

    kafka: Kafka | None = None
    confluent: str | None = None
    wrk: str | None = None
    zookeeper: str | None = None


class Contender(Protocol):
    """One side of a comparison. ``needs`` names fields of Peers."""

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> tuple[str, ...]: ...

    def start(self, stage: "Stage") -> Turn:
        """Start servers, make topics and bodies; return the function to call for every turn."""
        ...


@dataclass(frozen=True, slots=True)
class Case:
    """A case. ``contenders`` begin with ours; ``targets`` are the goals, and ratios that are only reported; ``rounds``
    is a maximum, for cases that need no more.
    """

    name: str
    title: str
    contenders: tuple[Contender, ...]
    targets: tuple[Target, ...] = ()
    rounds: int | None = None


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The samples of each contender, one per round. ``absent`` has contenders left out, and the missing tools."""

    case: Case
    samples: Mapping[str, Sequence[Sample]]
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def findings(self) -> list[Finding]:
        found = (find(target, self.samples) for target in self.case.targets)
        return [finding for finding in found if finding is not None]


@dataclass
class Stage:
    """The surroundings of a case's contenders: a directory, and a broker or a cluster of Kafka if one needs it."""

    directory: Path
    peers: Peers
    stack: ExitStack
    #: The checkout of these stores and clients.
    checkout: Path = ROOT
    #: True if these stores count their calls.
    counted: bool = False
    _broker: Broker | None = None
    _kafka_cluster: KafkaCluster | None = None

    def store(self, name: str, settings: Mapping[str, str] | None = None) -> Store:
        """Start a separate store, which ends with the case."""
        return self.stack.enter_context(Store(self._data(name), settings, checkout=self.checkout, counted=self.counted))

    def listening_store(self, name: str) -> ListeningStore:
        """Start a store with a listener for Kafka's clients."""
        assert self.peers.kafka is not None
        return self.stack.enter_context(ListeningStore(self.peers.kafka, self._data(name)))

    def cluster(
        self,
        name: str,
        brokers: int = REPLICAS,
        settings: Mapping[str, str] | None = None,
        *,
        session_timeout_ms: int | None = None,
    ) -> Cluster:
        """Start a cluster. One with a ``session_timeout_ms`` must not be paused."""
        cluster = Cluster(self._data(name), brokers, settings, session_timeout_ms=session_timeout_ms)
        return self.stack.enter_context(cluster)

    def storage(self, name: str, brokers: int) -> Storage:
        """Start a store for one broker, else a cluster."""
        return self.store(name) if brokers == 1 else self.cluster(name, brokers)

    def _data(self, name: str) -> Path:
        return self.directory / name.replace(" ", "-").replace(",", "")

    def broker(self) -> Broker:
        """Return the broker, paused."""
        if self._broker is None:
            assert self.peers.kafka is not None
            self._broker = Broker(self.peers.kafka, self.directory / "kafka")
            self.stack.enter_context(self._broker)
            self._broker.pause()
        return self._broker

    def kafka_cluster(self) -> KafkaCluster:
        """Return three brokers, paused."""
        if self._kafka_cluster is None:
            assert self.peers.kafka is not None
            self._kafka_cluster = KafkaCluster(self.peers.kafka, self.directory / "kafka-cluster", REPLICAS)
            self.stack.enter_context(self._kafka_cluster)
            self._kafka_cluster.pause()
        return self._kafka_cluster


def run_case(
    case: Case, directory: Path, peers: Peers, *, rounds: int, seconds: float, tell: Callable[[str], None]
) -> CaseResult:
    """Run ``rounds`` rounds after one warm-up, which does not count. Raises BenchmarkError naming the contender."""
    lacking = {
        contender.name: ", ".join(need for need in contender.needs if getattr(peers, need) is None)
        for contender in case.contenders
    }
    absent = {name: needs for name, needs in lacking.items() if needs}
    if case.contenders[0].name in absent:
        return CaseResult(case, {}, absent)
    samples: dict[str, list[Sample]] = {}
    with ExitStack() as stack:
        stage = Stage(directory, peers, stack)
        turns = {}
        for contender in case.contenders:
            if contender.name not in absent:
                with _named(contender.name):
                    turns[contender.name] = contender.start(stage)
        for number in range(min(rounds, case.rounds or rounds) + 1):
            for name, turn in turns.items():
                with _named(f"{name}, {_round(number)}"):
                    sample = turn(seconds if number else seconds / 2)
                if number:
                    samples.setdefault(name, []).append(sample)
                tell(_line(case, name, number, sample))
    return CaseResult(case, samples, absent)


@contextmanager
def _named(side: str) -> Iterator[None]:
    """Add the side and the round to the message of a failure."""
    try:
        yield
    except BenchmarkError as error:
        raise BenchmarkError(f"{side}: {error}") from error


def _round(number: int) -> str:
    return f"round {number}" if number else "warm-up"


def _line(case: Case, name: str, number: int, sample: Sample) -> str:
    found = {measure: getattr(sample, measure) for measure in _TOLD}
    figures = [
        f"{METRICS[measure].format(value)} {METRICS[measure].title}"
        for measure, value in found.items()
        if value is not None
    ]
    return f"{case.name}: {_round(number)}: {name}: {', '.join(figures)}"


__all__ = ["BenchmarkError", "Case", "CaseResult", "Contender", "Peers", "Stage", "run_case"]
