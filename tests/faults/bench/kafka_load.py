"""Clients with Kafka's protocol beside those of ``workload``: producers and readers, each in a thread."""

import functools
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.faults.bench.history import Recorder
from tests.faults.bench.kafka_producer import KafkaProducer, ProducerKind
from tests.faults.bench.kafka_reader import KafkaReader
from tests.faults.bench.read_checks import KAFKA_READER
from tests.faults.bench.workload import TopicSpec, some_records
from tests.support.background_load import BackgroundLoad

_COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
#: Bursts of a producer, before another one with another compression replaces it.
_BURSTS: Final = (20, 60)
_READ_S: Final = (0.1, 0.6)
_READ_RECORDS: Final = (5, 50, 500)
#: Reads of a reader, before a new consumer of its group replaces it.
_READS: Final = (10, 40)
_POLL_S: Final = 0.05


class KafkaLoad(BackgroundLoad):
    """A thread for each of the ``producers``, and ``readers`` of the topics that are not shared.

    ``acknowledged`` counts records by topic and partition, ``progress`` counts the acknowledgements or the answered
    reads of each client.
    """

    def __init__(
        self,
        bootstrap: str,
        recorder: Recorder,
        topics: Sequence[TopicSpec],
        *,
        seed: int,
        producers: Sequence[ProducerKind],
        readers: int,
        pause_s: float,
        large: float,
    ) -> None:
        self.acknowledged: Counter[tuple[str, int]] = Counter()
        self.progress: Counter[str] = Counter()
        self.groups = [f"kafka-group-{number}" for number in range(readers)]
        self._bootstrap = bootstrap
        self._recorder = recorder
        self._topics = topics
        self._read_topics = [topic for topic in topics if not topic.shared]
        self._seed = seed
        self._pause_s = pause_s
        self._large = large
        self._counting = threading.Lock()
        self._names = [f"kafka-{kind.name}-{number}" for number, kind in enumerate(producers)]
        targets = [_bound(self._produce, name, kind) for name, kind in zip(self._names, producers, strict=True)]
        self._names += [f"{KAFKA_READER}{number}" for number in range(readers)]
        targets += [_bound(self._read, f"{KAFKA_READER}{number}", group) for number, group in enumerate(self.groups)]
        super().__init__(targets)

    def wait_for_progress(self, *, seconds: float) -> list[str]:
        """Wait until each client has made progress; return those that have not in time."""
        then, waiting, deadline = Counter(self.progress), self._names, time.monotonic() + seconds
        while waiting and time.monotonic() < deadline and not self.errors:
            self._stop.wait(_POLL_S)
            waiting = [name for name in waiting if self.progress[name] == then[name]]
        return waiting

    # ---- producers --------------------------------------------------------------------------------------------------

    def _produce(self, name: str, kind: ProducerKind) -> None:
        chance = random.Random(f"{self._seed} {name}")
        first = chance.randrange(len(_COMPRESSIONS))
        for life in itertools.count():
            if self._stop.is_set():
                return
            client = KafkaProducer(
                self._bootstrap,
                self._recorder,
                f"{name}.{life}",
                kind,
                self._stop,
                functools.partial(self._note, name),
                compression=_COMPRESSIONS[(first + life) % len(_COMPRESSIONS)],
                linger_ms=chance.choice([0, 2, 10]),
            )
            try:
                for burst in range(chance.randint(*_BURSTS)):
                    client.rest(self._pause_s * 4 * chance.random())
                    if self._stop.is_set():
                        break
                    topic = chance.choice(self._topics)
                    # The partition of a key depends on the number of partitions.
                    named = topic.shared or chance.random() < 0.7
                    keyed = topic.compacted or not named or chance.random() < 0.5
                    partition = chance.randrange(topic.partitions) if named else None
                    prefix = f"{name}-{life}-{burst}"
                    for record in some_records(prefix, topic, keyed=keyed, large=self._large, chance=chance):
                        client.send(topic, partition, record)
                client.finish()
            finally:
                client.close()

    def _note(self, name: str, topic: str, partition: int) -> None:
        with self._counting:
            self.acknowledged[topic, partition] += 1
            self.progress[name] += 1

    # ---- readers ----------------------------------------------------------------------------------------------------

    def _read(self, name: str, group: str) -> None:
        chance = random.Random(f"{self._seed} {name}")
        at = {(topic.name, partition): 0 for topic in self._read_topics for partition in range(topic.partitions)}
        while not self._stop.is_set():
            reader = KafkaReader(self._bootstrap, self._recorder, name, group)
            try:
                for topic in self._read_topics:
                    at.update(reader.committed(topic))
                for _ in range(chance.randint(*_READS)):
                    if self._stop.wait(self._pause_s):
                        break
                    answers = reader.read(at, chance.uniform(*_READ_S), chance.choice(_READ_RECORDS))
                    with self._counting:
                        self.progress[name] += answers
                    if answers:
                        topic = chance.choice(self._read_topics)
                        reader.commit(
                            topic.name, {p: offset for (named, p), offset in at.items() if named == topic.name}
                        )
                        if chance.random() < 0.2:
                            reader.committed(topic)
            finally:
                reader.close()


def _bound(work: Callable[[str, Any], None], name: str, what: Any) -> Callable[[], None]:
    return lambda: work(name, what)
