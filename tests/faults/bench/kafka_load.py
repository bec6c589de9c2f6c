"""Clients with Kafka's protocol (librdkafka's) beside those of ``workload``: producers, and readers of assigned
partitions, each in a thread.

Each record is a call of its own: it begins when librdkafka takes it, and ends as librdkafka reports it: ``ok`` with its
place, ``fail`` if it is certainly not stored, ``info`` if it may be. A fetch begins when the partition is assigned
and ends after what came from there. Invariants: no producer has more than some records in hand; no client waits for
the store without an end.
"""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.faults.bench.history import Recorder
from tests.faults.bench.records import id_of, shown, stored, text_of
from tests.faults.bench.workload import TopicSpec, some_records
from tests.support.background_load import BackgroundLoad
from tests.support.librdkafka import Delivery, Producer, SendError, Status

#: So many records of a producer wait for their reports at most.
_IN_HAND_MAX: Final = 100
_COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
#: Of a producer, before another one with another compression takes its place.
_BURSTS: Final = (20, 60)
#: Of plain producers. A message of an idempotent one must not time out: librdkafka then goes on with the next epoch, in
#: which it sends again what it knows no answer of, and the store cannot tell that it has it.
_MESSAGE_TIMEOUT_MS: Final = 20_000
#: At the end of a run the store is well.
_FLUSH_S: Final = 10.0
_GIVEN_UP_S: Final = 30.0
_POLL_S: Final = 0.05
_READ_S: Final = (0.1, 0.6)
#: A partition that gives nothing for so long counts as not answered.
_ANSWERED_S: Final = 5.0
_READ_RECORDS: Final = (5, 50, 500)
_ASK_S: Final = 5.0
#: Of a reader, before a new consumer of its group takes its place.
_READS: Final = (10, 40)
_UNKNOWN_SERVER_ERROR: Final = -1
_COMMON: Final = {
    "broker.address.family": "v4",
    "log_level": 0,
    "socket.timeout.ms": 10_000,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 1_000,
}


@dataclass(frozen=True, slots=True)
class ProducerKind:
    """A plain producer sends a record once, so that it is there once or not at all."""

    name: str
    acks: str = "all"
    idempotent: bool = False

    def config(self, compression: str, linger_ms: int) -> Mapping[str, Any]:
        again: Mapping[str, Any] = {"message.send.max.retries": 0, "message.timeout.ms": _MESSAGE_TIMEOUT_MS}
        if self.idempotent:
            again = {"enable.idempotence": True, "message.timeout.ms": 0}
        return {
            **_COMMON,
            **again,
            "acks": self.acks,
            "compression.type": compression,
            "linger.ms": linger_ms,
            # Small batches: several requests are under way.
            "batch.num.messages": 5,
            "max.in.flight.requests.per.connection": 5,
            "request.timeout.ms": 5_000,
            "retry.backoff.ms": 50,
            "retry.backoff.max.ms": 500,
            "partitioner": "murmur2_random",
        }


IDEMPOTENT: Final = ProducerKind("idempotent", idempotent=True)
PLAIN: Final = ProducerKind("plain")
LEADER_ALONE: Final = ProducerKind("leader-alone", acks="1")


@dataclass(slots=True)
class _Read:
    """What a reader was given of a partition by one assignment; ``end`` if it was told that there is no more. The
    start and the high watermark are the last ones that it was told; an answer with an error has none.
    """

    number: str
    offset: int
    rows: list[list[object]] = field(default_factory=list)
    end: int | None = None
    log_start: int = -1
    high_watermark: int = -1
    error: KafkaError | None = None

    @property
    def is_answered(self) -> bool:
        return self.high_watermark >= 0 and (bool(self.rows) or self.end is not None)

    @property
    def is_over(self) -> bool:
        return self.is_answered or self.error is not None

    @property
    def next_offset(self) -> int:
        last = int(str(self.rows[-1][0])) + 1 if self.rows else self.offset
        return max(last, self.end or 0)


class KafkaLoad(BackgroundLoad):
    """A thread for each of the ``producers``, and ``readers`` of the topics that are not shared.

    ``acknowledged`` counts records by topic and partition, ``progress`` what each client has got: acknowledgements, or
    answers to reads.
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
        self._names += [f"kafka-reader-{number}" for number in range(readers)]
        targets += [_bound(self._read, f"kafka-reader-{number}", group) for number, group in enumerate(self.groups)]
        super().__init__(targets)

    def wait_for_progress(self, *, seconds: float) -> list[str]:
        """Until each client has got something more; those that have not in time."""
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
            config = kind.config(_COMPRESSIONS[(first + life) % len(_COMPRESSIONS)], chance.choice([0, 2, 10]))
            client = _ProducerClient(self, f"{name}.{life}", kind, config)
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

    def note(self, client: str, topic: str, partition: int) -> None:
        """A record was acknowledged."""
        with self._counting:
            self.acknowledged[topic, partition] += 1
            self.progress[client.partition(".")[0]] += 1

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    # ---- readers ----------------------------------------------------------------------------------------------------

    def _read(self, name: str, group: str) -> None:
        chance = random.Random(f"{self._seed} {name}")
        at = {topic.name: dict.fromkeys(range(topic.partitions), 0) for topic in self._read_topics}
        while not self._stop.is_set():
            reader = _Reader(self._bootstrap, self._recorder, name, group)
            try:
                for topic in self._read_topics:
                    at[topic.name].update(reader.committed(topic))
                for _ in range(chance.randint(*_READS)):
                    if self._stop.wait(self._pause_s):
                        break
                    topic = chance.choice(self._read_topics)
                    answers = reader.read(
                        topic.name, at[topic.name], chance.uniform(*_READ_S), chance.choice(_READ_RECORDS)
                    )
                    with self._counting:
                        self.progress[name] += answers
                    if answers:
                        reader.commit(topic.name, at[topic.name])
                        if chance.random() < 0.2:
                            reader.committed(topic)
            finally:
                reader.close()


class _ProducerClient:
    """One producer of librdkafka's, whose records are in the history."""

    def __init__(self, load: KafkaLoad, process: str, kind: ProducerKind, config: Mapping[str, Any]) -> None:
        self._load = load
        self._recorder = load._recorder
        self._process = process
        self._kind = kind
        self._producer = Producer({"bootstrap.servers": load._bootstrap, "client.id": process, **config})
        #: By number, the call and its topic.
        self._calls: dict[int, tuple[str, str]] = {}

    def send(self, topic: TopicSpec, partition: int | None, record: Any) -> None:
        call = self._recorder.invoke(
            self._process,
            "produce",
            topic=topic.name,
            partition=partition,
            acks=self._kind.acks,
            format="kafka",
            pipeline=self._process if self._kind.idempotent else "",
            records=[record.in_history()],
        )
        try:
            number = self._producer.send(
                topic.name,
                partition,
                stored(record.key),
                stored(record.value),
                timestamp_ms=record.timestamp,
                headers=[("id", record.record_id.encode())],
            )
        except SendError as error:
            self._recorder.complete(call, self._process, "produce", "fail", reason=str(error))
            return
        self._calls[number] = call, topic.name
        while self._producer.in_hand >= _IN_HAND_MAX and not self._load.is_stopping:
            self._take(self._producer.poll(_POLL_S))

    def rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._load.is_stopping:
            self._take(self._producer.poll(min(left, _POLL_S)))

    def finish(self) -> None:
        """Until all records are reported; at the end of a run those that are not soon are given up."""
        while self._producer.in_hand and not self._load.is_stopping:
            self._take(self._producer.poll(_POLL_S))
        self._take_all(_FLUSH_S)
        if self._producer.in_hand:
            self._producer.give_up()
            self._take_all(_GIVEN_UP_S)

    def _take_all(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._producer.in_hand and time.monotonic() < until:
            self._take(self._producer.poll(_POLL_S))

    def close(self) -> None:
        self._producer.give_up()
        self._take(self._producer.poll(0))
        self._producer.close()

    def _take(self, deliveries: Sequence[Delivery]) -> None:
        for one in deliveries:
            call, topic = self._calls.pop(one.number)
            if one.code == 0 and one.offset >= 0:
                self._recorder.complete(call, self._process, "produce", "ok", places=[(one.partition, one.offset)])
                self._load.note(self._process, topic, one.partition)
                continue
            phase = "fail" if one.status is Status.NOT_PERSISTED else "info"
            told = f"{one.code} {one.reason}, {one.status.name}"
            self._recorder.complete(call, self._process, "produce", phase, reason=told)
            assert one.code != _UNKNOWN_SERVER_ERROR, told
        if deliveries and (fatal := self._producer.fatal_error):
            raise AssertionError(f"{self._process} cannot go on: {fatal}")


class _Reader:
    """One consumer of librdkafka's, whose reads and commits are in the history. It is no member of its group."""

    def __init__(self, bootstrap: str, recorder: Recorder, name: str, group: str) -> None:
        self._recorder = recorder
        self._name = name
        self._group = group
        self._consumer = Consumer(
            {
                **_COMMON,
                "bootstrap.servers": bootstrap,
                "client.id": name,
                "group.id": group,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 50,
                "max.partition.fetch.bytes": 100_000,
            }
        )

    def close(self) -> None:
        self._consumer.close()

    def read(self, topic: str, positions: dict[int, int], seconds: float, most: int) -> int:
        """From all partitions, until each has answered, and the time is over or the records are enough; the number of
        answers. ``positions`` move on.
        """
        reads = {}
        for partition, offset in positions.items():
            number = self._recorder.invoke(self._name, "fetch", topic=topic, partition=partition, offset=offset)
            reads[partition] = _Read(number, offset)
        self._consumer.assign([TopicPartition(topic, partition, one.offset) for partition, one in reads.items()])
        began, count = time.monotonic(), 0
        while time.monotonic() < began + _ANSWERED_S:
            for message in self._consumer.consume(most, _POLL_S):
                count += 1
                if message.topic() == topic and message.partition() in reads:
                    self._take(message, reads[message.partition()])
            if (count >= most or time.monotonic() > began + seconds) and all(one.is_over for one in reads.values()):
                break
        answers = 0
        for partition, one in reads.items():
            answers += one.is_answered
            self._tell(one)
            if one.error is not None and one.error.code() == KafkaError._AUTO_OFFSET_RESET:
                positions[partition] = self._reset(TopicPartition(topic, partition), one.next_offset)
            elif one.is_answered:
                positions[partition] = one.next_offset
        self._consumer.unassign()
        return answers

    def _take(self, message: Message, one: _Read) -> None:
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            one.error = error
            return
        log_start, high_watermark = self._consumer.get_watermark_offsets(
            TopicPartition(message.topic(), message.partition()), cached=True
        )
        if high_watermark >= 0:
            one.log_start, one.high_watermark = log_start, high_watermark
        if error is not None:
            one.end = message.offset()
            return
        _, timestamp_ms = message.timestamp()
        record_id, key, value = id_of(message.headers() or ()), text_of(message.key()), text_of(message.value())
        one.rows.append([message.offset(), timestamp_ms, record_id, key, shown(value)])

    def _tell(self, one: _Read) -> None:
        if not one.is_answered:
            reason = "no answer" if one.error is None else str(one.error)
            self._recorder.complete(one.number, self._name, "fetch", "info", reason=reason)
            return
        told = {
            "records": one.rows,
            "next_offset": one.next_offset,
            "high_watermark": one.high_watermark,
            "log_start": one.log_start,
        }
        self._recorder.complete(one.number, self._name, "fetch", "ok", **told)

    def _reset(self, at: TopicPartition, offset: int) -> int:
        """Retention was faster; an end below what was read is found in the history."""
        try:
            log_start, end = self._consumer.get_watermark_offsets(at, timeout=_ASK_S, cached=False)
        except KafkaException:
            return offset
        return int(log_start if offset < log_start else end)

    def commit(self, topic: str, positions: Mapping[int, int]) -> None:
        offsets = [TopicPartition(topic, partition, offset) for partition, offset in positions.items()]
        asked = {"group": self._group, "topic": topic, "offsets": {str(p): offset for p, offset in positions.items()}}
        call = self._recorder.invoke(self._name, "commit", **asked)
        try:
            told = self._consumer.commit(offsets=offsets, asynchronous=False)
            failed = next((one.error for one in told or () if one.error is not None), None)
        except KafkaException as error:
            failed = error
        # The first of several tries may have been stored.
        phase, said = ("ok", {}) if failed is None else ("info", {"reason": repr(failed)})
        self._recorder.complete(call, self._name, "commit", phase, **said)

    def committed(self, topic: TopicSpec) -> Mapping[int, int]:
        """None for a partition without an offset, or if there was no answer."""
        wanted = [TopicPartition(topic.name, partition) for partition in range(topic.partitions)]
        call = self._recorder.invoke(self._name, "committed", group=self._group, topic=topic.name)
        try:
            told = self._consumer.committed(wanted, timeout=_ASK_S)
            failed = next((one.error for one in told if one.error is not None), None)
        except KafkaException as error:
            told, failed = [], error
        if failed is not None:
            self._recorder.complete(call, self._name, "committed", "info", reason=repr(failed))
            return {}
        offsets = {one.partition: one.offset for one in told if one.offset != OFFSET_INVALID}
        shown_offsets = {str(partition): offset for partition, offset in offsets.items()}
        self._recorder.complete(call, self._name, "committed", "ok", offsets=shown_offsets)
        return offsets


def _bound(work: Callable[[str, Any], None], name: str, what: Any) -> Callable[[], None]:
    return lambda: work(name, what)
